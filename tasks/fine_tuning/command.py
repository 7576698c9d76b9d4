"""Runs a fine-tuning command: does its stages and prints the scores."""

import dataclasses
import os
import shlex
from collections.abc import Callable

from keras_bert.files import absolute, check_writable, exists
from tasks import flags
from tasks.fine_tuning.inputs import MODEL_DIRECTORY, check_training, complete, read_inputs
from tasks.fine_tuning.task import Evaluation, Task
from tasks.report.formatting import escape_unprintable
from tasks.report.page import worst_mistakes

_MISTAKES, _WIDTH = 3, 100  # Mistakes that are printed, and characters of each text.


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
    """Does the stages chosen by the task's settings; see `run_stages`. Returns the content of `metrics.json`."""
    return run_stages(task).results


def run_stages(task: Task):
    """Does the stages chosen by the task's settings.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once. Without
    `do_train`, the trained model in `output_dir` is evaluated or applied; if there is none, the one named by
    `init_checkpoint`, or a preset that was fine-tuned elsewhere.

    Returns:
        The `tasks.fine_tuning.session.Session`.

    Raises:
        InputError: a file, a row, a preset or a setting is wrong.
    """
    settings = task.settings
    inputs = read_inputs(task)
    if settings.do_train:
        check_training(task, inputs.parts)
    if settings.distribution_strategy != "multi_worker_mirrored":  # Of several machines only the first one writes.
        check_writable(settings.output_dir)

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
    return session


def main(task: Task) -> None:
    """Completes the settings, does the stages, writes `flags.json`, and prints scores, answers and what to do next.

    Of several machines, only the first writes and prints.
    """
    task = complete(task)
    settings = task.settings
    session = run_stages(task)
    if not session.is_chief:
        return
    # A call that only predicts keeps the training's flags, like its report: `bert-export --int8` needs its rows.
    if settings.do_train or settings.do_eval or not exists(os.path.join(settings.output_dir, flags.FLAGS_FILE)):
        flags.write_flags(dataclasses.asdict(settings), settings.output_dir)
    lines = score_lines(task, session.results)
    lines += [line for evaluation in session.evaluations[:1] for line in answer_lines(evaluation)]
    if settings.do_train and task.model_class() is not None:
        lines += next_lines(settings.output_dir)
    for line in lines:
        print(line)
    shown = ": report.html shows them" if settings.do_train or settings.do_eval else ""
    print(f"Results are in {settings.output_dir}{shown}.")


def score_lines(task: Task, results: dict) -> list[str]:
    """Returns a line for each printed figure, with its 95% interval if it has one."""
    lines, digits, settings = [], f".{task.decimals}f", task.settings
    intervals = results["intervals"] if settings.do_eval else {}
    for name, (low, high) in intervals.items():
        line = f"{name}: {results[name]:{digits}} (95% interval {low:{digits}} to {high:{digits}})"
        baseline = f"majority_{name}"
        lines.append(f"{line}, {baseline}: {results[baseline]:{digits}}" if baseline in results else line)
    # Figures that this call has not computed may come from an earlier one.
    shown = [name for name in results if (settings.do_predict if name.startswith("test_") else settings.do_eval)]
    shown = [name for name in shown if name.removeprefix("mismatched_") in task.printed]
    return lines + [
        f"{name}: {results[name]:{digits}}" for name in shown if name.removeprefix("majority_") not in intervals
    ]


def answer_lines(evaluation: Evaluation) -> list[str]:
    """Returns a line for each of the worst mistakes, and for each of some answers, with headings."""
    worst = [mistake.parts for mistake in worst_mistakes(evaluation.mistakes, _MISTAKES)]
    blocks = {"Worst mistakes:": worst, "Some answers:": evaluation.examples}
    return [line for heading, rows in blocks.items() if rows for line in [heading, *map(_row_line, rows)]]


def _row_line(pairs: list[tuple[str, str]]) -> str:
    texts = ((caption, " ".join(escape_unprintable(text).split())) for caption, text in pairs)
    shown = (f"{caption}: {text if len(text) <= _WIDTH else text[:_WIDTH] + '…'}" for caption, text in texts)
    return f"  {' | '.join(shown)}"


def next_lines(output_dir: str) -> list[str]:
    """Returns the commands that export and serve the trained model, below a heading."""
    model, served = (os.path.join(output_dir, name) for name in (MODEL_DIRECTORY, "served"))
    name = os.path.basename(absolute(output_dir))
    commands = (
        ["bert-export", f"--model_dir={model}", f"--export_dir={served}"],
        ["bert-serve", f"--model_name={name}", f"--model_base_path={served}"],
    )
    return ["Export and serve the model:", *(f"  {shlex.join(words)}" for words in commands)]
