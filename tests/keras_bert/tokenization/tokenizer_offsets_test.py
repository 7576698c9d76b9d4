"""BertTokenizer's offsets against `tokenizer_reference`, on every branch of the graph."""

import json
import os
import sys
import time

import keras
import processes
import pytest
import tensorflow as tf
from repository import SHARED, needs_data
from tokenizer_reference import ADVERSARIAL, SPECIALS, read_ids, reference_offsets
from tokenizer_texts import alphabet_vocabulary, fuzzed_bytes, fuzzed_texts

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from keras_bert.tokenization.tokenizer import BertTokenizer

# Tokens of several characters, so that a token's characters can be out of their order in the source.
LONG_PIECES = "a\u1b44 ##a\u1b44\u302e ab ##ab aa ##aaa \u1100\u1161 \u302e\u1b44 ##\u03c2\u03c3".split()


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request):
    known = set(alphabet_vocabulary())
    return BertTokenizer([*alphabet_vocabulary(), *(p for p in LONG_PIECES if p not in known)], request.param)


def check_equal(tokenizer, texts):
    ids = read_ids(tokenizer.get_vocabulary())
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    for start in range(0, len(raw), 512):
        columns = tokenizer.tokenize_with_offsets(tf.constant(raw[start : start + 512]))
        assert all(column.dtype == tf.int32 for column in columns)
        for text, *row in zip(raw[start:], *(column.to_list() for column in columns), strict=False):
            assert tuple(row) == reference_offsets(text, ids, tokenizer.lowercase, longest=8), text


# === Exactness ===


@pytest.mark.slow(keep=["uncased"])
def test_adversarial_strings_equal_reference(tokenizer):
    check_equal(tokenizer, ADVERSARIAL)
    for text in ADVERSARIAL:  # Alone too: what one text triggers must not touch another of its batch.
        check_equal(tokenizer, [text])


def test_fuzzed_strings_equal_reference(tokenizer):
    check_equal(tokenizer, fuzzed_texts(3000, seed=11))


def test_fuzzed_bytes_equal_reference(tokenizer):
    check_equal(tokenizer, fuzzed_bytes(3000, seed=12))


def test_ids_are_those_of_tokenize(tokenizer):
    texts = fuzzed_texts(500, seed=13)
    assert tokenizer.tokenize_with_offsets(texts)[0].to_list() == tokenizer.tokenize(texts).to_list()


def test_the_twin_agrees(tokenizer):
    twin = PythonBertTokenizer(tokenizer.get_vocabulary(), tokenizer.lowercase)
    texts = [text.encode() for text in fuzzed_texts(500, seed=14)] + fuzzed_bytes(500, seed=15)
    columns = [column.to_list() for column in tokenizer.tokenize_with_offsets(texts)]
    assert list(zip(*columns, strict=True)) == [twin.tokenize_with_offsets(text) for text in texts]


@needs_data
@pytest.mark.slow(keep=["uncased_en-True-path0", "zh-True-path2"])
@pytest.mark.parametrize(
    ("vocabulary", "lowercase", "path"),
    [
        ("uncased_en", True, ("corpus", "wikitext2-valid.txt")),
        ("cased_en", False, ("wnut17", "train.conll")),
        ("zh", True, ("waimai", "dev.csv")),
    ],
)
def test_tokens_of_real_text_are_found_where_they_stand(vocabulary, lowercase, path):
    """What stands at a token's offsets tokenizes, alone or behind a letter, to that token; and the twin agrees."""
    paths = os.path.join(SHARED, "vocab", f"{vocabulary}.txt"), os.path.join(SHARED, *path)
    with open(paths[1], encoding="utf-8") as lines:
        texts = [line.rstrip("\n") for line in lines][:1500]
    tokenizer, twin = BertTokenizer(paths[0], lowercase), PythonBertTokenizer(paths[0], lowercase)
    columns = [column.to_list() for column in tokenizer.tokenize_with_offsets(texts)]
    for text, *row in zip(texts, *columns, strict=True):
        assert tuple(row) == twin.tokenize_with_offsets(text)
        for number, start, end in zip(*row, strict=True):
            piece = tokenizer.id_to_token(number).removeprefix("##")
            if lowercase and text.isascii() and piece != "[UNK]":
                assert text[start:end].lower() == piece


# === By hand ===


@pytest.fixture(scope="module")
def small():
    pieces = ["ab", "\u1100\u1161", "##\u11a8", "\u2014", "-", "x", "a\u1b44\u302e", "\u4e2d"]
    return BertTokenizer([*SPECIALS, *pieces])


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("ab ab", [(0, 2), (3, 5)]),
        ("a\u0301b\u0007 x", [(0, 4), (5, 6)]),  # [ab] takes the accent inside it and the control after it.
        ("\uac01", [(0, 1), (0, 1)]),  # Two tokens of one character.
        ("\u2014\u00ad-", [(0, 2), (2, 3)]),
        (b"\xff\xffab\xff x\xff", [(0, 2), (3, 4)]),
        ("x" * 201 + "\u0301 ab", [(0, 202), (203, 205)]),
        ("\u00e5" * 150 + " ab", [(0, 150), (151, 153)]),
        ("\u0391\u03a3\u0301 ab", [(0, 3), (4, 6)]),
        ("a\u302e\u1b44", [(0, 3)]),  # In order: a, U+1B44, U+302E.
    ],
)
def test_characters(small, text, spans):
    ids, starts, ends = small.tokenize_with_offsets(text)
    assert ids.shape == starts.shape == ends.shape
    assert list(zip(starts.numpy().tolist(), ends.numpy().tolist(), strict=True)) == spans


# === Ways to run it ===

EXAMPLES = ["Hello, \u4e2d\u6587!", "", "A\u03a3 A\u03a3B", "a" * 201, "a\u302e\u0301\u1b44", "\uac01"]


@pytest.mark.slow(keep=["uncased"])
def test_eager_function_and_dataset_agree(tokenizer):
    def run(texts):
        return tokenizer.tokenize_with_offsets(texts)

    eager = [column.to_list() for column in run(EXAMPLES)]
    assert [column.to_list() for column in tf.function(run)(tf.constant(EXAMPLES))] == eager
    assert [column.to_list() for column in next(iter(tf.data.Dataset.from_tensors(EXAMPLES).map(run)))] == eager
    one_by_one = tf.data.Dataset.from_tensor_slices(EXAMPLES).map(run)
    rows = [[column.numpy().tolist() for column in columns] for columns in one_by_one]
    assert [list(column) for column in zip(*rows, strict=True)] == eager


def test_empty_batches(tokenizer):
    for empty in ([], tf.constant([], tf.string)):
        assert [column.shape[0] for column in tokenizer.tokenize_with_offsets(empty)] == [0, 0, 0]
    assert [column.to_list() for column in tokenizer.tokenize_with_offsets(["", "\u00ad"])] == [[[], []]] * 3


@pytest.mark.slow
def test_saved_model_in_a_fresh_process(tmp_path, tokenizer):
    """Only tensorflow and tensorflow_text are imported there."""

    def serve(texts):
        columns = tokenizer.tokenize_with_offsets(texts)
        return {str(index): column.to_tensor(-1) for index, column in enumerate(columns)}

    archive = keras.export.ExportArchive()
    archive.add_endpoint("serve", serve, [tf.TensorSpec([None], tf.string)])
    archive.write_out(str(tmp_path / "model"), verbose=False)
    texts = [text for text in ADVERSARIAL if isinstance(text, str)] + fuzzed_texts(200, seed=16)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    program = (
        "import json, sys, tensorflow as tf, tensorflow_text\n"
        "found = tf.saved_model.load(sys.argv[1]).serve(tf.constant(json.load(open(sys.argv[2]))))\n"
        "json.dump([found[name].numpy().tolist() for name in sorted(found)], open(sys.argv[3], 'w'))\n"
    )
    paths = [str(tmp_path / name) for name in ("model", "texts.json", "found.json")]
    processes.run([sys.executable, "-c", program, *paths], check=True, cwd=tmp_path, capture_output=True, timeout=300)
    outputs = json.loads((tmp_path / "found.json").read_text())
    ids = read_ids(tokenizer.get_vocabulary())
    for text, *row in zip(texts, *outputs, strict=True):
        expected = reference_offsets(text, ids, tokenizer.lowercase, longest=8)
        assert tuple([number for number in column if number >= 0] for column in row) == expected


def test_a_megabyte_of_hostile_text(small):
    for text in ("\u03a3" * 500_000, "a\u302e\u0301\u1b44" * 110_000, "\u00e5" * 500_000, "ab \u00ad" * 200_000):
        small.tokenize_with_offsets(text[:1000])  # The first call traces the graph.
        start = time.process_time()
        small.tokenize_with_offsets(text)
        assert time.process_time() - start < 5.0  # At most 0.7 s alone on one core.


def test_what_is_refused(small):
    with pytest.raises(ValueError, match="rank 0 or 1"):
        small.tokenize_with_offsets([["ab"]])
    with pytest.raises(ValueError, match="no vocabulary"):
        BertTokenizer().tokenize_with_offsets("ab")
