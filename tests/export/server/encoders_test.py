"""`bert-serve --runtime`: the graph's answers, with its encoders in ONNX Runtime."""

import os
import shutil
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_server
from toy_heads import HIDDEN_DIM, backbone, shaken
from toy_saved import ALL_HEADS

from export.base_path import DESCRIPTION_FILE, ENCODERS_FILE
from export.graph.model_copies import rebuild_for_serving
from export.graph.onnx_session import OnnxEncoder
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json

_FAST = ("classification of pairs", "fill_mask")  # Read the first token, and all.


@pytest.mark.parametrize(
    "name", [name if name in _FAST else pytest.param(name, marks=pytest.mark.slow) for name in ALL_HEADS]
)
def test_every_head_answers_as_in_tensorflow(name, saved, quick_sessions):
    for runtime in ("auto", "onnxruntime"):
        model = ServedModel(saved(name).directory, name, 1, ServerSettings(runtime=runtime))
        assert set(model.signatures) == set(saved(name).head.description()["signatures"])
        for probe in saved(name).probes:
            answer = model.run(probe.signature, dict(probe.inputs))
            assert set(answer) == set(probe.outputs)
            decided = slice(None) if probe.undecided is None else ~probe.undecided
            for key, expected in probe.outputs.items():
                message = f"{key} of --runtime={runtime}"
                if expected.dtype.kind == "f":
                    np.testing.assert_allclose(answer[key], expected, rtol=1e-5, atol=1e-5, err_msg=message)
                else:
                    assert np.array_equal(answer[key][decided], expected[decided]), message
        model.close()


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [("tensorflow", []), ("auto", [2, 2, 1]), ("onnxruntime", [2, 2, 1])],  # At first in the graph, too.
    ids=str,
)
def test_which_runtime_computes_and_in_which_thread(runtime, expected, saved, monkeypatch, quick_sessions):
    sizes, encode, threads, run = [], OnnxEncoder.__call__, set(), ServedModel._run

    def spied(encoder, token_ids, *others):
        sizes.append(len(token_ids))
        return encode(encoder, token_ids, *others)

    def noted(*arguments):
        threads.add(threading.current_thread())
        return run(*arguments)

    monkeypatch.setattr(OnnxEncoder, "__call__", spied)
    monkeypatch.setattr(ServedModel, "_run", noted)
    model = ServedModel(saved("classification").directory, "mood", 1, ServerSettings(runtime=runtime))
    head, texts = saved("classification").head, np.array([b"the cat sat", b"who ran", b""], object)
    right, _ = head.expected(head.model, {"text": texts}, head.encode({"text": texts}))["serving_default"]
    for rows in (slice(2), slice(2, 3)):
        answer = model.run("serving_default", {"text": texts[rows]})
        np.testing.assert_allclose(answer["probabilities"], right["probabilities"][rows], atol=1e-5)
    assert sizes == expected
    assert (threading.current_thread() in threads) == (runtime != "tensorflow")
    kept = _variables(model)
    assert len(kept) > 2 if runtime == "tensorflow" else kept == {"classification/kernel", "classification/bias"}
    model.close()


def _variables(model: ServedModel) -> set[str]:
    """Returns the names of TensorFlow's variables that hold numbers."""
    with model._session.graph.as_default() as graph:
        handles = [op.outputs[0] for op in graph.get_operations() if op.type == "VarHandleOp"]
        values = model._session.run(
            [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in handles]
        )
    return {handle.op.name for handle, value in zip(handles, values, strict=True) if value.size}


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "tanh", "linear"])
@pytest.mark.parametrize("first_token_only", [True, False])
def test_the_encoder_equals_keras(activation, first_token_only, monkeypatch):
    if activation in ("tanh", "linear") and first_token_only:
        pytest.skip("one of both is enough")
    settings = {"activation": activation, "pooler_activation": activation, "layer_norm_epsilon": 1e-6}
    reference = shaken(backbone(num_layers=2 if activation == "gelu" else 1, **settings))
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
    runs, run = [], encoder._run
    monkeypatch.setattr(encoder, "_run", lambda inputs: runs.append(len(inputs["token_ids"])) or run(inputs))
    # One text: padded, or not. Slices of 6 tokens: the rows of 1 and 3, of 5, and of 9.
    for rows, columns, tokens in (slice(None), 9, 512), (slice(1), 9, 512), (slice(1), 5, 512), (slice(None), 9, 6):
        monkeypatch.setattr(encoder, "_slice_tokens", tokens)
        pooled, sequence = encoder(*(array[rows, :columns] for array in (ids, segments, mask)))
        np.testing.assert_allclose(pooled, right["pooled_output"][rows], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sequence, expected[rows, :columns], rtol=1e-5, atol=2e-5)
    assert runs == [4, 1, 1, 2, 1, 1]
    pooled, sequence = encoder(ids[:0], segments[:0], mask[:0])
    assert pooled.shape == (0, HIDDEN_DIM) and sequence.shape == (0, 1 if first_token_only else 9, HIDDEN_DIM)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="not on Linux")
@pytest.mark.parametrize("fewer", [0, 1])
def test_threads_for_all_usable_cores_stay_on_theirs(fewer):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    served = rebuild_for_serving(shaken(backbone(num_layers=1)))
    inputs = {name: np.ones((1, 3), np.int32) for name in ("token_ids", "segment_ids", "padding_mask")}
    served(inputs, training=False)
    values = {f"{number}": weight.numpy() for number, weight in enumerate(served.weights)}
    names = {id(weight.value): f"{number}" for number, weight in enumerate(served.weights)}
    before = set(os.listdir("/proc/self/task"))
    encoder = OnnxEncoder(served.describe(names), values.__getitem__, num_threads=len(cores) - fewer)
    own = [os.sched_getaffinity(int(thread)) for thread in set(os.listdir("/proc/self/task")) - before]
    expected = [set(cores)] * (len(cores) - 2) if fewer else [{core} for core in cores[1:]]
    assert sorted(own, key=min) == expected
    assert np.isfinite(encoder(*inputs.values())[0]).all()


def _without(directory: str) -> str:
    os.remove(os.path.join(directory, ENCODERS_FILE))
    return "Expected assets.extra/encoders.json"


def _without_encoders(directory: str) -> str:
    write_json(os.path.join(directory, ENCODERS_FILE), [])
    return "Expected assets.extra/encoders.json"


def _of_unknown_activation(directory: str) -> str:
    descriptions = read_json(os.path.join(directory, ENCODERS_FILE))
    write_json(os.path.join(directory, ENCODERS_FILE), [{**encoder, "activation": "swish"} for encoder in descriptions])
    return "swish"


_TEXT = {"text": np.array([b"the cat sat"], object)}


@pytest.fixture(scope="module", name="in_tensorflow")
def _in_tensorflow(saved):
    """The probabilities of the text."""
    with toy_server.quick_sessions():
        model = ServedModel(saved("classification").directory, "mood", 1, ServerSettings(runtime="tensorflow"))
    probabilities = model.run("serving_default", _TEXT)["probabilities"].tolist()
    model.close()
    return probabilities


@pytest.mark.usefixtures("quick_sessions")
@pytest.mark.parametrize("change", [_without, _without_encoders, _of_unknown_activation])
def test_what_onnx_runtime_cannot_compute_is_tensorflows(change, saved, in_tensorflow, tmp_path, caplog):
    directory = str(tmp_path / "1")
    shutil.copytree(saved("classification").directory, directory)
    write_json(os.path.join(directory, DESCRIPTION_FILE), saved("classification").head.description())
    reason = change(directory)
    with pytest.raises(InputError, match=f"cannot compute the encoder.*{reason}.*leave out --runtime=onnxruntime"):
        ServedModel(directory, "mood", 1, ServerSettings(runtime="onnxruntime"))
    model = ServedModel(directory, "mood", 1, ServerSettings(runtime="auto"))
    assert model.run("serving_default", _TEXT)["probabilities"].tolist() == in_tensorflow
    model.close()
    (record,) = caplog.records
    assert reason in record.getMessage() and record.getMessage().startswith("TensorFlow computes the encoder.")


_WITHOUT_ONNX_RUNTIME = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "onnxruntime" else find(name, *more)
from export.local_server import console_main
console_main()
"""


@pytest.mark.parametrize("runtime", ["auto", "tensorflow"])
def test_without_onnx_runtime_tensorflow_serves_and_the_log_says_so(saved, runtime, tmp_path):
    shutil.copytree(saved("classification").directory, tmp_path / "1")
    write_json(str(tmp_path / "1" / DESCRIPTION_FILE), saved("classification").head.description())
    flags = [f"--model_base_path={tmp_path}", "--rest_api_port=0", "--port=-1", f"--runtime={runtime}"]
    with toy_server.run_command("-c", _WITHOUT_ONNX_RUNTIME, *flags) as process:
        assert process.stdout.readline().startswith("Serving default")
        process.terminate()
        _, errors = process.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if "onnxruntime" in line]
    assert len(lines) == (runtime == "auto")
    assert all("TensorFlow computes the encoder." in line and "keras-bert-zoo[onnx]" in line for line in lines)
