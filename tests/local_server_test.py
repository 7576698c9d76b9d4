"""bert-serve against TensorFlow Serving's REST API: each verb, both formats, every error, over real sockets."""

import base64
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from export import rest_api, rest_server
from keras_bert.errors import InputError

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _save_toy_model(base: str, versions: tuple[int, ...]) -> None:
    """Signatures of every kind that the REST rules tell apart: one input or two, one output or two, examples."""
    text = tf.TensorSpec([None], tf.string, name="text")
    numbers = tf.TensorSpec([None, 2], tf.int32, name="numbers")
    factor = tf.TensorSpec([None], tf.float32, name="factor")

    @tf.function(input_signature=[text])
    def length(text):
        return {"label": tf.strings.upper(text), "score": tf.cast(tf.strings.length(text), tf.float32) / 10.0}

    @tf.function(input_signature=[text])
    def echo(text):
        return {"echo": text}

    @tf.function(input_signature=[text])
    def echo_bytes(text):
        return {"echo_bytes": text}

    @tf.function(input_signature=[numbers, factor])
    def scale(numbers, factor):
        with tf.control_dependencies([tf.debugging.assert_less(numbers, 100, message="number too large")]):
            return {"scaled": tf.cast(numbers, tf.float32) * factor[:, tf.newaxis]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def ratio(x):
        return {"y": 1.0 / x}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def classify(inputs):
        features = {"text": tf.io.FixedLenFeature([], tf.string), "weight": tf.io.FixedLenFeature([], tf.float32, 1.0)}
        parsed = tf.io.parse_example(inputs, features)
        scores = tf.stack([parsed["weight"], tf.cast(tf.strings.length(parsed["text"]), tf.float32)], axis=1)
        return {"classes": tf.tile([["weight", "length"]], [tf.size(inputs), 1]), "scores": scores}

    @tf.function(input_signature=[text])
    def total(text):
        return {"total": tf.size(text)}

    signatures = {"serving_default": length, "echo": echo, "echo_bytes": echo_bytes, "scale": scale, "ratio": ratio}
    for version in versions:
        module = tf.Module()
        all_signatures = signatures | {"classify": classify, "total": total}
        tf.saved_model.save(module, os.path.join(base, str(version)), signatures=all_signatures)


@pytest.fixture(scope="module")
def base_path(tmp_path_factory) -> str:
    base = str(tmp_path_factory.mktemp("models") / "toy")
    _save_toy_model(base, (2, 10))
    os.makedirs(os.path.join(base, "notes"))
    os.makedirs(os.path.join(base, "11"))  # no saved_model.pb: a half-copied version is not served
    return base


@pytest.fixture(scope="module")
def server(base_path):
    version = rest_server.newest_version(base_path)
    model = rest_server.ServedModel(os.path.join(base_path, str(version)), "toy", version)
    with rest_server.running(rest_server.open_server(model, "127.0.0.1", 0, max_request_bytes=200_000)) as running:
        yield running


def _ask(server, method: str, path: str, body=None) -> tuple[int, object]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        raw = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
        connection.request(method, path, raw)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def _predict(server, body) -> tuple[int, object]:
    return _ask(server, "POST", "/v1/models/toy:predict", body)


def test_the_highest_version_is_served(server):
    status, answer = _ask(server, "GET", "/v1/models/toy")
    available = {"version": "10", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert (status, answer) == (200, {"model_version_status": [available]})
    assert _ask(server, "GET", "/v1/models/toy/versions/10")[1] == answer


def test_metadata_lists_the_signatures(server):
    status, answer = _ask(server, "GET", "/v1/models/toy/versions/10/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "toy", "signature_name": "", "version": "10"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["scale"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    numbers = signature["inputs"]["numbers"]
    assert numbers["dtype"] == "DT_INT32"
    assert numbers["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}],
        "unknown_rank": False,
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Row format, several outputs: objects. One output: a bare list. The same by name.
        ({"instances": ["ab", ""]}, {"predictions": [{"label": "AB", "score": 0.2}, {"label": "", "score": 0.0}]}),
        ({"instances": [{"text": "ab"}]}, {"predictions": [{"label": "AB", "score": 0.2}]}),
        ({"instances": ["é", ""], "signature_name": "echo"}, {"predictions": ["é", ""]}),
        ({"instances": [{"b64": "YWI="}], "signature_name": "echo"}, {"predictions": ["ab"]}),
        ({"instances": [{"text": {"b64": "YWI="}}], "signature_name": "echo"}, {"predictions": ["ab"]}),
        # Column format.
        ({"inputs": ["ab", "xyz"]}, {"outputs": {"label": ["AB", "XYZ"], "score": [0.2, 0.3]}}),
        ({"inputs": {"text": ["ab"]}, "signature_name": "echo"}, {"outputs": ["ab"]}),
        ({"inputs": {"text": [{"b64": "YWI="}]}, "signature_name": "echo"}, {"outputs": ["ab"]}),
        ({"inputs": [], "signature_name": "echo"}, {"outputs": []}),
        ({"inputs": ["a", "b"], "signature_name": "total"}, {"outputs": 2}),
        # Bytes that are not text leave as base64; an output named *_bytes always does.
        ({"instances": [{"b64": "//4="}], "signature_name": "echo"}, {"predictions": [{"b64": "//4="}]}),
        ({"instances": ["ab"], "signature_name": "echo_bytes"}, {"predictions": [{"b64": "YWI="}]}),
        # Several inputs, other types.
        (
            {"instances": [{"numbers": [1, 2], "factor": 0.1}], "signature_name": "scale"},
            {"predictions": [[0.1, 0.2]]},
        ),
        (
            {"inputs": {"numbers": [[1, 2], [3, 4]], "factor": [1, 10]}, "signature_name": "scale"},
            {"outputs": [[1.0, 2.0], [30.0, 40.0]]},
        ),
    ],
)
def test_predict(server, body, expected):
    assert _predict(server, body) == (200, expected)
    assert _ask(server, "POST", "/v1/models/toy/versions/10:predict", body) == (200, expected)


def test_infinity_is_written_as_tensorflow_serving_does(server):
    status, answer = _predict(server, {"instances": [0.0, -0.0], "signature_name": "ratio"})
    assert (status, answer["predictions"]) == (200, [math.inf, -math.inf])


def test_classify_takes_examples_with_a_common_context(server):
    body = {
        "signature_name": "classify",
        "context": {"weight": 2.5},
        "examples": [{"text": "abc"}, {"text": [{"b64": "YQ=="}], "weight": [0.5]}],
    }
    expected = {"results": [[["weight", 2.5], ["length", 3.0]], [["weight", 0.5], ["length", 1.0]]]}
    assert _ask(server, "POST", "/v1/models/toy:classify", body) == (200, expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"examples": [{"text": "abc"}]}, "Expected a classification signature"),
        ({"signature_name": "classify", "examples": []}, "non-empty list under the key 'examples'"),
        ({"signature_name": "classify"}, "non-empty list under the key 'examples'"),
        ({"signature_name": "classify", "examples": ["abc"]}, "examples[0]: expected an object"),
        ({"signature_name": "classify", "examples": [{"text": ["a", 1]}]}, "['text']: expected strings only"),
        ({"signature_name": "classify", "examples": [{"text": 2**70}]}, "examples[0]['text']"),
        (
            {"signature_name": "classify", "examples": [{"weight": 1.0}]},
            "Feature: text (data type: string) is",
        ),
        ({"signature_name": "classify", "context": 1, "examples": [{"text": "a"}]}, "context: expected an object"),
    ],
)
def test_classify_errors(server, body, message):
    status, answer = _ask(server, "POST", "/v1/models/toy:classify", body)
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request body is empty"),
        (b"{", "JSON parse error"),
        (b"\xff\xfe", "JSON parse error"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "JSON parse error"),
        ([1], "JSON object at the top"),
        ({}, "exactly one of the keys"),
        ({"instances": ["a"], "inputs": ["a"]}, "exactly one of the keys"),
        ({"instances": []}, "No values in the 'instances' list"),
        ({"instances": "a"}, "'instances' to be a list"),
        ({"instances": ["a"], "signature_name": 3}, "'signature_name' to be a string"),
        ({"instances": ["a"], "signature_name": "nope"}, "'nope' not found in signature def"),
        ({"instances": [{"texts": "a"}]}, "instances[0]: expected exactly the keys ['text']"),
        ({"instances": [{"text": "a", "more": 1}]}, "instances[0]: expected exactly the keys ['text']"),
        ({"instances": [{"text": "a"}, "a"]}, "instances[1]: the list mixes"),
        ({"instances": ["a", {"text": "a"}]}, "instances[1]: the list mixes"),
        ({"instances": ["a", 3]}, "instances[1]: expected a string"),
        ({"instances": ["a", None]}, "instances[1]: expected a string"),
        ({"instances": ["a", ["b"]]}, "instances[1]: lists of different depth"),
        ({"instances": [["a"]]}, "expected shape (None,). Received: (1, 1)"),
        ({"instances": [{"b64": "%%"}]}, "instances[0]: not valid base64"),
        (b'{"instances": ["\\ud800"]}', "half a surrogate pair"),
        ({"inputs": {"txt": ["a"]}}, "Missing ['text'] in 'inputs'"),
        ({"inputs": "a"}, "expected shape (None,). Received: ()"),
        ({"inputs": ["a", 1]}, "inputs['text'][1]: expected a string"),
        ({"inputs": ["a"], "signature_name": "scale"}, "'inputs' to be an object with the keys ['factor', 'numbers']"),
        ({"instances": [1], "signature_name": "scale"}, "each instance to be an object"),
        (
            {"instances": [{"numbers": [1, 2], "factor": 1}, {"numbers": [1], "factor": 1}], "signature_name": "scale"},
            "instances[1]['numbers']: lists of different length. Expected 2. Received: 1",
        ),
        (
            {"instances": [{"numbers": [1, 2.5], "factor": 1}], "signature_name": "scale"},
            "instances[0]['numbers'][1]: expected an integer of type int32",
        ),
        (
            {"instances": [{"numbers": [1, 2**31], "factor": 1}], "signature_name": "scale"},
            "instances[0]['numbers'][1]: expected an integer of type int32",
        ),
        (
            {"instances": [{"numbers": [1, True], "factor": 1}], "signature_name": "scale"},
            "instances[0]['numbers'][1]: expected an integer of type int32",
        ),
        (
            {"instances": [{"numbers": [1, 2], "factor": 2**24}], "signature_name": "scale"},
            "instances[0]['factor']: the number does not fit float32 without loss",
        ),
        ({"instances": [{"numbers": [1, 100], "factor": 1}], "signature_name": "scale"}, "number too large"),
        ({"instances": ["a"], "signature_name": "total"}, "no common batch dimension"),
    ],
)
def test_predict_errors(server, body, message):
    status, answer = _predict(server, body)
    assert status == 400
    assert list(answer) == ["error"]
    assert message in answer["error"]
    assert "Traceback" not in answer["error"]
    assert len(answer["error"]) < 1000


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/v1/models/nope:predict", 404, "Servable not found for request: Latest(nope)"),
        ("POST", "/v1/models/toy/versions/2:predict", 404, "Specific(toy, 2)"),
        ("POST", "/v1/models/toy/versions/" + "1" * 5000 + ":predict", 404, "Specific(toy, 111"),
        ("GET", "/v1/models/nope", 404, "Latest(nope)"),
        ("GET", "/v1/models/nope/metadata", 404, "Latest(nope)"),
        ("GET", "/v1/models/toy/versions/2", 404, "Specific(toy, 2)"),
        ("POST", "/v1/models/toy:guess", 400, "Malformed request: POST /v1/models/toy:guess"),
        ("GET", "/v1/models/toy:predict", 400, "Malformed request: GET"),
        ("POST", "/v1/models/toy:regress", 501, ":regress"),
        ("GET", "/", 404, "/v1/models/toy"),
        ("PUT", "/v1/models/toy:predict", 501, "Unsupported method"),
    ],
)
def test_wrong_addresses(server, method, path, status, message):
    answer = _ask(server, method, path, {"instances": ["a"]} if method == "POST" else None)
    assert answer[0] == status
    assert message in answer[1]["error"]


def _raw(server, request: bytes) -> bytes:
    """Everything that the server sends back until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        pieces = []
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: abc\r\n", b"400"),
        (b"Content-Length: -1\r\n", b"400"),
        (b"Content-Length: 1\r\nContent-Length: 2\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\n", b"411"),
        (b"Content-Length: 99999999999\r\nExpect: 100-continue\r\n", b"413"),
    ],
)
def test_unreadable_bodies_are_refused_in_json(server, headers, status):
    answer = _raw(server, b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
    assert answer.split()[1] == status
    assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


def test_nonsense_instead_of_http_gets_a_json_error(server):
    answer = _raw(server, b"nonsense and more of it\r\n\r\n")
    assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


def test_a_request_cut_short_leaves_the_server_alive(server):
    assert _raw(server, b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{") == b""
    assert _ask(server, "GET", "/v1/models/toy")[0] == 200


def test_expect_100_continue_is_answered_before_the_body(server):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        body = b'{"instances": ["ab"], "signature_name": "echo"}'
        head = b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(body)
        answer = connection.makefile("rb")
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        while answer.readline().strip():
            pass
        assert answer.read(len(b'{"predictions": ["ab"]}')) == b'{"predictions": ["ab"]}'


def test_a_request_over_the_limit_is_refused(server):
    status, answer = _predict(server, {"instances": ["a" * 300_000]})
    assert status == 413
    assert "the limit is 200000" in answer["error"]


def test_one_connection_serves_many_requests_without_delay(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    times = []
    for number in range(20):
        start = time.perf_counter()
        connection.request("POST", "/v1/models/toy:predict", json.dumps({"instances": [str(number)]}))
        answer = json.loads(connection.getresponse().read())
        times.append(time.perf_counter() - start)
        assert answer["predictions"][0]["label"] == str(number)
    connection.close()
    # Nagle's algorithm against delayed acknowledgement costs 40 ms or more on every call.
    assert np.median(times) < 0.03


def test_concurrent_requests_get_their_own_answers(server):
    wrong = []

    def client(name: str) -> None:
        for number in range(10):
            text = f"{name}-{number}"
            if _predict(server, {"instances": [text], "signature_name": "echo"}) != (200, {"predictions": [text]}):
                wrong.append(text)

    threads = [threading.Thread(target=client, args=(f"client{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_an_unexpected_failure_is_a_500_without_a_traceback(server, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr(server.model, "predict", fail)
    status, answer = _predict(server, {"instances": ["a"]})
    assert (status, answer) == (500, {"error": "Internal error; the server's log has the details."})


def test_base_path_errors_name_the_path(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such directory"):
        rest_server.newest_version(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="no version found"):
        rest_server.newest_version(str(tmp_path))


def test_a_taken_port_is_a_clear_error(server):
    with pytest.raises(InputError, match=f"Cannot listen on 127.0.0.1:{server.server_port}"):
        rest_server.open_server(server.model, "127.0.0.1", server.server_port, 1000)


def test_float32_values_are_written_short_and_exact():
    values = np.array([[0.2, 1e-30], [16777216.0, 0.1]], dtype=np.float32)
    written = json.loads(rest_api.dump(rest_api.to_json(values)))
    assert written[0][0] == 0.2
    np.testing.assert_array_equal(np.array(written, dtype=np.float32), values)


def test_base64_round_trip_of_all_bytes(server):
    every_byte = base64.b64encode(bytes(range(256))).decode()
    body = {"instances": [{"b64": every_byte}], "signature_name": "echo_bytes"}
    assert _predict(server, body) == (200, {"predictions": [{"b64": every_byte}]})


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_one_line_serves_and_ends_on_a_signal(base_path, stop_signal):
    command = [sys.executable, "-m", "export.local_server", f"--model_base_path={base_path}", "--rest_api_port=0"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().strip()
        start, _, address = line.rpartition(" ")
        assert start == "Serving toy (version 10) at"
        assert address.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
        connection.request("POST", "/v1/models/toy:predict", '{"instances": ["ab"], "signature_name": "echo"}')
        assert json.loads(connection.getresponse().read()) == {"predictions": ["ab"]}
        process.send_signal(stop_signal)
        rest, errors = process.communicate(timeout=30)
        connection.close()
        assert (process.returncode, rest) == (0, ""), errors
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()
