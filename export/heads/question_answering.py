"""Question answering, as `bert-squad` trains it, from a question and a context of any length to the answer.

Shapes: T tokens of all windows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About, Answer
from export.heads.windowed import WindowedHead
from export.verification import probes
from export.verification.verify import TOLERANCE, rounding_scale
from keras_bert.answers.question_answering import MASKED_LOGIT, SpanAnswers
from keras_bert.answers.source_text import read_text
from keras_bert.answers.windows import pad_windows
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.squad.answers import best_answers
from tasks.squad.data import Question
from tasks.squad.windows import make_windows

QUESTION = "In what country is Normandy located?"
CONTEXT = (
    "The Normans (Norman: Nourmands; French: Normands) were the people who in the 10th and 11th centuries gave their "
    "name to Normandy, a region in France. They were descended from Norse raiders and pirates from Denmark, Iceland "
    "and Norway who, under their leader Rollo, agreed to swear fealty to King Charles III of West Francia."
)
_PAIRS = (
    (QUESTION, CONTEXT),
    ("", ""),
    ("Who?", " \x00\u200b\t"),
    ("What what what", "again and again and again, (again) and AGAIN."),
    ("Où est né Ἀχιλλεύς?", "naïve CAFÉ: ΟΔΥΣΣΕΥΣ\u202fand cafe\u0301s  \u2603-led, isn't it?"),
    ("天气怎么样?", "今天天气很好,我们去公园吧。今天天气很好。"),
    (b"invalid \xff", b"invalid \xff\xfe UTF-8 \xe4\xb8 and U+FFFD: \xef\xbf\xbd."),
    ("x " * 5000, "x" * 300 + " behind one endless word, in Rouen"),
    (QUESTION, " ".join([CONTEXT] * 6)),
)
_NUM_SHAKES = 8


class QuestionAnswering(SpanAnswers, WindowedHead):
    """A question answerer; see `SpanAnswers`. Its answers are verified against the Python of `tasks.squad`."""

    task = "question_answering"
    settings = ("doc_stride", "n_best_size", "max_answer_length", "null_score_diff_threshold", "max_tokens")

    # === Probes ===

    def probe_texts(self):
        columns = zip(self.text_inputs, zip(*_PAIRS, strict=True), strict=True)
        return {name: probes.as_bytes(column) for name, column in columns}

    def encode(self, texts):
        """Reads questions as the task's Python does; `questions` and `windows` come along."""
        tokenizer, questions = PythonBertTokenizer.of(self.preprocessor.tokenizer), []
        for number, (question, context) in enumerate(zip(texts["question"], texts["context"], strict=True)):
            question = question[: self.question_bytes].decode("utf-8", "ignore")
            context, _ = read_text(context, tokenizer, self.max_tokens)
            questions.append(Question(str(number), question, context, [], False, ""))
        sizes = (self.preprocessor.sequence_length, self.doc_stride, self.max_query_length)
        windows = make_windows(questions, tokenizer, *sizes, with_answers=False, description=None)
        examples = windows.examples
        rows = pad_windows(examples.row_splits, token_ids=examples.token_ids, segment_ids=examples.segment_ids)
        return {**rows, "questions": questions, "windows": windows}

    def expected(self, model, texts, encoded):
        """Finds the right answers: texts and scores by `tasks.squad`, places by the graph's eager path.

        A question is undecided if its texts or places depend on rounding.
        """
        logits, by_token = self.expected_tokens(model, encoded)
        places, undecided = self._eager_answers(texts, logits)
        answers = places | self._task_answers(encoded, logits[encoded["padding_mask"] == 1])
        return {signatures.SERVING_DEFAULT: (answers, undecided), signatures.TOKEN_IDS: (by_token, None)}

    def _eager_answers(self, texts: Mapping[str, np.ndarray], logits: np.ndarray) -> Answer:
        """Answers by the eager path; an answer is undecided if it changes as the logits are shaken a little."""
        answer = self.answering(lambda encoded: given["logits"])
        given = {"logits": tf.constant(logits)}
        right, count = probes.on_cpu(lambda columns: answer(**columns), dict(texts)), len(texts["question"])
        if not count:
            return right, np.zeros(0, bool)
        scale, many = TOLERANCE * rounding_scale(logits), np.tile(logits, (_NUM_SHAKES, 1, 1))
        many += np.random.default_rng(0).uniform(-scale, scale, many.shape).astype(np.float32)
        given["logits"] = tf.constant(many)
        repeated = {name: np.tile(column, _NUM_SHAKES) for name, column in texts.items()}
        shaken, undecided = probes.on_cpu(lambda columns: answer(**columns), repeated), np.zeros(count, bool)
        for name, values in right.items():
            if values.dtype.kind != "f":
                differs = shaken[name].reshape(_NUM_SHAKES, *values.shape) != values
                undecided |= differs.any(axis=(0, *range(2, differs.ndim)))
        return right, undecided

    def _task_answers(self, encoded: Mapping[str, Any], logits: np.ndarray) -> dict[str, np.ndarray]:
        """Finds texts and scores of the answers as `bert-squad` does, from the logits of all tokens, float32 [T, 2]."""
        choice, count = self.choice, self.choice.num_listed
        answers = best_answers(encoded["questions"], encoded["windows"], *logits.T, **choice._asdict())
        lists = list(answers.nbest.values())
        texts = _padded([[entry["text"].encode() for entry in listed] for listed in lists], b"", count)
        scores = _padded([[entry["probability"] for entry in listed] for listed in lists], 0.0, count)
        given = probes.as_bytes(list(answers.predictions.values()))
        outputs = {
            "answer": given,
            "score": np.where(texts == given[:, np.newaxis], scores, 0.0).max(axis=1, initial=0.0),
            "nbest_answers": texts,
            "nbest_probabilities": scores,
        }
        if answers.null_odds:
            outputs["null_score"] = np.array(list(answers.null_odds.values()), np.float32)
        return outputs

    # === Description ===

    def about(self):
        choice = self.choice
        none = '; "" for none' if choice.version_2_with_negative else ""
        threshold = f"; above {choice.null_score_diff_threshold} none is given" if none else ""
        listed = f"({choice.num_listed}): "
        query_part = f"at most {self.max_query_length} tokens of it, and {self.question_bytes} bytes, are read"
        return About(
            "Question answering",
            "Finds the answer to a question in a text of any length.",
            [{"question": QUESTION, "context": CONTEXT}],
            {
                "question": f"string: {query_part}",
                "context": f"string: the text that holds the answer, any bytes; {self.read_part}",
            },
            {
                "answer": f"string: part of the context, with one blank between words{none}",
                "start": "int32: the character of the context at which it starts; -1 for no answer",
                "end": "int32: the character after its last; -1 for no answer",
                "score": "float: its probability among those listed",
                "null_score": f'float: how much higher [CLS], "no answer", is scored than the best answer{threshold}',
                "truncated": "bool: whether some of the context was not read",
                "nbest_answers": f'string {listed}the best answers, then ""',
                "nbest_probabilities": f"float {listed}theirs, then 0.0",
                "nbest_starts": f"int32 {listed}characters as `start`, then -1",
                "nbest_ends": f"int32 {listed}characters as `end`, then -1",
            },
            token_outputs={
                name: f"float (sequence): of each token, {MASKED_LOGIT} beyond the lengths"
                for name in self.token_outputs
            },
            more={"version_2_with_negative": choice.version_2_with_negative},
        )


def _padded(rows: list[list], fill: bytes | float, width: int) -> np.ndarray:
    """Returns lists of at most `width` values as one array of bytes objects or float32."""
    filled = [[*row, *[fill] * (width - len(row))] for row in rows]
    return np.array(filled, object if isinstance(fill, bytes) else np.float32).reshape(len(rows), width)
