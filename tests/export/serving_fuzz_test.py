"""Hostile clients of both protocols against the real command: it stays alive, every answer is a well-formed error or a
right answer, no failure is the server's own, and nothing that a client sent reaches its log.

It serves an exported classifier, tagger and question answerer with small encoders, beside two toys, with batching and
without. BERT_SERVE_FUZZ_REQUESTS sets how many requests are sent (300), half of them in batches, BERT_SERVE_FUZZ_SEED
which ones (1).
"""

import base64
import concurrent.futures
import contextlib
import json
import os
import random
import socket
import struct
import threading
import time

import grpc
import half_plus
import pytest
import tensorflow as tf
import toy_server
from tensorflow.core.framework import tensor_pb2

COUNT = int(os.environ.get("BERT_SERVE_FUZZ_REQUESTS", "300"))
SEED = int(os.environ.get("BERT_SERVE_FUZZ_SEED", "1"))
WORKERS = 6
PARTS = 5
MARK = "FORGED\r\nFORGED: line"  # in whatever a client sends
REAL = {  # Inputs of texts.
    "classification": ["text"],
    "token_classification": ["text"],
    "question_answering": ["question", "context"],
}
NAMES = ["toy", "half", "no", MARK, "%0d%0aFORGED", "", *REAL]
SIGNATURES = [
    "serving_default",
    "echo",
    "scale",
    "ratio",
    "classify",
    "double",
    "several",
    "total",
    "token_ids",
    "no",
    MARK,
    7,
    None,
]


@pytest.fixture(scope="module", name="models")
def _models(tmp_path_factory, saved):
    """A configuration file."""
    directory = tmp_path_factory.mktemp("models")
    paths = {"toy": toy_server.saved(directory), "half": str(directory / "half")}
    half_plus.save(paths["half"], 1)
    paths |= {name: saved(name).base for name in REAL}
    configs = "\n".join(
        f"config {{ name: '{name}' base_path: '{path}' model_platform: 'tensorflow' }}" for name, path in paths.items()
    )
    (directory / "models.config").write_text(f"model_config_list {{\n{configs}\n}}")
    return directory / "models.config"


@pytest.fixture(name="server", params=["alone", "batched"])
def _server(models, request):
    """The command in a process of its own: its ports and its process."""
    flags = ["--rest_api_port=0", "--port=0", "--rest_api_timeout_in_ms=5000"]
    flags += ["--enable_batching"] * (request.param == "batched")
    with toy_server.run_command(
        "-m", "export.local_server", f"--model_config_file={models}", *flags, seconds=3000
    ) as process:
        lines = [process.stdout.readline() for _ in range(4 + len(REAL))]
        rest_port = int(lines[0].split("/")[2].rpartition(":")[2])
        yield rest_port, int(lines[-1].rpartition(":")[2]), process


# === REST ===


def _value(generator: random.Random, depth: int = 0):
    """Any JSON value."""
    kind = generator.randrange(9 if depth < 4 else 7)
    if kind == 7:
        return [_value(generator, depth + 1) for _ in range(generator.randrange(4))]
    if kind == 8:
        keys = ["text", "numbers", "factor", "x", "b64", "inputs", "tag", "signal", "sensor", MARK]
        return {generator.choice(keys): _value(generator, depth + 1) for _ in range(generator.randrange(4))}
    return [
        generator.choice([0, 1, -1, 2**31, 2**63, 2**64, -(2**200), 99]),
        generator.choice([0.5, -0.0, 1e300, 1e-320, float("nan"), float("inf")]),
        "".join(chr(generator.choice([0, 10, 34, 65, 0x20AC, 0xD800, 0x1F600, 0x10FFFF])) for _ in range(5)),
        MARK,
        generator.choice([True, False, None]),
        {"b64": generator.choice(["YQ==", "%", "", MARK])},
        [generator.randrange(200) for _ in range(generator.randrange(6))],
    ][kind]


def _document(generator: random.Random) -> bytes:
    verb_keys = generator.choice(
        [["instances"], ["inputs"], ["examples"], ["examples", "context"], ["instances", "inputs"], []]
    )
    document = {key: _value(generator) for key in verb_keys}
    if generator.random() < 0.7:
        document["signature_name"] = generator.choice(SIGNATURES)
    return json.dumps(document).encode()


def _good(generator: random.Random) -> bytes:
    bodies = [
        {"instances": ["ab", MARK]},
        {"instances": [{"numbers": [1, 2], "factor": 0.5}], "signature_name": "scale"},
        {"examples": [{"text": "abc"}], "signature_name": "classify"},
        {"inputs": [1.0, 2.0]},
        {"instances": [[1, 2], [3, 4]], "signature_name": "double"},
    ]
    return json.dumps(generator.choice(bodies)).encode()


def _mutated(generator: random.Random, data: bytes) -> bytes:
    data = bytearray(data)
    for _ in range(generator.randrange(1, 6)):
        place = generator.randrange(len(data) + 1)
        change = generator.randrange(3)
        if change == 0:
            data[place:place] = bytes(
                generator.choices(b'[]{}",:0123456789eE+-.\\u\x00\xff', k=generator.randrange(1, 4))
            )
        elif change == 1:
            del data[place : place + generator.randrange(1, 9)]
        elif place < len(data):
            data[place] = generator.randrange(256)
    return bytes(data)


def _deep(generator: random.Random) -> bytes:
    depth = generator.choice([50, 1000, 30_000, 200_000])
    opening, closing = generator.choice([("[", "]"), ('{"a":', "}"), ('[{"b64":', "}]")])
    whole = opening * depth + "1" + closing * depth
    return (b'{"instances": %s}' if generator.random() < 0.5 else b"%s") % whole.encode()


def _numbers(generator: random.Random) -> bytes:
    number = generator.choice(
        ["1e400", "-1e400", "9" * 5000, "9" * 4000, "1e-999999", "0" * 99 + "1", "1" + "0" * 400 + ".0", "0x1", "+1"]
    )
    name = generator.choice(["ratio", "scale", "double"])
    return f'{{"instances": [{number}, {{"numbers": [{number}]}}], "signature_name": "{name}"}}'.encode()


def _body(generator: random.Random) -> bytes:
    make = generator.choice(
        [_document, _document, _good, _deep, _numbers, lambda g: _mutated(g, _good(g)), lambda g: g.randbytes(99)]
    )
    return make(generator)


def _path(generator: random.Random) -> str:
    version = generator.choice(
        [
            "",
            "",
            "",
            "/versions/1",
            "/versions/" + "9" * generator.choice([1, 19, 30, 5000]),
            "/labels/no",
            "/versions/x",
        ]
    )
    name = generator.choice(NAMES).replace("\r\n", "%0d%0a").replace(" ", "%20")
    end = generator.choice(
        [":predict", ":predict", ":classify", ":regress", ":guess", "", "/metadata", ":predict?q=" + "z" * 99]
    )
    return f"/v1/models/{name}{version}{end}"


def _text(generator: random.Random, lengths: list[int]) -> str | dict:
    """Any text, or bytes of none; `lengths` are its possible numbers of words."""
    if generator.random() < 0.2:
        return {"b64": base64.b64encode(generator.randbytes(generator.randrange(300))).decode()}
    words = [
        "the",
        "cat",
        "ran",
        "\u0301",
        "\x00",
        "\u4eca\u5929",
        "\U0001f600",
        "x" * 300,
        MARK,
        "[MASK]",
        "\u0130\u03a3",
        " ",
    ]
    return " ".join(generator.choices(words, k=generator.choice(lengths)))


def _real(generator: random.Random) -> tuple[str, bytes]:
    """Path and body of a request that an exported model may well answer."""
    name = generator.choice(list(REAL))
    rows, width = generator.choice([1, 1, 2, 5, 200, 2000]), generator.randrange(9)
    if generator.random() < 0.6:
        lengths = [0, 1, 5, 40, 2000] if rows < 6 else [0, 1, 5]
        columns = {key: [_text(generator, lengths) for _ in range(min(rows, 5))] for key in REAL[name]}
        columns = {key: texts * (rows // len(texts)) for key, texts in columns.items()}
        return f"/v1/models/{name}:predict", json.dumps({"inputs": columns}).encode()
    rows = min(rows, 5)
    ids = [[generator.choice([0, 2, 3, 5, 9, -1, 10**6]) for _ in range(width)] for _ in range(rows)]
    segments = [[generator.choice([0, 0, 1, 7]) for _ in range(width)] for _ in range(rows)]
    inputs = {"token_ids": ids, "segment_ids": segments, "lengths": [generator.randrange(-1, width + 2)] * rows}
    return f"/v1/models/{name}:predict", json.dumps({"inputs": inputs, "signature_name": "token_ids"}).encode()


def _whole(generator: random.Random) -> tuple[bytes, bool]:
    """A request of sound HTTP; and whether an answer must come."""
    method = generator.choice(["POST"] * 9 + ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "FORGED"])
    path, body = (_path(generator), _body(generator)) if generator.random() < 0.7 else _real(generator)
    body = b"" if method in ("GET", "HEAD") else body
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Mark: FORGED\r\n"
    head += generator.choice(
        ["", "Connection: close\r\n", "Accept: */*\r\n" * 20, "Content-Encoding: gzip\r\n" * (generator.random() < 0.1)]
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, True


def _broken(generator: random.Random) -> tuple[bytes, bool]:
    """A request whose HTTP is wrong, or which ends too soon."""
    body = _good(generator)
    post = b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\n"
    kinds = [
        (generator.randbytes(generator.randrange(1, 400)), False),
        (_mutated(generator, post + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)), False),
        (post + b"Content-Length: %d\r\n\r\n%s" % (len(body) + 5, body), False),
        (post + b"Content-Length: -5\r\n\r\n", True),
        (post + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", True),
        (post + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n", True),
        (post + b"Content-Length: 99999999999999\r\n\r\n", True),
        (post + b"Content-Length: " + b"9" * 4000 + b"\r\n\r\n", True),
        (post + b"X: y\r\n" * 150 + b"\r\n", True),
        (post + b"X: " + b"z" * 70_000 + b"\r\n\r\n", True),
        (b"GET /" + b"z" * 70_000 + b" HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/9.9\r\n\r\n", True),
        (b"GET /v1/models/toy\r\n\r\n", True),
        (b"FORGED\r\n\r\n", True),
        (post[: generator.randrange(len(post))], False),
    ]
    return generator.choice(kinds)


def _answers(data: bytes, was_head: bool):
    """Status and document of each answer; fails on anything but HTTP and JSON."""
    answers = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head[:200]
        lines = head.decode("ascii").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1", lines[0]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        assert not any("FORGED" in line for line in lines), lines
        length = 0 if was_head else int(headers["Content-Length"])
        body, data = data[:length], data[length:]
        assert len(body) == length
        if was_head:
            document = None
        elif headers["Content-Type"] == "application/json":
            document = json.loads(body)
            assert b"\n" not in body
        else:
            assert int(status) == 200
            document = body
        answers.append((int(status), document))
    return answers


def _send(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        with contextlib.suppress(OSError):  # it was refused, and closed, before all of it was sent
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        pieces = []
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                pieces.append(piece)
        return b"".join(pieces)


def _try_rest(port: int, generator: random.Random) -> None:
    request, must_answer = _whole(generator) if generator.random() < 0.7 else _broken(generator)
    if generator.random() < 0.02:  # hangs up in the middle
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(request[: generator.randrange(len(request) + 1)])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    data = _send(port, request)
    answers = _answers(data, request.startswith(b"HEAD "))
    assert answers or not must_answer, request[:300]
    for status, document in answers:
        assert status in (200, 400, 403, 404, 413, 414, 415, 431, 501, 503, 504, 505), (status, document, request[:300])
        if status != 200 and document is not None:
            assert list(document) == ["error"] and isinstance(document["error"], str), document
            assert "Traceback" not in document["error"] and len(document["error"]) < 2000


def _try_oversized(port: int) -> None:
    """50 MB, of which the server wants 16 at most."""
    head = b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n"
    ((status, document),) = _answers(_send(port, head + b"[" * 50_000_000), False)
    assert status == 413 and "the limit is 16777216" in document["error"]


# === gRPC ===


def _message(generator: random.Random) -> bytes:
    request = half_plus.request([1.0, 2.0])
    request.model_spec.name = generator.choice(["half", "toy", "no", MARK])
    request.model_spec.signature_name = generator.choice(["", "double", "scale", "classify_x_to_y", MARK])
    for _ in range(generator.randrange(3)):
        tensor = tensor_pb2.TensorProto(dtype=generator.choice([0, 1, 3, 7, 9, 10, 14, 20, 21, 101, 9999]))
        for _ in range(generator.randrange(4)):
            tensor.tensor_shape.dim.add(size=generator.choice([0, 1, 2, -1, 2**20, 2**40, 2**62]))
        tensor.float_val.extend([1.0] * generator.randrange(3))
        tensor.string_val.extend([MARK.encode()] * generator.randrange(3))
        tensor.tensor_content = generator.randbytes(generator.choice([0, 0, 4, 8, 9]))
        request.inputs[generator.choice(["x", "text", "numbers", "inputs", MARK])].CopyFrom(tensor)
    data = request.SerializeToString()
    return data if generator.random() < 0.5 else _mutated(generator, data)


def _try_grpc(channel: grpc.Channel, generator: random.Random) -> None:
    methods = ["Predict", "Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata", "Forged"]
    method = f"/tensorflow.serving.PredictionService/{generator.choice(methods)}"
    if generator.random() < 0.2:
        method = f"/tensorflow.serving.ModelService/{generator.choice(['GetModelStatus', 'HandleReloadConfigRequest'])}"
    data = generator.randbytes(generator.randrange(200)) if generator.random() < 0.2 else _message(generator)
    try:
        channel.unary_unary(method)(data, timeout=60)
    except grpc.RpcError as error:
        allowed = "INVALID_ARGUMENT NOT_FOUND FAILED_PRECONDITION UNIMPLEMENTED PERMISSION_DENIED RESOURCE_EXHAUSTED"
        assert error.code().name in allowed.split(), (error, data)
        assert error.details() and "Traceback" not in error.details()


def _try_http2(port: int, generator: random.Random) -> None:
    """Bytes that are not HTTP/2, or only begin like it; whatever comes back, a hang-up most of all, is fine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
        connection.sendall(
            preface * generator.randrange(2) + generator.randbytes(generator.randrange(300)) + b"FORGED\n"
        )


# === The test ===


@contextlib.contextmanager
def _slow_clients(port: int):
    """A dozen clients that send a byte now and then and never come to an end."""
    stop = threading.Event()

    def drip(number):
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                head = b"POST /v1/models/toy:predict HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"FORGED" * 10_000
                for byte in head[: 20 if number % 2 else None]:
                    connection.sendall(bytes([byte]))
                    if stop.wait(0.05):
                        return

    threads = [threading.Thread(target=drip, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work(numbers: range, rest_port: int, grpc_port: int) -> int:
    generator = random.Random(1000 * SEED + numbers.start)
    done = 0
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        for number in numbers:
            if number % 500 == 0:
                _try_oversized(rest_port)
            elif generator.random() < 0.3:
                _try_grpc(channel, generator)
            elif generator.random() < 0.03:
                _try_http2(grpc_port, generator)
            else:
                _try_rest(rest_port, generator)
            done += 1
    return done


def _resident(process) -> int:
    with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _right_answers(rest_port: int, grpc_port: int) -> None:
    answer = _send(rest_port, toy_server.request({"instances": ["ab"], "signature_name": "echo"}))
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"predictions": ["ab"]}
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        data = half_plus.request([1.0]).SerializeToString()
        response = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(data, timeout=30)
    assert tf.constant(3.5).numpy().tobytes() in response


@pytest.mark.slow(keep=["batched"])
def test_hostile_clients(server):
    rest_port, grpc_port, process = server
    _right_answers(rest_port, grpc_port)
    held, count, start = [_resident(process)], COUNT // 2 // PARTS, time.monotonic()
    with _slow_clients(rest_port), concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for part in range(PARTS):
            numbers = range(part * count, (part + 1) * count)
            workers = [pool.submit(_work, numbers[worker::WORKERS], rest_port, grpc_port) for worker in range(WORKERS)]
            assert sum(worker.result() for worker in workers) == count
            held.append(_resident(process))
    rate = PARTS * count / (time.monotonic() - start)
    assert process.poll() is None
    _right_answers(rest_port, grpc_port)
    print(f"{PARTS * count} requests, {rate:.0f} a second, MB after each fifth: {[size >> 20 for size in held]}")
    assert held[-1] - held[0] < 600 * 2**20
    if COUNT >= 10_000:  # The first ones make threads and the allocator's arenas; what follows adds next to nothing.
        assert held[-1] - held[2] < 0.1 * held[2]
    process.terminate()
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")  # nothing at all was logged
