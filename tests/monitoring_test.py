"""Figures in Prometheus's text format, under TensorFlow Serving's names."""

import http.client
import re

import grpc
import half_plus
import pytest
import toy_server
from tensorflow_serving.apis import prediction_service_pb2_grpc

from export.server.batching_parameters import BatchingParameters
from export.server.monitoring import CONTENT_TYPE, Counter, Gauge, Histogram, Metrics, resident_bytes
from export.server.serving_error import ServingError

LINE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*\{([a-zA-Z_]\w*="([^"\\\n]|\\.)*"(,|(?=\})))*\} (\+Inf|-?[0-9.e+-]+)')


def figures(text):
    """Name with labels -> value; fails on a line that is not of the format."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert re.fullmatch(r"# TYPE [a-zA-Z_:][\w:]* (counter|gauge|histogram)", line)
        else:
            assert LINE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            assert name not in found
            found[name] = float(value)
    return found


# === The format ===


def test_a_counter_and_its_labels():
    counter = Counter("a:b", ("name", "why"))
    counter.add(("x", 'quo"te\\\n'))
    counter.add(("x", 'quo"te\\\n'), 4)
    assert list(counter.lines()) == ["# TYPE a:b counter", 'a:b{name="x",why="quo\\"te\\\\\\n"} 5']
    assert list(Counter("unused").lines()) == []


def test_a_histogram_counts_from_below():
    histogram = Histogram("h", ("m",), (1.0, 2.5))
    for value in (0.5, 1.0, 2.0, 100.0):
        histogram.record(value, ("a",))
    assert list(histogram.lines()) == [
        "# TYPE h histogram",
        'h_bucket{m="a",le="1"} 2',
        'h_bucket{m="a",le="2.5"} 3',
        'h_bucket{m="a",le="+Inf"} 4',
        'h_sum{m="a"} 103.5',
        'h_count{m="a"} 4',
    ]


def test_a_gauge_is_looked_up_when_asked():
    values = {("1",): 1, ("2",): 0}
    gauge = Gauge("g", ("version",), lambda: values)
    assert list(gauge.lines())[1:] == ['g{version="1"} 1', 'g{version="2"} 0']
    values.pop(("1",))
    assert list(gauge.lines())[1:] == ['g{version="2"} 0']
    assert list(Gauge("g", (), lambda: 3.5).lines()) == ["# TYPE g gauge", "g{} 3.5"]


def test_a_request_is_counted_by_its_status():
    metrics = Metrics()
    with metrics.request("m", "Predict", "REST"):
        pass
    for error in (ServingError("NOT_FOUND", "no"), ZeroDivisionError()):
        with pytest.raises(type(error)):
            with metrics.request("m", "Predict", "REST"):
                raise error
    assert [metrics.request_count.value(("m", status)) for status in ("OK", "NOT_FOUND", "INTERNAL")] == [1, 1, 1]
    assert figures(metrics.text())[
        ':tensorflow:serving:request_latency_count{model_name="m",API="Predict",entrypoint="REST"}'
    ] == 1.0  # fmt: skip


def test_memory_is_that_of_the_process():
    assert 10 * 2**20 < resident_bytes() < 2**40


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
    text = response.read().decode()
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
    count = ":tensorflow:serving:request_count"
    assert values[count + '{model_name="half",status="OK"}'] == 3
    assert values[count + '{model_name="half",status="INVALID_ARGUMENT"}'] == 1
    assert values[count + '{model_name="",status="NOT_FOUND"}'] == 1
    latency = ':tensorflow:serving:request_latency_count{model_name="half",API="Predict",entrypoint="%s"}'
    assert (values[latency % "REST"], values[latency % "GRPC"]) == (1, 1)
    assert values[':tensorflow:serving:runtime_latency_count{model_name="half",API="Regress",runtime="TF2"}'] == 1
    assert values[':tensorflow:serving:request_example_count_total{model="half"}'] == 3
    assert values[':tensorflow:serving:batching_session:processed_batch_size_sum{model_name="half"}'] == 7
    assert values[":tensorflow:serving:batching_session:queuing_latency_count{}"] == 4
    assert not any("FORGED" in name for name in values)


def test_the_state_of_the_server(server):
    # Of connections that clients have closed the server hears a moment later; this very one is open.
    quiet = {"bert_serve_connections{}": 1, "bert_serve_requests_in_progress{}": 0}
    toy_server.until(lambda: quiet.items() <= read(server).items())
    values = read(server, "/monitoring/prometheus/metrics")
    assert values['bert_serve_model_version{model_name="half",version="5",state="AVAILABLE"}'] == 1
    (records,) = [value for name, value in values.items() if "model_warmup_records_read" in name]
    assert records == 1
    assert values["process_resident_memory_bytes{}"] > 0
