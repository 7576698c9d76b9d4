"""The paper's search over learning rates, batch sizes and seeds, which keeps the best combination on dev.

The paper (section 4.1) chooses the learning rate on the dev set, and restarts BERT-large from several seeds.
"""

import dataclasses
import os
import shutil

import keras

from keras_bert.files import atomic_path, local_copy, remove_path, write_json
from tasks.fine_tuning import sweep
from tasks.fine_tuning.inputs import MODEL_DIRECTORY, Inputs
from tasks.fine_tuning.session import HISTORY_FILE, METRICS_FILE, Session
from tasks.fine_tuning.task import Task

_KEPT = (MODEL_DIRECTORY, HISTORY_FILE, "curve.png")
_REMOVED = ("checkpoints", "best")  # The optimizer states of a hundred finished runs would fill the disk.


def search(task: Task, inputs: Inputs) -> tuple[Inputs, list[tuple[str, list[str], list[list]]]]:
    """Trains and evaluates every combination. The best one's model, metrics and curve become those of the whole run.

    Args:
        task: task with several learning rates, batch sizes or restarts. Each run is kept in `sweep/`.
        inputs: data, including dev files.

    Returns:
        (inputs that name the best model, tables of all runs for the report).

    Raises:
        InputError: see `tasks.fine_tuning.sweep.run_sweep`.
    """
    settings = task.settings

    def run_one(chosen: dict, directory: str) -> dict:
        keras.backend.clear_session()  # Otherwise the graphs of all runs stay in memory.
        one = dataclasses.replace(settings, output_dir=directory, num_restarts=1, **chosen)
        session = Session(task.for_run(one), inputs, directory)
        session.train(one)
        session.evaluate()
        session.report(one)
        for name in _REMOVED:
            remove_path(os.path.join(directory, name))
        return session.results

    grid = {**settings.grid, "random_seed": [settings.random_seed]}
    shared = {name: value for name, value in settings.identity().items() if name not in grid}
    shared["spec"] = dataclasses.asdict(inputs.spec)
    shared["rows_checksums"] = [part.rows.checksum() for part in inputs.parts if part.split != "test"]
    higher_is_better = not task.metric.endswith("loss")
    result = sweep.run_sweep(
        settings.output_dir, grid, settings.num_restarts, run_one, task.metric, higher_is_better, shared=shared
    )
    for name in _KEPT:
        source = local_copy(os.path.join(result["directory"], name))
        copy = shutil.copytree if os.path.isdir(source) else shutil.copyfile
        with atomic_path(os.path.join(settings.output_dir, name)) as temporary:
            copy(source, temporary)
    summary = {name: result[name] for name in ("metric", "best", "name", "combinations")}
    write_json(os.path.join(settings.output_dir, METRICS_FILE), {**result["metrics"], "sweep": summary})
    directory = os.path.join(settings.output_dir, MODEL_DIRECTORY)
    return inputs._replace(model_directory=directory), sweep.tables(result)
