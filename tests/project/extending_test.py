"""docs/extending.md, followed to the letter in a copy of the sources: a task, its head, and a format, tried out."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import processes
import pytest
from repository import ROOT
from room_rules import room_problems
from source_imports import read_sources

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_KINDS = {"python": "Write", "diff": "Change", "": "Run", "text": "Read"}


def steps():
    """Yields (verb, file or None, text) of each block; the text above a block names the file to write or change."""
    page, end, file = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), 0, None
    for match in _BLOCK.finditer(page):
        verb, before, end = _KINDS[match[1]], page[end : match.start()], match.end()
        if verb in ("Write", "Change"):
            named = re.findall(rf"\b{verb} `([^`]+)`", before)
            assert named or (verb == "Change" and not before.strip()), f"for which file?\n{match[2][:200]}"
            file = named[-1] if named else file  # A second change of the same file follows at once.
        yield verb, file, match[2]


def change(text, difference):
    """Applies the lines of a diff."""
    old, new = (
        "".join(line[1:] for line in difference.splitlines(keepends=True) if line[0] in signs) for signs in (" -", " +")
    )
    assert text.count(old) == 1, f"{text.count(old)} places for\n{difference}"
    return text.replace(old, new)


@pytest.fixture(scope="module", name="followed")
def _followed(tmp_path_factory):
    """The copy after all steps, the files written, and the last line that each command printed, by the command."""
    copy, written, printed = tmp_path_factory.mktemp("copy"), [], {}
    for room in ("keras_bert", "tasks", "export"):
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("commands.bzl", "pyproject.toml"):
        shutil.copy(ROOT / file, copy)
    for verb, file, text in steps():
        if verb == "Write":
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            if file.endswith("task.py"):
                (copy / file).with_name("__init__.py").touch()
            (copy / file).write_text(text, encoding="utf-8")
            written.append(file)
        elif verb == "Change":
            (copy / file).write_text(change((copy / file).read_text(encoding="utf-8"), text), encoding="utf-8")
        elif verb == "Read":
            assert list(printed.values())[-1] == text
        for line in text.replace("\\\n", " ").splitlines() if verb == "Run" else []:
            python, *words = shlex.split(line)
            assert python == ".venv/bin/python"
            environment = {**os.environ, "PYTHONPATH": str(copy)}
            command = [sys.executable, *words]
            done = processes.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed[line] = done.stdout
    return copy, written, printed


def test_the_task_learns(followed):
    copy, *_ = followed
    metrics = json.loads((copy / "runs/try/counts/metrics.json").read_text(encoding="utf-8"))
    assert metrics["spearman"] > 0.9 and metrics["rows"] == 100
    assert (copy / "runs/try/counts/report.html").exists()


def test_the_format_keeps_every_bit(followed):
    _, _, printed = followed
    proofs = [text for line, text in printed.items() if "tasks.convert.run" in line]
    assert len(proofs) == 2 and all("bit-identical" in text for text in proofs)


def test_the_code_keeps_the_rules_of_the_house(followed):
    copy, written, _ = followed
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, *written], cwd=copy, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
    sources = read_sources(str(copy))
    assert "tasks/counts/task.py" in sources
    assert room_problems(sources, {path for path in sources if path.endswith("/run.py")}) == room_problems(
        read_sources(str(ROOT)), {path for path in read_sources(str(ROOT)) if path.endswith("/run.py")}
    )
