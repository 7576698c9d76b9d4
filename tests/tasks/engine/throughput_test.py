"""The formula of a step's operations against TensorFlow's own count, and the peak."""

import pytest
import tensorflow as tf
from toy_pretraining import LENGTH, PREDICTIONS, VOCABULARY, build_model, draw

from tasks.engine.strategy import build_strategy
from tasks.engine.throughput import Speed, find_peak, pretraining_flops_per_token


def profiled_matmul_flops(model, count: int) -> int:
    """Operations of the matrix products of a forward pass, as TensorFlow's profiler counts them."""
    features = {name: value for name, value in draw(count)[0].items()}
    signature = {name: tf.TensorSpec(value.shape, tf.int32) for name, value in features.items()}
    function = tf.function(lambda batch: model(batch, training=False)).get_concrete_function(signature)
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    options["account_type_regexes"] = [".*MatMul.*", "Einsum"]
    run_metadata = tf.compat.v1.RunMetadata()
    graph = function.graph
    return tf.compat.v1.profiler.profile(graph, run_meta=run_metadata, cmd="op", options=options).total_float_ops


def test_the_formula_counts_what_tensorflow_counts():
    model = build_model()
    config = model.backbone.bert_config
    counted = profiled_matmul_flops(model, 8) / (8 * LENGTH)
    # Left out of the formula: pooler and next-sentence head, of one token an example.
    left_out = 2 * (config.hidden_dim**2 + 2 * config.hidden_dim) / LENGTH
    formula = pretraining_flops_per_token(config, LENGTH, PREDICTIONS) / 3
    assert formula == pytest.approx(counted - left_out, rel=0.01)


def test_the_formula_by_hand():
    config = build_model().backbone.bert_config  # 2 layers of 16, 32 inside.
    layer = 2 * (4 * 16 * 16 + 2 * 16 * 32) + 4 * 16 * 10.0
    head = 2 * (16 * 16 + 16 * VOCABULARY) * 0.2
    assert pretraining_flops_per_token(config, 10.0, 2.0) == pytest.approx(3 * (2 * layer + head))
    assert Speed(2e6, 1e9, "flag").share_of_peak(250.0) == 0.5


def test_the_peak_is_given_or_measured():
    strategy = build_strategy("one_device", num_gpus=0)
    assert find_peak(strategy, 2.0, "float32") == (2e12, "flag")
    flops, source = find_peak(strategy, None, "float32")
    assert source == "measured" and 1e9 < flops < 1e14
