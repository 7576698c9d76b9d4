"""A server under load: new versions lose no request, limits refuse what is too much, SIGTERM answers what was asked."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import threading
import time
import urllib.request

import grpc
import half_plus
import numpy as np
import pytest
import tensorflow as tf
import toy_server
from tensorflow_serving.apis import prediction_service_pb2_grpc

from export.base_path import WARMUP_FILE
from export.server import assembly, model_manager
from export.server.admission import Admission
from export.server.assembly import running_server
from export.server.config_files import BatchingParameters, ModelSettings, read_model_config
from export.server.monitoring import Metrics
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError
from keras_bert.errors import InputError

pytestmark = pytest.mark.usefixtures("small_heap")
SETTINGS = ServerSettings(rest_api_port=0, port=0, file_system_poll_wait_seconds=0.05)


@contextlib.contextmanager
def load_of(server, num_clients=6):
    """Clients of both protocols that ask all the time; gives the list of their answers `(version, value, expected)`."""
    answers, stop = [], threading.Event()

    def by_rest(client):
        for number in itertools.count():
            if stop.is_set():
                return
            value = float(client * 1000 + number)
            status, answer = toy_server.ask(server, "POST", "/v1/models/half:predict", {"instances": [value]})
            answers.append((status == 200 and answer["predictions"][0] - value / 2, number))

    def by_grpc(client):
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            for number in itertools.count():
                if stop.is_set():
                    return
                value = float(client * 1000 + number)
                response = stub.Predict(half_plus.request([value]), timeout=30)
                answers.append((response.outputs["y"].float_val[0] - value / 2, number))

    with concurrent.futures.ThreadPoolExecutor(num_clients) as pool:
        clients = [pool.submit((by_rest, by_grpc)[client % 2], client) for client in range(num_clients)]
        try:
            yield answers
        finally:
            stop.set()
            for client in clients:
                client.result(60)


@pytest.mark.slow(keep=["batching1"])
@pytest.mark.parametrize("batching", [None, BatchingParameters(max_batch_size=8, batch_timeout_micros=500)])
def test_new_versions_lose_no_request(tmp_path, batching):
    base_path = str(tmp_path / "half")
    half_plus.save(base_path, 1, 1.0)
    with running_server([ModelSettings("half", base_path)], SETTINGS, batching) as server:
        with load_of(server) as answers:
            for version in (2, 3):
                half_plus.save(base_path, version, float(version))
                toy_server.until(
                    lambda version=version: (
                        server.served() == [("half", version)] and server.manager.status("half")[1].state == "END"
                    )
                )
                count = len(answers)
                toy_server.until(lambda count=count: len(answers) > count + 100)
    added = [added for added, _ in answers]
    assert set(added) == {1.0, 2.0, 3.0}  # every answer is right, and one of the versions'
    assert added[-1] == 3.0


def test_a_version_that_fails_its_warm_up_is_not_served(tmp_path, caplog):
    base_path = str(tmp_path / "half")
    half_plus.save(base_path, 1, 1.0)
    with running_server(
        [ModelSettings("half", base_path)], dataclasses.replace(SETTINGS, file_system_poll_wait_seconds=0)
    ) as server:
        bad = half_plus.save(str(tmp_path / "making"), 2, 2.0)
        half_plus.write_warmup(bad, half_plus.request([[-1]], signature_name="double", key="numbers"))
        (tmp_path / "making" / "2").rename(tmp_path / "half" / "2")
        server.manager.poll()
        assert server.manager.status("half")[0][1:2] == ("END",)
        assert "record 1: the model does not answer its warm-up request: assertion failed: [a number is" in caplog.text
        assert toy_server.ask(server, "POST", "/v1/models/half:predict", {"instances": [2.0]})[1] == {
            "predictions": [2.0]
        }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no records at all, just text", "not a whole TFRecord file"),
        ([b"\xff\xff\xff"], "record 1: not a PredictionLog"),
        ([b""], "record 1: expected one of"),
    ],
)
def test_wrong_warm_up_files(tmp_path, content, message):
    directory = half_plus.save(str(tmp_path / "half"), 1)
    half_plus.write_warmup(directory)
    if isinstance(content, bytes):
        with open(f"{directory}/{WARMUP_FILE}", "wb") as file:
            file.write(content)
    else:
        with tf.io.TFRecordWriter(f"{directory}/{WARMUP_FILE}") as writer:
            for record in content:
                writer.write(record)
    with pytest.raises(InputError, match=message):
        with running_server([ModelSettings("half", str(tmp_path / "half"))], SETTINGS):
            pass
    with running_server(
        [ModelSettings("half", str(tmp_path / "half"))], dataclasses.replace(SETTINGS, enable_model_warmup=False)
    ):
        pass


def test_warm_up_requests_are_replayed_and_counted(tmp_path):
    directory = half_plus.save(str(tmp_path / "half"), 1)
    half_plus.write_warmup(directory, *[half_plus.request([float(number)]) for number in range(3)])
    with running_server([ModelSettings("half", str(tmp_path / "half"))], SETTINGS) as server:
        assert toy_server.figure(server, "model_warmup_records_read", model_path=directory, status="OK") == 3


def test_labels_of_metrics_by_version_do_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(model_manager, "_MAX_ENDED", 1)
    base_path, counts = tmp_path / "half", []
    half_plus.write_warmup(half_plus.save(str(base_path), 1), half_plus.request([1.0]))

    def labels():
        lines = server.rest.routes.metrics.text().decode().splitlines()
        return [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]

    with running_server([ModelSettings("half", str(base_path))], SETTINGS) as server:
        for version in range(2, 6):
            shutil.copytree(base_path / "1", tmp_path / "copy")
            os.rename(tmp_path / "copy", base_path / str(version))
            toy_server.until(lambda version=version: server.served() == [("half", version)])
            toy_server.until(lambda version=version: not any(f"half/{version - 1}" in label for label in labels()))
            toy_server.ask(server, "POST", "/v1/models/half:predict", {"instances": [1.0]})
            assert any(f"half/{version}" in label for label in labels())
            counts.append(len(labels()))
    assert len(set(counts)) == 1, counts


# === Batching through both protocols ===


def test_answers_in_batches_are_those_without(tmp_path):
    base_path = str(tmp_path / "half")
    half_plus.save(base_path, 1)
    generator = np.random.default_rng(3)
    requests = [generator.integers(-2, 50, (generator.integers(1, 4), generator.integers(1, 4))) for _ in range(150)]

    def answer(server, numbers):
        body = {"signature_name": "double", "inputs": numbers.tolist()}
        return toy_server.ask(server, "POST", "/v1/models/half:predict", body)

    models = [ModelSettings("half", base_path)]
    with running_server(models, SETTINGS) as server:
        expected = [answer(server, numbers) for numbers in requests]
    assert {status for status, _ in expected} == {200, 400}
    parameters = BatchingParameters(max_batch_size=16, batch_timeout_micros=3000)
    with running_server(models, SETTINGS, parameters) as server:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert list(pool.map(lambda numbers: answer(server, numbers), requests)) == expected
            scalar = {"signature_name": "scalar", "inputs": [1.0, 2.0]}  # no batch dimension: never batched
            assert toy_server.ask(server, "POST", "/v1/models/half:predict", scalar) == (200, {"outputs": 3.0})
        assert 0 < toy_server.figure(server, "batching_session:wrapped_run_count") < len(requests)


def test_a_versions_own_batching_parameters(tmp_path):
    for version in (1, 2):
        directory = half_plus.save(str(tmp_path / "half"), version)
    with open(f"{directory}/batching_params.pbtxt", "w", encoding="utf-8") as file:
        file.write("max_batch_size { value: 2 }")
    (tmp_path / "models.config").write_text(
        f"model_config_list {{ config {{ name: 'half' base_path: '{tmp_path}/half' model_platform: 'tensorflow' "
        "model_version_policy { all {} } } }"
    )
    models = read_model_config(str(tmp_path / "models.config"))
    settings = dataclasses.replace(SETTINGS, enable_batching=True, enable_per_model_batching_parameters=True)
    with running_server(models, settings, BatchingParameters()) as server:
        sizes = {
            version: toy_server.ask(
                server, "POST", f"/v1/models/half/versions/{version}:predict", {"instances": [1.0, 2.0, 3.0]}
            )[0]
            for version in (1, 2)
        }
    assert sizes == {1: 200, 2: 400}


def test_a_configuration_file_is_followed(tmp_path, caplog):
    config = tmp_path / "models.config"
    for name in ("half", "other"):
        half_plus.save(str(tmp_path / name), 1)

    def write(name):
        temporary = tmp_path / "models.new"
        temporary.write_text(
            f"model_config_list {{ config {{ name: '{name}' base_path: '{tmp_path}/{name}' "
            "model_platform: 'tensorflow' } }"
        )
        temporary.rename(config)

    write("half")
    settings = dataclasses.replace(SETTINGS, model_config_file=str(config), model_config_file_poll_wait_seconds=0.05)
    with running_server(read_model_config(str(config)), settings) as server:
        write("other")
        toy_server.until(lambda: server.manager.names() == ["other"])
        write("later")  # is not there yet
        toy_server.until(lambda: "The configuration is not wholly followed" in caplog.text)
        assert server.manager.names() == ["other"]
        half_plus.save(str(tmp_path / "later"), 1)
        toy_server.until(lambda: server.manager.names() == ["later"])
        config.write_text("nonsense")
        toy_server.until(lambda: "Received: 1:1" in caplog.text)
        time.sleep(0.3)
        assert caplog.text.count("Received: 1:1") == 1
        assert server.manager.names() == ["later"]


def test_a_refused_configuration_is_tried_again_once_something_has_changed(tmp_path):
    """Each try loads the good models of the configuration, to drop them when a damaged one is met."""
    config, tried = tmp_path / "models.config", []
    model = f"name: 'm' base_path: '{tmp_path}/m' model_platform: 'tensorflow'"
    config.write_text(f"model_config_list {{ config {{ {model} }} }}")
    versions = []

    class Manager:
        def states(self):
            return list(versions)

        def apply(self, models):
            tried.append(models)
            raise InputError("one is damaged")

    follow = assembly._config_follower(Manager(), str(config), [])
    for _ in range(3):
        follow()
    assert len(tried) == 1
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "saved_model.pb").write_text("")
    follow()
    assert len(tried) == 2
    versions.append("a version that a label waits for")
    follow()
    follow()
    assert len(tried) == 3


# === Limits ===


def test_requests_beyond_the_limit_are_refused_and_counted():
    metrics = Metrics()
    admission = Admission(2, 100, metrics)
    with admission.request(), admission.request():
        with pytest.raises(ServingError, match="2 requests are in progress") as caught:
            with admission.request():
                pass
    assert (caught.value.code, caught.value.http_status) == ("RESOURCE_EXHAUSTED", 503)
    with admission.request(), admission.body() as first, admission.body() as second:
        first(60)
        with pytest.raises(ServingError, match="too many large requests"):
            second(50)
        second(40)
    with admission.body() as again:
        again(100)
    assert b'bert_serve_refused_total{reason="requests"} 1.0\n' in metrics.text()


def test_a_full_server_says_so_over_both_protocols(tmp_path, monkeypatch):
    base_path = str(tmp_path / "half")
    half_plus.save(base_path, 1)
    settings = dataclasses.replace(SETTINGS, max_concurrent_requests=1, max_connections=3)
    with running_server([ModelSettings("half", base_path)], settings) as server:
        started, go_on = threading.Event(), threading.Event()
        run = ServedModel.run
        monkeypatch.setattr(
            ServedModel, "run", lambda *arguments: started.set() or (go_on.wait(30) and run(*arguments))
        )
        ask = lambda: toy_server.ask(server, "POST", "/v1/models/half:predict", {"instances": [1.0]})  # noqa: E731
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask)
            assert started.wait(30)
            status, answer = ask()
            assert status == 503 and "The server is full" in answer["error"]
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                with pytest.raises(grpc.RpcError) as caught:
                    stub.Predict(half_plus.request([1.0]), timeout=30)
                assert caught.value.code().name == "RESOURCE_EXHAUSTED"
            assert toy_server.ask(server, "GET", "/v1/models/half")[0] == 200  # a look at it is always free
            toy_server.until(lambda: server.rest.open_connections == 1)  # the server has seen the others end
            with toy_server.connect(server), toy_server.connect(server), toy_server.connect(server) as third:
                answer = toy_server.received(third)
                assert answer.startswith(b"HTTP/1.1 503") and b"too many connections" in answer
            go_on.set()
            assert first.result(30) == (200, {"predictions": [3.5]})
        server.rest.admission.max_bytes = 20  # For the bodies of both protocols together.
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            with pytest.raises(grpc.RpcError, match="too many large requests") as caught:
                stub.Predict(half_plus.request([1.0] * 20), timeout=30)
            assert caught.value.code().name == "RESOURCE_EXHAUSTED"
        assert ask()[0] == 503 and b"\nbert_serve_body_bytes 0.0\n" in server.rest.routes.metrics.text()


def test_a_rest_request_has_a_deadline(tmp_path):
    base_path = str(tmp_path / "half")
    half_plus.save(base_path, 1)
    settings = dataclasses.replace(SETTINGS, rest_api_timeout_in_ms=200, enable_batching=True)
    with running_server(
        [ModelSettings("half", base_path)], settings, BatchingParameters(batch_timeout_micros=3600 * 10**6)
    ) as server:
        status, answer = toy_server.ask(server, "POST", "/v1/models/half:predict", {"instances": [1.0]})
        assert status == 504
        assert "deadline passed" in answer["error"]


# === The end ===


def _in_progress(rest_port: int) -> int:
    """How many requests a server is at work on, as it says itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{rest_port}/metrics", timeout=60) as response:
        return int(re.search(r"^bert_serve_requests_in_progress\S* (\d+)", response.read().decode(), re.MULTILINE)[1])


def test_sigterm_answers_what_was_asked_over_both_protocols(tmp_path):
    base_path = str(tmp_path / "half")
    half_plus.save(base_path, 1)
    flags = [
        "--model_name=half",
        f"--model_base_path={base_path}",
        "--rest_api_port=0",
        "--port=0",
        "--enable_batching",
    ]
    (tmp_path / "slow.pbtxt").write_text("batch_timeout_micros { value: 3600000000 }")
    with toy_server.run_command(
        "-m", "export.local_server", *flags, f"--batching_parameters_file={tmp_path}/slow.pbtxt"
    ) as process:
        rest_port = int(process.stdout.readline().split("/")[2].rpartition(":")[2])
        process.stdout.readline()
        grpc_port = int(process.stdout.readline().rpartition(":")[2])
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            grpc.channel_ready_future(channel).result(30)
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            future = stub.Predict.future(half_plus.request([1.0, 2.0]), timeout=30)
            body = json.dumps({"instances": [5.0]}).encode()
            head = b"POST /v1/models/half:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            with toy_server.socket.create_connection(("127.0.0.1", rest_port), timeout=30) as connection:
                connection.sendall(head + body)
                toy_server.until(lambda: _in_progress(rest_port) == 2)  # both wait in the batch
                process.send_signal(signal.SIGTERM)
                answer = toy_server.received(connection)
            assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"predictions": [5.5]}
            assert list(future.result().outputs["y"].float_val) == [3.5, 4.0]
        rest, errors = process.communicate(timeout=60)
        assert (process.returncode, rest, errors) == (0, "", "")
