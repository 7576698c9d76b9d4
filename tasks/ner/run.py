"""Trains, evaluates and applies a tagger of named entities, or of any other spans, on files in CoNLL's columns.

    bert-ner --data_dir=conll2003 --preset=google/bert_cased_L-12_H-768_A-12 --document_context=document \\
        --max_seq_length=512 --do_train --do_eval --do_predict --output_dir=runs/ner
    bert-ner --train_file=train.conll --dev_file=dev.conll --preset=base --do_train --do_eval --output_dir=runs/wnut

One token a line, its tag in the last column (--tag_column), a blank line between sentences, -DOCSTART- before a
document; tags in IOB1, IOB2 or BILOU. The output directory gets metrics.json with entity-level F1, the trained model
(model/), report.html, the training curve, TensorBoard events, checkpoints, and dev_predictions.conll; --do_predict
writes predictions.conll: token, the file's own tag in IOB2 if it has one, predicted tag. A run that was stopped
continues from its last checkpoint. --do_eval or --do_predict alone take the trained model or, where there is none, a
--preset that was fine-tuned elsewhere (BertForTokenClassification).
"""

from absl import flags

from keras_bert.errors import InputError
from keras_bert.presets import resolve_preset
from tasks import flags as task_flags
from tasks.bad_rows import BadRows
from tasks.conll import DELIMITERS
from tasks.ner import data
from tasks.ner.windows import DOCUMENT_CONTEXT, check_stride
from tasks.tags import SCHEMES


def define_flags() -> None:
    """Defines the command's flags; those shared with other commands come from `tasks.flags`."""
    for name, text in {
        "data_dir": "Directory with train.conll, dev.conll, test.conll (or .txt, .tsv).",
        "train_file": "Training file; default: the one in --data_dir.",
        "dev_file": "Tagged file to evaluate on; default: the one in --data_dir.",
        "test_file": "File to predict, with or without tags; default: the one in --data_dir.",
    }.items():
        flags.DEFINE_string(name, None, text, allow_override=True)
    flags.DEFINE_integer("tag_column", -1, "Column of the tag, from 0 (the token's); negative: from the end.",
                         allow_override=True)  # fmt: skip
    flags.DEFINE_enum("delimiter", None, list(DELIMITERS), "What parts the columns; default: tab if the first row has "
                      "one, else white space.", allow_override=True)  # fmt: skip
    flags.DEFINE_enum("tag_scheme", "auto", ["auto", *SCHEMES], "Scheme of the tags; auto: each file's by its content.",
                      allow_override=True)  # fmt: skip
    flags.DEFINE_enum("document_context", "none", list(DOCUMENT_CONTEXT), "document: fill each sequence with the "
                      "document around its sentence; a file without -DOCSTART- is one document.",
                      allow_override=True)  # fmt: skip
    flags.DEFINE_integer("doc_stride", None, "Sub-tokens between the windows over a sentence longer than "
                         "--max_seq_length; default: half of it.", lower_bound=1, allow_override=True)  # fmt: skip
    task_flags.define_output()
    task_flags.define_stages("train", "eval", "predict")
    task_flags.define_fine_tuning()
    task_flags.define_training()
    task_flags.define_train_epochs()
    task_flags.define_distribution()


define_flags()


def tag(
    *,
    output_dir: str,
    preset: str | None = None,
    data_dir: str | None = None,
    train_file: str | None = None,
    dev_file: str | None = None,
    test_file: str | None = None,
    tag_column: int = -1,
    delimiter: str | None = None,
    tag_scheme: str = "auto",
    document_context: str = "none",
    doc_stride: int | None = None,
    do_train: bool = False,
    do_eval: bool = False,
    do_predict: bool = False,
    bad_rows: str = "refuse",
    max_seq_length: int = 128,
    eval_batch_size: int = 8,
    **training,
) -> dict:
    """Does the chosen stages; every argument is the flag of its name.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once.

    Args:
        output_dir: where everything is written; without `do_train`, its `model/` is evaluated or applied.
        preset: encoder and vocabulary to start from; without `do_train` a fine-tuned one.
        data_dir, train_file, dev_file, test_file: where the files are (see `data.find_split`).
        tag_column, delimiter, tag_scheme: see `tasks.conll.read_conll`.
        document_context, doc_stride: see `tasks.ner.windows.make_windows`.
        do_train, do_eval, do_predict: the stages; at least one.
        bad_rows: "refuse" a file with rows that cannot be used, or "skip" their sentences.
        max_seq_length, eval_batch_size, **training: the attributes of `tasks.fine_tuning.FineTuningSettings`.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: a file, a row, a tag, a preset or a setting is wrong.
    """
    wanted = {"train": (do_train, train_file), "dev": (do_eval, dev_file), "test": (do_predict, test_file)}
    files = {split: file for split, (is_wanted, file) in wanted.items() if is_wanted}
    if not files:
        raise InputError("Nothing to do. Give --do_train, --do_eval or --do_predict, or several of them.")
    stride = check_stride(max_seq_length, doc_stride)
    paths = {split: data.find_split(data_dir, split, file) for split, file in files.items()}
    rows = BadRows(bad_rows)
    splits = data.read_splits(paths, rows, tag_column=tag_column, delimiter=delimiter, tag_scheme=tag_scheme)
    labels = None
    if do_train:
        labels = data.make_labels(splits["train"])
        if "dev" in splits:
            splits["dev"] = data.leave_out_unknown(splits["dev"], labels, rows)
        resolve_preset(task_flags.require_preset(preset), "tokenizer")  # Before TensorFlow is imported.

    from tasks.fine_tuning import FineTuningSettings
    from tasks.ner import stages

    settings = None
    if do_train:
        settings = FineTuningSettings(
            preset=preset, max_seq_length=max_seq_length, eval_batch_size=eval_batch_size, **training
        )
    results = stages.run_stages(
        splits,
        labels,
        settings,
        stages.Reading(max_seq_length=max_seq_length, doc_stride=stride, document_context=document_context),
        output_dir=output_dir,
        preset=preset,
        eval_batch_size=eval_batch_size,
        bad_rows=rows,
    )
    rows.write(output_dir)
    return results


def main(argv: list[str]) -> None:
    """Runs the command; `argv` holds its name alone."""
    del argv
    settings = task_flags.resolved_flags()
    results = tag(**settings)
    task_flags.write_flags(settings, settings["output_dir"])
    if settings["do_eval"]:
        low, high = results["f1_interval"]
        print(f"f1: {results['f1']:.4f} (95% interval {low:.4f} to {high:.4f})")
    for name in ("precision", "recall", "token_accuracy", "loss", "test_f1"):
        if name in results and settings["do_predict" if name.startswith("test") else "do_eval"]:
            print(f"{name}: {results[name]:.4f}")
    print(f"Results are in {settings['output_dir']}.")


def console_main() -> None:
    """The console script `bert-ner`."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
