"""Answers questions about contexts of any length.

Shapes: B questions, W windows, S sequence, L answers listed.
"""

import keras
import tensorflow as tf

from keras_bert.answers import nbest, text_bounds
from keras_bert.answers.base import TokenOutput
from keras_bert.answers.source_text import BYTES_PER_TOKEN
from keras_bert.answers.windowed import WindowedAnswers
from keras_bert.tokenization.preprocessor import BertPreprocessor, after

_SPECIAL_TOKENS = 3
MASKED_LOGIT = -10000.0  # Padding of the outputs of `token_ids`.
# Outputs of the answer that is given, and of all that are listed.
_BEST = ("answer", "start", "end", "score")
_LISTED = ("nbest_answers", "nbest_starts", "nbest_ends", "nbest_probabilities")


class SpanAnswers(WindowedAnswers):
    """Answers to questions, the same as those of `tasks.squad`.

    The graph cuts contexts into windows, runs the encoder on the windows of the whole batch, and chooses each answer
    among the candidates of all its windows.

    Args:
        model: encoder inputs to logits [B, S, 2].
        preprocessor: gives the tokenizer and the longest sequence: question, piece of the context, special tokens.
        doc_stride, max_tokens: see `WindowedAnswers`.
        max_query_length: int, largest number of tokens of a question that are read.
        **choice: fields of `nbest.Choice`.

    Raises:
        ValueError: the settings do not fit together.
    """

    trained_settings = (
        *("doc_stride", "n_best_size", "max_answer_length", "null_score_diff_threshold"),
        *("max_query_length", "version_2_with_negative"),
    )
    text_inputs = {"question": (), "context": ()}
    token_outputs = {
        "start_logits": TokenOutput(("sequence",), column=0, padding=MASKED_LOGIT),
        "end_logits": TokenOutput(("sequence",), column=1, padding=MASKED_LOGIT),
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
        self.choice = nbest.Choice(**choice)
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

    @property
    def question_bytes(self) -> int:
        """Number of bytes of a question that are read."""
        return BYTES_PER_TOKEN * self.preprocessor.sequence_length

    def read(self, question: tf.Tensor, context: tf.Tensor):
        """Reads questions and their contexts, string [B] both, in windows, in the graph; returns what `lay_out` does.

        Raises:
            tf.errors.InvalidArgumentError: there are more questions than contexts, or fewer.
        """
        tokenizer, num_rows = self.preprocessor.tokenizer, tf.size(question)
        check = tf.debugging.Assert(
            num_rows == tf.size(context),
            ["`question` and `context` must be equally many. Received:", num_rows, tf.size(context)],
        )
        # Bounded like a context, since one endless word costs more than many short ones.
        question = tf.strings.substr(after(check, question), 0, self.question_bytes)
        question = text_bounds.bound_texts(question, tokenizer, self.max_query_length)
        queries = tokenizer.tokenize(question)[:, : self.max_query_length]
        rooms = self.preprocessor.sequence_length - _SPECIAL_TOKENS - queries.row_lengths()
        return self.lay_out(context, rooms, queries)

    def answer_by(self, logits_of, question, context):
        # Imported here, since it needs tensorflow-text, which not every machine has.
        from keras_bert.answers.projection import Projection

        num_rows = tf.size(question, tf.int64)
        source, windows, layout = self.read(question, context)
        logits = logits_of(layout.inputs)
        projection = Projection(source, self.preprocessor.tokenizer)
        chosen = self.choice.answer(windows, layout, logits, projection, num_rows)
        return self._outputs(*chosen, projection, source)

    def _outputs(self, listed, place, null_odds, projection, source) -> dict[str, tf.Tensor]:
        starts, ends = projection.characters(listed.begins, listed.ends)
        shifts = source.row_splits[:-1, tf.newaxis]
        starts, ends = (tf.where(listed.begins < 0, -1, tf.cast(at - shifts, tf.int32)) for at in (starts, ends))
        columns = (listed.texts, starts, ends, tf.cast(tf.nn.softmax(listed.scores), tf.float32))
        best = {name: tf.gather(column, place, batch_dims=1) for name, column in zip(_BEST, columns, strict=True)}
        every = dict(zip(_LISTED, columns, strict=True))
        return {**best, **every, "null_score": tf.cast(null_odds, tf.float32), "truncated": source.truncated}
