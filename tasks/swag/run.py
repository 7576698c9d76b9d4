"""Trains, evaluates and applies a model that chooses the right one of several texts (SWAG and its like).

    bert-swag --data_dir=swag --preset=base --do_train --do_eval --output_dir=runs/swag
    bert-swag --train_file=train.jsonl --dev_file=dev.jsonl --context_column=question --choice_columns=options \\
        --preset=base --do_train --do_eval --output_dir=runs/quiz

Tables are CSV with a header, SWAG's own columns by default, or JSON Lines (.jsonl); the label is the number of the
right choice, from 0. The number of choices is told by the columns. The output directory gets metrics.json, the trained
model (model/), report.html, the training curve, TensorBoard events and checkpoints; --do_predict writes
predictions.csv. A run that was stopped continues from its last checkpoint. --do_eval or --do_predict alone take the
trained model or, where there is none, a --preset that was fine-tuned elsewhere (BertForMultipleChoice).
"""

from absl import flags

from keras_bert.errors import InputError
from keras_bert.presets import resolve_preset
from tasks import flags as task_flags
from tasks.bad_rows import BadRows
from tasks.swag import data


def define_flags() -> None:
    """Defines the command's flags; those shared with other commands come from `tasks.flags`."""
    for name, text in {
        "data_dir": "Directory with SWAG's train.csv, val.csv (or dev.csv), test.csv; .jsonl works too.",
        "train_file": "Training file; default: the one in --data_dir.",
        "dev_file": "Labelled file to evaluate on; default: the one in --data_dir.",
        "test_file": "File to predict, with or without labels; default: the one in --data_dir.",
        "context_column": "Column with the text that comes first; default: SWAG's ('sent1').",
        "start_column": "Column with the beginning that all choices share; default: SWAG's ('sent2'), but none with "
        "--context_column.",
        "label_column": "Column with the number of the right choice, from 0; default: 'label'.",
    }.items():
        flags.DEFINE_string(name, None, text, allow_override=True)
    flags.DEFINE_list("choice_columns", None, "Columns with the choices, commas between, or in JSON Lines the key of "
                      "a list; default: ending0, ending1, ... as SWAG, or endings.", allow_override=True)  # fmt: skip
    task_flags.define_output()
    task_flags.define_stages("train", "eval", "predict")
    task_flags.define_fine_tuning()
    task_flags.define_training(learning_rate=2e-5)  # The paper, section 4.4, as the batch of 16 and the 3 epochs.
    flags.FLAGS.set_default("train_batch_size", 16)
    task_flags.define_train_epochs()
    task_flags.define_distribution()


define_flags()


def choose(
    *,
    output_dir: str,
    preset: str | None = None,
    data_dir: str | None = None,
    train_file: str | None = None,
    dev_file: str | None = None,
    test_file: str | None = None,
    context_column: str | None = None,
    start_column: str | None = None,
    choice_columns: list[str] | None = None,
    label_column: str | None = None,
    do_train: bool = False,
    do_eval: bool = False,
    do_predict: bool = False,
    bad_rows: str = "refuse",
    max_seq_length: int = 128,
    train_batch_size: int = 16,
    eval_batch_size: int = 8,
    num_train_epochs: float = 3.0,
    learning_rate: float = 2e-5,
    **training,
) -> dict:
    """Does the chosen stages; every argument is the flag of its name.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once.

    Args:
        output_dir: where everything is written; without `do_train`, its `model/` is evaluated or applied.
        preset: encoder and vocabulary to start from; without `do_train` a fine-tuned one.
        data_dir, train_file, dev_file, test_file: where the tables are (see `data.find_split`).
        context_column, start_column, choice_columns, label_column: see `data.Columns`.
        do_train, do_eval, do_predict: the stages; at least one.
        bad_rows: "refuse" a file with rows that cannot be used, or "skip" them.
        max_seq_length, train_batch_size, eval_batch_size, num_train_epochs, learning_rate, **training: the attributes
            of `tasks.fine_tuning.FineTuningSettings`.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: a file, a column, a row, a preset or a setting is wrong.
    """
    columns = _columns(context_column, start_column, choice_columns, label_column)
    splits = {"train": (do_train, train_file), "dev": (do_eval, dev_file), "test": (do_predict, test_file)}
    files = {split: file for split, (wanted, file) in splits.items() if wanted}
    if not files:
        raise InputError("Nothing to do. Give --do_train, --do_eval or --do_predict, or several of them.")
    paths = {split: data.find_split(data_dir, split, file) for split, file in files.items()}
    rows = BadRows(bad_rows)
    tables = {split: data.read_table(path, columns, rows, split != "test") for split, path in paths.items()}
    data.check_num_choices(list(tables.values()))
    if do_train:
        _check_steps(tables["train"], train_batch_size, num_train_epochs)
        resolve_preset(task_flags.require_preset(preset), "tokenizer")  # Before TensorFlow is imported.

    from tasks.fine_tuning import FineTuningSettings
    from tasks.swag import stages

    settings = None
    if do_train:
        settings = FineTuningSettings(
            preset=preset,
            max_seq_length=max_seq_length,
            train_batch_size=train_batch_size,
            eval_batch_size=eval_batch_size,
            num_train_epochs=num_train_epochs,
            learning_rate=learning_rate,
            **training,
        )
    results = stages.run_stages(
        tables,
        settings,
        output_dir=output_dir,
        preset=preset,
        max_seq_length=max_seq_length,
        eval_batch_size=eval_batch_size,
        skipped_rows=rows.count,
    )
    rows.write(output_dir)
    return results


def _columns(context: str | None, start: str | None, choices: list[str] | None, label: str | None) -> data.Columns:
    swag = data.Columns()
    return data.Columns(
        context or swag.context,
        start or (None if context else swag.start),  # Another table's context goes with no start of SWAG's.
        tuple(choices) if choices else None,
        label or swag.label,
    )


def _check_steps(table: data.Table, train_batch_size: int, num_train_epochs: float) -> None:
    from tasks.examples import count_steps

    if count_steps(len(table.lines), train_batch_size, num_train_epochs) < 1:
        raise InputError(
            f"{table.path}: {len(table.lines)} rows in {num_train_epochs:g} epochs do not fill one batch of "
            f"{train_batch_size}. Lower --train_batch_size or raise --num_train_epochs."
        )


def main(argv: list[str]) -> None:
    """Runs the command; `argv` holds its name alone."""
    del argv
    settings = task_flags.resolved_flags()
    results = choose(**settings)
    task_flags.write_flags(settings, settings["output_dir"])
    if settings["do_eval"]:
        low, high = results["accuracy_interval"]
        print(f"accuracy: {results['accuracy']:.4f} (95% interval {low:.4f} to {high:.4f})")
        for name in ("chance_accuracy", "majority_accuracy", "loss"):
            if name in results:
                print(f"{name}: {results[name]:.4f}")
    print(f"Results are in {settings['output_dir']}.")


def console_main() -> None:
    """The console script `bert-swag`."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
