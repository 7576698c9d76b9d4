"""Keys: who is let in, over both protocols, and what needs none."""

import http.client
import json
import threading

import grpc
import pytest
import toy_server
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import get_model_status_pb2, model_service_pb2_grpc

from export.server.config_files import read_keys
from keras_bert.errors import InputError

KEYS = ("first-key", "second/key+=")


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    path.write_text("".join(f"{key}\n" for key in KEYS))
    base_path = toy_server.saved(tmp_path_factory.mktemp("models"))
    with toy_server.running(
        base_path,
        port=0,
        api_key=str(path),
        enable_grpc_healthcheck_service=True,
        rest_api_enable_cors_support=True,
    ) as running:
        yield running


def ask(server, method, path, authorization=None, body=None, **headers):
    """Status, headers and document or text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.rest.server_port, timeout=30)
    try:
        headers |= {"Authorization": authorization} if authorization else {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers["Content-Type"] == "application/json" and text
        return response.status, response.headers, json.loads(text) if is_json else text
    finally:
        connection.close()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Bearer "])
def test_each_key_is_let_in(server, key, scheme):
    body = json.dumps({"instances": ["ab"], "signature_name": "echo"})
    status, _, answer = ask(server, "POST", "/v1/models/toy:predict", f"{scheme} {key}", body)
    assert (status, answer) == (200, {"predictions": ["ab"]})


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer",
        "Bearer third",
        "Bearer first-ke",
        "Bearer first-key2",
        "Basic first-key",
        "first-key",
        "Bearer é",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/models/toy:predict"),
        ("POST", "/v1/embeddings"),
        ("POST", "/rerank"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/toy"),
        ("GET", "/metrics"),
        ("GET", "/models.json"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
    ],
)
def test_nobody_else_is(server, method, path, authorization):
    body = "x" * 100_000 if method == "POST" else None
    status, headers, answer = ask(server, method, path, authorization, body)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer KEY" in json.dumps(answer) and "first-key" not in json.dumps(answer)
    if path == "/v1/embeddings":
        assert answer["error"]["code"] == "invalid_api_key"


def test_a_client_that_asks_first_is_refused_before_it_sends_its_body(server):
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    answer = toy_server.exchange(server, head)
    assert answer.startswith(b"HTTP/1.1 401 ") and b"invalid_api_key" in answer


def test_a_call_without_a_key_that_sends_no_message_holds_no_thread(server):
    method = "/tensorflow.serving.ModelService/GetModelStatus"
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
        never = threading.Event()
        call = channel.stream_unary(method).future(iter(never.wait, True), timeout=30)
        with pytest.raises(grpc.RpcError) as refused:
            call.result(30)
        never.set()
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_health_the_page_and_preflights_need_no_key(server):
    assert ask(server, "GET", "/health")[0] == 200
    status, _, page = ask(server, "GET", "/?model=toy")
    assert status == 200 and "<html" in page
    for path in ("/v1/models/toy:predict", "/v1/embeddings", "/rerank", "/rerank?from=page", "/v2/rerank"):
        status, headers, _ = ask(server, "OPTIONS", path, Origin="https://example.com")
        assert status == 200 and "Authorization" in headers["Access-Control-Allow-Headers"]


def test_grpc_metadata_carry_the_key(server):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "toy"
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        for metadata in ((), (("authorization", "Bearer third"),), (("authorization", KEYS[0]),)):
            with pytest.raises(grpc.RpcError) as refused:
                stub.GetModelStatus(request, metadata=metadata, timeout=30)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        answer = stub.GetModelStatus(request, metadata=(("authorization", f"Bearer {KEYS[1]}"),), timeout=30)
        assert answer.model_version_status[0].version == 10
        checked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert checked.status == health_pb2.HealthCheckResponse.SERVING


def test_a_file_and_a_variable_hold_keys(tmp_path, monkeypatch):
    path = tmp_path / "keys.txt"
    path.write_text("\none\n two\r\n")
    monkeypatch.setenv("KEYS_OF_TEST", "three\nfour")
    assert read_keys(str(path)) == ["one", "two"]
    assert read_keys("env:KEYS_OF_TEST") == ["three", "four"]
    assert read_keys(None) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.txt", r"nowhere\.txt: cannot be read"),
        ("", "--api_key=: expected a key in each line, .* Found: no key"),
        ("empty.txt", r"--api_key=empty\.txt: expected a key in each line, of ASCII characters .* Found: no key"),
        ("wide.txt", r"--api_key=wide\.txt: expected a key in each line, .* Found: something else in line 1"),
        ("comment.txt", r"--api_key=comment\.txt: expected a key .* no comments. Found: something else in line 2"),
        ("hash.txt", "something else in line 1"),
        ("env:TWO_WORDS", r"--api_key=env:TWO_WORDS: expected a key .* Found: something else in line 1"),
        ("env:NO_SUCH_VARIABLE", r"--api_key=env:NO_SUCH_VARIABLE: expected a key"),
    ],
)
def test_wrong_sources_are_refused(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "wide.txt").write_text("schlüssel\n")
    (tmp_path / "comment.txt").write_text("one\n# of the search team\n")  # Else "search" would be a key.
    (tmp_path / "hash.txt").write_text("#one\n")
    monkeypatch.setenv("TWO_WORDS", "one, two")
    with pytest.raises(InputError, match=message):
        read_keys(source)
