"""bfloat16: half the size, verified against a Keras model, measured beside float32."""

import collections
import functools
import os

import numpy as np
import pytest
import tensorflow as tf
from bfloat16 import needs_bfloat16
from toy_classifier import LABELS, VOCABULARY, assets
from toy_heads import backbone
from toy_saved import ALL_HEADS, answers_of, save_graph

from export import saved_model, targets
from export.heads.base import Head
from export.heads.classification import Classification
from export.targets import real_text, reduced_precision
from export.verification import cc_check, verify
from keras_bert import BertPreprocessor, BertTokenizer
from keras_bert.answers import text_bounds
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.models import BertTextClassifier


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Head, str]:
    sizes = {"num_layers": 1, "hidden_dim": 64, "intermediate_dim": 128, "initializer_range": 0.1}
    model = BertTextClassifier(backbone(**sizes), len(LABELS), compile=False)
    head = Classification(model, BertPreprocessor(BertTokenizer(VOCABULARY), 32), LABELS)
    return head, save_graph(head, str(tmp_path_factory.mktemp("bfloat16") / "model" / "7"), only="token_ids")


@pytest.mark.parametrize(
    ("num_named", "times", "names", "verdict"),
    [
        (10, {1: 1.2, 32: 1.13}, ", 1 of 10 names changed", "1.13 for 32 texts: not faster on this CPU; it only saves"),
        (0, {1: 0.9, 32: 0.8}, "", "0.90 for 1 text, 0.80 for 32 texts: faster on this CPU"),
    ],
)
def test_the_verdict_follows_the_figures(small, monkeypatch, num_named, times, names, verdict):
    head, directory = small
    cost = real_text.Cost(40, 0.01, 0.1, num_named, 1)
    monkeypatch.setattr(real_text, "saved_model_runner", lambda _: list)
    monkeypatch.setattr(real_text, "cost_of", lambda *_: cost)
    monkeypatch.setattr(real_text, "relative_times", lambda *_: times)
    accuracy, speed = reduced_precision.measure(head, directory, directory)
    assert accuracy == f"accuracy: 40 real texts, difference from float32 1.0e-02 at most, 0.1% of the variance{names}"
    assert verdict in speed


@needs_bfloat16
def test_bfloat16_is_half_verified_and_measured(small, monkeypatch):
    monkeypatch.setattr(real_text, "_ROUNDS", 1)
    monkeypatch.setattr(real_text, "saved_model_runner", functools.cache(real_text.saved_model_runner))
    head, version_directory = small
    base = os.path.dirname(version_directory)
    lines = targets.write(["bfloat16"], head, base, version_directory)
    text = "\n".join(lines)
    assert lines[0] == f"bfloat16: {base}/bfloat16/7"
    assert "from the float32 Keras model's" in text and "(allowed 6e-02)" in text
    assert "200 real texts, difference from float32" in text
    assert "time relative to float32" in text
    directory = os.path.join(base, "bfloat16", "7")
    stored, whole = (verify.stored_weight_bytes(path) for path in (directory, version_directory))
    assert stored < 0.55 * whole  # LayerNorm and the classifier keep float32
    assert read_json(os.path.join(directory, "assets.extra", "encoders.json")) == []
    asked = real_text.requests(head, [8])
    (right,), (answer,) = (real_text.saved_model_runner(path)(asked) for path in (version_directory, directory))
    difference = np.abs(right["probabilities"] - answer["probabilities"]).max()
    assert 1e-5 < difference < 0.01


@needs_bfloat16
@pytest.mark.slow(keep=["fill_mask", "search"])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_every_head_answers_in_bfloat16(name, tmp_path, monkeypatch):
    head, directory = ALL_HEADS[name](), str(tmp_path / "1")

    def answers(directory, probes):
        return answers_of(tf.saved_model.load(directory))(directory, probes)

    monkeypatch.setattr(verify, "fresh_answers", answers)
    report = reduced_precision.write_bfloat16(head, directory)
    assert verify.TOLERANCE < report.largest_difference <= reduced_precision.TOLERANCE
    reader = tf.train.load_checkpoint(os.path.join(directory, "variables", "variables"))
    types = collections.Counter(reader.get_variable_to_dtype_map().values())
    per_layer, around = 4 * 2, 2 * 1 + 3  # kernels and biases; the pooler's, and three tables
    assert types[tf.bfloat16] <= 2 * per_layer + around
    assert types[tf.bfloat16] >= 2 * per_layer + (2 if name == "fill_mask" else 3)  # its token table is the head's, too


@pytest.mark.slow
@pytest.mark.skipif(cc_check.find_compiler() is None, reason="there is no g++ or no TensorFlow to link with")
def test_a_cc_program_answers_in_bfloat16(small, tmp_path):
    report = reduced_precision.write_bfloat16(small[0], str(tmp_path / "1"), with_cc="on")
    assert 0 < report.cc_difference <= reduced_precision.TOLERANCE


def test_a_graph_that_computes_something_else_is_refused(small, tmp_path, monkeypatch):
    head, version_directory = small

    def write_other(head, model, directory):
        kernel = text_bounds.find_backbone(model).get_layer("transformer_layer_0").output_dense.kernel
        kernel.assign(-kernel)
        return write_graph(head, model, directory)

    write_graph = saved_model.write_graph
    monkeypatch.setattr(saved_model, "write_graph", write_other)
    monkeypatch.setattr(head, "functions", lambda model: {"token_ids": head.function_of_token_ids(model)})
    with pytest.raises(verify.VerificationError, match=r"probabilities: differs by .*, allowed 6e-02"):
        targets.write(["bfloat16"], head, str(tmp_path), version_directory)
    assert not os.path.exists(tmp_path / "bfloat16" / "7")


def test_bfloat16_of_a_model_that_reads_from_left_to_right_is_refused(tmp_path):
    head = Classification(
        BertTextClassifier(backbone(attention="left_to_right"), len(LABELS), compile=False), assets(), LABELS
    )
    with pytest.raises(
        InputError, match="--bfloat16: expected a model that reads in both .*'left_to_right'. Leave out"
    ):
        reduced_precision.write_bfloat16(head, str(tmp_path / "1"))
    assert not os.listdir(tmp_path)
