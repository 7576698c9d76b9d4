"""Reads TensorFlow Serving's batching parameters. Imports no TensorFlow.

They have the meaning that TensorFlow's `SharedBatchScheduler` gives them.
"""

import os
from typing import NamedTuple

from export.server.text_message import declared_message, read_text_message
from keras_bert.errors import InputError

PER_MODEL_FILE = "batching_params.pbtxt"


class BatchingParameters(NamedTuple):
    """Settings for joining requests. The defaults are TensorFlow Serving's.

    Attributes:
        max_batch_size: most rows of a batch; a larger request is refused, or runs alone with
            `enable_large_batch_splitting`.
        batch_timeout_micros: microseconds that an incomplete batch waits for more requests.
        max_enqueued_batches: most batches that wait; further requests are refused.
        num_batch_threads: batches that run at once, of all models together.
        allowed_batch_sizes: sizes to which batches are padded, ascending up to `max_batch_size`; empty: no padding.
        enable_large_batch_splitting: see `max_batch_size`.
    """

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = os.cpu_count() or 1
    allowed_batch_sizes: tuple[int, ...] = ()
    enable_large_batch_splitting: bool = False


def read_batching_parameters(path: str) -> BatchingParameters:
    """Reads a file of TensorFlow Serving's `--batching_parameters_file` or a version's `batching_params.pbtxt`.

    Raises:
        InputError: the file cannot be read, is not that message, or its values contradict each other.
    """
    expected = "TensorFlow Serving's batching parameters, such as max_batch_size { value: 32 }"
    message = read_text_message(path, declared_message("BatchingParameters"), expected)
    given = {field.name: value.value for field, value in message.ListFields() if field.message_type}
    parameters = BatchingParameters(
        **{name: value for name, value in given.items() if name in BatchingParameters._fields},
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
    )
    for name in ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"):
        least = 0 if name == "batch_timeout_micros" else 1
        if getattr(parameters, name) < least:
            raise InputError(f"{path}: expected {name} of at least {least}. Received: {getattr(parameters, name)}")
    sizes = parameters.allowed_batch_sizes
    if sizes and (list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != parameters.max_batch_size):
        raise InputError(
            f"{path}: expected allowed_batch_sizes to ascend to max_batch_size ({parameters.max_batch_size}). "
            f"Received: {list(sizes)}"
        )
    if message.pad_variable_length_inputs:
        raise InputError(
            f"{path}: pad_variable_length_inputs fills with each tensor's first element, which changes the answers to "
            "token ids. Take it out: requests of different lengths are batched apart, strings together."
        )
    return parameters
