"""Explains a classifier's answer by the share that each word of the text has in it.

The explained number is a regressor's score, or a label's log-odds, log(p / (1 - p)). A word's share is what the word
adds to that number.

Shapes: B texts, S sequence, N words of all texts, C classes, K steps of an integral, T rows (see packing.py), H hidden.
"""

import abc
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bert.answers.base import Answers, gives_logits
from keras_bert.answers.pieces import in_pieces, outputs_in_pieces
from keras_bert.answers.raw_words import find_words
from keras_bert.answers.rules import SPECIAL_TOKENS
from keras_bert.answers.sequence import LabelSetAnswers, SequenceAnswers
from keras_bert.answers.source_text import SourceText, cut_texts
from keras_bert.answers.tables import Table
from keras_bert.answers.text_bounds import find_backbone, most_bytes
from keras_bert.encoder.packing import as_layout

_STEPS = 24  # Nodes of the Gauss-Legendre quadrature on the path from the baseline.

Tensors = Mapping[str, tf.Tensor]


class Places(NamedTuple):
    """The positions of words in the sequences that the model reads, int64 [N] each.

    Attributes:
        rows: index of each word's text.
        firsts, limits: position of each word's first token, and the position after its last.
    """

    rows: tf.Tensor
    firsts: tf.Tensor
    limits: tf.Tensor


class Explanations(Answers):
    """Lists the words of each text, or pair of texts, with their shares in the answer; words as in `WordAnswers`.

    Words beyond the tokens that the model reads are not listed.

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

    @abc.abstractmethod
    def shares(self, outputs: tf.Tensor, encoded: Tensors, label: tf.Tensor, places: Places) -> tf.Tensor:
        """Builds the graph to the shares, float32 [N].

        Args:
            outputs: float32, the logits or scores of the sequences that `sequences` returned.
            encoded: the encoder's inputs, int32 [B, S].
            label: int32 [B], classes.
            places: positions of the words.
        """

    def sequences(self, encoded: Tensors, places: Places) -> Tensors:
        """Returns the sequences to run the model on, int32 [B or more, S]: those of the texts come first."""
        return encoded

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
        places, columns = self._find_words(texts, encoded)
        num_texts = tf.shape(encoded["token_ids"])[0]
        with contextlib.ExitStack() as stack:
            if self._activation:  # Near 1, a float32 probability is too coarse for log-odds.
                stack.callback(setattr, model.layers[-1], "activation", self._activation)
                model.layers[-1].activation = keras.activations.linear
            outputs = run(self.sequences(encoded, places))
            label = tf.argmax(outputs[:num_texts], axis=-1, output_type=tf.int32)
            if self.label is not None:
                label = tf.fill([num_texts], self.label)
            columns["shares"] = self.shares(outputs, encoded, label, places)
        table = Table(places.rows, tf.cast(num_texts, tf.int64))
        padded = {name: table(columns[name], padding) for name, padding in self.padding["values"].items()}
        (output,) = self.answers.token_outputs.values()
        outputs = self._activation(outputs) if self._activation else outputs
        named, score = {}, output.of(outputs[:num_texts], encoded["padding_mask"])
        if self.labels:
            named, score = {"label": tf.gather(tf.constant(self.labels), label)}, tf.gather(score, label, batch_dims=1)
        return {**named, "score": score, **padded, self.padding["count"]: table.counts}

    def explained(self, outputs: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        """Returns the scores or log-odds to explain: outputs [B, C] and classes int32 [B] to float32 [B]."""
        if not self.labels:
            return outputs[:, 0]
        logits = outputs / getattr(self.answers, "temperature", 1.0)
        chosen = tf.gather(logits, label, batch_dims=1)
        if isinstance(self.answers, LabelSetAnswers):
            return chosen
        is_label = tf.one_hot(label, len(self.labels), True, False, dtype=tf.bool)
        return chosen - tf.reduce_logsumexp(tf.where(is_label, -1e9, logits), axis=-1)

    def _find_words(self, texts: Tensors, encoded: Tensors) -> tuple[Places, dict[str, tf.Tensor]]:
        """Returns the positions of the words that the model reads, text after text, and the columns listed for them."""
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
        joined = {name: tf.gather(column, order) for name, column in joined.items()}
        return Places(*(joined.pop(name) for name in Places._fields)), joined


class LeaveOutExplanations(Explanations):
    """A word's share is the score of the text minus that of the text without the word's tokens.

    The model reads one more sequence for each word. No gradients are needed.
    """

    def sequences(self, encoded, places):
        rows = {name: tf.gather(values, places.rows) for name, values in encoded.items()}
        position = tf.range(tf.shape(encoded["token_ids"])[1])
        first, limit = (tf.cast(column, tf.int32)[:, tf.newaxis] for column in places[1:])
        source = position + tf.where(position >= first, limit - first, 0)
        is_real = source < tf.reduce_sum(rows["padding_mask"], axis=1, keepdims=True)
        source = tf.where(is_real, source, 0)  # Past the end, the mask is 0 and values do not matter.
        rows = {name: tf.gather(values, source, batch_dims=1) for name, values in rows.items()}
        rows["padding_mask"] = tf.cast(is_real, tf.int32)
        return {name: tf.concat([values, rows[name]], axis=0) for name, values in encoded.items()}

    def shares(self, outputs, encoded, label, places):
        num_texts = tf.size(label)
        scores = tf.gather(self.explained(outputs[:num_texts], label), places.rows)
        return scores - self.explained(outputs[num_texts:], tf.gather(label, places.rows))


class GradientExplanations(Explanations):
    """Integrated gradients (Sundararajan et al., arXiv:1703.01365, equation 1) of the embeddings' output.

    The baseline is the text with every token but [CLS] and [SEP] replaced by [PAD]. The shares of a text's words sum to
    its score minus the baseline's, up to the error of the quadrature.
    """

    def shares(self, outputs, encoded, label, places):
        backbone = find_backbone(self.model)
        embed, layout_of = backbone.get_layer("embeddings"), backbone.get_layer("token_layout")
        encode = keras.Model([embed.output, backbone.input["padding_mask"]], backbone.output)
        nodes, weights = np.polynomial.legendre.leggauss(_STEPS)

        def add_gradients(_, rows):
            mask = rows["padding_mask"]
            layout = as_layout(layout_of(mask))
            ids = (rows["token_ids"], self._baseline(rows["token_ids"]))
            text, baseline = (embed(tokens, segment_ids=rows["segment_ids"], layout=layout) for tokens in ids)  # [T, H]
            step = layout.flatten(tf.cast(rows["step"] * tf.ones_like(mask, tf.float32), text.dtype))[:, tf.newaxis]
            point = baseline + step * (text - baseline)
            with tf.GradientTape() as tape:
                tape.watch(point)
                score = self.explained(self._classify(encode([point, mask]), mask), rows["label"][:, 0])
            products = tape.gradient(score, point) * (text - baseline)
            return {"shares": layout.restore(tf.reduce_sum(tf.cast(products, tf.float32), -1, keepdims=True))[..., 0]}

        steps = {name: tf.repeat(values, _STEPS, axis=0) for name, values in encoded.items()}
        steps["label"] = tf.repeat(label, _STEPS)[:, tf.newaxis]
        steps["step"] = tf.tile(tf.constant((nodes + 1) / 2, tf.float32), tf.shape(label))[:, tf.newaxis]
        shares = in_pieces(self.model, steps, add_gradients, num_kept=backbone.num_layers)["shares"]  # [B * K, S]
        shape = tf.shape(encoded["token_ids"])
        shares = tf.reshape(shares, [shape[0], _STEPS, shape[1]])
        shares = tf.tensordot(tf.constant(weights / 2, tf.float32), shares, [[0], [1]])
        sums = tf.pad(tf.cumsum(shares, axis=1), [[0, 0], [1, 0]])
        first, limit = (tf.gather_nd(sums, tf.stack([places.rows, column], axis=1)) for column in places[1:])
        return limit - first

    def _baseline(self, token_ids: tf.Tensor) -> tf.Tensor:
        tokenizer = self.preprocessor.tokenizer
        is_special = (token_ids == tokenizer.cls_token_id) | (token_ids == tokenizer.sep_token_id)
        return tf.where(is_special, token_ids, tokenizer.pad_token_id)

    def _classify(self, outputs, padding_mask):
        states = outputs["pooled_output"]
        if self.model.pooling is not None:
            states = self.model.get_layer("pool_tokens")(outputs["sequence_output"], padding_mask)
        return self.model.get_layer(self.model.heads[0])(states)


METHODS = {"integrated_gradients": GradientExplanations, "leave_out": LeaveOutExplanations}
