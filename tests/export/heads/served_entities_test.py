"""Entities in the served graph: words, windows, tags and places, against plain Python, on real and on hostile texts."""

import functools
import math
import sys
import time
import unicodedata
from types import SimpleNamespace

import fuzzing
import keras
import numpy as np
import pytest
import tensorflow as tf
from repository import SHARED, needs_data
from tokenizer_reference import ADVERSARIAL
from tokenizer_texts import alphabet_vocabulary, fuzzed_texts
from toy_answering import NUMBERED_WORDS, read_text
from toy_saved import ask, save_as_described

from export.heads.loading import load_head
from export.heads.windowed import TokenClassification
from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
from keras_bert.answers import raw_words
from keras_bert.answers.entities import EntityFinder
from keras_bert.answers.raw_words import find_words
from keras_bert.answers.source_text import SourceText
from keras_bert.models import BertTokenClassifier
from keras_bert.tokenization.normalizer import CJK_RANGES, is_cjk, is_punctuation, vanishes
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.fine_tuning.model_files import save_model
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll
from tasks.text.tags import find_entities

LABELS = ["O", "B-person", "I-person", "B-place", "I-place"]
WORDS = [*NUMBERED_WORDS, *".,()-'", "rollo", "e", "a"]


class TableTagger:
    """A tagger without an encoder: rounded logits that token, place and sequence length give, in the graph and here.

    Args:
        vocabulary, lowercase: the tokenizer's.
        is_traced: whether to answer in a graph; to trace it takes longer than a few answers without.
        sequence_length, **settings: of `TokenClassification`.
    """

    def __init__(self, vocabulary, lowercase=True, seed=0, sequence_length=16, is_traced=True, **settings):
        tokenizer = BertTokenizer(vocabulary, lowercase)
        self.python_tokenizer = PythonBertTokenizer(list(tokenizer.vocabulary), lowercase)
        generator = np.random.default_rng(seed)
        self.of_tokens = generator.normal(size=(tokenizer.vocabulary_size(), len(LABELS))).astype(np.float32)
        self.of_places = generator.normal(size=(sequence_length, len(LABELS))).astype(np.float32)
        self.of_lengths = generator.normal(size=(sequence_length + 1, len(LABELS))).astype(np.float32)
        model = SimpleNamespace(output_shape=(None, None, len(LABELS)), layers=[None])
        self.head = TokenClassification(model, BertPreprocessor(tokenizer, sequence_length), LABELS, **settings)
        self.graph = functools.partial(self.head.answer_by, self._logits_of)
        if is_traced:
            text = [tf.TensorSpec([None], tf.string, "text")]
            self.graph = tf.function(self.graph, input_signature=text, autograph=False)

    def _logits_of(self, encoded):
        places = tf.range(tf.shape(encoded["token_ids"])[1])
        lengths = tf.reduce_sum(encoded["padding_mask"], axis=1)
        logits = tf.gather(self.of_tokens, encoded["token_ids"]) + tf.gather(self.of_places, places)[tf.newaxis]
        return logits + tf.gather(self.of_lengths, lengths)[:, tf.newaxis]

    def served(self, texts, batch_size=32) -> list[tuple[list[tuple], bool]]:
        """((text, type, start, end, score) of each entity, truncated) for each text, by the graph."""
        rows = []
        for first in range(0, len(texts), batch_size):
            batch = [as_bytes(text) for text in texts[first : first + batch_size]]
            outputs = {name: values.numpy() for name, values in self.graph(tf.constant(batch, tf.string)).items()}
            columns = [outputs[name] for name in ("entities", "types", "starts", "ends", "scores")]
            most = max(1, outputs["num_entities"].max())
            assert all(column.shape == (len(batch), most) for column in columns)
            for row, count in enumerate(outputs["num_entities"]):
                entities = [
                    (text.decode(), name.decode(), *others)
                    for text, name, *others in zip(*(column[row, :count] for column in columns), strict=True)
                ]
                rows.append((entities, bool(outputs["truncated"][row])))
                padding = [column[row, count:].tolist() for column in columns]
                assert padding == [[value] * (most - count) for value in (b"", b"", -1, -1, 0.0)]
        return rows

    def python(self, text) -> tuple[list[tuple], bool]:
        """The same of one text, word by word."""
        head, tokenizer = self.head, self.python_tokenizer
        text, truncated = read_text(as_bytes(text), tokenizer, head.max_tokens)
        words = words_of(text, tokenizer.lowercase)
        pieces = [tokenizer.tokenize(text[start:end]) for start, end in words]
        probabilities = self._probabilities(pieces)
        best = [max(range(len(LABELS)), key=row.__getitem__) for row in probabilities]
        entities = []
        for name, first, limit in find_entities([LABELS[number] for number in best]):
            start, end = words[first][0], words[limit - 1][1]
            score = sum(map(max, probabilities[first:limit])) / (limit - first)
            entities.append((text[start:end], name, start, end, score))
        return entities, truncated

    def _probabilities(self, pieces) -> list[list[float]]:
        """The scores of each word's labels, from the window in which its first piece has most context."""
        length = self.head.preprocessor.sequence_length
        ids, firsts = [], []
        for piece in pieces:
            firsts.append(len(ids))
            ids += piece
        windows = [(0, min(length - 2, len(ids)))]
        while windows[-1][1] < len(ids):
            start = windows[-1][0] + self.head.doc_stride
            windows.append((start, min(start + length - 2, len(ids))))
        probabilities = []
        for first in firsts:
            start, stop = max(windows, key=lambda window: min(first - window[0], window[1] - 1 - first))
            logits = self.of_tokens[ids[first]] + self.of_places[first - start + 1] + self.of_lengths[stop - start + 2]
            powers = [math.exp(value) for value in logits]
            probabilities.append([power / sum(powers) for power in powers])
        return probabilities


def as_bytes(text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def words_of(text, lowercase) -> list[tuple[int, int]]:
    """(start, end) of the words of a text, found character by character."""
    runs = [[]]
    for place, char in enumerate(text):
        if is_gone(char, lowercase):
            continue
        kind = kind_of(char, lowercase)
        if kind in ("blank", "ideograph"):
            runs += [[(place, kind)], []] if kind == "ideograph" else [[]]
        else:
            runs[-1].append((place, kind))
    words = []
    for run in runs:
        letters = [place for place, kind in run if kind == "letter"]
        for place, kind in run:
            if kind == "letter" or (letters and letters[0] < place < letters[-1]):
                if place == letters[0]:
                    words.append((place, letters[-1] + 1))
            else:
                words.append((place, place + 1))
    return [(start, end + count_gone(text[end:], lowercase)) for start, end in words]


def is_gone(char, lowercase) -> bool:
    """Whether a character leaves nothing behind."""
    decomposition = unicodedata.normalize("NFD", char.lower()) if lowercase else ""
    return vanishes(char) or (lowercase and all(unicodedata.category(part) == "Mn" for part in decomposition))


def count_gone(text, lowercase) -> int:
    count = 0
    while count < len(text) and is_gone(text[count], lowercase):
        count += 1
    return count


def kind_of(char, lowercase) -> str:
    if char.isspace() or unicodedata.category(char) == "Zs":
        return "blank"
    if is_cjk(char):
        return "ideograph"
    char = unicodedata.normalize("NFD", char.lower())[0] if lowercase else char
    return "punctuation" if is_punctuation(char) else "letter"


def assert_equal(tagger, texts, batch_size=32) -> int:
    """Compares the graph with Python; returns the number of entities."""
    count = 0
    for text, (entities, truncated) in zip(texts, tagger.served(texts, batch_size), strict=True):
        expected, is_cut = tagger.python(text)
        assert [entity[:4] for entity in entities] == [entity[:4] for entity in expected], as_bytes(text)[:300]
        np.testing.assert_allclose([entity[4] for entity in entities], [entity[4] for entity in expected], rtol=1e-5)
        assert truncated == is_cut
        whole = as_bytes(text).decode("utf-8", "ignore")
        assert all(whole[start:end] == part for part, _, start, end, _ in entities)
        count += len(entities)
    return count


# === Words ===


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(U.S. law)", ["(", "U.S", ".", "law", ")"]),
        ("isn't it...", ["isn't", "it", ".", ".", "."]),
        ("... --", [".", ".", ".", "-", "-"]),
        ("\u4eca\u5929,w1\u5f88(w2)\u597d", ["\u4eca", "\u5929", ",", "w1", "\u5f88", "(", "w2", ")", "\u597d"]),
        ("w1\u00a0w2\tw3\n", ["w1", "w2", "w3"]),
        ("\u200bw1\u200b, \u200b w2\x00.", ["w1\u200b", ",", "w2\x00", "."]),
        ("caf\u00e9 cafe\u0301.", ["caf\u00e9", "cafe\u0301", "."]),
        ("\u2260w1\u037e", ["\u2260", "w1", "\u037e"]),  # Lower-cased they are "=" and ";".
        ("", []),
        (" \x00\u0301 ", []),
    ],
)
def test_words_of_raw_text(text, words):
    """By the definition below; `test_words_of_any_text` holds the graph against it."""
    assert [text[start:end] for start, end in words_of(text, lowercase=True)] == words


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_of_any_text(lowercase):
    texts = [
        *(text for text in ADVERSARIAL if isinstance(text, str)),
        *fuzzed_texts(800 if fuzzing.FULL else 100, 11),
        "x" * 300 + ".",
        "w1",
    ]
    vocabulary = alphabet_vocabulary()
    python = PythonBertTokenizer(vocabulary, lowercase)
    source = SourceText(tf.constant(texts), BertTokenizer(vocabulary, lowercase), 10_000)
    _, rows, starts, ends = (column.numpy() for column in find_words(source, lowercase))
    splits = source.row_splits.numpy()
    for row, text in enumerate(texts):
        mine = rows == row
        expected = words_of(text, lowercase)
        assert list(zip(starts[mine] - splits[row], ends[mine] - splits[row], strict=True)) == expected, text
        # A word by itself has the tokens that it has in its text.
        ids = source.token_ids.numpy()[source.token_rows.numpy() == row].tolist()
        assert [number for start, end in expected for number in python.tokenize(text[start:end])] == ids


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_is_of_the_kind_that_python_says(lowercase):
    letters = ("Lo", "Cn", "Co", "Cs")  # Most characters; of these, the CJK ones and some others.
    chars = [cp for cp in range(sys.maxunicode + 1) if cp % 97 == 0 or unicodedata.category(chr(cp)) not in letters]
    chars = [cp for cp in chars if not 0xD800 <= cp < 0xE000]
    chars += [cp for cjk in CJK_RANGES for bound in (cjk[0], cjk[-1]) for cp in range(bound - 1, bound + 2)]
    assert raw_words._kinds(lowercase)(tf.constant(chars)).numpy().tolist() == [
        raw_words._kind(chr(cp), lowercase) for cp in chars
    ]


# === Entities ===


def test_tags_are_read_as_conlleval_reads_them():
    labels = ["B-x", "O", "I-x", "B-y", "I-y", "B", "I"]
    finder, generator = EntityFinder(labels), np.random.default_rng(1)
    assert finder.types == ["", "x", "y"]
    numbers, rows = generator.integers(0, len(labels), 3000), np.sort(generator.integers(0, 400, 3000))
    places = tf.range(3000, dtype=tf.int64)
    words = raw_words.Words(places, tf.constant(rows), places * 2, places * 2 + 1)
    entities = finder(words, tf.one_hot(numbers, len(labels)) * 0.5)
    expected = []
    for row in range(400):
        mine = np.flatnonzero(rows == row)
        for name, start, end in find_entities([labels[number] for number in numbers[mine]]):
            expected.append((row, name, mine[start] * 2, mine[end - 1] * 2 + 1))
    columns = [column.numpy().tolist() for column in entities]
    columns[1] = [finder.types[number] for number in columns[1]]
    assert list(zip(*columns[:4], strict=True)) == expected
    assert set(columns[4]) == {0.5}


@pytest.mark.parametrize("label", ["L-x", "U-x"])
def test_other_schemes_are_refused(label):
    with pytest.raises(ValueError, match=f"`labels` must be O, or B- or I- and a type. Received: '{label}'"):
        EntityFinder(["O", "B-x", label])


def test_labels_without_an_entity():
    entities = EntityFinder(["O"])(raw_words.Words(*[tf.constant([0, 1], tf.int64)] * 4), tf.ones([2, 1]))
    assert entities.rows.shape == (0,)


@pytest.mark.slow(keep=["True-128"])
@needs_data
@pytest.mark.parametrize(("lowercase", "sequence_length"), [(True, 128), (False, 24)])
def test_entities_of_real_texts_equal_plain_python_s(lowercase, sequence_length):
    """WNUT-17's dev sentences joined by blanks, one a text, and all of them in texts of thousands of words."""
    vocabulary = str(SHARED / "vocab" / ("uncased_en.txt" if lowercase else "cased_en.txt"))
    documents = read_conll(str(SHARED / "wnut17" / "dev.conll"), needs_tags=True, bad_rows=BadRows())
    texts = [" ".join(tokens) for tokens in documents.split(documents.tokens)]
    sizes = {"sequence_length": sequence_length, "max_tokens": 3000}
    tagger = TableTagger(vocabulary, lowercase, seed=2, is_traced=fuzzing.FULL, **sizes)
    assert len(texts) == 1009
    long = [" ".join(texts[at : at + 250]) for at in range(0, 1000, 250)]
    if not fuzzing.FULL:
        texts, long = texts[::5], long[:1]
    assert assert_equal(tagger, texts, batch_size=202) > 4 * len(texts)
    assert assert_equal(tagger, long) > 500 * len(long)


HOSTILE = [
    "",
    " \t\n",
    "\x00\u200b",
    b"w1 \xff\xfe w2\xe4\xb8 w3\xc3",
    "\ufffd w1\ufffdw2 \uffff",
    "\u4e2d\u6587" * 50,
    "\u2603 w1\u2603 \u2603.w2",
    "x" * 300 + ".w1 " + "\u03a3" * 250 + ", w2",
    "w1 " * 300,
    ". " * 100,
    "e\u0301\u0323 (e\u0323\u0301)",
    *(text for text in ADVERSARIAL if not isinstance(text, str) or len(text) < 3000),
]


@pytest.mark.slow(keep=["1-True"])
@pytest.mark.parametrize(("stride", "lowercase"), [(None, True), (1, True), (14, False)])
def test_entities_of_hostile_texts_equal_plain_python_s(stride, lowercase):
    vocabulary = [piece for piece in alphabet_vocabulary() if len(piece.encode()) % 3 or piece[0] == "["]
    tagger = TableTagger([*vocabulary, "w1"], lowercase, doc_stride=stride, max_tokens=100)
    texts = [*HOSTILE, *fuzzed_texts(300, 12)]
    assert assert_equal(tagger, texts, batch_size=len(texts)) > 400
    assert_equal(tagger, HOSTILE, batch_size=1)


@pytest.fixture(scope="module")
def tagger():
    return TableTagger(WORDS, max_tokens=500)


def test_ten_megabytes_of_text(tagger):
    pieces = ("w1 w2, ", "x", "\x00\u200b", "\u03a3'", *(("\u4e2d", " ", "\u2603", ".") if fuzzing.FULL else ()))
    for piece in pieces:
        text = piece * (10_000_000 // len(piece.encode()))
        tagger.served([piece])
        started = time.process_time()
        assert_equal(tagger, [text])
        assert time.process_time() - started < 10, piece


def test_no_text(tagger):
    outputs = tagger.graph(tf.constant([], tf.string))
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        **dict.fromkeys(("entities", "types", "starts", "ends", "scores"), (0, 1)),
        **dict.fromkeys(("num_entities", "truncated"), (0,)),
    }


# === Exported ===


def toy_model() -> keras.Model:
    backbone = BertBackbone(
        len(WORDS), num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=32
    )
    model = BertTokenClassifier(backbone, len(LABELS), compile=False)
    generator = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.3, size=weight.shape))
    return model


def test_a_trained_model_is_loaded_and_its_graph_verified(tmp_path, monkeypatch):
    task = {"task": "token_classification", "labels": LABELS, "sequence_length": 32, "doc_stride": 10}
    save_model(str(tmp_path / "model"), toy_model(), BertTokenizer(WORDS), task)
    head = load_head(str(tmp_path / "model"), max_tokens=100)
    assert (head.doc_stride, head.max_tokens, head.labels) == (10, 100, LABELS)
    assert load_head(str(tmp_path / "model"), sequence_length=10).doc_stride == 4
    assert [load_head(str(tmp_path / "model"), sequence_length=length).doc_stride for length in (12, 32)] == [10, 10]
    loaded = save_as_described(head, str(tmp_path / "served"), monkeypatch)
    ids = {"token_ids": [[2, 5, 3, 6, 3, 0]], "segment_ids": [[0] * 6], "lengths": [5]}
    outputs = ask(loaded, "token_ids", ids)
    assert outputs["tags"].numpy()[0, 5] == b"" and outputs["scores"][0, 5] == 0.0
    assert all(tag.decode() in LABELS for tag in outputs["tags"].numpy()[0, :5])


def test_settings_that_do_not_fit_are_refused():
    model, preprocessor = toy_model(), BertPreprocessor(BertTokenizer(WORDS), 32)
    for settings, message in (
        ({"doc_stride": 0}, "`doc_stride` must be at least 1. Received: doc_stride=0"),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1"),
        ({"labels": LABELS[:2]}, "`labels` must name each of the model's outputs. Received: 2 labels, 5 outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenClassification(model, preprocessor, **{"labels": LABELS, **settings})
