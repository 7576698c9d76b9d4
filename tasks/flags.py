"""Runs a command: parses its flags, which come from a `tasks.settings.Settings` dataclass, and reports its errors.

No TensorFlow here: `--help` and a wrong flag answer at once. A command module reads

    def main(settings: Settings) -> None: ...

    def console_main() -> None:
        task_flags.run(main, Settings)

Flag names are google-research/bert's where it has one.
"""

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable

from absl import app, flags

from keras_bert.errors import InputError
from keras_bert.files import write_json
from tasks.settings import Rule, Settings, kind_of

# What a command's environment gets unless the user set it, before TensorFlow is imported.
# oneDNN is off by default on CPUs without AVX-512, and makes matrix products faster there.
# Level 3 silences TensorFlow's C++ start-up lines (on a machine without GPU one of them has level ERROR); what
# matters is raised as an exception too. To see them: TF_CPP_MIN_LOG_LEVEL=0.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}

_HELP_FLAGS = frozenset({"--help", "-help", "--helpshort", "-helpshort", "-?", "--?"})
FLAGS_FILE = "flags.json"
_QUIET = -1  # absl's WARNING: absl itself starts programs at INFO.


# === Running a command ===


def run(main: Callable[..., int | None], settings_class: type[Settings] | None = None) -> None:
    """Parses the command line and runs `main(settings)`. Does not return.

    Args:
        main: takes the parsed settings.
        settings_class: whose fields are the command's flags; None: a script with absl flags of its own, whose `main`
            takes the rest of the command line.

    Exit status: `main`'s own (None is 0), 0 after `--help`, 1 for an `InputError` or an error of the operating system
    (disk full, no permission), 2 for a wrong flag or a stray argument, 130 after Ctrl-C: standard error then gets one
    line, and no traceback. After SIGTERM 42 if it reached a training, which has saved a checkpoint and continues with
    the same command; else 143, and temporary files are removed first.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    command = _command_name()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Else no `finally` runs.
    try:
        if settings_class is None:
            app.run(main)
        else:
            app.run(main, flags_parser=lambda argv: _parse(argv, command, main, settings_class))
    except InputError as error:
        _exit(command, f"error: {error}", 1)
    except KeyboardInterrupt:
        _exit(command, "interrupted.", 130)
    except BrokenPipeError:  # `--help | head`: nobody reads on, which is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # Of a rename the second name: the first is a temporary file's.
        where = error.filename2 or error.filename
        _exit(command, f"error: {where}: {error.strerror}" if where else f"error: {error}", 1)


def write_flags(settings: dict[str, object], output_dir: str) -> None:
    """Writes a command's settings to `flags.json`.

    To be called when nothing is left that may be refused: a call that was refused leaves the flags of the one before.
    """
    write_json(os.path.join(output_dir, FLAGS_FILE), settings)


command_flags: flags.FlagValues = flags.FLAGS  # Those of the running command.


def _print_help(command: str, docstring: str | None, values: flags.FlagValues) -> None:
    listing = values.module_help(_COMMAND_FLAGS).strip().partition("\n")[2]  # Its first line is the module's name.
    print(f"{(docstring or '').strip()}\n\nUsage: {command} [flags]\n\n{listing}", flush=True)


def _parse(argv: list[str], command: str, main: Callable, settings_class: type[Settings]) -> Settings:
    """Parses the flags of `settings_class`; prints help or one line about what is wrong, and exits."""
    options = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    global command_flags
    command_flags = values = make_flags(settings_class)
    if _HELP_FLAGS.intersection(options):
        _print_help(command, sys.modules[main.__module__].__doc__, values)
        sys.exit(0)
    values.append_flag_values(flags.FLAGS)  # absl's own, such as --verbosity.
    try:
        rest = values(argv)
    except flags.Error as error:
        _exit(command, f"error: {error} (--help lists the flags)", 2)
    if len(rest) > 1:
        _exit(command, f"error: unexpected argument {rest[1]!r}; values go with '=', as in --flag=value", 2)
    flags.FLAGS.mark_as_parsed()
    if flags.FLAGS["verbosity"].using_default_value:
        flags.FLAGS.verbosity = _QUIET
    return settings_class(**_values_of(values, settings_class))


def _command_name() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and not spec.name.startswith("__main__"):
        return f"python -m {spec.name.removesuffix('.__main__')}"
    return os.path.basename(sys.argv[0])


def _exit(command: str, message: str, status: int) -> None:
    print(f"{command}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


# === Flags from settings ===

_COMMAND_FLAGS = "command"  # absl lists flags by the module that defines them: all of a command's are under this name.


def parse(settings_class: type[Settings], arguments: list[str]) -> Settings:
    """Parses a command line without the command's name.

    Raises:
        flags.Error: an unknown flag, a value out of its bounds, or a required one that is missing.
        InputError: values that contradict each other.
    """
    values = make_flags(settings_class)
    values(["command", *arguments])
    return settings_class(**_values_of(values, settings_class))


def make_flags(settings_class: type[Settings]) -> flags.FlagValues:
    """Makes a flag of each setting, apart from absl's global flags: commands in one process do not mix."""
    values = flags.FlagValues()
    for field in dataclasses.fields(settings_class):
        rule, (kind, is_list) = field.metadata["rule"], kind_of(settings_class, field.name)
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = None if is_required else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        flag = _make_flag(rule.flag or field.name, default, rule, kind, is_list)
        flags.DEFINE_flag(flag, flag_values=values, module_name=_COMMAND_FLAGS, required=is_required)
        if rule.above is not None or kind is float:
            check = lambda value, rule=rule: all(rule.fault(one) is None for one in _listed(value))  # noqa: E731
            flags.register_validator(flag.name, check, message=_bound(rule), flag_values=values)
    return values


def _values_of(values: flags.FlagValues, settings_class: type[Settings]) -> dict:
    fields = dataclasses.fields(settings_class)
    return {field.name: values[field.metadata["rule"].flag or field.name].value for field in fields}


def _make_flag(name: str, default, rule: Rule, kind: type, is_list: bool) -> flags.Flag:
    if rule.several:
        return flags.Flag(_OneOrSeveral(kind), flags.ArgumentSerializer(), name, default, rule.help)
    if rule.repeats:
        return flags.MultiFlag(flags.ArgumentParser(), flags.ArgumentSerializer(), name, default, rule.help)
    if is_list:
        return flags.Flag(flags.ListParser(), flags.ListSerializer(","), name, default, rule.help)
    if rule.choices is not None:
        return flags.EnumFlag(name, default, rule.help, list(rule.choices), case_sensitive=not rule.ignores_case)
    if kind is bool:
        return flags.BooleanFlag(name, default, rule.help)
    parsers = {int: flags.IntegerParser, float: flags.FloatParser}
    parser = parsers[kind](rule.at_least, rule.at_most) if kind in parsers else flags.ArgumentParser()
    return flags.Flag(parser, flags.ArgumentSerializer(), name, default, rule.help)


class _OneOrSeveral(flags.ArgumentParser):
    """One number, or a list of numbers with commas between."""

    def __init__(self, kind: type):
        super().__init__()
        self.kind = kind

    def parse(self, argument):
        parts = argument.split(",") if isinstance(argument, str) else _listed(argument)
        try:
            numbers = [self.kind(part) for part in parts]
        except ValueError:
            numbers = [0]
        if not all(0 < number < float("inf") for number in numbers):
            raise ValueError("expected a number greater than 0, or several with commas between")
        return numbers[0] if len(numbers) == 1 else numbers

    def flag_type(self) -> str:
        return f"{self.kind.__name__}, or several with commas between"


def _listed(value) -> list:
    """A flag's values: none, one or several."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _bound(rule: Rule) -> str:
    """A validator's message; bounds that absl knows itself it reports before."""
    return "must be a finite number" if rule.above is None else f"must be greater than {rule.above:g}"
