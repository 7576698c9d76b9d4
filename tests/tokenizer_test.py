"""BertTokenizer against a second derivation of google-research/bert's rules, written without its normalizer."""

import doctest
import json
import os
import random
import subprocess
import sys
import unicodedata

import keras
import pytest
import tensorflow as tf

from keras_bert import tokenizer as tokenizer_module
from keras_bert.errors import InputError
from keras_bert.normalizer import split_words
from keras_bert.tokenizer import BertTokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(os.path.dirname(ROOT), "shared", "data")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])


# === The reference: tokenization.py of google-research/bert, rule by rule ===


def reference_is_ideograph(char):
    blocks = "3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF 2F800-2FA1F"
    return any(int(low, 16) <= ord(char) <= int(high, 16) for low, high in (b.split("-") for b in blocks.split()))


def reference_is_symbol(char):
    if 32 < ord(char) < 127:
        return not char.isalnum()
    return unicodedata.category(char)[0] == "P"


def reference_words(text, lowercase):
    if isinstance(text, bytes):
        text = text.decode("utf-8", "ignore")
    cleaned = []
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r " or category == "Zs":
            cleaned.append(" ")
        elif char not in "\x00\ufffd" and category not in ("Cc", "Cf"):
            cleaned.append(f" {char} " if char > "\u33ff" and reference_is_ideograph(char) else char)
    words = []
    for chunk in "".join(cleaned).split():
        if lowercase:
            chunk = unicodedata.normalize("NFD", chunk.lower())
            chunk = "".join(char for char in chunk if unicodedata.category(char) != "Mn")
        spaced = "".join(f" {char} " if reference_is_symbol(char) else char for char in chunk)
        words.extend(spaced.split())
    return words


def reference_pieces(word, ids):
    if len(word) > 200:
        return [ids["[UNK]"]]
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in ids)
        end = next(ends, None)
        if end is None:
            return [ids["[UNK]"]]
        found.append(ids[prefix + word[start:end]])
        start = end
    return found


def reference_ids(text, ids, lowercase):
    return [i for word in reference_words(text, lowercase) for i in reference_pieces(word, ids)]


def check_equal(tokenizer, texts):
    """Compares `tokenizer` and the reference on `texts` (str or bytes), in batches of one and of many."""
    ids = {piece.strip(): number for number, piece in enumerate(tokenizer.get_vocabulary())}
    expected = [reference_ids(text, ids, tokenizer.lowercase) for text in texts]
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    wrong = []
    for start in range(0, len(raw), 512):
        got = tokenizer.tokenize(tf.constant(raw[start : start + 512])).to_list()
        wrong += [(raw[start + i], row, expected[start + i]) for i, row in enumerate(got) if row != expected[start + i]]
    assert not wrong, f"{len(wrong)} of {len(raw)} texts differ, first: {wrong[0]}"


# === Vocabularies and texts ===

ADVERSARIAL = [
    "",
    "   \t\n\r ",
    "Hello, World! It's 3.14\u20ac",
    "na\u00efve CAF\u00c9 \u00c5ngstr\u00f6m \u01c5 \u0130stanbul stra\u00dfe \ufb01n",
    "\u4e2d\u6587abc\u4e2d \u3042\u30ac \ud55c\uad6d\uc5b4 \ufa0e\uf900\u2f81a",
    "\U0002b820x\U0002b91fy\U0002ceafz\U0002ceb0w",
    "\u039f\u0394\u039f\u03a3 \u03a3 \u03a3\u03a3 A\u03a3 A\u03a3B A\u03a3.B A\u03a3\u0301B",
    "A.\u03a3 \u03a3\u03a3\u03a3a \u02b0\u03a3 A\u03a3\u03a3",
    "A\u0007\u03a3\u0007B a\u03a3\ufffdb \u00aa\u03a3 \u0345\u03a3 A\u00ad\u03a3\u00ad \u4e2d\u03a3\u4e2d",
    "ab\u0007cd\u0000e\ufffdf\u200bg\u200dh\u00adi\ufeffj\u2060k\x85l\x0bm\x0cn\x1co",
    "a\u0301\u0316b\u0316\u0301 e\u0323\u0302 \u1ea1\u0302",
    "\U0001d16d\U0001d165 \U0001d165\U0001d16d\U0001d165 \U0001d16d\u0007\U0001d165",
    "\U0001d160\U0001d166 \U0001d16d\u034f\U0001d165",
    "\u1b44\u0301\u302e\u302f\ua953 x\u302e\u1b44 \u302e\u0301\u1b44",
    "[MASK] [CLS]x[SEP] [UNK] ##ing [PAD]",
    "\u2028a\u2029b\u3000c\u00a0d\u1680e\u2000f\u202fg\u205fh\u180ei",
    "\u037e \u0387 \u1fef a\u226eb \u2260 \u2126 \u212a \u00b7",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1e9\U0001f1ea \u20e3",
    "\u061d\u2e54\u1b7f\U00011b00x \u1b4ea\u1b4f \U00011f43 y\U0001e5ff",
    "^$`~|<>+= \u00a7\u00b6\u2014\u2026\u201cq\u201d\u00ab\u00bb",
    "a" * 200,
    "a" * 201,
    "\u00e9" * 200 + " " + "\u00e9" * 201,
    "\uac00" * 66 + " " + "\uac00" * 67 + " " + "\uac00" * 100 + " " + "\uac00" * 101,
    "\U00010400" * 200 + " " + "\U00010400" * 201,
    "a" * 150 + "-" + "a" * 150 + "\u4e2d" + "a" * 201 + "\u2014" + "b" * 200 + ",",
    "A" * 199 + "\u03a3" + " " + "A" * 200 + "\u03a3",
    "x " * 300 + "y" * 500,
    b"abc\xff\xfedef \xc3",
    b"\xed\xa0\x80x \xc0\xafy \xf4\x90\x80\x80z \xe4\xb8A \xf0\x9f\x98 \xe0\x80\x80 \xf5\xf6 \x80\x81q",
    b"\xce\xa3\xff\xce\xa3 A\xce\xff\xce\xa3",
]


def char_vocabulary(chars):
    """Specials, then every character as a word's beginning and as its continuation: all differences show."""
    chars = [char for char in sorted(set(chars)) if not char.isspace() and char != "#"]
    return [*SPECIALS, *chars, *(f"##{char}" for char in chars)]


def all_results(chars):
    results = set(chars)
    for char in chars:
        results |= set(unicodedata.normalize("NFD", char.lower())) | set(char.lower())
    return results


def characters_of_interest():
    """All assigned characters but letters without case, of which (as of unassigned ones) every 23rd will do."""
    categories = ((cp, unicodedata.category(chr(cp))) for cp in range(0x110000))
    return [chr(cp) for cp, name in categories if name != "Cs" and (name not in ("Lo", "Cn", "Co") or cp % 23 == 0)]


@pytest.fixture(scope="module")
def fuzz_alphabet():
    """Characters of every category, and all that the rules treat in a way of their own."""
    rng = random.Random(0)
    by_category = {}
    for cp in range(0x110000):
        if not 0xD800 <= cp < 0xE000:
            by_category.setdefault(unicodedata.category(chr(cp)), []).append(chr(cp))
    chars = [char for group in by_category.values() for char in rng.sample(group, min(60, len(group)))]
    chars += [char for text in ADVERSARIAL if isinstance(text, str) for char in text]
    chars += [char for name in ("Mc", "Me") for char in by_category[name] if unicodedata.combining(char)]
    return sorted(set(chars) - set("#"))


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def fuzz_tokenizer(request, fuzz_alphabet):
    return BertTokenizer(char_vocabulary(all_results(fuzz_alphabet)), lowercase=request.param)


def fuzzed_texts(alphabet, count, seed):
    rng = random.Random(seed)
    hot = "\u03a3\u03a3A.b\u0301\u0345'\u02b0\u00ad\u0007 -\u4e2d\u302e\u1b44\U0001d16d\U0001d165\u034f\uac01\u00c9"
    texts = []
    for _ in range(count):
        source = hot if rng.random() < 0.4 else alphabet
        texts.append("".join(rng.choice(source if rng.random() < 0.8 else alphabet) for _ in range(rng.randint(1, 14))))
    return texts


# === Exactness ===


def test_adversarial_strings_equal_reference(fuzz_tokenizer):
    check_equal(fuzz_tokenizer, ADVERSARIAL)
    for text in ADVERSARIAL:  # Alone too: what one text triggers must not touch another of its batch.
        check_equal(fuzz_tokenizer, [text])


def test_fuzzed_strings_equal_reference(fuzz_tokenizer, fuzz_alphabet):
    check_equal(fuzz_tokenizer, fuzzed_texts(fuzz_alphabet, 6000, seed=1))


def test_fuzzed_bytes_equal_reference(fuzz_tokenizer):
    rng = random.Random(2)
    likely = b"\x00a \x80\xbf\xc0\xc2\xce\xa3\xe0\xa0\xed\x9f\xef\xbb\xbf\xf0\x90\xf4\x8f\xf5\xff"
    check_equal(fuzz_tokenizer, [bytes(rng.choices(likely, k=rng.randint(1, 12))) for _ in range(4000)])


def test_split_words_equals_reference(fuzz_alphabet):
    texts = [text for text in ADVERSARIAL if isinstance(text, str)] + fuzzed_texts(fuzz_alphabet, 3000, seed=3)
    for lowercase in (True, False):
        assert [split_words(t, lowercase) for t in texts] == [reference_words(t, lowercase) for t in texts]


@CASES
def test_characters_equal_reference(lowercase):
    """Each between two letters; the vocabulary holds all that any of them can become."""
    chars = characters_of_interest()
    tokenizer = BertTokenizer(char_vocabulary(all_results(chars)), lowercase=lowercase)
    check_equal(tokenizer, [f"a{char}b" for char in chars])


def real_texts(*path):
    file = os.path.join(DATA, *path)
    if not os.path.exists(file):
        pytest.skip(f"../shared/data/{'/'.join(path)} is not there")
    with open(file, encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


@pytest.mark.parametrize(
    ("vocabulary", "lowercase", "text"),
    [
        ("uncased_en", True, ("corpus", "wikitext2-valid.txt")),
        ("cased_en", False, ("corpus", "wikitext2-valid.txt")),
        ("uncased_en", True, ("sst2", "dev.tsv")),
        ("uncased_en", True, ("wnut17", "train.conll")),
        ("zh", True, ("waimai", "dev.csv")),
    ],
)
def test_real_text_equals_reference(vocabulary, lowercase, text):
    real_texts("vocab", f"{vocabulary}.txt")
    tokenizer = BertTokenizer(os.path.join(DATA, "vocab", f"{vocabulary}.txt"), lowercase=lowercase)
    check_equal(tokenizer, real_texts(*text))


def test_known_ids_of_the_uncased_english_vocabulary():
    real_texts("vocab", "uncased_en.txt")
    tokenizer = BertTokenizer(os.path.join(DATA, "vocab", "uncased_en.txt"))
    assert tokenizer.tokenize("Hello, world!").numpy().tolist() == [7592, 1010, 2088, 999]
    assert tokenizer.tokenize("unaffable [MASK]").numpy().tolist()[-3:] == [1031, 7308, 1033]
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id) == (101, 102, 103)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.vocabulary_size()) == (0, 100, 30522)


# === Ways to run it ===

EXAMPLES = ["Hello, \u4e2d\u6587!", "", "A\u03a3 A\u03a3B", "a" * 201, "[MASK]", "\U0001d16d\U0001d165"]


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


def test_empty_batches():
    tokenizer = BertTokenizer([*SPECIALS, "a"])
    for empty in ([], tf.constant([], tf.string)):
        result = tokenizer.tokenize(empty)
        assert result.dtype == tf.int32 and result.shape[0] == 0
    assert tokenizer.tokenize(["", " "]).to_list() == [[], []]


@CASES
def test_saved_model_in_a_fresh_process(tmp_path, fuzz_alphabet, lowercase):
    """Only tensorflow and tensorflow_text are imported there; the vocabulary file is gone."""
    tokenizer = BertTokenizer(char_vocabulary(all_results(fuzz_alphabet)), lowercase=lowercase)
    archive = keras.export.ExportArchive()
    signature = [tf.TensorSpec([None], tf.string)]
    archive.add_endpoint("serve", lambda texts: {"ids": tokenizer.tokenize(texts).to_tensor(-1)}, signature)
    archive.write_out(str(tmp_path / "model"), verbose=False)
    texts = [t for t in ADVERSARIAL if isinstance(t, str)] + fuzzed_texts(fuzz_alphabet, 300, seed=4)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    program = (
        "import json, sys, tensorflow as tf, tensorflow_text\n"
        "serve = tf.saved_model.load(sys.argv[1]).serve\n"
        "ids = serve(tf.constant(json.load(open(sys.argv[2]))))['ids'].numpy().tolist()\n"
        "json.dump([[i for i in row if i >= 0] for row in ids], open(sys.argv[3], 'w'))\n"
    )
    paths = [str(tmp_path / name) for name in ("model", "texts.json", "ids.json")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True, cwd=tmp_path, capture_output=True, timeout=300)
    ids = {piece: number for number, piece in enumerate(tokenizer.get_vocabulary())}
    assert json.loads((tmp_path / "ids.json").read_text()) == [reference_ids(t, ids, lowercase) for t in texts]


def test_a_megabyte_of_text():
    tokenizer = BertTokenizer([*SPECIALS, "ab", "##ab", "\u4e2d"])
    assert tokenizer.tokenize("ab " * 350_000).shape == (350_000,)
    assert tokenizer.tokenize("ab" * 500_000).numpy().tolist() == [1]
    assert tokenizer.tokenize("\u4e2d" * 350_000).shape == (350_000,)


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
    assert tokenizer.detokenize([[5, 6, 5], [4]]).numpy().tolist() == [b"ab a", b"[MASK]"]


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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (SPECIALS[:4], r"vocab.txt: the vocabulary lacks \[MASK\]"),
        ([*SPECIALS, "a", "b", "a"], r"vocab.txt:8: the piece 'a' is on line 6 already"),
        ([], "vocab.txt: the vocabulary is empty"),
        ([*SPECIALS, "a" * 257], "vocab.txt:6: a piece of over 256 bytes"),
    ],
)
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


# === Presets ===


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
