"""Settings as dataclass fields: each states its default, help text and bounds once.

`tasks.flags` turns the fields into a command's flags. Python entries take the dataclass itself, and `flags.json` holds
its values. This module defines no flag and imports no TensorFlow.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import open_file

# What settings are about, in the order of `--help` and of the reference pages.
SUBJECTS = {
    "common": "Most used",
    "data": "Data",
    "start": "Where to start",
    "model": "Model",
    "training": "Training",
    "evaluation": "Evaluation and search",
    "answers": "Answers",
    "targets": "Further formats",
    "models": "Models and versions",
    "access": "Access",
    "limits": "Limits",
    "devices": "Devices and speed",
}

_QUOTA_FILE = "/sys/fs/cgroup/cpu.max"  # Control groups, version 2: the limit of the container that this process is in.

# Extra of the distribution -> the packages that it installs, by import name.
EXTRAS = {
    "squad": ("official",),
    "serve": ("grpc", "grpc_health", "grpc_reflection", "prometheus_client", "tensorflow_serving"),
    "onnx": ("onnx", "onnxruntime"),
    "litert": ("ai_edge_litert",),
    "sentences": ("sentencex",),
    "parquet": ("pyarrow",),
    "excel": ("openpyxl",),
    "cluster": ("apache_beam",),
}


def available_cores() -> int:
    """Returns the number of cores that this process may use, within the limit of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError), open_file(_QUOTA_FILE) as file:
        quota, period = map(int, file.read().split())  # The quota is "max" where there is none.
        return max(1, min(cores, math.ceil(quota / period)))
    return cores


def require_extra(extra: str, needed_by: str) -> None:
    """Checks that an extra's packages are installed, without importing any.

    Raises:
        InputError: a package is missing. The message says what needs it, and how to install the extra.
    """
    if missing := [package for package in EXTRAS[extra] if importlib.util.find_spec(package) is None]:
        raise InputError(f"{needed_by} needs {', '.join(missing)}. Run: pip install 'keras-bert-zoo[{extra}]'")


class Rule(NamedTuple):
    """The help text and bounds of a setting; see `setting` for each field."""

    help: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] | None = None
    any_spelling: bool = False
    several: bool = False
    identifies: bool = True
    flag: str | None = None
    repeats: bool = False
    subject: str | None = None
    needs: Callable[[Any], str | None] | None = None

    def spelled(self, value: Any) -> Any:
        """Returns the choice that `value` is another spelling of, or else `value` itself."""
        if not self.any_spelling:
            return value
        return {_plain(choice): choice for choice in self.choices}.get(_plain(value), value)

    def fault(self, value: Any) -> str | None:
        """Returns the rule that `value` breaks, as "must be ...", or None if it breaks none."""
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least}"
        if self.above is not None and value <= self.above:
            return f"must be greater than {self.above}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most}"
        return None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def setting(default: Any, help: str, **bounds: Any) -> Any:
    """Declares a field of a `Settings` dataclass.

    Args:
        default: default value; `dataclasses.MISSING` makes the setting required.
        help: one or two sentences for `--help` and for readers of the code.
        at_least, above, at_most: bounds of a number, or of each number of a list.
        choices: allowed strings.
        any_spelling: whether to accept the choices in any case, with or without "-" and "_". The value is then spelled
            as in `choices`.
        several: whether the flag also takes a comma-separated list of values to search over.
        flag: name of the flag, if it differs from the field's, as the keyword `from` must.
        repeats: whether a list's flag is given once per value, so that values may contain commas.
        subject: key of `SUBJECTS`, for this field and those below it in the class. A class begins with "common".
        needs: returns the extra of `EXTRAS` that a value needs, or None.
        identifies: False if the value may change when a stopped training continues: paths, stages, devices, speed.

    >>> class Example(Settings):
    ...     rate: float = setting(5e-5, "Peak learning rate.", at_least=0.0)
    >>> Example(rate=-1.0)
    Traceback (most recent call last):
    keras_bert.errors.InputError: --rate=-1.0: must be at least 0.0.
    """
    metadata = {"rule": Rule(help, **bounds)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def changeable(default: Any, help: str, **bounds: Any) -> Any:
    """Declares a `setting` that does not identify a run, such as a path, a stage or a device."""
    return setting(default, help, **bounds, identifies=False)


def replaced(base: type, name: str, default: Any, **changes: Any) -> Any:
    """Redeclares the setting `name` of `base` with another default. `changes` replace parts of its rule."""
    rule = base.__dataclass_fields__[name].metadata["rule"]
    return dataclasses.field(default=default, metadata={"rule": rule._replace(**changes)})


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, changeable, replaced))
class Values:
    """Base of frozen dataclasses whose arguments are all keywords. A subclass needs no decorator."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class Settings(Values):
    """Base class of all settings. Checks every value against its rule.

    Attributes:
        extra: key of `EXTRAS` that the whole command needs, or None.

    Raises:
        InputError: a value breaks its rule, or an extra is not installed; the message names the flag.
    """

    extra = None

    def __init_subclass__(cls):
        subject, inherited = "common", getattr(cls, "__dataclass_fields__", {})
        for name, field in vars(cls).items():
            if isinstance(field, dataclasses.Field):
                rule = field.metadata["rule"]
                if name in inherited:
                    own = rule.subject or inherited[name].metadata["rule"].subject
                else:
                    own = subject = rule.subject or subject
                field.metadata = {"rule": rule._replace(subject=own)}
        super().__init_subclass__()

    def __post_init__(self):
        if self.extra:
            require_extra(self.extra, "This command")
        for field in dataclasses.fields(self):
            rule, value = field.metadata["rule"], getattr(self, field.name)
            if value is None:
                continue
            if rule.any_spelling:
                value = rule.spelled(value)
                object.__setattr__(self, field.name, value)
            values = value if isinstance(value, list | tuple) else [value]
            if rule.several and not values:
                raise InputError(f"--{rule.flag or field.name}: expected at least one value, found none.")
            for item in values:
                fault = rule.fault(item)
                if fault:
                    raise InputError(f"--{rule.flag or field.name}={item}: {fault}.")
                if rule.needs and (extra := rule.needs(item)):
                    require_extra(extra, f"--{rule.flag or field.name}={item}".removesuffix("=True"))

    def identity(self) -> dict:
        """Returns, by name, the settings that must stay the same when a stopped training continues."""
        names = [field.name for field in dataclasses.fields(self) if field.metadata["rule"].identifies]
        return {name: getattr(self, name) for name in names}

    def changed(self, *names: str) -> list[str]:
        """Lists the flags of the named settings that differ from their defaults."""
        return [f"--{name}" for name in names if getattr(self, name) != getattr(type(self), name)]


def kinds_of(cls: type) -> dict[str, tuple[type, bool]]:
    """Returns the type of each setting's value (`str`, `int`, `float` or `bool`), and whether it is a list of them.

    The first type of a union counts, except None: `int | None` and `int | list[int]` are ints.
    """
    return {name: _kind_of(hint) for name, hint in typing.get_type_hints(cls).items()}


def _kind_of(hint) -> tuple[type, bool]:
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    is_list = typing.get_origin(hint) is list
    return typing.get_args(hint)[0] if is_list else hint, is_list
