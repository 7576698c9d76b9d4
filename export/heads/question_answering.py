"""Question answering: a question and a context of any length in, the answer out; what `bert-squad` trains.

Shapes: B questions, W windows, S sequence, L answers listed.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from export import serving, signatures
from export.graph import nbest
from export.graph.projection import Projector
from export.graph.source_text import BYTES_PER_TOKEN, read_texts
from export.graph.windows import cut_windows, lay_out
from export.heads import question_probes
from export.heads.base import Head
from export.verify import Probe
from keras_bert.preprocessor import BertPreprocessor
from tasks.squad.model import SETTINGS, QuestionAnswerer, load_question_answerer

TEXT_NAMES = ("question", "context")
_DEFAULTS = QuestionAnswerer._field_defaults
_SPECIAL_TOKENS = 3
_DEFAULT_WINDOWS = 8


class QuestionAnswering(Head):
    """A question answerer. The answers are those of `tasks.squad`, whose Python they are tested against.

    The windows over a context are cut in the graph, the encoder runs once on those of the whole batch, and the answers
    are chosen from all of them. There is no bound to the candidates that are looked at.

    Args:
        model: encoder inputs to logits [B, S, 2].
        preprocessor: tokenizer and longest sequence: question, piece of the context, special tokens.
        doc_stride, max_query_length, n_best_size, max_answer_length, null_score_diff_threshold,
            version_2_with_negative: as in `tasks.squad.model.QuestionAnswerer`.
        max_tokens: int, how many tokens of a context are read (and at most `BYTES_PER_TOKEN` times as many bytes);
            default: 8 times the longest sequence. The answers are those to the context up to there.

    Raises:
        ValueError: the settings do not fit together.
    """

    task = "question_answering"
    masked_logit = -10000.0  # What `token_ids` gives beyond the lengths.
    settings = ("doc_stride", "n_best_size", "max_answer_length", "null_score_diff_threshold", "max_tokens")

    def __init__(
        self,
        model: keras.Model,
        preprocessor: BertPreprocessor,
        *,
        doc_stride: int = _DEFAULTS["doc_stride"],
        max_query_length: int = _DEFAULTS["max_query_length"],
        n_best_size: int = _DEFAULTS["n_best_size"],
        max_answer_length: int = _DEFAULTS["max_answer_length"],
        null_score_diff_threshold: float = _DEFAULTS["null_score_diff_threshold"],
        version_2_with_negative: bool = _DEFAULTS["version_2_with_negative"],
        max_tokens: int | None = None,
    ):
        super().__init__(model, preprocessor)
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length
        self.max_tokens = _DEFAULT_WINDOWS * preprocessor.sequence_length if max_tokens is None else max_tokens
        self.choice = nbest.Settings(
            n_best_size, max_answer_length, version_2_with_negative, float(null_score_diff_threshold)
        )
        self._check()

    def _check(self) -> None:
        for name in ("doc_stride", "max_query_length", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={getattr(self, name)}")
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self.choice, name) < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={getattr(self.choice, name)}")
        least = self.max_query_length + _SPECIAL_TOKENS + 1
        if self.preprocessor.sequence_length < least:
            raise ValueError(
                f"`preprocessor.sequence_length` must be at least {least}, to leave room for the context beside a "
                f"question of max_query_length={self.max_query_length} tokens and {_SPECIAL_TOKENS} special ones. "
                f"Received: sequence_length={self.preprocessor.sequence_length}"
            )
        if self.model.output_shape[-1] != 2:
            raise ValueError(
                f"`model` must give 2 logits a token, start and end. Received: {self.model.output_shape[-1]}"
            )

    @classmethod
    def load(cls, directory: str, sequence_length: int | None = None, **settings) -> "QuestionAnswering":
        answerer = load_question_answerer(directory)
        own = {name: getattr(answerer, name) for name in SETTINGS if name != "sequence_length"}
        preprocessor = BertPreprocessor(answerer.tokenizer, sequence_length or answerer.sequence_length)
        return cls(answerer.model, preprocessor, **{**own, **settings})

    # === The graph ===

    @property
    def question_bytes(self) -> int:
        """How many bytes of a question are read."""
        return BYTES_PER_TOKEN * self.preprocessor.sequence_length

    def functions(self, model: keras.Model) -> dict[str, tf.types.experimental.ConcreteFunction]:
        backbone = serving.find_backbone(model)
        answer = self.answering(lambda encoded: model(encoded, training=False))

        def from_token_ids(**ids):
            encoded = serving.encoder_inputs(backbone, **ids)
            logits = tf.cast(model(encoded, training=False), tf.float32)
            logits = tf.where(encoded["padding_mask"][:, :, tf.newaxis] == 1, logits, self.masked_logit)
            return {"start_logits": logits[:, :, 0], "end_logits": logits[:, :, 1]}

        return {
            signatures.SERVING_DEFAULT: serving.trace(answer, signatures.text_specs(*TEXT_NAMES)),
            signatures.TOKEN_IDS: serving.trace(from_token_ids, signatures.token_specs()),
        }

    def answering(self, logits_of: Callable) -> Callable[..., dict[str, tf.Tensor]]:
        """Returns what answers: `question`, `context`, string [B], to the outputs of `serving_default`.

        Args:
            logits_of: the encoder's inputs, int32 [W, S], to logits, float32 [W, S, 2].
        """
        tokenizer = self.preprocessor.tokenizer
        project = Projector(tokenizer)

        def answer(question, context):
            num_rows = tf.size(question, tf.int64)
            check = tf.debugging.Assert(
                num_rows == tf.size(context, tf.int64),
                ["`question` and `context` must be equally many. Received:", num_rows, tf.size(context)],
            )
            with tf.control_dependencies([check] if check is not None else []):
                question = tf.identity(question)
            # Read to a bound as a context is, since one endless word costs more than many short ones.
            question = tf.strings.substr(question, 0, self.question_bytes)
            question = serving.bound_texts(question, tokenizer, self.max_query_length)
            queries = tokenizer.tokenize(question)[:, : self.max_query_length]
            source = read_texts(context, tokenizer, self.max_tokens)
            tokens = tf.RaggedTensor.from_row_splits(source.token_ids, source.token_splits, validate=False)
            rooms = self.preprocessor.sequence_length - _SPECIAL_TOKENS - queries.row_lengths()
            windows = cut_windows(tokens.row_lengths(), rooms, self.doc_stride)
            layout = lay_out(windows, tokens, tokenizer, queries)
            logits = logits_of(layout.inputs)
            projection = project(source)
            candidates, nulls = nbest.find_candidates(windows, layout, logits, projection, num_rows, self.choice)
            listed = nbest.list_answers(candidates, projection, num_rows, self.choice)
            return self._outputs(listed, nbest.choose(listed, nulls, self.choice), projection, source)

        return answer

    def _outputs(self, listed, answer, projection, source) -> dict[str, tf.Tensor]:
        starts, ends = projection.characters(listed.begins, listed.ends)
        shifts = source.row_splits[:-1, tf.newaxis]
        starts, ends = (tf.where(listed.begins < 0, -1, tf.cast(at - shifts, tf.int32)) for at in (starts, ends))

        def given(column):
            return tf.gather(column, answer.place, batch_dims=1)

        probabilities = tf.cast(listed.probabilities, tf.float32)
        return {
            "answer": given(listed.texts),
            "start": given(starts),
            "end": given(ends),
            "score": given(probabilities),
            "null_score": tf.cast(answer.null_odds, tf.float32),
            "truncated": source.truncated,
            "nbest_answers": listed.texts,
            "nbest_probabilities": probabilities,
            "nbest_starts": starts,
            "nbest_ends": ends,
        }

    # === Probes and descriptions ===

    def probes(self, model: keras.Model) -> list[Probe]:
        return question_probes.make_probes(self, model)

    def warmup(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        return question_probes.small_requests(self)

    def description(self) -> dict:
        choice, rows = self.choice, {"question": question_probes.QUESTION, "context": question_probes.CONTEXT}
        none = '; "" for none' if choice.version_2_with_negative else ""
        listed = f"({choice.num_listed}): "
        return self.describe(
            "Question answering",
            "Finds the answer to a question in a text of any length.",
            {
                signatures.SERVING_DEFAULT: (
                    {
                        "question": f"string: at most {self.max_query_length} tokens of it, and "
                        f"{self.question_bytes} bytes, are read",
                        "context": f"string: the text that holds the answer, any bytes; at most {self.max_tokens} "
                        f"tokens, and {BYTES_PER_TOKEN * self.max_tokens} bytes, are read",
                    },
                    {
                        "answer": f"string: part of the context, with one blank between words{none}",
                        "start": "int32: the character of the context at which it starts; -1 for no answer",
                        "end": "int32: the character after its last; -1 for no answer",
                        "score": "float: its probability among those listed",
                        "null_score": 'float: how much higher than the best answer [CLS], "no answer", is scored'
                        + (f"; above {choice.null_score_diff_threshold} none is given" if none else ""),
                        "truncated": "bool: whether some of the context was not read",
                        "nbest_answers": f'string {listed}the best answers, then ""',
                        "nbest_probabilities": f"float {listed}theirs, then 0.0",
                        "nbest_starts": f"int32 {listed}characters as `start`, then -1",
                        "nbest_ends": f"int32 {listed}characters as `end`, then -1",
                    },
                ),
                signatures.TOKEN_IDS: (
                    signatures.TOKEN_INPUTS,
                    {
                        name: f"float (length): of each token, {self.masked_logit} beyond the lengths"
                        for name in ("start_logits", "end_logits")
                    },
                ),
            },
            [rows],
            version_2_with_negative=choice.version_2_with_negative,
        )
