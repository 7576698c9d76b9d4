"""Question answering, as `bert-squad` trains it: a question and a context of any length in, the answer out.

Shapes: B questions, W windows, S sequence, L answers listed.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About, Answer, TokenOutput
from export.heads.windowed import WindowedHead
from export.verification import probes
from export.verification.verify import TOLERANCE, rounding_scale
from keras_bert.answers import nbest, text_bounds
from keras_bert.answers.projection import Projector
from keras_bert.answers.source_text import BYTES_PER_TOKEN, read_text
from keras_bert.answers.windows import pad_windows
from keras_bert.tokenization.preprocessor import BertPreprocessor
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.squad.answers import best_answers
from tasks.squad.data import Question
from tasks.squad.windows import make_windows

_SPECIAL_TOKENS = 3
_MASKED_LOGIT = -10000.0  # What `token_ids` answers beyond the lengths.
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
# Outputs of the answer that is given, and of all that are listed.
_BEST = ("answer", "start", "end", "score")
_LISTED = ("nbest_answers", "nbest_starts", "nbest_ends", "nbest_probabilities")


class QuestionAnswering(WindowedHead):
    """A question answerer. Its answers are those of `tasks.squad`, and are verified against that Python.

    The graph cuts contexts into windows, runs the encoder on those of the whole batch, and chooses each answer among
    all candidates of all windows.

    Args:
        model: encoder inputs to logits [B, S, 2].
        preprocessor: tokenizer and longest sequence: question, piece of the context, special tokens.
        doc_stride, max_tokens: see `WindowedHead`.
        max_query_length: int, tokens of a question at most.
        **choice: of `nbest.Settings`.

    Raises:
        ValueError: the settings do not fit together.
    """

    task = "question_answering"
    settings = ("doc_stride", "n_best_size", "max_answer_length", "null_score_diff_threshold", "max_tokens")
    trained_settings = (*settings[:-1], "max_query_length", "version_2_with_negative")
    text_inputs = {"question": (), "context": ()}
    token_outputs = {
        "start_logits": TokenOutput(("sequence",), column=0, padding=_MASKED_LOGIT),
        "end_logits": TokenOutput(("sequence",), column=1, padding=_MASKED_LOGIT),
    }

    def __init__(
        self,
        model: keras.Model,
        preprocessor: BertPreprocessor,
        *,
        doc_stride: int = 128,
        max_query_length: int = 64,
        max_tokens: int | None = None,
        **choice,
    ):
        super().__init__(model, preprocessor, doc_stride, max_tokens)
        self.max_query_length = max_query_length
        self.choice = nbest.Settings(**choice)
        lengths = {name: getattr(self.choice, name) for name in ("n_best_size", "max_answer_length")}
        self.check_positive(max_query_length=max_query_length, **lengths)
        least = max_query_length + _SPECIAL_TOKENS + 1
        if preprocessor.sequence_length < least:
            raise ValueError(
                f"`preprocessor.sequence_length` must be at least {least}, to leave room for the context beside a "
                f"question of max_query_length={max_query_length} tokens and {_SPECIAL_TOKENS} special ones. "
                f"Received: sequence_length={preprocessor.sequence_length}"
            )
        if model.output_shape[-1] != 2:
            raise ValueError(f"`model` must give 2 logits a token, start and end. Received: {model.output_shape[-1]}")

    # === Graph ===

    @property
    def question_bytes(self) -> int:
        """Number of bytes of a question that are read."""
        return BYTES_PER_TOKEN * self.preprocessor.sequence_length

    def answering(self, logits_of):
        tokenizer = self.preprocessor.tokenizer
        project = Projector(tokenizer)

        def answer(question, context):
            num_rows = tf.size(question, tf.int64)
            check = tf.debugging.Assert(
                num_rows == tf.size(context, tf.int64),
                ["`question` and `context` must be equally many. Received:", num_rows, tf.size(context)],
            )
            with tf.control_dependencies([check]):
                question = tf.identity(question)
            # Bounded like a context, since one endless word costs more than many short ones.
            question = tf.strings.substr(question, 0, self.question_bytes)
            question = text_bounds.bound_texts(question, tokenizer, self.max_query_length)
            queries = tokenizer.tokenize(question)[:, : self.max_query_length]
            rooms = self.preprocessor.sequence_length - _SPECIAL_TOKENS - queries.row_lengths()
            source, windows, layout = self.lay_out(context, rooms, queries)
            logits = logits_of(layout.inputs)
            projection = project(source)
            candidates, nulls = nbest.find_candidates(windows, layout, logits, projection, num_rows, self.choice)
            listed = nbest.list_answers(candidates, projection, num_rows, self.choice)
            return self._outputs(listed, *nbest.choose(listed, nulls, self.choice), projection, source)

        return answer

    def _outputs(self, listed, place, null_odds, projection, source) -> dict[str, tf.Tensor]:
        starts, ends = projection.characters(listed.begins, listed.ends)
        shifts = source.row_splits[:-1, tf.newaxis]
        starts, ends = (tf.where(listed.begins < 0, -1, tf.cast(at - shifts, tf.int32)) for at in (starts, ends))
        columns = (listed.texts, starts, ends, tf.cast(listed.probabilities, tf.float32))
        best = {name: tf.gather(column, place, batch_dims=1) for name, column in zip(_BEST, columns, strict=True)}
        every = dict(zip(_LISTED, columns, strict=True))
        return {**best, **every, "null_score": tf.cast(null_odds, tf.float32), "truncated": source.truncated}

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
        generator, given = np.random.default_rng(0), {}
        answer = self.answering(lambda encoded: given["logits"])

        def answers(scale):
            given["logits"] = tf.constant(logits + generator.uniform(-scale, scale, logits.shape).astype(np.float32))
            return probes.on_cpu(lambda columns: answer(**columns), dict(texts))

        right = answers(0.0)
        undecided = np.zeros(len(texts["question"]), bool)
        for _ in range(_NUM_SHAKES if len(undecided) else 0):
            shaken = answers(TOLERANCE * rounding_scale(logits))
            for name, values in right.items():
                if values.dtype.kind != "f":
                    undecided |= (values != shaken[name]).any(axis=tuple(range(1, values.ndim)))
        return right, undecided

    def _task_answers(self, encoded: Mapping[str, Any], logits: np.ndarray) -> dict[str, np.ndarray]:
        """Finds texts and scores of the answers as `bert-squad` does, from the logits of all tokens, float32 [T, 2]."""
        choice, count = self.choice, self.choice.num_listed
        answers = best_answers(encoded["questions"], encoded["windows"], *logits.T, **choice._asdict())
        lists = list(answers.nbest.values())
        texts = probes.padded([[entry["text"].encode() for entry in listed] for listed in lists], "", count)
        scores = probes.padded([[entry["probability"] for entry in listed] for listed in lists], 0.0, count)
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
                name: f"float (sequence): of each token, {_MASKED_LOGIT} beyond the lengths"
                for name in self.token_outputs
            },
            more={"version_2_with_negative": choice.version_2_with_negative},
        )
