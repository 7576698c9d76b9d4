"""The normalizer's model: what it says of single code points, and that it is built right and fast."""

import doctest
import time
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from keras_bert import double_array, normalizer

CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])


def normalize(texts, lowercase):
    model = tf.constant(np.frombuffer(normalizer.normalizer_model(lowercase), np.uint8))
    op = tf_text.FastBertNormalizer(model_buffer=model)
    return [text.decode() for text in op.normalize(tf.constant(texts)).numpy()]


@CASES
def test_the_op_reads_the_map_back(lowercase):
    """Every code point, through the flatbuffer, the trie and the pool, against the map they were built from."""
    changes = normalizer.code_point_map(lowercase)
    chars = [chr(cp) for cp in range(0x110000) if not 0xD800 <= cp < 0xE000]
    assert normalize(chars, lowercase) == [changes.get(ord(char), char) for char in chars]


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
    chars = [chr(cp) for cp in range(0x80, 0x110000) if not 0xD800 <= cp < 0xE000]
    lengths = op.tokenize(tf.constant([f"x{char}x" for char in chars])).row_lengths().numpy()
    split = [char for char, length in zip(chars, lengths, strict=True) if length == 3]
    differing = {ord(char) for char in split if not normalizer.is_punctuation(char) and not normalizer.is_cjk(char)}
    assert differing == set(normalizer.substitutes())
    stand_ins = list(normalizer.substitutes().values())
    assert len(set(stand_ins)) == len(stand_ins)
    assert all(normalizer.vanishes(char) and not char.isspace() for char in stand_ins)


def test_unordered_class_is_what_the_order_of_marks_depends_on():
    """Characters whose normal form holds a mark with a place in the order and another category than Mn."""
    kept = {
        chr(cp) for cp in range(0x110000) if unicodedata.combining(chr(cp)) and unicodedata.category(chr(cp)) != "Mn"
    }
    chars = [chr(cp) for cp in range(0x110000) if not 0xD800 <= cp < 0xE000]
    expected = [char for char in chars if kept.intersection(unicodedata.normalize("NFD", char.lower()))]
    found = tf.strings.regex_full_match(chars, f"[{normalizer.unordered_class()}]").numpy()
    assert [char for char, hit in zip(chars, found, strict=True) if hit] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A\u03a3", "A\u03c2"),
        ("A\u03a3.", "A\u03c2."),
        ("A\u03a3B", "A\u03c3B"),
        ("A\u03a3.B", "A\u03c3.B"),
        ("\u03a3", "\u03a3"),  # Left to the map, which makes it U+03C3.
        ("\u03a3\u03a3\u03a3\u03a3", "\u03c3\u03c3\u03c3\u03c2"),
        ("A\u0301\u03a3 B", "A\u0301\u03c2 B"),
    ],
)
def test_final_sigma_rewrites(text, expected):
    result = tf.constant([text])
    for pattern, replacement in normalizer.final_sigma_rewrites():
        result = tf.strings.regex_replace(result, pattern, replacement)
    assert result.numpy()[0].decode() == expected
    assert normalize([expected], True)[0] == unicodedata.normalize("NFD", text.lower()).replace("\u0301", "")


@CASES
def test_plain_class(lowercase):
    def is_plain(raw):
        return bool(tf.strings.regex_full_match(raw, f"[{normalizer.plain_class(lowercase)}]*"))

    assert is_plain("".join(chr(cp) for cp in (*range(0x3A3), 0x4E2D, 0x1F600, 0xD7FF, 0xE000, 0x10FFFF)))
    for broken in ("ff", "61 c3", "ed a0 80", "c0 af", "e0 80 80", "f0 80 80 80", "f4 90 80 80"):
        assert not is_plain(bytes.fromhex(broken))
    for char in ("\u03a3", "\u302e", "\U0001d160"):
        assert is_plain(char) is not lowercase


def test_model_is_built_fast_once_and_names_its_unicode_version():
    normalizer.normalizer_model.cache_clear()
    start = time.process_time()
    model = normalizer.normalizer_model(True)
    assert time.process_time() - start < 3.0  # 0.4 s alone on one core; a busy machine may take longer.
    assert normalizer.normalizer_model(True) is model
    assert normalizer.UNICODE_VERSION == unicodedata.unidata_version
    assert normalizer.UNICODE_VERSION.encode() in model


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


@pytest.mark.parametrize("entries", [{b"": 1}, {b"a\0": 1}, {b"a": -1}, {b"a": 1 << 31}])
def test_double_array_refuses_keys_and_values(entries):
    with pytest.raises(ValueError, match="A key needs bytes other than zero"):
        double_array.build(entries)


@pytest.mark.parametrize("entries", [{b"a": 1, b"ab": 2}, {b"ab": 1, b"a": 2, b"abc": 3}])
def test_double_array_refuses_keys_that_begin_others(entries):
    with pytest.raises(ValueError, match="No key may be the beginning of another"):
        double_array.build(entries)


def test_docstring_examples():
    results = doctest.testmod(normalizer)
    assert results.attempted >= 1 and results.failed == 0
