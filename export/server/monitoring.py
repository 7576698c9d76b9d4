"""What the server counts, and Prometheus's text format for it.

Names and labels are TensorFlow Serving's where it has the figure (its exporter writes
`/tensorflow/serving/request_count` as `:tensorflow:serving:request_count`), so that its dashboards work; `bert_serve_*`
are ours.
"""

import bisect
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from export.server.serving_error import ServingError

# TensorFlow Serving's bounds. Microseconds: 33 steps from 10 by 1.8. Sizes and examples: powers of two.
LATENCY_BOUNDS = tuple(10 * 1.8**power for power in range(33))
SIZE_BOUNDS = tuple(float(2**power) for power in range(15))

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric:
    """One named figure with labels. Its methods may be called from any thread."""

    kind = "untyped"

    def __init__(self, name: str, label_names: Sequence[str] = ()):
        self.name = name
        self._label_names = tuple(label_names)
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], object] = {}

    def lines(self) -> Iterator[str]:
        """The figure in Prometheus's text format; none if it has no value yet."""
        with self._lock:
            values = sorted((labels, self._copied(value)) for labels, value in self._values.items())
        if values:
            yield f"# TYPE {self.name} {self.kind}"
        for labels, value in values:
            yield from self._value_lines(dict(zip(self._label_names, labels, strict=True)), value)

    def _copied(self, value):
        return value

    def _value_lines(self, labels: Mapping[str, str], value) -> Iterator[str]:
        yield f"{self.name}{_braces(labels)} {_number(value)}"


class Counter(Metric):
    """Counts up."""

    kind = "counter"

    def add(self, labels: tuple[str, ...] = (), amount: int = 1) -> None:
        """Counts `amount` more; `labels` in the order of the label names."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + amount

    def value(self, labels: tuple[str, ...] = ()) -> int:
        """What was counted."""
        with self._lock:
            return self._values.get(labels, 0)


class Histogram(Metric):
    """Counts values by size.

    Args:
        bounds: upper bounds of the buckets, ascending; one without bound follows.
    """

    kind = "histogram"

    def __init__(self, name: str, label_names: Sequence[str], bounds: Sequence[float]):
        super().__init__(name, label_names)
        self._bounds = tuple(bounds)

    def record(self, value: float, labels: tuple[str, ...] = ()) -> None:
        """Counts one value."""
        with self._lock:
            if labels not in self._values:
                self._values[labels] = [[0] * (len(self._bounds) + 1), 0.0]
            entry = self._values[labels]
            entry[0][bisect.bisect_left(self._bounds, value)] += 1
            entry[1] += value

    def _copied(self, value):
        return list(value[0]), value[1]

    def _value_lines(self, labels: Mapping[str, str], value) -> Iterator[str]:
        counts, total = value
        below = 0
        for bound, count in zip((*self._bounds, math.inf), counts, strict=True):
            below += count
            yield f"{self.name}_bucket{_braces({**labels, 'le': _number(bound)})} {below}"
        yield f"{self.name}_sum{_braces(labels)} {_number(total)}"
        yield f"{self.name}_count{_braces(labels)} {below}"


class Gauge(Metric):
    """A figure that is looked up when it is asked for.

    Args:
        look_up: gives the value, or a mapping of label values (a tuple) to values.
    """

    kind = "gauge"

    def __init__(self, name: str, label_names: Sequence[str], look_up: Callable[[], object]):
        super().__init__(name, label_names)
        self._look_up = look_up

    def lines(self) -> Iterator[str]:
        """As `Metric.lines`, of this moment."""
        now = self._look_up()
        with self._lock:
            self._values = dict(now) if isinstance(now, Mapping) else {(): now}
        yield from super().lines()


class Metrics:
    """All figures of one server."""

    def __init__(self):
        serving, batching = ":tensorflow:serving:", ":tensorflow:serving:batching_session:"
        api = ("model_name", "API", "entrypoint")
        self.request_count = Counter(serving + "request_count", ("model_name", "status"))
        self.request_latency = Histogram(serving + "request_latency", api, LATENCY_BOUNDS)
        self.runtime_latency = Histogram(serving + "runtime_latency", (*api[:2], "runtime"), LATENCY_BOUNDS)
        self.example_counts = Histogram(serving + "request_example_counts", ("model",), SIZE_BOUNDS)
        self.example_count_total = Counter(serving + "request_example_count_total", ("model",))
        self.warmup_latency = Histogram(serving + "model_warmup_latency", ("model_path", "status"), LATENCY_BOUNDS)
        self.warmup_records = Counter(serving + "model_warmup_records_read", ("model_path", "status"))
        self.queuing_latency = Histogram(batching + "queuing_latency", (), LATENCY_BOUNDS)
        self.wrapped_runs = Counter(batching + "wrapped_run_count")
        self.input_batch_size = Histogram(batching + "input_batch_size", ("model_name",), SIZE_BOUNDS)
        self.processed_batch_size = Histogram(batching + "processed_batch_size", ("model_name",), SIZE_BOUNDS)
        self.padding_size = Histogram(batching + "padding_size", ("model_name",), SIZE_BOUNDS)
        self.refused = Counter("bert_serve_refused_total", ("reason",))
        started = time.time()
        self._all: list[Metric] = [metric for metric in vars(self).values() if isinstance(metric, Metric)]
        self.add_gauge("process_start_time_seconds", (), lambda: started)
        self.add_gauge("process_resident_memory_bytes", (), resident_bytes)

    def add_gauge(self, name: str, label_names: Sequence[str], look_up: Callable[[], object]) -> None:
        """Has a figure looked up whenever the figures are asked for; see `Gauge`."""
        self._all.append(Gauge(name, label_names, look_up))

    @contextlib.contextmanager
    def request(self, model_name: str, api: str, entrypoint: str) -> Iterator[None]:
        """Counts the block as one request: its status, and if it succeeds how long it took.

        Args:
            model_name: a model that is served, else "": what a client made up becomes no label.
            api: `Predict`, `Classify`, ...
            entrypoint: `REST` or `GRPC`.
        """
        start = time.perf_counter()
        status = "INTERNAL"
        try:
            yield
            status = "OK"
        except ServingError as error:
            status = error.code
            raise
        finally:
            if status == "OK":
                self.request_latency.record((time.perf_counter() - start) * 1e6, (model_name, api, entrypoint))
            self.request_count.add((model_name, status))

    def examples(self, model_name: str, count: int) -> None:
        """Counts the examples of a classification or regression."""
        self.example_counts.record(count, (model_name,))
        self.example_count_total.add((model_name,), count)

    def text(self) -> str:
        """Everything in Prometheus's text format."""
        return "".join(f"{line}\n" for metric in self._all for line in metric.lines())


def resident_bytes() -> int:
    """Memory that this process holds; 0 where the system does not say (no Linux)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
