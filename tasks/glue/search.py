"""The paper's search for learning rate, batch size and seed: every combination is trained, the best on dev is kept."""

import dataclasses
import os
import shutil

import keras

from keras_bert.files import atomic_path, remove_path, write_json
from tasks import sweep
from tasks.fine_tuning import FineTuningSettings
from tasks.glue.inputs import MODEL_DIRECTORY
from tasks.glue.stages import METRICS_FILE, Stages
from tasks.settings import CHANGEABLE

_KEPT = (MODEL_DIRECTORY, "history.json", "curve.png")
_REMOVED = ("checkpoints", "best")  # Of a finished run: a hundred runs' optimizer states would fill the disk.


def search(
    run: Stages, settings: FineTuningSettings, grid: dict[str, list], num_restarts: int
) -> list[tuple[str, list[str], list[list]]]:
    """Trains and evaluates every combination; the best one's model, metrics and curve become the whole run's.

    Args:
        run: with dev tables; it loads the best model. The single ones go to `sweep/` in its directory.
        settings: what all of them share.
        grid: values of the settings that vary, by name.
        num_restarts: seeds of each combination: the settings' `random_seed` and those that follow it.

    Returns:
        The tables of all runs, for the report.

    Raises:
        InputError: as `tasks.sweep.run_sweep`.
    """
    inputs, output_dir = run.inputs, run.output_dir

    def run_one(chosen: dict, directory: str) -> dict:
        keras.backend.clear_session()  # Else the graphs of all runs stay in memory.
        one = dataclasses.replace(settings, **chosen)
        stages = Stages(inputs, directory, run.eval_batch_size)
        stages.train(one)
        results = stages.evaluate()
        stages.report(dataclasses.asdict(one))
        for name in _REMOVED:
            remove_path(os.path.join(directory, name))
        return results

    grid = {**grid, "random_seed": [settings.random_seed]}
    shared = {name: value for name, value in dataclasses.asdict(settings).items() if name not in {*CHANGEABLE, *grid}}
    checksums = [table.checksum() for table in (inputs.train, *(table for _, table in inputs.dev))]
    shared |= {"labels": inputs.labels, "rows_checksums": checksums}
    result = sweep.run_sweep(output_dir, grid, num_restarts, run_one, inputs.task.metric, shared=shared)
    _keep(result, output_dir)
    run.load()
    return sweep.tables(result)


def _keep(result: dict, output_dir: str) -> None:
    """Makes the best run's files those of the whole run."""
    for name in _KEPT:
        source = os.path.join(result["directory"], name)
        copy = shutil.copytree if os.path.isdir(source) else shutil.copyfile
        with atomic_path(os.path.join(output_dir, name)) as temporary:
            copy(source, temporary)
    summary = {name: result[name] for name in ("metric", "best", "name", "combinations")}
    write_json(os.path.join(output_dir, METRICS_FILE), {**result["metrics"], "sweep": summary})
