"""Windows, word splits and projections in the graph: against the Python of the tasks, on random and hostile texts."""

import dataclasses
import functools
import random

import fuzzing
import numpy as np
import pytest
import tensorflow as tf
from tokenizer_reference import ADVERSARIAL
from tokenizer_texts import alphabet_vocabulary, fuzzed_texts
from toy_answering import read_text

from keras_bert import BertTokenizer
from keras_bert.answers import projection as graph_projection
from keras_bert.answers import windows as graph_windows
from keras_bert.answers.source_text import BYTES_PER_TOKEN, SourceText, cut_texts
from keras_bert.tokenization.normalizer import split_words, substitutes
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.squad.data import Question
from tasks.squad.text import join_pieces, project, split_context
from tasks.squad.windows import DEFAULTS, make_windows
from tasks.text.conll import Documents
from tasks.text.word_windows import make_windows as make_tagging_windows

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(50)), "##s"]
TEXTS = [text for text in ADVERSARIAL if isinstance(text, str) and len(text) < 2000]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCABULARY)


def words(generator, count) -> str:
    return " ".join(f"w{number}" for number in generator.integers(0, 50, count))


# === Windows ===


@pytest.mark.parametrize(
    ("length", "stride", "query_length"), [(16, 4, 6), (16, 100, 3), (11, 1, 5), (384, 128, 64), (9, 3, 5)]
)
def test_windows_equal_those_of_questions(tokenizer, length, stride, query_length):
    generator = np.random.default_rng(length + stride)
    counts = [0, 1, length - 3, length, 2 * length, 0, *generator.integers(0, 6 * length, 20)]
    texts = [(words(generator, generator.integers(0, 2 * query_length)), words(generator, count)) for count in counts]
    questions = [Question(str(row), *pair, [], False, "") for row, pair in enumerate(texts)]
    spec = dataclasses.replace(DEFAULTS, sequence_length=length, doc_stride=stride, max_query_length=query_length)
    expected = make_windows(questions, PythonBertTokenizer(VOCABULARY), spec)
    queries, contexts = (tokenizer.tokenize([pair[side] for pair in texts]) for side in (0, 1))
    queries = queries[:, :query_length]
    windows = graph_windows.cut_windows(contexts.row_lengths(), length - 3 - queries.row_lengths(), stride)
    layout = graph_windows.lay_out(windows, contexts, tokenizer, queries)
    mask = layout.inputs["padding_mask"].numpy() == 1
    assert windows.rows.numpy().tolist() == expected.question_index.tolist()
    assert mask.sum(axis=1).tolist() == np.diff(expected.examples.row_splits).tolist()
    for name in ("token_ids", "segment_ids"):
        values = layout.inputs[name].numpy()
        assert values[mask].tolist() == getattr(expected.examples, name).tolist()
        assert not values[~mask].any()
    assert (layout.tokens.numpy() >= 0)[mask].tolist() == (expected.token_word >= 0).tolist()
    best = graph_windows.best_cells(windows, layout, tf.size(contexts.values, tf.int64), 0.01).numpy()
    is_best = np.zeros(mask.size, bool)
    is_best[best] = True
    assert is_best.reshape(mask.shape)[mask].tolist() == expected.is_max_context.tolist()
    assert np.array_equal(layout.tokens.numpy().ravel()[best], np.arange(len(best)))


@pytest.mark.parametrize(("length", "stride"), [(8, 3), (8, 6), (5, 1), (64, 31)])
def test_windows_equal_those_of_sentences(tokenizer, length, stride):
    generator = np.random.default_rng(length)
    sentences = [words(generator, count).split() for count in (1, length, 0, *generator.integers(1, 5 * length, 20))]
    splits = np.cumsum([0, *map(len, sentences)])
    tokens = [word for sentence in sentences for word in sentence]
    documents = Documents("", tokens, None, [], splits, np.arange(len(splits)), "tab", False)
    expected = make_tagging_windows(documents, PythonBertTokenizer(VOCABULARY), length, stride)
    pieces = tokenizer.tokenize([" ".join(sentence) for sentence in sentences])
    rooms = tf.fill([len(sentences)], tf.constant(length - 2, tf.int64))
    windows = graph_windows.cut_windows(pieces.row_lengths(), rooms, stride)
    layout = graph_windows.lay_out(windows, pieces, tokenizer)
    best = graph_windows.best_cells(windows, layout, tf.size(pieces.values, tf.int64), 0.0).numpy()
    mask = layout.inputs["padding_mask"].numpy().ravel() == 1
    ids = layout.inputs["token_ids"].numpy().ravel()
    # Where a sentence has no words, the task makes a window of [CLS] [SEP], the graph none.
    lengths = np.diff(expected.row_splits)
    kept = np.repeat(lengths > 2, lengths)
    assert ids[mask].tolist() == expected.token_ids[kept].tolist()
    places = (np.cumsum(kept) - 1)[expected.places]
    assert (np.cumsum(mask) - 1)[best].tolist() == places.tolist()
    assert not layout.inputs["segment_ids"].numpy().any()


@pytest.mark.parametrize("count", [0, 3])
def test_no_token_gives_no_window(tokenizer, count):
    empty = tokenizer.tokenize(tf.constant([""] * count, tf.string))
    windows = graph_windows.cut_windows(empty.row_lengths(), empty.row_lengths() + 5, 3)
    layout = graph_windows.lay_out(windows, empty, tokenizer, empty)
    assert [values.shape for values in layout.inputs.values()] == [(0, 2)] * 3
    assert graph_windows.best_cells(windows, layout, tf.constant(0, tf.int64), 0.01).shape == (0,)


# === Texts ===

READ = [
    "w1 w2 w3",
    "",
    "w1 w2 w3 w4 w5 w6 w7",
    "w1 w2 w3 w4s w5",  # cut inside a word
    b"\xff w1 \xe4\xb8w2 \xef\xbf\xbd w3 w4\xc3",
    " " * 400 + "w1",
    "w1 " + "x" * 500,
    "w1 " + "\u00e9" * 300,  # the bytes' limit is inside a character
    "w1\x00\u200b w2 w3 w4\u200b w5\u200b",
    "w1.w2.w3.w4",
]


def test_texts_are_read_up_to_a_number_of_tokens(tokenizer):
    raw = [text.encode() if isinstance(text, str) else text for text in READ]
    source = SourceText(tf.constant(raw), tokenizer, 4)
    splits = source.row_splits.numpy()
    for row, text in enumerate(raw):
        expected, is_cut = read_text(text, PythonBertTokenizer(VOCABULARY), 4)
        first, limit = splits[row], source.limits.numpy()[row]
        assert "".join(map(chr, source.codes.numpy()[first:limit])) == expected
        ids, starts, ends = PythonBertTokenizer(VOCABULARY).tokenize_with_offsets(expected)
        mine = source.token_rows.numpy() == row
        assert source.token_ids.numpy()[mine].tolist() == ids
        assert (source.token_starts.numpy()[mine] - first).tolist() == starts
        assert (source.token_ends.numpy()[mine] - first).tolist() == ends
        assert bool(source.truncated[row]) == is_cut
    assert source.truncated.numpy().tolist() == [False, False, True, True, False, True, True, True, True, True]
    assert BYTES_PER_TOKEN * 4 == 256


def test_parts_of_texts():
    codes = tf.constant(list(map(ord, "a \u00e9\u4e2d\U0001f600\uffff")))
    texts = cut_texts(codes, tf.constant([0, 2, 3, 5, 1], tf.int64), tf.constant([6, 4, 3, 6, 2], tf.int64))
    assert [text.decode() for text in texts.numpy()] == [
        "a \u00e9\u4e2d\U0001f600\uffff",
        "\u00e9\u4e2d",
        "",
        "\uffff",
        " ",
    ]


# === Normalized words ===


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_equal_the_normalizer_s(lowercase):
    texts = [
        *TEXTS,
        *fuzzed_texts(1500, 5),
        "x" * 500,
        "\u00e9" * 300,
        "\u03a3" * 300,
        "A\u0301" * 250,
        "\U0001d160" * 90,
    ]
    split = functools.partial(graph_projection.split_words, lowercase=lowercase)
    split = tf.function(split, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    words = split(tf.constant(texts))
    codes, starts, rows = (column.numpy() for column in words)
    for text, first, limit in zip(texts, rows[:-1], rows[1:], strict=True):
        graph_words = ["".join(map(chr, codes[starts[number] : starts[number + 1]])) for number in range(first, limit)]
        # Punctuation that this Python does not know has stand-ins.
        assert graph_words == [word.translate(substitutes()) for word in split_words(text, lowercase)], text


def test_no_text_has_no_words():
    words = graph_projection.split_words(tf.constant([], tf.string), True)
    assert [column.numpy().tolist() for column in words] == [[], [0], [0]]


# === Projections ===


@pytest.mark.slow(keep=["True"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_spans_are_projected_as_by_the_task(lowercase):
    """All spans of up to 4 tokens, and some longer ones, of fuzzed contexts of several words."""
    generator = random.Random(6)
    fragments = [
        *fuzzed_texts(300, 7),
        *TEXTS,
        "the Athe The",
        "aa aaaa-aaa",
        "(1895-1943).",
        "\u4e2d\u6587\u4e2d\u6587\u3002\u4e2d",
    ]
    blanks = ["", "", " ", "  ", "\t", "\u202f", "\u00a0"]
    count = 150 if fuzzing.FULL else 40
    contexts = [
        "".join(generator.choice(blanks) + fragment for fragment in generator.choices(fragments, k=4))
        for _ in range(count)
    ]
    vocabulary = [piece for piece in alphabet_vocabulary() if piece[0] == "[" or generator.random() < 0.9]
    assert _check_projections(BertTokenizer(vocabulary, lowercase), contexts, generator) > 33 * count


@pytest.mark.parametrize("lowercase", [True, False])
def test_special_tokens_in_a_text_are_projected_as_by_the_task(lowercase):
    generator = random.Random(7)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[sep]", "[", "]", "[SEP]\u200b"]
    pieces = [*specials, *specials, "w1", "W2", "w3s", "uuu", "pppp", "-", "(", "Caf\u00e9", "\u2603", "\u4e2d"]
    contexts = ["".join(generator.choices([*pieces, " ", " ", "\u202f"], k=12)) for _ in range(60)]
    contexts += ["[SEP] pppp , uuu-w1-vvv w2"]
    vocabulary = [*VOCABULARY, *"-([", "pppp", "caf", "##e"]
    tokenizer = BertTokenizer(vocabulary, lowercase, special_tokens_in_strings=True)
    assert _check_projections(tokenizer, contexts, generator) > 300


def _check_projections(tokenizer, contexts, generator) -> int:
    """Compares spans of all contexts with the task's; returns how many."""
    python = PythonBertTokenizer.of(tokenizer)
    source = SourceText(tf.constant(contexts), tokenizer, 10_000)
    projection, splits = graph_projection.Projection(source, tokenizer), source.token_splits.numpy()
    spans, expected = [], []
    for context, first, limit in zip(contexts, splits[:-1], splits[1:], strict=True):
        ids, starts, _ = python.tokenize_with_offsets(context)
        assert len(ids) == limit - first
        words = split_context(context)
        of_word = np.searchsorted(words.starts, starts, side="right") - 1
        for start in range(len(ids)):
            for end in {*range(start, min(start + 4, len(ids))), min(start + generator.randrange(40), len(ids) - 1)}:
                predicted = join_pieces([python.vocabulary[number] for number in ids[start : end + 1]])
                spans.append((first + start, first + end))
                expected.append(project(predicted, words.join(of_word[start], of_word[end]), tokenizer.lowercase))
    columns = (tf.constant(column, tf.int64) for column in zip(*spans, strict=True))
    answers = [text.decode() for text in projection.cut(*projection.spans(*columns)).numpy()]
    wrong = [pair for pair in zip(answers, expected, strict=True) if pair[0] != pair[1]]
    assert not wrong, wrong[:3]
    return len(expected)
