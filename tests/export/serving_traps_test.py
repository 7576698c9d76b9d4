"""The nine traps of serving, each shown to be absent from what is exported or served.

| trap | test |
| --- | --- |
| 1 an op of the trimmers that older servers lack | test_a_pair_is_trimmed_without_an_op_of_its_own, \
preprocessor_test.py::test_rows_equal_popping_one_by_one, verify_test.py::test_round_robin_trim_is_found |
| 2 every weight stored twice | saved_model_test.py::test_weights_are_stored_once, \
served_heads_test.py::test_what_no_signature_uses_is_not_stored, verify_test.py::test_weights_stored_twice_are_found, \
verify_test.py::test_weights_inside_the_graph_as_constants_are_found |
| 3 a function that XLA must compile | test_a_model_compiled_by_xla_is_served_without_it, \
verify_test.py::test_a_function_that_must_be_compiled_is_found |
| 4 a batch of nothing | saved_model_test.py::test_an_empty_batch_gets_an_empty_answer, \
served_heads_test.py::test_each_signature_is_asked_nothing_one_and_many, served_entities_test.py::test_no_text, \
batching_test.py::test_an_empty_request_runs_by_itself |
| 5 half precision is slow on a CPU | test_a_model_of_mixed_precision_is_stored_and_computed_in_float32, \
served_heads_test.py::test_a_mixed_precision_model_is_served_in_float32 |
| 6 untracked tables, ragged outputs | test_no_table_is_looked_up_and_every_output_is_dense |
| 7 another Unicode version on the server | test_newer_punctuation_means_what_it_meant_here, \
normalizer_test.py::test_recent_punctuation_is_what_tensorflow_text_splits_and_the_rules_do_not |
| 8 a version half written | saved_model_test.py::test_a_failing_verification_publishes_nothing, \
saved_model_test.py::test_an_interrupted_export_leaves_nothing, \
saved_model_test.py::test_a_version_taken_meanwhile_is_not_replaced, \
hot_reload_test.py::test_new_versions_lose_no_request |
| 9 one foreign op blocks every signature | test_a_foreign_op_is_found_in_whichever_signature_it_is, \
verify_test.py::test_a_call_back_into_python_is_found |
| and padding by the first element, which is no padding | \
saved_model_test.py::test_token_ids_are_masked_by_their_lengths_alone |
"""

import os
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from bfloat16 import needs_bfloat16
from repository import ROOT
from tokenizer_reference import read_ids, reference_ids
from toy_classifier import LABELS, SEQUENCE_LENGTH, VOCABULARY, assets, classifier
from toy_saved import save_graph

from export.heads.classification import Classification
from export.verification import verify

TESTS = ROOT / "tests"
# Punctuation since Unicode 14 and 16, which ICU 64 on a server takes for something else, and ids that `cat.sat` then
# has: the rules here split words at the first two, and not at the last, which ICU 77 does.
NEWER = {"\u061d": 3, "\u2e54": 3, "\u1b7f": 1}


@pytest.fixture(scope="module", name="head")
def _head() -> Classification:
    """A model of pairs that was trained by XLA in half precision: all that an export has to undo."""
    model = classifier(dtype="mixed_bfloat16")
    model.compile("sgd", "mse", jit_compile=True)
    return Classification(model, assets(), LABELS, num_texts=2)


@pytest.fixture(scope="module", name="directory")
def _directory(head, tmp_path_factory) -> str:
    return save_graph(head, str(tmp_path_factory.mktemp("served") / "pairs"))


@pytest.fixture(scope="module", name="meta_graph")
def _meta_graph(directory):
    return verify.read_meta_graph(directory)


@pytest.fixture(scope="module", name="signatures")
def _signatures(directory):
    loaded = tf.saved_model.load(directory)
    yield loaded.signatures
    del loaded


def nodes(meta_graph) -> list:
    return [*meta_graph.graph_def.node, *(n for f in meta_graph.graph_def.library.function for n in f.node_def)]


def answer_to_ids(signatures, rows: list[list[int]]) -> np.ndarray:
    """Probabilities of token ids, [CLS] and [SEP] among them; the second text begins after the first [SEP]."""
    width, separator = max(map(len, rows)), VOCABULARY.index("[SEP]")
    ids = np.array([row + [0] * (width - len(row)) for row in rows], np.int32)
    segments = np.array(
        [[int(separator in row[:place]) for place in range(len(row))] + [0] * (width - len(row)) for row in rows],
        np.int32,
    )
    lengths = np.array([len(row) for row in rows], np.int32)
    inputs = {"token_ids": ids, "segment_ids": segments, "lengths": lengths}
    return signatures["token_ids"](**{name: tf.constant(value) for name, value in inputs.items()})["probabilities"]


@pytest.mark.oracle
def test_a_pair_is_trimmed_without_an_op_of_its_own(meta_graph, signatures):
    assert not [node.op for node in nodes(meta_graph) if "Trim" in node.op]
    tokenizer, cls, sep = assets().tokenizer, VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
    sizes = [(40, 40), (40, 3), (2, 50), (15, 14), (14, 15), (0, 40), (29, 29)]
    pairs = [(" ".join(["the"] * first), " ".join(["cat"] * second)) for first, second in sizes]
    columns = [tf.constant(texts) for texts in zip(*pairs, strict=True)]
    trimmed = tf_text.RoundRobinTrimmer(SEQUENCE_LENGTH - 3).trim([tokenizer.tokenize(texts) for texts in columns])
    rows = [
        [cls, *first, sep, *second, sep] for first, second in zip(*(side.to_list() for side in trimmed), strict=True)
    ]
    assert max(map(len, rows)) == SEQUENCE_LENGTH
    answer = signatures["serving_default"](text=columns[0], text_pair=columns[1])["probabilities"]
    np.testing.assert_allclose(answer, answer_to_ids(signatures, rows), atol=1e-6)
    uneven = answer_to_ids(signatures, [[cls, *[VOCABULARY.index("the")] * 28, sep, VOCABULARY.index("cat"), sep]])
    assert np.abs(answer[0] - uneven[0]).max() > 1e-3  # Another trim is another answer.


def test_a_model_compiled_by_xla_is_served_without_it(meta_graph):
    assert not [node.name for node in nodes(meta_graph) if node.attr["_XlaMustCompile"].b]
    functions = meta_graph.graph_def.library.function
    assert not [function.signature.name for function in functions if function.attr["_XlaMustCompile"].b]


@needs_bfloat16
def test_a_model_of_mixed_precision_is_stored_and_computed_in_float32(head, directory, meta_graph, signatures):
    halves = {tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum}
    assert not [node.name for node in nodes(meta_graph) if any(value.type in halves for value in node.attr.values())]
    variables = tf.train.load_checkpoint(os.path.join(directory, "variables", "variables"))
    assert not {tf.bfloat16, tf.float16} & set(variables.get_variable_to_dtype_map().values())
    pair = (tf.constant(["the cat sat"]), tf.constant(["a mat"]))
    served = signatures["serving_default"](text=pair[0], text_pair=pair[1])
    np.testing.assert_allclose(served["probabilities"], tf.nn.softmax(head.model(head.preprocessor(pair))), atol=0.05)
    assert head.model.get_layer("classifier_dropout").compute_dtype == "bfloat16"  # the user's model is as it was


def test_no_table_is_looked_up_and_every_output_is_dense(meta_graph):
    """Nothing holds state but the weights, so nothing can be untracked; vocabulary and labels are constants."""
    held = {node.op for node in nodes(meta_graph) if "Table" in node.op or node.op.endswith("HandleOp")}
    assert held == {"VarHandleOp"}
    assert not meta_graph.collection_def["asset_filepaths"].any_list.value
    outputs = [info for signature in meta_graph.signature_def.values() for info in signature.outputs.values()]
    allowed = {dtype.as_datatype_enum for dtype in (tf.string, tf.float32, tf.int32)}  # `explain` has places of words.
    served = [info for info in outputs if info.name != "NoOp" and info.WhichOneof("encoding") == "name"]
    assert len(served) > 5 and {info.dtype for info in served} <= allowed


@pytest.mark.parametrize("char", NEWER, ids=ascii)
def test_newer_punctuation_means_what_it_meant_here(signatures, char):
    """Its ids are those of the reference's fixed rules, not of the ICU that the process has."""
    ids, cls, sep = read_ids(VOCABULARY), VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
    texts = [f"cat{char}sat", f"the {char} cat", "cat , sat"]
    rows = [[cls, *reference_ids(text, ids, True), sep, *reference_ids("mat", ids, True), sep] for text in texts]
    answer = signatures["serving_default"](text=tf.constant(texts), text_pair=tf.constant(["mat"] * 3))["probabilities"]
    np.testing.assert_allclose(answer, answer_to_ids(signatures, rows), atol=1e-6)
    assert np.abs(answer[0] - answer[2]).max() > 1e-3
    assert len(reference_ids(texts[0], ids, True)) == NEWER[char]


def test_a_foreign_op_is_found_in_whichever_signature_it_is(tmp_path):
    """Beside a good `serving_default` too: a server refuses the whole graph."""
    text = tf.TensorSpec([None], tf.string, name="text")
    tokenizer = tf_text.WhitespaceTokenizer()

    def foreign(text):
        tokens = tokenizer.tokenize(text)
        return {"first": tf_text.RoundRobinTrimmer(4).trim([tokens, tokens])[0].to_tensor()}

    functions = {"serving_default": lambda text: {"echo": text}, "extra": foreign}
    traced = {
        name: tf.function(function, autograph=False).get_concrete_function(text) for name, function in functions.items()
    }
    tf.saved_model.save(tf.Module(), str(tmp_path), signatures=traced)
    probe = verify.Probe("serving_default", {"text": np.array([b"a"])}, {"echo": np.array([b"a"])})
    with pytest.raises(verify.VerificationError, match="the op TFText>RoundRobinTrim is neither TensorFlow's nor"):
        verify.verify(str(tmp_path), [probe], weight_bytes=0)


def test_the_table_names_tests_that_exist():
    named = re.findall(r"\b(?:(\w+_test\.py)::)?(test_\w+)", __doc__)
    assert len(named) > 20 and len(re.findall(r"^\| (?:\d|and) ", __doc__, re.MULTILINE)) == 10
    for file, name in named:
        (path,) = TESTS.rglob(file or os.path.basename(__file__))
        assert f"\ndef {name}(" in path.read_text(encoding="utf-8"), f"{file}::{name}"
