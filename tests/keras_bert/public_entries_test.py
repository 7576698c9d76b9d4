"""The public entries: which case a preset has, paths of any kind, and what is refused in which words."""

import json
import pathlib
import re

import pytest
import tensorflow as tf
from tokenizer_reference import SPECIALS
from toy_checkpoints import checkpoint_of

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import google, hugging_face, keras_preset
from keras_bert.presets import tokenizers, weights
from keras_bert.tokenization.preprocessor import BertPreprocessor
from keras_bert.tokenization.tokenizer import BertTokenizer

TINY = {"vocabulary_size": 7, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
PIECES = [*SPECIALS, "a", "A"]
WORDS = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(600)]
UNCASED = [*SPECIALS, *WORDS]
CASED = [*SPECIALS, *(word.title() if i % 3 == 0 else word for i, word in enumerate(WORDS))]


def directory_of(place, pieces, lowercase=None):
    place.mkdir()
    (place / "vocab.txt").write_text("\n".join(pieces))
    if lowercase is not None:
        (place / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    return str(place)


def both(preset, lowercase=None):
    """The case by both callers, which must agree."""
    settings = {} if lowercase is None else {"lowercase": lowercase}
    cases = (BertTokenizer.from_preset(preset, **settings).lowercase, tokenizers.read_tokenizer(preset, lowercase))
    assert cases[0] is cases[1]["lowercase"]
    return cases[0]


def both_refuse(preset, message, lowercase=None):
    for read in (
        lambda: BertTokenizer.from_preset(preset, lowercase=lowercase),
        lambda: tokenizers.read_tokenizer(preset, lowercase),
    ):
        with pytest.raises(InputError, match=message):
            read()


# === Case ===


@pytest.mark.parametrize(
    ("name", "pieces", "own", "given", "expected"),
    [
        ("run", PIECES, True, None, True),
        ("run", PIECES, False, None, False),
        ("run", CASED, None, None, False),
        ("run", UNCASED, False, True, True),  # What the argument says, the vocabulary bears out.
        ("cased_x", UNCASED, None, None, True),
        ("cased_x", UNCASED, True, None, True),
        ("cased_x", PIECES, None, None, False),
        ("cased_x", PIECES, None, True, True),
        ("uncased_x", CASED, False, None, False),
        ("chinese-ner", PIECES, False, True, True),
        ("chinese-ner", PIECES, False, False, False),
    ],
)
def test_who_says_the_case(tmp_path, name, pieces, own, given, expected):
    assert both(directory_of(tmp_path / name, pieces, own), given) is expected


def test_nothing_says_the_case(tmp_path):
    preset = directory_of(tmp_path / "run", PIECES)
    assert BertTokenizer.from_preset(preset).lowercase
    with pytest.raises(InputError, match="run: nothing says whether its vocabulary is lower-cased"):
        tokenizers.read_tokenizer(preset)


def test_settings_that_contradict_the_name_need_the_argument(tmp_path):
    preset = directory_of(tmp_path / "chinese-ner", PIECES, False)
    message = "chinese-ner: by its name the checkpoint is uncased, but lowercase=False by its own settings. Pass "
    both_refuse(preset, message + r"lowercase=True \(--do_lower_case=True\), or lowercase=False where the name")


@pytest.mark.parametrize("pieces", [CASED, UNCASED], ids=["cased", "uncased"])
def test_a_vocabulary_that_contradicts_names_the_source_and_a_cure_that_works(tmp_path, pieces):
    case = pieces is UNCASED
    preset = directory_of(tmp_path / "run", pieces, not case)
    both_refuse(preset, rf"vocab.txt: .*since lowercase={not case} by its own settings, .*Pass lowercase={case} ")
    both_refuse(preset, f"since lowercase={not case} by the argument", lowercase=not case)
    assert both(preset, case) is case


def test_an_argument_that_only_contradicts_is_refused_in_a_conversion(tmp_path):
    preset = directory_of(tmp_path / "run", PIECES, True)
    with pytest.raises(InputError, match="its vocabulary is uncased. Received: do_lower_case=False. Pass --do_lower"):
        tokenizers.read_tokenizer(preset, False)
    assert not BertTokenizer.from_preset(preset, lowercase=False).lowercase


def test_the_directory_of_a_prefix_is_the_name(tmp_path, monkeypatch):
    (tmp_path / "cased_x").mkdir()
    (tmp_path / "cased_x" / "bert_model.ckpt.index").write_bytes(b"")
    assert tokenizers.case_of_preset(str(tmp_path / "cased_x" / "bert_model.ckpt")) is False
    monkeypatch.chdir(tmp_path / "cased_x")
    assert tokenizers.case_of_preset(".") is False


def test_broken_vocabularies_are_refused_by_both(tmp_path):
    both_refuse(directory_of(tmp_path / "twice", [*PIECES, "a"], True), "twice/vocab.txt:8: the piece 'a' is on line 6")
    both_refuse(directory_of(tmp_path / "less", PIECES[1:], True), r"less/vocab.txt: the vocabulary lacks \[PAD\]")
    preset = directory_of(tmp_path / "pieces", PIECES, True)
    (tmp_path / "pieces" / "vocab.txt").unlink()
    fast = {
        "model": {
            "type": "WordPiece",
            "vocab": {piece: i for i, piece in enumerate(PIECES[1:])},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }
    (tmp_path / "pieces" / "tokenizer.json").write_text(json.dumps(fast))
    both_refuse(preset, r"pieces: its vocabulary: the vocabulary lacks \[PAD\]")


# === Presets and settings ===


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    place = tmp_path_factory.mktemp("home") / "toy"
    tokenizer = {"vocabulary": PIECES, "lowercase": True}
    keras_preset.write(str(place), checkpoint_of(BertBackbone(**TINY, max_sequence_length=16)), tokenizer)
    return place


@pytest.mark.parametrize("module", [keras_preset, hugging_face, google])
def test_more_pieces_than_rows(tmp_path, module):
    place = tmp_path / "toy"
    checkpoint = checkpoint_of(BertBackbone(**TINY, max_sequence_length=16))
    module.write(str(place), checkpoint, {"vocabulary": PIECES, "lowercase": True})
    assert BertPreprocessor.from_preset(place).sequence_length == 16
    for file in place.rglob("vocab*.txt"):
        file.write_text("\n".join([*PIECES, "b"]))
    with pytest.raises(InputError, match="toy: 8 pieces in the vocabulary, 7 rows in the token table"):
        BertPreprocessor.from_preset(place)


def test_more_pieces_than_the_rows_of_a_named_preset(tmp_path, monkeypatch):
    directory_of(tmp_path / "tiny", [*SPECIALS, *(f"a{number}" for number in range(30_600))])
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    with pytest.raises(InputError, match="tiny: 30605 pieces in the vocabulary, 30522 rows in the token table"):
        BertPreprocessor.from_preset("tiny")


def entries():
    return {
        "backbone": BertBackbone.from_preset,
        "architecture": lambda preset: BertBackbone.from_preset(preset, load_weights=False),
        "tokenizer": BertTokenizer.from_preset,
        "preprocessor": BertPreprocessor.from_preset,
        "config": weights.read_bert_config,
        "vocabulary": tokenizers.read_tokenizer,
        "checkpoint": lambda preset: weights.open_checkpoint(preset).__enter__(),
    }


@pytest.mark.parametrize("name", entries())
def test_paths_of_any_kind(preset, monkeypatch, name):
    entry = entries()[name]
    monkeypatch.setenv("HOME", str(preset.parent))
    for place in (preset, str(preset), "~/toy", pathlib.Path("~/toy")):
        entry(place)
    for other in (None, 7, b"tiny", ["tiny"]):
        with pytest.raises(InputError, match=re.escape(f"expected a preset's name or path, received {other!r}")):
            entry(other)


def test_unknown_settings(preset):
    for load_weights in (True, False):
        with pytest.raises(InputError, match="unknown setting foo. Expected some of: vocabulary_size, .*layout, name"):
            BertBackbone.from_preset(preset, load_weights, foo=1)
    with pytest.raises(ValueError, match="`layout`.* must be one of rectangular, unpadded, packed. Received: .*'x'"):
        BertBackbone.from_preset(preset, layout="x")
    backbone = BertBackbone.from_preset(preset, layout="unpadded", name="mine", trainable=False, dropout=0.0)
    assert (backbone.layout, backbone.name, backbone.trainable, backbone.dropout) == ("unpadded", "mine", False, 0.0)


def test_overrides_that_contradict_the_weights_are_named(preset):
    with pytest.raises(InputError, match=r"expected shape \(7, 32\) by hidden_dim=32, found \(7, 8\)"):
        BertBackbone.from_preset(preset, hidden_dim=32)
    with pytest.raises(InputError, match="lacks transformer_layer_2/.* expected by num_layers=3"):
        BertBackbone.from_preset(preset, num_layers=3)


def test_a_google_checkpoint_without_override_is_called_by_its_configuration(tmp_path):
    google.write(str(tmp_path / "toy"), checkpoint_of(BertBackbone(**TINY)), None)
    with weights.open_checkpoint(tmp_path / "toy") as checkpoint:
        assert weights.load_weights_of(BertBackbone(**TINY), checkpoint) == []


# === Preprocessor ===


@pytest.mark.parametrize("length", [0, 2, -1, "8", 8.0, True])
def test_sequence_lengths(preset, length):
    message = f"`sequence_length` must be .*at least 3. Received: sequence_length={length!r}"
    with pytest.raises(ValueError, match=message):
        BertPreprocessor.from_preset(preset, sequence_length=length)
    with pytest.raises(ValueError, match=message):
        BertPreprocessor(BertTokenizer(PIECES), length)


def test_pairs_of_unequal_batches():
    preprocessor = BertPreprocessor(BertTokenizer(PIECES), 8)
    spec = tf.TensorSpec([None], tf.string)
    function = tf.function(lambda a, b: preprocessor((a, b)), input_signature=[spec, spec])
    for first, second in ((1, 3), (3, 1), (2, 3), (0, 1)):
        texts = (tf.constant(["a"] * first, tf.string), tf.constant(["a"] * second, tf.string))
        with pytest.raises(ValueError, match=f"Received: {first} first and {second} second texts"):
            preprocessor(texts)
        with pytest.raises(tf.errors.InvalidArgumentError):
            function(*texts)
        assert function(texts[0], texts[0])["token_ids"].shape == (first, 8)


# === Tokenizer ===


def test_an_empty_batch_is_called():
    tokenizer = BertTokenizer(PIECES)
    for empty in ([], ()):
        assert list(tokenizer(empty)) == tokenizer.tokenize([]).to_list() == []
    assert [list(row) for row in tokenizer(["a"])] == [[5]]


def test_detokenize_takes_lists_of_tensors_and_refuses_what_is_no_list():
    tokenizer = BertTokenizer(PIECES)
    rows = [tf.constant([5]), tf.constant([5, 6], tf.int64)]
    assert tokenizer.detokenize(rows).numpy().tolist() == [b"a", b"a A"]
    assert tokenizer.detokenize([tf.constant(5), tf.constant(6)]).numpy() == b"a A"
    for token_id in (7, 5, tf.constant(5)):
        with pytest.raises(ValueError, match="rank 1 or more"):
            tokenizer.detokenize(token_id)
    for wrong in ([[5], [[6]]], ["a"], [5.5], [tf.constant([5]), tf.constant(5)], tf.constant([5.0]), None):
        with pytest.raises(ValueError, match="`inputs` must hold ids") as raised:
            tokenizer.detokenize(wrong)
        assert "Traceback" not in str(raised.value)
