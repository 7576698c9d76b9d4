"""Equal encoder layers as one graph: the same loss, gradients and random states as without, in one traced function."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.backbone import BertBackbone
from tasks.engine.layer_graphs import shared_layer_graphs
from tasks.engine.optimization import build_optimizer
from tasks.engine.train_step import TrainStep
from tasks.fine_tuning.objectives import CrossEntropy
from tasks.glue.model import build_classifier

FEATURES = {
    "token_ids": tf.constant([[2, 7, 8, 9, 3, 0], [2, 9, 3, 0, 0, 0], [2, 5, 5, 3, 0, 0]]),
    "segment_ids": tf.constant([[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]]),
    "padding_mask": tf.constant([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]]),
}
LABELS = {"labels": tf.constant([0, 1, 1])}


def small_model(**settings):
    backbone = BertBackbone(
        vocabulary_size=11,
        num_layers=3,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        max_sequence_length=6,
        **settings,
    )
    return build_classifier(backbone, 2)


def prepare(model, accumulation: int = 1, jit_compile: bool = False) -> TrainStep:
    """The step of a trainer on one device, without the trainer."""
    return TrainStep(
        model,
        build_optimizer("adamw", 0.1, 10),
        CrossEntropy(),
        strategy=tf.distribute.get_strategy(),
        step=tf.Variable(3, dtype=tf.int64),
        gradient_accumulation_steps=accumulation,
        clip_norm=1.0,
        jit_compile=jit_compile,
        random_seed=5,
    )


def run(model, accumulation: int, is_shared: bool):
    """Does two steps; returns figures, weights and seed states, and the functions in the graph."""
    step = prepare(model, accumulation)
    if not is_shared:
        step._layer_graphs = contextlib.nullcontext
    function = tf.function(step, autograph=False)
    for _ in range(2):
        figures = function(FEATURES, LABELS)
    graph = function.get_concrete_function(FEATURES, LABELS).graph.as_graph_def()
    return figures, [variable.numpy() for variable in model.variables], graph


@pytest.mark.slow(keep=["3-unpadded"])
@pytest.mark.parametrize("layout", ["rectangular", "unpadded"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_two_steps_are_those_of_the_layers_themselves(layout, accumulation):
    model = small_model(dropout=0.3, layout=layout)
    start = [variable.numpy() for variable in model.variables]
    seeds = [variable.numpy() for variable in model.variables if "seed" in variable.path]
    assert len(seeds) == 3 * 2 + 2, "each layer's two, the embeddings' and the head's"
    figures, expected, _ = run(model, accumulation, is_shared=False)
    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)
    shared_figures, values, graph = run(model, accumulation, is_shared=True)
    for name in figures:
        np.testing.assert_allclose(shared_figures[name], figures[name], rtol=1e-6, err_msg=name)
    for variable, value, wanted, first in zip(model.variables, values, expected, start, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5, err_msg=variable.path)
        if variable.path.endswith("kernel"):
            assert np.abs(value - first).max() > 1e-3, f"{variable.path} was not trained"
    forward = [function for function in graph.library.function if "forward__trace" in function.signature.name]
    assert len(forward) <= 1, "one function for the three layers"
    seeds = [tuple(variable.numpy()) for variable in model.variables if "seed" in variable.path]
    assert len(set(seeds)) == len(seeds), "dropout differs between layers"


@pytest.mark.slow
def test_frozen_layers_stay_as_they_are():
    model = small_model(dropout=0.0)
    backbone = next(layer for layer in model.layers if isinstance(layer, BertBackbone))
    backbone.get_layer("transformer_layer_0").trainable = False
    before = {variable.path: variable.numpy() for variable in model.variables}
    run(model, 1, is_shared=True)
    changed = {variable.path for variable in model.variables if np.any(variable.numpy() != before[variable.path])}
    assert not any("transformer_layer_0" in path for path in changed)
    assert any("transformer_layer_2" in path for path in changed)


def test_the_layers_are_themselves_again_afterwards():
    model = small_model()
    layers = [layer for layer in model._flatten_layers() if type(layer).__name__ == "BertEncoderLayer"]
    with pytest.raises(RuntimeError, match="on purpose"), shared_layer_graphs(model):
        assert all("call" in vars(layer) for layer in layers)
        raise RuntimeError("on purpose")
    assert not any("call" in vars(layer) for layer in layers)


def test_under_xla_every_op_is_in_sight():
    assert prepare(small_model())._layer_graphs is shared_layer_graphs
    assert prepare(small_model(), jit_compile=True)._layer_graphs is contextlib.nullcontext
