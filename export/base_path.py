"""A model's base path, as TensorFlow Serving watches it: versions are its numeric sub-directories.

No TensorFlow here: commands look at paths and names before they load anything.
"""

import os
import platform
import re
import urllib.parse

from keras_bert.errors import InputError
from keras_bert.files import remove_path

MAX_VERSION = 2**63 - 1  # TensorFlow Serving reads a version into an int64.

# Files of a version's directory: requests that it is warmed up with, by TensorFlow Serving's name, and what it is.
WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
DESCRIPTION_FILE = os.path.join("assets.extra", "model.json")

_MODEL_NAME = re.compile(r"[^/:\s]+")


# === Names ===


def check_model_name(name: str, cure: str) -> None:
    """Refuses a name that a URL of TensorFlow Serving's REST API cannot carry.

    Args:
        name: the model's name.
        cure: what the user is to do about a wrong one.

    Raises:
        InputError: `name` is empty or holds a slash, a colon or white space.
    """
    if not _MODEL_NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot be a model's name: expected no slash, colon or white space in it. {cure}")


def model_url(host: str, port: int, name: str) -> str:
    """The address of a model, its name quoted: requests append `:predict` and the like."""
    return f"http://{host}:{port}/v1/models/{urllib.parse.quote(name, safe='')}"


# === Versions ===


def numbered_versions(directory: str) -> list[tuple[int, str]]:
    """Number and path of each version under a base path, ascending; `0001` is version 1, as for TensorFlow Serving."""
    names = [name for name in os.listdir(directory) if name.isascii() and name.isdigit()]
    versions = [(int(name), os.path.join(directory, name)) for name in names]
    return sorted(version for version in versions if version[0] <= MAX_VERSION)


def complete_versions(directory: str) -> list[tuple[int, str]]:
    """As `numbered_versions`, without directories that hold no `saved_model.pb`, such as half-copied ones."""
    return [
        version
        for version in numbered_versions(directory)
        if os.path.isfile(os.path.join(version[1], "saved_model.pb"))
    ]


def newest_version(model_base_path: str) -> tuple[int, str]:
    """Number and path of the version that TensorFlow Serving would choose: the highest.

    A directory without `saved_model.pb`, such as a half-copied one, does not count.

    Raises:
        InputError: there is no such directory, or no version in it.
    """
    if not os.path.isdir(model_base_path):
        raise InputError(f"{model_base_path}: no such directory. Give the base path that bert-export wrote to.")
    versions = complete_versions(model_base_path)
    if not versions:
        raise InputError(
            f"{model_base_path}: no version found. Expected numeric directories with a saved_model.pb, such as "
            f"{os.path.join(model_base_path, '1')}; run bert-export first."
        )
    return versions[-1]


# === Versions in the making ===


def partial_path(directory: str) -> str:
    """Where this process builds a version before it gets its number."""
    return os.path.join(directory, f"{_partial_prefix()}{os.getpid()}")


def remove_abandoned(directory: str) -> None:
    """Removes what exports on this machine left there when they were killed; a running one's directory stays."""
    prefix = _partial_prefix()
    for name in os.listdir(directory):
        process = name.removeprefix(prefix)
        if process != name and process.isdecimal() and not _is_running(int(process)):
            remove_path(os.path.join(directory, name))


def _partial_prefix() -> str:
    # Not a number, so that TensorFlow Serving does not take it for a version. With the machine's name, because on a
    # shared file system nobody here can tell whether another machine's process still runs.
    machine = re.sub(r"[^\w-]", "-", platform.node())
    return f".partial-{machine}-"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except PermissionError:  # it runs, under another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
