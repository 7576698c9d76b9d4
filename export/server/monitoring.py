"""The server's metrics for Prometheus, the times of its requests, and their traces for OpenTelemetry.

Names and labels are TensorFlow Serving's where it has the metric (its exporter writes
`/tensorflow/serving/request_count` as `:tensorflow:serving:request_count`), so that its dashboards work. Names that
begin with `bert_serve_` are this server's own.
"""

import contextlib
import contextvars
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import prometheus_client

from export.server.config_files import declared_message, read_text_message
from export.server.serving_error import ServingError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")

# TensorFlow Serving's bucket bounds. Microseconds: 33 steps from 10 by a factor of 1.8. Sizes: powers of two.
LATENCY_BOUNDS = tuple(10 * 1.8**power for power in range(33))
SIZE_BOUNDS = tuple(float(2**power) for power in range(15))

_SERVING, _BATCHING = ":tensorflow:serving:", ":tensorflow:serving:batching_session:"
# The client library adds `_total` to every counter's name; TensorFlow Serving's names have no such ending.
_COUNTERS = ("request_count", "model_warmup_records_read", "batching_session:wrapped_run_count")
_WITH_ENDING = re.compile(rf"^((?:# (?:HELP|TYPE) )?{_SERVING}(?:{'|'.join(_COUNTERS)}))_total", re.MULTILINE)


def read_metrics_paths(path: str | None) -> tuple[str, ...]:
    """Returns the paths of metrics in a file of TensorFlow Serving's `--monitoring_config_file`; None: the default.

    Raises:
        InputError: the file cannot be read, or is not such a message.
    """
    if path is None:
        return METRICS_PATHS
    expected = "TensorFlow Serving's prometheus_config { enable: true path: ... }"
    config = read_text_message(path, declared_message("MonitoringConfig"), expected).prometheus_config
    return (config.path or METRICS_PATHS[1],) if config.enable else ()


# === Times of a request ===

QUEUE, TOKENIZATION, INFERENCE, TOTAL = "queue", "tokenization", "inference", "total"


class Request(NamedTuple):
    """The seconds that a request spent, by phase, and its headers or metadata."""

    spent: dict[str, float]
    carrier: Mapping[str, str]


_CURRENT: contextvars.ContextVar[Request | None] = contextvars.ContextVar("request", default=None)


@contextlib.contextmanager
def collected(carrier: Mapping[str, str] = {}) -> Iterator[dict[str, float]]:
    """Yields the seconds that this thread spends within the block, by phase."""
    request = Request({}, carrier)
    token = _CURRENT.set(request)
    try:
        yield request.spent
    finally:
        _CURRENT.reset(token)


def current() -> Request:
    """Returns the request that this thread answers."""
    return _CURRENT.get() or Request({}, {})


def spend(phase: str, seconds: float) -> None:
    """Adds to a phase of the request that this thread answers."""
    spent = current().spent
    spent[phase] = spent.get(phase, 0.0) + seconds


def as_header(spent: Mapping[str, float]) -> str:
    """Returns the value of Server-Timing, in milliseconds."""
    phases = (phase for phase in (QUEUE, TOKENIZATION, INFERENCE, TOTAL) if phase in spent)
    return ", ".join(f"{phase};dur={1e3 * spent[phase]:.3f}" for phase in phases)


# === Traces ===

_ADDRESSES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Tracing:
    """Sends a span for each request to the collector that OpenTelemetry's variables name, if they name one.

    It needs the extra `tracing`. If that is missing, a line on standard error says so, and nothing is traced.
    """

    def __init__(self):
        self._tracer = None
        if not any(map(os.environ.get, _ADDRESSES)):
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider, export
        except ImportError:
            advice = "To trace them, run: pip install 'keras-bert-zoo[tracing]'"
            print(f"bert-serve: requests are not traced. {advice}", file=sys.stderr)
            return
        # The variables may name the service: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES.
        resource = Resource.create({"service.name": "bert-serve"}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource)  # Remaining spans are sent at the end of the process.
        provider.add_span_processor(export.BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = provider.get_tracer("bert-serve")

    @contextlib.contextmanager
    def request(self, name: str) -> Iterator[None]:
        """Traces the block as this thread's request, with the milliseconds of its phases as attributes."""
        if self._tracer is None:
            yield
            return
        from opentelemetry import propagate, trace

        request, kind = current(), trace.SpanKind.SERVER
        parent = propagate.extract(request.carrier)
        with self._tracer.start_as_current_span(name, parent, kind, record_exception=False) as span:
            try:
                yield
            finally:
                span.set_attributes({f"bert_serve.{phase}_ms": 1e3 * spent for phase, spent in request.spent.items()})


# === Metrics ===


class Metrics:
    """All metrics of one server, and the traces of its requests; thread-safe."""

    def __init__(self):
        self._tracing = Tracing()
        prometheus_client.disable_created_metrics()  # TensorFlow Serving exports no creation times.
        registry = self.registry = prometheus_client.CollectorRegistry()
        api, runtime = ("model_name", "API", "entrypoint"), ("model_name", "API", "runtime")
        warmup = ("model_path", "status")

        latency = functools.partial(prometheus_client.Histogram, buckets=LATENCY_BOUNDS, registry=registry)
        sizes = functools.partial(prometheus_client.Histogram, buckets=SIZE_BOUNDS, registry=registry)
        counter = functools.partial(prometheus_client.Counter, registry=registry)
        self.request_count = counter(_SERVING + "request_count", "Requests.", ("model_name", "status"))
        self.request_latency = latency(_SERVING + "request_latency", "Microseconds of answered requests.", api)
        self.runtime_latency = latency(_SERVING + "runtime_latency", "Microseconds of the graph.", runtime)
        self.example_counts = sizes(_SERVING + "request_example_counts", "Examples of a request.", ("model",))
        self.example_count_total = counter(_SERVING + "request_example_count_total", "Examples.", ("model",))
        self.warmup_latency = latency(_SERVING + "model_warmup_latency", "Microseconds of warming up.", warmup)
        self.warmup_records = counter(_SERVING + "model_warmup_records_read", "Warm-up requests.", warmup)
        self.queuing_latency = latency(_BATCHING + "queuing_latency", "Microseconds before a batch was run.")
        self.wrapped_runs = counter(_BATCHING + "wrapped_run_count", "Batches.")
        self.input_batch_size = sizes(_BATCHING + "input_batch_size", "Rows of a request.", ("model_name",))
        self.processed_batch_size = sizes(_BATCHING + "processed_batch_size", "Rows of a batch.", ("model_name",))
        self.padding_size = sizes(_BATCHING + "padding_size", "Rows that filled a batch up.", ("model_name",))
        self.refused = counter("bert_serve_refused_total", "Requests and connections refused.", ("reason",))
        prometheus_client.ProcessCollector(registry=registry)

    def add_gauge(self, name: str, help_text: str, look_up: Callable[[], float]) -> None:
        """Adds a metric whose value `look_up` returns at each scrape."""
        prometheus_client.Gauge(name, help_text, registry=self.registry).set_function(look_up)

    @contextlib.contextmanager
    def request(self, model_name: str, api: str, entrypoint: str) -> Iterator[None]:
        """Counts and traces the block as one request, by its status, and records its duration if it succeeds.

        Args:
            model_name: a served model, or "" for an unknown name, since a client's text must not become a label.
            api: `Predict`, `Classify`, ...
            entrypoint: `REST` or `GRPC`.
        """
        start = time.perf_counter()
        status = "INTERNAL"
        try:
            with self._tracing.request(f"{api[0].upper()}{api[1:]} {model_name}"):
                yield
            status = "OK"
            self.request_latency.labels(model_name, api, entrypoint).observe((time.perf_counter() - start) * 1e6)
        except ServingError as error:
            status = error.code
            raise
        finally:
            self.request_count.labels(model_name, status).inc()

    def forget(self, model_path: str) -> None:
        """Removes the metrics of a version that has ended, which would otherwise accumulate."""
        for metric in (self.warmup_latency, self.warmup_records):
            for status in ("OK", "FAILED"):
                with contextlib.suppress(KeyError):
                    metric.remove(model_path, status)

    def examples(self, model_name: str, count: int) -> None:
        """Counts the examples of a classification or regression."""
        self.example_counts.labels(model_name).observe(count)
        self.example_count_total.labels(model_name).inc(count)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return _WITH_ENDING.sub(r"\1", prometheus_client.generate_latest(self.registry).decode()).encode()
