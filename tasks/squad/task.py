"""Question answering by a span of a given context: SQuAD 1.1 and 2.0 (sections 4.2 and 4.3 of the paper).

Shapes: W windows, T tokens of all windows.
"""

import dataclasses
import os
from typing import Any

import keras_bert
from keras_bert.errors import InputError
from keras_bert.files import expand_file, remove_path, write_json
from tasks.fine_tuning import task
from tasks.fine_tuning.data_check import Content
from tasks.fine_tuning.inputs import find_trained, read_spec
from tasks.fine_tuning.settings import FineTuningSettings
from tasks.settings import changeable, replaced, require_extra
from tasks.squad import data, metrics
from tasks.squad.answers import apply_threshold, best_answers
from tasks.squad.windows import DEFAULTS, SquadSpec, make_windows

THRESHOLD = "null_score_diff_threshold"
_FILES = "SQuAD's JSON, 1.1 or 2.0, or a table (.csv, .tsv, .xlsx, .jsonl, .parquet)"


def _of_model(help: str, default: Any, **bounds: Any) -> Any:
    """Declares a setting that a trained model remembers, and that a later call may override."""
    return changeable(None, f"{help} Default: the trained model's, else {default}.", **bounds)


class SquadSettings(FineTuningSettings):
    """Settings of `bert-squad`."""

    train_file: str | None = changeable(
        None, f"Questions with answers to train on: {_FILES} with the columns question, context and answer."
    )
    predict_file: str | None = changeable(None, f"Questions to answer: {_FILES}; --do_eval needs known answers.")
    version_2_with_negative: bool | None = _of_model("Some questions have no answer (SQuAD 2.0).", "no")
    max_seq_length: int | None = _of_model(
        "Longest window in tokens: question, part of the context, special tokens.",
        DEFAULTS.sequence_length,
        at_least=4,
    )
    doc_stride: int | None = _of_model(
        "Tokens from the start of one window to the start of the next.",
        DEFAULTS.doc_stride,
        at_least=1,
        subject="answers",
    )
    max_query_length: int | None = _of_model(
        "Longest question in tokens; longer ones are cut.", DEFAULTS.max_query_length, at_least=1
    )
    n_best_size: int | None = _of_model(
        "Starts and ends to combine per window, and answers listed per question.", DEFAULTS.n_best_size, at_least=1
    )
    max_answer_length: int | None = _of_model("Longest answer in tokens.", DEFAULTS.max_answer_length, at_least=1)
    null_score_diff_threshold: float | None = changeable(
        None,
        "Give no answer if the score of 'no answer' exceeds the best answer's by more than this. Default: the value "
        "with the highest F1, which --do_eval searches for; else the trained model's, else 0.",
    )
    bad_rows: str | None = replaced(
        FineTuningSettings,
        "bad_rows",
        None,
        help="Refuse files with bad rows, or skip and report them. Default: skip training answers that are not at "
        "their place in the context, as google-research/bert does, and refuse other faults.",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.do_eval:  # `--train_file` alone may set it, so that the setting's own `needs` cannot check it.
            require_extra("squad", "--do_eval, which --do_train alone leaves out,")

    def override(self, spec: SquadSpec) -> SquadSpec:
        """Returns a spec in which the values that these settings give replace its own.

        Raises:
            InputError: the windows leave no room for the context beside the longest question.
        """
        values = {field.name: self.given_for(field.name)[1] for field in dataclasses.fields(spec)}
        spec = dataclasses.replace(spec, **{name: value for name, value in values.items() if value is not None})
        if spec.sequence_length < (least := spec.max_query_length + 4):
            raise InputError(
                f"--max_seq_length={spec.sequence_length} leaves no room for the context beside a question of "
                f"--max_query_length={spec.max_query_length} tokens and 3 special tokens. Expected {least}."
            )
        return spec


class Squad(task.Task):
    """SQuAD 1.1 and 2.0, any other file in their format, and tables of questions."""

    Settings = SquadSettings
    Spec = SquadSpec
    name = "question_answering"
    command = "bert-squad"
    metric = "f1"
    stopping_metric = "loss"
    unit = "questions"
    long_examples = "split into windows"
    decimals = 2
    printed = ("HasAns_exact", "HasAns_f1", "NoAns_exact", THRESHOLD)
    changes_answers = ("n_best_size", "max_answer_length", THRESHOLD)

    def title_of(self, spec):
        return f"SQuAD {'2.0' if spec.version_2_with_negative else '1.1'}"

    @property
    def _with_negative(self) -> bool:
        """Whether a question may have no answer, by the settings or else by the trained model."""
        given = self.settings.version_2_with_negative
        if given is not None or self.settings.do_train:
            return bool(given)
        directory = find_trained(self.settings)
        return directory is not None and read_spec(self, directory).version_2_with_negative

    # === Data ===

    def read(self, split, bad_rows):
        settings = self.settings
        # The questions that are evaluated are predicted, too, so that the model reads them only once.
        if split == "test" and settings.do_eval and not settings.dev_share:
            return []
        flag, stage = ("train_file", "do_train") if split == "train" else ("predict_file", "do_predict")
        stage = "do_eval" if split == "dev" else stage
        if not getattr(settings, flag):
            raise InputError(f"--{stage} needs --{flag}: {_FILES}.")
        path = expand_file(f"--{flag}", getattr(settings, flag))
        questions = data.read_squad(
            path, with_answers=split == "train", version_2_with_negative=self._with_negative, bad_rows=bad_rows
        )
        if split == "dev":
            questions = data.keep_scorable(questions, self._with_negative, bad_rows)
        is_predicted = split == "dev" and settings.do_predict
        return [task.Part(split, data.Questions(path, questions), is_predicted=is_predicted)]

    def groups(self, rows):
        return [question.context for question in rows.questions]

    def content(self, rows):
        texts = [(question.question, question.context) for question in rows.questions]
        return Content(texts, None, lambda row: rows.questions[row].where)

    def make_spec(self, train):
        return self.settings.override(DEFAULTS)

    def adjust_spec(self, spec):
        return self.settings.override(spec)

    def describe(self, rows, encoded, spec):
        return {"train_questions": len(rows.questions), "train_windows": encoded.examples.num_examples}

    # === Model ===

    def model_class(self):
        return keras_bert.BertSpanLabeler

    def objective(self, spec):
        from tasks.squad.objective import SpanObjective

        return SpanObjective()

    def encode(self, part, trained):
        """Cuts the windows. Their labels are (0, 0) if no answer is found."""
        windows = make_windows(part.rows.questions, trained.tokenizer, trained.spec, f"windows of {part.title}")
        if not windows.examples.num_examples:
            raise InputError(f"{part.rows.path}: no context here holds any text. Expected some.")
        return task.Encoded(windows.examples, windows.question_lengths, source=windows)

    # === Answers ===

    def checkpoint_figures(self, answers):
        losses, is_right = metrics.score_windows(answers.outputs, answers.encoded.examples)
        return {"span_accuracy": float(is_right.mean()), "loss": float(losses.mean())}

    def evaluate(self, answers, results):
        """Scores the answers with the official script, for SQuAD 2.0 at the given threshold or else the best one."""
        questions, windows, spec = answers.part.rows.questions, answers.encoded.source, answers.trained.spec
        best, chosen, highest = best_answers(questions, windows, answers.outputs, spec), {}, {}
        with_negative, searches = spec.version_2_with_negative, getattr(self.settings, THRESHOLD) is None
        if with_negative:
            threshold, highest = metrics.find_threshold(questions, best)
            chosen[THRESHOLD] = threshold if searches else getattr(spec, THRESHOLD)
        final = apply_threshold(best, chosen.get(THRESHOLD, 0.0))
        scores = metrics.score_each(questions, final.predictions, with_negative)
        losses, _ = metrics.score_windows(answers.outputs, answers.encoded.examples)
        figures = {**metrics.score_all(questions, final.predictions, with_negative), **highest, **chosen}
        figures["loss"] = float(losses.mean())
        intervals = metrics.intervals(scores)
        return task.Evaluation(
            figures,
            intervals,
            {"eval_windows": len(losses)},
            scores=metrics.make_scores(figures, intervals),
            **metrics.show_answers(questions, windows, losses, final, scores),
            notes=metrics.make_notes(figures, searches),
            chosen=chosen,
        )

    def write_predictions(self, answers, output_dir):
        """Writes google-research/bert's files; `null_odds.json` only if a question may have no answer."""
        spec = answers.trained.spec
        best = best_answers(answers.part.rows.questions, answers.encoded.source, answers.outputs, spec)
        final = apply_threshold(best, getattr(spec, THRESHOLD))
        files = {
            "predictions.json": final.predictions,
            "nbest_predictions.json": final.nbest,
            "null_odds.json": final.null_odds,
        }
        written = []
        for name, content in files.items():
            path = os.path.join(output_dir, name)
            if content:
                write_json(path, content)
                written.append(path)
            else:
                remove_path(path)  # It belongs to the answers of an earlier call.
        return written, {"test_questions": len(final.predictions)}
