"""OpenAI's embeddings and list of models, and rerankings of TEI and Cohere, against the models' own answers."""

import base64
import http.client
import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
import toy_server
from repository import ROOT
from toy_server import fits

from export import companion_files
from export.server import search_api
from export.server.assembly import running_server
from export.server.config_files import ModelSettings
from export.server.servable import Signature
from export.server.server_settings import ServerSettings

TEXTS = ["the cat sat", "", "a longer text of some words on the mat"]


def _save_pairs(directory: str) -> None:
    """A SavedModel whose second class is the likelier, the longer the second text is."""
    text = tf.TensorSpec([None], tf.string)

    @tf.function(input_signature=[text, text])
    def score(text, text_pair):
        logit = tf.cast(tf.strings.length(text_pair) - tf.strings.length(text), tf.float32) / 4.0
        return {"probabilities": tf.nn.softmax(tf.stack([tf.zeros_like(logit), logit], axis=1))}

    tf.saved_model.save(tf.Module(), directory, signatures={"serving_default": score})


@pytest.fixture(scope="module", name="models")
def _models(saved, tmp_path_factory):
    """Name -> base path."""
    embedder, regression, triples = map(saved, ("sentence_embedding", "regression of pairs", "classification of pairs"))
    companion_files.write_extras(embedder.directory, embedder.head)
    pairs = str(tmp_path_factory.mktemp("models") / "pairs")
    _save_pairs(f"{pairs}/1")
    return {"vectors": embedder.base, "pairs": pairs, "score": regression.base, "triples": triples.base}


def _running(models, **settings):
    settings = ServerSettings(rest_api_port=0, port=-1, runtime="tensorflow", max_request_rows=50, **settings)
    return running_server([ModelSettings(*item) for item in models.items()], settings)


@pytest.fixture(scope="module", name="server")
def _server(models):
    with toy_server.quick_sessions(), _running(models) as running:
        yield running


@pytest.fixture(scope="module", name="document")
def _document(server):
    return toy_server.ask(server, "GET", "/openapi.json")[1]


@pytest.fixture(scope="module", name="vectors")
def _vectors(server):
    _, answer = toy_server.ask(server, "POST", "/v1/models/vectors:predict", {"instances": TEXTS})
    return np.array(answer["predictions"], np.float32)


def embed(server, **body):
    status, answer = toy_server.ask(server, "POST", "/v1/embeddings", body)
    assert status == 200, answer
    return answer


# === Embeddings ===


def test_texts_become_the_models_own_vectors(server, vectors, saved):
    answer = embed(server, model="vectors", input=TEXTS, user="someone")
    assert [answer["object"], answer["model"]] == ["list", "vectors"]
    assert [(entry["object"], entry["index"]) for entry in answer["data"]] == [
        ("embedding", index) for index in range(3)
    ]
    np.testing.assert_allclose([entry["embedding"] for entry in answer["data"]], vectors, atol=1e-5)
    encoded = saved("sentence_embedding").head.encode({"text": np.array([text.encode() for text in TEXTS], object)})
    num_tokens = int(np.sum(encoded["padding_mask"]))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    np.testing.assert_allclose(embed(server, input=TEXTS[0])["data"][0]["embedding"], vectors[0], atol=1e-5)


def test_base64_holds_the_same_numbers(server, vectors):
    answer = embed(server, model="vectors", input=TEXTS, encoding_format="base64")
    rows = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in answer["data"]]
    np.testing.assert_allclose(rows, vectors, atol=1e-5)


def test_nine_digits_tell_float32_apart():
    numbers = np.random.default_rng(1).integers(0, 2**31 - 2**24, 1000, np.uint32).view(np.float32)
    np.testing.assert_array_equal(np.float32(json.loads(search_api._numbers_of(numbers))), numbers)


def test_nan_and_infinities_are_written_as_predict_writes_them():
    numbers = np.float32([0.2, np.nan, np.inf, -np.inf])
    assert search_api._numbers_of(numbers) == "[0.2, NaN, Infinity, -Infinity]"


def test_dimensions_cut_a_vector_and_normalize_it(server, vectors):
    cut = [entry["embedding"] for entry in embed(server, input=TEXTS, dimensions=2)["data"]]
    expected = vectors[:, :2] / np.linalg.norm(vectors[:, :2], axis=1, keepdims=True)
    np.testing.assert_allclose(cut, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "vectors"}, 400, "Expected 'input' to be a text"),
        ({"model": "vectors", "input": []}, 400, "Expected 'input' to be a text"),
        ({"model": "vectors", "input": ["a", 3]}, 400, "input[1]: expected a text. Received: 3"),
        ({"model": "vectors", "input": ["\ud800"]}, 400, "half a surrogate pair"),
        ({"model": "vectors", "input": "a", "dimensions": 0}, 400, "from 1 to 6. Received: 0"),
        ({"model": "vectors", "input": "a", "dimensions": True}, 400, "'dimensions'"),
        ({"model": "vectors", "input": "a", "dimensions": 7}, 400, "from 1 to 6. Received: 7"),
        (
            {"model": "vectors", "input": "a", "encoding_format": "hex"},
            400,
            "Expected 'encoding_format' to be 'float' or 'base64'",
        ),
        ({"model": "vectors", "input": {"b64": "YQ=="}}, 400, "Expected 'input' to be a text"),
        ({"model": "vectors", "input": [{"b64": "YQ=="}]}, 400, "input[0]: expected a text."),
        ({"model": "vectors", "input": [1, 2]}, 400, "check_embedding_ctx_length=False"),
        ({"model": "vectors", "input": [[1, 2]]}, 400, "check_embedding_ctx_length=False"),
        ({"model": "vectors", "input": ["a"] * 51}, 400, "The request has 51 rows; the limit is 50"),
        ({"model": "pairs", "input": "a"}, 400, "The model 'pairs' gives no embeddings of texts."),
        ({"model": ["vectors"], "input": "a"}, 400, "Received: ['vectors']. Models that can answer: ['vectors']"),
        ({"model": 1, "input": "a"}, 400, "Received: 1. Models that can answer: ['vectors']"),
        ({"model": "nope", "input": "a"}, 404, "Latest(nope)"),
        (b"{", 400, "JSON parse error"),
    ],
    ids=str,
)
def test_errors_have_openais_form(server, document, body, status, message):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer_status, answer = toy_server.ask(server, "POST", "/v1/embeddings", raw)
    assert answer_status == status and message in answer["error"]["message"], answer
    code = "model_not_found" if status == 404 else None
    assert answer["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": None,
        "code": code,
    }
    assert fits(document, document["paths"]["/v1/embeddings"]["post"]["responses"]["default"], answer)


@pytest.mark.parametrize(("path", "body"), [("/v1/embeddings", b"{"), ("/rerank", b"[]")])
def test_a_body_that_names_no_model_is_counted(server, path, body):
    counts = []
    for _ in range(2):
        assert toy_server.ask(server, "POST", path, body)[0] in (400, 422)
        counts.append(toy_server.figure(server, "request_count", model_name="", status="INVALID_ARGUMENT"))
    assert counts[1] == counts[0] + 1


def test_a_model_without_counts_says_no_usage(saved, tmp_path):
    """Such as an export of an earlier version."""
    text = tf.TensorSpec([None], tf.string)
    embedding = tf.function(lambda text: {"embedding": tf.ones([tf.size(text), 2])}, input_signature=[text])
    tf.saved_model.save(tf.Module(), str(tmp_path / "old" / "1"), signatures={"serving_default": embedding})
    with _running({"old": str(tmp_path / "old")}) as server:
        answer = embed(server, input="a")
        assert answer["usage"] is None and answer["data"][0]["embedding"] == [1.0, 1.0]


def test_models_are_listed_and_hide_no_model_of_tensorflow_serving(server, document):
    status, listed = toy_server.ask(server, "GET", "/v1/models")
    assert status == 200 and [model["id"] for model in listed["data"]] == ["pairs", "score", "triples", "vectors"]
    assert all(model["object"] == "model" and model["created"] > 1.7e9 for model in listed["data"])
    assert fits(document, document["paths"]["/v1/models"]["get"]["responses"]["200"], listed)
    assert "model_version_status" in toy_server.ask(server, "GET", "/v1/models/vectors")[1]
    assert toy_server.ask(server, "GET", "/health") == (200, {"status": "ok"})


# === Rerankings ===

QUERY, PASSAGES = "ab", ["abcd", "a", "abcdefghij", "abcd"]
LOGITS = [(len(text) - 2) / 4 for text in PASSAGES]
ORDER = [2, 0, 3, 1]  # Of equal passages the first comes first.


def sigmoid(number: float) -> float:
    return 1 / (1 + math.exp(-number))


def rerank(server, path="/rerank", **body):
    return toy_server.ask(server, "POST", path, {"model": "pairs", "query": QUERY, **body})


@pytest.mark.parametrize(("raw", "activate"), [(False, sigmoid), (True, float)])
def test_teis_ranks(server, raw, activate):
    status, ranks = rerank(server, texts=PASSAGES, raw_scores=raw, truncate=True)
    assert status == 200 and [rank["index"] for rank in ranks] == ORDER
    assert [rank["score"] for rank in ranks] == pytest.approx([activate(LOGITS[index]) for index in ORDER], abs=1e-5)
    assert set(ranks[0]) == {"index", "score"}


def test_teis_texts_come_back_when_asked_for(server):
    _, ranks = rerank(server, texts=PASSAGES, return_text=True)
    assert [rank["text"] for rank in ranks] == [PASSAGES[index] for index in ORDER]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_coheres_results(server, path):
    documents = [{"text": PASSAGES[0]}, *PASSAGES[1:]]
    status, answer = rerank(server, path, documents=documents, top_n=2, return_documents=True)
    assert (status, answer["model"]) == (200, "pairs")
    assert [result["index"] for result in answer["results"]] == ORDER[:2]
    assert [result["document"]["text"] for result in answer["results"]] == [PASSAGES[index] for index in ORDER[:2]]
    expected = [sigmoid(LOGITS[index]) for index in ORDER[:2]]
    assert [result["relevance_score"] for result in answer["results"]] == pytest.approx(expected, abs=1e-5)
    assert set(rerank(server, path, texts=None, documents=PASSAGES)[1]["results"][0]) == {"index", "relevance_score"}


def test_a_regression_scores_pairs_by_its_number(server):
    rows = [{"text": "cat", "text_pair": text} for text in TEXTS]
    _, answer = toy_server.ask(server, "POST", "/v1/models/score:predict", {"instances": rows})
    _, ranks = rerank(server, model="score", query="cat", texts=TEXTS, raw_scores=True)
    scores = answer["predictions"]
    assert [rank["score"] for rank in ranks] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    assert [scores[rank["index"]] for rank in ranks] == sorted(scores, reverse=True)


def test_two_labels_that_do_not_exclude_each_other_score_no_pairs():
    def of(names):
        specs = {name: tf.TensorSpec([None, 2] if name == "probabilities" else [None]) for name in names}
        return {"serving_default": Signature({"text": specs[names[0]], "text_pair": specs[names[0]]}, specs)}

    assert search_api.scores_of(of(["label", "score", "probabilities"])) == "probabilities"
    assert search_api.scores_of(of(["labels", "scores", "num_labels", "probabilities"])) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": 3, "texts": ["a"]}, "Expected 'query' to be a text. Received: 3"),
        ({"query": "a"}, "Expected 'documents' to be a list of texts"),
        ({"query": "a", "texts": None}, "Expected 'documents' to be a list of texts"),
        ({"query": "a", "documents": []}, "Expected 'documents' to be a list of texts. Received: []"),
        ({"query": "a", "documents": [{"title": "b"}]}, "documents[0]: expected a text"),
        ({"query": "a", "texts": ["b", None]}, "texts[1]: expected a text. Received: None"),
        ({"query": "a", "texts": ["b"], "raw_scores": 1}, "Expected 'raw_scores' to be true or false"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "Expected 'top_n' to be a whole number"),
        ({"query": "a", "texts": ["b"] * 51}, "The request has 51 rows; the limit is 50"),
        ({"query": "a", "texts": ["b"], "model": "triples"}, "The model 'triples' does not score pairs"),
        ({"query": "a", "texts": ["b"], "model": ""}, "Received: ''. Models that can answer: ['pairs', 'score']"),
        ({"query": "a", "texts": ["b"], "model": None}, "Models that can answer: ['pairs', 'score']"),
    ],
    ids=str,
)
def test_errors_have_the_form_of_their_path(server, document, body, message):
    for path, keys in (("/rerank", {"error", "error_type"}), ("/v1/rerank", {"message"})):
        status, answer = rerank(server, path, **body)
        assert status == 400 and set(answer) == keys and message in answer.get("error", answer.get("message")), answer
        assert answer.get("error_type", "Validation") == "Validation"
        assert fits(document, document["paths"][path]["post"]["responses"]["default"], answer)


def test_the_description_admits_what_is_answered_and_refuses_what_is_not(server, document):
    asked = {
        "/v1/embeddings": [
            {"input": TEXTS},
            {"input": "a", "model": "vectors", "dimensions": 3, "encoding_format": "base64", "user": "me"},
            {"input": ""},
            {"input": []},
            {"input": 3},
            {"input": [1]},
            {"input": [[1]]},
            {"input": "a", "model": "pairs"},
            {"input": "a", "dimensions": 0},
        ],
        "/rerank": [
            {"model": "pairs", "query": "a", "texts": ["b"], "return_text": True},
            {"model": "score", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True},
            {"query": "a", "texts": ["b"]},
            {"model": "pairs", "query": "a", "texts": None, "documents": ["b"]},
            {"model": "pairs", "query": "a", "texts": ["b"], "documents": None},
            {"model": "pairs", "query": "a", "texts": None},
            {"model": "pairs", "query": "a", "texts": 3, "documents": ["b"]},
            {"model": "pairs", "query": "a", "texts": []},
            {"model": "pairs", "query": "a", "texts": ["b"], "top_n": 0},
            {"model": "triples", "query": "a", "texts": ["b"]},
        ],
    }
    for path, bodies in asked.items():
        described = document["paths"][path]["post"]
        for body in bodies:
            status, answer = toy_server.ask(server, "POST", path, body)
            assert fits(document, described["requestBody"], body) == (status == 200), body
            assert fits(document, described["responses"]["200" if status == 200 else "default"], answer)


# === Where the time goes ===


def timings_of(server, path, body) -> dict[str, float]:
    """Milliseconds by phase."""
    connection = http.client.HTTPConnection("127.0.0.1", server.rest.server_port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body))
        header = connection.getresponse().headers["Server-Timing"]
    finally:
        connection.close()
    return {name: float(value) for name, value in (part.split(";dur=") for part in header.split(", "))}


@pytest.mark.parametrize("has_batching", [False, True])
def test_server_timing_tells_the_phases(server, models, has_batching):
    def check(server):
        spent = timings_of(server, "/v1/embeddings", {"model": "vectors", "input": TEXTS})
        assert list(spent) == ["queue", "tokenization", "inference", "total"]
        assert 0 < spent["inference"] < spent["total"] and sum(spent.values()) <= 2 * spent["total"]
        assert list(timings_of(server, "/v1/models/nope:predict", {})) == ["total"]

    if not has_batching:
        check(server)
        return
    from export.server.config_files import BatchingParameters

    settings = ServerSettings(rest_api_port=0, port=-1, runtime="tensorflow")
    batching = BatchingParameters(batch_timeout_micros=200_000, num_batch_threads=1)
    with running_server([ModelSettings("vectors", models["vectors"])], settings, batching) as batched:
        check(batched)
        # Both runs, of the count and of the vectors, wait for more requests that do not come.
        spent = timings_of(batched, "/v1/embeddings", {"input": TEXTS})
        assert spent["queue"] > 399 and spent["inference"] < spent["total"] - 399


# === The page ===


def test_the_commands_of_the_page_are_answered(server):
    """Those of curl in docs/serving.md, on models of these names."""
    if not shutil.which("curl"):
        pytest.skip("curl is not installed.")
    section = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8").partition("\n## Search stacks\n")[2]
    commands = re.findall(r"^curl (?:.*\\\n)*.*$", section.partition("\n## ")[0], re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        command = command.replace("localhost:8501", f"localhost:{server.rest.server_port}")
        done = subprocess.run(
            ["bash", "-c", f"KEY=a-key; {command} -sS --fail-with-body"], capture_output=True, text=True
        )
        assert done.returncode == 0 and json.loads(done.stdout), (command, done.stdout, done.stderr)
