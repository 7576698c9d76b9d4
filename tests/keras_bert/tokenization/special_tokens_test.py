"""special_tokens_in_strings: special tokens inside a text become their ids, in the graph and in Python."""

import random

import keras
import keras_nlp
import pytest
import tensorflow as tf
from fuzzing import some
from tokenizer_reference import SPECIALS
from tokenizer_texts import alphabet_vocabulary, char_vocabulary, fuzzed_bytes, fuzzed_texts

from keras_bert.tokenization.host_tokenizer import HostTokenizer
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from keras_bert.tokenization.special_tokens import SpecialTokens
from keras_bert.tokenization.tokenizer import BertTokenizer

VOCABULARY = [*SPECIALS, "[", "]", "mask", "a", "b", "##b"]
PAD, UNK, CLS, SEP, MASK, LEFT, RIGHT, WORD, A, B, _ = range(len(VOCABULARY))
# Text, ids, and where each token begins and ends.
EXAMPLES = [
    ("", [], [], []),
    ("[MASK]", [MASK], [0], [6]),
    ("[CLS] a[MASK]b [SEP][PAD]", [CLS, A, MASK, B, SEP, PAD], [0, 6, 7, 13, 15, 20], [5, 7, 13, 14, 20, 25]),
    ("A\u0301[UNK]\u0301b", [A, UNK, B], [0, 2, 8], [2, 7, 9]),
    ("[mask] [[MASK]", [LEFT, WORD, RIGHT, LEFT, MASK], [0, 1, 5, 7, 8], [1, 5, 6, 8, 14]),
    ("\u4e2d[MA\x00SK] \x00[SEP]", [UNK, LEFT, WORD, RIGHT, SEP], [0, 1, 2, 7, 10], [1, 2, 7, 8, 15]),
]
NEAR = ["[", "]", "[MA", "SK]", "[mask]", "##", "[[CLS]]", "[UN\u0301K]", "[SEP\x00]", "\xc3", "MASK"]


def texts_with_special_tokens(count, seed):
    """Texts, as bytes, of special tokens, of what resembles them, and of anything else."""
    rng = random.Random(seed)
    kinds = [
        [token.encode() for token in SPECIALS],
        [text.encode("latin-1", "ignore") for text in NEAR],
        [b"[MA\xffSK]", b"\xff", b"\xe4\xb8", b"\xf0\x9f\x98"],
        [text.encode() for text in fuzzed_texts(count, seed)],
        fuzzed_bytes(count, seed),
    ]
    return [b"".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(0, 7))) for _ in range(count)]


def columns_of(tokenizer, texts):
    """Ids, starts and ends of each text, for either kind of tokenizer."""
    if isinstance(tokenizer, PythonBertTokenizer):
        return [list(tokenizer.tokenize_with_offsets(text)) for text in texts]
    return list(map(list, zip(*(c.to_list() for c in tokenizer.tokenize_with_offsets(texts)), strict=True)))


@pytest.mark.parametrize("kind", [BertTokenizer, PythonBertTokenizer])
def test_special_tokens_inside_texts(kind):
    tokenizer = kind(VOCABULARY, special_tokens_in_strings=True)
    texts = [text for text, *_ in EXAMPLES]
    assert columns_of(tokenizer, texts) == [list(expected) for _, *expected in EXAMPLES]
    ids = [tokenizer.tokenize(text) for text in texts]
    assert [list(map(int, row)) for row in ids] == [row for _, row, *_ in EXAMPLES]
    assert list(map(int, kind(VOCABULARY).tokenize("[MASK]"))) == [LEFT, WORD, RIGHT]  # By default they are text.


@pytest.mark.slow(keep=[True])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_graph_equals_python(lowercase):
    tokenizer = BertTokenizer(alphabet_vocabulary(), lowercase, special_tokens_in_strings=True)
    texts = texts_with_special_tokens(some(10_000), seed=4)
    python = PythonBertTokenizer.of(tokenizer)
    assert columns_of(tokenizer, texts) == columns_of(python, texts)
    assert tokenizer.tokenize(texts).to_list() == list(map(python.tokenize, texts))
    # Without tensorflow-text this takes the place of the graph.
    ids = {token: tokenizer.token_to_id(token) for token in SPECIALS}
    host = SpecialTokens(HostTokenizer(tokenizer.get_vocabulary(), lowercase), ids)
    assert host.tokenize(tf.constant(texts[:200])).to_list() == list(map(python.tokenize, texts[:200]))


@pytest.mark.oracle
@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_others(lowercase):
    transformers = pytest.importorskip("transformers")
    chars = "abAB[](MASKCLEPUND\u4e2d\u00e9.,"
    vocabulary = char_vocabulary(chars + chars.lower() + "e")
    tokenizer = BertTokenizer(vocabulary, lowercase, special_tokens_in_strings=True)
    rng = random.Random(5)
    texts = ["".join(rng.choice([*SPECIALS, *chars, " "]) for _ in range(rng.randint(1, 9))) for _ in range(600)]
    ids = tokenizer.tokenize(texts).to_list()
    places = {piece: place for place, piece in enumerate(vocabulary)}
    theirs = transformers.BertTokenizer(vocab=places, do_lower_case=lowercase)
    assert ids == theirs(texts, add_special_tokens=False)["input_ids"]
    hub = keras_nlp.models.BertTokenizer(
        vocabulary, lowercase, strip_accents=lowercase, special_tokens_in_strings=True, special_tokens=["[UNK]"]
    )
    assert ids == [list(map(int, row)) for row in hub(texts)]


def test_every_way_to_run_it_agrees(tmp_path):
    tokenizer = BertTokenizer(VOCABULARY, special_tokens_in_strings=True)
    texts, ids = [text for text, *_ in EXAMPLES], [row for _, row, *_ in EXAMPLES]
    assert next(iter(tf.data.Dataset.from_tensors(texts).map(tokenizer.tokenize))).to_list() == ids
    module = tf.Module()
    module.tokenizer = tokenizer
    module.serve = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, str(tmp_path / "saved"))
    serve = tf.saved_model.load(str(tmp_path / "saved")).serve
    assert serve(texts).to_list() == ids
    assert serve(tf.constant([], tf.string)).to_list() == []


@pytest.mark.parametrize("kind", [BertTokenizer, keras_nlp.models.BertTokenizer], ids=["ours", "keras_hub"])
def test_the_setting_is_part_of_a_preset(tmp_path, kind):
    kind(VOCABULARY, lowercase=True, special_tokens_in_strings=True).save_to_preset(str(tmp_path))
    loaded = BertTokenizer.from_preset(str(tmp_path))
    assert loaded.tokenize("[MASK]").numpy().tolist() == [MASK] and loaded.special_tokens_in_strings
    assert not BertTokenizer.from_preset(str(tmp_path), special_tokens_in_strings=False).special_tokens_in_strings
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loaded))
    assert again.special_tokens_in_strings
