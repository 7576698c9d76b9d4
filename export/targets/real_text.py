"""Compares other targets with the exported graph on ordinary text: their answers and their speed."""

import builtins
import functools
import inspect
import itertools
import statistics
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from keras_bert.errors import InputError

# One text, a few, and a batch: a target with a fixed batch or length would fail.
BATCH_SIZES = (1, 7, 32)
# Another runtime's kernels add in another order and use other polynomials. Observed differences are below 1e-5.
TOLERANCE = 1e-3
_ROUNDS = 5
_SPEED_BATCHES = (1, 32)

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Sequence[Arrays]], list[dict[str, np.ndarray]]]


def sentences() -> list[str]:
    """Returns paragraphs from the docstrings of Python's built-in functions and types, which are always available."""
    docstrings = (inspect.getdoc(getattr(builtins, name)) or "" for name in dir(builtins))
    paragraphs = (" ".join(paragraph.split()) for text in docstrings for paragraph in text.split("\n\n"))
    return list(dict.fromkeys(paragraph for paragraph in paragraphs if len(paragraph.split()) > 4))


def requests(head: Head, batch_sizes: Sequence[int] = BATCH_SIZES) -> list[dict[str, np.ndarray]]:
    """Makes requests to `token_ids`, one for each batch size.

    Args:
        head: encodes the texts, which are taken from `sentences()` in turn.
        batch_sizes: number of rows of each request.
    """
    drawn = itertools.cycle(sentences())
    asked = [(size, head.token_request(head.encode(head.sample(drawn, size)))) for size in batch_sizes]
    # Long texts have several windows.
    return [{name: values[:size] for name, values in request.items()} for size, request in asked]


def ask(function: Callable, requests: Sequence[Arrays]) -> list[dict[str, np.ndarray]]:
    """Sends requests to a signature, a function of named tensors, and returns its answers."""
    answers = [function(**{name: tf.constant(value) for name, value in request.items()}) for request in requests]
    return [{name: value.numpy() for name, value in answer.items()} for answer in answers]


def saved_model_runner(directory: str) -> Runner:
    """Returns a function that runs an exported version's `token_ids` in this process."""
    loaded = tf.saved_model.load(directory)
    return lambda requests: ask(loaded.signatures[signatures.TOKEN_IDS], requests)  # Keeps the variables alive.


def compare(head: Head, requests: Sequence[Arrays], expected: Sequence[Arrays], answers: Sequence[Arrays]) -> float:
    """Returns the largest difference between a target's answers (`head.token_outputs`) and the exported graph's.

    Raises:
        InputError: they differ by more than `TOLERANCE`, so the target must not be used.
    """
    largest = 0.0
    for request, right, answer in zip(requests, expected, answers, strict=True):
        for name, values in head.comparable(request, answer).items():
            if values.shape != right[name].shape:
                shape = right[name].shape
                raise InputError(f"{name}: has the shape {values.shape}; the SavedModel's output has {shape}.")
            difference = float(np.max(np.abs(values - right[name]), initial=0.0))
            if not difference <= TOLERANCE:
                raise InputError(f"{name}: differs from the SavedModel's by {difference:.2e}, allowed {TOLERANCE:.0e}.")
            largest = max(largest, difference)
    return largest


# === What fewer bits cost ===


class Cost(NamedTuple):
    """The differences between answers in another type of number and in float32.

    Attributes:
        num_texts: number of rows compared.
        largest: largest difference of two numbers.
        noise: mean squared difference in percent of the numbers' variance.
        num_named, num_changed: number of strings in the answers (labels, tokens, tags), and how many of them changed.
        metric: name of the task's metric; None if it was not measured.
        points: its value in float32 and in the other type.
    """

    num_texts: int
    largest: float
    noise: float
    num_named: int
    num_changed: int
    metric: str | None = None
    points: tuple[float, float] = (0.0, 0.0)

    def described(self) -> str:
        """Returns the differences as text."""
        changed = f", {self.num_changed} of {self.num_named} names changed" if self.num_named else ""
        scored = f"; {self.metric} {self.points[1]:.2f} (float32: {self.points[0]:.2f})" if self.metric else ""
        return (
            f"{self.num_texts} real texts, difference from float32 {self.largest:.1e} at most, {self.noise:.2g}% of "
            f"the variance{changed}{scored}"
        )


def cost_of(right: Sequence[Arrays], answers: Sequence[Arrays]) -> Cost:
    """Compares answers to the same requests, `right` in float32."""
    differences, squares, num_named, num_changed = [], 0.0, 0, 0
    for expected, answer in zip(right, answers, strict=True):
        for name, values in expected.items():
            if values.dtype.kind == "f":
                differences.append(np.abs(values - answer[name]).astype(np.float64).ravel())
                squares += float(np.square(values - values.mean(axis=0, dtype=np.float64)).sum())
            elif values.dtype.kind == "O":
                named = values != b""
                num_named += int(named.sum())
                num_changed += int((values != answer[name])[named].sum())
    joined = np.concatenate(differences)
    noise = 100 * float(np.square(joined).sum()) / max(squares, 1e-30)
    num_texts = sum(len(next(iter(answer.values()))) for answer in right)
    return Cost(num_texts, float(joined.max(initial=0.0)), noise, num_named, num_changed)


def relative_times(head: Head, run: Runner, other: Runner) -> dict[int, float]:
    """Returns the other runner's time relative to the first's, by the rows of a request; the median over rounds."""
    times = {}
    for size in _SPEED_BATCHES:
        asked, ratios = requests(head, [size]), []
        for _ in range(_ROUNDS + 1):
            seconds = [timeit.timeit(functools.partial(runner, asked), number=1) for runner in (run, other)]
            ratios.append(seconds[1] / seconds[0])
        times[size] = statistics.median(ratios[1:])  # The first round traces or plans.
    return times


def shown_times(times: Mapping[int, float]) -> str:
    """Returns the result of `relative_times` as text."""
    return ", ".join(f"{time:.2f} for {size} text{'s' * (size > 1)}" for size, time in times.items())
