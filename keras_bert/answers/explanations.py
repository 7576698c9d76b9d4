"""Explains a classifier's answer by the share that each word of the text has in it.

The explained number is a regressor's score, or a label's log-odds, log(p / (1 - p)). A word's share is that
number minus the one of the text without the word's tokens.

Shapes: B texts, S sequence, N words of all texts, C classes.
"""

import contextlib
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from keras_bert.answers.base import Answers, gives_logits
from keras_bert.answers.pieces import outputs_in_pieces
from keras_bert.answers.raw_words import find_words
from keras_bert.answers.rules import SPECIAL_TOKENS
from keras_bert.answers.sequence import LabelSetAnswers, SequenceAnswers
from keras_bert.answers.source_text import SourceText, cut_texts
from keras_bert.answers.tables import Table
from keras_bert.answers.text_bounds import most_bytes

Tensors = Mapping[str, tf.Tensor]


class Explanations(Answers):
    """Lists the words of each text, or pair of texts, with their shares in the answer; words as in `WordAnswers`.

    Words beyond the tokens that the model reads are not listed. The model reads one more sequence for each word.

    Args:
        answers: the answers to explain, of a classifier or regressor.
        label: int, the class to explain; None: the most probable one of each text.
    """

    def __init__(self, answers: SequenceAnswers, label: int | None = None):
        super().__init__(answers.model, answers.preprocessor)
        self.answers, self.label = answers, label
        self.labels = getattr(answers, "labels", None)
        activation = keras.activations.sigmoid if isinstance(answers, LabelSetAnswers) else keras.activations.softmax
        self._activation = activation if self.labels and not gives_logits(answers.model, activation) else None
        self.text_inputs = answers.text_inputs
        paddings = {"words": "", "starts": -1, "ends": -1, "shares": 0.0}
        self.padding = {"count": "num_words", "values": paddings | ({"texts": -1} if len(self.text_inputs) > 1 else {})}

    def answer_texts(self, model, texts):
        return self.explain(model, lambda encoded: outputs_in_pieces(model, encoded), texts)

    def explain(self, model: keras.Model, run: Callable[[Tensors], tf.Tensor], texts: Tensors) -> dict[str, tf.Tensor]:
        """Builds the graph to the explanations.

        Args:
            model: the model that `run` runs.
            run: maps the encoder's inputs to the model's outputs, float32 [..., C].
            texts: `text_inputs` by name.
        """
        encoded = self.answers.encode_in_graph(texts)
        columns = self._find_words(texts, encoded)
        num_texts = tf.shape(encoded["token_ids"])[0]
        with contextlib.ExitStack() as stack:
            if self._activation:  # Near 1, a float32 probability is too coarse for log-odds.
                stack.callback(setattr, model.layers[-1], "activation", self._activation)
                model.layers[-1].activation = keras.activations.linear
            outputs = run(_with_words_left_out(encoded, columns))  # [B + N, C]
            label = tf.argmax(outputs[:num_texts], axis=-1, output_type=tf.int32)
            if self.label is not None:
                label = tf.fill([num_texts], self.label)
            scores = tf.gather(self._explained(outputs[:num_texts], label), columns["rows"])
            columns["shares"] = scores - self._explained(outputs[num_texts:], tf.gather(label, columns["rows"]))
        table = Table(columns["rows"], tf.cast(num_texts, tf.int64))
        padded = {name: table(columns[name], padding) for name, padding in self.padding["values"].items()}
        (output,) = self.answers.token_outputs.values()
        outputs = self._activation(outputs) if self._activation else outputs
        named, score = {}, output.of(outputs[:num_texts], encoded["padding_mask"])
        if self.labels:
            named, score = {"label": tf.gather(tf.constant(self.labels), label)}, tf.gather(score, label, batch_dims=1)
        return {**named, "score": score, **padded, self.padding["count"]: table.counts}

    def _explained(self, outputs: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """Returns the scores or log-odds to explain: outputs [B, C] and classes int32 [B] to float32 [B]."""
        if not self.labels:
            return outputs[:, 0]
        logits = outputs / getattr(self.answers, "temperature", 1.0)
        chosen = tf.gather(logits, label, batch_dims=1)
        if isinstance(self.answers, LabelSetAnswers):
            return chosen
        is_label = tf.one_hot(label, len(self.labels), True, False, dtype=tf.bool)
        return chosen - tf.reduce_logsumexp(tf.where(is_label, -1e9, logits), axis=-1)

    def _find_words(self, texts: Tensors, encoded: Tensors) -> dict[str, tf.Tensor]:
        """Finds the words that the model reads, text after text.

        Returns:
            The columns to list, and three of int64 [N]: `rows`, the index of each word's text; `firsts` and `limits`,
            the position of its first token in the sequence, and the position after its last.
        """
        tokenizer, longest = self.preprocessor.tokenizer, self.preprocessor.sequence_length
        # The positions of [CLS], of the [SEP] after the first text, and of the last [SEP]: int64 [B] each.
        last = tf.cast(tf.reduce_sum(encoded["padding_mask"], axis=1) - 1, tf.int64)
        limits = [tf.zeros_like(last), last - tf.cast(tf.reduce_sum(encoded["segment_ids"], axis=1), tf.int64), last]
        listed = []
        for number, (text, begin, limit) in enumerate(zip(texts.values(), limits, limits[1:], strict=False)):
            source = SourceText(text, tokenizer, longest - SPECIAL_TOKENS, most_bytes(longest))
            words = find_words(source, tokenizer.lowercase)
            shifts = tf.gather(begin + 1 - source.token_splits[:-1], words.rows)
            after = tf.concat([words.firsts[1:], [tf.size(source.token_ids, tf.int64)]], axis=0)
            columns = {
                "rows": words.rows,
                "firsts": words.firsts + shifts,
                "limits": tf.minimum(after + shifts, tf.gather(limit, words.rows)),
                "words": cut_texts(source.codes, words.starts, words.ends),
                "starts": source.offsets(words.starts, words.rows),
                "ends": source.offsets(words.ends, words.rows),
                "texts": tf.fill(tf.shape(words.rows), number),
            }
            is_read = columns["firsts"] < columns["limits"]
            listed.append({name: tf.boolean_mask(column, is_read) for name, column in columns.items()})
        joined = {name: tf.concat([columns[name] for columns in listed], axis=0) for name in listed[0]}
        order = tf.argsort(joined["rows"], stable=True)
        return {name: tf.gather(column, order) for name, column in joined.items()}


def _with_words_left_out(encoded: Tensors, words: Tensors) -> dict[str, tf.Tensor]:
    """Returns the texts' sequences, int32 [B, S], and after them one without each word's tokens: [B + N, S]."""
    rows = {name: tf.gather(values, words["rows"]) for name, values in encoded.items()}
    position = tf.range(tf.shape(encoded["token_ids"])[1])
    first, limit = (tf.cast(words[name], tf.int32)[:, tf.newaxis] for name in ("firsts", "limits"))
    source = position + tf.where(position >= first, limit - first, 0)
    is_real = source < tf.reduce_sum(rows["padding_mask"], axis=1, keepdims=True)
    source = tf.where(is_real, source, 0)  # Past the end, the mask is 0 and values do not matter.
    rows = {name: tf.gather(values, source, batch_dims=1) for name, values in rows.items()}
    rows["padding_mask"] = tf.cast(is_real, tf.int32)
    return {name: tf.concat([values, rows[name]], axis=0) for name, values in encoded.items()}
