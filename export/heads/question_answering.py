"""Question answering, as `bert-squad` trains it, from a question and a context of any length to the answer."""

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About
from export.heads.windowed import WindowedHead
from export.verification import probes
from export.verification.verify import TOLERANCE, rounding_scale
from keras_bert.answers.question_answering import MASKED_LOGIT, SpanAnswers

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
    """A question answerer; see `SpanAnswers`."""

    task = "question_answering"
    settings = ("doc_stride", "n_best_size", "max_answer_length", "null_score_diff_threshold", "max_tokens")

    # === Probes ===

    def probe_texts(self):
        return dict(zip(self.text_inputs, map(probes.as_bytes, zip(*_PAIRS, strict=True)), strict=True))

    def encode(self, texts):
        """Encodes the windows of all questions eagerly."""
        return probes.on_cpu(lambda columns: self.read(**columns)[2].inputs, dict(texts))

    def expected(self, model, texts, encoded):
        """Computes the right answers eagerly.

        A question is undecided if small random changes of the logits change a text or a place.
        """
        logits, by_token = self.expected_tokens(model, encoded)

        def answer(logits, texts):
            return probes.on_cpu(lambda columns: self.answer_by(lambda _: tf.constant(logits), **columns), texts)

        right = answer(logits, dict(texts))
        scale, many = TOLERANCE * rounding_scale(logits), np.tile(logits, (_NUM_SHAKES, 1, 1))
        many += np.random.default_rng(0).uniform(-scale, scale, many.shape).astype(np.float32)
        shaken = answer(many, {name: np.tile(column, _NUM_SHAKES) for name, column in texts.items()})
        undecided = np.zeros(len(texts["question"]), bool)
        for name, values in right.items():
            if values.dtype.kind != "f":
                differs = shaken[name].reshape(_NUM_SHAKES, *values.shape) != values
                undecided |= differs.any(axis=(0, *range(2, differs.ndim)))
        return {signatures.SERVING_DEFAULT: (right, undecided), signatures.TOKEN_IDS: (by_token, None)}

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
                "nbest_probabilities": f"float {listed}their probabilities, then 0.0",
                "nbest_starts": f"int32 {listed}characters as `start`, then -1",
                "nbest_ends": f"int32 {listed}characters as `end`, then -1",
            },
            token_outputs={
                name: f"float (sequence): of each token, {MASKED_LOGIT} beyond the lengths"
                for name in self.token_outputs
            },
            more={"version_2_with_negative": choice.version_2_with_negative},
        )
