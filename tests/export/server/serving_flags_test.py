"""Flags of TensorFlow Serving: what they do here, and which are ignored."""

import http.client
import os
import shutil
import subprocess
import threading

import grpc
import half_plus
import numpy as np
import pytest
import tensorflow as tf
import toy_server
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import proto_reflection_descriptor_database, reflection_pb2, reflection_pb2_grpc
from tensorflow_serving.apis import get_model_status_pb2, model_service_pb2_grpc, prediction_service_pb2_grpc

from export.server import servable
from export.server.admission import Admission
from export.server.config_files import ModelSettings
from export.server.grpc_messages import to_tensor
from export.server.grpc_server import GrpcServer
from export.server.model_manager import ModelManager
from export.server.monitoring import Metrics
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from keras_bert.errors import InputError


@pytest.fixture(scope="module", name="base_path")
def _base_path(tmp_path_factory):
    base_path = str(tmp_path_factory.mktemp("models") / "half")
    half_plus.save(base_path, 1)
    return base_path


@pytest.fixture(scope="module", name="socket_path")
def _socket_path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("s") / "grpc.sock")


@pytest.fixture(scope="module", name="server")
def _server(base_path, socket_path, tmp_path_factory):
    monitoring = tmp_path_factory.mktemp("settings") / "monitoring.config"
    monitoring.write_text('prometheus_config { enable: true, path: "/figures" }')
    with toy_server.running(
        base_path,
        name="half",
        port=0,
        grpc_socket_path=socket_path,
        grpc_channel_arguments=["grpc.max_receive_message_length=100000", "grpc.lb_policy_name=grpclb"],
        enable_grpc_healthcheck_service=True,
        enable_serialization_as_tensor_content=True,
        rest_api_enable_cors_support=True,
        monitoring_config_file=str(monitoring),
        tensorflow_session_parallelism=2,
        tensorflow_inter_op_parallelism=1,
    ) as running:
        yield running


@pytest.fixture(name="channel")
def _channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
        yield channel


def _response(server, method: str, path: str, headers: dict | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.rest.server_port, timeout=30)
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def test_a_unix_socket(server, socket_path):
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        tensor = stub.Predict(half_plus.request([1.0]), timeout=30).outputs["y"]
    assert np.frombuffer(tensor.tensor_content, np.float32) == [3.5] and not tensor.float_val


def test_without_polls_a_version_that_a_reload_ended_is_closed_after_its_last_request(base_path, tmp_path, monkeypatch):
    closed, settings = threading.Event(), ModelSettings("half", str(tmp_path / "half"))
    shutil.copytree(base_path, settings.base_path)
    monkeypatch.setattr(servable.Servable, "close", lambda _: closed.set())
    with toy_server.running(settings.base_path, name="half", file_system_poll_wait_seconds=0.0) as server:
        with server.manager.use("half"):
            shutil.copytree(f"{settings.base_path}/1", f"{settings.base_path}/2")
            server.manager.apply([settings])
            assert not closed.is_set()
        assert closed.wait(30)


def test_the_last_server_that_gets_a_unix_socket_answers(server, tmp_path_factory):
    """As in TensorFlow Serving, whose own tests start servers on the socket of one that still runs."""
    path = str(tmp_path_factory.mktemp("s") / "grpc.sock")
    rest, settings = (
        server.rest,
        ServerSettings(port=-1, grpc_socket_path=path, enable_serialization_as_tensor_content=True),
    )
    arguments = (server.manager, rest.routes.metrics, rest.admission, settings)
    servers = [GrpcServer(*arguments), GrpcServer(*arguments)]
    servers[-1].start()
    test_a_unix_socket(server, path)
    for number in (1, 0):
        servers[number].wait()


def test_bodies_may_be_larger_than_grpc_takes(server):
    rest, settings = server.rest, ServerSettings(port=0, max_request_megabytes=2048)
    assert GrpcServer(server.manager, rest.routes.metrics, rest.admission, settings).port


def test_arguments_of_the_channel_outweigh_our_own(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(half_plus.request([1.0] * 30_000), timeout=30)
    assert "100000" in caught.value.details()


@pytest.mark.parametrize("service", ["", "PredictionService", "ModelService"])
def test_health(channel, service):
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
    assert answer.status == answer.SERVING


def test_clients_are_told_the_services_and_their_messages(channel):
    database = proto_reflection_descriptor_database.ProtoReflectionDescriptorDatabase(channel)
    assert {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"} < set(database.get_services())
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName("tensorflow.serving.PredictionService")
    assert service.methods_by_name["Classify"].output_type.full_name == "tensorflow.serving.ClassificationResponse"
    reload = pool.FindServiceByName("tensorflow.serving.ModelService").methods_by_name["HandleReloadConfigRequest"]
    assert reload.input_type.full_name == "tensorflow.serving.ReloadConfigRequest"


def test_clients_that_only_open_streams_hold_no_thread_that_others_need(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    ended = threading.Event()

    def asks_once_and_waits():
        yield ask
        ended.wait(60)

    streams = [stub.ServerReflectionInfo(asks_once_and_waits()) for _ in range(30)]
    answers = []
    for stream in streams:
        try:
            answers.append(next(stream).WhichOneof("message_response"))
        except grpc.RpcError as error:
            answers.append(error.code().name)
    ended.set()
    assert answers.count("RESOURCE_EXHAUSTED") == 26 and answers.count("list_services_response") == 4
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "half"
    assert model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, timeout=30).model_version_status


def test_pages_of_other_origins(server):
    allowed = {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Methods": "POST, GET",
        "Access-Control-Allow-Headers": "Authorization, Content-Type",
    }
    for method, headers, status in (
        ("OPTIONS", {"Origin": "https://a.example"}, 200),
        ("OPTIONS", {}, 400),
        ("GET", {"Origin": "https://a.example"}, 200),
    ):
        response = _response(server, method, "/v1/models/half", headers)
        assert response.status == status
        assert allowed.items() <= dict(response.getheaders()).items()


@pytest.mark.parametrize(
    ("asked", "is_allowed"),
    [
        ("authorization,content-type,x-stainless-os, x-stainless-retry-count", True),
        ("x-" + "a" * 998, True),
        ("x-" + "a" * 999, False),
        ("", False),
        ("x-a: b", False),
        ("x-é", False),
        ("x-a\tx-b", False),
    ],
)
def test_pages_of_other_origins_may_send_the_headers_they_ask_for(server, asked, is_allowed):
    headers = {"Origin": "https://a.example", "Access-Control-Request-Headers": asked.encode("latin-1")}
    response = _response(server, "OPTIONS", "/v1/embeddings", headers)
    allowed = asked if is_allowed else "Authorization, Content-Type"
    assert (response.status, response.getheader("Access-Control-Allow-Headers")) == (200, allowed)
    assert response.msg.get_all("Access-Control-Allow-Origin") == ["*"]


def test_metrics_are_where_the_configuration_says(server):
    statuses = {path: _response(server, "GET", path).status for path in ("/figures", "/metrics")}
    assert statuses == {"/figures": 200, "/metrics": 404}


def test_threads_of_the_session(server):
    with server.manager.use("half") as served:
        config = served.model._session._config
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (2, 1)


def test_operations_have_the_threads_that_a_container_allows(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for cores, flag, threads in ((4, 0, 4), (64, 0, 0), (4, 2, 2)):
        monkeypatch.setattr(servable, "available_cores", lambda cores=cores: cores)
        config = servable._session_config(ServerSettings(tensorflow_intra_op_parallelism=flag))
        assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (threads, 0)


def test_tags_choose_the_graph(tmp_path):
    directory = str(tmp_path / "1")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        signature = tf.compat.v1.saved_model.predict_signature_def({"x": x}, {"y": x + 1.0})
        builder = tf.compat.v1.saved_model.Builder(directory)
        builder.add_meta_graph_and_variables(session, ["serve", "fast"], {"serving_default": signature})
        builder.save()
    model = ServedModel(directory, "m", 1, ServerSettings(saved_model_tags=["serve", "fast"]))
    np.testing.assert_array_equal(model.run("serving_default", {"x": np.float32([1.0])})["y"], [2.0])
    with pytest.raises(InputError, match="cannot be loaded as a SavedModel"):
        ServedModel(directory, "m", 1, ServerSettings())


@pytest.mark.parametrize(
    ("dtype", "field"),
    [("half", "half_val"), ("bfloat16", "half_val"), ("complex64", "scomplex_val"), ("complex128", "dcomplex_val")],
)
def test_every_type_has_its_field(dtype, field):
    values = tf.cast([[0.5, -2.0, 3.0]], dtype)
    for array in (values.numpy(), tf.transpose(values).numpy()):
        tensor = to_tensor(array)
        assert getattr(tensor, field) and not tensor.tensor_content
        np.testing.assert_array_equal(tf.make_ndarray(tensor), array)


def test_certificates(tmp_path):
    key, certificate, path = (str(tmp_path / name) for name in ("key", "certificate", "ssl.config"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the program openssl")
    texts = {name: tmp_path.joinpath(name).read_text() for name in ("key", "certificate")}
    lines = {"server_key": texts["key"], "server_cert": texts["certificate"]}
    tmp_path.joinpath("ssl.config").write_text("\n".join(f"{name}: {ascii(text)}" for name, text in lines.items()))
    metrics = Metrics()
    arguments = (ModelManager(lambda *_: None, ServerSettings()), metrics, Admission(10, 1 << 20, metrics))
    server = GrpcServer(*arguments, ServerSettings(port=0, ssl_config_file=path))
    server.start()
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "nope"
    for content in ({**lines, "server_key": key}, {"server_key": texts["key"]}, {**lines, "client_verify": True}):
        named = tmp_path / "wrong.config"
        named.write_text("\n".join(f"{k}: {'true' if v is True else ascii(v)}" for k, v in content.items()))
        with pytest.raises(InputError, match=r"wrong\.config: expected server_key, .* to hold the text of PEM files"):
            GrpcServer(*arguments, ServerSettings(port=0, ssl_config_file=str(named)))
    try:
        credentials = grpc.ssl_channel_credentials(texts["certificate"].encode())
        for channel, code in (
            (grpc.secure_channel(f"localhost:{server.port}", credentials), "NOT_FOUND"),
            (grpc.insecure_channel(f"localhost:{server.port}"), "UNAVAILABLE"),
        ):
            with channel, pytest.raises(grpc.RpcError) as caught:
                model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, timeout=30)
            assert caught.value.code().name == code
    finally:
        server.stop()
        server.wait()


def test_other_flags_are_named_and_ignored(tmp_path):
    flags = ["--flush_filesystem_caches=true", "--num_load_threads", "4", f"--model_base_path={tmp_path}/no"]
    with toy_server.run_command("-m", "export.local_server", *flags) as process:
        _, errors = process.communicate(timeout=60)
    ignored, error = errors.splitlines()
    assert ignored.endswith("ignoring unknown flags: --flush_filesystem_caches=true --num_load_threads 4")
    assert f"{tmp_path}/no: no such directory" in error and process.returncode == 1
