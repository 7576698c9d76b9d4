"""Reference pages, generated from the code: public names, commands with flags, signatures, and error messages.

All but `signature_pages` come without TensorFlow. Each function returns `{path below docs/: Markdown}`.
"""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "site"), str(ROOT / "tests" / "support")]

import docstrings  # noqa: E402
import errors  # noqa: E402

import keras_bert  # noqa: E402
from tasks.settings import SUBJECTS, Settings, kinds_of  # noqa: E402

COMMANDS = ast.literal_eval((ROOT / "commands.bzl").read_text(encoding="utf-8").partition("COMMANDS = ")[2])
# What a command does, from Python: the function takes the command's settings.
ENTRIES = {
    "tasks/quickstart/run.py": "quickstart",
    "tasks/pretraining/train_vocab.py": "train_vocab",
    "tasks/pretraining/create_data.py": "create_pretraining_data",
    "tasks/pretraining/run.py": "pretrain",
    "tasks/pretraining/adapt.py": "adapt",
    "tasks/fine_tuning/command.py": "run_task",
    "tasks/features/extraction.py": "extract",
    "tasks/convert/run.py": "convert",
    "export/run.py": "export",
    "export/saved_model.py": "export_model",
    "export/local_server.py": "serve",
}


def pages() -> dict[str, str]:
    """Returns all reference pages that need no TensorFlow."""
    return python_pages() | command_pages() | errors.pages()


def _toctree(entries: list[str]) -> str:
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *entries, "```", ""])


# === Python ===


def builders() -> dict[str, list[str]]:
    """The public functions of `tasks/<task>/model.py` that build a model, by file."""
    functions = {}
    for path in sorted((ROOT / "tasks").glob("*/model.py")):
        names = [node.name for node in docstrings.parsed(path).body if isinstance(node, ast.FunctionDef)]
        if names := [name for name in names if name.startswith("build_")]:
            functions[str(path.relative_to(ROOT))] = names
    return functions


def python_pages() -> dict[str, str]:
    """Returns a page for each public name of `keras_bert`, and one for the functions of `tasks` and `export`."""
    made = {f"reference/python/{name}.md": docstrings.class_page(name) for name in keras_bert.__all__}
    functions = [(path, name) for path, names in builders().items() for name in names] + list(ENTRIES.items())
    made["reference/python/functions.md"] = "\n".join(
        ["# Functions of tasks and export", "", "Build a task's model, or do from Python what a command does.", ""]
        + [docstrings.function_page(path, name) for path, name in functions]
    )
    intro = "# Python\n\nEvery public name. `import keras_bert` gives those of the package.\n\n"
    made["reference/python/index.md"] = intro + _toctree([*keras_bert.__all__, "functions"])
    return made


# === Commands ===


def settings_of(module: str) -> tuple[type[Settings], str]:
    """Returns the settings of a command, whose fields are its flags, and the docstring that opens its `--help`."""
    main = importlib.import_module(module).console_main
    if inspect.isfunction(main):  # It imports the module that has the command.
        main = importlib.import_module(f"{main.__module__}.run").console_main
    function, settings_class = main.args
    return settings_class, sys.modules[function.__module__].__doc__ or ""


def command_pages() -> dict[str, str]:
    """Returns a page for each command."""
    made = {f"reference/commands/{name}.md": _command_page(name, module) for name, module in COMMANDS.items()}
    intro = "# Commands\n\nEvery command with its flags. `--help` prints the same.\n\n"
    made["reference/commands/index.md"] = intro + _toctree(list(COMMANDS))
    return made


def _command_page(name: str, module: str) -> str:
    settings_class, text = settings_of(module)
    lines = [
        f"# {name}",
        "",
        docstrings.markdown(text),
        "",
        f"`python -m {module}` is the same.",
        "",
    ]
    fields = dataclasses.fields(settings_class)
    for subject, title in SUBJECTS.items():
        flags = [_flag_line(settings_class, field) for field in fields if field.metadata["rule"].subject == subject]
        lines += [f"## {title}", "", *flags, ""] if flags else []
    return "\n".join(lines)


def _flag_line(settings_class: type[Settings], field: dataclasses.Field) -> str:
    rule, (kind, is_list) = field.metadata["rule"], kinds_of(settings_class)[field.name]
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    name = f"--{rule.flag or field.name}"
    bounds = [f"one of `{'`, `'.join(rule.choices)}`"] if rule.choices else [kind.__name__]
    bounds += [
        f"{word} {bound:g}"
        for word, bound in (("at least", rule.at_least), ("above", rule.above), ("at most", rule.at_most))
        if bound is not None
    ]
    if is_list or rule.several:
        bounds.append("several, separated by commas")
    if default is dataclasses.MISSING:
        bounds.append("required")
    if isinstance(default, list):
        default = ",".join(default) or None
    shown = name if default in (None, dataclasses.MISSING) else f"{name}={default}"
    return f"- `{shown}`: {docstrings.mark_flags(_cell(rule.help))} *({', '.join(bounds)})*"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


# === Served models ===


def signature_pages() -> dict[str, str]:
    """Returns the page of all signatures, as small models of each task declare them. Imports TensorFlow."""
    import toy_saved

    lines = ["# Signatures of served models", "", _SIGNATURES, ""]
    for name, make in toy_saved.ALL_HEADS.items():
        if " " in name:  # The same head with another setting.
            continue
        description = make().description()
        lines += [
            f"## {name.replace('_', ' ').capitalize()}",
            "",
            f"{description['title']}. {description['summary']}",
            "",
        ]
        for signature, tensors in description["signatures"].items():
            lines += [f"`{signature}`", "", "| | name | what |", "| --- | --- | --- |"]
            lines += [
                f"| {kind[:-1]} | `{tensor}` | {_cell(text)} |"
                for kind in ("inputs", "outputs")
                for tensor, text in tensors[kind].items()
            ]
            lines.append("")
    return {"reference/signatures.md": "\n".join(lines)}


_SIGNATURES = """\
What `bert-export` writes for each task. The batch is the first dimension of every input and output; the brackets hold
the others. Numbers of classes, and the like, are those of the small models that this page was made from.
`assets.extra/model.json` of an export has the same for that model."""


def write(directory: pathlib.Path, *generators: Callable[[], dict[str, str]]) -> None:
    """Writes the pages of generators below a directory."""
    for path, text in [page for generate in generators for page in generate().items()]:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
