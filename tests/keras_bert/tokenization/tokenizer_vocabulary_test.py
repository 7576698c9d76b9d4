"""BertTokenizer's vocabulary, its way back to text, and the presets that it is read from."""

import doctest
import json
import os

import pytest
import tensorflow as tf
from repository import SHARED, needs_data
from tokenizer_reference import BROKEN_VOCABULARIES, SPECIALS

from keras_bert.errors import InputError
from keras_bert.tokenization import tokenizer as tokenizer_module
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from keras_bert.tokenization.tokenizer import BertTokenizer

CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])


# === Vocabularies ===


def test_vocabulary_look_ups():
    tokenizer = BertTokenizer([*SPECIALS, "a", "##b"])
    assert tokenizer.vocabulary_size() == 7
    assert tokenizer.get_vocabulary()[5:] == ["a", "##b"]
    assert tokenizer.id_to_token(6) == "##b" and tokenizer.token_to_id("a") == 5
    with pytest.raises(ValueError, match=r"must be in the vocabulary. Received: token='c'"):
        tokenizer.token_to_id("c")
    with pytest.raises(ValueError, match=r"\[0, 7\). Received: id=7"):
        tokenizer.id_to_token(7)
    with pytest.raises(ValueError, match="rank 0 or 1"):
        tokenizer.tokenize([["a"]])
    with pytest.raises(ValueError, match="no vocabulary"):
        BertTokenizer().vocabulary_size()


def test_specials_need_no_fixed_place():
    tokenizer = BertTokenizer(["a", *reversed(SPECIALS)])
    assert tokenizer.pad_token_id == 5 and tokenizer.mask_token_id == 1
    assert tokenizer.tokenize("a b").numpy().tolist() == [0, 4]


def test_vocabulary_lines_that_strip_to_nothing_keep_their_ids(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, "\u2028", "##\u2028", "a", "\x02", "##a", "##"]) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer(str(path))
    assert tokenizer.tokenize("a aa \u2028 \x02 ## # #a").numpy().tolist() == [7, 7, 9, 1, 1, 1, 1, 7]
    assert tokenizer.vocabulary_size() == 11


@pytest.mark.parametrize(("lines", "message"), BROKEN_VOCABULARIES)
def test_broken_vocabularies(tmp_path, lines, message):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(InputError, match=message):
        BertTokenizer(str(path))


def test_vocabulary_that_is_not_utf8(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join(SPECIALS).encode() + b"\ncaf\xe9\n")
    with pytest.raises(InputError, match=r"vocab.txt:6: not valid UTF-8"):
        BertTokenizer(str(path))


# === A cased vocabulary and a lower-casing flag ===


def english_pieces(capitals):
    """600 pieces with Latin letters, of which every third has a capital if `capitals`."""
    words = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(600)]
    return [*SPECIALS, *(word.title() if capitals and i % 3 == 0 else word for i, word in enumerate(words))]


@pytest.mark.parametrize("capitals", [True, False])
def test_flag_that_contradicts_the_vocabulary(tmp_path, capitals):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in english_pieces(capitals)))
    message = rf"vocab.txt: expected .*lowercase={capitals}.*found a {'' if capitals else 'lower-'}cased"
    with pytest.raises(InputError, match=message):
        BertTokenizer(str(path), lowercase=capitals)
    assert BertTokenizer(str(path), lowercase=not capitals).vocabulary_size() == 605
    with pytest.raises(InputError, match=rf"Pass lowercase={not capitals}"):
        BertTokenizer.from_preset(str(tmp_path), lowercase=capitals)


@pytest.mark.parametrize("capitals", [True, False])
def test_case_of_the_vocabulary_where_nothing_says(tmp_path, capitals):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in english_pieces(capitals)))
    assert BertTokenizer.from_preset(str(tmp_path)).lowercase is not capitals
    assert BertTokenizer(str(tmp_path / "vocab.txt")).lowercase is not capitals


@pytest.mark.parametrize(
    ("pieces", "lowercase"), [(["THE", "the"], False), (["THE", "the", "a"], True), (["the"], True), (["\u4e2d"], True)]
)
def test_case_of_a_small_vocabulary_where_nothing_says(pieces, lowercase):
    for kind in (BertTokenizer, PythonBertTokenizer):
        assert kind([*SPECIALS, *pieces]).lowercase is lowercase
        assert kind([*SPECIALS, *pieces], lowercase=True).lowercase


@pytest.mark.parametrize(("name", "lowercase"), [("cased_L-2_H-128_A-2", False), ("chinese_L-2_H-128_A-2", True)])
def test_case_of_the_name_where_nothing_else_says(tmp_path, name, lowercase):
    (tmp_path / name).mkdir()
    (tmp_path / name / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*SPECIALS, "a"]))
    assert BertTokenizer.from_preset(str(tmp_path / name)).lowercase is lowercase
    assert BertTokenizer.from_preset(str(tmp_path / name), lowercase=not lowercase).lowercase is not lowercase
    (tmp_path / name / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not lowercase}))
    with pytest.raises(InputError, match=f"by its name the checkpoint is .*Pass lowercase={lowercase}"):
        BertTokenizer.from_preset(str(tmp_path / name))


# === Back to text ===


@pytest.fixture(scope="module")
def small():
    return BertTokenizer([*SPECIALS, "un", "##aff", "##able", ",", "\u4e2d", "##s"])


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([5, 6, 7, 8, 5], "unaffable , un"),
        ([2, 5, 6, 3, 0, 0], "[CLS] unaff [SEP] [PAD] [PAD]"),
        ([9, 9, 10], "\u4e2d \u4e2ds"),
        ([7, 6], "##ableaff"),  # Nothing stands before the first.
        ([1, 10], "[UNK]s"),
        ([], ""),
    ],
)
def test_detokenize(small, ids, text):
    assert small.detokenize(ids).numpy().decode() == text
    assert small.detokenize(tf.constant(ids, tf.int64)).numpy().decode() == text
    assert small.detokenize([ids, [5]]).numpy().tolist() == [text.encode(), b"un"]
    function = tf.function(small.detokenize, input_signature=[tf.TensorSpec([None], tf.int32)])
    assert function(tf.constant(ids, tf.int32)).numpy().decode() == text


def test_detokenize_of_other_shapes(small):
    assert small.detokenize(tf.constant([[5, 6], [8, 5]])).numpy().tolist() == [b"unaff", b", un"]
    nested = small.detokenize(tf.ragged.constant([[[5, 6], [8]], [[5]]]))
    assert nested.to_list() == [[b"unaff", b","], [b"un"]]
    ragged = small.tokenize(["unaffable", "", "un , \u4e2d\u4e2d"])
    assert small.detokenize(ragged).numpy().tolist() == [b"unaffable", b"", "un , \u4e2d \u4e2d".encode()]


@needs_data
def test_detokenized_texts_tokenize_to_their_ids():
    tokenizer = BertTokenizer(str(SHARED / "vocab" / "uncased_en.txt"))
    pieces = [number for number, piece in enumerate(tokenizer.get_vocabulary()) if "[" not in piece and piece != "##"]
    words = tf.ragged.constant([[number] for number in pieces if not tokenizer.id_to_token(number).startswith("##")])
    texts = tokenizer.detokenize(words)
    again = tokenizer.tokenize(texts)
    same = [row == back for row, back in zip(words.to_list(), again.to_list(), strict=True)]
    # Accented and other pieces that lower-casing takes apart do not come back; they are few.
    assert sum(same) > 0.99 * len(same)
    text = "the unaffable man ' s tokenization , isn ' t it ?"
    assert tokenizer.detokenize(tokenizer.tokenize(text)).numpy().decode() == text


@pytest.mark.parametrize("ids", [[5, 11], [[5], [6, -1]], [[[7, 1000]]]])
def test_ids_outside_the_vocabulary(small, ids):
    wrong = [number for number in tf.nest.flatten(ids) if not 0 <= number < 11][0]
    function = tf.function(small.detokenize, input_signature=[tf.TensorSpec([None], tf.int32)])
    for detokenize, given in ((small.detokenize, ids), (function, tf.constant(tf.nest.flatten(ids)))):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"= {wrong} is not in"):
            detokenize(given)


# === Presets ===


@pytest.mark.slow(keep=["cased"])
@CASES
def test_preset_round_trip(tmp_path, lowercase):
    tokenizer = BertTokenizer([*SPECIALS, "a", "A"], lowercase=lowercase)
    tokenizer.save_to_preset(str(tmp_path))
    again = BertTokenizer.from_preset(str(tmp_path))
    assert again.get_vocabulary() == tokenizer.get_vocabulary() and again.lowercase == lowercase
    assert again.tokenize("A").numpy().tolist() == [5 if lowercase else 6]
    assert sorted(os.listdir(tmp_path)) == ["assets", "tokenizer.json"]


def test_preset_in_keras_hubs_own_words(tmp_path):
    import keras_nlp

    stock = keras_nlp.models.BertTokenizer([*SPECIALS, "a"], lowercase=True)
    stock.save_to_preset(str(tmp_path))
    tokenizer = BertTokenizer.from_preset(str(tmp_path))
    assert tokenizer.lowercase and tokenizer.get_vocabulary() == stock.get_vocabulary()


def test_keras_hub_preprocessor_takes_it():
    import keras_nlp

    tokenizer = BertTokenizer([*SPECIALS, "a", "b"])
    preprocessor = keras_nlp.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=5)
    assert [[int(i) for i in row] for row in preprocessor(["a b"])["token_ids"]] == [[2, 5, 6, 3, 0]]


@pytest.mark.parametrize(("config", "lowercase"), [({"do_lower_case": False}, False), ({}, True), (None, True)])
def test_hugging_face_directory(tmp_path, config, lowercase):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "a"]))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')  # Another format of the same name.
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert BertTokenizer.from_preset(str(tmp_path)).lowercase is lowercase


def test_presets_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="no tokenizer. Expected assets/tokenizer/vocabulary.txt"):
        BertTokenizer.from_preset(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    with pytest.raises(InputError, match="strip_accents=False"):
        BertTokenizer.from_preset(str(tmp_path))


def test_docstring_examples():
    results = doctest.testmod(tokenizer_module)
    assert results.attempted >= 1 and results.failed == 0
