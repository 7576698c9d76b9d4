"""Questions with a model's own answers, found by the task's Python: what `verify` asks a question answerer.

Shapes: B questions, W windows, S sequence, T tokens of all windows, L answers listed.
"""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from export import probes, signatures
from export.graph.source_text import read_text
from export.graph.windows import pad_windows
from export.verify import TOLERANCE, Probe
from keras_bert.python_tokenizer import PythonBertTokenizer
from tasks.squad.answers import best_answers
from tasks.squad.data import Question
from tasks.squad.windows import Windows, make_windows

QUESTION = "In what country is Normandy located?"
CONTEXT = (
    "The Normans (Norman: Nourmands; French: Normands) were the people who in the 10th and 11th centuries gave their "
    "name to Normandy, a region in France. They were descended from Norse raiders and pirates from Denmark, Iceland "
    "and Norway who, under their leader Rollo, agreed to swear fealty to King Charles III of West Francia."
)
_PAIRS = (
    (QUESTION, CONTEXT),
    ("", ""),
    ("Who?", " \x00\u200b\t"),
    ("What what what", "again and again and again, (again) and AGAIN."),
    ("Où est né Ἀχιλλεύς?", "naïve CAFÉ: ΟΔΥΣΣΕΥΣ\u202fand cafe\u0301s  \u2603-led, isn't it?"),
    ("天气怎么样?", "今天天气很好,我们去公园吧。今天天气很好。"),
    (b"invalid \xff", b"invalid \xff\xfe UTF-8 \xe4\xb8 and U+FFFD: \xef\xbf\xbd."),
    ("x " * 5000, "x" * 300 + " behind one endless word, in Rouen"),
    (QUESTION, " ".join([CONTEXT] * 6)),
)
_NUM_SHAKES = 8


class _Read(NamedTuple):
    """Questions as the task's Python reads them.

    Attributes:
        questions: B questions, each with the part of its context that is read.
        windows: theirs.
        rows: the windows as the encoder's inputs, int32 [W, S].
    """

    questions: list[Question]
    windows: Windows
    rows: dict[str, np.ndarray]

    @property
    def is_token(self) -> np.ndarray:
        """bool [W, S]."""
        return self.rows["padding_mask"] == 1


def make_probes(head, model: keras.Model) -> list[Probe]:
    """See `Head.probes`.

    Args:
        head: `QuestionAnswering`.
        model: float32, encoder inputs to logits [B, S, 2].
    """
    questions, contexts = zip(*_PAIRS, strict=True)
    columns = {"question": probes.as_bytes(questions), "context": probes.as_bytes(contexts)}
    found = []
    for count in (len(questions), 1, 0):
        batch = {name: column[:count] for name, column in columns.items()}
        read = _read(head, batch)
        logits = _logits(model, read)
        found.append(Probe(signatures.SERVING_DEFAULT, batch, *_answers(head, batch, read, logits)))
        masked = np.where(read.is_token[:, :, np.newaxis], logits, np.float32(head.masked_logit))
        outputs = {"start_logits": masked[:, :, 0], "end_logits": masked[:, :, 1]}
        found.append(Probe(signatures.TOKEN_IDS, _request(read.rows), outputs))
    return found


def expected_answers(head, model: keras.Model, batch: Mapping[str, np.ndarray]) -> tuple[dict, np.ndarray]:
    """The outputs of `serving_default` that a model should give.

    Texts and scores are found by `tasks.squad`, places by the eager path of the graph, from the same logits.

    Args:
        head, model: as in `make_probes`.
        batch: `question` and `context`, arrays of B bytes objects.

    Returns:
        (output name -> array, bool [B]: where rounding decides about texts or places).
    """
    read = _read(head, batch)
    return _answers(head, batch, read, _logits(model, read))


def small_requests(head) -> list[tuple[str, dict[str, np.ndarray]]]:
    """One question, and one window's ids."""
    columns = {"question": probes.as_bytes([QUESTION]), "context": probes.as_bytes([CONTEXT])}
    ids = {name: values[:1] for name, values in _request(_read(head, columns).rows).items()}
    return [(signatures.SERVING_DEFAULT, columns), (signatures.TOKEN_IDS, ids)]


def _read(head, batch: Mapping[str, np.ndarray]) -> _Read:
    tokenizer = head.preprocessor.tokenizer
    tokenizer = PythonBertTokenizer(tokenizer.get_vocabulary(), tokenizer.lowercase)
    questions = []
    for number, (question, context) in enumerate(zip(batch["question"], batch["context"], strict=True)):
        question = question[: head.question_bytes].decode("utf-8", "ignore")
        context, _ = read_text(context, tokenizer, head.max_tokens)
        questions.append(Question(str(number), question, context, [], False, ""))
    windows = make_windows(
        questions,
        tokenizer,
        max_seq_length=head.preprocessor.sequence_length,
        doc_stride=head.doc_stride,
        max_query_length=head.max_query_length,
        with_answers=False,
        description=None,
    )
    examples = windows.examples
    rows = pad_windows(examples.row_splits, token_ids=examples.token_ids, segment_ids=examples.segment_ids)
    return _Read(questions, windows, rows)


def _logits(model: keras.Model, read: _Read) -> np.ndarray:
    """float32 [W, S, 2]."""
    return probes.on_cpu(lambda tensors: model(tensors, training=False), read.rows)


def _request(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    lengths = rows["padding_mask"].sum(axis=1, dtype=np.int32)
    return {"token_ids": rows["token_ids"], "segment_ids": rows["segment_ids"], "lengths": lengths}


def _answers(
    head, batch: Mapping[str, np.ndarray], read: _Read, logits: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    places, undecided = _eager_answers(head, batch, logits)
    return places | _task_answers(head, read, logits), undecided


# === The eager path ===


def _eager_answers(head, batch: Mapping[str, np.ndarray], logits: np.ndarray) -> tuple[dict, np.ndarray]:
    """The answers, and in which rows they hang on rounding: there they change as the logits are shaken a little."""
    generator = np.random.default_rng(0)
    given = {}
    answer = head.answering(lambda encoded: given["logits"])

    def answers(scale):
        given["logits"] = tf.constant(logits + generator.uniform(-scale, scale, logits.shape).astype(np.float32))
        return probes.on_cpu(lambda columns: answer(**columns), batch)

    expected = answers(0.0)
    undecided = np.zeros(len(batch["question"]), bool)
    for _ in range(_NUM_SHAKES):
        shaken = answers(TOLERANCE)
        for name, values in expected.items():
            if values.dtype.kind != "f":
                undecided |= (values != shaken[name]).any(axis=tuple(range(1, values.ndim)))
    return expected, undecided


# === The task's Python ===


def _task_answers(head, read: _Read, logits: np.ndarray) -> dict[str, np.ndarray]:
    """Texts and scores of the answers, as `bert-squad` finds them."""
    choice = head.choice
    of_tokens = logits[read.is_token]  # [T, 2]
    answers = best_answers(
        read.questions,
        read.windows,
        of_tokens[:, 0],
        of_tokens[:, 1],
        **choice._asdict(),
    )
    shape = (len(read.questions), choice.num_listed)
    texts, probabilities = np.full(shape, b"", object), np.zeros(shape, np.float32)
    for row, entries in enumerate(answers.nbest.values()):
        texts[row, : len(entries)] = [entry["text"].encode() for entry in entries]
        probabilities[row, : len(entries)] = [entry["probability"] for entry in entries]
    given = probes.as_bytes(list(answers.predictions.values()))
    is_given = texts == given[:, np.newaxis]
    found = {
        "answer": given,
        "score": np.where(is_given, probabilities, 0.0).max(axis=1, initial=0.0),
        "nbest_answers": texts,
        "nbest_probabilities": probabilities,
    }
    if answers.null_odds:
        found["null_score"] = np.array(list(answers.null_odds.values()), np.float32)
    return found
