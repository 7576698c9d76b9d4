"""Reads TensorFlow Serving's configuration files: the models to serve with their versions and labels, and batching.

Batching parameters have the meaning that TensorFlow's `SharedBatchScheduler` gives them. Nothing here imports
TensorFlow, so a wrong configuration is refused before anything is loaded.
"""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2
from google.protobuf.message import Message

from export import base_path
from keras_bert.errors import InputError
from keras_bert.files import is_directory, is_remote, read_lines
from tasks.settings import available_cores


class VersionPolicy(NamedTuple):
    """The versions under a base path to serve: the `latest` highest, the `specific` ones, or all (both None)."""

    latest: int | None = 1
    specific: tuple[int, ...] | None = None

    def choose(self, versions: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Returns the versions to serve out of `versions`, number and path of each in ascending order."""
        if self.specific is not None:
            return [version for version in versions if version[0] in self.specific]
        return versions if self.latest is None else versions[-self.latest :]


class ModelSettings(NamedTuple):
    """One model to serve.

    Attributes:
        name: its name in requests.
        base_path: the directory of its versions.
        policy: chooses the versions to serve.
        labels: label -> version.
    """

    name: str
    base_path: str
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = {}


def read_model_config(path: str) -> list[ModelSettings]:
    """Reads a file of TensorFlow Serving's `--model_config_file`.

    Raises:
        InputError: the file cannot be read, is not such a message, or contradicts itself.
    """
    # Part of the extra `serve`; the settings report if it is missing.
    from tensorflow_serving.config import model_server_config_pb2

    expected = "TensorFlow Serving's model_config_list { config { name: ... base_path: ... } }"
    config = read_text_message(path, model_server_config_pb2.ModelServerConfig(), expected)
    return settings_of(config, path)


def settings_of(config: Message, where: str) -> list[ModelSettings]:
    """Returns the models that a configuration names.

    Args:
        config: a `ModelServerConfig`.
        where: what error messages call the configuration.

    Raises:
        InputError: the configuration names no model, a model twice, or a name that cannot be part of a URL; or a model
            has a relative base path, a platform other than TensorFlow, or a policy that serves nothing.
    """
    if config.WhichOneof("config") != "model_config_list" or not config.model_config_list.config:
        raise InputError(f"{where}: expected a model_config_list with at least one config.")
    from tensorflow_serving.config import model_server_config_pb2

    models: dict[str, ModelSettings] = {}
    for model in config.model_config_list.config:
        base_path.check_model_name(model.name, f"It is a name in {where}: choose another.")
        if model.name in models:
            raise InputError(f"{where}: names the model {model.name!r} twice. Expected each once.")
        is_tensorflow = model.model_type == model_server_config_pb2.TENSORFLOW  # The field before model_platform.
        if (model.model_platform or ("tensorflow" if is_tensorflow else "")) != "tensorflow":
            raise InputError(
                f"{where}: expected model {model.name!r} to have the model_platform 'tensorflow'. Received: "
                f"{model.model_platform!r}"
            )
        if not os.path.isabs(model.base_path) and not is_remote(model.base_path):
            raise InputError(
                f"{where}: expected model {model.name!r} to have an absolute base_path. Received: {model.base_path!r}"
            )
        policy, labels = _policy(model, where), dict(model.version_labels)
        models[model.name] = ModelSettings(model.name, model.base_path, policy, labels)
    return list(models.values())


def _policy(model: Message, where: str) -> VersionPolicy:
    policy = model.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy(latest=None)
    if choice == "specific":
        if not policy.specific.versions:
            raise InputError(f"{where}: model {model.name!r} has a specific version policy without versions.")
        return VersionPolicy(latest=None, specific=tuple(policy.specific.versions))
    return VersionPolicy(latest=max(1, policy.latest.num_versions))


def in_precision(models: Sequence[ModelSettings], precision: str) -> Sequence[ModelSettings]:
    """Returns the models with the base paths of their bfloat16 versions, if `--precision` asks for them.

    Raises:
        InputError: a model has no such versions.
    """
    if precision != "bfloat16":
        return models
    for model in models:
        if not is_directory(os.path.join(model.base_path, precision)):
            raise InputError(
                f"{model.base_path}: has no versions in bfloat16. Export the model by bert-export --bfloat16, or leave "
                "out --precision=bfloat16."
            )
    return [model._replace(base_path=os.path.join(model.base_path, precision)) for model in models]


def aspired_versions(settings: ModelSettings) -> list[tuple[int, str]]:
    """Lists number and path of the versions to serve now, ascending.

    Raises:
        InputError: the base path does not exist, has no version, or none that the policy names.
    """
    chosen = settings.policy.choose(base_path.existing_versions(settings.base_path))
    if not chosen:
        raise InputError(
            f"{settings.base_path}: none of the versions {list(settings.policy.specific or ())} of model "
            f"{settings.name!r} is there. Check its model_version_policy."
        )
    return chosen


def read_keys(source: str | None) -> list[str]:
    """Returns the keys of `--api_key`: a file with a key per line, or `env:NAME`, an environment variable like it.

    Raises:
        InputError: the file cannot be read, there is no key, or a line is not a key, such as a comment.
    """
    if source is None:
        return []
    in_env = source.startswith("env:")
    lines = os.environ.get(source[4:], "").splitlines() if in_env else dict(read_lines(source or os.devnull)).values()
    keys = {number: line.strip() for number, line in enumerate(lines, start=1) if line.strip()}
    wrong = [number for number, key in keys.items() if not re.fullmatch("(?!#)[!-~]+", key)]
    if wrong or not keys:  # The message must not show what may be a key.
        raise InputError(
            f"--api_key={source}: expected a key in each line, of ASCII characters without blanks, and no comments. "
            f"Found: {f'something else in line {wrong[0]}' if wrong else 'no key'}"
        )
    return list(keys.values())


# === Batching ===


class BatchingParameters(NamedTuple):
    """Settings for joining requests. The defaults are TensorFlow Serving's.

    Attributes:
        max_batch_size: largest number of rows of a batch; a larger request is refused, or runs alone with
            `enable_large_batch_splitting`.
        batch_timeout_micros: microseconds that an incomplete batch waits for more requests.
        max_enqueued_batches: largest number of batches that wait; further requests are refused.
        num_batch_threads: number of batches of all models that run at once.
        allowed_batch_sizes: sizes to which batches are padded, ascending up to `max_batch_size`; empty: no padding.
        enable_large_batch_splitting: see `max_batch_size`.
    """

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = available_cores()
    allowed_batch_sizes: tuple[int, ...] = ()
    enable_large_batch_splitting: bool = False


def read_batching_parameters(path: str) -> BatchingParameters:
    """Reads a file of TensorFlow Serving's `--batching_parameters_file` or a version's `batching_params.pbtxt`.

    Raises:
        InputError: the file cannot be read, is not such a message, or its values contradict each other.
    """
    expected = "TensorFlow Serving's batching parameters, such as max_batch_size { value: 32 }"
    message = read_text_message(path, declared_message("BatchingParameters"), expected)
    given = {field.name: value.value for field, value in message.ListFields() if field.message_type}
    parameters = BatchingParameters(
        **{name: value for name, value in given.items() if name in BatchingParameters._fields},
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
    )
    for name in ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"):
        least = 0 if name == "batch_timeout_micros" else 1
        if getattr(parameters, name) < least:
            raise InputError(f"{path}: expected {name} of at least {least}. Received: {getattr(parameters, name)}")
    sizes = parameters.allowed_batch_sizes
    if sizes and (list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != parameters.max_batch_size):
        raise InputError(
            f"{path}: expected allowed_batch_sizes to ascend to max_batch_size ({parameters.max_batch_size}). "
            f"Received: {list(sizes)}"
        )
    if message.pad_variable_length_inputs:
        raise InputError(
            f"{path}: pad_variable_length_inputs fills with each tensor's first element, which changes the answers to "
            "token ids. Take it out: requests of different lengths are batched apart, strings together."
        )
    return parameters


# === Protocol buffers in text format ===


def read_text_message(path: str, message: Message, expected: str) -> Message:
    """Reads a file into `message` and returns it.

    Args:
        path: the file.
        message: an empty message of the right class.
        expected: the expected content of the file in words, for errors.

    Raises:
        InputError: the file cannot be read, or is not such a message.
    """
    text = "\n".join(line for _, line in read_lines(path))
    try:
        return text_format.Parse(text, message)
    except text_format.ParseError as error:
        received = " ".join(str(error).split())[:200]
        parsing = f"Error parsing text-format {message.DESCRIPTOR.full_name}"  # TensorFlow Serving's words.
        raise InputError(f"{path}: {parsing}: expected {expected}. Received: {received}") from error


_MESSAGES = pathlib.Path(__file__).with_name("messages.pbtxt").read_text("utf-8")
_DECLARED = descriptor_pool.DescriptorPool()
_DECLARED.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
_DECLARED.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))


def declared_message(name: str) -> Message:
    """Returns an empty message of TensorFlow Serving that tensorflow-serving-api lacks, such as `SSLConfig`."""
    return message_factory.GetMessageClass(_DECLARED.FindMessageTypeByName(f"tensorflow.serving.{name}"))()
