"""Question answerers without an encoder, for tests: logits that tables give, and the answers of `tasks.squad`."""

import functools
import re
from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from tokenizer_reference import SPECIALS

from export.heads.question_answering import QuestionAnswering
from keras_bert import BertPreprocessor, BertTokenizer
from keras_bert.answers.source_text import BYTES_PER_TOKEN
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.squad.answers import apply_threshold, best_answers
from tasks.squad.data import Question
from tasks.squad.windows import SquadSpec, make_windows

NUMBERED_WORDS = [*SPECIALS, *(f"w{number}" for number in range(30)), "##s", "\u4e2d", "\u6587"]
WORDS = [*NUMBERED_WORDS, *".,()-'", "cafe", "e", "a", "the", "##the", "aa", "##aa", "##a"]
SETTINGS = {"sequence_length": 24, "doc_stride": 6, "max_query_length": 5}


class TableAnswerer:
    """Answers in the graph, and in Python, from the same logits: the sum of what a token and a place give.

    They are rounded, so that many are equal, and no rounding error can hide or excuse a mistake.

    Args:
        vocabulary, lowercase: the tokenizer's.
        seed: of the logits.
        decimals: of the logits; fewer make more ties.
        null: what [CLS] has more than others.
        is_traced: whether to answer in a graph; to trace it takes longer than a few answers without.
        **settings: of `QuestionAnswering`, and `sequence_length`.
    """

    def __init__(
        self, vocabulary, lowercase=True, seed=0, decimals=1, null=4.0, sequence_length=96, is_traced=True, **settings
    ):
        tokenizer = BertTokenizer(vocabulary, lowercase)
        self.python_tokenizer = PythonBertTokenizer(list(tokenizer.vocabulary), lowercase)
        generator = np.random.default_rng(seed)
        self.of_tokens = _logits(generator, tokenizer.vocabulary_size(), decimals)
        self.of_tokens[tokenizer.cls_token_id] += null
        self.of_places = _logits(generator, sequence_length, decimals)
        model = SimpleNamespace(output_shape=(None, None, 2))
        self.head = QuestionAnswering(model, BertPreprocessor(tokenizer, sequence_length), **settings)
        texts = [tf.TensorSpec([None], tf.string, name) for name in ("question", "context")]
        self.graph = functools.partial(self.head.answer_by, self._logits_of)
        if is_traced:
            self.graph = tf.function(self.graph, input_signature=texts, autograph=False)

    def _logits_of(self, encoded):
        places = tf.range(tf.shape(encoded["token_ids"])[1])
        return tf.gather(self.of_tokens, encoded["token_ids"]) + tf.gather(self.of_places, places)[tf.newaxis]

    def served(self, questions, batch_size=16) -> list[dict]:
        """The outputs for each question, by the graph."""
        rows = []
        for first in range(0, len(questions), batch_size):
            texts = [as_strings(column) for column in zip(*questions[first : first + batch_size], strict=True)]
            outputs = {name: values.numpy() for name, values in self.graph(*texts).items()}
            rows += [{name: values[row] for name, values in outputs.items()} for row in range(len(texts[0]))]
        return rows

    def python(self, questions) -> list[dict]:
        """The answers of `tasks.squad` to each question, to the part of its context that is read."""
        head, choice = self.head, self.head.choice
        read, truncated = [], []
        for number, (question, context) in enumerate(questions):
            text, is_cut = read_text(as_bytes(context), self.python_tokenizer, head.max_tokens)
            question = as_bytes(question).decode("utf-8", "ignore")
            read.append(Question(str(number), question, text, [], False, ""))
            truncated.append(is_cut)
        sizes = {"sequence_length": head.preprocessor.sequence_length, "doc_stride": head.doc_stride}
        spec = SquadSpec(max_query_length=head.max_query_length, **sizes, **choice._asdict())
        windows = make_windows(read, self.python_tokenizer, spec)
        lengths = np.diff(windows.examples.row_splits)
        places = np.concatenate([np.zeros(0, int), *map(np.arange, lengths)])
        logits = self.of_tokens[windows.examples.token_ids] + self.of_places[places]
        answers = apply_threshold(best_answers(read, windows, logits, spec), spec.null_score_diff_threshold)
        return [
            {
                "text": question.context,
                "truncated": is_cut,
                "prediction": answers.predictions[question.id],
                "nbest": answers.nbest[question.id],
                "null_odds": answers.null_odds.get(question.id),
            }
            for question, is_cut in zip(read, truncated, strict=True)
        ]


def read_text(text: bytes, tokenizer, max_tokens: int) -> tuple[str, bool]:
    """Reads one text as `SourceText` does, in Python.

    Args:
        text: any bytes.
        tokenizer: `PythonBertTokenizer`.
        max_tokens: as in `SourceText`.

    Returns:
        (the part of the text that counts; True if there is more).
    """
    num_bytes = BYTES_PER_TOKEN * max_tokens
    part = text[:num_bytes].decode("utf-8", "ignore")
    ends = tokenizer.tokenize_with_offsets(part)[2]
    if len(ends) > max_tokens:
        return part[: max(ends[:max_tokens])], True
    return part, len(text) > num_bytes


def _logits(generator, count, decimals):
    """Some stand out, as a model's do."""
    return (generator.normal(size=(count, 2)) ** 3).round(decimals).astype(np.float32)


def as_bytes(text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def as_strings(texts) -> tf.Tensor:
    return tf.constant([as_bytes(text) for text in texts], tf.string)


def differences(served: dict, expected: dict) -> list[str]:
    """What is wrong about the outputs of one question."""
    nbest, problems = expected["nbest"], []
    texts = [entry["text"] for entry in nbest]
    listed = [text.decode() for text in served["nbest_answers"]]
    if listed[: len(texts)] != texts or any(listed[len(texts) :]):
        problems.append(f"n-best {listed}, expected {texts}")
    probabilities = np.zeros(len(listed))
    probabilities[: len(nbest)] = [entry["probability"] for entry in nbest]
    if not np.allclose(served["nbest_probabilities"], probabilities, rtol=1e-6, atol=1e-12):
        problems.append(f"probabilities {served['nbest_probabilities']}, expected {probabilities}")
    if served["answer"].decode() != expected["prediction"]:
        problems.append(f"answer {served['answer']}, expected {expected['prediction']!r}")
    if expected["null_odds"] is not None and served["null_score"] != np.float32(expected["null_odds"]):
        problems.append(f"null score {served['null_score']}, expected {expected['null_odds']}")
    if served["truncated"] != expected["truncated"]:
        problems.append(f"truncated: {served['truncated']}")
    return problems + _wrong_places(served, expected["text"])


def _wrong_places(served: dict, text: str) -> list[str]:
    columns = ("nbest_answers", "nbest_starts", "nbest_ends")
    rows = [*zip(*(served[name] for name in columns), strict=True), (served["answer"], served["start"], served["end"])]
    problems = []
    for answer, start, end in rows:
        part = " ".join(re.findall("[^ \t\r\n\u202f]+", text[start:end])) if start >= 0 else ""
        if part != answer.decode() and not (start == end == -1 and answer == b"empty"):
            problems.append(f"{answer.decode()!r} does not stand at {start} to {end}, but {part!r}")
    return problems


def assert_equal(answerer: TableAnswerer, questions, batch_size=16) -> list[dict]:
    """Compares the graph with Python; returns what Python says."""
    expected = answerer.python(questions)
    served = answerer.served(questions, batch_size)
    for question, ours, right in zip(questions, served, expected, strict=True):
        wrong = differences(ours, right)
        assert not wrong, (as_bytes(question[0])[:100], as_bytes(question[1])[:300], wrong)
    return expected
