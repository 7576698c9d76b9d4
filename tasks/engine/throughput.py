"""Training speed relative to the peak of the devices (model FLOPs utilization).

    share of peak = real tokens per second * operations per token / peak

Operations are those of the model's formulas, with additions and multiplications counted separately. Padding and
recomputation cost time but do not count as work.
"""

import dataclasses
import timeit

import tensorflow as tf

from keras_bert.config import BertConfig

# Size of the square matrices, and number of products in a round; measuring takes under a second in all.
_MATMULS = {"CPU": (1024, 8), "GPU": (8192, 10)}


@dataclasses.dataclass(frozen=True)
class Speed:
    """The peak that a training's speed is compared with.

    Attributes:
        flops_per_token: operations of a training step per real token.
        peak_flops: operations per second of all devices together.
        peak_source: origin of `peak_flops`, `"flag"` or `"measured"`.
    """

    flops_per_token: float
    peak_flops: float
    peak_source: str

    def share_of_peak(self, tokens_per_second: float) -> float:
        return tokens_per_second * self.flops_per_token / self.peak_flops


def pretraining_flops_per_token(config: BertConfig, tokens_per_example: float, masked_per_example: float) -> float:
    """Returns the operations of a forward and backward pass per real token; the backward pass counts as two forward.

    Per token, a layer's kernels take 4 H^2 + 2 H I multiplications, and attention takes 2 H per token of the example
    (scores and context). The masked-LM head takes H^2 + H V per masked token. Each multiplication comes with an
    addition, hence the factor 2. Embeddings, LayerNorm, pooler and next-sentence head are neglected.

    Args:
        config: sizes of the encoder.
        tokens_per_example: mean number of real tokens per example.
        masked_per_example: mean number of masked tokens per example.
    """
    hidden = config.hidden_dim
    layer = 4 * hidden**2 + 2 * hidden * config.intermediate_dim + 2 * hidden * tokens_per_example
    head = (hidden**2 + hidden * config.vocabulary_size) * masked_per_example / tokens_per_example
    return 3 * 2 * (config.num_layers * layer + head)


def find_peak(strategy: tf.distribute.Strategy, peak_tflops: float | None, dtype: str) -> tuple[float, str] | None:
    """Finds the peak speed of a strategy's devices.

    Args:
        strategy: strategy whose devices count; logical devices of one CPU share its measured peak.
        peak_tflops: peak of one device in 10^12 operations per second; None measures matrix products on the first one.
        dtype: type that the training computes in.

    Returns:
        (operations per second of all devices, `"flag"` or `"measured"`), or None for a TPU without `peak_tflops`.
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
    """Measures square matrix products: operations per second in the fastest of three rounds of `count` products."""

    @tf.function(autograph=False)
    def multiply(matrix):
        return tf.foldl(lambda total, _: tf.matmul(total, matrix), tf.range(count), matrix)[0, 0]

    with tf.device(device):
        matrix = tf.eye(size, dtype=dtype)
        multiply(matrix).numpy()  # Builds the graph.
        seconds = min(timeit.repeat(lambda: multiply(matrix).numpy(), number=1, repeat=3))
    return 2 * size**3 * count / seconds
