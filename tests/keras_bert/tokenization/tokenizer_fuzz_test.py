"""No difference between graph tokenizer, Python twin and reference: real texts, every code point, a million strings.

All of it (FUZZ=full) takes about six minutes of one core. By default a thirtieth runs: fewer strings of each kind, and
few of the code points that are all treated alike.
"""

import collections
import functools
import itertools
import json
import os
import random
import sys
import unicodedata

import fuzzing
import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from repository import SHARED, needs_data
from tokenizer_reference import ADVERSARIAL, SPECIALS, read_ids, reference_offsets, reference_pieces, reference_words

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from keras_bert.tokenization.tokenizer import BertTokenizer

CODE_POINTS = (*range(0xD800), *range(0xE000, 0x110000))
BLOCK = 1000


# === Comparing ===


def flat(rows):
    """Rows of ids as (all ids, ids a row), which compare fast."""
    rows = list(rows)
    values = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return values, np.fromiter(map(len, rows), np.int64, len(rows))


def flat_ragged(ragged):
    return ragged.flat_values.numpy(), ragged.row_lengths().numpy()


def as_bytes(texts):
    return [text if isinstance(text, bytes) else text.encode() for text in texts]


def check_same(texts, expected, got, who):
    """Compares two `flat` results; the message shows the first text that differs."""
    if all(map(np.array_equal, expected, got)):
        return
    ends = [np.cumsum(lengths)[:-1] for _, lengths in (expected, got)]
    rows = zip(*(np.split(flat[0], end) for flat, end in zip((expected, got), ends, strict=True)), strict=True)
    wrong = [(text, *map(list, pair)) for text, pair in zip(texts, rows, strict=True) if not np.array_equal(*pair)]
    shortest = min(wrong, key=lambda item: len(item[0]))
    pytest.fail(f"{who}: {len(wrong)} of {len(texts)} texts differ, (text, expected, got): {ascii(shortest)}")


class Trio:
    """Graph tokenizer, twin and reference of one vocabulary."""

    def __init__(self, vocabulary, lowercase):
        self.lowercase = lowercase
        self.graph = BertTokenizer(vocabulary, lowercase=lowercase)
        self.twin = PythonBertTokenizer(vocabulary, lowercase)
        self.ids = read_ids(vocabulary)
        self.longest = max(map(len, self.ids))
        self.pieces = functools.lru_cache(1 << 16)(lambda word: reference_pieces(word, self.ids, self.longest))

    def expected(self, texts):
        words = (reference_words(text, self.lowercase) for text in texts)
        return flat([number for word in row for number in self.pieces(word)] for row in words)

    @functools.cached_property
    def expected_of_sample(self):
        return self.expected(sample())

    def check(self, texts):
        expected = self.expected(texts)
        check_same(texts, expected, flat(map(self.twin.tokenize, texts)), "twin")
        check_same(texts, expected, flat_ragged(self.graph.tokenize(tf.constant(as_bytes(texts)))), "graph")

    def expected_offsets(self, texts):
        """Ids, starts and ends, each `flat`."""
        offsets = [reference_offsets(text, self.ids, self.lowercase, self.longest) for text in texts]
        return [flat(column) for column in zip(*offsets, strict=True)]


@functools.cache
def rich_vocabulary():
    """Every assigned character and all that lower-casing makes of it, to begin and to go on a word, and some pairs.

    With it a character that is deleted, split off or replaced shows in the ids; private and unassigned ones are [UNK].
    """
    chars = {char for name, pool in POOLS.items() if name not in ("Cn", "Co") for char in pool} | set(NEWER)
    chars |= {part for char in chars for part in unicodedata.normalize("NFD", char.lower())}
    groups = ("abAB", "\u03b1\u03c3\u03c2\u03a3", "\u1100\u1161\u11a8\uac00", "\u0430\u0431\u0301", "12\u00b2")
    pairs = ["".join(pair) for group in groups for pair in itertools.product(group, repeat=2)]
    pairs += ["aba", "\u03c3\u03c3\u03c3", "\u4e2d\u6587", "mask", "ing"]
    pieces = [*sorted(char for char in chars if not char.isspace()), *pairs]
    return [*SPECIALS, *pieces, *(f"##{piece}" for piece in pieces)]


@functools.cache
def rich_trio(lowercase):
    return Trio(rich_vocabulary(), lowercase)


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def rich(request):
    return rich_trio(request.param)


# === Fuzzed texts ===


def by_category():
    pools, chars = collections.defaultdict(list), list(map(chr, CODE_POINTS))
    for category, char in zip(map(unicodedata.category, chars), chars, strict=True):
        pools[category].append(char)
    return pools


POOLS = by_category()
LETTERS = [POOLS[name] for name in ("Lu", "Ll", "Lt", "Lm", "Lo")]
KEPT_MARKS = [char for name in ("Mc", "Me") for char in POOLS[name] if unicodedata.combining(char)]
NOTES = [chr(cp) for cp in (*range(0x1D15E, 0x1D165), *range(0x1D1BB, 0x1D1C1))]
# Unicode 15 and 16: marks and compounds, capitals, punctuation. tensorflow-text's ICU knows them, Python perhaps not.
NEWER = [
    *map(chr, (0x897, *range(0x10D69, 0x10D6E), *range(0x10EFD, 0x10F00), *range(0x113CE, 0x113D1), 0x1612F, 0x1E08F)),
    *map(chr, (0x11F41, 0x11F42, *range(0x1E4EC, 0x1E4F0), 0x1E5EE, 0x1E5EF, 0x105C9, 0x105E4, 0x11383, 0x11385)),
    *map(chr, (0x1138E, 0x11391, 0x113C5, 0x113C7, 0x113C8, *range(0x16121, 0x16129), *range(0x16D68, 0x16D6B))),
    *map(chr, (0x1C89, 0xA7CB, 0xA7DA, 0x10D50, 0x10D6E, 0x1B4E, 0x1B7F, 0x11F43, 0x16D6D, 0x1E5FF)),
]
SIGMAS = "\u03a3\u03a3\u03a3\u03c3\u03c2AaB1\u4e2d .'\u00b7:-\u0301\u0345\u02b0\u00ad\u0007\u200d\u2160\u00aa\u0130"
CONTROLS = [*map(chr, range(32)), *map(chr, range(0x7F, 0xA1)), *"\ufffd\u200b\u200d\u2060\ufeff\u00ad\u2028\u2029"]
HANGUL = [chr(cp) for cp in (*range(0x1100, 0x1200), *range(0xAC00, 0xD7A4, 7), *range(0xA960, 0xA97D))]
IDEOGRAPHS = [chr(cp) for cp in (*range(0x33F0, 0xA000, 11), *range(0xF8F0, 0xFB10), *range(0x1FFF0, 0x32000, 37))]
EMOJI = [*map(chr, (*range(0x1F300, 0x1F700), *range(0x1F1E6, 0x1F200))), *"\u200d\ufe0f\ufe0e\u20e3#*0123\u2764"]
SPECIAL_TEXTS = [*SPECIALS, "[mask]", "[MASK", "##ing", "##", "#", "[ UNK ]", "[\u0007SEP]", "[unused1]", "ing", " "]


def mix(rng, longest, *pools):
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(0, longest)))


def any_code_points(rng):
    return "".join(chr(rng.choice(CODE_POINTS)) for _ in range(rng.randint(1, 8)))


def long_word(rng):
    """Around 200 characters, and around 67 that decompose into three; sometimes with something inside."""
    length = rng.choice((66, 67, 99, 100, 101, *range(195, 206), 260))
    word = rng.choice("aA\u00e9\uac01\u4e2d\U00010400\u03a3") * length
    if rng.random() < 0.7:
        at = rng.randrange(length)
        word = word[:at] + rng.choice("\u0301\u0007-\u4e2d\u2014 b\u302e\u1b4e\U0001d160") + word[at:]
    return rng.choice(("", "x ", ".", "\u4e2d")) + word + rng.choice(("", " x", "\u03a3", "\u0301", "\u2028"))


KINDS = [
    lambda rng: mix(rng, 12, *POOLS.values()),
    any_code_points,
    lambda rng: mix(rng, 20, "abAB", "12", " ,.-'$", "\u00e9\u00df\u00c5"),
    lambda rng: mix(rng, 10, SIGMAS),
    lambda rng: mix(rng, 8, SIGMAS, *LETTERS, POOLS["Lm"], POOLS["Sk"], POOLS["Mn"], POOLS["Cf"], " "),
    lambda rng: mix(rng, 10, "aA\u00e9", POOLS["Mn"], POOLS["Mc"], POOLS["Me"], KEPT_MARKS, " \u034f"),
    lambda rng: mix(rng, 7, KEPT_MARKS, NOTES, POOLS["Mn"], "\u034f\u0007a"),
    lambda rng: mix(rng, 12, IDEOGRAPHS, IDEOGRAPHS, POOLS["Po"], "ab \u3042\u30ac\uff0c"),
    lambda rng: mix(rng, 10, HANGUL, HANGUL, "a \u0301"),
    lambda rng: mix(rng, 12, "abAB", CONTROLS, POOLS["Cf"], POOLS["Zs"]),
    lambda rng: mix(rng, 6, SPECIAL_TEXTS, SPECIAL_TEXTS, ["x", "\u0301", "\u200d", "]", "["]),
    lambda rng: mix(rng, 9, EMOJI, POOLS["So"], POOLS["Sk"], "a "),
    lambda rng: mix(rng, 12, *LETTERS, *LETTERS, POOLS["Nd"], POOLS["No"], POOLS["Zs"]),
    lambda rng: mix(rng, 10, *(pool for name, pool in POOLS.items() if name[0] in "PS"), "ab"),
    lambda rng: mix(rng, 8, POOLS["Cn"], POOLS["Co"], "a "),
    lambda rng: mix(rng, 8, NEWER, NEWER, KEPT_MARKS, NOTES, POOLS["Mn"], "\u03a3A a"),
]


def any_kind(rng):
    return rng.choice(KINDS)(rng)


def long_text(rng):
    return "".join(any_kind(rng) for _ in range(30))


# Blocks of one kind let a whole batch take the common path, or one branch; long words are slow in the reference.
ORDER = [*KINDS * 3, long_word, long_text, *[any_kind] * 9]


def damaged(rng, text):
    """The bytes of a text with some of them replaced, inserted or left out: mostly invalid UTF-8."""
    raw = bytearray(text.encode())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw) + 1)
        new = bytes(rng.choices(b"\x00a \x80\xbf\xc0\xc2\xce\xa3\xe0\xa0\xed\x9f\xef\xbb\xf0\x90\xf4\x8f\xf5\xff", k=1))
        raw[at : at + rng.randint(0, 1)] = rng.choice((new, b""))
    return bytes(raw)


def fuzzed(number, count=BLOCK):
    """A block of texts: str, in every tenth block bytes."""
    rng = random.Random(number)
    kind = ORDER[number % len(ORDER)]
    texts = [kind(rng) for _ in range(count)]
    return [damaged(rng, text) for text in texts] if number % 10 == 7 else texts


# === Every code point, and a million strings ===


# How many code points of a category stand for one that is drawn: those that are treated as thousands of others. All are
# prime, so that no regularity of the code charts hides from them.
STRIDES = {"Cn": 1009, "Co": 1009, "Lo": 101}


def is_drawn(cp):
    return fuzzing.FULL or cp % STRIDES.get(unicodedata.category(chr(cp)), 1) == 0


def test_every_code_point_alone_inside_a_word_and_beside_a_letter(rich):
    code_points = [cp for cp in CODE_POINTS if is_drawn(cp)]
    for start in range(0, len(code_points), 8192):
        chars = [chr(cp) for cp in code_points[start : start + 8192]]
        rich.check(chars)
        rich.check([f"a{char}b a{char} {char}a" for char in chars])


def test_a_million_strings_uncased_and_cased():
    for number in range(fuzzing.some(1000)):  # Each kind of text comes among a hundred blocks.
        texts = fuzzed(number, BLOCK if fuzzing.FULL else BLOCK // 3)
        for lowercase in (True, False):
            rich_trio(lowercase).check(texts)


# === Real texts ===


def strings_of(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_of(item)


@functools.cache
def real_texts():
    """Every line of every file, markup and all, and every string of the JSON files."""
    texts = []
    for folder, _, names in sorted(os.walk(SHARED)):
        for name in sorted(names):
            with open(os.path.join(folder, name), encoding="utf-8", newline="\n") as file:
                texts += strings_of(json.load(file)) if name.endswith(".json") else file.read().split("\n")
    return texts


@needs_data
@pytest.mark.parametrize(("name", "lowercase"), [("uncased_en", True), ("cased_en", False), ("zh", True)])
def test_all_real_texts(name, lowercase):
    texts = real_texts() if fuzzing.FULL else real_texts()[::30]
    trio = Trio(os.path.join(SHARED, "vocab", f"{name}.txt"), lowercase)
    for start in range(0, len(texts), BLOCK):
        trio.check(texts[start : start + BLOCK])


def test_every_short_sequence_of_suspect_bytes(rich):
    """UTF-8's lengths, borders of overlong forms and surrogates, with a letter, a blank and a sigma among them."""
    suspects = [
        b"a",
        b" ",
        b"\0",
        *(bytes([b]) for b in b"\x80\x8f\x9f\xa0\xa3\xbf\xc1\xc2\xce\xe0\xed\xef\xf0\xf4\xf5\xff"),
    ]
    for length in (1, 2, 3, 4):
        texts = [b"".join(sequence) for sequence in itertools.product(suspects, repeat=length)]
        if length == 4 and not fuzzing.FULL:
            texts = random.Random(length).sample(texts, len(texts) // 10)
        for start in range(0, len(texts), 4096):
            rich.check(texts[start : start + 4096])


# === tf.data, and a SavedModel in another process ===


@functools.cache
def sample():
    """Fifty thousand strings of all kinds, and those that were written for each branch."""
    return [*ADVERSARIAL, *(text for number in range(100) for text in fuzzed(10_000 + number, fuzzing.some(500)))]


@pytest.mark.slow(keep=["cased"])
def test_dataset(rich):
    texts = sample()
    assert len(texts) > fuzzing.some(50_000)
    batches = tf.data.Dataset.from_tensor_slices(as_bytes(texts)).batch(200).map(rich.graph.tokenize)
    check_same(texts, rich.expected_of_sample, flat_ragged(tf.concat(list(batches), axis=0)), "tf.data")


PROGRAM = """
import sys, numpy as np, tensorflow as tf, tensorflow_text
serve = tf.saved_model.load(sys.argv[1]).serve
with np.load(sys.argv[2]) as texts:
    raw, ends = texts["raw"].tobytes(), texts["ends"].tolist()
batch = [raw[start:end] for start, end in zip([0, *ends], ends)]
parts = [serve(tf.constant(batch[i : i + 1000])) for i in range(0, len(batch), 1000)]
np.savez(sys.argv[3], **{name: np.concatenate([part[name] for part in parts]) for name in ("ids", "lengths")})
assert "keras_bert" not in sys.modules
"""


@pytest.mark.slow(keep=["uncased"])
def test_saved_model_in_a_fresh_process(rich, tmp_path):
    texts = sample()

    def serve(texts):
        tokens = rich.graph.tokenize(texts)
        return {"ids": tokens.flat_values, "lengths": tokens.row_lengths()}

    archive = keras.export.ExportArchive()
    archive.add_endpoint("serve", serve, [tf.TensorSpec([None], tf.string)])
    archive.write_out(str(tmp_path / "model"), verbose=False)
    raw = as_bytes(texts)
    paths = [str(tmp_path / name) for name in ("model", "texts.npz", "ids.npz")]
    np.savez(paths[1], raw=np.frombuffer(b"".join(raw), np.uint8), ends=np.cumsum([len(text) for text in raw]))
    processes.run([sys.executable, "-c", PROGRAM, *paths], check=True, cwd=tmp_path, capture_output=True, timeout=600)
    with np.load(paths[2]) as arrays:
        check_same(texts, rich.expected_of_sample, (arrays["ids"], arrays["lengths"]), "SavedModel")


def test_the_sample_takes_each_branch():
    raw = as_bytes(sample())
    valid = [text.decode("utf-8", "ignore") for text in raw]
    assert sum("\u03a3" in text for text in valid) > fuzzing.some(1000)
    assert sum(any(char in text for char in KEPT_MARKS) for text in valid) > fuzzing.some(1000)
    assert sum(text.encode() != before for text, before in zip(valid, raw, strict=True)) > fuzzing.some(1000)
    assert sum(any(len(word) > 200 for word in text.split()) for text in valid) > fuzzing.some(100)


# === Offsets ===


@pytest.mark.slow(keep=["uncased"])
def test_offsets_of_a_hundred_thousand_strings(rich):
    for number in range(100):
        texts = fuzzed(20_000 + number, fuzzing.few(BLOCK))
        texts += ADVERSARIAL if number == 0 else []
        twin = [rich.twin.tokenize_with_offsets(text) for text in texts]
        graph = rich.graph.tokenize_with_offsets(tf.constant(as_bytes(texts)))
        expected = rich.expected_offsets(texts)
        columns = zip(("ids", "starts", "ends"), expected, zip(*twin, strict=True), graph, strict=True)
        for what, right, of_twin, of_graph in columns:
            check_same(texts, right, flat(of_twin), f"twin, {what}")
            check_same(texts, right, flat_ragged(of_graph), f"graph, {what}")
