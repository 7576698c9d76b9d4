"""How fast a training runs beside what its devices can do.

    share of peak = real tokens per second * operations per token / peak

Operations are those of the model's formula, additions and multiplications counted apart; padding, and what is computed
twice, counts as loss of time, not as work.
"""

import dataclasses
import time

import tensorflow as tf

from keras_bert.config import BertConfig

# Rows of the square matrices and how many products make a round: under a second in all.
_MATMULS = {"CPU": (1024, 8), "GPU": (8192, 10)}


@dataclasses.dataclass(frozen=True)
class Speed:
    """What a training's speed is compared with.

    Attributes:
        flops_per_token: operations of a training step for each real token.
        peak_flops: operations a second of all devices together.
        peak_source: where that figure is from: `"flag"` or `"measured"`.
    """

    flops_per_token: float
    peak_flops: float
    peak_source: str

    def share_of_peak(self, tokens_per_second: float) -> float:
        return tokens_per_second * self.flops_per_token / self.peak_flops


def pretraining_flops_per_token(config: BertConfig, tokens_per_example: float, masked_per_example: float) -> float:
    """Operations of forward and backward pass for each real token; the backward pass has twice the forward's.

    A layer multiplies each token by matrices of 4 H^2 + 2 H I numbers, and by each token of its example twice over H
    (scores, then context); the masked-LM head multiplies each masked token by H^2 + H V numbers. A multiplication is
    followed by an addition: 2 operations. Embeddings, LayerNorm, pooler and next-sentence head count nothing.

    Args:
        config: sizes of the encoder.
        tokens_per_example: mean number of real tokens of an example.
        masked_per_example: mean number of masked ones among them.
    """
    hidden = config.hidden_dim
    layer = 4 * hidden**2 + 2 * hidden * config.intermediate_dim + 2 * hidden * tokens_per_example
    head = (hidden**2 + hidden * config.vocabulary_size) * masked_per_example / tokens_per_example
    return 3 * 2 * (config.num_layers * layer + head)


def find_peak(strategy: tf.distribute.Strategy, peak_tflops: float | None, dtype: str) -> tuple[float, str] | None:
    """Operations a second of all of a strategy's devices, and `"flag"` or `"measured"`; None for a TPU without flag.

    Args:
        strategy: whose devices count; logical devices of one CPU share what was measured.
        peak_tflops: 10^12 operations a second of one device; None: the best of a few matrix products on the first.
        dtype: the number type to measure: what the training computes in.
    """
    if peak_tflops is not None:
        return peak_tflops * 1e12 * strategy.num_replicas_in_sync, "flag"
    devices = strategy.extended.worker_devices
    kind = tf.DeviceSpec.from_string(devices[0]).device_type
    if kind not in _MATMULS:
        return None
    sharing = len(devices) if kind == "CPU" else 1
    return _measure(devices[0], *_MATMULS[kind], dtype) * strategy.num_replicas_in_sync / sharing, "measured"


def _measure(device: str, size: int, count: int, dtype: str) -> float:
    """Operations a second of a product of square matrices: the fastest of three rounds of `count` of them."""

    @tf.function
    def multiply(matrix):
        return tf.foldl(lambda total, _: tf.matmul(total, matrix), tf.range(count), matrix)[0, 0]

    with tf.device(device):
        matrix = tf.eye(size, dtype=dtype)
        multiply(matrix).numpy()
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            multiply(matrix).numpy()
            seconds.append(time.perf_counter() - start)
    return 2 * size**3 * count / min(seconds)
