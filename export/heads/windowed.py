"""Heads that read texts of any length in windows: the bases of question answering and of heads for words.

Shapes: W windows, S sequence, N words of all texts, C columns of the logits.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from export.verification import probes
from keras_bert.answers.entities import Entities
from keras_bert.answers.pieces import in_pieces
from keras_bert.answers.raw_words import WordFinder, Words
from keras_bert.answers.rules import SPECIAL_TOKENS, check_stride
from keras_bert.answers.source_text import BYTES_PER_TOKEN, SourceText, cut_texts
from keras_bert.answers.tables import Table
from keras_bert.answers.windows import best_cells, cut_windows, lay_out
from keras_bert.tokenization.preprocessor import BertPreprocessor

_DEFAULT_WINDOWS = 8
EXAMPLE = "Rollo, a Norse leader, was born in Norway and died in Rouen."


class WindowedHead(Head):
    """A head that cuts a long text into windows, each a sequence for the model; see `Head`.

    Attributes:
        doc_stride: int, tokens from the start of one window to that of the next.
        max_tokens: int, how many tokens of a text are read, and at most `BYTES_PER_TOKEN` times as many bytes; by
            default 8 times the longest sequence. The rest of the text has no influence on the answer.

    Raises:
        ValueError: `doc_stride` or `max_tokens` is below 1.
    """

    settings = ("doc_stride", "max_tokens")

    def __init__(self, model, preprocessor: BertPreprocessor, doc_stride: int, max_tokens: int | None = None):
        super().__init__(model, preprocessor)
        self.doc_stride = doc_stride
        self.max_tokens = _DEFAULT_WINDOWS * preprocessor.sequence_length if max_tokens is None else max_tokens
        self.check_positive(doc_stride=doc_stride, max_tokens=self.max_tokens)

    @staticmethod
    def check_positive(**settings: int) -> None:
        """Refuses settings below 1 with a `ValueError`."""
        for name, value in settings.items():
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")

    @property
    def read_part(self) -> str:
        """The limit on the part of a text that is read, in words."""
        return f"at most {self.max_tokens} tokens, and {BYTES_PER_TOKEN * self.max_tokens} bytes, are read"

    @abc.abstractmethod
    def answering(self, logits_of: Callable) -> Callable[..., dict[str, tf.Tensor]]:
        """Returns the function from `text_inputs`, string [B] by name, to the outputs of `serving_default`.

        Args:
            logits_of: the encoder's inputs, int32 [W, S], to logits, float [W, S, C].
        """

    def answer_texts(self, model, texts):
        def logits_of(encoded):
            return in_pieces(model, encoded, lambda outputs, _: {"logits": outputs})["logits"]

        return self.answering(logits_of)(**texts)

    def lay_out(self, texts: tf.Tensor, rooms, queries: tf.RaggedTensor | None = None):
        """Reads texts, string [B], in windows, in the graph.

        Args:
            texts: string [B].
            rooms: int64 [B] or scalar, tokens of a text that one of its windows holds.
            queries: int32 ragged [B, None], what stands before the text in each window; None: nothing does.

        Returns:
            (`SourceText`, `Windows`, `Layout`).
        """
        tokenizer = self.preprocessor.tokenizer
        source = SourceText(texts, tokenizer, self.max_tokens)
        tokens = tf.RaggedTensor.from_row_splits(source.token_ids, source.token_splits, validate=False)
        lengths = tokens.row_lengths()
        windows = cut_windows(lengths, tf.broadcast_to(tf.cast(rooms, tf.int64), tf.shape(lengths)), self.doc_stride)
        return source, windows, lay_out(windows, tokens, tokenizer, queries)

    def expected_tokens(self, model: keras.Model, encoded: Mapping[str, Any]) -> tuple[np.ndarray, dict]:
        """Runs the model on the windows of `encode`: its logits, float32 [W, S, C], and the answer of `token_ids`."""

        def run(inputs):
            logits = model(inputs, training=False)
            return logits, self.answer(logits, inputs)

        return probes.on_cpu(run, {name: encoded[name] for name in ("token_ids", "segment_ids", "padding_mask")})


class WordHead(WindowedHead):
    """A head with an answer for each word of a text.

    Words are separated by white space. The punctuation characters at both ends of a word are words of their own, and so
    is each CJK character (`keras_bert.answers.raw_words`). A word's logits are those of its first sub-token, in the
    window where that token has most context, as in `tasks.text.word_windows`. A served text has no other documents
    around it, even if the model was trained with such context.

    An answer lists spans of the text, words or entities, in their order, filled up to the longest list of the batch.

    Args:
        model: encoder inputs to logits [B, S, C].
        preprocessor: tokenizer and longest sequence, special tokens included.
        doc_stride: None: half of what a window holds.
        **settings: `max_tokens` of `WindowedHead`.

    Attributes:
        listed: class attribute, what an answer lists, such as "words"; it names the output of their texts.
        columns: class attribute, the outputs besides texts, starts and ends: name -> what fills up a list.
    """

    listed: str
    columns: Mapping[str, str | int | float]

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, doc_stride: int | None = None, **settings):
        super().__init__(model, preprocessor, check_stride(preprocessor.sequence_length, doc_stride), **settings)
        fillings = {self.listed: "", "starts": -1, "ends": -1, **self.columns}
        self.padding = {"count": f"num_{self.listed}", "values": fillings}

    @classmethod
    def load(cls, trained, sequence_length=None, **settings):
        if sequence_length is not None:  # A stride that fits the training's sequences may be too long for shorter ones.
            settings = {"doc_stride": None, **settings}
        return super().load(trained, sequence_length, **settings)

    # === What a task says ===

    @abc.abstractmethod
    def answer_words(self, words: Words, logits: tf.Tensor) -> tuple[Words | Entities, dict[str, tf.Tensor]]:
        """Builds the graph from words and their logits, float32 [N, C], to the spans listed, and their `columns`."""

    # === Graph ===

    def answering(self, logits_of):
        find = WordFinder(self.preprocessor.tokenizer.lowercase)

        def answer(text):
            source, windows, layout = self.lay_out(text, self.preprocessor.sequence_length - SPECIAL_TOKENS)
            words = find(source)
            cells = tf.gather(best_cells(windows, layout, tf.size(source.token_ids, tf.int64), 0.0), words.firsts)
            logits = logits_of(layout.inputs)
            logits = tf.gather(tf.reshape(logits, [-1, self.model.output_shape[-1]]), cells)  # [N, C]
            spans, columns = self.answer_words(words, logits)
            columns[self.listed] = cut_texts(source.codes, spans.starts, spans.ends)
            columns |= {name: source.offsets(getattr(spans, name), spans.rows) for name in ("starts", "ends")}
            table = Table(spans.rows, tf.size(source.texts, tf.int64))
            filled = {name: table(columns[name], filling) for name, filling in self.padding["values"].items()}
            return {**filled, self.padding["count"]: table.counts, "truncated": source.truncated}

        return answer

    # === Probes ===

    def probe_texts(self):
        return {"text": probes.as_bytes((EXAMPLE, *probes.TEXTS))}

    def encode(self, texts):
        """Encodes the windows of all texts by the eager path; `rows` has the text of each."""

        def lay_out_windows(text):
            _, windows, layout = self.lay_out(text, self.preprocessor.sequence_length - SPECIAL_TOKENS)
            return {**layout.inputs, "rows": windows.rows}

        return probes.on_cpu(lay_out_windows, texts["text"])

    def expected(self, model, texts, encoded):
        """Finds the right answers by the eager path.

        A window is undecided if rounding decides which logit of a token is the largest, and so is its text.
        """
        logits, by_token = self.expected_tokens(model, encoded)
        answer = probes.on_cpu(self.answering(lambda _: tf.constant(logits)), texts["text"])
        is_near = probes.undecided(probes.softmax(logits)) & (encoded["padding_mask"] == 1)  # [W, S]
        undecided = np.isin(np.arange(len(texts["text"])), encoded["rows"][is_near.any(axis=1)])
        return {
            signatures.SERVING_DEFAULT: (answer, undecided),
            signatures.TOKEN_IDS: (by_token, is_near.any(axis=1)),
        }
