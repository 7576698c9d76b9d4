"""Settings that are said once: a dataclass field with its default, its help text and its bounds.

`tasks.flags` turns them into a command's flags, Python entries take the dataclass itself, and `flags.json` holds its
values. No flag and no TensorFlow here.
"""

import dataclasses
import math
import types
import typing
from typing import Any, NamedTuple

from keras_bert.errors import InputError


class Rule(NamedTuple):
    """A setting's help text and bounds; the arguments of `setting`."""

    help: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] | None = None
    ignores_case: bool = False
    several: bool = False
    identifies: bool = True
    flag: str | None = None
    repeats: bool = False

    def fault(self, value: Any) -> str | None:
        """Says what `value` must be, or None where it is allowed."""
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


def setting(default: Any, help: str, **bounds: Any) -> Any:
    """Declares a field of a `Settings` dataclass.

    Args:
        default: `dataclasses.MISSING` for a setting that must be given.
        help: one or two sentences for `--help` and for readers of the code.
        at_least, above, at_most: bounds of a number.
        choices: the strings that are allowed.
        ignores_case: whether they may be written in any case; the value is then as in `choices`.
        several: whether the flag also takes several values with commas between, of which the best is searched for.
        flag: its flag's name, where that is no Python identifier, as `from`.
        repeats: whether the flag of a list is given once for each value, which may hold commas.
        identifies: False for what may change when a stopped training continues: paths, stages, devices, speed.

    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Example(Settings):
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
    """Declares `base`'s setting `name` again with another default, or with another rule."""
    rule = base.__dataclass_fields__[name].metadata["rule"]
    return dataclasses.field(default=default, metadata={"rule": rule._replace(**changes)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: checks every value against its rule.

    Raises:
        InputError: a value is out of its bounds; the message names the flag.
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):
            rule = field.metadata.get("rule")
            value = getattr(self, field.name)
            if rule is None or value is None:
                continue
            if rule.ignores_case:
                value = {choice.lower(): choice for choice in rule.choices}.get(value.lower(), value)
                object.__setattr__(self, field.name, value)
            for one in value if rule.several and isinstance(value, list | tuple) else [value]:
                fault = rule.fault(one)
                if fault:
                    raise InputError(f"--{rule.flag or field.name}={one}: {fault}.")

    def identity(self) -> dict:
        """Returns the settings that must stay the same when a stopped training continues, by name."""
        names = [field.name for field in dataclasses.fields(self) if field.metadata.get("rule", Rule("")).identifies]
        return {name: getattr(self, name) for name in names}


def kind_of(cls: type, name: str) -> tuple[type, bool]:
    """Returns the type of a setting's value, `str int float bool`, and whether it is a list of them.

    `int | None` is an int, `list[str] | None` a list of str, `str | list[str]` a str: a flag gives a string.
    """
    hint = typing.get_type_hints(cls)[name]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is list:
        return typing.get_args(hint)[0], True
    return hint, False
