"""serving: how much of a text is tokenized, and how long a batch becomes."""

import random

import fuzzing
import pytest
import tensorflow as tf
from toy_classifier import LABELS, SEQUENCE_LENGTH, VOCABULARY, assets, classifier

from export.heads.classification import Classification
from keras_bert import BertTokenizer
from keras_bert.answers import text_bounds

# === The bound on text ===

# Everything that makes cutting delicate: final sigma and what it looks past, accents, deleted characters, invalid
# bytes, CJK, white space of all kinds.
_DELICATE = [
    *(" ", "  ", "\t", "\n", "\u00a0", "\u2003", "\u2028", "\x0b", "\x00", "\ufffd", "\u200b", "\u00ad"),
    *("Σ", "σ", "ΑΣ", "Α", "a", "ab", "Z", "9", "'", ".", ":", "^", "`", "!", "-", "_", "(", "\u2019", "·", "…"),
    *("\u0301", "e\u0301", "é", "\u0338", "\u0f71\u0f72", "\u093e", "中", "文", "\uf900", "\U00020000", "가", "ß", "İ"),
    *("word", "the cat", "\U0001f600", "\u3002", "ǅ"),
]


@pytest.mark.slow(keep=["True-False", "True-True"])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("lowercase", [True, False])
def test_cutting_a_text_never_changes_its_first_tokens(lowercase, special):
    generator = random.Random(3 + lowercase)
    texts = []
    for _ in range(1500 if fuzzing.FULL else 400):
        few = generator.sample(_DELICATE + special * ["[MASK]"] * 30, generator.randint(2, 7))
        fragments = [generator.choice(few).encode() for _ in range(generator.randint(1, 150))]
        if generator.random() < 0.2:
            fragments.insert(
                generator.randrange(len(fragments)), generator.choice([b"\xff", b"\xe4\xb8", b"\xc3", b"\xf0\x9f"])
            )
        texts.append(b"".join(fragments))
    vocabulary = VOCABULARY + ["Σ", "ς", "Α", "##σ", "##ς", "##Σ", "α", "##α"]
    tokenizer = BertTokenizer(vocabulary, lowercase, special_tokens_in_strings=special)
    bound = tf.function(lambda batch, number: text_bounds.bound_texts(batch, tokenizer, number))
    for num_tokens in (1, 4):  # looks of 8 and 32 bytes: most texts are cut, many after several looks
        bounded = bound(tf.constant(texts), num_tokens)
        expected = tokenizer.tokenize(tf.constant(texts))[:, :num_tokens].to_list()
        assert tokenizer.tokenize(bounded)[:, :num_tokens].to_list() == expected
        shorter = tf.strings.length(bounded) < tf.strings.length(tf.constant(texts))
        assert tf.reduce_mean(tf.cast(shorter, tf.float32)) > 0.3


@pytest.mark.parametrize("text", ["word " * 200_000, "中文" * 150_000, "(!)" * 300_000, "the cat, " * 100_000])
def test_a_huge_text_is_cut_to_about_what_is_used(text):
    tokenizer = BertTokenizer(VOCABULARY)
    bounded = text_bounds.bound_texts(tf.constant([text, "short"]), tokenizer, 128)
    assert tf.strings.length(bounded).numpy().tolist()[0] <= 4 * 8 * 128
    assert bounded[1] == "short"


@pytest.mark.parametrize(
    "text", ["x" * 10_000_000 + " the", " " * 10_000_000 + "the", "the\x00" + "\x00" * 10_000_000, "." * 2**20]
)
def test_of_a_text_without_an_end_the_first_64_kib_count(text):
    tokenizer = BertTokenizer(VOCABULARY)
    bounded = text_bounds.bound_texts(tf.constant([text, "x" * 65_000 + " the cat"]), tokenizer, 128).numpy()
    assert bounded[0] == text[: text_bounds.MOST_BYTES].encode()
    assert text_bounds.most_bytes(512) == 131_072
    assert tokenizer.tokenize([bounded[1]]).to_list() == tokenizer.tokenize(["x" * 65_000 + " the cat"]).to_list()


@pytest.fixture(scope="module", name="model")
def _model():
    return classifier()


def test_no_more_of_a_megabyte_is_tokenized_than_is_used(model, monkeypatch):
    preprocessor = assets()
    tokenize, num_bytes = preprocessor.tokenizer.tokenize, []

    def counted(texts):
        num_bytes.append(int(tf.reduce_sum(tf.strings.length(texts))))
        return tokenize(texts)

    monkeypatch.setattr(preprocessor.tokenizer, "tokenize", counted)
    head = Classification(model, preprocessor, LABELS)
    tf.config.run_functions_eagerly(True)
    try:
        encoded = head.encode_in_graph({"text": tf.constant(["word " * 200_000])})
    finally:
        tf.config.run_functions_eagerly(False)
    assert encoded["token_ids"].shape == (1, SEQUENCE_LENGTH)
    assert 0 < sum(num_bytes) <= 2 * 8 * SEQUENCE_LENGTH


@pytest.mark.parametrize("num_texts", [1, 2])
def test_a_batch_is_padded_to_its_longest_text(model, num_texts):
    head = Classification(model, assets(), LABELS, num_texts=num_texts)
    specs = [tf.TensorSpec([None], tf.string)] * num_texts
    encode = tf.function(
        lambda *texts: head.encode_in_graph(dict(zip(head.text_inputs, texts, strict=True))), input_signature=specs
    )
    for texts, length in (
        (["the cat", "mat"], 4),
        (["the cat sat", ""], 5),
        (["a long text " * 20, ""], 32),
        ([""], 2),
    ):
        encoded = encode(*[tf.constant(texts), tf.fill([len(texts)], "")][:num_texts])
        longest = min(length + num_texts - 1, SEQUENCE_LENGTH)  # a second [SEP]
        assert {tuple(ids.shape) for ids in encoded.values()} == {(len(texts), longest)}
