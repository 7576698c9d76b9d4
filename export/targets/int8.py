"""Exports the graph with int8 matrices, a quarter of the size, and measures the cost.

Only weights are quantized, with one scale for each output channel. A matrix becomes floats as it is used, and
activations stay float32. Integer products, Keras's other int8 mode, are slow with TensorFlow's CPU kernels: MiniLM took
2.7 times as long on a processor with AVX512-VNNI, and 1.1 to 1.2 times as long with quantized weights alone.
"""

import functools
import statistics
import timeit
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from export import extras, saved_model, verify
from export.heads.base import Head
from export.targets import real_text

_ROUNDS = 5
_SPEED_BATCHES = (1, 32)


class Cost(NamedTuple):
    """The cost of int8 compared with float32, on real text.

    Attributes:
        num_texts: number of texts.
        largest: largest difference of two numbers.
        mean: mean of the differences.
        num_named, num_alike: strings in the answers (labels, tokens, tags), and how many of them are equal.
        times: batch size -> time relative to float32.
    """

    num_texts: int
    largest: float
    mean: float
    num_named: int
    num_alike: int
    times: dict[int, float]

    def lines(self) -> list[str]:
        """Returns the figures as text."""
        named = f", {self.num_alike} of {self.num_named} names alike" if self.num_named else ""
        times = ", ".join(f"{time:.2f} for {size} text{'s' * (size > 1)}" for size, time in self.times.items())
        pays = max(self.times.values()) < 1.0
        verdict = "it pays on this CPU" if pays else "it does not pay on this CPU, but for its size"
        return [
            f"accuracy: {self.num_texts} real texts, difference from float32 {self.mean:.1e} in the mean, "
            f"{self.largest:.1e} at most{named}",
            f"speed: time relative to float32 {times}: {verdict}",
        ]


def quantize(model: keras.Model) -> None:
    """Quantizes the matrices and tables of a float32 model to int8, in place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of each layer without a matrix.
        model.quantize(config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None))


def write(head: Head, directory: str) -> verify.Report:
    """Writes the version and verifies it against the quantized Keras model.

    Args:
        head: as exported in float32.
        directory: does not exist.

    Raises:
        VerificationError: the graph does not answer as that model does.
    """
    reference = saved_model.rebuild(head.model)
    quantize(reference)
    served = saved_model.rebuild(head.model, layout="unpadded")
    quantize(served)
    weight_bytes = saved_model.write_graph(head, served, directory)
    report = verify.verify(directory, head.probes(reference), weight_bytes)
    extras.write_extras(directory, head)
    return report


def measure(head: Head, float_directory: str, int8_directory: str) -> Cost:
    """Compares both versions on the same requests; their speed by turns."""
    runners = [real_text.saved_model_runner(path) for path in (float_directory, int8_directory)]
    asked = real_text.requests(head)
    differences, num_named, num_alike = [], 0, 0
    for right, answer in zip(*(run(asked) for run in runners), strict=True):
        for name, values in right.items():
            if values.dtype.kind == "f":
                differences.append(np.abs(values - answer[name]).ravel())
            elif values.dtype.kind == "O":
                named = values != b""
                num_named, num_alike = num_named + named.sum(), num_alike + (values == answer[name])[named].sum()
    joined = np.concatenate(differences)
    num_texts = sum(len(request["lengths"]) for request in asked)
    times = {size: _relative_time(runners, real_text.requests(head, [size])) for size in _SPEED_BATCHES}
    return Cost(num_texts, float(joined.max()), float(joined.mean()), int(num_named), int(num_alike), times)


def _relative_time(runners: Sequence[real_text.Runner], requests: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Returns the second runner's time relative to the first's: the median over rounds, leaving out the first."""
    ratios = []
    for _ in range(_ROUNDS + 1):
        seconds = [timeit.timeit(functools.partial(run, requests), number=1) for run in runners]
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios[1:])
