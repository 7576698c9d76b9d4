"""A model's base path, laid out as TensorFlow Serving expects: each numeric sub-directory is a version.

Imports no TensorFlow, since commands check paths and names before they load anything.
"""

import os
import re
import urllib.parse

from keras_bert.errors import InputError
from keras_bert.files import absolute, is_directory, is_file, list_directory

MAX_VERSION = 2**63 - 1  # TensorFlow Serving reads a version into an int64.

# Files in a version's directory: its warm-up requests, under TensorFlow Serving's name; its description; for ONNX
# Runtime in bert-serve, the description of its encoders, which of their products may be computed in 8 bits, how texts
# become token ids, and the graph from an encoder's outputs to the answer.
WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
DESCRIPTION_FILE = os.path.join("assets.extra", "model.json")
ENCODERS_FILE = os.path.join("assets.extra", "encoders.json")
INT8_FILE = os.path.join("assets.extra", "int8.json")
TEXTS_FILE = os.path.join("assets.extra", "texts.json")
HEAD_FILE = os.path.join("assets.extra", "head.pb")
PER_MODEL_FILE = "batching_params.pbtxt"  # TensorFlow Serving reads it from each version's directory.


# === Names ===


def check_model_name(name: str, cure: str) -> None:
    """Checks that a model's name can be part of a URL of TensorFlow Serving's REST API.

    Args:
        name: the model's name.
        cure: the end of the message, with what to do.

    Raises:
        InputError: `name` is empty or holds a slash, a colon or white space.
    """
    if not re.fullmatch(r"[^/:\s]+", name):
        raise InputError(f"{name!r} cannot be a model's name: expected no slash, colon or white space in it. {cure}")


def model_url(host: str, port: int, name: str) -> str:
    """Returns the URL of a model, with its name quoted; a request appends its verb, such as `:predict`."""
    return f"http://{host}:{port}/v1/models/{urllib.parse.quote(name, safe='')}"


# === Versions ===


def numbered_versions(directory: str) -> list[tuple[int, str]]:
    """Lists number and path of each version under a base path, ascending; `0001` is version 1, as for the server."""
    names = [name for name in list_directory(directory) if name.isascii() and name.isdigit()]
    versions = [(int(name), os.path.join(directory, name)) for name in names]
    return sorted(version for version in versions if version[0] <= MAX_VERSION)


def complete_versions(directory: str) -> list[tuple[int, str]]:
    """Lists the versions that hold a `saved_model.pb`, which a half-copied version lacks."""
    versions = numbered_versions(directory)
    return [version for version in versions if is_file(os.path.join(version[1], "saved_model.pb"))]


def existing_versions(model_base_path: str) -> list[tuple[int, str]]:
    """Lists the complete versions of a model; TensorFlow Serving would choose the last.

    Raises:
        InputError: there is no such directory, or no version in it.
    """
    if not is_directory(model_base_path):
        raise InputError(f"{model_base_path}: no such directory. Give the base path that bert-export wrote to.")
    versions = complete_versions(model_base_path)
    if not versions and is_file(os.path.join(model_base_path, "saved_model.pb")):
        parent = os.path.dirname(absolute(model_base_path))
        raise InputError(f"{model_base_path}: a version of a model. Give the directory of its versions, {parent}.")
    if not versions:
        raise InputError(
            f"{model_base_path}: no version found. Expected numeric directories with a saved_model.pb, such as "
            f"{os.path.join(model_base_path, '1')}; run bert-export first."
        )
    return versions
