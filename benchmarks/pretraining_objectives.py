"""Sketches pre-training objectives that `bert-pretrain` does not have, for pretraining_recipe.py to measure.

`patched` puts one of `OBJECTIVES` into the stages of a pre-training. A stopped run cannot be resumed exactly.

B: batch, S: `max_seq_length`, P: `max_predictions_per_seq`, V: vocabulary.
"""

import contextlib
import dataclasses
import threading
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from keras_bert.encoder.backbone import RestoreRectangle
from keras_bert.encoder.encoder_layer import BertEncoderLayer
from keras_bert.models import BertPretrainer
from tasks.pretraining.data import masking
from tasks.pretraining.data.counter_random import random_bits
from tasks.pretraining.train import batches, dynamic_masking, stages
from tasks.pretraining.train.losses import PretrainingObjective
from tasks.pretraining.train.settings import PretrainingSettings

_LAST_SHARE = 0.15
_EMA_MOMENTUM = 0.995  # An average over the last 200 steps, a tenth of the training.
_REPLACED_WEIGHT = 50.0  # Clark et al. 2020, table 6.
_INTERVAL, _OLD_WEIGHT, _LOWEST_WEIGHT = 200, 0.2, 0.03  # As in the code of Edman & Fraser 2025.


@contextlib.contextmanager
def patched(objective: str | None, settings: PretrainingSettings):
    """Lets the stages of pre-training with these settings pursue one of `OBJECTIVES`; None changes nothing."""
    with contextlib.ExitStack() as stack:
        for patch in OBJECTIVES[objective](settings) if objective else ():
            stack.enter_context(patch)
        yield


# === Masks ===


def falling_share(settings: PretrainingSettings) -> list:
    """Masks a share of the tokens that falls linearly from `masked_lm_prob` to 15% (Ankner et al. 2023)."""

    def share(steps):
        return settings.masked_lm_prob + (_LAST_SHARE - settings.masked_lm_prob) * steps / settings.num_train_steps

    return [mock.patch.object(batches, "mask_again", _mask_again(settings, share))]


def unknown_tokens(settings: PretrainingSettings) -> list:
    """Masks tokens the more often, the less often the model predicts them (Edman & Fraser 2025, "hard")."""
    counts, seen = np.zeros((2, 30_000)), np.zeros(1, np.int64)
    weights = np.ones(30_000)
    drawing = threading.local()

    def count(ids, answers):
        np.add.at(counts, ((answers == ids).astype(int).ravel(), ids.ravel()), 1.0)
        seen[0] += 1
        if seen[0] % _INTERVAL == 0:
            weights[:] = _OLD_WEIGHT * weights + (1 - _OLD_WEIGHT) * (counts[0] + 0.5) / (counts.sum(axis=0) + 1.0)
            weights[:] = np.maximum(weights, _LOWEST_WEIGHT)
            counts[:] = 0.0
        return np.float32(0.0)

    class Watching(PretrainingObjective):
        def sums(self, outputs, labels):
            @tf.custom_gradient
            def watch(logits):
                def gradient(upstream):  # Training alone has a backward direction.
                    answers = tf.argmax(logits, axis=-1, output_type=tf.int32)
                    ids = tf.where(labels["mask_weights"] > 0, labels["mask_ids"], 0)  # Slots without a mask are [PAD].
                    with tf.control_dependencies([tf.numpy_function(count, [ids, answers], tf.float32)]):
                        return tf.identity(upstream)

                return tf.identity(logits), gradient

            return super().sums({**outputs, "masked_lm": watch(outputs["masked_lm"])}, labels)

    def choose(is_candidate, starts_word, budgets, seeds):
        """Draws without replacement by these weights: the largest of log(weight) + Gumbel noise."""
        uniform = (
            (random_bits(seeds[:, np.newaxis], np.arange(is_candidate.shape[1])) >> np.uint64(11)) + 0.5
        ) * 2**-53
        scores = np.log(weights[drawing.token_ids]) - np.log(-np.log(uniform))
        ranks = np.argsort(np.argsort(-np.where(is_candidate, scores, -np.inf), axis=1), axis=1)
        return is_candidate & (ranks < budgets[:, np.newaxis])

    mask_again = _mask_again(settings, lambda steps: np.full(len(steps), settings.masked_lm_prob), drawing)
    patches = {(batches, "mask_again"): mask_again, (masking, "_choose_words"): choose}
    patches[stages, "PretrainingObjective"] = Watching
    return [mock.patch.object(*place, value) for place, value in patches.items()]


def _mask_again(settings: PretrainingSettings, share, drawing=None):
    """Returns a `mask_again` with a share for each step; the batch has as many slots as its fullest row needs."""

    def mask_again(features, labels, rules, random_seed, numbers):
        before = {name: (features | labels)[name] for name in dynamic_masking._REDRAWN}

        def draw(numbers, padding_mask, *masked):
            seeds = random_bits(np.array(random_seed, np.uint64), numbers)
            token_ids = dynamic_masking.restore_tokens(*masked)
            if drawing is not None:
                drawing.token_ids = token_ids
            shares = share(numbers // settings.train_batch_size)
            batch = masking.mask_tokens(
                token_ids, padding_mask > 0, dataclasses.replace(rules, masked_lm_prob=shares), seeds
            )
            is_used = np.arange(rules.max_predictions_per_seq) < batch.num_masked[:, np.newaxis]
            slots = slice(int(batch.num_masked.max()))
            return [
                batch.token_ids,
                *(array[:, slots] for array in (batch.mask_positions, batch.mask_ids, is_used.astype(np.float32))),
            ]

        inputs = [numbers, features["padding_mask"], *before.values()]
        drawn = tf.numpy_function(draw, inputs, [value.dtype for value in before.values()], stateful=False)
        redrawn = {"token_ids": tf.ensure_shape(drawn[0], before["token_ids"].shape)}
        rows = before["token_ids"].shape[0]
        redrawn |= {
            name: tf.ensure_shape(value, (rows, None)) for name, value in zip([*before][1:], drawn[1:], strict=True)
        }
        return tuple({name: redrawn.get(name, value) for name, value in part.items()} for part in (features, labels))

    return mask_again


# === Average of the weights ===


def average_of_weights(settings: PretrainingSettings) -> list:
    """Evaluates, and finally keeps, an exponential average of the weights."""
    options = PretrainingSettings.optimizer_options.fget

    class Averaged(stages._Evaluation):
        def __call__(self):
            variables = self._trainer.model.trainable_variables
            kept = [variable.numpy() for variable in variables]
            averages = self._trainer.optimizer._model_variables_moving_average
            for variable, average in zip(variables, averages, strict=True):
                variable.assign(average)
            figures = super().__call__()
            if int(self._trainer.step.numpy()) < settings.num_train_steps:
                for variable, value in zip(variables, kept, strict=True):
                    variable.assign(value)
            return figures

    averaging = {"use_ema": True, "ema_momentum": _EMA_MOMENTUM}
    return [
        mock.patch.object(PretrainingSettings, "optimizer_options", property(lambda self: options(self) | averaging)),
        mock.patch.object(stages, "_Evaluation", Averaged),
    ]


# === Replaced tokens ===


class _Replace(keras.layers.Layer):
    """Draws a token for each mask from a generator: token_ids (B, S), mask_positions (B, P), logits (B, P, V)."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(0)

    def call(self, token_ids, mask_positions, logits):
        probabilities = tf.nn.softmax(logits)
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        draws = tf.random.stateless_uniform(tf.shape(mask_positions), seed)[..., tf.newaxis]
        sampled = tf.reduce_sum(tf.cast(tf.cumsum(probabilities, axis=-1) < draws, tf.int32), axis=-1)
        sampled = tf.minimum(sampled, logits.shape[-1] - 1)
        # Slots without a mask have position 0, [CLS], which stays.
        kept = tf.gather(token_ids, mask_positions, batch_dims=1)
        sampled = tf.where(mask_positions > 0, sampled, kept)
        return _scatter(token_ids, mask_positions, sampled), sampled

    def compute_output_spec(self, token_ids, mask_positions, logits):
        return tuple(keras.KerasTensor(tensor.shape, "int32") for tensor in (token_ids, mask_positions))


def _scatter(rows, positions, values):
    numbers = tf.broadcast_to(tf.range(tf.shape(positions)[0])[:, tf.newaxis], tf.shape(positions))
    return tf.tensor_scatter_nd_update(rows, tf.stack([numbers, positions], axis=-1), values)


class _ReplacedTokens(PretrainingObjective):
    """Adds, for each real token, the loss of telling whether the generator replaced it (Clark et al. 2020)."""

    def __init__(self, *args):
        super().__init__(*args)
        self.loss_weights = {**self.loss_weights, "replaced": _REPLACED_WEIGHT}

    def weights(self, features, labels):
        return super().weights(features, labels) | {"replaced": self.real_tokens(features)}

    def sums(self, outputs, labels):
        losses, is_real = self._losses(outputs, labels)
        return super().sums(outputs, labels) | {"replaced": tf.reduce_sum(losses * is_real)}

    def _losses(self, outputs, labels):
        logits, positions = outputs["replaced"], outputs["positions"]
        is_other = tf.cast((outputs["sampled"] != labels["mask_ids"]) & (positions > 0), tf.float32)
        is_replaced = _scatter(tf.zeros_like(logits), positions, is_other)
        is_real = tf.cast(outputs["padding_mask"] > 0, tf.float32)
        return tf.nn.sigmoid_cross_entropy_with_logits(is_replaced, logits), is_real


def replaced_tokens(settings: PretrainingSettings, is_tied: bool = False) -> list:
    """Trains the encoder to find the tokens that a generator replaced (Clark et al. 2020, "ELECTRA").

    The generator shares all embeddings. It has one layer, with a feed-forward layer as wide as the encoder: at two
    layers a quarter of the encoder's weights. Its masked-LM head becomes the preset's.

    Args:
        settings: of the training.
        is_tied: whether the generator is the encoder's own first layer.
    """

    def model_builder(*arguments):
        build = stages_builder(*arguments)
        return lambda: _with_generator(build(), is_tied)

    stages_builder = stages.model_builder
    return [
        mock.patch.object(stages, "model_builder", model_builder),
        mock.patch.object(stages, "PretrainingObjective", _ReplacedTokens),
    ]


def _with_generator(pretrainer: BertPretrainer, is_tied: bool) -> keras.Model:
    backbone, inputs, config = pretrainer.backbone, pretrainer.input, pretrainer.backbone.bert_config
    layout = backbone.get_layer("token_layout")(inputs["padding_mask"])
    rows = backbone.get_layer("embeddings")(inputs["token_ids"], segment_ids=inputs["segment_ids"], layout=layout)
    first = backbone.get_layer("transformer_layer_0")
    layer = first
    if not is_tied:
        layer = BertEncoderLayer.from_config(
            {
                **first.get_config(),
                "intermediate_dim": config.hidden_dim,
                "name": f"transformer_layer_{config.num_layers}",
            }
        )
    rows = layer(rows, layout=layout)
    if not is_tied:  # It begins with the same heads.
        source, target = first.self_attention.query_key_value, layer.self_attention.query_key_value
        target.kernel.assign(source.kernel)
    sequence = RestoreRectangle(name="generated")(rows, layout=layout)
    logits = pretrainer.get_layer("masked_lm")(sequence, mask_positions=inputs["mask_positions"])
    token_ids, sampled = _Replace(name="replace")(inputs["token_ids"], inputs["mask_positions"], logits)
    encoded = backbone({**{name: inputs[name] for name in ("segment_ids", "padding_mask")}, "token_ids": token_ids})
    kernel = keras.initializers.TruncatedNormal(config.initializer_range)
    hidden = keras.layers.Dense(config.hidden_dim, "gelu", kernel_initializer=kernel, name="replaced_dense")
    replaced = keras.layers.Dense(1, kernel_initializer=kernel, name="replaced")
    outputs = {
        "masked_lm": logits,
        "replaced": keras.layers.Reshape((-1,))(replaced(hidden(encoded["sequence_output"]))),
        "sampled": sampled,
        "positions": inputs["mask_positions"],
        "padding_mask": inputs["padding_mask"],
    }
    if pretrainer.use_next_sentence:
        outputs["next_sentence"] = pretrainer.get_layer("next_sentence")(encoded["pooled_output"])
    model = keras.Model(inputs, outputs)
    model.backbone, model.save_to_preset = backbone, pretrainer.save_to_preset
    return model


OBJECTIVES = {
    "falling share": falling_share,
    "unknown tokens": unknown_tokens,
    "average of weights": average_of_weights,
    "replaced tokens": replaced_tokens,
    "tied replaced tokens": lambda settings: replaced_tokens(settings, is_tied=True),
}
