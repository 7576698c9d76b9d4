"""Traces: a request's span belongs to the trace that the client names, and reaches a collector."""

import contextlib
import http.client
import http.server
import sys
import threading
import time

import grpc
import pytest
import toy_server
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

from export.server.monitoring import Tracing

pytest.importorskip("opentelemetry.sdk")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@contextlib.contextmanager
def collector():
    """An OpenTelemetry collector, which keeps the spans that it gets; yields its address and the spans."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):  # noqa: N802  (http.server's)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                name = {pair.key: pair.value.string_value for pair in group.resource.attributes}["service.name"]
                spans.extend((name, span) for scope in group.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()


def test_spans_continue_the_clients_traces(tmp_path, monkeypatch):
    base_path = toy_server.saved(tmp_path)
    with collector() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with toy_server.running(base_path, port=0) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.rest.server_port, timeout=30)
            connection.request("POST", "/v1/models/toy:predict", '{"instances": ["a"]}', {"Traceparent": TRACEPARENT})
            assert connection.getresponse().status == 200
            connection.close()
            assert toy_server.ask(server, "POST", "/v1/models/no:predict", {"instances": ["a"]})[0] == 404
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "toy"
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                with pytest.raises(grpc.RpcError, match="input size does not match"):
                    stub.Predict(request, metadata=(("traceparent", TRACEPARENT),), timeout=30)
                asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
                asked.model_spec.name = "toy"
                stub.GetModelMetadata(asked, timeout=30)
            end = time.monotonic() + 30
            while len(spans) < 4 and time.monotonic() < end:
                time.sleep(0.05)
    assert [(name, span.name) for name, span in spans] == [
        ("bert-serve", "Predict toy"),
        ("bert-serve", "Predict "),
        ("bert-serve", "Predict toy"),
        ("bert-serve", "GetModelMetadata toy"),
    ]
    rest, alone, by_grpc = (span for _, span in spans[:3])
    for span in (rest, by_grpc):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert alone.trace_id.hex() != TRACE and not alone.parent_span_id
    assert [span.status.code for span in (rest, alone, by_grpc)] == [0, 2, 2]
    times = {pair.key: pair.value.double_value for pair in rest.attributes}
    assert set(times) == {"bert_serve.queue_ms", "bert_serve.inference_ms"} and times["bert_serve.inference_ms"] > 0


def test_opentelemetrys_variables_name_the_service(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=answers")
    assert Tracing()._tracer.resource.attributes["service.name"] == "answers"


def test_without_the_extra_it_says_so_once(monkeypatch, capsys):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with Tracing().request("a request"):
        pass
    said = "bert-serve: requests are not traced. To trace them, run: pip install 'keras-bert-zoo[tracing]'\n"
    assert capsys.readouterr().err == said
