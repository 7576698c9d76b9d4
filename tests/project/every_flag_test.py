"""Every flag of every command, typed as text: the value and type that reach the settings, or the refusal."""

import dataclasses
import importlib

import pytest
from absl import flags as absl_flags
from repository import COMMANDS

from keras_bert.errors import InputError
from tasks import flags
from tasks.settings import Settings, kinds_of

_TYPES = (int, float, bool, str)


def _settings_class(module: str) -> type[Settings]:
    return importlib.import_module(module).console_main.args[1]


def _required(settings_class) -> list[str]:
    fields = dataclasses.fields(settings_class)
    return [
        f"--{_name(field)}=x"
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


def _name(field) -> str:
    return field.metadata["rule"].flag or field.name


def _default(field):
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _inside(rule, kind, default):
    """A value within the bounds, another than the default."""
    if rule.choices:
        return next(choice for choice in rule.choices if choice != default)
    if kind is str:
        return "a text"
    if kind is bool:
        return not default
    low = rule.at_least if rule.at_least is not None else rule.above or 0
    candidates = [kind(low) + kind(step) for step in (1, 2, 3)] if kind is int else [low + 0.125, low + 0.25]
    return next(value for value in candidates if value != default and rule.fault(value) is None)


def _outside(rule, kind) -> list[str]:
    """Texts that the flag refuses."""
    if rule.choices:
        return ["no_such_choice", ""]
    wrong = {bool: ["maybe"], int: ["many", "1.5", ""], float: ["much", "nan", "inf", ""]}.get(kind, [])
    if kind in (int, float):
        wrong += [
            str(kind(bound) + step) for bound, step in ((rule.at_least, -1), (rule.at_most, 1)) if bound is not None
        ]
        wrong += [str(kind(rule.above))] if rule.above is not None else []
    return wrong


def _cases(field, kind, is_list) -> list[tuple[list[str], object]]:
    """Arguments of one flag with the value that each means."""
    rule, default, name = field.metadata["rule"], _default(field), _name(field)
    value = _inside(rule, kind, None if is_list else default)
    if rule.repeats:
        return [([f"--{name}=a,b", f"--{name}=c"], ["a,b", "c"])]
    if is_list:
        return [([f"--{name}={value},{value}"], [value, value]), ([f"--{name}={value}"], [value]), ([f"--{name}="], [])]
    cases = [([f"--{name}={value}"], value), ([f"--{name}", str(value)], value)]
    if kind is bool:
        cases = [([f"--{name}"], True), ([f"--no{name}"], False), ([f"--{name}=true"], True), ([f"--{name}=0"], False)]
    if default is not None and default is not dataclasses.MISSING:
        cases.append(([f"--{name}={default}"], default))
    if rule.several:
        cases.append(([f"--{name}={value},{value}"], [value, value]))
    return cases


@pytest.mark.parametrize(("command", "module"), COMMANDS.items())
def test_every_flag_of(command, module):
    settings_class = _settings_class(module)
    required, kinds = _required(settings_class), kinds_of(settings_class)
    plain = flags.make_flags(settings_class)
    plain([command, *required])
    for field in dataclasses.fields(settings_class):
        name, (kind, is_list) = _name(field), kinds[field.name]
        assert kind in _TYPES, name
        default = _default(field)
        if default is not dataclasses.MISSING:
            assert (plain[name].value, type(plain[name].value)) == (default, type(default)), name
        others = [argument for argument in required if not argument.startswith(f"--{name}=")]
        for arguments, expected in _cases(field, kind, is_list):
            values = flags.make_flags(settings_class)
            assert values([command, *others, *arguments]) == [command], arguments
            given = values[name].value
            assert given == expected and type(given) is type(expected), arguments
            assert not isinstance(given, list) or {type(item) for item in given} <= {kind}, arguments
            _check_settings(settings_class, field, [*others, *arguments], expected)
        for text in [] if field.metadata["rule"].repeats else _outside(field.metadata["rule"], kind):
            if is_list and not text:
                continue
            with pytest.raises((absl_flags.Error, InputError), match=name):
                flags.parse(settings_class, [*others, f"--{name}={text}"])


def _check_settings(settings_class, field, arguments, expected) -> None:
    """Compares what the command gets; a value may need others beside it, and the refusal names a flag then."""
    try:
        settings = flags.parse(settings_class, arguments)
    except InputError as error:
        assert "--" in str(error) and "\n" not in str(error), arguments
    else:
        assert getattr(settings, field.name) == expected, arguments
