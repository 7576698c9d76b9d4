"""Trains, scores and applies a model that answers questions about a text with a part of the text: SQuAD 1.1 and 2.0.

    bert-squad --train_file=train-v2.0.json --predict_file=dev-v2.0.json --version_2_with_negative --preset=base \\
        --do_train --do_eval --do_predict --output_dir=runs/squad

Long contexts are cut into overlapping windows. The output directory gets metrics.json (exact match and F1 by SQuAD's
official script, with intervals), report.html, the trained model (model/, what bert-export takes), the training curve,
TensorBoard events and checkpoints; --do_predict writes predictions.json, nbest_predictions.json and, for SQuAD 2.0,
null_odds.json. Without --do_train the model in --output_dir answers, or, where there is none, a --preset that was
fine-tuned elsewhere. A run that was stopped continues from its last checkpoint.
"""

import os

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import expand_file, read_object
from keras_bert.presets import resolve_preset
from tasks import flags as task_flags
from tasks.bad_rows import BadRows
from tasks.squad import data, metrics

_MODEL = " Default: the trained model's, else {}."


def define_flags() -> None:
    """Defines the command's flags; those shared with other commands come from `tasks.flags`."""
    for name, text in {
        "train_file": "Questions with answers to train on: SQuAD's JSON, 1.1 or 2.0.",
        "predict_file": "Questions to answer: SQuAD's JSON; --do_eval needs their known answers in it.",
    }.items():
        flags.DEFINE_string(name, None, text, allow_override=True)
    for name, default, lower_bound, text in (
        ("doc_stride", 128, 1, "Tokens from the start of a window to that of the next."),
        ("max_query_length", 64, 1, "Longest question in tokens; longer ones are cut."),
        ("n_best_size", 20, 1, "Starts and ends that are combined, and answers in nbest_predictions.json."),
        ("max_answer_length", 30, 1, "Longest answer in tokens."),
    ):
        flags.DEFINE_integer(name, None, text + _MODEL.format(default), lower_bound=lower_bound, allow_override=True)
    flags.DEFINE_boolean("version_2_with_negative", None, "Some questions have no answer (SQuAD 2.0)."
                         + _MODEL.format("no"), allow_override=True)  # fmt: skip
    flags.DEFINE_float("null_score_diff_threshold", None, "No answer is given where its score leads the best answer's "
                       "by more. Default: what gives the highest F1, searched by --do_eval; else the trained model's, "
                       "else 0.", allow_override=True)  # fmt: skip
    flags.register_validator("null_score_diff_threshold", lambda value: value is None or abs(value) < float("inf"),
                             message="must be a finite number")  # fmt: skip
    task_flags.define_fine_tuning(max_seq_length=None)
    task_flags.define_output()
    task_flags.define_stages("train", "eval", "predict")
    task_flags.define_training()
    task_flags.define_train_epochs()
    task_flags.define_distribution()


define_flags()


def answer_questions(
    *,
    output_dir: str,
    preset: str | None = None,
    train_file: str | None = None,
    predict_file: str | None = None,
    do_train: bool = False,
    do_eval: bool = False,
    do_predict: bool = False,
    bad_rows: str = "refuse",
    max_seq_length: int | None = None,
    doc_stride: int | None = None,
    max_query_length: int | None = None,
    n_best_size: int | None = None,
    max_answer_length: int | None = None,
    version_2_with_negative: bool | None = None,
    null_score_diff_threshold: float | None = None,
    eval_batch_size: int = 8,
    **training,
) -> dict:
    """Does the chosen stages; every argument is the flag of its name.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once.

    Args:
        output_dir: where everything is written; without `do_train`, its `model/` is scored or applied.
        preset: encoder and vocabulary to start from; without `do_train` and a trained model, the model to apply.
        train_file, predict_file: SQuAD's JSON.
        do_train, do_eval, do_predict: the stages; at least one.
        bad_rows: "refuse" a file with questions that cannot be used, or "skip" those, shown and counted, as
            google-research/bert does with training answers that the text does not contain.
        max_seq_length, doc_stride, max_query_length, n_best_size, max_answer_length, version_2_with_negative,
            null_score_diff_threshold: attributes of `tasks.squad.model.QuestionAnswerer` (the first is its
            `sequence_length`); None: those of the trained model, or the defaults there. Without a threshold `do_eval`
            searches that of the highest F1 and keeps it.
        eval_batch_size: windows of a batch in evaluation and prediction.
        **training: further attributes of `stages.Settings`; used with `do_train` only.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: a file, a question, a preset or a setting is wrong.
    """
    given = {
        "sequence_length": max_seq_length,
        "doc_stride": doc_stride,
        "max_query_length": max_query_length,
        "n_best_size": n_best_size,
        "max_answer_length": max_answer_length,
        "version_2_with_negative": version_2_with_negative,
        "null_score_diff_threshold": null_score_diff_threshold,
    }
    given = {name: value for name, value in given.items() if value is not None}
    with_negative = given.get("version_2_with_negative", not do_train and _is_version_2(output_dir))
    rows = BadRows(bad_rows)
    files = _name_files(train_file, predict_file, do_train, do_eval, do_predict)
    if do_eval:
        metrics.load_script(with_negative)
    questions = {split: _read(file, split, with_negative, rows) for split, file in files.items()}
    if do_train:
        resolve_preset(task_flags.require_preset(preset), "tokenizer")  # Before TensorFlow is imported.

    from tasks.squad import stages

    settings = None
    if do_train:
        windowing = {"max_seq_length": max_seq_length, "doc_stride": doc_stride, "max_query_length": max_query_length}
        settings = stages.Settings(
            preset=preset,
            version_2_with_negative=with_negative,
            eval_batch_size=eval_batch_size,
            **{name: value for name, value in windowing.items() if value is not None},
            **training,
        )
    results = stages.run_stages(
        questions,
        settings,
        given,
        output_dir=output_dir,
        preset=preset,
        do_predict=do_predict,
        eval_batch_size=eval_batch_size,
        skipped_rows=rows.count,
    )
    rows.write(output_dir)
    return results


def _name_files(
    train_file: str | None, predict_file: str | None, do_train: bool, do_eval: bool, do_predict: bool
) -> dict[str, str]:
    """The files of the splits that the stages need: "train"; "dev", to be scored, or "test", to be answered only."""
    if not (do_train or do_eval or do_predict):
        raise InputError("Nothing to do. Give --do_train, --do_eval or --do_predict, or several of them.")
    wanted = {}
    if do_train:
        wanted["train"] = ("--do_train", "--train_file", train_file)
    if do_eval or do_predict:
        stage = "--do_eval" if do_eval else "--do_predict"
        wanted["dev" if do_eval else "test"] = (stage, "--predict_file", predict_file)
    for stage, flag, file in wanted.values():
        if not file:
            raise InputError(f"{stage} needs {flag}: questions in SQuAD's JSON.")
    return {split: expand_file(flag, file) for split, (_, flag, file) in wanted.items()}


def _read(path: str, split: str, with_negative: bool, bad_rows: BadRows) -> list[data.Question]:
    questions = data.read_squad(
        path, with_answers=split == "train", version_2_with_negative=with_negative, bad_rows=bad_rows
    )
    return _with_known_answers(questions, with_negative, bad_rows) if split == "dev" else questions


def _with_known_answers(questions: list[data.Question], with_negative: bool, bad_rows: BadRows) -> list[data.Question]:
    """Leaves out, or refuses, what cannot be scored: unlike for training, an answer may stand anywhere."""
    cure = 'Expected one, or "is_impossible": true' if with_negative else "Expected one, or --version_2_with_negative"
    for question in questions:
        if not question.answers and not question.is_impossible:
            bad_rows.add(question.where, f"the question has no known answer to be scored by. {cure}.")
    bad_rows.finish()
    known = [question for question in questions if question.answers or question.is_impossible]
    if not known:
        raise InputError(f"{questions[0].where}: no question in the file has a known answer; leave out --do_eval.")
    return known


def _is_version_2(output_dir: str) -> bool:
    """Whether the trained model in a run's directory answers questions that may have no answer."""
    path = os.path.join(output_dir, "model", "task.json")  # The names are `stages`' and `model_files`'.
    return os.path.isfile(path) and bool(read_object(path).get("version_2_with_negative"))


def main(argv: list[str]) -> None:
    """Runs the command; `argv` holds its name alone."""
    del argv
    settings = task_flags.resolved_flags()
    results = answer_questions(**settings)
    task_flags.write_flags(settings, settings["output_dir"])
    if settings["do_eval"]:
        for name in ("exact", "f1"):
            low, high = results[f"{name}_interval"]
            print(f"{name}: {results[name]:.2f} (95% interval {low:.2f} to {high:.2f})")
        for name in ("HasAns_exact", "HasAns_f1", "NoAns_exact", "null_score_diff_threshold"):
            if name in results:
                print(f"{name}: {results[name]:.2f}")
    print(f"Results are in {settings['output_dir']}.")


def console_main() -> None:
    """The console script `bert-squad`."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
