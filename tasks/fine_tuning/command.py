"""Runs a fine-tuning command: does its stages and prints the scores."""

import dataclasses
from collections.abc import Callable

from tasks import flags
from tasks.fine_tuning.inputs import check_training, complete, read_inputs
from tasks.fine_tuning.task import Task


def console_main(task: type[Task], module: str) -> Callable[[], None]:
    """Returns the function that the console script of a task calls.

    Args:
        task: the task to run.
        module: name of the command's module, whose docstring opens `--help`.
    """

    def run(settings):
        main(task(settings))

    run.__module__ = module
    return flags.console_main(run, task.Settings)


def run_task(task: Task) -> dict:
    """Does the stages chosen by the task's settings.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once. Without
    `do_train`, the trained model in `output_dir` is evaluated or applied; if there is none, the one named by
    `init_checkpoint`, or a preset that was fine-tuned elsewhere.

    Returns:
        The content of `metrics.json`.

    Raises:
        InputError: a file, a row, a preset or a setting is wrong.
    """
    settings = task.settings
    inputs = read_inputs(task)
    if settings.do_train:
        check_training(task, inputs.parts)

    from tasks.fine_tuning.session import Session
    from tasks.fine_tuning.sweep import search

    tables = []
    if settings.do_train and settings.is_search:
        inputs, tables = search(task, inputs)
        session = Session(task, inputs)
        session.load()
    elif settings.do_train:
        values = {name: values[0] for name, values in settings.grid.items()}
        session = Session(dataclasses.replace(task, settings=dataclasses.replace(settings, **values)), inputs)
        session.train(task.few_labels(inputs.of("train")[0].rows, inputs.spec))
    else:
        session = Session(task, inputs)
        session.load()
    if settings.do_eval:
        session.evaluate()
    if settings.do_predict:
        for path in session.predict():
            print(f"wrote {path}")
    session.report(tables)
    return session.results


def main(task: Task) -> None:
    """Completes the settings, does the stages, writes `flags.json`, and prints a line for each score."""
    task = complete(task)
    settings = task.settings
    results = run_task(task)
    flags.write_flags(dataclasses.asdict(settings), settings.output_dir)
    for line in score_lines(task, results):
        print(line)
    print(f"Results are in {settings.output_dir}: report.html shows them.")


def score_lines(task: Task, results: dict) -> list[str]:
    """Returns a line for each printed figure, with its 95% interval if it has one."""
    lines, digits = [], f".{task.decimals}f"
    if task.settings.do_eval:
        for name, (low, high) in results["intervals"].items():
            lines.append(f"{name}: {results[name]:{digits}} (95% interval {low:{digits}} to {high:{digits}})")
        shown = [name for name in results if name.removeprefix("mismatched_") in task.printed]
        lines += [f"{name}: {results[name]:{digits}}" for name in shown if name not in results["intervals"]]
    if task.settings.do_predict:
        lines += [
            f"{name}: {results[name]:{digits}}" for name in task.printed if name.startswith("test_") and name in results
        ]
    return lines
