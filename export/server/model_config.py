"""Reads TensorFlow Serving's ModelServerConfig: the models to serve, their versions, and labels for these.

Imports no TensorFlow, so a wrong configuration is refused before anything is loaded.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from tensorflow_serving.config import model_server_config_pb2

from export import base_path
from export.server.text_message import read_text_message
from keras_bert.errors import InputError


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
        policy: chooses those to serve.
        labels: label -> version.
    """

    name: str
    base_path: str
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = {}


def read_model_config(path: str) -> list[ModelSettings]:
    """Reads a file of TensorFlow Serving's `--model_config_file`.

    Raises:
        InputError: the file cannot be read, is no such message, or contradicts itself.
    """
    expected = "TensorFlow Serving's model_config_list { config { name: ... base_path: ... } }"
    config = read_text_message(path, model_server_config_pb2.ModelServerConfig(), expected)
    return settings_of(config, path)


def settings_of(config: model_server_config_pb2.ModelServerConfig, where: str) -> list[ModelSettings]:
    """Returns the models that a configuration names.

    Args:
        config: the message.
        where: its name in errors.

    Raises:
        InputError: it names no model, one twice, or one that no URL can carry, or it has a relative base path, another
            platform than TensorFlow or none, or a policy that serves nothing.
    """
    if config.WhichOneof("config") != "model_config_list" or not config.model_config_list.config:
        raise InputError(f"{where}: expected a model_config_list with at least one config.")
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
        if not os.path.isabs(model.base_path):
            raise InputError(
                f"{where}: expected model {model.name!r} to have an absolute base_path. Received: {model.base_path!r}"
            )
        policy, labels = _policy(model, where), dict(model.version_labels)
        models[model.name] = ModelSettings(model.name, model.base_path, policy, labels)
    return list(models.values())


def _policy(model: model_server_config_pb2.ModelConfig, where: str) -> VersionPolicy:
    policy = model.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy(latest=None)
    if choice == "specific":
        if not policy.specific.versions:
            raise InputError(f"{where}: model {model.name!r} has a specific version policy without versions.")
        return VersionPolicy(latest=None, specific=tuple(policy.specific.versions))
    return VersionPolicy(latest=max(1, policy.latest.num_versions))


def aspired_versions(settings: ModelSettings) -> list[tuple[int, str]]:
    """Lists number and path of the versions to serve now, ascending.

    Raises:
        InputError: the base path does not exist, or holds no version, or none that the policy names.
    """
    base_path.newest_version(settings.base_path)  # Raises a clear error if there is none.
    chosen = settings.policy.choose(base_path.complete_versions(settings.base_path))
    if not chosen:
        raise InputError(
            f"{settings.base_path}: none of the versions {list(settings.policy.specific or ())} of model "
            f"{settings.name!r} is there. Check its model_version_policy."
        )
    return chosen
