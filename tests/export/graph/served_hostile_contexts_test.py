"""Answers in the served graph to hostile contexts and questions, of 10 MB too: equal to those of `tasks.squad`."""

import random
import time

import fuzzing
import pytest
import tensorflow as tf
from tokenizer_reference import ADVERSARIAL
from tokenizer_texts import alphabet_vocabulary, fuzzed_texts
from toy_answering import SETTINGS, WORDS, TableAnswerer, as_strings, assert_equal, differences

from export.heads.question_answering import CONTEXT
from keras_bert.answers.source_text import BYTES_PER_TOKEN

MEGABYTES_10 = 10_000_000

# === Hostile texts ===

CONTEXTS = [
    "",
    " \t\r\n\u202f",
    "\x00\x07\u200b\u200b",
    "w1",
    "w1 w2 w1 w2 w1 w2 w1 w2 w1 w2 w1 w2 w1 w2 w1 w2 w1 w2 w1 w2 w1 w2",  # the same texts again and again
    "w1  \n w2\tw3\u202fw4\u00a0w5",
    "cafe\u0301 caf\u00e9 CAF\u00c9 (cafe\u0301s) e\u0323\u0301e\u0301\u0323",
    "\u4e2d\u6587\u4e2d\u6587\u3002\u4e2d\u6587" * 8,  # one word, as white space goes
    "\u4e2d" * 60,
    "a.a.a.a.a.a.a.a.a-a.a.(a.a)a.a.a.a",
    "the Athe the-the (the) athethe",
    "aa aaaaaaaaaaaa aaa-aaa-aaa",
    "x" * 201 + " w1 " + "y" * 199 + "-w2 " + "w3" * 150,
    "\u00e9" * 250 + "-w1 " + "\u03a3" * 300,
    "w1\u2603w2 \u2603-w1-\u2603 w3",  # unknown words beside known ones
    "\u0391\u03a3.\u03a3'\u03a3 \u0391\u03a3-w1 \u03a3\u0391\u03a3",
    "\U0001d15e\U0001d160\U0001d165-w1 \U0001f468\u200d\U0001f469w2",
    b"w1 \xff\xfe(w2)\xe4\xb8 w3\xc3",
    "\ufffd w1\ufffdw2 \uffff",
    "w1 ## # ##s [CLS] w2 [SEP] [UNK] w3",
    *(text for text in ADVERSARIAL if not isinstance(text, str) or len(text) < 3000),
]
QUESTIONS = ["", "w1 w2", "\u4e2d\u6587", b"\xff", "w1 " * 40, "\u200b", "x" * 300]


@pytest.mark.slow(keep=["20-30-True"])
@pytest.mark.parametrize(
    ("n_best_size", "max_answer_length", "with_negative"), [(20, 30, True), (4, 3, False), (1, 1, True), (30, 8, False)]
)
def test_answers_to_hostile_contexts_equal_the_task_s(n_best_size, max_answer_length, with_negative):
    answerer = TableAnswerer(
        WORDS,
        seed=n_best_size,
        decimals=0,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
        version_2_with_negative=with_negative,
        max_tokens=200,
        **SETTINGS,
    )
    pairs = [(QUESTIONS[number % len(QUESTIONS)], context) for number, context in enumerate(CONTEXTS)]
    expected = assert_equal(answerer, pairs, batch_size=len(pairs))
    for one_by_one, right in zip(answerer.served(pairs, batch_size=1), expected, strict=True):
        assert not differences(one_by_one, right)


@pytest.mark.slow(keep=["True"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_answers_to_fuzzed_contexts_equal_the_task_s(lowercase):
    generator = random.Random(8)
    texts = [*fuzzed_texts(400, 9), *(text for text in ADVERSARIAL if isinstance(text, str) and len(text) < 400)]
    blanks = ["", "", " ", "\t", "\u202f"]
    pairs = [
        (
            generator.choice(texts),
            "".join(generator.choice(blanks) + text for text in generator.choices(texts, k=count)),
        )
        for count in (generator.randrange(12) for _ in range(200 if fuzzing.FULL else 50))
    ]
    vocabulary = [piece for piece in alphabet_vocabulary() if piece[0] == "[" or generator.random() < 0.8]
    answerer = TableAnswerer(
        vocabulary,
        lowercase,
        decimals=0,
        is_traced=fuzzing.FULL,
        sequence_length=40,
        doc_stride=12,
        max_query_length=8,
        version_2_with_negative=True,
    )
    assert_equal(answerer, pairs, batch_size=50)


@pytest.mark.slow
def test_contexts_may_be_cut_anywhere():
    """Between marks that the tokenizer puts into another order, too: no answer of Python's to compare with."""
    texts = fuzzed_texts(600, 10)
    for max_tokens in (1, 2, 3):
        answerer = TableAnswerer(alphabet_vocabulary(), max_tokens=max_tokens, **SETTINGS)
        rows = answerer.served([("w1", text) for text in texts], batch_size=len(texts))
        assert 0 < sum(row["truncated"] for row in rows) < len(texts)


def test_all_logits_equal():
    answerer = TableAnswerer(WORDS, is_traced=False, null=0.0, version_2_with_negative=True, **SETTINGS)
    answerer.of_tokens[:] = 0.0
    answerer.of_places[:] = 0.0
    contexts = [context for context in CONTEXTS if isinstance(context, str)]
    expected = assert_equal(answerer, [("w1", context) for context in contexts], batch_size=len(contexts))
    assert sum(bool(answer["prediction"]) for answer in expected) > 10


# === Sizes ===


@pytest.fixture(scope="module")
def answerer():
    return TableAnswerer(
        WORDS, version_2_with_negative=True, max_tokens=500, sequence_length=96, doc_stride=32, max_query_length=8
    )


@pytest.mark.slow(keep=["'The Normans", "'x'", "' '", "'\\\\u2603-w1.'", "'\\\\x00\\\\u200b'"])
@pytest.mark.parametrize(
    "piece",
    [
        CONTEXT + " ",
        "\u4e2d",
        "x",
        " ",
        "\u2603",
        "\u2603-w1.",
        ".",
        "a.",
        "\x00\u200b",
        "\u03a3'",
        "e\u0301\u0323",
        "w1\n\n\t ",
    ],
    ids=lambda piece: ascii(piece)[:12],
)
def test_ten_megabytes_of_context(answerer, piece):
    context = piece * (MEGABYTES_10 // len(piece.encode()))
    answerer.graph(as_strings(["w1"]), as_strings([piece]))
    started = time.process_time()
    (expected,) = assert_equal(answerer, [("w1 w2", context)])
    assert expected["truncated"] and len(expected["text"].encode()) <= BYTES_PER_TOKEN * 500
    assert time.process_time() - started < 10  # 0.1 s, mostly reading; the whole text would take minutes


@pytest.mark.slow(keep=["w1 w2 ", "x"])
@pytest.mark.parametrize("piece", ["w1 w2 ", "x", " ", "\u03a3"])
def test_ten_megabytes_of_question(answerer, piece):
    question = piece * (MEGABYTES_10 // len(piece.encode()))
    read = question.encode()[: answerer.head.question_bytes].decode("utf-8", "ignore")
    (served,) = answerer.served([(question, "w1 w2 (w3)")])
    (expected,) = answerer.python([(read, "w1 w2 (w3)")])
    assert differences(served, expected) == []


def test_what_is_cut_is_said():
    answerer = TableAnswerer(WORDS, is_traced=False, max_tokens=10, **SETTINGS)
    pairs = [("w1", " ".join(["w2"] * count)) for count in (9, 10, 11, 300)]
    assert [answer["truncated"] for answer in assert_equal(answerer, pairs)] == [False, False, True, True]
    rows = answerer.served(pairs)
    assert all(row["nbest_ends"].max() <= 29 for row in rows)


def test_an_empty_batch(answerer):
    outputs = answerer.graph(as_strings([]), as_strings([]))
    assert {name: tuple(value.shape) for name, value in outputs.items() if name.startswith("nbest")} == dict.fromkeys(
        ("nbest_answers", "nbest_probabilities", "nbest_starts", "nbest_ends"), (0, 21)
    )
    assert all(value.shape == (0,) for name, value in outputs.items() if not name.startswith("nbest"))


def test_batches_of_two_sizes_are_refused(answerer):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`question` and `context` must be equally many"):
        answerer.graph(as_strings(["w1", "w2"]), as_strings(["w1"]))
