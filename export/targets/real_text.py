"""A head's exported graph on real text: requests by token ids, and how far another target's answers are from its own.

Shapes: B batch, S sequence, K choices, P masked positions, V vocabulary.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from keras_bert.errors import InputError
from keras_bert.preprocessor import BertPreprocessor
from tasks import docstrings

# One text, a few, and a batch: what a fixed batch or length in the target would not survive.
BATCH_SIZES = (1, 7, 32)
# Kernels of another runtime add in another order and take other polynomials: differences seen are below 1e-5.
TOLERANCE = 1e-3
_MASKS = 2

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Sequence[Arrays]], list[dict[str, np.ndarray]]]


class Difference(NamedTuple):
    """How a target's answers differ from those of the exported graph.

    Attributes:
        num_texts: real texts asked.
        largest: absolute difference of two numbers.
    """

    num_texts: int
    largest: float


def requests(head: Head, batch_sizes: Sequence[int] = BATCH_SIZES) -> list[dict[str, np.ndarray]]:
    """Requests to `token_ids` of the sentences of the standard library's docstrings, in their order."""
    modules = (path for _, path in docstrings.list_modules(docstrings.STANDARD_LIBRARY))
    sentences = itertools.cycle(
        [text for path in itertools.islice(modules, 40) for text in docstrings.read_module(path)]
    )
    return [_request(head, sentences, size) for size in batch_sizes]


def _request(head: Head, sentences, batch_size: int) -> dict[str, np.ndarray]:
    encode = BertPreprocessor(head.preprocessor.tokenizer, head.preprocessor.sequence_length, pad_to_longest=True)
    choices = getattr(head, "num_choices", 1)
    firsts = list(itertools.islice(sentences, batch_size))
    if choices > 1 or getattr(head, "num_texts", 1) == 2 or head.task == "question_answering":
        texts = (list(np.repeat(firsts, choices)), list(itertools.islice(sentences, batch_size * choices)))
    else:
        texts = firsts
    encoded = {name: value.numpy() for name, value in encode(texts).items()}
    request = {name: encoded[name] for name in ("token_ids", "segment_ids")}
    request["lengths"] = encoded["padding_mask"].sum(axis=-1, dtype=np.int32)
    if choices > 1:
        return {name: value.reshape(batch_size, choices, *value.shape[1:]) for name, value in request.items()}
    return _masked(head, request) if head.task == "fill_mask" else request


def _masked(head: Head, request: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Puts [MASK] behind [CLS] and before [SEP]; the same place twice in a text of one token."""
    lengths = request["lengths"]
    positions = np.stack([np.minimum(1, lengths - 1), np.maximum(lengths - 2, 0)], axis=1).astype(np.int32)
    np.put_along_axis(request["token_ids"], positions, head.preprocessor.tokenizer.mask_token_id, axis=1)
    return {**request, "mask_positions": positions}


def saved_model_runner(directory: str) -> Runner:
    """Asks an exported version's `token_ids`, in this process."""
    loaded = tf.saved_model.load(directory)

    def run(requests):
        signature = loaded.signatures[signatures.TOKEN_IDS]  # it alone would not keep the variables alive
        answers = [signature(**{name: tf.constant(value) for name, value in request.items()}) for request in requests]
        return [{name: value.numpy() for name, value in answer.items()} for answer in answers]

    return run


def compare(
    head: Head, requests: Sequence[Arrays], expected: Sequence[Arrays], answers: Sequence[Arrays]
) -> Difference:
    """Compares a target's answers (`network.outputs_of`) with the exported graph's.

    Raises:
        InputError: they differ by more than `TOLERANCE`: the target is not to be used.
    """
    largest = 0.0
    for request, right, answer in zip(requests, expected, answers, strict=True):
        for name, values in comparable(head, request, right, answer).items():
            if values.shape != right[name].shape:
                raise InputError(f"{name}: has the shape {values.shape}, the SavedModel's {right[name].shape}.")
            difference = float(np.max(np.abs(values - right[name]), initial=0.0))
            if not difference <= TOLERANCE:
                raise InputError(f"{name}: differs from the SavedModel's by {difference:.2e}, allowed {TOLERANCE:.0e}.")
            largest = max(largest, difference)
    return Difference(sum(len(request["lengths"]) for request in requests), largest)


def comparable(head: Head, request: Arrays, right: Arrays, answer: Arrays) -> dict[str, np.ndarray]:
    """A target's answer in terms of the outputs of `token_ids`, as far as those are numbers."""
    if head.task == "token_classification":
        is_real = np.arange(request["token_ids"].shape[1]) < request["lengths"][:, None]
        return {"scores": np.where(is_real, answer["probabilities"].max(axis=-1), np.float32(0))}
    if head.task == "fill_mask":
        size, count = head.preprocessor.tokenizer.vocabulary_size(), right["probabilities"].shape[-1]
        return {"probabilities": np.sort(answer["probabilities"][..., :size], axis=-1)[..., ::-1][..., :count]}
    return dict(answer)
