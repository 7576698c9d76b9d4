"""Tokenizers of Hugging Face directories: what the files say is what transformers does."""

import json

import pytest

from keras_bert.errors import InputError
from keras_bert.formats.hugging_face import read_tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "A", "é", "e"]
SETTINGS = "tokenizer_config.json"


def fast_file(vocabulary=None, **normalizer):
    rules = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
    ids = {piece: index for index, piece in enumerate(PIECES)} if vocabulary is None else vocabulary
    parts = {"normalizer": {**rules, **normalizer}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    return {"model": {"type": "WordPiece", "vocab": ids}, **parts}


def write(directory, settings=None, fast=None, vocabulary=True):
    if vocabulary:
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    for name, content in ((SETTINGS, settings), ("tokenizer.json", fast)):
        if content is not None:
            (directory / name).write_text(json.dumps(content))
    return str(directory)


@pytest.mark.parametrize(
    ("settings", "fast", "lowercase"),
    [
        (None, None, None),
        ({}, None, None),
        ({"do_lower_case": True}, None, True),
        ({"do_lower_case": False, "strip_accents": False}, None, False),
        (None, fast_file(lowercase=False), False),
        ({"do_lower_case": False}, fast_file(lowercase=True), False),
        ({}, {"version": "1.0", "model": {}}, None),
        ({}, {"module": "keras_bert.tokenization.tokenizer", "config": {"lowercase": True}}, None),
    ],
)
def test_what_is_said_of_the_case(tmp_path, settings, fast, lowercase):
    path = write(tmp_path, settings, fast)
    assert read_tokenizer(path) == {"vocabulary": str(tmp_path / "vocab.txt"), "lowercase": lowercase}


def test_the_vocabulary_of_tokenizers_own_file(tmp_path):
    ids = {piece: index for index, piece in reversed(list(enumerate(PIECES)))}
    path = write(tmp_path, {}, fast_file(ids, lowercase=False), vocabulary=False)
    assert read_tokenizer(path) == {"vocabulary": PIECES, "lowercase": False}


def test_no_tokenizer(tmp_path):
    assert read_tokenizer(str(tmp_path)) is None
    assert read_tokenizer(write(tmp_path, {}, {"class_name": "BertTokenizer"}, vocabulary=False)) is None


@pytest.mark.parametrize(
    ("settings", "fast", "message"),
    [
        ({"do_lower_case": True, "strip_accents": False}, None, "found strip_accents=False"),
        ({"do_lower_case": False, "strip_accents": True}, None, "found strip_accents=True"),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, None, "tokenize_chinese_chars=False"),
        ({"do_lower_case": "yes"}, None, "expected do_lower_case to be true or false, found 'yes'"),
        ([], None, "expected a JSON object, found list"),
        ({}, fast_file(strip_accents=False), "found strip_accents=False"),
        ({}, fast_file(handle_chinese_chars=False), "tokenize_chinese_chars=False"),
    ],
)
def test_other_rules_than_berts_are_refused(tmp_path, settings, fast, message):
    with pytest.raises(InputError, match=message) as caught:
        read_tokenizer(write(tmp_path, settings, fast))
    assert SETTINGS in str(caught.value)


@pytest.mark.parametrize("name", ["BertTokenizerFast", "ElectraTokenizer", "DPRReaderTokenizer", None])
def test_classes_that_split_as_berts_are_read(tmp_path, name):
    settings = {"tokenizer_class": name, "word_tokenizer_type": "basic"}
    assert read_tokenizer(write(tmp_path, settings))["vocabulary"] == str(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class='BertJapaneseTokenizer'"),
        ({"tokenizer_class": ["BertTokenizer"]}, r"tokenizer_class=\['BertTokenizer'\]"),
        ({"word_tokenizer_type": "mecab"}, "tokenizer_class=None, word_tokenizer_type='mecab'"),
        ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type='character'"),
    ],
)
def test_tokenizers_that_split_otherwise_are_refused(tmp_path, settings, words):
    message = f"{SETTINGS}: expected a tokenizer that splits texts as BERT's does, found .*{words}. If yours does, set"
    with pytest.raises(InputError, match=message):
        read_tokenizer(write(tmp_path, settings))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("added_tokens.json", {"[E1]": 10}),
        ("special_tokens_map.json", {"cls_token": "[CLS]", "additional_special_tokens": ["[E1]", "[PAD]"]}),
        (
            SETTINGS,
            {"added_tokens_decoder": {"0": {"content": "[PAD]"}, "10": {"content": "[E1]"}, "11": {"content": 1}}},
        ),
        (SETTINGS, {"additional_special_tokens": [{"content": "[E1]"}, [1]]}),
        (SETTINGS, {"extra_special_tokens": {"entity_token": "[E1]"}}),
        ("tokenizer.json", {"added_tokens": [{"id": 4, "content": "[MASK]"}, {"id": 10, "content": "[E1]"}]}),
    ],
)
def test_added_tokens_are_named_once_in_a_warning(tmp_path, caplog, file, content):
    write(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with caplog.at_level("WARNING", logger="absl"):
        assert read_tokenizer(str(tmp_path)) == read_tokenizer(str(tmp_path))
    (message,) = caplog.messages
    assert "keeps the added tokens [E1] whole" in message and message.startswith(str(tmp_path))


def test_the_special_tokens_of_bert_cause_no_warning(tmp_path, caplog):
    added = [{"id": id, "content": piece} for id, piece in enumerate(PIECES[:5])]
    with caplog.at_level("WARNING", logger="absl"):
        read_tokenizer(write(tmp_path, {"additional_special_tokens": []}, {**fast_file(), "added_tokens": added}))
    assert not caplog.messages


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_a_class_for_any_tokenizer_follows_the_file_of_the_tokenizer_alone(tmp_path, name):
    settings = {"tokenizer_class": name, "do_lower_case": True}
    path = write(tmp_path, settings, fast_file(lowercase=False))
    assert read_tokenizer(path) == {"vocabulary": PIECES, "lowercase": False}
    for part, other in (("model", "Unigram"), ("normalizer", "NFC"), ("pre_tokenizer", "Whitespace")):
        fast = fast_file()
        with pytest.raises(InputError, match=f"tokenizer.json: expected a BERT tokenizer .*found .*'{other}'"):
            read_tokenizer(write(tmp_path, settings, {**fast, part: {**fast[part], "type": other}}))


@pytest.mark.parametrize(
    ("fast", "message"),
    [
        ({"model": {"type": "BPE", "vocab": {}}}, r"expected a BERT tokenizer .*found 'BPE', None, None"),
        (
            {"model": {"type": "WordPiece", "vocab": {"a": 0}}, "normalizer": {"type": "Lowercase"}},
            "found 'WordPiece', 'Lowercase', None",
        ),
        (fast_file({"a": 0, "b": 2}), "ids to be 0, 1, ... without gaps"),
        (fast_file(["a", "b"]), "ids to be 0, 1, ... without gaps"),
    ],
)
def test_other_tokenizers_are_refused_where_nothing_else_is_there(tmp_path, fast, message):
    with pytest.raises(InputError, match=message) as caught:
        read_tokenizer(write(tmp_path, None, fast, vocabulary=False))
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.oracle
@pytest.mark.parametrize("lowercase", [True, False])
def test_what_transformers_saves(tmp_path, lowercase):
    transformers = pytest.importorskip("transformers")
    ids = {piece: index for index, piece in enumerate(PIECES)}
    transformers.BertTokenizer(vocab=ids, do_lower_case=lowercase).save_pretrained(tmp_path)
    assert not (tmp_path / "vocab.txt").exists()
    assert read_tokenizer(str(tmp_path)) == {"vocabulary": PIECES, "lowercase": lowercase}


@pytest.mark.oracle
def test_of_two_files_that_contradict_each_other_transformers_follows_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    ids = {piece: index for index, piece in enumerate(PIECES)}
    transformers.BertTokenizer(vocab=ids, do_lower_case=True).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / SETTINGS).read_text())
    (tmp_path / SETTINGS).write_text(json.dumps({**settings, "do_lower_case": False}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path).tokenize("A é")
    assert theirs == ["A", "é"] and read_tokenizer(str(tmp_path))["lowercase"] is False


@pytest.mark.parametrize(
    ("settings", "lower", "lowercase"),
    [
        ({}, True, True),
        ({"do_lower_case": True}, True, True),
        ({"do_lower_case": False}, False, False),
        ({}, None, None),
    ],
)
def test_the_case_that_sentence_transformers_wants(tmp_path, settings, lower, lowercase):
    path = write(tmp_path, settings)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": lower}))
    assert read_tokenizer(path)["lowercase"] is lowercase


def test_lower_case_with_accents_is_refused(tmp_path):
    path = write(tmp_path, {"do_lower_case": False})
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(InputError, match="sentence_bert_config.json: expected do_lower_case to be false.*yourself"):
        read_tokenizer(path)
