"""int8 weights: a quarter of the size, verified against the quantized Keras model, measured beside float32."""

import os

import numpy as np
import pytest
from toy_classifier import LABELS, VOCABULARY
from toy_heads import HEADS, backbone
from toy_saved import save_graph

from export import saved_model, targets
from export.heads.base import Head
from export.heads.classification import Classification
from export.targets import int8, real_text
from keras_bert import BertPreprocessor, BertTokenizer
from tasks.glue.model import build_classifier


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Head, str]:
    model = build_classifier(backbone(hidden_dim=64, intermediate_dim=128, initializer_range=0.1), len(LABELS))
    head = Classification(model, BertPreprocessor(BertTokenizer(VOCABULARY), 32), LABELS)
    return head, save_graph(head, str(tmp_path_factory.mktemp("int8") / "model" / "7"))


@pytest.mark.slow
def test_int8_is_smaller_verified_and_measured(small):
    head, version_directory = small
    base = os.path.dirname(version_directory)
    lines = targets.write(["int8"], head, base, version_directory)
    text = "\n".join(lines)
    assert lines[0] == f"int8: {base}/int8/7"
    assert "40 real texts, difference from float32" in text
    assert "names alike" in text
    assert "time relative to float32" in text
    assert "it pays on this CPU" in text or "it does not pay on this CPU" in text
    variables = [
        os.path.join(path, "variables", "variables.data-00000-of-00001")
        for path in (os.path.join(base, "int8", "7"), version_directory)
    ]
    assert os.path.getsize(variables[0]) < 0.4 * os.path.getsize(variables[1])
    assert os.path.exists(os.path.join(base, "int8", "7", "batching_params.pbtxt"))
    # It is a model of its own to serve: close to the float32 one, and not the same.
    asked = real_text.requests(head, [8])
    (right,), (answer,) = (
        real_text.saved_model_runner(path)(asked) for path in (version_directory, os.path.join(base, "int8", "7"))
    )
    difference = np.abs(right["probabilities"] - answer["probabilities"]).max()
    assert 0 < difference < 0.01


def test_the_verdict_follows_the_figures():
    cost = int8.Cost(40, 0.01, 0.001, 10, 9, {1: 1.2, 32: 1.13})
    accuracy, speed = cost.lines()
    assert "9 of 10 names alike" in accuracy
    assert speed.endswith("1.20 for 1 text, 1.13 for 32 texts: it does not pay on this CPU, but for its size")
    assert cost._replace(times={1: 0.9, 32: 0.8}, num_named=0).lines()[1].endswith("it pays on this CPU")
    assert "names" not in cost._replace(num_named=0).lines()[0]


@pytest.mark.slow(keep=["multiple_choice"])
@pytest.mark.parametrize("name", ["fill_mask", "embeddings", "multiple_choice"])
def test_the_matrices_of_every_kind_of_model_become_integers(name):
    model = saved_model.rebuild(HEADS[name]().model)
    before = sum(weight.value.dtype.size * int(np.prod(weight.shape)) for weight in model.weights)
    int8.quantize(model)
    kinds = {str(weight.dtype) for weight in model.weights if len(weight.shape) == 2 and weight.shape[0] > 2}
    after = sum(weight.value.dtype.size * int(np.prod(weight.shape)) for weight in model.weights)
    assert "int8" in kinds
    assert after < 0.5 * before
