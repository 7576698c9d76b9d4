"""Search: the passages that a SavedModel finds, beside numpy, for one block of passages and for several."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import toy_saved
from toy_classifier import PIECES, VOCABULARY, assets
from toy_heads import backbone, shaken

from export import saved_model
from export.heads import search
from export.heads.loading import load_head
from export.verification import cc_check, verify
from keras_bert import BertPreprocessor, BertTextClassifier, BertTextEmbedder, BertTokenizer
from keras_bert.answers import nearest, pieces
from keras_bert.answers.rules import unit
from keras_bert.errors import InputError
from tasks.fine_tuning.model_files import save_model

WORDS = [piece for piece in PIECES if not piece.startswith("##")]


def write(path, count) -> str:
    generator = np.random.default_rng(1)
    path.write_text("".join(f"{' '.join(generator.choice(WORDS, 5))}\n" for _ in range(count)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module", name="embedder")
def _embedder():
    return toy_saved.embedder()


class OfRandomVectors(search.Search):
    """Passages whose vectors take no time."""

    def _embed(self, texts):
        vectors = np.random.default_rng(2).normal(size=(len(texts), self.model.output_shape[-1]))
        return unit(vectors.astype(np.float32))


def assert_nearest(hits, embeddings, head, path) -> None:
    """Compares what was found with the cosines of all passages in numpy, and with the lines of their file."""
    vectors = embeddings.numpy()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    scores, hits = vectors @ head.vectors().T, {name: value.numpy() for name, value in hits.items()}
    assert hits["indices"].shape == (len(vectors), head.top_k)
    np.testing.assert_allclose(hits["scores"], -np.sort(-scores, axis=1)[:, : head.top_k], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(scores, hits["indices"], 1), hits["scores"], atol=1e-5)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [[text.decode() for text in row] for row in hits["passages"]] == [
        [lines[index] for index in row] for row in hits["indices"]
    ]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("count", [3, 64, 150], ids=["fewer than asked", "whole blocks", "a part of a block"])
def test_blocks_of_passages_find_what_numpy_finds(tmp_path, monkeypatch, embedder, count, dtype):
    monkeypatch.setattr(nearest, "_BLOCK", 32)
    head = OfRandomVectors(embedder, assets(), write(tmp_path / "p.txt", count), 5, dtype)
    assert head.top_k == min(count, 5)
    find = tf.function(head.find, input_signature=[tf.TensorSpec([None, 6])])
    embeddings = tf.constant(unit(np.random.default_rng(3).normal(size=(50, 6)).astype(np.float32)))
    assert_nearest(find(embeddings), embeddings, head, tmp_path / "p.txt")
    assert (head.recall == 1.0) if dtype == "float32" or count == 3 else (0.5 < head.recall <= 1.0)


def test_what_int8_loses_is_measured_in_bounded_memory(tmp_path, monkeypatch, embedder):
    """All scores of its 1,000 questions at once would take 16 KB for each passage."""
    vectors = unit(np.random.default_rng(0).normal(size=(20_000, 6)).astype(np.float32))
    monkeypatch.setattr(search.Search, "_embed", lambda *_: vectors)
    passages = write(tmp_path / "p.txt", 20_000)
    tracemalloc.start()
    head = search.Search(embedder, assets(), passages, 5, "int8")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e7 and 0.5 < head.recall < 1.0


QUESTIONS = np.array([b"the cat", b"on a mat", b""], object)


def test_a_trained_embedder_searches_a_file(tmp_path, monkeypatch, embedder):
    """What `bert-export --model_dir --task=search --passages` does, verified in a fresh process."""
    monkeypatch.setattr(nearest, "_BLOCK", 32)
    task = {"task": "sentence_embedding", "sequence_length": 16, "score_scale": 1.0}
    save_model(str(tmp_path / "model"), embedder, BertTokenizer(VOCABULARY), task)
    settings = {"passages": write(tmp_path / "p.txt", 40), "top_k": 4, "passages_dtype": "int8"}
    head = load_head(str(tmp_path / "model"), "search", **settings)
    assert head.preprocessor.sequence_length == 16
    version = saved_model.export_head(head, str(tmp_path / "served" / "find"), with_cc="off")
    report = saved_model.read_report(version)
    assert report.signatures == ["count_tokens", "embed", "query", "serving_default", "token_ids"]
    assert head.description()["num_passages"] == 40 and "4 of 40 passages" in head.about().summary
    signatures = tf.saved_model.load(version).signatures
    hits, answer = (signatures[name](tf.constant(QUESTIONS)) for name in ("query", "embed"))
    assert_nearest(hits, answer["embedding"], head, tmp_path / "p.txt")
    alone = load_head(str(tmp_path / "model"))
    assert alone.task == "sentence_embedding"


def nearest_first(head) -> np.ndarray:
    """The numbers of the passages that a head finds for `QUESTIONS` without its reranker."""
    embeddings = head.answering(head.model)(tf.constant(QUESTIONS))["embedding"].numpy()
    return np.argsort(-embeddings @ head.vectors().T, axis=1, kind="stable")[:, : head.top_k]


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_a_reranker_orders_what_is_found(tmp_path, num_outputs, monkeypatch, embedder, capsys):
    """With one output outside a graph; in a graph, the next test has it."""
    if num_outputs == 2:
        monkeypatch.setattr(pieces, "MOST_NUMBERS", 1)  # A pair at a time.
    scorer = shaken(BertTextClassifier(backbone(num_layers=1), num_outputs, compile=False), seed=5)
    trained = {"task": "classification", "sequence_length": 16, "num_texts": 2, "labels": ["0", "1"][:num_outputs]}
    save_model(str(tmp_path / "model"), scorer, BertTokenizer(VOCABULARY), trained)
    passages, settings = write(tmp_path / "p.txt", 40), {"reranker_dir": str(tmp_path / "model")}
    head = OfRandomVectors(embedder, assets(), passages, 6, **settings)
    assert ("by the probability of '1', its second label" in capsys.readouterr().out) == (num_outputs == 2)
    answer = tf.function(head.answer_texts) if num_outputs == 2 else head.answer_texts
    hits = answer(head.model, {"text": tf.constant(QUESTIONS)})
    indices, lines = nearest_first(head), (tmp_path / "p.txt").read_bytes().splitlines()
    unranked = np.array(lines, object)[indices]
    pairs = (np.repeat(QUESTIONS, 6), unranked.reshape(-1))
    outputs = scorer(BertPreprocessor(BertTokenizer(VOCABULARY), 16)(pairs), training=False).numpy()
    scores = (outputs[:, -1] - outputs[:, 0] * (num_outputs - 1)).reshape(3, 6)
    order = np.argsort(-scores, axis=1)
    np.testing.assert_array_equal(hits["indices"], np.take_along_axis(indices, order, 1))
    np.testing.assert_array_equal(hits["passages"], np.take_along_axis(unranked, order, 1))
    np.testing.assert_allclose(hits["scores"], np.take_along_axis(scores, order, 1), atol=1e-4)
    assert "orders them by a model that reads both" in head.about().summary


def test_scores_of_a_reranker_that_are_nearly_equal_pass_the_verification(tmp_path, embedder):
    """All are within rounding of their neighbours, as many of 100 are: passages stay as found."""
    scorer = shaken(BertTextClassifier(backbone(num_layers=1), 1, compile=False), seed=5)
    head = scorer.get_layer("classification")
    head.kernel.assign(head.kernel * 3e-4)
    trained = {"task": "classification", "sequence_length": 16, "num_texts": 2, "labels": ["0"]}
    save_model(str(tmp_path / "model"), scorer, BertTokenizer(VOCABULARY), trained)
    passages = write(tmp_path / "p.txt", 12)
    head = search.Search(embedder, assets(), passages, 6, reranker_dir=str(tmp_path / "model"))
    version = saved_model.export_head(head, str(tmp_path / "served"), with_cc="off")
    hits = tf.saved_model.load(version).signatures["query"](tf.constant(QUESTIONS))
    np.testing.assert_array_equal(hits["indices"], nearest_first(head))
    scores = hits["scores"].numpy()
    assert (np.diff(scores) > 1e-5).any() and np.diff(scores).max() < 3e-4


def test_of_equal_passages_the_earlier_comes_first(tmp_path, embedder):
    path = tmp_path / "p.txt"
    path.write_text("the cat\non a mat\nthe cat\n" * 4, encoding="utf-8")
    head = search.Search(embedder, assets(), str(path), 8)
    vectors = head._vectors.numpy()
    head._vectors.assign(vectors * np.linspace(1.0, 1.0 + 1e-7, 12)[:, np.newaxis])  # As rounding may have it.
    answer = head.find(tf.constant(vectors[:1]))
    assert answer["indices"].numpy().tolist() == [[0, 2, 3, 5, 6, 8, 9, 11]]


@pytest.mark.slow(keep=["4500-float32"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("count", [4500, 100_000])
def test_a_fresh_process_and_the_cc_program_find_what_numpy_finds(tmp_path, count, dtype):
    model = shaken(BertTextEmbedder(backbone(), embedding_dim=384))
    head = OfRandomVectors(model, assets(), write(tmp_path / "p.txt", count), 10, dtype)
    directory = toy_saved.save_graph(head, str(tmp_path / "saved"))
    questions = np.array([b"the cat", b"on a mat", b"hello"], object)
    probes = [verify.Probe(name, {"text": questions}, {}) for name in ("query", "embed")]
    answers = {"fresh process": verify.fresh_answers(directory, probes)}
    if compiler := cc_check.find_compiler():
        answers["C++ program"] = verify.cc_answers(cc_check.build_program(compiler), directory, probes)
    for hits, vectors in answers.values():
        scores = vectors["embedding"] @ head.vectors().T
        expected = np.argsort(-scores, axis=1)[:, :10]
        np.testing.assert_array_equal(hits["indices"], expected)
        np.testing.assert_allclose(hits["scores"], np.take_along_axis(scores, expected, 1), atol=1e-6)


@pytest.mark.parametrize(
    "content, message",
    [("", "p.txt: the file is empty"), ("a\n\nb\n", "p.txt:2: an empty line. Expected a passage in each")],
)
def test_passages_that_cannot_be_searched(tmp_path, embedder, content, message):
    (tmp_path / "p.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        search.Search(embedder, assets(), str(tmp_path / "p.txt"))
    with mock.patch.object(search.Search, "_embed") as embed, pytest.raises(InputError, match="none/task.json: no"):
        search.Search(embedder, assets(), write(tmp_path / "p.txt", 3), reranker_dir=str(tmp_path / "none"))
    assert not embed.called  # Millions of passages take hours.
    with pytest.raises(InputError, match="--task=search: name the text to search by --passages"):
        search.Search(embedder, assets())
