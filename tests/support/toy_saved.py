"""A head of each task, its graph on disk without the verification of an export, and exports that are as described."""

import keras
import tensorflow as tf
from toy_classifier import assets
from toy_heads import HEADS, backbone, shaken

from export import saved_model, verify
from export.heads.base import Head
from export.heads.question_answering import QuestionAnswering
from export.heads.token_classification import TokenClassification
from export.heads.token_regression import TokenRegression
from keras_bert.heads import output_head
from tasks.ner.model import build_tagger
from tasks.squad.model import build_question_answerer

TAGS = ["O", "B-PER", "I-PER"]


def word_scorer(encoder) -> keras.Model:
    """Encoder inputs to a number for each token."""
    tokens = encoder(encoder.input)["sequence_output"]
    return keras.Model(encoder.input, output_head(1, encoder.initializer_range, name="token_regression")(tokens))


ALL_HEADS = {
    **HEADS,
    "token_classification": lambda: TokenClassification(shaken(build_tagger(backbone(), len(TAGS))), assets(), TAGS),
    "token_regression": lambda: TokenRegression(shaken(word_scorer(backbone())), assets()),
    "question_answering": lambda: QuestionAnswering(
        shaken(build_question_answerer(backbone())), assets(), max_query_length=8, doc_stride=8
    ),
}


def save_graph(head: Head, directory: str) -> str:
    """Writes the graph alone, as `export_head` does before it verifies; returns the directory."""
    saved_model.write_graph(head, saved_model.rebuild_for_serving(head.model), directory)
    return directory


def export_as_described(head: Head, directory: str):
    """Exports a head of texts and token ids, checks the report, graph and signatures; returns what was loaded."""
    directory = saved_model.export_head(head, directory, with_cc="off")
    report = saved_model.read_report(directory)
    assert report.signatures == ["serving_default", "token_ids"] and report.largest_difference < 1e-5
    assert verify.graph_findings(verify.read_meta_graph(directory)) == []
    loaded = tf.saved_model.load(directory)
    for signature, request in head.warmup():
        outputs = ask(loaded, signature, request)
        described = head.description()["signatures"][signature]
        assert set(outputs) == set(described["outputs"]) and set(request) == set(described["inputs"])
    return loaded


def ask(loaded, signature: str, request: dict) -> dict[str, tf.Tensor]:
    """What a signature answers to values by name."""
    return loaded.signatures[signature](**{name: tf.constant(value) for name, value in request.items()})
