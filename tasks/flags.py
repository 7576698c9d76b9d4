"""Runs a command: parses its flags, made from a `tasks.settings.Settings` dataclass, and reports its errors.

This module does not import TensorFlow, so that `--help` and a wrong flag answer at once. A command's module contains

    def main(settings: Settings) -> None: ...

    console_main = flags.console_main(main, Settings)

Flag names are google-research/bert's where it has one. Unknown arguments are refused, unless the settings class has a
method `pass_over`, which then receives them as a list. A class method `expand` takes the arguments and returns the
settings class to parse them with, and further arguments to parse before them.
"""

import dataclasses
import functools
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.machinery import PathFinder

from absl import app, flags

from keras_bert.errors import InputError
from keras_bert.files import keep_copies, write_json
from tasks.settings import SUBJECTS, Rule, Settings, kinds_of

# Environment variables to set before TensorFlow is imported, unless the user has set them.
# oneDNN is off by default on CPUs without AVX512_VNNI, although it speeds up matrix products there.
# Level 3 silences TensorFlow's C++ start-up messages, one of which has level ERROR on a machine without a GPU. Real
# errors are raised as exceptions too. TF_CPP_MIN_LOG_LEVEL=0 shows all messages.
# OpenBLAS's threads wait for each other by spinning. Beside other processes, they took 40 times as long as one thread
# for the logistic regressions of --few_labels.
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    "OPENBLAS_NUM_THREADS": "1",
}

_HELP_FLAGS = frozenset({"--help", "-help", "--helpshort", "-helpshort", "-?", "--?"})
FLAGS_FILE = "flags.json"
_QUIET = -1  # absl's WARNING: absl itself starts programs at INFO.


# === Running a command ===


def console_main(main: Callable[..., int | None], settings_class: type[Settings]) -> Callable[[], None]:
    """Returns the function that a console script calls: `run` with these arguments."""
    return functools.partial(run, main, settings_class)


@keep_copies()
def run(main: Callable[..., int | None], settings_class: type[Settings] | None = None) -> None:
    """Parses the command line and runs `main(settings)`. Does not return.

    Args:
        main: takes the parsed settings. The docstring of its module opens `--help`.
        settings_class: its fields become the command's flags. None means a script that defines absl flags itself, and
            whose `main` takes the remaining arguments.

    The exit status is `main`'s own (None is 0), 0 after `--help`, 1 for an `InputError` or an error of the operating
    system (disk full, no permission), 2 for a wrong flag or a stray argument, and 130 after Ctrl-C. Errors print one
    line to standard error, without a traceback. SIGTERM gives 42 if it stopped a training: the same command continues
    from the checkpoint that was saved, if the training keeps any. Otherwise it gives 143, after temporary files are
    removed.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Imports create a million objects that live on. By default, Python's garbage collector scans them repeatedly, which
    # takes 1.3 s of a command.
    gc.set_threshold(10_000, 10, 5)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A text of a table may not fit the terminal's encoding.
    command = command_name()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Otherwise no `finally` runs.
    try:
        if settings_class is None:
            app.run(main)
        else:
            sys.meta_path[:] = [_UsedPackages if finder is PathFinder else finder for finder in sys.meta_path]
            app.run(main, flags_parser=lambda argv: _parse(argv, command, main, settings_class))
    except InputError as error:
        _exit(command, f"error: {error}", 1)
    except KeyboardInterrupt:
        _exit(command, "interrupted.", 130)
    except BrokenPipeError:  # `--help | head` stopped reading, which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # The first name of a failed rename is that of a temporary file.
        where = error.filename2 or error.filename
        _exit(command, f"error: {where}: {error.strerror}" if where else f"error: {error}", 1)
    finally:
        allow_all_packages()


class _UsedPackages(PathFinder):
    """Finds all packages but those that TensorFlow and Keras import for functions that no command uses.

    These would take half of the 5 seconds of the imports, and 260 MB. None in `sys.modules` would hide them too, but
    SciPy takes any name in there for a module.
    """

    UNUSED = ("cv2", "jax", "matplotlib", "pandas", "sklearn")

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        """Returns None for a package that is not used. See `PathFinder`."""
        return None if fullname in cls.UNUSED else super().find_spec(fullname, path, target)


def allow_all_packages() -> None:
    """Lets the process import the packages that a command hides from TensorFlow and Keras."""
    sys.meta_path[:] = [PathFinder if finder is _UsedPackages else finder for finder in sys.meta_path]


def write_flags(settings: dict[str, object], output_dir: str) -> None:
    """Writes a command's settings to `flags.json`.

    Call this after all checks, so that a refused call keeps the flags of the previous one.
    """
    write_json(os.path.join(output_dir, FLAGS_FILE), settings)


def _parse(argv: list[str], command: str, main: Callable, settings_class: type[Settings]) -> Settings:
    """Parses the flags of `settings_class`. After `--help` or a wrong flag, prints and exits."""
    try:
        argv = [argv[0], *flags.FLAGS.read_flags_from_files(argv[1:], force_gnu=True)]
    except flags.Error as error:
        _exit(command, f"error: {error}", 2)
    options = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    if expand := getattr(settings_class, "expand", None):
        settings_class, further = expand(options)
        argv = [argv[0], *further, *argv[1:]]  # The last of several values counts.
    values = make_flags(settings_class)
    if _HELP_FLAGS.intersection(options):
        docstring = (sys.modules[main.__module__].__doc__ or "").strip()
        print(f"{docstring}\n\nUsage: {command} [flags]\n{list_flags(values)}", flush=True)
        sys.exit(0)
    values.append_flag_values(flags.FLAGS)  # absl's own, such as --verbosity.
    pass_over = getattr(settings_class, "pass_over", None)
    try:
        rest = values(argv, known_only=pass_over is not None)
    except flags.Error as error:
        _exit(command, f"error: {error} (--help lists the flags)", 2)
    if len(rest) > 1 and pass_over:
        pass_over(rest[1:])
    elif len(rest) > 1:
        _exit(command, f"error: unexpected argument {rest[1]!r}; values go with '=', as in --flag=value", 2)
    flags.FLAGS.mark_as_parsed()
    if flags.FLAGS["verbosity"].using_default_value:
        flags.FLAGS.verbosity = _QUIET
    return _settings_of(values, settings_class)


def command_name() -> str:
    """Returns the command's name, as its messages begin."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and not spec.name.startswith("__main__"):
        return f"python -m {spec.name.removesuffix('.__main__')}"
    return os.path.basename(sys.argv[0])


def _exit(command: str, message: str, status: int) -> None:
    print(f"{command}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


# === Flags from settings ===


def parse(settings_class: type[Settings], arguments: list[str]) -> Settings:
    """Parses the arguments of a command line, without the command's name.

    Raises:
        flags.Error: an unknown flag, a value out of its bounds, or a missing required flag.
        InputError: values that contradict each other.
    """
    values = make_flags(settings_class)
    values(["command", *arguments])
    return _settings_of(values, settings_class)


def make_flags(settings_class: type[Settings]) -> flags.FlagValues:
    """Makes a flag for each setting, outside absl's global flags, so that commands in one process do not mix."""
    values, kinds = flags.FlagValues(), kinds_of(settings_class)
    for field in dataclasses.fields(settings_class):
        rule, (kind, is_list) = field.metadata["rule"], kinds[field.name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        is_required = default is dataclasses.MISSING
        flag = _make_flag(rule.flag or field.name, None if is_required else default, rule, kind, is_list)
        # absl lists flags by module. Their subjects stand in for modules.
        flags.DEFINE_flag(flag, flag_values=values, module_name=SUBJECTS[rule.subject], required=is_required)
        if is_required:  # An empty output directory would mean the current one.
            flags.register_validator(flag.name, lambda value: value != "", "Expected a value, found none.", values)
    return values


def list_flags(values: flags.FlagValues) -> str:
    """Returns the flags that `make_flags` made, with their help, by subject in the order of `SUBJECTS`."""
    return "\n".join(filter(None, map(values.module_help, SUBJECTS.values())))


def _settings_of(values: flags.FlagValues, settings_class: type[Settings]) -> Settings:
    fields = dataclasses.fields(settings_class)
    return settings_class(**{field.name: values[field.metadata["rule"].flag or field.name].value for field in fields})


def _make_flag(name: str, default, rule: Rule, kind: type, is_list: bool) -> flags.Flag:
    if rule.repeats:
        return flags.MultiFlag(flags.ArgumentParser(), flags.ArgumentSerializer(), name, default, rule.help)
    if kind is bool:
        return flags.BooleanFlag(name, default, rule.help)
    serializer = flags.ListSerializer(",") if is_list else flags.ArgumentSerializer()
    listed = f"<{'|'.join(rule.choices)}>: {rule.help}" if rule.choices else rule.help
    return flags.Flag(_Parser(rule, kind, is_list), serializer, name, default, listed)


class _Parser(flags.ArgumentParser):
    """Parses one value, or several separated by commas, and checks each by the rule of its setting."""

    def __init__(self, rule: Rule, kind: type, is_list: bool):
        super().__init__()
        self.rule, self.is_list = rule, is_list
        parsers = {int: flags.IntegerParser, float: flags.FloatParser}
        number = parsers[kind](rule.at_least, rule.at_most) if kind in parsers else None
        self.convert = number.convert if number else rule.spelled
        kinds = [flags.ListParser().syntactic_help] * is_list + ([number.syntactic_help] if number else [])
        self.syntactic_help = ", each ".join(kinds)

    def parse(self, argument):
        if isinstance(argument, str) and (self.is_list or self.rule.several):
            argument = flags.ListParser().parse(argument)
        values = [self.convert(item) for item in (argument if isinstance(argument, list) else [argument])]
        for fault in filter(None, map(self.rule.fault, values)):
            raise ValueError(fault)
        return values[0] if len(values) == 1 and not self.is_list else values
