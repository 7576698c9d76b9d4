"""Other ways to compute layers: fused, with the values and gradients of the layers themselves, and dropout of the same
distribution; rematerialized, with the same dropout masks.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.encoder_layer import BertEncoderLayer
from keras_bert.models import BertTextClassifier
from tasks.engine import fused_layers, fused_ops
from tasks.engine.optimization import build_optimizer
from tasks.engine.strategy import set_mixed_precision, wrap_loss_scale
from tasks.engine.train_step import TrainStep
from tasks.fine_tuning.objectives import CrossEntropy

RNG = np.random.default_rng(0)


def normal(*shape, scale: float = 1.0) -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape) * scale, tf.float32)


def traced(function, *inputs, layers=(), is_fused: bool = True, upstream=None, jit_compile: bool = False):
    """Returns the value and the gradients by all inputs, and whether XLA compiles a part of the graph.

    `layers` are those that `function` calls.
    """

    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = function(*inputs)
        return output, tape.gradient(output, inputs, upstream)

    with fused_layers.fused(layers if is_fused else ()):
        concrete = tf.function(run, autograph=False, jit_compile=jit_compile).get_concrete_function(*inputs)
    output, gradients = concrete(*inputs)
    return output.numpy(), [gradient.numpy() for gradient in gradients], is_compiled(concrete.graph)


def is_compiled(graph: tf.Graph) -> bool:
    return any(function.attr["_XlaMustCompile"].b for function in graph.as_graph_def().library.function)


def assert_same(function, *inputs, layers, atol: float = 2e-6, upstream=None) -> None:
    output, gradients, compiled = traced(function, *inputs, layers=layers, upstream=upstream)
    assert compiled or function.__name__ == "dense"
    wanted, wanted_gradients, compiled = traced(function, *inputs, layers=layers, is_fused=False, upstream=upstream)
    assert not compiled
    np.testing.assert_allclose(output, wanted, atol=atol, rtol=1e-5)
    for gradient, expected in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=atol * 10, rtol=1e-5)


def encoder_layer(activation: str) -> BertEncoderLayer:
    return BertEncoderLayer(hidden_dim=8, num_heads=2, intermediate_dim=16, activation=activation)


# === The same values ===


@pytest.fixture
def compiles_small_ones(monkeypatch):
    monkeypatch.setattr(fused_layers, "_FEWEST_COMPILED", 1)


@pytest.mark.usefixtures("compiles_small_ones")
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu(name):
    layer, x = encoder_layer(name), tf.constant(np.linspace(-9.0, 9.0, 3001), tf.float32)
    assert_same(lambda x: layer.activate(x), x, layers=[layer], upstream=normal(3001))


@pytest.mark.parametrize("numbers, is_compiled", [(2**17 - 1, False), (2**17, True)])
def test_a_small_gelu_is_not_compiled(numbers, is_compiled):
    layer, x = encoder_layer("gelu"), normal(numbers)
    output, _, compiled = traced(lambda x: layer.activate(x), x, layers=[layer])
    assert compiled == is_compiled
    np.testing.assert_allclose(output, keras.ops.gelu(x, approximate=False), atol=2e-6)


@pytest.mark.usefixtures("compiles_small_ones")
def test_gelu_of_large_numbers_is_finite():
    for name in ("gelu", "gelu_tanh"):
        layer, x = encoder_layer(name), tf.constant([-1e4, -40.0, 40.0, 1e4])
        output, (gradient,), compiled = traced(lambda x, layer=layer: layer.activate(x), x, layers=[layer])
        assert compiled
        np.testing.assert_array_equal(output, [0.0, 0.0, 40.0, 1e4])
        np.testing.assert_array_equal(gradient, [0.0, 0.0, 1.0, 1.0])


def test_layer_norm():
    layer = keras.layers.LayerNormalization(epsilon=1e-12)
    layer.build((None, 24))
    layer.gamma.assign(normal(24))
    layer.beta.assign(normal(24))
    upstream = normal(10, 24)

    def function(rows):
        with tf.GradientTape() as tape:
            output = layer(rows)
        weights = tape.gradient(output, [layer.gamma.value, layer.beta.value], upstream)
        return tf.concat([output, *(weight[None] for weight in weights)], axis=0)

    upstream_of_all = tf.concat([upstream, tf.zeros((2, 24))], axis=0)
    assert_same(function, normal(10, 24, scale=3.0) + 1.0, layers=[layer], upstream=upstream_of_all)


@pytest.mark.parametrize("inputs, outputs", [(16, 64), (16, 51), (16, 16), (64, 16)])
def test_dense(inputs, outputs):
    layer = keras.layers.Dense(outputs, bias_initializer="normal")
    layer.build((None, inputs))

    def dense(rows, kernel, bias):
        with keras.StatelessScope(state_mapping=[(layer.kernel, kernel), (layer.bias, bias)]):
            return layer(rows)

    values = normal(9, inputs), normal(inputs, outputs), normal(outputs)
    assert_same(dense, *values, layers=[layer], upstream=normal(9, outputs))


# === Where the layers themselves are called ===


def test_a_layer_that_a_model_uses_twice_is_fused_once():
    layer = keras.layers.Dense(3)
    with fused_layers.fused([layer, layer]):
        assert type(layer) is fused_layers.FUSED[keras.layers.Dense]
    assert type(layer) is keras.layers.Dense


def test_outside_the_scope_layers_are_themselves():
    model = BertTextClassifier(BertBackbone(11, 2, num_heads=2, hidden_dim=8, intermediate_dim=12), 2, compile=False)
    layers = [model.backbone.get_layer(f"transformer_layer_{number}") for number in range(2)]
    inner = [layer.self_attention.query_key_value for layer in layers]
    with pytest.raises(RuntimeError, match="on purpose"), fused_layers.fused_layers(model):
        assert {type(layer) for layer in layers} == {fused_layers.FUSED[BertEncoderLayer]}
        assert {type(layer) for layer in inner} == {fused_layers.FUSED[keras.layers.Dense]}
        raise RuntimeError("on purpose")
    assert {type(layer) for layer in layers} == {BertEncoderLayer}
    assert {type(layer) for layer in inner} == {keras.layers.Dense}


@pytest.mark.parametrize("spec", [tf.TensorSpec((None, 8)), tf.TensorSpec((4, 8), "float16")], ids=str)
def test_unknown_shapes_and_half_precision_are_not_compiled(spec):
    norm = keras.layers.LayerNormalization(dtype=spec.dtype.name)
    drop = keras.layers.Dropout(0.5, dtype=spec.dtype.name)
    norm.build((None, 8))
    layer = encoder_layer("gelu_tanh")

    def run(x):
        return drop(norm(layer.activate(x)), training=True)

    with fused_layers.fused([norm, drop, layer]):
        concrete = tf.function(run, autograph=False).get_concrete_function(spec)
    assert not is_compiled(concrete.graph)
    assert concrete(tf.ones((4, 8), spec.dtype)).dtype == spec.dtype


@pytest.mark.parametrize("change", [lambda layer: layer.enable_lora(2), lambda layer: layer.quantize("int8")])
def test_a_changed_dense_layer_is_called_itself(change):
    layer = keras.layers.Dense(8, bias_initializer="normal")
    layer.build((None, 16))
    change(layer)
    for variable in layer.variables:
        if "lora" in variable.path:
            variable.assign(np.full(variable.shape, 0.5, "float32"))
    rows = normal(3, 16)
    expected = layer(rows)
    with fused_layers.fused([layer]):
        np.testing.assert_array_equal(layer(rows), expected)


# === Dropout ===


def philox(low: int, high: int, key: int) -> tuple[int, int]:
    """Philox 2 x 32 - 10 from its definition, on Python's integers."""
    for _ in range(10):
        product = low * 0xD256D193
        low, high = (product >> 32) ^ key ^ high, product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return low, high


def test_random_words_are_those_of_philox():
    # Known answers of Random123 1.14, tests/kat_vectors.
    assert philox(0, 0, 0) == (0xFF1DAE59, 0x6CD10DF2)
    assert philox(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF) == (0x2C3F628B, 0xAB4FD7AD)
    assert philox(0x243F6A88, 0x85A308D3, 0x13198A2E) == (0xDD7CE038, 0xF62A4C12)
    for key, high in ((0, 0), (0x13198A2E, 0x85A308D3), (2**32 - 1, 2**32 - 1)):
        words = fused_ops._random_words(tf.constant([key, high], tf.int64), 100).numpy()
        assert [(int(word) & 0xFFFFFFFF, int(word) >> 32) for word in words] == [
            philox(low, high, key) for low in range(100)
        ]


def kept(rate: float, seed: tuple[int, int], shape=(1000, 1003)) -> np.ndarray:
    """The mask, as bool, after checking that all that is kept has the right scale."""
    output = fused_ops.dropout(tf.ones(shape), rate, tf.constant(seed, tf.int64)).numpy()
    steps = round(rate * 65536)
    np.testing.assert_allclose(output[output != 0.0], 65536 / (65536 - steps), rtol=1e-6)
    return output != 0.0


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_the_share_kept_is_that_of_independent_draws(rate):
    """Chi-square over 1000 rows: with independent units the statistic has mean 1000 and deviation 44.7."""
    mask = kept(rate, (11, 12))
    keep, columns = 1.0 - round(rate * 65536) / 65536, mask.shape[1]
    assert abs(mask.mean() - keep) < 5.0 * np.sqrt(keep * (1.0 - keep) / mask.size)
    for counts in (mask.sum(axis=1), mask.ravel()[: 1000 * columns].reshape(columns, 1000).T.sum(axis=1)):
        statistic = np.sum((counts - keep * columns) ** 2) / (columns * keep * (1.0 - keep))
        assert abs(statistic - 1000) < 5 * 44.8


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_neighbours_calls_layers_and_steps_are_independent(rate):
    """The correlation of n independent pairs has deviation 1 / sqrt(n), here 0.001."""
    mask = kept(rate, (21, 7)).ravel().astype("float64")
    others = {
        "the next call": kept(rate, (21, 8)).ravel(),
        "another layer": kept(rate, (22, 7)).ravel(),
        "both": kept(rate, (7, 21)).ravel(),
        **{f"{distance} away": np.roll(mask, distance) for distance in (1, 2, 3, 4, 8, 1003)},
    }
    for name, other in others.items():
        assert abs(np.corrcoef(mask, other)[0, 1]) < 0.005, name


@pytest.mark.slow(keep=["False-shape3", "True-shape2"])
@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7), (2, 3, 4, 4)])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_gradient_is_the_mask_times_the_scale(shape, jit_compile):
    layer = keras.layers.Dropout(0.25, seed=3)
    x = tf.constant(RNG.uniform(1.0, 2.0, shape), tf.float32)
    drop = functools.partial(layer, training=True)
    output, (gradient,), compiled = traced(drop, x, layers=[layer], jit_compile=jit_compile)
    assert compiled
    np.testing.assert_allclose(gradient, np.where(output != 0.0, 1.0 / 0.75, 0.0), rtol=1e-6)
    np.testing.assert_allclose(output, x * gradient, rtol=1e-6)


def test_the_seed_generator_decides_and_moves_on():
    layer = keras.layers.Dropout(0.5, seed=3)
    state, x = layer.seed_generator.state, tf.ones((40, 40))
    with fused_layers.fused([layer]):
        call = tf.function(lambda x: layer(x, training=True), autograph=False)
        first, second = call(x).numpy(), call(x).numpy()
        np.testing.assert_array_equal(state.numpy(), [3, 2])
        state.assign([3, 0])
        np.testing.assert_array_equal(call(x), first)
    assert 0.4 < np.mean(first != second) < 0.6


def test_without_training_or_at_rate_0_nothing_is_dropped():
    x, all_units = tf.ones((40, 40)), keras.layers.Dropout(1.0)
    for rate, training in ((0.5, False), (0.5, None), (0.0, True)):
        layer = keras.layers.Dropout(rate)
        with fused_layers.fused([layer]):
            np.testing.assert_array_equal(layer(x, training=training), x)
    with fused_layers.fused([all_units]):
        np.testing.assert_array_equal(all_units(x, training=True), tf.zeros_like(x))


# === In a training step ===

FEATURES = {
    "token_ids": tf.constant([[2, 7, 8, 9, 3, 0], [2, 9, 3, 0, 0, 0], [2, 5, 5, 3, 0, 0]]),
    "segment_ids": tf.constant([[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]]),
    "padding_mask": tf.constant([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]]),
}
LABELS = {"labels": tf.constant([0, 1, 1])}


@functools.cache
def train(is_fused: bool = True, random_seed: int = 5, jit_compile: bool = False, **settings):
    """Two steps of a small model: the figures, the weights' changes by path, and whether XLA compiled parts."""
    keras.utils.set_random_seed(1)
    sizes = {"vocabulary_size": 11, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    model = BertTextClassifier(
        BertBackbone(**sizes, max_sequence_length=6, initializer_range=0.3, **settings), 2, compile=False
    )
    step = TrainStep(
        model,
        build_optimizer("bert-2018", 0.1, 10),
        CrossEntropy(),
        strategy=tf.distribute.get_strategy(),
        step=tf.Variable(3, dtype=tf.int64),
        gradient_accumulation_steps=1,
        clip_norm=1.0,
        jit_compile=jit_compile,
        random_seed=random_seed,
    )
    if not is_fused:
        step._fused_layers = contextlib.nullcontext
    before = [weight.numpy() for weight in model.weights]
    function = tf.function(step, autograph=False)
    figures = [{name: float(value) for name, value in function(FEATURES, LABELS).items()} for _ in range(2)]
    changes = {
        weight.path: weight.numpy() - value
        for weight, value in zip(model.weights, before, strict=True)
        if weight.dtype == "float32"
    }
    return figures, changes, is_compiled(function.get_concrete_function(FEATURES, LABELS).graph)


@pytest.mark.slow(keep=["rectangular-gelu", "packed-gelu_tanh"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("layout", ["rectangular", "packed"])
def test_a_training_step_is_the_one_of_the_layers(activation, layout):
    settings = {"dropout": 0.0, "activation": activation, "layout": layout}
    figures, changes, compiled = train(**settings)
    wanted, expected, compiled_without = train(is_fused=False, **settings)
    assert compiled and not compiled_without
    assert figures[0] == pytest.approx(wanted[0], rel=1e-5)
    assert figures[1] == pytest.approx(wanted[1], rel=1e-3)  # Adam makes a full step of a gradient that is rounding.
    for path, change in changes.items():
        # A key's bias has no gradient but rounding: softmax leaves it out.
        some = change[: len(change) // 3] if "query_key_value/bias" in path else change
        np.testing.assert_allclose(some, expected[path][: len(some)], atol=2e-4, rtol=1e-3, err_msg=path)


@pytest.mark.slow
def test_dropout_in_a_step_follows_the_seed_alone():
    settings = {"dropout": 0.3}
    first, second, other = train(**settings), train.__wrapped__(**settings), train(random_seed=6, **settings)
    assert first[0] == second[0]
    for path, change in first[1].items():
        np.testing.assert_array_equal(change, second[1][path], err_msg=path)
    assert first[0] != other[0]


@pytest.mark.slow
def test_under_xla_the_layers_are_called():
    step = train(dropout=0.3, jit_compile=True)
    assert np.isfinite(step[0][0]["loss"])


def test_with_unknown_numbers_of_rows_the_layers_are_called():
    settings = {"dropout": 0.0, "activation": "gelu"}
    figures, _, _ = train(**settings, layout="unpadded")
    wanted, _, _ = train(**settings, layout="rectangular")
    assert figures[0]["loss"] == pytest.approx(wanted[0]["loss"], rel=1e-5)


# === Rematerialized ===


def steps(rematerialize: bool, mixed_precision: str = "float32", pooling: str | None = None, **options) -> tuple:
    """Two steps at a rate of 1: the losses, the gradients, the states of dropout, and the softmaxes of the graph."""
    lora_rank = options.pop("lora_rank", None)
    settings = {name: options.pop(name) for name in ("layout", "dropout") if name in options}
    sizes = {"vocabulary_size": 11, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    set_mixed_precision(mixed_precision)
    try:
        keras.utils.set_random_seed(1)
        backbone = BertBackbone(**sizes, max_sequence_length=6, initializer_range=0.3, **{"dropout": 0.3, **settings})
        if lora_rank:
            backbone.enable_lora(lora_rank)
        step = TrainStep(
            BertTextClassifier(backbone, 2, compile=False),
            wrap_loss_scale(keras.optimizers.SGD(1.0), mixed_precision),
            CrossEntropy(),
            strategy=tf.distribute.get_strategy(),
            step=tf.Variable(3, dtype=tf.int64),
            clip_norm=None,
            rematerialize=rematerialize,
            pooling=pooling,
            **options,
        )
        features = {name: tf.tile(value, (2, 1)) for name, value in FEATURES.items()}
        if pooling:
            features = {name: tf.reshape(value, (2, 3, 6)) for name, value in features.items()}
        labels = {"labels": tf.constant([0, 1, 1, 0, 1, 0][: 2 if pooling else 6])}
        function = tf.function(step, autograph=False)
        concrete = function.get_concrete_function(features, labels)
        before = [weight.numpy() for weight in step.model.trainable_weights]
        losses = [float(concrete(features, labels)["loss"])]
        gradients = [old - new for old, new in zip(before, step.model.trainable_weights, strict=True)]
        losses.append(float(concrete(features, labels)["loss"]))
        softmaxes = [op for op in concrete.graph.get_operations() if op.type == "Softmax"]
        return losses, gradients, [seed.numpy() for seed in step._seeds], softmaxes
    finally:
        set_mixed_precision("float32")


REMATERIALIZED = {
    "alone": {},
    "packed, in parts": {"layout": "packed", "gradient_accumulation_steps": 2},
    "unpadded, in parts": {"layout": "unpadded", "gradient_accumulation_steps": 3},
    "unpadded, float16": {"layout": "unpadded", "mixed_precision": "float16"},
    "windows, bfloat16": {"pooling": "mean", "mixed_precision": "bfloat16"},
    "windows, in parts": {"pooling": "max", "gradient_accumulation_steps": 2},
    "LoRA, in parts": {"lora_rank": 2, "gradient_accumulation_steps": 2},
    "compiled, in parts": {"jit_compile": True, "gradient_accumulation_steps": 2},
    "compiled, float16": {"jit_compile": True, "mixed_precision": "float16"},
}


@pytest.mark.slow(keep=["alone", "unpadded, float16", "windows, in parts", "LoRA, in parts"])
@pytest.mark.parametrize("options", REMATERIALIZED.values(), ids=list(REMATERIALIZED))
def test_rematerialized_gradients_are_those_of_the_plain_step(options):
    """Dropout included: both computations of a layer have the same masks, and the next step has the next ones."""
    losses, gradients, seeds, _ = steps(False, **options)
    again, others, seeds_again, _ = steps(True, **options)
    assert again == pytest.approx(losses, abs=1e-6)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, gradient, rtol=0.0, atol=1e-6)
    np.testing.assert_array_equal(seeds_again, seeds)
    assert max(np.abs(gradient).max() for gradient in gradients) > 0.1


def test_the_gradients_use_what_is_computed_again():
    """Then the first computation's activations, here the probabilities, are freed at once: only the values use them."""
    *_, kept = steps(False, dropout=0.0)
    *_, computed = steps(True, dropout=0.0)
    uses = [[len(op.outputs[0].consumers()) for op in ops] for ops in (kept, computed)]
    assert len(uses[0]) == 2 and min(uses[0]) > 1
    assert len(uses[1]) == 4 and sorted(uses[1])[:2] == [1, 1] and sorted(uses[1])[2] > 1


def test_after_the_forward_pass_layers_are_called_as_before():
    model = BertTextClassifier(BertBackbone(11, 2, num_heads=2, hidden_dim=8, intermediate_dim=12), 2, compile=False)
    layer = model.backbone.get_layer("transformer_layer_1")
    with pytest.raises(RuntimeError, match="on purpose"), fused_layers.rematerialized(model):
        assert layer.call.func is fused_layers._call_rematerialized
        raise RuntimeError("on purpose")
    assert layer.call.__func__ is BertEncoderLayer.call
