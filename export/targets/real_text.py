"""Compares other targets with the exported graph on ordinary text.

Shapes: B batch, S sequence.
"""

import builtins
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from keras_bert.errors import InputError

# One text, a few, and a batch: a target with a fixed batch or length would fail.
BATCH_SIZES = (1, 7, 32)
# Another runtime's kernels add in another order and use other polynomials. The differences seen are below 1e-5.
TOLERANCE = 1e-3

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Sequence[Arrays]], list[dict[str, np.ndarray]]]


def sentences() -> list[str]:
    """Returns paragraphs from the docstrings of Python's built-in functions and types, which are always at hand."""
    docstrings = (inspect.getdoc(getattr(builtins, name)) or "" for name in dir(builtins))
    paragraphs = (" ".join(paragraph.split()) for text in docstrings for paragraph in text.split("\n\n"))
    return list(dict.fromkeys(paragraph for paragraph in paragraphs if len(paragraph.split()) > 4))


def requests(head: Head, batch_sizes: Sequence[int] = BATCH_SIZES) -> list[dict[str, np.ndarray]]:
    """Makes requests to `token_ids`, one for each batch size.

    Args:
        head: encodes the texts, which are those of `sentences()` in turn.
        batch_sizes: rows of each request.
    """
    drawn = itertools.cycle(sentences())
    asked = [(size, head.token_request(head.encode(head.sample(drawn, size)))) for size in batch_sizes]
    # Long texts have several windows.
    return [{name: values[:size] for name, values in request.items()} for size, request in asked]


def saved_model_runner(directory: str) -> Runner:
    """Returns a function that asks an exported version's `token_ids`, in this process."""
    loaded = tf.saved_model.load(directory)

    def run(requests):
        signature = loaded.signatures[signatures.TOKEN_IDS]  # It alone would not keep the variables alive.
        answers = [signature(**{name: tf.constant(value) for name, value in request.items()}) for request in requests]
        return [{name: value.numpy() for name, value in answer.items()} for answer in answers]

    return run


def compare(head: Head, requests: Sequence[Arrays], expected: Sequence[Arrays], answers: Sequence[Arrays]) -> float:
    """Returns the largest difference between a target's answers (`head.token_outputs`) and the exported graph's.

    Raises:
        InputError: they differ by more than `TOLERANCE`, so the target must not be used.
    """
    largest = 0.0
    for request, right, answer in zip(requests, expected, answers, strict=True):
        for name, values in head.comparable(request, answer).items():
            if values.shape != right[name].shape:
                raise InputError(f"{name}: has the shape {values.shape}, the SavedModel's {right[name].shape}.")
            difference = float(np.max(np.abs(values - right[name]), initial=0.0))
            if not difference <= TOLERANCE:
                raise InputError(f"{name}: differs from the SavedModel's by {difference:.2e}, allowed {TOLERANCE:.0e}.")
            largest = max(largest, difference)
    return largest
