"""The server's connections: broken requests, limits of size and time, what is logged, and the end."""

import concurrent.futures
import contextlib
import dataclasses
import gzip
import json
import queue
import socket
import struct
import threading
import time

import pytest
import toy_server

from export.server import rest_api, rest_server
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings

_HEAD = b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with toy_server.running(toy_server.saved(tmp_path_factory.mktemp("models"))) as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: abc\r\n", b"400"),
        (b"Content-Length: -1\r\n", b"400"),
        (b"Content-Length: 1\r\nContent-Length: 2\r\n", b"400"),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n", b"400"),
        (b"Content-Length: 2, 2\r\n", b"400"),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"400"),
        (b"Transfer-Encoding: gzip, chunked\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"400"),
        (b"Transfer-Encoding: chunked\xa0\r\n", b"400"),
        (b"Content-Length: 2\xa0\r\n", b"400"),
        (b"Host: localhost\r\n", b"400"),
        (b"Content-Encoding: br\r\n", b"415"),
        (b"Content-Length: 99999999999\r\nExpect: 100-continue\r\n", b"413"),
    ],
)
def test_unreadable_bodies_are_refused_in_json(server, headers, status):
    answer = toy_server.exchange(server, _HEAD + headers + b"\r\n")
    assert answer.split()[1] == status
    assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


_BODY = json.dumps({"instances": ["ab"], "signature_name": "echo"}).encode()
_SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "line",
    [
        b"Bad Header Line",
        b"Transfer-Encoding : chunked",
        b"X: a\rTransfer-Encoding: chunked",
        b"X: a\r\n folded: b",
        b"\tX: a",
        b"X: a\nY: b",
        b": no name",
        b"X\x00: a",
        b"X: a\x00b",
        b"X\xc3\xa4: a",
    ],
    ids=repr,
)
def test_a_defect_of_the_head_ends_the_connection_so_that_no_body_becomes_a_request(server, line):
    head = _HEAD + line
    answer = toy_server.exchange(server, head + b"\r\nContent-Length: %d\r\n\r\n%s" % (len(_SMUGGLED), _SMUGGLED))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert b"Connection: close\r\n" in answer
    assert "Malformed header in line" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    "line",
    [
        b"GET  /v1/models/toy HTTP/1.1",
        b"GET /v1/models/toy",
        b"GET /a b HTTP/1.1",
        b"get / HTTP/1.1",
        b"GET / HTTP/2.0",
    ],
)
def test_a_defect_of_the_request_line(server, line):
    answer = toy_server.exchange(server, line + b"\r\nHost: localhost\r\n\r\n" + _SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1


def test_a_head_has_a_limit(server):
    for lines in (b"X: a\r\n" * 200, b"X: %s\r\n" % (b"a" * 70_000)):
        answer = toy_server.exchange(server, b"GET /v1/models/toy HTTP/1.1\r\n" + lines + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")


def _post(coding: bytes, body: bytes) -> bytes:
    return _HEAD + b"%s\r\n\r\n%s" % (coding, body)


def _chunked(body: bytes, size: int = 7) -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;name=value\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nX-Sum: 1\r\n\r\n"


_GZIP = b"Content-Encoding: gzip\r\nContent-Length: %d"
_CHUNKED = b"Transfer-Encoding: chunked"


def test_bodies_in_chunks_and_compressed_ones_are_taken(server):
    packed = gzip.compress(_BODY)
    asked = [(_CHUNKED, _chunked(_BODY)), (_GZIP % len(packed), packed)]
    asked += [(b"Content-Encoding: gzip\r\n" + _CHUNKED, _chunked(packed))]
    # One connection: each body ends where the next request begins.
    answer = toy_server.exchange(server, b"".join(_post(*request) for request in asked))
    assert answer.count(b"HTTP/1.1 200 OK") == 3 and answer.count(b'{"predictions": ["ab"]}') == 3


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        (_CHUNKED, b"zz\r\n" + _SMUGGLED, b"400"),
        (_CHUNKED, b"2\r\nabc\r\n0\r\n\r\n" + _SMUGGLED, b"400"),
        (_CHUNKED, b"-1\r\n" + _SMUGGLED, b"400"),
        (_CHUNKED, b"2\nab\n0\n\n" + _SMUGGLED, b"400"),
        (_CHUNKED, b"0\r\nno trailer\r\n\r\n" + _SMUGGLED, b"400"),
        (_CHUNKED, b"200000\r\n" + b"a" * 0x200000 + b"\r\n0\r\n\r\n", b"413"),
        (_GZIP % 3, b"abc", b"400"),
        (_GZIP % 20, gzip.compress(_BODY)[:20], b"400"),
        (_GZIP % (len(gzip.compress(_BODY)) + 3), gzip.compress(_BODY) + b"abc", b"400"),
        (_GZIP % len(gzip.compress(b"a" * 5_000_000)), gzip.compress(b"a" * 5_000_000), b"413"),
    ],
    ids=["digits", "longer", "negative", "lf", "trailer", "large", "nonsense", "cut", "more", "bomb"],
)
def test_a_defect_of_chunks_or_compression_ends_the_connection(server, coding, body, status):
    answer = toy_server.exchange(server, _post(coding, body))
    assert answer.split()[1] == status and answer.count(b"HTTP/1.1") == 1
    assert b"Connection: close\r\n" in answer


def test_answers_are_compressed_for_clients_that_ask_for_it(server):
    body = json.dumps({"instances": ["ab" * 1000], "signature_name": "echo"}).encode()
    answers = {}
    for accepted in (b"gzip", b"deflate, gzip;q=0.5", b"gzip;q=0", b"identity"):
        asked = _post(b"Connection: close\r\nAccept-Encoding: %s\r\nContent-Length: %d" % (accepted, len(body)), body)
        head, _, answers[accepted] = toy_server.exchange(server, asked).partition(b"\r\n\r\n")
        assert (b"\r\nContent-Encoding: gzip" in head) == (b"gzip" in accepted and not accepted.endswith(b"q=0"))
    assert gzip.decompress(answers[b"gzip"]) == answers[b"identity"] == answers[b"gzip;q=0"]
    assert len(answers[b"gzip"]) < 200 < len(answers[b"identity"])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"evil.example", b"403"),
        (b"evil.example:8501", b"403"),
        (b"127.0.0.1.evil.example", b"403"),
        (b"localhost:8501", b"200"),
        (b"127.0.0.1:8501", b"200"),
        (b"[::1]:8501", b"200"),
        (b"[::1]", b"200"),
        (b"Model.Example:1", b"200"),
    ],
)
def test_a_server_on_this_machine_answers_to_its_own_names_only(server, monkeypatch, host, status):
    """A page on evil.example may make its name point here, and ask as if it were of this origin (DNS rebinding)."""
    monkeypatch.setattr(
        server.rest, "settings", dataclasses.replace(server.rest.settings, allowed_hosts=["model.example"])
    )
    answer = toy_server.exchange(server, b"GET /v1/models/toy HTTP/1.1\r\nHost: %s\r\n\r\n" % host)
    assert answer.split()[1] == status


def test_an_open_server_answers_to_every_name():
    assert ServerSettings(host="0.0.0.0").answers_to("evil.example")
    assert ServerSettings(allowed_hosts=["*"]).answers_to("evil.example")
    assert not ServerSettings(host="localhost").answers_to("evil.example")


def test_nonsense_instead_of_http_gets_a_json_error(server):
    answer = toy_server.exchange(server, b"nonsense and more of it\r\n\r\n")
    assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


def test_a_request_cut_short_leaves_the_server_alive(server):
    assert toy_server.exchange(server, _HEAD + b"Content-Length: 50\r\n\r\n{") == b""
    assert toy_server.ask(server, "GET", "/v1/models/toy")[0] == 200


def test_expect_100_continue_is_answered_before_the_body(server):
    with toy_server.connect(server, 60) as connection:
        body = b'{"instances": ["ab"], "signature_name": "echo"}'
        connection.sendall(_HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(body)
        answer = connection.makefile("rb")
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        while answer.readline().strip():
            pass
        assert answer.read(len(b'{"predictions": ["ab"]}')) == b'{"predictions": ["ab"]}'


def test_a_request_over_the_limit_is_refused(server):
    status, answer = toy_server.predict(server, {"instances": ["a" * 1_100_000]})
    assert status == 413
    assert "the limit is 1048576 (--max_request_megabytes)." in answer["error"]


def test_one_connection_serves_many_requests_and_each_answer_leaves_in_one_packet(server):
    """In two packets, the second would wait for the first's acknowledgement (Nagle): 40 ms on every call."""
    with toy_server.connect(server, 30) as connection:
        for number in range(20):
            connection.sendall(toy_server.request({"instances": [str(number)], "signature_name": "echo"}))
            head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert json.loads(body) == {"predictions": [str(number)]}


def test_concurrent_requests_get_their_own_answers(server):
    def client(name: str) -> list:
        texts = [f"{name}-{number}" for number in range(10)]
        return [toy_server.predict(server, {"instances": [text], "signature_name": "echo"}) for text in texts]

    names = [f"client{index}" for index in range(8)]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(client, names, timeout=120))
    assert answers == [[(200, {"predictions": [f"{name}-{number}"]}) for number in range(10)] for name in names]


def test_an_unexpected_failure_is_a_500_without_a_traceback(server, monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError("a secret\r\nFORGED detail")

    monkeypatch.setattr(ServedModel, "run", fail)
    status, answer = toy_server.predict(server, {"instances": ["a"]})
    assert (status, answer) == (500, {"error": "Internal error; the server's log has the details."})
    # The log has the stack, and the message, which may quote the client, on one line.
    assert "A request failed. ZeroDivisionError: 'a secret\\r\\nFORGED detail'" in caplog.text
    assert "in _predict" in caplog.text
    assert not any(line.startswith("FORGED") for line in caplog.text.splitlines())


# === What reaches the log ===


def test_a_connection_reset_by_the_client_is_no_news(server, capfd, caplog):
    for head in (b"", b"GET /v1/mod", toy_server.request({"instances": ["a"]})):
        with toy_server.connect(server, 60) as connection:
            connection.sendall(toy_server.request({"instances": ["a"], "signature_name": "echo"}))
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(head)
            # Closing sends a reset now instead of an orderly end.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    toy_server.until(lambda: not server.rest.open_connections)
    assert capfd.readouterr().err == ""
    assert caplog.text == ""


def test_any_other_failure_of_a_connection_is_logged(server, caplog):
    try:
        raise LookupError("one\nFORGED")
    except LookupError:
        server.rest.handle_error(None, None)
    assert "A connection failed. LookupError: 'one\\nFORGED'" in caplog.text


def test_what_a_client_sends_reaches_neither_stderr_nor_log(server, capfd, caplog):
    paths = ["/v1/models/a%0d%0aFORGED:predict", "/v1/models/toy%0aFORGED", "/%0aFORGED", "/v1/FORGED\r\nFORGED: 1"]
    requests = [f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode() for path in paths]
    requests += [toy_server.request({"instances": ["FORGED"], "signature_name": "a\r\nFORGED"})]
    requests += [toy_server.request({"inputs": {"\nFORGED": 1}}), b"FORGED\x1b[31m\r\nFORGED\r\n\r\n"]
    example = {"examples": [{"weight": 1.0, "\nFORGED": "\nFORGED"}], "signature_name": "classify"}
    requests += [toy_server.request(example).replace(b":predict", b":classify")]
    for request in requests:
        head, _, body = toy_server.exchange(server, request).partition(b"\r\n\r\n")
        assert head.split()[1].startswith(b"4")
        assert b"FORGED" not in head
        assert b"\n" not in body
    output = capfd.readouterr()
    assert "FORGED" not in output.out + output.err + caplog.text


# === Time ===


def _allow(monkeypatch, server, milliseconds: int) -> None:
    settings = dataclasses.replace(server.rest.settings, rest_api_timeout_in_ms=milliseconds)
    monkeypatch.setattr(server.rest, "settings", settings)


def test_a_body_that_comes_drop_by_drop_is_given_up(server, monkeypatch):
    """Every drop comes well within the time-out; all of them together do not."""
    head = _HEAD + b"Content-Length: 1000\r\n\r\n"
    _allow(monkeypatch, server, milliseconds=1000)
    with toy_server.connect(server, 0.05) as connection:
        connection.sendall(head)
        for count in range(1000):  # noqa: B007
            try:
                connection.sendall(b" ")
                if connection.recv(1000) == b"":
                    break
            except TimeoutError:
                continue  # still open
            except OSError:
                break
    assert count < 500
    assert toy_server.ask(server, "GET", "/v1/models/toy")[0] == 200


def test_a_refused_body_is_not_awaited_for_ever(server, monkeypatch):
    _allow(monkeypatch, server, milliseconds=500)
    with toy_server.connect(server, 60) as connection:
        connection.sendall(_HEAD + b"Content-Length: 1900000\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_clients_that_do_not_read_their_answers_hold_nothing_and_are_given_up(tmp_path):
    """Their answers are longer than a socket's buffers."""
    asked = toy_server.request({"instances": ["a" * 12_000_000], "signature_name": "echo"})
    settings = {"max_request_megabytes": 16, "rest_api_timeout_in_ms": 4000}
    with toy_server.running(toy_server.saved(tmp_path), **settings) as server, contextlib.ExitStack() as stack:
        server.rest.admission.max_bytes = 2 * rest_api.parsed_size(asked)
        for _ in range(4):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.rest.server_port))
            connection.sendall(asked)
            assert connection.recv(20).startswith(b"HTTP/1.1 200")
        assert b"\nbert_serve_body_bytes 0.0\n" in server.rest.routes.metrics.text()
        assert toy_server.predict(server, {"instances": ["ab"], "signature_name": "echo"})[0] == 200
        begun = time.monotonic()
        toy_server.until(lambda: not server.rest.open_connections)
        assert time.monotonic() - begun < 30  # A time-out for each piece would take a thousand times four seconds.


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A slow version, its server, `stop` to begin the shutdown, and the future of the shutdown's end."""
    model, stop, started = toy_server.SlowServable(), threading.Event(), queue.Queue()
    base_path = toy_server.empty_version(tmp_path)

    def serve() -> None:
        with toy_server.serving(model, base_path) as server:
            started.put(server)
            stop.wait(120)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def start(drain_seconds: float):
            monkeypatch.setattr(rest_server, "DRAIN_SECONDS", drain_seconds)
            ended = pool.submit(serve)
            return model, started.get(timeout=30), stop, ended

        yield start
        stop.set()
        model.allowed.set()


def test_requests_in_progress_are_answered_after_shutdown_began(slow):
    model, server, stop, ended = slow(drain_seconds=60)
    with toy_server.connect(server) as idle, toy_server.connect(server) as busy:
        idle.sendall(b"GET /v1/models/toy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        busy.sendall(toy_server.request({"instances": ["late"]}))
        assert model.asked.wait(30)
        stop.set()
        toy_server.until(lambda: server.is_draining)
        assert idle.recv(1000) == b""  # an open connection without a request is closed at once
        with pytest.raises(OSError):
            toy_server.connect(server)
        assert not ended.done()
        model.allowed.set()
        head, _, body = toy_server.received(busy).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"Connection: close" in head
    assert json.loads(body) == {"predictions": ["late"]}
    ended.result(30)


def test_a_request_that_outlasts_the_shutdown_is_given_up_and_told(slow, caplog):
    model, server, stop, ended = slow(drain_seconds=0.1)
    with toy_server.connect(server) as busy:
        busy.sendall(toy_server.request({"instances": ["late"]}))
        assert model.asked.wait(30)
        stop.set()
        ended.result(30)
    assert "without an answer to 1 connection(s): not finished within 0.1 seconds" in caplog.text
