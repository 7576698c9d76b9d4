"""BertTokenizer's ids against `tokenizer_reference`, a second derivation of google-research/bert's rules.

tokenizer_fuzz_test.py does so with every code point and real texts, and asks a SavedModel in another process.
"""

import time

import pytest
import tensorflow as tf
from repository import SHARED, needs_data
from tokenizer_reference import ADVERSARIAL, SPECIALS, read_ids, reference_ids, reference_words
from tokenizer_texts import alphabet_vocabulary, char_vocabulary, fuzzed_bytes, fuzzed_texts

from keras_bert.tokenization.normalizer import split_words
from keras_bert.tokenization.tokenizer import BertTokenizer

CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])


def check_equal(tokenizer, texts):
    """Compares `tokenizer` and the reference on `texts` (str or bytes), in batches of one and of many."""
    ids = read_ids(tokenizer.get_vocabulary())
    expected = [reference_ids(text, ids, tokenizer.lowercase) for text in texts]
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    wrong = []
    for start in range(0, len(raw), 512):
        got = tokenizer.tokenize(tf.constant(raw[start : start + 512])).to_list()
        wrong += [(raw[start + i], row, expected[start + i]) for i, row in enumerate(got) if row != expected[start + i]]
    assert not wrong, f"{len(wrong)} of {len(raw)} texts differ, first: {wrong[0]}"


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def fuzz_tokenizer(request):
    return BertTokenizer(alphabet_vocabulary(), lowercase=request.param)


@pytest.fixture(scope="module")
def small():
    return BertTokenizer([*SPECIALS, "ab", "##ab", "\u4e2d"])


# === Exactness ===


def test_adversarial_strings_equal_reference(fuzz_tokenizer):
    check_equal(fuzz_tokenizer, ADVERSARIAL)
    for text in ADVERSARIAL:  # Alone too: what one text triggers must not touch another of its batch.
        check_equal(fuzz_tokenizer, [text])


def test_fuzzed_strings_equal_reference(fuzz_tokenizer):
    check_equal(fuzz_tokenizer, fuzzed_texts(6000, seed=1))


def test_fuzzed_bytes_equal_reference(fuzz_tokenizer):
    check_equal(fuzz_tokenizer, fuzzed_bytes(4000, seed=2))


def test_split_words_equals_reference():
    texts = [text for text in ADVERSARIAL if isinstance(text, str)] + fuzzed_texts(3000, seed=3)
    for lowercase in (True, False):
        assert [split_words(t, lowercase) for t in texts] == [reference_words(t, lowercase) for t in texts]


@needs_data
def test_known_ids_of_the_uncased_english_vocabulary():
    tokenizer = BertTokenizer(str(SHARED / "vocab" / "uncased_en.txt"))
    assert tokenizer.tokenize("Hello, world!").numpy().tolist() == [7592, 1010, 2088, 999]
    assert tokenizer.tokenize("unaffable [MASK]").numpy().tolist()[-3:] == [1031, 7308, 1033]
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id) == (101, 102, 103)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.vocabulary_size()) == (0, 100, 30522)


# === Ways to run it ===

EXAMPLES = ["Hello, \u4e2d\u6587!", "", "A\u03a3 A\u03a3B", "a" * 201, "[MASK]", "\U0001d16d\U0001d165"]


@pytest.mark.slow(keep=["uncased"])
@CASES
def test_eager_function_and_dataset_agree(lowercase):
    tokenizer = BertTokenizer(char_vocabulary("helo,!\u4e2d\u6587a\u03c3\u03c2\u03a3AB[]mskMASKH"), lowercase=lowercase)
    eager = tokenizer.tokenize(EXAMPLES).to_list()
    assert tf.function(tokenizer.tokenize)(tf.constant(EXAMPLES)).to_list() == eager
    assert next(iter(tf.data.Dataset.from_tensors(EXAMPLES).map(tokenizer.tokenize))).to_list() == eager
    assert [tokenizer.tokenize(text).numpy().tolist() for text in EXAMPLES] == eager
    one_by_one = tf.data.Dataset.from_tensor_slices(EXAMPLES).map(tokenizer.tokenize)
    assert [row.numpy().tolist() for row in one_by_one] == eager
    assert [list(map(int, row)) for row in tokenizer(EXAMPLES)] == eager  # As a Keras layer.


def test_empty_batches(small):
    for empty in ([], tf.constant([], tf.string)):
        result = small.tokenize(empty)
        assert result.dtype == tf.int32 and result.shape[0] == 0
    assert small.tokenize(["", " "]).to_list() == [[], []]


def test_a_megabyte_of_text(small):
    assert small.tokenize("ab " * 350_000).shape == (350_000,)
    assert small.tokenize("ab" * 500_000).numpy().tolist() == [1]
    assert small.tokenize("\u4e2d" * 350_000).shape == (350_000,)


@pytest.mark.parametrize(
    "text",
    [
        "\u03a3" * 500_000,
        "\u0391\u03a3 " * 200_000,
        "\u302e\u1b44" * 160_000,
        "a\u302e\u0301\u1b44" * 110_000,
        "\U0001d160" * 250_000,
        ("\u00e5" * 150 + " ") * 3_300,
        "a" * 1_000_000,
        b"\xce\xff" * 500_000,
    ],
    ids=["sigmas", "words", "marks", "runs", "notes", "long words", "one word", "no UTF-8"],
)
def test_a_megabyte_of_hostile_text_takes_linear_time(small, text):
    small.tokenize(text[:1000])  # The first call traces the graph.
    start = time.process_time()
    small.tokenize(text)
    assert time.process_time() - start < 3.0  # At most 0.4 s alone on one core.
