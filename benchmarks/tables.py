"""Draws small tables from those of public tasks, and keeps the cells of result tables in a file."""

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable

import numpy as np


def write_slice(
    source: str, target: str, limit: int, is_kept: Callable[[str], bool] | None = None, has_header: bool = False
) -> tuple[str, int]:
    """Writes at most `limit` rows of a file, drawn once for all runs.

    Args:
        source: the file: CoNLL with the extension `.conll`, otherwise a row on a line.
        target: file to write, without its extension and the number of its rows.
        limit: the most rows.
        is_kept: whether a row may be drawn; None: all may.
        has_header: whether the first line names the columns.

    Returns:
        The path and the number of its rows.
    """
    extension = os.path.splitext(source)[1]
    with open(source, encoding="utf-8") as file:
        text = file.read().strip("\n")
    is_conll = extension == ".conll"
    rows = re.split(r"\n\s*\n", text) if is_conll else text.split("\n")  # In WNUT-17 a tab stands between sentences.
    header, rows = rows[:has_header], rows[has_header:]
    rows = [row for row in rows if is_kept is None or is_kept(row)]
    chosen = np.random.default_rng(0).permutation(len(rows))[:limit]
    path = f"{target}_{len(chosen)}{extension}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{row}\n{chr(10) * is_conll}" for row in [*header, *(rows[number] for number in chosen)])
    return path, len(chosen)


def read_cells(path: str) -> list[dict]:
    """Returns the finished cells of a file; none if it is not there."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(row) for row in file]


def do_cell(path: str, cell: dict, script: str, *arguments: str) -> dict:
    """Returns a cell with its results: those of a file, or of a process `script --cell=...`, which are added to it.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    done = next((row for row in read_cells(path) if row.items() >= cell.items()), None)
    if done is None:
        command = [sys.executable, script, f"--cell={json.dumps(cell)}", *arguments]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        done = {**cell, **json.loads(output.splitlines()[-1])}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(done) + "\n")
    return done


def mean_and_range(values: list[float], form: str = ".1f") -> str:
    return f"{statistics.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


FIVE_TASKS = ["mean of five", "SST-2", "CoLA", "RTE", "STS-B", "WNUT-17"]


def five_tasks_columns(cells: list[dict]) -> list[str]:
    """Returns the columns FIVE_TASKS, in points, of cells of five_tasks.py that differ in the seed."""
    rows = [[100 * score for score in cell["scores"].values()] for cell in cells]
    return [
        mean_and_range(list(scores)) for scores in ([statistics.mean(row) for row in rows], *zip(*rows, strict=True))
    ]
