"""Every path may be a bucket: what users name is read and written through `keras_bert.files` alone."""

import ast

import pytest
from repository import ROOT

OF_OS = "access link listdir makedirs mkdir remove rename replace rmdir scandir stat symlink unlink walk"
OF_PATHS = "abspath exists getmtime getsize isdir isfile islink lexists realpath samefile"
OF_SHUTIL = "copy copy2 copyfile copytree move rmtree"
FORBIDDEN = {
    *("open", "io.open", "np.memmap", "glob.glob", "glob.iglob", "pathlib.Path"),
    *(f"os.{name}" for name in OF_OS.split()),
    *(f"os.path.{name}" for name in OF_PATHS.split()),
    *(f"shutil.{name}" for name in OF_SHUTIL.split()),
}
# Modules and folders that may: all paths there are of this machine, whatever the user has named.
LOCAL = {
    "keras_bert/files.py": "has the one branch for local paths",
    "keras_bert/formats": "`formats.located` gives them a local copy",
    "keras_bert/presets/downloads.py": "reads the caches of Hugging Face and Kaggle",
    "tasks/convert/proof.py": "asks whether an open checkpoint is a directory, which is a local copy",
    "tasks/features/writing.py": "writes what `atomic_path` gave",
    "tasks/fine_tuning/sweep.py": "copies a local copy",
    "tasks/fine_tuning/start.py": "links local copies",
    "tasks/pretraining/adaptation/stages.py": "writes what `atomic_path` gave",
    "tasks/quickstart/docstrings.py": "reads the sources of installed packages",
    "tasks/text/blocks.py": "copies local pipes",
    "tasks/text/steps.py": "locks a local directory",
    "export/verification/cc_check.py": "compiles a program",
    "export/companion_files.py": "adds to a version that is built on this machine",
    "export/verification/child.py": "exchanges files with the process that started it",
    "export/verification/runner.py": "exchanges files with a process that it starts",
    "export/saved_model.py": "renames a version that was built beside its place",
    "export/targets/__init__.py": "fills what `atomic_path` gave",
}


def accesses(source: str) -> list[str]:
    """Lists the forbidden functions of a module, with their lines, save on `temporary` paths and beside the module."""
    lines, uses = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute) and (name := ast.unparse(node)) in FORBIDDEN:
            line = lines[node.lineno - 1]
            if "temporary" not in line and "__file__" not in line:
                uses.append(f"{node.lineno}: {name}")
    return sorted(uses)


@pytest.fixture(scope="module", name="uses")
def _uses():
    paths = [path for room in ("keras_bert", "tasks", "export") for path in sorted((ROOT / room).rglob("*.py"))]
    return [f"{path.relative_to(ROOT)}:{use}" for path in paths for use in accesses(path.read_text("utf-8"))]


def test_files_of_users_are_read_and_written_by_one_module(uses):
    places = tuple(f"{place}/" if (ROOT / place).is_dir() else f"{place}:" for place in LOCAL)
    wrong = [use for use in uses if not use.startswith(places)]
    assert not wrong, f"call the function of keras_bert/files.py instead: {wrong}"


@pytest.mark.parametrize("place", LOCAL)
def test_the_list_of_exceptions_is_not_longer_than_needed(uses, place):
    assert any(use.startswith(place) for use in uses)


def test_the_rule_sees_what_it_forbids():
    source = "file = open('a')\nnames = sorted(map(os.path.getsize, os.listdir('b')))\nopen(temporary, 'w')\n"
    assert accesses(source) == ["1: open", "2: os.listdir", "2: os.path.getsize"]
