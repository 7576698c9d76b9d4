"""A head of each task, its graph on disk without the verification of an export, and exports that are as described."""

import contextlib
import functools
import tempfile
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from toy_classifier import LABELS, assets, classifier
from toy_heads import HEADS, backbone, shaken

from export import saved_model, signatures
from export.heads.base import Head
from export.heads.classification import Classification
from export.heads.embeddings import SentenceEmbedding
from export.heads.question_answering import QuestionAnswering
from export.heads.search import Search
from export.heads.windowed import TokenClassification, TokenRegression
from export.verification import verify
from keras_bert import BertTextEmbedder
from keras_bert.encoder.heads import output_head
from keras_bert.models import BertSpanLabeler, BertTokenClassifier

TAGS = ["O", "B-PER", "I-PER"]


def word_scorer(encoder) -> keras.Model:
    """Encoder inputs to a number for each token."""
    tokens = encoder(encoder.input)["sequence_output"]
    return keras.Model(encoder.input, output_head(1, encoder.initializer_range, name="token_regression")(tokens))


def embedder(**settings) -> BertTextEmbedder:
    return shaken(BertTextEmbedder(backbone(), embedding_dim=6, embedding_activation="tanh", **settings))


PROMPTS = {"prompts": {"query": "who was ", "passage": "hello, ", "none": ""}, "default_prompt": "passage"}


def search(**settings) -> Search:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write("".join(f"{passage}\n" for passage in PASSAGES))
        file.flush()
        return Search(embedder(**PROMPTS), assets(), file.name, top_k=3, **settings)


PASSAGES = ("hello", "wonderful world", "who was jim", "a world of wonder", "hello hello")
ALL_HEADS = {
    **HEADS,
    "token_classification": lambda: TokenClassification(
        shaken(BertTokenClassifier(backbone(), len(TAGS), compile=False)), assets(), TAGS
    ),
    "token_regression": lambda: TokenRegression(shaken(word_scorer(backbone())), assets()),
    "sentence_embedding": lambda: SentenceEmbedding(embedder(**PROMPTS), assets()),
    "classification in windows": lambda: Classification(classifier(), assets(), LABELS, long_text="max"),
    "sentence_embedding in windows": lambda: SentenceEmbedding(
        embedder(**PROMPTS, include_prompt=False), assets(), long_text="mean"
    ),
    "search": search,
    "search in windows": lambda: search(long_text="mean", max_tokens=300),
    "search in int8": lambda: search(passages_dtype="int8"),
    "question_answering": lambda: QuestionAnswering(
        shaken(BertSpanLabeler(backbone(), compile=False)), assets(), max_query_length=8, doc_stride=8
    ),
}


def save_graph(head: Head, directory: str, only: str | None = None) -> str:
    """Writes the graph alone, as `export_head` does before it verifies; returns the directory.

    A test that asks `only` one signature, `serving_default` or `token_ids`, need not wait for the others.
    """
    with contextlib.ExitStack() as stack:
        if only:
            trace = {"serving_default": functools.partial(_trace, head), "token_ids": head.function_of_token_ids}[only]
            stack.enter_context(mock.patch.object(head, "functions", lambda model: {only: trace(model)}))
        saved_model.write_graph(head, saved_model.rebuild_for_serving(head.model), directory)
    return directory


def trace_answer(head: Head):
    """Returns the graph of `serving_default` alone, a function of named texts, where no file is needed."""
    return _trace(head, saved_model.rebuild_for_serving(head.model))


def _trace(head: Head, model: keras.Model):
    return signatures.trace(lambda **texts: head.answer_texts(model, texts), head.text_inputs, tf.string)


def answers_of(loaded):
    """What takes the place of `verify.fresh_answers`: the answers in this process, where the graph is loaded anyway."""

    def answers(_directory, probes) -> list[dict[str, np.ndarray]]:
        outputs = (ask(loaded, probe.signature, probe.inputs) for probe in probes)
        return [{name: value.numpy() for name, value in answer.items()} for answer in outputs]

    return answers


def save_as_described(head: Head, directory: str, monkeypatch):
    """Writes the graph of a head of texts and token ids, verifies it and its signatures; returns what was loaded."""
    loaded = tf.saved_model.load(save_graph(head, directory))
    monkeypatch.setattr(verify, "fresh_answers", answers_of(loaded))
    report = verify.verify(directory, head.probes(head.model), verify.stored_weight_bytes(directory))
    assert (
        set(report.signatures) - {"count_tokens"} == {"serving_default", "token_ids"}
        and report.largest_difference < 1e-5
    )
    for signature, request in head.warmup():
        outputs = ask(loaded, signature, request)
        described = head.description()["signatures"][signature]
        assert set(outputs) == set(described["outputs"]) and set(request) == set(described["inputs"])
    return loaded


def ask(loaded, signature: str, request: dict) -> dict[str, tf.Tensor]:
    """What a signature answers to values by name."""
    inputs = {name: tf.constant(value, _dtype(value)) for name, value in request.items()}
    return loaded.signatures[signature](**inputs)


def _dtype(value):
    """TensorFlow cannot tell the type of an empty array of texts."""
    return tf.string if isinstance(value, np.ndarray) and value.dtype.kind in "OSU" else None
