"""Command lines that import nothing heavy: all in forks of one process that has imported what commands share."""

import contextlib
import importlib
import importlib.machinery
import io
import json
import multiprocessing
import runpy
import subprocess
import sys
from collections.abc import Collection
from typing import NamedTuple

from absl import app, flags
from repository import ROOT

_HEAVY = {"tensorflow", "keras", "matplotlib", "sklearn", "scipy", "pandas", "torch", "onnxruntime", "grpc"}


class Call(NamedTuple):
    """Command lines of one command, which run one after the other in a fork.

    Args:
        module: the command's, such as "tasks.squad.run".
        lines: lists of words; the first is the program's name.
        is_module: whether they run as `python -m module`, and not as the console script does.
        only_parses: whether `main` is not called; for console scripts.
    """

    module: str
    lines: list[list[str]]
    is_module: bool = False
    only_parses: bool = False


def run_calls(calls: list[Call], without: Collection[str] = ()) -> list[dict]:
    """Runs calls, two at a time.

    Args:
        calls: the command lines.
        without: packages, by the names they are imported as, that are hidden as if they were not installed.

    Returns:
        For each: `lines`, of each line `(exit status, what it printed)`; `imported`, which heavy packages it imported.
    """
    command = [sys.executable, __file__]
    task = json.dumps([calls, sorted(without)])
    done = subprocess.run(command, cwd=ROOT, input=task, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _run(call: Call) -> dict:
    lines = [_run_line(call, line) for line in call.lines]
    return {"lines": lines, "imported": sorted(_HEAVY & set(sys.modules))}


def _run_line(call: Call, line: list[str]) -> tuple:
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()  # What the line before gave.
    sys.argv, printed, status = list(line), io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            if call.is_module:
                runpy.run_module(call.module, run_name="__main__", alter_sys=True)
            else:
                if call.only_parses:
                    app.run = lambda _, flags_parser: flags_parser(sys.argv)
                importlib.import_module(call.module).console_main()
        except SystemExit as end:
            status = end.code or 0
    return status, printed.getvalue()


def _hide(packages: list[str]) -> None:
    class Finder(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if name.partition(".")[0] in packages else super().find_spec(name, path, target)

    sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder


if __name__ == "__main__":
    all_calls, hidden = json.load(sys.stdin)
    _hide(hidden)
    importlib.import_module("tasks.flags")
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        json.dump(pool.map(_run, [Call(*call) for call in all_calls], chunksize=1), sys.stdout)
