"""Short texts in `bert-serve`: tokens from Python and the head in NumPy give the answers of the whole graph."""

import functools
import itertools
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_classifier import LABELS, assets
from toy_heads import backbone
from toy_saved import ALL_HEADS, PROMPTS, embedder, save_graph

from export.base_path import HEAD_FILE, TEXTS_FILE
from export.heads.classification import Classification
from export.heads.embeddings import SentenceEmbedding
from export.server.runtime import short_texts
from export.server.runtime.head_graph import HeadGraph
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError
from export.verification import probes
from keras_bert.errors import InputError
from keras_bert.files import write_json

_HEADS = ("classification of pairs", "multi_label_classification", "prompt left out")
_MORE = ("classification", "regression of pairs", "embeddings", "embeddings without pooler", "sentence_embedding")
_WITHOUT = ("multiple_choice", "fill_mask", "token_classification", "classification in windows", "search")


@pytest.fixture(scope="module", name="written")
def _written(saved, tmp_path_factory):
    """Head and directory by name."""

    @functools.cache
    def write(name):
        if name in ALL_HEADS:
            return saved(name).head, saved(name).directory
        head = SentenceEmbedding(embedder(**PROMPTS, include_prompt=False), assets())
        return head, save_graph(head, str(tmp_path_factory.mktemp("written")))

    return write


def _load(directory: str) -> ServedModel:
    return ServedModel(directory, "toy", 1, ServerSettings(runtime="onnxruntime"))


def _is_short(text: bytes) -> bool:
    return len(text) <= 500 and text.decode(errors="ignore").encode() == text


@pytest.mark.usefixtures("quick_sessions")
@pytest.mark.parametrize("name", [*_HEADS, *(pytest.param(name, marks=pytest.mark.slow) for name in _MORE)])
def test_short_texts_are_answered_as_by_the_graph(name, written, monkeypatch):
    head, directory = written(name)
    model = _load(directory)
    short = model._short_texts
    texts = [text for text in probes.as_bytes(probes.TEXTS) if _is_short(text)]
    texts += ["hello [SEP] ΟΔΥΣΣΕΥΣ".encode(), b"who was jim " * 9, b"hello", b"hello wonderful " * 12]
    rows = np.array(texts, object)
    columns = [rows, rows[::-1], np.roll(rows, 1)][: len(head.text_inputs)]
    requests = [dict(zip(head.text_inputs, (column[part] for column in columns), strict=True)) for part in _parts(rows)]
    asked = [signature for signature in ("serving_default", "count_tokens") if signature in model.signatures]
    for signature, request in itertools.product(asked, requests):
        assert short(signature, request)
        monkeypatch.setattr(model, "_short_texts", None)
        right = model.run(signature, request)
        monkeypatch.setattr(model, "_short_texts", short)
        answer = model.run(signature, request)
        assert set(answer) == set(right)
        for key, expected in right.items():
            assert answer[key].dtype == expected.dtype, key
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(answer[key], expected, rtol=2e-6, atol=2e-6, err_msg=key)
            else:
                assert answer[key].tolist() == expected.tolist(), key
    model.close()


def _parts(rows: np.ndarray) -> list[slice]:
    return [slice(None), *(slice(row, row + 1) for row in range(len(rows)) if rows[row])]


@pytest.mark.usefixtures("quick_sessions")
def test_the_graph_answers_what_is_not_short(saved, monkeypatch):
    model = _load(saved("classification of pairs").directory)
    short, asked = model._short_texts, []
    encode = short._encode
    monkeypatch.setattr(short, "_encode", lambda *ids: asked.append(ids) or encode(*ids))

    def run(first, second):
        return model.run("serving_default", {"text": np.array(first, object), "text_pair": np.array(second, object)})

    assert len(run([b"hello \xff", b"jim"], [b"hello", b"world"])["label"]) == 2
    assert len(run([b"hello " * 2000], [b"world"])["label"]) == 1
    assert len(run([b""], [b""])["label"]) == 1
    assert len(run([], [])["label"]) == 0
    assert len(run([[b"hello"]], [[b"world"]])["label"]) == 1
    with pytest.raises(ServingError, match="Expected as many rows"):
        run([b"hello", b"who"], [b"world"])
    monkeypatch.setattr(
        short_texts, "_MOST_SCORES", saved("classification of pairs").head.preprocessor.sequence_length ** 2
    )
    assert len(run([b"hello " * 40], [b"world " * 40])["label"]) == 1 == len(asked.pop()[0])
    assert len(run([b"hello " * 40, b"hello"], [b"world " * 40, b""])["label"]) == 2
    assert not asked
    model.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in _WITHOUT])
def test_other_heads_need_their_graph(name):
    assert ALL_HEADS[name]().encoding() is None


def _compare(answer, *inputs: np.ndarray) -> None:
    """Compares the outputs of a function of arrays in NumPy with those in TensorFlow."""
    specs = [tf.TensorSpec([None] * array.ndim, array.dtype, name=f"x{n}") for n, array in enumerate(inputs)]

    def named(*tensors):
        return [tf.identity(value, name=f"answer/{n}") for n, value in enumerate(answer(*tensors))]

    traced = tf.function(named, autograph=False).get_concrete_function(*specs)
    outputs = HeadGraph(traced.graph.as_graph_def(), map(str, range(len(traced.outputs))))(
        {f"x{n}": array for n, array in enumerate(inputs)}
    )
    for number, (output, right) in enumerate(zip(outputs, traced(*map(tf.constant, inputs)), strict=True)):
        assert (output.dtype, output.shape) == (right.numpy().dtype, right.shape), number
        np.testing.assert_allclose(output, right, rtol=2e-6, atol=1e-6, err_msg=str(number))


def test_numpy_computes_what_tensorflow_does():
    def answer(x, y):
        scores, order = tf.math.top_k(y, 2)
        chosen = tf.nn.softmax(1e3 * y), tf.sigmoid(1e2 * y), tf.argmax(y, -1), tf.argmax(y, 0, tf.int32)
        cut = x[..., 0], x[:, tf.newaxis, 1:, ::2], x[-1], x[0, 1:2], tf.range(tf.reduce_max(order))
        return scores, order, *chosen, *cut, tf.math.rsqrt(y * y), tf.nn.relu(y @ tf.ones((4, 2))), tf.stack([y, y])

    random = np.random.default_rng(1)
    y = np.array([[0.5, 0.0, 0.5, 0.25], [-1.0, 2.0, 2.0, 2.0]], np.float32)  # Ties.
    _compare(answer, random.normal(size=(2, 3, 4)).astype(np.float32), y)


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: [tf.matmul(x, x, transpose_b=True)],
        lambda x: [tf.gather(x, tf.argmax(x, -1), batch_dims=1)],
        lambda x: [tf.math.erf(x)],
    ],
)
def test_ops_that_numpy_does_not_compute_are_refused(answer):
    with pytest.raises(NotImplementedError):
        _compare(answer, np.ones((2, 2), np.float32))


@pytest.mark.usefixtures("quick_sessions")
@pytest.mark.parametrize("activation, is_known", [("relu", True), ("gelu", False)])
def test_a_head_of_other_ops_stays_in_the_graph(activation, is_known, tmp_path):
    encoder = backbone()
    hidden = keras.layers.Dense(5, activation)(encoder(encoder.input)["pooled_output"])
    head = Classification(keras.Model(encoder.input, keras.layers.Dense(3)(hidden)), assets(), LABELS)
    model = _load(save_graph(head, str(tmp_path), only="serving_default"))
    assert (model._short_texts is not None) == is_known
    texts = np.array([b"hello", b"who was jim"], object)
    right = head.answer_texts(head.model, {"text": tf.constant(texts.tolist())})
    for _ in range(2):
        probabilities = model.run("serving_default", {"text": texts})["probabilities"]
        np.testing.assert_allclose(probabilities, right["probabilities"], atol=2e-6)
    model.close()


@pytest.mark.usefixtures("quick_sessions")
def test_damaged_files_are_named(written, tmp_path):
    directory = shutil.copytree(written("prompt left out")[1], str(tmp_path / "1"))
    with open(os.path.join(directory, HEAD_FILE), "r+b") as file:
        file.truncate(100)
    with pytest.raises(InputError, match="cannot be loaded as a SavedModel.*Was it copied whole"):
        _load(directory)
    write_json(os.path.join(directory, TEXTS_FILE), {"inputs": ["text"]})
    with pytest.raises(InputError, match="cannot be loaded as a SavedModel.*vocabulary"):
        _load(directory)
