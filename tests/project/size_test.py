"""A room may not grow unnoticed: its code lines, and a command's flags, stay at the ceilings of `ceilings.toml`."""

import ast
import collections
import dataclasses
import importlib
import pathlib
import tomllib

import pytest
from repository import COMMANDS, ROOT
from source_imports import PACKAGES

CEILINGS = pathlib.Path(__file__).with_name("ceilings.toml")
SLACK = 10  # Lines that a room may lie below its ceiling before that has to follow it down.


def _code_lines(text: str) -> int:
    """Counts the lines with code: no blank ones, comments or docstrings."""
    lines = {
        number for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def _rooms(root: str) -> dict[str, int]:
    """Returns the code lines of each folder, not counting those of folders inside it."""
    counts = collections.Counter()
    for package in PACKAGES:
        for path in pathlib.Path(root, package).rglob("*.py"):
            counts[path.parent.relative_to(root).as_posix()] += _code_lines(path.read_text(encoding="utf-8"))
    return {room: lines for room, lines in sorted(counts.items()) if lines}


def _problems(counts: dict[str, int], ceilings: dict[str, int], slack: int, what: str) -> list[str]:
    """Returns a line for each count that its ceiling does not fit."""
    cure = f"in tests/project/{CEILINGS.name}"
    problems = [
        f"{name}: {what} without a ceiling. Add one {cure}." for name in sorted(counts.keys() - ceilings.keys())
    ]
    problems += [f"{name}: no longer there. Take it out {cure}." for name in sorted(ceilings.keys() - counts.keys())]
    for name in sorted(counts.keys() & ceilings.keys()):
        count, ceiling = counts[name], ceilings[name]
        if count > ceiling:
            problems.append(f"{name}: {count} {what}, at most {ceiling}. Shorten it, or raise it {cure} and say why.")
        elif count < ceiling - slack:
            problems.append(f"{name}: {count} {what}, far below the ceiling of {ceiling}. Lower it {cure}.")
    return problems


def test_rooms_stay_below_their_ceilings():
    assert _problems(_rooms(ROOT), tomllib.loads(CEILINGS.read_text())["code_lines"], SLACK, "code lines") == []


def test_commands_have_no_more_flags_than_allowed():
    counts = {}
    for command, module in COMMANDS.items():
        counts[command] = len(dataclasses.fields(importlib.import_module(module).console_main.args[1]))
    assert _problems(counts, tomllib.loads(CEILINGS.read_text())["flags"], 0, "flags") == []


@pytest.mark.parametrize(
    ("count", "told"),
    [
        ({"room": 101}, "room: 101 code lines, at most 100. Shorten it"),
        ({"room": 89}, "room: 89 code lines, far below the ceiling of 100. Lower it"),
        ({"room": 90}, None),
        ({"room": 100}, None),
        ({"room": 100, "attic": 1}, "attic: code lines without a ceiling. Add one"),
        ({}, "room: no longer there. Take it out"),
    ],
)
def test_a_count_that_does_not_fit_is_told(count, told):
    problems = _problems(count, {"room": 100}, SLACK, "code lines")
    assert len(problems) == (told is not None) and all(problem.startswith(told) for problem in problems)


def test_only_code_counts(tmp_path):
    room = tmp_path / "keras_bert" / "attic"
    room.mkdir(parents=True)
    (room / "trunk.py").write_text(
        '"""A docstring\nof two lines."""\n\n# A comment.\nx = (\n    1  # With a comment.\n)\n'
    )
    assert _rooms(str(tmp_path)) == {"keras_bert/attic": 3}
