"""A classifier exported for real and asked over HTTP: every signature, hostile texts, ids that no embedding has."""

import base64

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_server

from export import saved_model
from export.heads.classification import Classification
from export.verification import verify
from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
from keras_bert.answers import text_bounds
from keras_bert.models import BertTextClassifier

LABELS = ["bad", "good"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat"]
V, LONGEST, SEGMENTS = len(VOCABULARY), 24, 2


@pytest.fixture(scope="module")
def classifier() -> keras.Model:
    backbone = BertBackbone(
        V,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=LONGEST,
        num_segments=SEGMENTS,
    )
    model = BertTextClassifier(backbone, len(LABELS), compile=False)
    generator = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.3, size=weight.shape))
    return model


@pytest.fixture(scope="module")
def preprocessor() -> BertPreprocessor:
    return BertPreprocessor(BertTokenizer(VOCABULARY), LONGEST)


@pytest.fixture(scope="module")
def directory(classifier, preprocessor, tmp_path_factory) -> str:
    base = tmp_path_factory.mktemp("served") / "pets"
    return saved_model.export_model(classifier, preprocessor, str(base), labels=LABELS, with_cc="off")


@pytest.fixture(scope="module")
def ask(directory):
    """Sends a request body to `:predict`, or to another verb; returns status and answer."""
    base_path = directory.rpartition("/")[0]
    settings = {"name": "pets", "max_request_megabytes": 4}
    with toy_server.quick_sessions(), toy_server.running(base_path, **settings) as server:

        def send(body: dict, verb: str = "predict") -> tuple[int, dict]:
            return toy_server.ask(server, "POST", f"/v1/models/pets:{verb}", body)

        yield send


@pytest.fixture
def right(classifier, preprocessor):
    """The Keras model's probabilities for texts."""
    return lambda texts: tf.nn.softmax(classifier(preprocessor(tf.constant(texts)), training=False)).numpy()


# === Texts ===


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("the cat sat", b"the cat sat"),
        ("", b""),
        ({"b64": base64.b64encode(b"the \xff\xfe cat \xe4\xb8").decode()}, b"the \xff\xfe cat \xe4\xb8"),
        ("the cat " * 2**17, b"the cat " * 2**17),
    ],
    ids=["plain", "empty", "invalid UTF-8", "1 MB"],
)
def test_a_text_gets_the_models_answer(ask, right, sent, text):
    status, answer = ask({"instances": [sent]})
    assert (status, list(answer)) == (200, ["predictions"])
    (prediction,) = answer["predictions"]
    (probabilities,) = right([text])
    np.testing.assert_allclose(prediction["probabilities"], probabilities, atol=1e-5)
    assert prediction["label"] == LABELS[np.argmax(probabilities)]
    assert prediction["score"] == max(prediction["probabilities"])
    assert ask({"instances": [{"text": sent}]}) == (200, answer)


def test_no_instances_are_refused_and_no_rows_of_a_column_are_not(ask):
    """As TensorFlow Serving: a list of no rows is an error, a column of no rows is a batch of none."""
    status, answer = ask({"instances": []})
    assert status == 400
    assert "No values in the 'instances' list" in answer["error"]
    assert ask({"inputs": []}) == (200, {"outputs": {"label": [], "score": [], "probabilities": []}})


def test_classify(ask, right):
    status, answer = ask({"signature_name": "classify", "examples": [{"text": "a cat"}, {"text": ""}]}, "classify")
    assert status == 200
    assert [[label for label, _ in row] for row in answer["results"]] == [LABELS, LABELS]
    scores = [[score for _, score in row] for row in answer["results"]]
    np.testing.assert_allclose(scores, right(["a cat", ""]), atol=1e-5)


# === Token ids ===


def _ids(token_ids=((2, 5, 6, 3), (2, 9, 3, 0)), segment_ids=None, lengths=(4, 3)) -> dict:
    segment_ids = np.zeros_like(token_ids).tolist() if segment_ids is None else segment_ids
    return {"token_ids": np.array(token_ids).tolist(), "segment_ids": segment_ids, "lengths": list(lengths)}


def test_token_ids_get_the_answer_of_their_text(ask, right):
    columns = _ids()
    status, answer = ask({"signature_name": "token_ids", "inputs": columns})
    assert status == 200
    np.testing.assert_allclose(answer["outputs"]["probabilities"], right(["the cat", "a"]), atol=1e-5)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    status, by_row = ask({"signature_name": "token_ids", "instances": rows})
    probabilities = [row["probabilities"] for row in by_row["predictions"]]
    np.testing.assert_allclose(probabilities, answer["outputs"]["probabilities"], atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"token_ids": [[2, 5, -1, 3], [2, 9, 3, 0]]}, f"`token_ids` must be from 0 to {V - 1}. Received"),
        ({"token_ids": [[2, 5, V, 3], [2, 9, 3, 0]]}, f"`token_ids` must be from 0 to {V - 1}. Received"),
        ({"token_ids": [[2, 5, 6, 3], [2, 9, 3, -1]]}, "Received least and largest:] [-1] [9]"),
        ({"token_ids": [[2, 5, 6, 3], [2, 9, 3, 2**31 - 1]]}, f"Received least and largest:] [2] [{2**31 - 1}]"),
        ({"segment_ids": [[0, 0, -1, 0], [0, 0, 0, 0]]}, "`segment_ids` must be from 0 to 1. Received"),
        ({"segment_ids": [[0, 0, SEGMENTS, 0], [0, 0, 0, 0]]}, "`segment_ids` must be from 0 to 1. Received"),
        (
            {"lengths": [4, 0]},
            "`lengths` must be from 1 to the length of `token_ids`. Received least and largest:] [0] [4]",
        ),
        ({"lengths": [4, -3]}, "`lengths` must be from 1 to"),
        ({"lengths": [5, 1]}, "`lengths` must be from 1 to"),
        ({"lengths": [4]}, "Expected as many rows in each input. Received: {'lengths': 1, "),
        ({"segment_ids": [[0, 0, 0, 0]]}, "Expected as many rows in each input. Received: {"),
        ({"segment_ids": [[0], [0]]}, "`segment_ids` must fit the shape of `token_ids`"),
        ({"token_ids": np.full([2, LONGEST + 1], 5)}, f"`token_ids` must be 1 to {LONGEST} long. Received"),
        ({"token_ids": np.zeros([2, 0])}, " must be "),
    ],
)
def test_ids_that_no_embedding_has_are_refused(ask, wrong, message):
    status, answer = ask({"signature_name": "token_ids", "inputs": _ids(**wrong)})
    assert status == 400
    assert message in answer["error"]
    assert "\n" not in answer["error"]


def test_the_extremes_are_taken(directory):
    signature = tf.saved_model.load(directory).signatures["token_ids"]
    for length in (1, LONGEST):
        empty = tf.zeros([0, length], tf.int32)
        answer = signature(token_ids=empty, segment_ids=empty, lengths=tf.zeros([0], tf.int32))
        assert answer["probabilities"].shape == (0, len(LABELS))
        ids = tf.fill([2, length], V - 1)
        answer = signature(token_ids=ids, segment_ids=ids * 0 + SEGMENTS - 1, lengths=tf.constant([1, length]))
        assert np.isfinite(answer["probabilities"]).all()


def test_the_checks_are_ops_that_tensorflow_serving_has(directory):
    meta_graph = verify.read_meta_graph(directory)
    ops = {node.op for function in meta_graph.graph_def.library.function for node in function.node_def}
    assert "Assert" in ops
    assert verify.graph_findings(meta_graph) == []


def test_the_checks_take_their_sizes_from_the_backbone(classifier):
    backbone = text_bounds.find_backbone(classifier)
    sizes = (backbone.vocabulary_size, backbone.num_segments, backbone.max_sequence_length)
    assert sizes == (V, SEGMENTS, LONGEST)


def test_the_description_of_a_model_of_windows_says_what_is_explained(classifier, preprocessor):
    described = Classification(classifier, preprocessor, LABELS, long_text="mean").description()["signatures"]
    assert "read, in windows of 22, whose outputs" in described["serving_default"]["inputs"]["text"]
    assert described["explain"]["inputs"] == {"text": "string: its first sequence is explained"}


def test_a_classifier_of_pairs_names_the_label_that_ranks(classifier, preprocessor):
    head = Classification(classifier, preprocessor, labels=["match", "other"], num_texts=2)
    assert head.about().summary.endswith("bert-serve's /rerank goes by the probability of other.")
    assert "rerank" not in Classification(classifier, preprocessor, labels=LABELS).about().summary


def test_shares_have_the_rounding_errors_of_the_log_odds(classifier, preprocessor):
    probes = Classification(classifier, preprocessor, LABELS).probes(classifier)
    probe = next(probe for probe in probes if probe.scale > 1)
    scores = np.float64(probe.outputs["score"])
    assert probe.signature == "explain" and len(scores) > 1
    assert probe.scale == pytest.approx(np.abs(np.log(scores / (1 - scores))).max(), rel=1e-5)
