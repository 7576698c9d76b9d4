"""Executes the guides, `docs/guides/*.py` with percent cells, and makes a page and a notebook of each.

`# %% [markdown]` begins a cell of text, in comments, and `# %%` one of code. A cell shows what it prints and, as in a
notebook, the value of its last line. Every guide runs in a directory and a process of its own.
"""

import ast
import contextlib
import hashlib
import io
import json
import linecache
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.py"))
_MAX_LINES = 60  # Lines of a cell's output; more are cut in the middle.


def cells(source: str) -> list[tuple[str, str]]:
    """Splits a guide into ("markdown" or "code", text)."""
    pairs = []
    for kind, body in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", source, re.MULTILINE | re.DOTALL):
        if kind:
            pairs.append(("markdown", re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            pairs.append(("code", body.strip()))
    return pairs


def run_cells(source: str) -> list[str]:
    """Runs the code cells of a guide in this process; returns what each shows."""
    shown, names = [], {"__name__": "__main__"}
    for kind, text in cells(source):
        if kind != "code":
            continue
        tree, printed, last = ast.parse(text), io.StringIO(), None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, "guide", "exec"), names)
                value = eval(compile(last, "guide", "eval"), names) if last is not None else None
        except BaseException:
            linecache.cache["guide"] = (len(text), None, text.splitlines(keepends=True), "guide")  # For the traceback.
            print(f"{chr(10).join(shown[-1:])}\n{printed.getvalue()}", file=sys.stderr)
            raise
        shown.append((printed.getvalue() + ("" if value is None else repr(value))).strip())
    return shown


# === Pages ===


def page(source: str, shown: list[str], name: str, seconds: float) -> str:
    """Returns a guide with its outputs as Markdown."""
    blocks, outputs = [], iter(shown)
    for kind, text in cells(source):
        if kind == "markdown":
            blocks.append(text)
            continue
        blocks.append(f"```python\n{text}\n```")
        if output := next(outputs):
            blocks.append(f"```{{code-block}} none\n:class: output\n\n{_shorten(output)}\n```")
    title, *rest = blocks
    files = (
        f"{{download}}`Notebook <{name}.ipynb>` · {{download}}`Python <{name}.py>` · executed in {seconds:.0f} seconds"
    )
    heading, _, text = title.partition("\n")
    return "\n\n".join([heading, files, text.strip(), *rest]) + "\n"


def _shorten(output: str) -> str:
    lines = output.splitlines()
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES // 2], "...", *lines[-_MAX_LINES // 2 :]]
    return "\n".join(lines)


def notebook(source: str, shown: list[str]) -> dict:
    """Returns a guide with its outputs as a notebook of format 4.5."""
    made, outputs = [], iter(shown)
    for number, (kind, text) in enumerate(cells(source)):
        cell = {"id": f"cell-{number}", "cell_type": kind, "metadata": {}, "source": text}
        if kind == "code":
            output = next(outputs)
            stream = [{"output_type": "stream", "name": "stdout", "text": _shorten(output) + "\n"}] if output else []
            cell |= {"execution_count": None, "outputs": stream}
        made.append(cell)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def execute_all(results: pathlib.Path, pages: pathlib.Path, keep: bool) -> None:
    """Executes the guides and writes their pages and notebooks.

    Args:
        results: directory for what the guides showed.
        pages: directory of pages and notebooks.
        keep: whether to take the results of a guide that has not changed since it was executed.

    Raises:
        SystemExit: a guide failed.
    """
    results.mkdir(parents=True, exist_ok=True)
    pages.mkdir(parents=True, exist_ok=True)
    for path in GUIDES:
        source, result = path.read_text(encoding="utf-8"), results / f"{path.stem}.json"
        checksum = hashlib.sha256(source.encode()).hexdigest()
        known = json.loads(result.read_text(encoding="utf-8")) if keep and result.exists() else {}
        if known.get("checksum") != checksum:
            known = {"checksum": checksum, **_execute(path)}
            result.write_text(json.dumps(known), encoding="utf-8")
        text = page(source, known["shown"], path.stem, known["seconds"])
        (pages / f"{path.stem}.md").write_text(text, encoding="utf-8")
        (pages / f"{path.stem}.ipynb").write_text(
            json.dumps(notebook(source, known["shown"]), indent=1), encoding="utf-8"
        )
        (pages / path.name).write_text(source, encoding="utf-8")


def _execute(path: pathlib.Path) -> dict:
    """Runs a guide in a process and a temporary directory of its own, with the commands of this Python."""
    started = time.monotonic()
    places = [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    environment = {**os.environ, "PATH": os.pathsep.join(places), "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, os.path.abspath(__file__), str(path)]
        done = subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{path}: failed, see above.")
    seconds = time.monotonic() - started
    print(f"{path.relative_to(ROOT)}: executed in {seconds:.0f} s", flush=True)
    return {"seconds": seconds, "shown": json.loads(done.stdout)}


if __name__ == "__main__":
    from tasks.flags import ENVIRONMENT

    for variable, setting in ENVIRONMENT.items():
        os.environ.setdefault(variable, setting)
    try:
        results = run_cells(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    json.dump(results, sys.stdout)
