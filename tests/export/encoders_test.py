"""`bert-serve --runtime=onnxruntime`: the graph's answers, with its encoders in ONNX Runtime."""

import importlib.util
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl
from toy_heads import HIDDEN_DIM, backbone, shaken
from toy_saved import ALL_HEADS

from export import encoders
from export.base_path import ENCODERS_FILE
from export.local_server import serve
from export.onnx_encoder import OnnxEncoder
from export.rebuilding import rebuild_for_serving
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from keras_bert.errors import InputError
from keras_bert.files import read_json

_FAST = ("classification of pairs", "fill_mask")  # Read the first token, and all.


@pytest.mark.parametrize(
    "name", [name if name in _FAST else pytest.param(name, marks=pytest.mark.slow) for name in ALL_HEADS]
)
def test_every_head_answers_as_in_tensorflow(name, saved):
    theirs = ServedModel(saved(name).directory, name, 1)
    ours = ServedModel(saved(name).directory, name, 1, runtime="onnxruntime")
    assert set(ours.signatures) == set(theirs.signatures)
    for probe in saved(name).probes:
        for model in (theirs, ours):
            answer = model.run(probe.signature, dict(probe.inputs))
            assert set(answer) == set(probe.outputs)
            decided = slice(None) if probe.undecided is None else ~probe.undecided
            for key, expected in probe.outputs.items():
                if expected.dtype.kind == "f":
                    np.testing.assert_allclose(answer[key], expected, rtol=1e-5, atol=1e-5, err_msg=key)
                else:
                    assert np.array_equal(answer[key][decided], expected[decided]), key
    ours.close()
    theirs.close()


def test_weights_that_only_the_encoder_reads_leave_the_graph(saved):
    directory = saved("fill_mask").directory
    meta_graph = loader_impl.SavedModelLoader(directory).get_meta_graph_def_from_tags(["serve"])
    with tf.Graph().as_default():
        unread = encoders.replace(meta_graph, directory)
    handles = [node.name for node in meta_graph.graph_def.node if node.op == "VarHandleOp"]
    (description,) = read_json(os.path.join(directory, ENCODERS_FILE))
    # The masked-LM head reads the token table, too.
    assert len(unread) == len(description["weights"]) - 1
    assert set(unread) < set(handles) and not [name for name in unread if "token_embedding" in name]
    calls = [n for f in meta_graph.graph_def.library.function for n in f.node_def if n.op.startswith("PyFunc")]
    assert len(calls) == 1  # For all signatures.


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "tanh", "linear"])
@pytest.mark.parametrize("first_token_only", [True, False])
def test_the_encoder_equals_keras(activation, first_token_only):
    if activation in ("tanh", "linear") and first_token_only:
        pytest.skip("one of both is enough")
    reference = shaken(backbone(activation=activation, layer_norm_epsilon=1e-6))
    served = rebuild_for_serving(reference)
    served.first_token_only = first_token_only
    generator = np.random.default_rng(0)
    lengths = np.array([5, 1, 9, 3], np.int32)
    mask = (np.arange(9) < lengths[:, np.newaxis]).astype(np.int32)
    ids, segments = (generator.integers(0, size, mask.shape).astype(np.int32) for size in (20, 2))
    served({"token_ids": ids, "segment_ids": segments, "padding_mask": mask}, training=False)
    values = {f"{number}": weight.numpy() for number, weight in enumerate(served.weights)}
    names = {id(weight.value): f"{number}" for number, weight in enumerate(served.weights)}
    encoder = OnnxEncoder(served.describe(names), values.__getitem__, num_threads=1)

    right = reference({"token_ids": ids, "segment_ids": segments, "padding_mask": mask}, training=False)
    states = keras.ops.convert_to_numpy(right["sequence_output"]) * mask[..., np.newaxis]
    expected = states[:, :1] if first_token_only else states
    for rows, columns in (slice(None), 9), (slice(1), 9), (slice(1), 5), (slice(2, 3), 9):  # One text: padded, or not.
        pooled, found = encoder(*(array[rows, :columns] for array in (ids, segments, mask)))
        np.testing.assert_allclose(pooled, right["pooled_output"][rows], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found, expected[rows, :columns], rtol=1e-5, atol=2e-5)
    pooled, found = encoder(ids[:0], segments[:0], mask[:0])
    assert pooled.shape == (0, HIDDEN_DIM) and found.shape == (0, 1 if first_token_only else 9, HIDDEN_DIM)


def test_a_version_without_a_described_encoder_is_refused(saved):
    directory = saved("classification").directory
    os.remove(os.path.join(directory, ENCODERS_FILE))
    with pytest.raises(InputError, match="describes no encoder for --runtime=onnxruntime.*encoders.json.*leave out"):
        ServedModel(directory, "mood", 1, runtime="onnxruntime")


def test_missing_packages_are_named(monkeypatch, saved):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    settings = ServerSettings(model_base_path=saved("classification").base, runtime="onnxruntime")
    with pytest.raises(InputError, match=r"--runtime=onnxruntime needs onnx and onnxruntime\. Run: pip install"):
        serve(settings)
