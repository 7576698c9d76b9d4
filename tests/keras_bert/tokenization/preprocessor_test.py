"""BertPreprocessor against truncation and packing one id at a time, eagerly, in tf.data and from a SavedModel."""

import doctest
import functools
import json
import random
import sys

import numpy as np
import processes
import pytest
import tensorflow as tf

from keras_bert.tokenization import preprocessor as preprocessor_module
from keras_bert.tokenization.preprocessor import BertPreprocessor
from keras_bert.tokenization.tokenizer import BertTokenizer

LETTERS = "abcdefgh"
# [PAD] is not 0 here: a mask must not be guessed from ids.
PIECES = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]", *LETTERS, *(f"##{c}" for c in LETTERS)]
PAD, CLS, SEP = map(PIECES.index, ("[PAD]", "[CLS]", "[SEP]"))


@functools.cache
def toy_tokenizer():
    return BertTokenizer(PIECES)


def reference_rows(texts_a, texts_b, sequence_length):
    """run_classifier.py of google-research/bert: pop ids until the pair fits; rows without padding."""
    rows = []
    ids_a = toy_tokenizer().tokenize(texts_a).to_list()
    ids_b = [None] * len(ids_a) if texts_b is None else toy_tokenizer().tokenize(texts_b).to_list()
    for a, b in zip(ids_a, ids_b, strict=True):
        if b is None:
            a = a[: sequence_length - 2]
            rows.append(([CLS, *a, SEP], [0] * (len(a) + 2)))
            continue
        while len(a) + len(b) > sequence_length - 3:
            (a if len(a) > len(b) else b).pop()
        rows.append(([CLS, *a, SEP, *b, SEP], [0] * (len(a) + 2) + [1] * (len(b) + 1)))
    return rows


def check_equal(outputs, rows, width):
    assert {name: (value.dtype, tuple(value.shape)) for name, value in outputs.items()} == {
        name: (tf.int32, (len(rows), width)) for name in ("token_ids", "segment_ids", "padding_mask")
    }
    batch = zip(*(outputs[name].numpy().tolist() for name in ("token_ids", "segment_ids", "padding_mask")), strict=True)
    for (ids, segments), row in zip(rows, batch, strict=True):
        padding = width - len(ids)
        assert row == (ids + [PAD] * padding, segments + [0] * padding, [1] * len(ids) + [0] * padding)


def random_texts(rng, count):
    return [" ".join(rng.choices(LETTERS, k=rng.choice([0, 1, 2, 5, 6, 7, 13, 30]))) for _ in range(count)]


@pytest.mark.parametrize("sequence_length", [3, 4, 5, 8, 15, 16, 64])
@pytest.mark.parametrize("pad_to_longest", [False, True])
def test_rows_equal_popping_one_by_one(sequence_length, pad_to_longest):
    rng = random.Random(sequence_length)
    texts_a, texts_b = random_texts(rng, 120), random_texts(rng, 120)
    preprocessor = BertPreprocessor(toy_tokenizer(), sequence_length, pad_to_longest)
    for texts, rows in (
        (texts_a, reference_rows(texts_a, None, sequence_length)),
        ((texts_a, texts_b), reference_rows(texts_a, texts_b, sequence_length)),
    ):
        width = max(len(ids) for ids, _ in rows) if pad_to_longest else sequence_length
        check_equal(preprocessor(texts), rows, width)


def test_a_pair_by_hand():
    """Limit 4 ids for a = 4, b = 4: ties cut b first, so a keeps 2 and b keeps 2; limit 3: 2 and 1."""
    outputs = BertPreprocessor(toy_tokenizer(), 6)((["a b c d"], ["e f g h"]))
    ids = toy_tokenizer().token_to_id
    assert outputs["token_ids"].numpy().tolist() == [[CLS, ids("a"), ids("b"), SEP, ids("e"), SEP]]
    assert outputs["segment_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1]]
    outputs = BertPreprocessor(toy_tokenizer(), 7)((["a b c d"], ["e f g h"]))
    assert outputs["token_ids"].numpy().tolist() == [[CLS, ids("a"), ids("b"), SEP, ids("e"), ids("f"), SEP]]


@pytest.mark.parametrize(("pad_to_longest", "width"), [(False, 9), (True, 2)])
def test_empty_batch(pad_to_longest, width):
    preprocessor = BertPreprocessor(toy_tokenizer(), 9, pad_to_longest)
    check_equal(preprocessor([]), [], width)
    check_equal(preprocessor(tf.constant([], tf.string)), [], width)
    check_equal(preprocessor(([], [])), [], width)


def test_empty_strings():
    preprocessor = BertPreprocessor(toy_tokenizer(), 9, pad_to_longest=True)
    check_equal(preprocessor(["", " "]), [([CLS, SEP], [0, 0])] * 2, 2)
    check_equal(preprocessor(([""], [""])), [([CLS, SEP, SEP], [0, 0, 1])], 3)


def test_invalid_utf8_and_a_megabyte():
    preprocessor = BertPreprocessor(toy_tokenizer(), 8, pad_to_longest=True)
    a = toy_tokenizer().token_to_id("a")
    outputs = preprocessor(tf.constant([b"\xffa\xc3", b"a " * 500_000, b"\x00\x01"]))
    expected = [[CLS, a, SEP, *[PAD] * 5], [CLS, *[a] * 6, SEP], [CLS, SEP, *[PAD] * 6]]
    assert outputs["token_ids"].numpy().tolist() == expected


def test_special_tokens_cannot_be_injected():
    outputs = BertPreprocessor(toy_tokenizer(), 16)(["a [SEP] b"])
    assert outputs["token_ids"].numpy().tolist()[0].count(SEP) == 1


@pytest.mark.parametrize("pad_to_longest", [False, True])
def test_dataset_equals_eager(pad_to_longest):
    preprocessor = BertPreprocessor(toy_tokenizer(), 12, pad_to_longest)
    rng = random.Random(5)
    texts_a, texts_b = random_texts(rng, 30), random_texts(rng, 30)
    batches = tf.data.Dataset.from_tensor_slices((texts_a, texts_b)).batch(8)
    for texts, features in zip(batches, batches.map(lambda a, b: preprocessor((a, b))), strict=True):
        for name, value in preprocessor(texts).items():
            np.testing.assert_array_equal(features[name], value)
    shape = batches.map(lambda a, b: preprocessor((a, b))).element_spec["token_ids"].shape
    assert shape.as_list() == [None, None if pad_to_longest else 12]


def test_saved_model_in_a_fresh_process(tmp_path):
    """Also: the graph holds no op outside TensorFlow but the three that every TensorFlow Serving links."""
    preprocessor = BertPreprocessor(toy_tokenizer(), 12, pad_to_longest=True)
    module = tf.Module()
    spec = tf.TensorSpec([None], tf.string)
    module.serve = tf.function(lambda a, b: preprocessor((a, b)), input_signature=[spec, spec])
    tf.saved_model.save(module, str(tmp_path / "model"))
    rng = random.Random(6)
    pairs = [random_texts(rng, 20), random_texts(rng, 20)]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    program = (
        "import json, sys, tensorflow as tf, tensorflow_text\n"
        "loaded = tf.saved_model.load(sys.argv[1])\n"
        "def rows(pairs): return {k: v.numpy().tolist() for k, v in loaded.serve(*pairs).items()}\n"
        "pairs = [tf.constant(texts) for texts in json.load(open(sys.argv[2]))]\n"
        "graph = loaded.serve.concrete_functions[0].graph.as_graph_def()\n"
        "ops = {n.op for n in graph.node} | {n.op for f in graph.library.function for n in f.node_def}\n"
        "empty = tf.constant([], tf.string)\n"
        "foreign = [op for op in ops if '>' in op or op.startswith('Fast')]\n"
        "answer = {'rows': rows(pairs), 'empty': rows([empty, empty]), 'ops': foreign}\n"
        "json.dump(answer, open(sys.argv[3], 'w'))\n"
    )
    paths = [str(tmp_path / name) for name in ("model", "pairs.json", "answer.json")]
    processes.run([sys.executable, "-c", program, *paths], check=True, cwd=tmp_path, capture_output=True, timeout=300)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["rows"] == {name: value.numpy().tolist() for name, value in preprocessor(tuple(pairs)).items()}
    assert answer["empty"] == {"token_ids": [], "segment_ids": [], "padding_mask": []}
    names = {name.removeprefix("TFText>") for name in answer["ops"]}
    assert names == {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}


def test_from_preset(tmp_path):
    toy_tokenizer().save_to_preset(str(tmp_path))
    preprocessor = BertPreprocessor.from_preset(str(tmp_path), sequence_length=5, pad_to_longest=True)
    assert (preprocessor.sequence_length, preprocessor.pad_to_longest) == (5, True)
    assert preprocessor(["a"])["token_ids"].numpy().tolist() == [[CLS, toy_tokenizer().token_to_id("a"), SEP]]


def test_refusals():
    with pytest.raises(ValueError, match="`sequence_length` must be at least 3. Received: sequence_length=2"):
        BertPreprocessor(toy_tokenizer(), 2)
    preprocessor = BertPreprocessor(toy_tokenizer(), 8)
    with pytest.raises(ValueError, match="Received: a tuple of 3"):
        preprocessor((["a"], ["b"], ["c"]))
    for texts in ([["a", "b"]], (["a"], "b"), [("a", "b"), ("c", "d")], [1, 2], ["a", None]):
        with pytest.raises(ValueError, match="`texts` must be strings, .* a tuple of two such batches. Received:"):
            preprocessor(texts)


@pytest.mark.parametrize("pad_to_longest", [False, True])
def test_one_text_or_pair_is_encoded_without_a_batch(pad_to_longest):
    preprocessor = BertPreprocessor(toy_tokenizer(), 8, pad_to_longest)
    for texts in (["a b c"], ["a b", "c"]):
        expected = [row.numpy()[0].tolist() for row in preprocessor(tuple([text] for text in texts)).values()]
        single = preprocessor(tuple(texts) if len(texts) == 2 else texts[0], 1)
        assert [row.numpy().tolist() for row in single[0].values()] == expected and single[1] == 1
        mapped = next(iter(tf.data.Dataset.from_tensors(tuple(texts)).map(lambda *texts: preprocessor(texts))))
        assert [row.numpy().tolist() for row in mapped.values()] == expected


def test_docstring_examples():
    results = doctest.testmod(preprocessor_module)
    assert results.attempted >= 1 and results.failed == 0
