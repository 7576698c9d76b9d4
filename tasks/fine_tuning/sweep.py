"""Searches over learning rates, batch sizes and seeds, as in the paper, and keeps the best on dev or validation rows.

The paper (section 4.1) chooses the learning rate on the dev set, and restarts BERT-large from several seeds.

Each run has its own directory in `<output_dir>/sweep`, named after its settings: `lr5e-05_batch32_seed12345`. A
finished run leaves `sweep_run.json` there and is skipped when the command is repeated; an interrupted one resumes if
its training can. `<output_dir>/sweep/sweep.json` holds the figures of all runs.
"""

import dataclasses
import itertools
import json
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import keras
from tqdm import tqdm

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, exists, keep_copies, local_copy, read_object, remove_path, write_json
from tasks.engine.settings import identify
from tasks.fine_tuning.inputs import MODEL_DIRECTORY, Inputs, read_spec
from tasks.fine_tuning.session import DOUBTFUL_FILE, HISTORY_FILE, METRICS_FILE, Session, remove_stale
from tasks.fine_tuning.start import find_start
from tasks.fine_tuning.task import Task

DIRECTORY = "sweep"
SWEEP_FILE = "sweep.json"
RUN_FILE = "sweep_run.json"
_KEPT = (MODEL_DIRECTORY, HISTORY_FILE)
_REMOVED = ("checkpoints", "best")  # The optimizer states of a hundred finished runs would fill the disk.
_SHORT_NAMES = {"learning_rate": "lr", "train_batch_size": "batch", "random_seed": "seed"}


@keep_copies()
def search(task: Task, inputs: Inputs) -> tuple[Inputs, list[tuple[str, list[str], list[list]]]]:
    """Trains and evaluates every combination. The output directory gets model, metrics and history of the best one.

    Args:
        task: task with several learning rates, batch sizes or restarts. Each run is kept in `sweep/`.
        inputs: data, including dev files or validation rows.

    Returns:
        The inputs, which name the best model, and tables of all runs for the report.

    Raises:
        InputError: as in `run_sweep`.
    """
    settings = task.settings

    def run_one(chosen: dict, directory: str) -> dict:
        keras.backend.clear_session()  # Otherwise the graphs of all runs stay in memory.
        run_settings = dataclasses.replace(settings, output_dir=directory, num_restarts=1, **chosen)
        session = Session(dataclasses.replace(task, settings=run_settings), inputs)
        session.train()
        session.evaluate()
        session.report()
        for name in _REMOVED:
            remove_path(os.path.join(directory, name))
        return session.results

    seeds = range(settings.random_seed, settings.random_seed + settings.num_restarts)
    grid = {**settings.grid, "random_seed": list(seeds)}
    keras.utils.set_random_seed(settings.random_seed)  # A checkpoint may lack the pooler, which is then random.
    with find_start(settings) as origin:
        backbone = BertBackbone.from_preset(origin.preset, load_weights=origin.load_weights)
        shared = identify(settings, backbone, origin.tokenizer(), weights_are_loaded=origin.load_weights)
    shared = {name: value for name, value in shared.items() if name not in grid}
    shared["spec"] = dataclasses.asdict(inputs.spec)
    shared["rows_checksums"] = [part.rows.checksum() for part in inputs.parts if part.split != "test"]
    watched = inputs.watched
    metric = task.metric_of(watched)
    if watched.split == "validation":
        metric = f"validation_{task.stopping_metric or metric}"
    result = run_sweep(settings.output_dir, grid, run_one, metric, shared)
    remove_stale(settings.output_dir, DOUBTFUL_FILE)
    for name in _KEPT:
        source = local_copy(os.path.join(result["directory"], name))
        copy = shutil.copytree if os.path.isdir(source) else shutil.copyfile
        with atomic_path(os.path.join(settings.output_dir, name)) as temporary:
            copy(source, temporary)
    summary = {name: result[name] for name in ("metric", "best", "name", "combinations")}
    write_json(os.path.join(settings.output_dir, METRICS_FILE), {**result["metrics"], "sweep": summary})
    directory = os.path.join(settings.output_dir, MODEL_DIRECTORY)
    # A run may have chosen values of the spec on the validation rows.
    spec = task.adjust_spec(read_spec(task, directory))
    return inputs._replace(model_directory=directory, spec=spec), tables(result)


def run_sweep(
    output_dir: str, grid: dict[str, list], run_one: Callable[[dict, str], dict], metric: str, shared: dict
) -> dict:
    """Does every run of a grid, one after the other, and prints tables of the results.

    Args:
        output_dir: directory that gets `sweep/`.
        grid: values of each varied setting, by its flag's name. `random_seed` comes last, with the seed of each
            restart.
        run_one: trains and evaluates: `run_one(settings, directory)`, where `settings` has a value for each name of
            `grid`. Returns the run's figures as JSON values. If it raises `InputError`, as for a diverged training, the
            error is recorded and the other runs go on.
        metric: figure to choose by: the largest is the best, or the smallest if the name ends in "loss". In a tie, the
            first run wins. A run without a finite value is never the best.
        shared: values that all runs have in common. A finished run with other values is refused, since it belongs to
            another sweep.

    Returns:
        A dict of

        - "best", "name", "directory" and "metrics": settings, name, directory and figures of the best run;
        - "metric";
        - "runs", each with "name", "settings", "score", "error" and "metrics";
        - "combinations", each with "settings" (without the seed), "runs", "failed", "mean", "standard_deviation",
          "lowest", "highest" and "spread".

    Raises:
        InputError: the grid repeats a value, a directory holds another sweep's run, or no run has a finite score.
    """
    runs = [{"name": run_name(settings), "settings": settings} for settings in list_runs(grid)]
    directory = os.path.join(output_dir, DIRECTORY)
    for run in runs:
        run.update(_read_finished(os.path.join(directory, run["name"]), run["settings"], metric, shared))
    waiting, started = [run for run in runs if "metrics" not in run], time.monotonic()
    if len(waiting) < len(runs):
        print(f"sweep: {len(runs) - len(waiting)} of {len(runs)} runs are finished already.", file=sys.stderr)
    for done, run in enumerate(waiting):
        rest = (time.monotonic() - started) / done * (len(waiting) - done) if done else None
        remaining = f", about {tqdm.format_interval(rest)} left" if done else ""
        print(f"sweep: run {runs.index(run) + 1} of {len(runs)}{remaining}: {run['name']}", file=sys.stderr)
        run.update(_do_run(run, os.path.join(directory, run["name"]), run_one, metric, shared))
        write_json(os.path.join(directory, SWEEP_FILE), _summarize(runs, metric))
    summary = _summarize(runs, metric)
    write_json(os.path.join(directory, SWEEP_FILE), summary)
    if summary["best"] is None:
        failed = [run for run in runs if run["error"]]
        first = f"The first, {failed[0]['name']}: {failed[0]['error']}" if failed else "Lower --learning_rate."
        raise InputError(
            f"{directory}: none of {len(runs)} runs has a finite {metric}, and {len(failed)} failed. {first}"
        )
    for caption, header, rows in tables(summary):
        print(f"{caption}\n{format_table(header, rows)}\n")
    return {**summary, "directory": os.path.join(directory, summary["name"])}


def list_runs(grid: dict[str, list]) -> list[dict]:
    """Lists the settings of each run: all restarts of the first combination, then those of the next.

    >>> list_runs({"learning_rate": [5e-5, 3e-5], "random_seed": [7]})
    [{'learning_rate': 5e-05, 'random_seed': 7}, {'learning_rate': 3e-05, 'random_seed': 7}]

    Raises:
        InputError: a setting has the same value twice.
    """
    for name, values in grid.items():
        twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
        if twice is not None:
            raise InputError(f"--{name}: {twice} is given twice. Give each value once, and --num_restarts for more.")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def run_name(settings: dict) -> str:
    """Returns the name of a run's directory.

    >>> run_name({"learning_rate": 5e-05, "train_batch_size": 32, "random_seed": 12345})
    'lr5e-05_batch32_seed12345'
    """
    return "_".join(f"{_SHORT_NAMES[name]}{value}" for name, value in settings.items())


def _read_finished(directory: str, settings: dict, metric: str, shared: dict) -> dict:
    """Returns the "metrics", "score" and "error" of a run that an earlier call finished, or an empty dict."""
    path = os.path.join(directory, RUN_FILE)
    if not exists(path):
        return {}
    record = read_object(path)
    recorded, metrics = record["settings"], record["metrics"]
    wanted = json.loads(json.dumps({**shared, **settings}))  # As in the file: lists instead of tuples.
    changed = sorted(name for name in {*wanted, *recorded} if wanted.get(name) != recorded.get(name))
    if changed:
        name = changed[0]
        raise InputError(
            f"{directory}: holds a run with other settings ({name}: {recorded.get(name)} there, {wanted.get(name)} "
            "now). Choose another --output_dir, or remove that run."
        )
    return {"metrics": metrics, "score": _score(metrics, metric), "error": None}


def _do_run(run: dict, directory: str, run_one: Callable, metric: str, shared: dict) -> dict:
    try:
        metrics = run_one(dict(run["settings"]), directory)
    except InputError as error:
        print(f"sweep: {run['name']} failed: {error}", file=sys.stderr)
        return {"metrics": None, "score": None, "error": str(error)}
    score = _score(metrics, metric)
    write_json(os.path.join(directory, RUN_FILE), {"settings": {**shared, **run["settings"]}, "metrics": metrics})
    print(f"sweep: {run['name']}: {metric} {_show(score)}", file=sys.stderr)
    return {"metrics": metrics, "score": score, "error": None}


def _score(metrics: dict, metric: str) -> float | None:
    """Returns a run's figure, or None if it is not a finite number."""
    value = metrics[metric]
    return float(value) if value is not None and math.isfinite(value) else None


def _summarize(runs: Sequence[dict], metric: str) -> dict:
    """Returns the content of sweep.json. "best" is None as long as no run has a score."""
    runs = [run for run in runs if "metrics" in run]
    scored = [run for run in runs if run["score"] is not None]
    combinations = itertools.groupby(runs, lambda run: {**run["settings"], "random_seed": None})
    sign = -1.0 if metric.endswith("loss") else 1.0
    best = max(scored, key=lambda run: sign * run["score"], default={})
    return {
        "metric": metric,
        "best": best.get("settings"),
        "name": best.get("name"),
        "metrics": best.get("metrics"),
        "runs": runs,
        "combinations": [_combine(list(group)) for _, group in combinations],
    }


def _combine(runs: list[dict]) -> dict:
    """Returns the figures of one combination over its restarts."""
    scores = [run["score"] for run in runs if run["score"] is not None]
    return {
        "settings": {name: value for name, value in runs[0]["settings"].items() if name != "random_seed"},
        "runs": len(runs),
        "failed": len(runs) - len(scores),
        "mean": statistics.fmean(scores) if scores else None,
        "standard_deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "lowest": min(scores, default=None),
        "highest": max(scores, default=None),
        "spread": max(scores) - min(scores) if scores else None,
    }


def tables(result: dict) -> list[tuple[str, list[str], list[list]]]:
    """Returns the tables of a sweep as `tasks.report.page.Report` takes them: caption, header, rows.

    Args:
        result: return value of `run_sweep`, or the content of `sweep.json`.
    """
    metric, names = result["metric"], list(result["combinations"][0]["settings"])
    over_seeds = [
        [*map(str, row["settings"].values()), f"{row['runs'] - row['failed']} of {row['runs']}"]
        + [_show(row[figure]) for figure in ("mean", "standard_deviation", "lowest", "highest", "spread")]
        for row in result["combinations"]
    ]
    header = [*names, "runs", "mean", "standard deviation", "lowest", "highest", "spread"]
    each = []
    for run in result["runs"]:
        remark = "best" if run["name"] == result["name"] else "failed" if run["error"] else ""
        each.append([*map(str, run["settings"].values()), _show(run["score"]), remark])
    return [
        (f"{metric} of each combination over its seeds", header, over_seeds),
        (f"{metric} of each run", [*names, "random_seed", metric, ""], each),
    ]


def _show(score: float | None) -> str:
    return "-" if score is None else f"{score:.4f}"


def format_table(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """Formats a table with right-aligned columns.

    >>> print(format_table(["rate", "mean"], [["5e-05", "0.87"]]))
     rate  mean
    5e-05  0.87
    """
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)
