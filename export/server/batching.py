"""Joins requests along dimension 0 into batches, runs them together, and splits the answers again.

Strings are joined as they are. Numbers are joined only if their shapes agree in all other dimensions: they are never
padded, since nothing here knows the padding value. Each request gets exactly its own rows back.

The threads of one `BatchScheduler` serve the `Batcher`s of all models. Requests gather while all threads are busy, so
batches grow with the load. With `batch_timeout_micros` a free thread waits for more requests. Without it, a request
that finds a thread free would be a batch of one, and runs in its own thread.

`tf.nondifferentiable_batch_function` would batch inside the graph, as TensorFlow Serving does in its session. It does
not fit here for two reasons. It fails a whole batch when the graph refuses one request's values; here a failed batch is
run again in parts, so that only the bad request fails. And it has no deadlines: it would compute answers that no client
waits for any more, and report a missed deadline only after the run.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from export.server import monitoring
from export.server.admission import SHORT_BYTES
from export.server.config_files import BatchingParameters
from export.server.monitoring import Metrics
from export.server.serving_error import ServingError, TimeLeft, invalid, too_late

Arrays = Mapping[str, np.ndarray]


def count_bytes(arrays: Arrays) -> int:
    """Returns the bytes of all values. For a few, NumPy's functions would take longer."""
    return sum(sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays.values())


class _Key(NamedTuple):
    """The properties that two requests must share to be joined."""

    batcher: "Batcher"
    signature_name: str
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape without dimension 0, type


class _Queue:
    """Tasks that can be joined, in order of arrival, and the sum of their rows."""

    def __init__(self):
        self.tasks: deque[_Task] = deque()
        self.rows = 0


class _Task:
    """One request that waits for its batch; `answer` receives its outputs or its error."""

    def __init__(self, arrays: Arrays, size: int, time_left: TimeLeft):
        self.arrays = arrays
        self.size = size
        self.time_left = time_left
        self.enqueued = time.monotonic()
        self.queued = 0.0  # Seconds.
        self.answer: concurrent.futures.Future[dict[str, np.ndarray]] = concurrent.futures.Future()


class BatchScheduler:
    """Threads that form and run the batches of all models.

    Args:
        num_threads: number of batches that run at once.
    """

    def __init__(self, num_threads: int):
        self._changed = threading.Condition()
        self._queues: OrderedDict[_Key, _Queue] = OrderedDict()  # No queue is empty; the first one is next.
        self._is_closed = False
        self._waits = True
        self._num_running = 0
        names = [f"batch-{number}" for number in range(num_threads)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def submit(self, key: _Key, task: _Task) -> None:
        """Queues a task for its batch.

        Raises:
            ServingError: (UNAVAILABLE) the queue is full.
        """
        parameters = key.batcher.parameters
        with self._changed:
            queue = self._queues.get(key) or _Queue()
            if queue.rows + task.size > parameters.max_batch_size * parameters.max_enqueued_batches:
                key.batcher.metrics.refused.labels("batches").inc()
                raise ServingError(
                    "UNAVAILABLE",
                    "The batch scheduling queue to which this task was submitted is full; "
                    f"max_enqueued_batches is {parameters.max_enqueued_batches}. Try again.",
                )
            queue.tasks.append(task)
            queue.rows += task.size
            # Only a new or a full queue concerns a sleeping thread.
            if key not in self._queues or queue.rows >= parameters.max_batch_size:
                self._changed.notify()
            self._queues[key] = queue

    @contextlib.contextmanager
    def turn_without_waiting(self, key: _Key) -> Iterator[bool]:
        """Takes the turn of an idle thread whose batch would be only this task, which saves two thread switches.

        Yields:
            True if there was a turn to take: nothing is queued, a thread is idle, and batches do not wait to grow.
        """
        with self._changed:
            is_free = not self._queues and not self._is_closed and self._num_running < len(self._threads)
            takes_turn = is_free and not key.batcher.parameters.batch_timeout_micros
            self._num_running += takes_turn
        try:
            yield takes_turn
        finally:
            if takes_turn:
                self._end_turn()

    def _end_turn(self) -> None:
        with self._changed:
            self._num_running -= 1
            if self._queues:
                self._changed.notify()

    def hurry(self) -> None:
        """Ends all waiting for more tasks, since the server is shutting down."""
        with self._changed:
            self._waits = False
            self._changed.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Ends the threads once all queued tasks are answered; abandons them after `timeout` seconds."""
        end = time.monotonic() + timeout
        self._is_closed = True
        self.hurry()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            key, tasks = batch
            key.batcher.execute(key.signature_name, tasks)
            self._end_turn()

    def _next_batch(self) -> tuple[_Key, list[_Task]] | None:
        """Waits until a batch is due and returns it; None after `close`."""
        with self._changed:
            while True:
                now = time.monotonic()
                soonest = None
                # Requests that took a turn may fill it; the first to end its turn wakes a thread.
                is_full = self._num_running == len(self._threads)
                for key, queue in () if is_full else self._queues.items():
                    parameters = key.batcher.parameters
                    is_due = not self._waits or queue.rows >= parameters.max_batch_size
                    due = now if is_due else queue.tasks[0].enqueued + parameters.batch_timeout_micros / 1e6
                    if due <= now:
                        self._num_running += 1
                        return key, self._take(key, queue)
                    soonest = due if soonest is None else min(soonest, due)
                if self._is_closed and not self._queues:
                    return None
                self._changed.wait(None if soonest is None else soonest - now)

    def _take(self, key: _Key, queue: _Queue) -> list[_Task]:
        """Removes and returns the first tasks of a queue, of at most `max_batch_size` rows but at least one."""
        tasks, rows = [], 0
        while queue.tasks and (not tasks or rows + queue.tasks[0].size <= key.batcher.parameters.max_batch_size):
            tasks.append(queue.tasks.popleft())
            rows += tasks[-1].size
        queue.rows -= rows
        if queue.tasks:
            self._queues.move_to_end(key)
        else:
            del self._queues[key]
        if self._queues:  # Another thread watches them while this one is busy.
            self._changed.notify()
        return tasks


@dataclasses.dataclass(eq=False)  # Hashed by identity, as a part of `_Key`.
class Batcher:
    """Batches the requests to one version of a model.

    Args:
        model: the version: `ServedModel`, or an object with its `name`, `run` and `own_columns`.
        parameters: settings for joining requests.
        scheduler: runs the batches in its threads.
        metrics: counts requests and batches.
    """

    model: Any
    parameters: BatchingParameters
    scheduler: BatchScheduler
    metrics: Metrics

    def run(self, signature_name: str, arrays: Arrays, time_left: TimeLeft) -> Arrays:
        """Runs a request within a batch; its signature must be batchable (`Signature.is_batchable`).

        Args:
            time_left: see `serving_error.TimeLeft`.

        Raises:
            ServingError: the model raised it, the queue is full, the deadline passed, or the request is too large.
        """
        sizes = {len(array) if array.ndim else 0 for array in arrays.values()}
        if len(sizes) != 1 or sizes == {0}:
            return self.model.run(signature_name, arrays, time_left)  # The graph answers or refuses it.
        (size,) = sizes
        if size > self.parameters.max_batch_size:
            if self.parameters.enable_large_batch_splitting:
                return self.model.run(signature_name, arrays, time_left)
            largest = f"{self.parameters.max_batch_size} (max_batch_size of the batching parameters)"
            raise invalid(f"Task size {size} is larger than maximum input batch size {largest}")
        if count_bytes(arrays) > size * SHORT_BYTES:  # It would hold a thread while it waits for its turn.
            return self.model.run(signature_name, arrays, time_left)
        self.metrics.input_batch_size.labels(self.model.name).observe(size)
        shapes = tuple((name, array.shape[1:], array.dtype.str) for name, array in sorted(arrays.items()))
        task = _Task(arrays, size, time_left)
        key = _Key(self, signature_name, shapes)
        with self.scheduler.turn_without_waiting(key) as is_alone:
            if is_alone:
                self.execute(signature_name, [task])
        if not is_alone:
            self.scheduler.submit(key, task)
        try:
            outputs = task.answer.result(max(0.0, time_left()))
        except TimeoutError:
            raise too_late(time_left()) from None
        monitoring.spend(monitoring.QUEUE, task.queued)
        return outputs

    def execute(self, signature_name: str, tasks: list[_Task]) -> None:
        """Answers the tasks of one batch."""
        now = time.monotonic()
        wanted: list[_Task] = []
        for task in tasks:
            task.queued = now - task.enqueued
            self.metrics.queuing_latency.observe(task.queued * 1e6)
            if (seconds := task.time_left()) <= 0:
                task.answer.set_exception(too_late(seconds))
            else:
                wanted.append(task)
        with monitoring.collected():  # The wait for a turn counts as the batch's time, whichever thread runs it.
            while wanted:
                wanted = self._answer(signature_name, wanted)

    def _answer(self, signature_name: str, tasks: list[_Task]) -> list[_Task]:
        """Answers tasks in one run. If it fails, finds the request at fault by bisection, and keeps the good answers.

        One bad request among n costs at most log2(n) + 2 further runs: the search, the request's own run, and the run
        of the tasks that the search left.

        Returns:
            The tasks that have no answer yet.
        """
        left: list[_Task] = []
        part = tasks
        while True:
            try:
                for task, answer in zip(part, self._run_joined(signature_name, part), strict=True):
                    task.answer.set_result(answer)
                tasks = tasks[len(part) :]
            except Exception as error:
                if len(part) == 1:
                    self._run_alone(signature_name, part[0], error)
                    return tasks[1:] + left
                left = tasks[len(part) :] + left
                tasks = part
            if not tasks:
                return left
            part = tasks[: (len(tasks) + 1) // 2]

    def _run_alone(self, signature_name: str, task: _Task, error: Exception) -> None:
        """Answers a task that failed as a batch of one; runs it without batching if that may be at fault."""
        try:
            if isinstance(error, ServingError) and not self.parameters.allowed_batch_sizes:
                raise error
            task.answer.set_result(self.model.run(signature_name, task.arrays, task.time_left))
        except Exception as failure:  # Raised in the thread of its request.
            task.answer.set_exception(failure)

    def _run_joined(self, signature_name: str, tasks: list[_Task]) -> list[Arrays]:
        """Answers several tasks in one run; raises `ValueError` if its outputs cannot be split."""
        rows = sum(task.size for task in tasks)
        padded = next((size for size in self.parameters.allowed_batch_sizes if size >= rows), rows)
        joined = {}
        for name, array in tasks[0].arrays.items():
            # Padding rows repeat the first one, whose values the graph is likely to accept.
            pieces = [task.arrays[name] for task in tasks] + [array[:1]] * (padded - rows)
            joined[name] = np.concatenate(pieces) if len(pieces) > 1 else array
        self.metrics.processed_batch_size.labels(self.model.name).observe(padded)
        self.metrics.padding_size.labels(self.model.name).observe(padded - rows)
        self.metrics.wrapped_runs.inc()
        outputs = self.model.run(signature_name, joined, lambda: max(task.time_left() for task in tasks), is_batch=True)
        if any(not array.ndim or len(array) != padded for array in outputs.values()):
            raise ValueError("An output does not have the batch as its first dimension.")
        answers = []
        for task, stop in zip(tasks, itertools.accumulate(task.size for task in tasks), strict=True):
            own = {name: array[stop - task.size : stop] for name, array in outputs.items()}
            answers.append(self.model.own_columns(signature_name, own))
        return answers
