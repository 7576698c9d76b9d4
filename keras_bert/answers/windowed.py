"""Answers to texts of any length, read in windows: their base class, and the answers for words and entities.

Shapes: W windows, S sequence, N words of all texts, C columns of the logits.
"""

import abc
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from keras_bert.answers.base import Answers, TokenOutput, gives_logits
from keras_bert.answers.entities import Entities, EntityFinder
from keras_bert.answers.pieces import outputs_in_pieces
from keras_bert.answers.raw_words import Words, find_words
from keras_bert.answers.rules import SPECIAL_TOKENS, check_stride
from keras_bert.answers.source_text import BYTES_PER_TOKEN, SourceText, cut_texts
from keras_bert.answers.tables import Table
from keras_bert.answers.windows import best_cells, cut_windows, lay_out
from keras_bert.tokenization.preprocessor import BertPreprocessor

_DEFAULT_WINDOWS = 8


class WindowedAnswers(Answers):
    """Answers to long texts, which are cut into windows, each a sequence for the model; see `Answers`.

    Attributes:
        doc_stride: int, tokens from the start of one window to that of the next.
        max_tokens: int, number of tokens of a text that are read, in at most `BYTES_PER_TOKEN` times as many bytes; by
            default 8 times the longest sequence. The rest of the text does not influence the answer.

    Raises:
        ValueError: `doc_stride` or `max_tokens` is below 1.
    """

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
        """Describes the part of a text that is read."""
        return f"at most {self.max_tokens} tokens, and {BYTES_PER_TOKEN * self.max_tokens} bytes, are read"

    @abc.abstractmethod
    def answer_by(self, logits_of: Callable, **texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the graph to the outputs of `serving_default`.

        Args:
            logits_of: maps the encoder's inputs, int32 [W, S], to logits, float [W, S, C].
            **texts: `text_inputs`, string [B], by name.
        """

    def answer_texts(self, model, texts):
        return self.answer_by(lambda encoded: outputs_in_pieces(model, encoded), **texts)

    def lay_out(self, texts: tf.Tensor, rooms, queries: tf.RaggedTensor | None = None):
        """Reads texts, string [B], in windows, in the graph.

        Args:
            texts: string [B].
            rooms: int [B] or scalar, number of a text's tokens that one window holds.
            queries: int32 ragged [B, None], tokens before the text in each window; None: there are none.

        Returns:
            (`SourceText`, `Windows`, `Layout`).
        """
        tokenizer = self.preprocessor.tokenizer
        source = SourceText(texts, tokenizer, self.max_tokens)
        tokens = tf.RaggedTensor.from_row_splits(source.token_ids, source.token_splits, validate=False)
        lengths = tokens.row_lengths()
        windows = cut_windows(lengths, tf.broadcast_to(tf.cast(rooms, tf.int64), tf.shape(lengths)), self.doc_stride)
        return source, windows, lay_out(windows, tokens, tokenizer, queries)


class WordAnswers(WindowedAnswers):
    """An answer for each word of a text.

    Words are separated by white space. The punctuation characters at both ends of a word are words of their own, and so
    is each CJK character (`keras_bert.answers.raw_words`). A word's logits are those of its first sub-token, in the
    window where that token has the most context, as in `tasks.text.word_windows`. A served text is read without other
    documents around it, even if the model was trained with such context.

    An answer lists spans of the text, words or entities, in their order, padded to the longest list of the batch.

    Args:
        model: encoder inputs to logits [B, S, C].
        preprocessor: gives the tokenizer and the longest sequence, special tokens included.
        doc_stride: see `WindowedAnswers`; None: half of what a window holds.
        **settings: `max_tokens` of `WindowedAnswers`.

    Attributes:
        listed: class attribute, what an answer lists, such as "words"; it names the output of their texts.
        columns: class attribute, the outputs besides texts, starts and ends: name -> padding value.
    """

    listed: str
    columns: Mapping[str, str | int | float]

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, doc_stride: int | None = None, **settings):
        super().__init__(model, preprocessor, check_stride(preprocessor.sequence_length, doc_stride), **settings)
        paddings = {self.listed: "", "starts": -1, "ends": -1, **self.columns}
        self.padding = {"count": f"num_{self.listed}", "values": paddings}

    @abc.abstractmethod
    def answer_words(self, words: Words, logits: tf.Tensor) -> tuple[Words | Entities, dict[str, tf.Tensor]]:
        """Builds the graph from words and their logits, float32 [N, C], to the listed spans and their `columns`."""

    def answer_by(self, logits_of, text):
        source, windows, layout = self.lay_out(text, self.preprocessor.sequence_length - SPECIAL_TOKENS)
        words = find_words(source, self.preprocessor.tokenizer.lowercase)
        cells = tf.gather(best_cells(windows, layout, tf.size(source.token_ids, tf.int64), 0.0), words.firsts)
        logits = tf.reshape(logits_of(layout.inputs), [-1, self.model.output_shape[-1]])
        spans, columns = self.answer_words(words, tf.gather(logits, cells))
        columns[self.listed] = cut_texts(source.codes, spans.starts, spans.ends)
        columns |= {name: source.offsets(getattr(spans, name), spans.rows) for name in ("starts", "ends")}
        table = Table(spans.rows, tf.size(source.texts, tf.int64))
        padded = {name: table(columns[name], padding) for name, padding in self.padding["values"].items()}
        return {**padded, self.padding["count"]: table.counts, "truncated": source.truncated}


class EntityAnswers(WordAnswers):
    """The entities of a text, read from the tags of its words; see `WordAnswers`.

    Args:
        model: encoder inputs to logits [B, S, C].
        preprocessor: see `WordAnswers`.
        labels: C tags, "O", B- or I- and a type, in the order of the logits.
        **settings: `doc_stride` and `max_tokens` of `WordAnswers`.

    Raises:
        ValueError: the arguments do not fit together.
    """

    listed = "entities"
    columns = {"types": "", "scores": 0.0}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, labels: Sequence[str], **settings):
        super().__init__(model, preprocessor, **settings)
        self.labels = list(labels)
        self.check_labels(self.labels)
        self.find_entities = EntityFinder(self.labels)
        is_logits = gives_logits(model)
        self.token_outputs = {"probabilities": TokenOutput(("sequence", "classes"), softmax=is_logits)}
        self._probabilities = tf.nn.softmax if is_logits else tf.identity

    def answer_words(self, words, logits):
        entities = self.find_entities(words, self._probabilities(logits))
        types = tf.gather(tf.constant(self.find_entities.types, tf.string), entities.types)
        return entities, {"types": types, "scores": entities.scores}

    def answer(self, outputs, encoded):
        probabilities = super().answer(outputs, encoded)["probabilities"]  # [B, S, C]
        is_token = encoded["padding_mask"] == 1
        tags = tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=-1))
        scores = tf.reduce_max(probabilities, axis=-1)
        return {"tags": tf.where(is_token, tags, ""), "scores": tf.where(is_token, scores, 0.0)}


class WordScoreAnswers(WordAnswers):
    """A number for each word of a text; see `WordAnswers`. The model returns one logit per token, [B, S, 1]."""

    listed = "words"
    columns = {"scores": 0.0}
    token_outputs = {"scores": TokenOutput(("sequence",), column=0, padding=0.0)}

    def answer_words(self, words, logits):
        return words, {"scores": logits[:, 0]}
