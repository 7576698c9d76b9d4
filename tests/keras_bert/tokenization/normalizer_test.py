"""The normalizer's model: what it says of single code points, and that it is built right and fast."""

import doctest
import functools
import itertools
import random
import time
import unicodedata

import fuzzing
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from keras_bert.tokenization import double_array, normalizer
from keras_bert.tokenization.normalizer_model import MARKER, normalizer_model

# Every code point: by default few of the planes 4 to 16, which hold no character but private ones and those of 14.
CHARS = [
    chr(cp)
    for cp in (*range(0xD800), *range(0xE000, 0x110000))
    if cp < 0x40000 or 0xE0000 <= cp < 0xE1000 or cp % 101 == 0 or fuzzing.FULL
]
CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])


@functools.cache
def contextual():
    """Capital sigma, and what decomposes into marks with a place in the order that are not Mn."""
    return "\u03a3" + "".join(
        char
        for char in CHARS
        if any(unicodedata.combining(c) and unicodedata.category(c) != "Mn" for c in unicodedata.normalize("NFD", char))
    )


def normalize(texts, lowercase):
    model = tf.constant(np.frombuffer(normalizer_model(lowercase), np.uint8))
    op = tf_text.FastBertNormalizer(model_buffer=model)
    return [text.decode() for text in op.normalize(tf.constant(texts)).numpy()]


@CASES
def test_the_op_reads_the_map_back(lowercase):
    """Every code point, through the flatbuffer, the trie and the pool, against the map they were built from."""
    changes = normalizer.code_point_map(lowercase)
    if lowercase:
        changes |= dict.fromkeys(map(ord, contextual()), f" {MARKER} ")
    assert normalize(CHARS, lowercase) == [changes.get(ord(char), char) for char in CHARS]


@pytest.mark.parametrize(
    ("char", "uncased", "cased"),
    [
        ("A", "a", "A"),
        ("\u00c9", "e", "\u00c9"),
        ("\u0301", "", "\u0301"),
        ("\u0130", "i", "\u0130"),
        ("\u1e9e", "\u00df", "\u1e9e"),
        ("\uac01", "\u1100\u1161\u11a8", "\uac01"),
        ("\u4e2d", "\u4e2d", "\u4e2d"),  # Split by the tokenizer itself.
        ("\uf900", "\u8c48", "\uf900"),
        ("!", "!", "!"),
        ("\u2014", " \u2014 ", " \u2014 "),
        ("\u1fef", "`", "\u1fef"),
        ("\u2260", "=", "\u2260"),
        ("\0", "", ""),
        ("\ufffd", "", ""),
        ("\u0007", "", ""),
        ("\u200d", "", ""),
        ("\n", " ", " "),
        ("\u00a0", " ", " "),
        ("\u2028", " ", " "),  # No white space by the rules, but `str.split` splits there.
        ("\U0002b820", "\U0002b820", "\U0002b820"),
    ],
)
def test_single_characters(char, uncased, cased):
    assert normalize([char], True) == [uncased]
    assert normalize([char], False) == [cased]


def test_code_points_left_out_of_the_search_need_no_change():
    """The map's builder skips planes 4 to 13, private planes, and letters without case or decomposition."""
    for char in map(chr, [*range(0x40000, 0xE0000, 7), *range(0xF0000, 0x110000, 7)]):
        assert unicodedata.category(char) in ("Cn", "Co")
    letters = [chr(cp) for cp in range(0x110000) if unicodedata.category(chr(cp)) == "Lo"]
    assert all(unicodedata.normalize("NFD", char.lower()) == unicodedata.normalize("NFD", char) for char in letters)


def test_recent_punctuation_is_what_tensorflow_text_splits_and_the_rules_do_not():
    op = tf_text.FastWordpieceTokenizer(["[UNK]", "x", "##x"], token_out_type=tf.int32)
    chars = CHARS[0x80:]
    lengths = op.tokenize(tf.constant([f"x{char}x" for char in chars])).row_lengths().numpy()
    split = [char for char, length in zip(chars, lengths, strict=True) if length == 3]
    differing = {ord(char) for char in split if not normalizer.is_punctuation(char) and not normalizer.is_cjk(char)}
    known = set(normalizer.substitutes())
    # Older releases split none of it, or less: then the stand-ins are not needed, and do no harm.
    assert differing == known if tf_text.__version__ >= "2.20" else differing <= known
    stand_ins = list(normalizer.substitutes().values())
    assert len(set(stand_ins)) == len(stand_ins)
    assert all(normalizer.vanishes(char) and not char.isspace() for char in stand_ins)


@CASES
def test_what_is_not_utf8_is_deleted(lowercase):
    """All strings of two bytes, and random ones of likely bytes, against Python's decoder."""
    rng = random.Random(5)
    likely = b"az\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5\xff"
    texts = [bytes(pair) for pair in itertools.product(range(256), repeat=2)]
    texts += [bytes(rng.choices(likely, k=rng.randint(1, 9))) for _ in range(100_000)]
    valid = [text.decode("utf-8", "ignore") for text in texts]
    assert normalize(texts, lowercase) == normalize(valid, lowercase)


def test_contexts_are_what_neighbours_see():
    """Every code point, against `str.lower`, `unicodedata` and the rules themselves."""
    contexts = normalizer.context_of()
    for char in CHARS:
        context = contexts.get(ord(char), 0)
        is_cased = (char + "\u03a3").lower()[-1] == "\u03c2"
        assert bool(context & normalizer.CASED) == is_cased
        if not is_cased:
            assert bool(context & normalizer.IGNORABLE) == (("A" + char + "\u03a3").lower()[-1] == "\u03c2")
        vanishes = char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"
        assert bool(context & normalizer.VANISHES) == vanishes
        decomposition = unicodedata.normalize("NFD", char.lower())
        assert bool(context & normalizer.IN_RUN) == all(map(unicodedata.combining, decomposition))
        kept = unicodedata.combining(char) if decomposition == char and unicodedata.category(char) != "Mn" else 0
        assert context & normalizer.MARK_ORDER == kept


def test_kept_marks_and_their_compounds_are_what_the_order_of_marks_depends_on():
    compounds = normalizer.compounds_of_kept_marks()
    assert sorted(map(chr, (normalizer.SIGMA, *normalizer.kept_marks(), *compounds))) == sorted(contextual())
    assert all("".join(map(chr, codes)) == unicodedata.normalize("NFD", chr(cp)) for cp, codes in compounds.items())


def test_model_is_built_fast_and_once():
    normalizer_model.cache_clear()
    start = time.process_time()
    model = normalizer_model(True)
    assert time.process_time() - start < 3.0  # 0.4 s alone on one core; a busy machine may take longer.
    assert normalizer_model(True) is model


def test_split_words():
    assert normalizer.split_words("Na\u00efve, isn't it?", True) == ["naive", ",", "isn", "'", "t", "it", "?"]
    assert normalizer.split_words("[MASK]\u4e2d\u6587", False) == ["[", "MASK", "]", "\u4e2d", "\u6587"]
    assert normalizer.split_words(" \t\u0000", True) == []


# === Double arrays ===


def look_up(units, key):
    """darts-clone's exact match, as tensorflow-text's DartsCloneTrieWrapper does it."""
    index = 0
    for byte in key:
        unit = int(units[index])
        index ^= (unit >> 10) << ((unit & 0x200) >> 6) ^ byte
        if int(units[index]) & 0x800000FF != byte:
            return None
    unit = int(units[index])
    if not unit & 0x100:
        return None
    return int(units[index ^ (unit >> 10) << ((unit & 0x200) >> 6)]) & 0x7FFFFFFF


def test_double_array_finds_its_keys_and_no_other():
    entries = {chr(cp).encode(): cp * 3 for cp in (*range(1, 128, 2), *range(0x400, 0x500), *range(0xAC00, 0xB000, 3))}
    units = double_array.build(entries)
    assert units.dtype == np.uint32 and len(units) % 256 == 0
    for cp in range(1, 0xB100):
        key = chr(cp).encode()
        assert look_up(units, key) == entries.get(key)


def test_double_array_finds_keys_that_begin_others():
    entries = {b"a": 1, b"ab": 2, b"abc": 3, b"xbc": 4, b"xb": 5, b"b": 1, b"bbc": 3}
    units = double_array.build(entries)
    for key in itertools.chain.from_iterable(itertools.product(b"abcx", repeat=size) for size in (1, 2, 3, 4)):
        assert look_up(units, key) == entries.get(bytes(key))


def test_double_array_stores_equal_parts_once():
    entries = {bytes([first, second]): second for first in range(1, 256) for second in range(1, 256)}
    assert len(double_array.build(entries)) <= 4 * 256


def test_docstring_examples():
    results = doctest.testmod(normalizer)
    assert results.attempted >= 1 and results.failed == 0
