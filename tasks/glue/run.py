"""Trains, evaluates and applies a classifier of single texts or pairs of texts.

    bert-classify --train_file=train.csv --dev_file=dev.csv --text_column=review --label_column=stars \\
        --preset=base --do_train --do_eval --output_dir=runs/reviews

A table is CSV (.csv, quoted) or TSV (.tsv, no quoting) with a header. The output directory gets metrics.json, the
trained model (model/, what bert-export takes), confusion_matrix.png, the training curve, TensorBoard events and
checkpoints; --do_predict writes predictions.tsv. A run that was stopped continues from its last checkpoint.
"""

import dataclasses
import os
from collections.abc import Sequence

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.presets import PRESETS, resolve_preset
from tasks import flags as task_flags
from tasks.glue import data
from tasks.glue.tasks import TASKS, Task


def define_flags() -> None:
    """Defines the command's flags; those shared with other commands come from `tasks.flags`."""
    flags.DEFINE_enum("task_name", "table", sorted(TASKS), "A GLUE task, or table: any TSV or CSV with a header.",
                      allow_override=True)  # fmt: skip
    flags.DEFINE_list("labels", None, "Labels in the order of their class numbers; default: the sorted set of the "
                      "training file's, or the GLUE task's.", allow_override=True)  # fmt: skip
    flags.DEFINE_boolean("load_weights", True, "False: the preset's sizes and vocabulary, with random weights.",
                         allow_override=True)  # fmt: skip
    flags.DEFINE_integer("max_seq_length", 128, "Longest input in tokens; longer ones are cut.", lower_bound=4,
                         allow_override=True)  # fmt: skip
    for name, text in {
        "data_dir": "Directory with train, dev and test .tsv (or .csv for --task_name=table).",
        "train_file": "Training file; default: the one in --data_dir.",
        "dev_file": "Labelled file to evaluate on; default: the one in --data_dir.",
        "test_file": "File to predict, with or without labels; default: the one in --data_dir.",
        "text_column": "Column with the text; default: the task's ('text').",
        "text_pair_column": "Column with the second text, for tasks on pairs of texts.",
        "label_column": "Column with the label; default: the task's ('label').",
        "preset": "Encoder and vocabulary: a short name (tiny ... large), or a preset directory.",
    }.items():
        flags.DEFINE_string(name, None, text, allow_override=True)
    task_flags.define_output()
    task_flags.define_stages("train", "eval", "predict")
    task_flags.define_training()
    task_flags.define_train_epochs()
    task_flags.define_distribution()


define_flags()


def classify(
    *,
    output_dir: str,
    preset: str | None = None,
    task_name: str = "table",
    data_dir: str | None = None,
    train_file: str | None = None,
    dev_file: str | None = None,
    test_file: str | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    labels: list[str] | None = None,
    do_train: bool = False,
    do_eval: bool = False,
    do_predict: bool = False,
    train_batch_size: int = 32,
    eval_batch_size: int = 32,
    num_train_epochs: float = 3.0,
    **training,
) -> dict:
    """Does the chosen stages; every argument is the flag of its name.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once.

    Args:
        output_dir: where everything is written; without `do_train`, its `model/` is evaluated or applied.
        preset: encoder and vocabulary to start from; needed with `do_train` only.
        task_name: a key of `TASKS`, whose columns the `*_column` arguments replace.
        data_dir, train_file, dev_file, test_file: where the tables are (see `data.find_split`).
        text_column, text_pair_column, label_column: names in the header.
        labels: the labels in the order of their class numbers.
        do_train, do_eval, do_predict: the stages; at least one.
        train_batch_size, num_train_epochs: rows of a training step, passes over the training file.
        eval_batch_size: rows of a batch in evaluation and prediction.
        **training: further attributes of `stages.Settings`; used with `do_train` only.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: a file, a column, a row, a label, a preset or a setting is wrong.
    """
    columns = {"text_column": text_column, "text_pair_column": text_pair_column, "label_column": label_column}
    task = dataclasses.replace(TASKS[task_name], **{name: value for name, value in columns.items() if value})
    splits = {"train": (do_train, train_file), "dev": (do_eval, dev_file), "test": (do_predict, test_file)}
    tables = _read_tables(task, data_dir, {split: file for split, (wanted, file) in splits.items() if wanted})
    if do_train:
        labels = _check_training(tables, labels or task.labels, train_batch_size, num_train_epochs)
        resolve_preset(_require_preset(preset), "tokenizer")  # Before TensorFlow is imported.

    from tasks.glue import stages

    if do_train:
        settings = stages.Settings(
            preset=preset,
            train_batch_size=train_batch_size,
            eval_batch_size=eval_batch_size,
            num_train_epochs=num_train_epochs,
            **training,
        )
        classifier = stages.train(tables["train"], labels, settings, output_dir=output_dir, dev=tables.get("dev"))
    else:
        classifier = stages.load(output_dir, list(tables.values()))
    if do_eval:
        stages.evaluate(classifier, tables["dev"], task.metric, output_dir=output_dir, eval_batch_size=eval_batch_size)
    if do_predict:
        stages.predict(classifier, tables["test"], output_dir=output_dir, eval_batch_size=eval_batch_size)
    return stages.read_metrics(output_dir)


def _read_tables(task: Task, data_dir: str | None, files: dict[str, str | None]) -> dict[str, data.Table]:
    if not files:
        raise InputError("Nothing to do. Give --do_train, --do_eval or --do_predict, or several of them.")
    paths = {split: data.find_split(task, data_dir, split, file) for split, file in files.items()}
    return {split: data.read_table(path, task, with_labels=split != "test") for split, path in paths.items()}


def _check_training(
    tables: dict[str, data.Table], labels: Sequence[str] | None, train_batch_size: int, num_train_epochs: float
) -> list[str]:
    table = tables["train"]
    labels = data.choose_labels(table, labels)
    for split in [split for split in ("train", "dev") if split in tables]:
        data.check_labels(tables[split], labels)
    if data.count_steps(len(table.texts), train_batch_size, num_train_epochs) < 1:
        raise InputError(
            f"{table.path}: {len(table.texts)} rows in {num_train_epochs:g} epochs do not fill one batch of "
            f"{train_batch_size}. Lower --train_batch_size or raise --num_train_epochs."
        )
    return labels


def _require_preset(preset: str | None) -> str:
    if not preset:
        raise InputError(f"--do_train needs --preset: a preset's directory or name, e.g. {', '.join(PRESETS)}.")
    return preset


def main(argv: list[str]) -> None:
    """Runs the command; `argv` holds its name alone."""
    del argv
    settings = task_flags.resolved_flags()
    results = classify(**settings)
    # Only now: a call that was refused leaves the flags of the one before.
    write_json(os.path.join(settings["output_dir"], "flags.json"), settings)
    for name in ("accuracy", "matthews_correlation", "majority_accuracy", "loss"):
        if name in results and settings["do_eval"]:
            print(f"{name}: {results[name]:.4f}")
    print(f"Results are in {settings['output_dir']}.")


def console_main() -> None:
    """The console script `bert-classify`."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
