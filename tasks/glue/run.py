"""Trains, evaluates and applies a classifier, or a regressor, of single texts or pairs of texts.

    bert-classify --task_name=mrpc --data_dir=glue_data/MRPC --preset=base --do_train --do_eval --do_predict \\
        --output_dir=runs/mrpc
    bert-classify --train_file=train.csv --dev_file=dev.csv --text_column=review --label_column=stars \\
        --preset=base --do_train --do_eval --output_dir=runs/reviews

A table is CSV (.csv, quoted), JSON Lines (.jsonl) or TSV (any other name, no quoting) with named columns. Several
learning rates or batch sizes, with commas between, or --num_restarts, train every combination and keep the best on
dev: the paper has --learning_rate=5e-5,4e-5,3e-5,2e-5 --train_batch_size=32. The output directory gets metrics.json,
report.html, the trained model (model/, what bert-export takes), confusion_matrix.png, the training curve, TensorBoard
events and checkpoints; --do_predict writes predictions.tsv, and for GLUE's tasks the file that GLUE takes. A run that
was stopped continues from its last checkpoint. Without --do_train the model/ of an earlier call is taken, or where
there is none a --preset that has been fine-tuned elsewhere; that is evaluated where it lies, and no model/ is written.
"""

import dataclasses
from collections.abc import Callable

from absl import flags

from keras_bert.errors import InputError
from keras_bert.presets import resolve_preset
from tasks import flags as task_flags
from tasks.glue.inputs import KINDS, Inputs, Source, check_steps, read_inputs
from tasks.glue.tasks import TASKS

_SEARCHED = ("learning_rate", "train_batch_size")


def define_flags() -> None:
    """Defines the command's flags; those shared with other commands come from `tasks.flags`."""
    flags.DEFINE_enum("task_name", "table", sorted(TASKS), "A GLUE task, or table: any TSV, CSV or JSON Lines with "
                      "named columns.", allow_override=True)  # fmt: skip
    flags.DEFINE_list("labels", None, "Labels in the order of their class numbers; default: the GLUE task's, or the "
                      "sorted set of the training file's.", allow_override=True)  # fmt: skip
    flags.DEFINE_list("column_names", None, "Names of all columns, for files without a header.", allow_override=True)
    flags.DEFINE_boolean("regression", False, "The label column holds numbers to come near to, such as ratings.",
                         allow_override=True)  # fmt: skip
    flags.DEFINE_integer("num_restarts", 1, "Seeds to train each combination of settings from; the best is kept.",
                         lower_bound=1, allow_override=True)  # fmt: skip
    for name, text in {
        "tfds_name": "Data set of TensorFlow Datasets, e.g. glue/sst2, in the place of files: --data_dir is then where "
        "the prepared ones lie, and the --*_file flags name splits, e.g. train[:90%].",
        "data_dir": "Directory with GLUE's files, or with train, dev and test .tsv, .csv or .jsonl.",
        "train_file": "Training file; default: the one in --data_dir.",
        "dev_file": "Labelled file to evaluate on; default: the one in --data_dir (mnli: both).",
        "test_file": "File to predict, with or without labels; default: the one in --data_dir (mnli: both).",
        "text_column": "Column with the text; default: the task's ('text').",
        "text_pair_column": "Column with the second text, for tasks on pairs of texts.",
        "label_column": "Column with the label or score; default: the task's ('label').",
    }.items():
        flags.DEFINE_string(name, None, text, allow_override=True)
    task_flags.define_output()
    task_flags.define_stages("train", "eval", "predict")
    task_flags.define_fine_tuning()
    task_flags.define_training()
    task_flags.define_train_epochs()
    task_flags.define_distribution()
    _define_numbers("learning_rate", float, 5e-5, "Peak learning rate, or several to choose from.")
    _define_numbers("train_batch_size", int, 32, "Examples a training step, over all devices; or several.")


class _Numbers(flags.ArgumentParser):
    """One number, or a list of numbers with commas between."""

    def __init__(self, kind: Callable):
        super().__init__()
        self.kind = kind

    def parse(self, argument):
        parts = argument.split(",") if isinstance(argument, str) else [argument]
        try:
            numbers = [self.kind(part) for part in parts]
        except ValueError:
            numbers = [0]
        if not all(0 < number < float("inf") for number in numbers):
            raise ValueError("expected a number greater than 0, or several with commas between")
        return numbers[0] if len(numbers) == 1 else numbers

    def flag_type(self) -> str:
        return f"{self.kind.__name__}, or several with commas between"


def _define_numbers(name: str, kind: Callable, default: float, text: str) -> None:
    flags.DEFINE(_Numbers(kind), name, default, text, serializer=flags.ArgumentSerializer(), allow_override=True)


define_flags()


def classify(
    *,
    output_dir: str,
    preset: str | None = None,
    do_train: bool = False,
    do_eval: bool = False,
    do_predict: bool = False,
    train_batch_size: int | list[int] = 32,
    eval_batch_size: int = 32,
    learning_rate: float | list[float] = 5e-5,
    num_restarts: int = 1,
    num_train_epochs: float = 3.0,
    **others,
) -> dict:
    """Does the chosen stages; every argument is the flag of its name.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once.

    Args:
        output_dir: where everything is written; without `do_train`, its `model/` is evaluated or applied.
        preset: encoder and vocabulary to start from; without `do_train`, and where `output_dir` has no model, a
            checkpoint that was fine-tuned elsewhere.
        do_train, do_eval, do_predict: the stages; at least one.
        train_batch_size, learning_rate: one value, or several to choose the best of, with `do_eval`.
        num_restarts: seeds to train each combination of these from.
        eval_batch_size: rows of a batch in evaluation and prediction.
        num_train_epochs: passes over the training file.
        **others: the attributes of `inputs.Source`, and further ones of `tasks.fine_tuning.FineTuningSettings`.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: a file, a column, a row, a label, a preset or a setting is wrong.
    """
    given = {name: value for name, value in locals().items() if name != "others" and value is not None} | others
    names = {field.name for field in dataclasses.fields(Source)}
    source = Source(**{name: others.pop(name) for name in names & set(others)})
    wanted = [kind for kind, is_wanted in zip(KINDS, (do_train, do_eval, do_predict), strict=True) if is_wanted]
    if not wanted:
        raise InputError("Nothing to do. Give --do_train, --do_eval or --do_predict, or several of them.")
    inputs = read_inputs(source, wanted, output_dir)
    grid = {name: _as_list(given[name]) for name in _SEARCHED}
    if do_train:
        _check_training(inputs, preset, grid, num_restarts, num_train_epochs)

    from tasks.glue import search, stages

    run, tables = stages.Stages(inputs, output_dir, eval_batch_size), []
    if not do_train:
        run.load(preset, others.get("max_seq_length", 128), source.labels)
    else:
        settings = stages.FineTuningSettings(
            preset=preset,
            eval_batch_size=eval_batch_size,
            num_train_epochs=num_train_epochs,
            **{name: values[0] for name, values in grid.items()},
            **others,
        )
        if _is_search(grid, num_restarts):
            tables = search.search(run, settings, grid, num_restarts)
        else:
            run.train(settings)
    if do_eval:
        run.evaluate()
    if do_predict:
        for path in run.predict():
            print(f"wrote {path}")
    run.report(given, tables)
    return stages.read_metrics(output_dir)


def _as_list(value) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_search(grid: dict[str, list], num_restarts: int) -> bool:
    return num_restarts > 1 or any(len(values) > 1 for values in grid.values())


def _check_training(
    inputs: Inputs, preset: str | None, grid: dict[str, list], num_restarts: int, num_train_epochs: float
) -> None:
    check_steps(inputs.train, grid["train_batch_size"], num_train_epochs)
    if _is_search(grid, num_restarts) and not inputs.dev:
        raise InputError("Several learning rates, batch sizes or restarts need --do_eval, to choose the best.")
    resolve_preset(task_flags.require_preset(preset), "tokenizer")  # Before TensorFlow is imported.


def main(argv: list[str]) -> None:
    """Runs the command; `argv` holds its name alone."""
    del argv
    settings = task_flags.resolved_flags()
    results = classify(**settings)
    task_flags.write_flags(settings, settings["output_dir"])
    if settings["do_eval"]:
        for line in _score_lines(results):
            print(line)
    print(f"Results are in {settings['output_dir']}: report.html shows them.")


def _score_lines(results: dict) -> list[str]:
    """A line for each figure, with its 95% interval."""
    lines = [
        f"{name}: {results[name]:.4f} (95% interval {low:.4f} to {high:.4f})"
        for name, (low, high) in results["intervals"].items()
    ]
    others = [name for name in results if name == "majority_accuracy" or name.endswith("loss")]
    return [*lines, *(f"{name}: {results[name]:.4f}" for name in others)]


def console_main() -> None:
    """The console script `bert-classify`."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
