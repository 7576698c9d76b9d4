"""Times only the matrix products of an encoder, in TensorFlow and in ONNX Runtime.

    .venv/bin/python benchmarks/product_speed.py [--rows=3,10,128] [--rounds=3]

This is a lower bound for the time of a served encoder. It computes the products of all layers with their kernels on a
given number of rows (tokens of a batch), each on the result of the one before, without bias, attention or text. Each
variant runs in a process of its own, and the variants take turns. Prints milliseconds for all layers, as the median
over runs:

- `onnxruntime`: a graph of MatMul nodes, whose kernels ONNX Runtime packs when it loads them;
- `variables`: tf.matmul with variables, as in an exported graph;
- `constants`: the kernels as constants, which oneDNN may keep packed;
- `panels`: the kernels in panels of 64 columns, so that each is read sequentially;
- `transposed`: (W^T x^T)^T, which reads a kernel once, in memory order, and packs the rows instead;
- `einsum`: tf.einsum with variables, which leaves the products to Eigen when oneDNN is on;
- `bfloat16`: variables in bfloat16, and the rows cast around each product, as `bert-export --bfloat16` exports it.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from absl import flags
from machine import describe_machine

from tasks import flags as task_flags

FLAGS = flags.FLAGS

WAYS = ("onnxruntime", "variables", "constants", "panels", "transposed", "einsum", "bfloat16")
_PANEL = 64
_PASSED = ("num_layers", "hidden_dim", "num_runs")  # to the processes

flags.DEFINE_list("rows", ["3", "10", "128", "320", "900"], "Numbers of rows.")
flags.DEFINE_integer("num_layers", 6, "Encoder layers.", lower_bound=1)
flags.DEFINE_integer("hidden_dim", 384, "Size of a row, a multiple of 64; MiniLM's by default.", lower_bound=64)
flags.DEFINE_integer("rounds", 3, "Processes of each way.", lower_bound=1)
flags.DEFINE_integer("num_runs", 24, "Timed runs of a process for each number of rows.", lower_bound=1)
flags.DEFINE_enum("way", None, list(WAYS), "Times one way and prints JSON.")


def kernels() -> list[np.ndarray]:
    """Makes kernels for each layer: queries, keys and values, the attention output, and the two inner products."""
    size, generator = FLAGS.hidden_dim, np.random.default_rng(0)
    shapes = [(size, 3 * size), (size, size), (size, 4 * size), (4 * size, size)] * FLAGS.num_layers
    return [generator.normal(0.0, rows**-0.5, (rows, columns)).astype(np.float32) for rows, columns in shapes]


def in_tensorflow(way: str) -> Callable[[np.ndarray], object]:
    """Returns all products as one traced function."""
    import tensorflow as tf

    def by_panels(rows, kernel):
        products = tf.matmul(rows[tf.newaxis], kernel)  # [columns / 64, rows, 64]
        return tf.reshape(tf.transpose(products, [1, 0, 2]), [-1, kernel.shape[0] * _PANEL])

    def transposed(rows, kernel):
        return tf.transpose(tf.matmul(kernel, rows, transpose_b=True))

    def in_bfloat16(rows, kernel):
        return tf.cast(tf.matmul(tf.cast(rows, tf.bfloat16), kernel), tf.float32)

    ways = {"panels": by_panels, "transposed": transposed, "bfloat16": in_bfloat16}
    ways["einsum"] = lambda rows, kernel: tf.einsum("tk,kn->tn", rows, kernel)
    held, multiply = kernels(), ways.get(way, tf.matmul)
    if way == "panels":
        held = [np.stack(np.split(kernel, kernel.shape[1] // _PANEL, axis=1)) for kernel in held]
    elif way == "transposed":
        held = [np.ascontiguousarray(kernel.T) for kernel in held]
    elif way == "bfloat16":
        held = [tf.cast(kernel, tf.bfloat16) for kernel in held]
    if way != "constants":
        held = [tf.Variable(kernel) for kernel in held]

    @tf.function(input_signature=[tf.TensorSpec([None, FLAGS.hidden_dim])], autograph=False)
    def encode(rows):
        for kernel in held:
            size = kernel.shape[-1 if way == "transposed" else -2]
            rows = multiply(rows[:, :size], tf.convert_to_tensor(kernel))
        return rows

    return lambda rows: encode(tf.constant(rows)).numpy()


def in_onnxruntime() -> Callable[[np.ndarray], object]:
    """Makes the same products as a graph of MatMul and Slice nodes."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    held, nodes, rows = kernels(), [], "rows"
    constants = {"start": [0], "axis": [1], "end": [FLAGS.hidden_dim]}
    initializers = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    initializers += [numpy_helper.from_array(kernel, f"kernel_{index}") for index, kernel in enumerate(held)]
    for index in range(len(held)):
        if index % 4 == 1:  # attention's output, on as many columns as the queries have
            nodes.append(helper.make_node("Slice", [rows, "start", "end", "axis"], [f"sliced_{index}"]))
            rows = f"sliced_{index}"
        nodes.append(helper.make_node("MatMul", [rows, f"kernel_{index}"], [f"product_{index}"]))
        rows = f"product_{index}"
    shape = [None, FLAGS.hidden_dim]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("rows", rows)]
    graph = helper.make_graph(nodes, "products", infos[:1], infos[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda values: session.run(None, {"rows": values})[0]


def time_way(way: str) -> dict[str, float]:
    """Returns median milliseconds for all layers by number of rows, and as `check` the sum of a product to compare."""
    encode = in_onnxruntime() if way == "onnxruntime" else in_tensorflow(way)
    generator = np.random.default_rng(1)
    timings = {"check": float(np.abs(encode(generator.normal(size=(5, FLAGS.hidden_dim)).astype(np.float32))).sum())}
    for number in FLAGS.rows:
        rows = generator.normal(size=(int(number), FLAGS.hidden_dim)).astype(np.float32)
        seconds = []
        for run in range(FLAGS.num_runs + 4):
            start = time.perf_counter()
            encode(rows)
            if run >= 4:
                seconds.append(time.perf_counter() - start)
        timings[number] = 1e3 * statistics.median(seconds)
    return timings


def ask(way: str) -> dict[str, float]:
    """`time_way` in a process of its own."""
    passed = [f"--rows={','.join(FLAGS.rows)}", *(f"--{name}={FLAGS[name].value}" for name in _PASSED)]
    command = [sys.executable, os.path.abspath(__file__), f"--way={way}", *passed]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    if FLAGS.way:
        print(json.dumps(time_way(FLAGS.way)))
        return
    timings: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(FLAGS.rounds):
        for way in WAYS:
            timings[way].append(ask(way))
    print(describe_machine())
    print(f"{FLAGS.num_layers} layers of {FLAGS.hidden_dim}, ms".ljust(32) + "".join(f"{n:>9}" for n in FLAGS.rows))
    for way, rounds in timings.items():
        checks = [timing["check"] / timings[WAYS[0]][0]["check"] for timing in rounds]
        if not np.allclose(checks, 1.0, rtol=1e-2 if way == "bfloat16" else 1e-4):
            raise AssertionError(f"{way}: another product. Received: {checks} of {WAYS[0]}'s")
        medians = {number: statistics.median(timing[number] for timing in rounds) for number in FLAGS.rows}
        print(way.ljust(32) + "".join(f"{medians[number]:9.2f}" for number in FLAGS.rows))


if __name__ == "__main__":
    task_flags.run(main)
