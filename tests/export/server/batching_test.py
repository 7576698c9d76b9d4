"""Batches: who is joined with whom, rows that come back to whom they belong, errors that stay alone, and parameters."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest
import toy_server

from export.server.batching import Batcher, BatchScheduler
from export.server.config_files import BatchingParameters, read_batching_parameters
from export.server.monitoring import Metrics
from export.server.serving_error import ServingError, unlimited
from keras_bert.errors import InputError


class Graph:
    """Stands for a model: doubles numbers, refuses negative ones, notes its batches, waits while it is told to."""

    name = "m"

    def __init__(self):
        self.shapes: list[tuple[int, ...]] = []
        self.threads: list[int] = []
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def run(self, signature_name, arrays, time_left, is_batch=False):
        self.shapes.append(arrays["x"].shape)
        self.threads.append(threading.get_ident())
        self.started.set()
        assert self.go_on.wait(30)
        if arrays["x"].dtype != object and (arrays["x"] < 0).any():
            raise ServingError("INVALID_ARGUMENT", f"negative: {arrays['x'].min()}")
        if signature_name == "total":
            return {"y": arrays["x"].sum(keepdims=True)}
        return {"y": arrays["x"] + arrays["x"]}

    def own_columns(self, _, outputs):
        return outputs


@pytest.fixture(name="graph")
def _graph():
    return Graph()


@pytest.fixture(name="batcher")
def _batcher(graph):
    """Makes a batcher of one thread, whose queue a test can fill while the graph is held up."""
    schedulers = []

    def make(**parameters):
        schedulers.append(BatchScheduler(parameters.pop("num_batch_threads", 1)))
        return Batcher(graph, BatchingParameters(**parameters), schedulers[-1], Metrics())

    yield make
    graph.go_on.set()
    for scheduler in schedulers:
        scheduler.close()


def together(graph, batcher, requests, signature_name="s", time_left=unlimited, hold=0.0):
    """Sends requests while the graph is busy with another, so that they wait together; gives their futures."""
    graph.started.clear()
    graph.go_on.clear()
    pool = concurrent.futures.ThreadPoolExecutor(len(requests) + 1)
    busy = pool.submit(batcher.run, "busy", {"x": np.zeros(1)}, unlimited)
    assert graph.started.wait(30)
    graph.shapes.clear()
    futures = []
    queues = batcher.scheduler._queues
    for number, request in enumerate(requests, start=1):
        futures.append(pool.submit(batcher.run, signature_name, {"x": request}, time_left))
        toy_server.until(
            lambda number=number: sum(len(queue.tasks) for queue in queues.values()) == number or futures[-1].done()
        )
    time.sleep(hold)
    graph.go_on.set()
    busy.result(30)
    concurrent.futures.wait(futures, 30)
    pool.shutdown()
    return futures


def test_requests_are_joined_and_each_gets_its_rows(graph, batcher):
    requests = [np.arange(size) + 10.0 * size for size in (1, 3, 2)]
    futures = together(graph, batcher(), requests)
    assert graph.shapes == [(6,)]
    for request, future in zip(requests, futures, strict=True):
        np.testing.assert_array_equal(future.result()["y"], 2 * request)


def test_strings_are_joined(graph, batcher):
    requests = [np.array([b"a"], object), np.array([b"bc", b""], object)]
    futures = together(graph, batcher(), requests)
    assert graph.shapes == [(3,)]
    assert [future.result()["y"].tolist() for future in futures] == [[b"aa"], [b"bcbc", b""]]


def test_long_texts_hold_no_thread(graph, batcher):
    joined, run_graph, batcher = [], graph.run, batcher()

    def run(signature_name, arrays, time_left, is_batch=False):
        if not is_batch:
            return run_graph(signature_name, arrays, time_left)
        joined.append(len(arrays["x"]))
        return {"y": arrays["x"] + arrays["x"]}

    graph.run = run
    long, short = np.array([b"long " * 1000], object), np.array([b"a", b"b" * 4096], object)
    graph.go_on.clear()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(batcher.run, "s", {"x": long}, unlimited) for _ in range(3)]
        assert graph.started.wait(30)
        answer = batcher.run("s", {"x": short}, lambda: 30.0)
        assert answer["y"].tolist() == [b"aa", b"b" * 8192] and joined == [2] and not waiting[0].done()
        graph.go_on.set()
        assert all(future.result(30)["y"].tolist() == [b"long " * 2000] for future in waiting)
    assert joined == [2]


def test_different_lengths_are_never_padded(graph, batcher):
    requests = [np.ones((2, 3)), np.ones((1, 4)), np.ones((1, 3)), np.ones((1, 3), np.float32)]
    futures = together(graph, batcher(), requests)
    assert sorted(graph.shapes) == [(1, 3), (1, 4), (3, 3)]
    assert [future.result()["y"].shape for future in futures] == [request.shape for request in requests]


def test_a_request_that_is_refused_fails_alone(graph, batcher):
    futures = together(graph, batcher(), [np.array([1.0]), np.array([-5.0]), np.array([3.0, 4.0])])
    assert graph.shapes == [(4,), (2,), (1,), (1,), (2,)]
    assert futures[0].result()["y"].tolist() == [2.0] and futures[2].result()["y"].tolist() == [6.0, 8.0]
    with pytest.raises(ServingError, match="negative: -5.0"):
        futures[1].result()


@pytest.mark.parametrize("bad", range(16))
def test_one_bad_request_costs_few_runs_more(graph, batcher, bad):
    requests = [[-1.0] if number == bad else [float(number)] for number in range(16)]
    futures = together(graph, batcher(), [np.array(request) for request in requests])
    with pytest.raises(ServingError, match="negative: -1"):
        futures.pop(bad).result(30)
    assert [future.result(30)["y"].tolist() for future in futures] == [
        [2.0 * number] for number in range(16) if number != bad
    ]
    assert len(graph.shapes) <= 1 + 4 + 2  # the batch, log2 of its size, the bad one, and what the search left


def test_many_bad_requests_fail_alone(graph, batcher):
    futures = together(graph, batcher(), [np.array([1.0 if number % 3 else -1.0]) for number in range(16)])
    assert [future.exception(30) is None for future in futures] == [number % 3 > 0 for number in range(16)]


def test_a_request_refused_by_itself_is_not_tried_again(graph, batcher):
    with pytest.raises(ServingError, match="negative"):
        batcher().run("s", {"x": np.array([-1.0])}, unlimited)
    assert graph.shapes == [(1,)]


def test_outputs_that_cannot_be_taken_apart_are_computed_one_by_one(graph, batcher):
    futures = together(graph, batcher(), [np.array([1.0, 2.0]), np.array([3.0, 4.0])], signature_name="total")
    assert [future.result()["y"].tolist() for future in futures] == [[3.0], [7.0]]


def test_no_batch_is_larger_than_allowed(graph, batcher):
    sizes = [3, 2, 4, 1, 5, 5]
    futures = together(graph, batcher(max_batch_size=5), [np.ones(size) for size in sizes])
    assert graph.shapes == [(5,), (5,), (5,), (5,)]
    assert [len(future.result()["y"]) for future in futures] == sizes


def test_batches_are_filled_up_to_an_allowed_size(graph, batcher):
    made = batcher(max_batch_size=8, allowed_batch_sizes=(4, 8))
    futures = together(graph, made, [np.ones(2), np.ones(3)])
    assert graph.shapes == [(8,)]
    assert [len(future.result()["y"]) for future in futures] == [2, 3]
    assert len(made.run("s", {"x": np.ones(1)}, unlimited)["y"]) == 1
    assert graph.shapes[-1] == (4,)


def test_a_batch_waits_for_more_as_long_as_it_may(graph, batcher):
    made = batcher(batch_timeout_micros=200_000, max_batch_size=3, num_batch_threads=2)
    start = time.monotonic()
    made.run("s", {"x": np.ones(1)}, unlimited)
    assert time.monotonic() - start >= 0.2
    hour = batcher(batch_timeout_micros=3600 * 10**6, max_batch_size=3, num_batch_threads=2)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(hour.run, "s", {"x": np.ones(1)}, unlimited)
        second = pool.submit(hour.run, "s", {"x": np.ones(2)}, unlimited)  # full: there is nothing to wait for
        assert [len(future.result(60)["y"]) for future in (first, second)] == [1, 2]
    assert graph.shapes == [(1,), (3,)]


def test_a_batch_waits_no_longer_once_the_server_is_to_end(graph, batcher):
    made = batcher(batch_timeout_micros=3600 * 10**6)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(made.run, "s", {"x": np.ones(1)}, unlimited)
        toy_server.until(lambda: made.scheduler._queues)
        made.scheduler.hurry()
        assert len(first.result(60)["y"]) == 1
    assert len(made.run("s", {"x": np.ones(2)}, unlimited)["y"]) == 2


def test_a_thread_that_waits_for_one_queue_leaves_none_alone(graph, batcher):
    """While one thread runs a full batch, another must watch over the queue whose time runs out."""
    made = batcher(batch_timeout_micros=100_000, max_batch_size=2, num_batch_threads=2)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            slow = pool.submit(made.run, "s", {"x": np.ones((1, 7))}, unlimited)
            full = [pool.submit(made.run, "s", {"x": np.ones((1, 3))}, unlimited) for _ in range(4)]
            for future in (slow, *full):
                assert future.result(60)["y"].shape[0] == 1


def test_a_request_that_finds_a_thread_free_runs_where_it_is(graph, batcher):
    made = batcher()
    for _ in range(3):
        np.testing.assert_array_equal(made.run("s", {"x": np.ones(2)}, unlimited)["y"], [2, 2])
    with pytest.raises(ServingError, match="negative"):
        made.run("s", {"x": -np.ones(2)}, unlimited)
    assert set(graph.threads) == {threading.get_ident()}
    batcher(batch_timeout_micros=1).run("s", {"x": np.ones(2)}, unlimited)  # others may come and join it
    assert graph.threads[-1] != threading.get_ident()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_no_more_batches_run_at_once_than_there_are_threads(graph, batcher, num_threads):
    made = batcher(num_batch_threads=num_threads)
    graph.go_on.clear()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(made.run, "s", {"x": np.ones(1)}, unlimited) for _ in range(num_threads)]
        toy_server.until(lambda: len(graph.shapes) == num_threads)
        futures += [pool.submit(made.run, "s", {"x": np.ones(1)}, unlimited) for _ in range(3)]
        toy_server.until(lambda: sum(len(queue.tasks) for queue in made.scheduler._queues.values()) == 3)
        assert len(graph.shapes) == num_threads
        graph.go_on.set()
        assert [len(future.result(60)["y"]) for future in futures] == [1] * len(futures)
    assert graph.shapes == [(1,)] * num_threads + [(3,)]


def test_what_waits_for_a_turn_to_end_is_answered_although_the_server_closes(graph, batcher):
    made = batcher()
    graph.go_on.clear()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        first = pool.submit(made.run, "s", {"x": np.ones(1)}, unlimited)
        assert graph.started.wait(30)
        second = pool.submit(made.run, "s", {"x": np.ones(1)}, unlimited)
        toy_server.until(lambda: made.scheduler._queues)
        closing = pool.submit(made.scheduler.close, 30.0)
        toy_server.until(lambda: made.scheduler._is_closed)
        graph.go_on.set()
        assert [len(future.result(60)["y"]) for future in (first, second)] == [1, 1]
        closing.result(60)


def test_a_full_queue_refuses(graph, batcher):
    futures = together(graph, batcher(max_batch_size=2, max_enqueued_batches=2), [np.ones(2), np.ones(2), np.ones(1)])
    with pytest.raises(ServingError, match="queue to which this task was submitted is full") as caught:
        futures[2].result()
    assert caught.value.http_status == 503
    assert [len(future.result()["y"]) for future in futures[:2]] == [2, 2]


def _until(end):
    return lambda: end - time.monotonic()


def test_a_request_that_is_too_late_is_dropped(graph, batcher):
    made = batcher()
    soon = together(graph, made, [np.ones(1)], time_left=_until(time.monotonic() + 0.1), hold=0.3)
    with pytest.raises(ServingError, match="deadline passed"):
        soon[0].result()
    assert graph.shapes == []
    assert len(made.run("s", {"x": np.ones(2)}, _until(time.monotonic() + 30))["y"]) == 2


def test_a_request_larger_than_a_batch(graph, batcher):
    message = r"Task size 3 is larger than maximum input batch size 2 \(max_batch_size of the batching parameters\)"
    with pytest.raises(ServingError, match=message):
        batcher(max_batch_size=2).run("s", {"x": np.ones(3)}, unlimited)
    whole = batcher(max_batch_size=2, enable_large_batch_splitting=True).run("s", {"x": np.ones(3)}, unlimited)
    assert len(whole["y"]) == 3


def test_an_empty_request_runs_by_itself(graph, batcher):
    assert batcher().run("s", {"x": np.ones((0, 4))}, unlimited)["y"].shape == (0, 4)


# === Parameters ===


@pytest.fixture(name="read")
def _read(tmp_path):
    def read(text):
        path = tmp_path / "batching.pbtxt"
        path.write_text(text, encoding="utf-8")
        return read_batching_parameters(str(path))

    return read


def test_tensorflow_servings_text_format(read):
    parameters = read("""
        max_batch_size { value: 128 }
        batch_timeout_micros { value: 2000 }
        max_enqueued_batches { value: 1000000 }
        num_batch_threads { value: 8 }
        thread_pool_name { value: 'any' }
        allowed_batch_sizes: 32
        allowed_batch_sizes: 128
    """)
    assert parameters == BatchingParameters(128, 2000, 1_000_000, 8, (32, 128))
    assert read("") == BatchingParameters()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: 3", "expected TensorFlow Serving's batching parameters"),
        ("unknown { value: 3 }", "expected TensorFlow Serving's batching parameters"),
        ("max_batch_size { value: 0 }", "expected max_batch_size of at least 1. Received: 0"),
        ("batch_timeout_micros { value: -1 }", "expected batch_timeout_micros of at least 0"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4", "to ascend to max_batch_size (8). Received: [4]"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 8 allowed_batch_sizes: 4", "Received: [8, 4]"),
        ("pad_variable_length_inputs: true", "fills with each tensor's first element"),
    ],
)
def test_wrong_parameters(read, text, message):
    with pytest.raises(InputError) as caught:
        read(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match="no.pbtxt: cannot be read"):
        read_batching_parameters("no.pbtxt")
