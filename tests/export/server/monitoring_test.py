"""Figures in Prometheus's text format, under TensorFlow Serving's names."""

import http.client
import re

import grpc
import half_plus
import pytest
import toy_server
from prometheus_client.parser import text_string_to_metric_families
from tensorflow_serving.apis import prediction_service_pb2_grpc

from export.server.config_files import BatchingParameters
from export.server.monitoring import CONTENT_TYPE, Metrics
from export.server.serving_error import ServingError

SERVING = ":tensorflow:serving:"
COUNT, LATENCY = SERVING + "request_count", SERVING + "request_latency_count"
LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]\w*="([^"\\\n]|\\.)*"(,|(?=\})))+\})? (\+Inf|-?[0-9.e+-]+)')


def figures(text: bytes) -> dict[str, float]:
    """Name with labels -> value; fails on a line that is not of the format, and where Prometheus's own parser does."""
    samples = {}
    for line in text.decode().splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (TYPE [a-zA-Z_:][\w:]* (counter|gauge|histogram)|HELP [a-zA-Z_:][\w:]* .+)", line)
        else:
            assert LINE.fullmatch(line), line
            name, _, number = line.rpartition(" ")
            assert name not in samples
            samples[name] = float(number)
    assert sum(len(family.samples) for family in text_string_to_metric_families(text.decode())) == len(samples)
    return samples


def value(samples: dict[str, float], name: str, **labels: str) -> float:
    return samples[toy_server.figure_name(name, **labels)]


# === Names and values ===


def test_labels_are_quoted_and_servers_count_apart():
    metrics, others = Metrics(), Metrics()
    metrics.refused.labels('quo"te\\\n').inc(5)
    assert b'bert_serve_refused_total{reason="quo\\"te\\\\\\n"} 5.0\n' in metrics.text()
    assert b"bert_serve_refused_total{" not in others.text()


def test_a_histogram_counts_from_below():
    metrics = Metrics()
    for size in (0.5, 1.0, 2.0, 100_000.0):
        metrics.padding_size.labels("a").observe(size)
    name = ":tensorflow:serving:batching_session:padding_size"
    samples = figures(metrics.text())
    counts = [value(samples, name + "_bucket", model_name="a", le=bound) for bound in ("1.0", "2.0", "16384.0", "+Inf")]
    assert counts == [2, 3, 3, 4]
    assert value(samples, name + "_sum", model_name="a") == 100_003.5
    assert value(samples, name + "_count", model_name="a") == 4


def test_a_gauge_is_looked_up_when_asked():
    metrics, values = Metrics(), [3.5, 4.0]
    metrics.add_gauge("g", "A figure.", values.pop)
    assert [value(figures(metrics.text()), "g") for _ in range(2)] == [4.0, 3.5]


def test_counters_have_tensorflow_servings_names():
    metrics = Metrics()
    metrics.request_count.labels("m", "OK").inc()
    metrics.warmup_records.labels("p", "OK").inc(2)
    metrics.examples("m", 3)
    lines = metrics.text().decode().splitlines()
    for line in (
        "# TYPE :tensorflow:serving:request_count counter",
        ':tensorflow:serving:request_count{model_name="m",status="OK"} 1.0',
        ':tensorflow:serving:model_warmup_records_read{model_path="p",status="OK"} 2.0',
        ':tensorflow:serving:request_example_count_total{model="m"} 3.0',
        ":tensorflow:serving:batching_session:wrapped_run_count 0.0",
    ):
        assert line in lines
    assert not any("_created" in line for line in lines)


def test_a_request_is_counted_by_its_status():
    metrics = Metrics()
    with metrics.request("m", "Predict", "REST"):
        pass
    for error in (ServingError("NOT_FOUND", "no"), ZeroDivisionError()):
        with pytest.raises(type(error)):
            with metrics.request("m", "Predict", "REST"):
                raise error
    samples = figures(metrics.text())
    counted = {
        status: value(samples, COUNT, model_name="m", status=status) for status in ("OK", "NOT_FOUND", "INTERNAL")
    }
    assert set(counted.values()) == {1.0}
    assert value(samples, LATENCY, model_name="m", API="Predict", entrypoint="REST") == 1.0


def test_memory_is_that_of_the_process():
    assert 10 * 2**20 < value(figures(Metrics().text()), "process_resident_memory_bytes") < 2**40


# === The server's ===


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory):
    base_path = str(tmp_path_factory.mktemp("models") / "half")
    half_plus.write_warmup(half_plus.save(base_path, 5), half_plus.request([1.0]))
    with toy_server.running(base_path, name="half", port=0, batching=BatchingParameters(8)) as running:
        yield running


def read(server, path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", server.rest.server_port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    assert (response.status, response.headers["Content-Type"]) == (200, CONTENT_TYPE)
    text = response.read()
    connection.close()
    return figures(text)


def test_requests_of_both_protocols_are_counted(server):
    toy_server.ask(server, "POST", "/v1/models/half:predict", {"instances": [1.0, 2.0]})
    toy_server.ask(server, "POST", "/v1/models/half:predict", {"instances": ["a"]})
    toy_server.ask(server, "POST", "/v1/models/FORGED:predict", {"instances": ["a"]})
    body = {"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}] * 3}
    toy_server.ask(server, "POST", "/v1/models/half:regress", body)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
        prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(half_plus.request([1.0]), timeout=30)
    values = read(server)
    for name, labels, right in (
        (COUNT, {"model_name": "half", "status": "OK"}, 3),
        (COUNT, {"model_name": "half", "status": "INVALID_ARGUMENT"}, 1),
        (COUNT, {"model_name": "", "status": "NOT_FOUND"}, 1),
        (LATENCY, {"model_name": "half", "API": "predict", "entrypoint": "REST"}, 1),
        (LATENCY, {"model_name": "half", "API": "Predict", "entrypoint": "GRPC"}, 1),
        (SERVING + "runtime_latency_count", {"model_name": "half", "API": "Regress", "runtime": "TF1"}, 1),
        (SERVING + "request_example_count_total", {"model": "half"}, 3),
        (SERVING + "batching_session:processed_batch_size_sum", {"model_name": "half"}, 7),
        (SERVING + "batching_session:queuing_latency_count", {}, 4),
    ):
        assert value(values, name, **labels) == right, name
    assert not any("FORGED" in name for name in values)


def test_the_state_of_the_server(server):
    # The server hears a moment later of connections that clients have closed; this very one is open.
    quiet = {"bert_serve_connections": 1, "bert_serve_requests_in_progress": 0}
    toy_server.until(lambda: quiet.items() <= read(server).items())
    values = read(server, "/monitoring/prometheus/metrics")
    assert value(values, "bert_serve_model_version", model_name="half", version="5", state="AVAILABLE") == 1
    (records,) = [number for name, number in values.items() if "model_warmup_records_read" in name]
    assert records == 1
    assert value(values, "process_resident_memory_bytes") > 0
