"""Communication between the processes of a multi-worker training, besides gradients.

All workers must call the same methods in the same order; each call waits for all of them. With one process, calls cost
nothing.
"""

import contextlib
import json
import re
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError

LOST_STATUS = 43
# TensorFlow's heartbeat tells every worker of a lost one within ten seconds. No worker may end before all know which.
_LINGER_SECONDS = 15.0
_CONNECT_SECONDS = 2.0

# Raised by TensorFlow, depending on timing, when another worker is lost.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
)


class WorkerLost(SystemExit):
    """Exits with `LOST_STATUS`: another worker is gone; all of them continue once they are started again."""


class Workers:
    """The processes that a strategy spans.

    Args:
        strategy: `tf.distribute.Strategy`.

    Attributes:
        count: number of processes.
        addresses: `host:port` of each process; empty for a single one.
        index: index of this process, from 0.
        is_chief: whether this process is worker 0, which writes all files.
        saved_step: step of the newest checkpoint, for messages; set by the trainer.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self.count, self.index, self.addresses, self._tasks = 1, 0, [], []
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            cluster = resolver.cluster_spec()
            # In the order in which TensorFlow numbers their replicas.
            kinds = [kind for kind in ("chief", "worker") if kind in cluster.jobs]
            self._tasks = [(kind, index) for kind in kinds for index in cluster.task_indices(kind)]
            self.count, self.index = len(self._tasks), self._tasks.index((resolver.task_type, resolver.task_id))
            self.addresses = [cluster.task_address(*task) for task in self._tasks]
        self.is_chief = self.index == 0
        self.saved_step = 0

    def gather(self, value) -> np.ndarray:
        """Returns the values of all workers, numbers or arrays of equal shape: float64, shape (count, ...)."""
        if self.count == 1:
            return np.array([value], np.float64)
        mine = np.zeros((self.count, *np.shape(value)))
        mine[self.index] = value
        return self._sum(tf.constant(mine[np.newaxis])).numpy()[0]

    def check_equal(self, values: Mapping[str, object]) -> None:
        """Checks that all workers have the same data, vocabulary and settings.

        Args:
            values: JSON values by the names that the error shows. Each worker passes the same number of values.

        Raises:
            InputError: a value of a worker differs from the chief's. The message names both.
        """
        checksums = [zlib.crc32(json.dumps(value, sort_keys=True).encode()) for value in values.values()]
        of_workers = self.gather(checksums)
        for worker, number in np.argwhere(of_workers != of_workers[0])[:1]:
            raise InputError(
                f"{list(values)[number]}: differs between {self._name(worker)} and {self._name(0)}. All workers need "
                "the same data, vocabulary, configuration and flags."
            )

    def from_chief(self, value: float) -> float:
        """Returns the chief's value."""
        return float(self.gather(value)[0])

    def wait(self) -> None:
        """Waits for all workers; one that exits early may take the others down."""
        self.gather(0.0)

    def share(self, variables: list[tf.Variable]) -> None:
        """Copies the chief's values of these variables to all workers."""
        if self.count == 1:
            return
        for variable in variables:
            value = variable.read_value()
            variable.assign(self._sum(value if self.is_chief else tf.zeros_like(value)))

    @contextlib.contextmanager
    def naming_lost_ones(self) -> Iterator[None]:
        """Turns the errors that a lost worker causes into one message, on every worker that is left.

        Raises:
            WorkerLost: another worker is gone.
        """
        try:
            yield
        except _LOST as error:
            lost = self._find_lost(str(error))
            if not lost:
                raise
            kept = (
                f"The checkpoint of step {self.saved_step} is kept" if self.saved_step else "No checkpoint is saved yet"
            )
            print(
                f"This training has lost {', '.join(map(self._name, lost))}. {kept}. Start all {self.count} workers "
                "again, or another number of them, with the same command: they continue.",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(_LINGER_SECONDS)
            raise WorkerLost(LOST_STATUS) from error

    def _name(self, worker: int) -> str:
        return f"worker {worker} ({self.addresses[worker]})"

    def _find_lost(self, message: str) -> list[int]:
        """Returns the workers that TensorFlow calls unhealthy, else those out of reach, else those that it names."""
        peers = [worker for worker in range(self.count) if worker != self.index]
        unhealthy = "".join(re.findall(r"stopped sending heartbeats\):((?:\s+/job:\S+)+)", message))
        return (
            [worker for worker in peers if self._is_in(unhealthy, worker)]
            or [worker for worker in peers if not is_reachable(self.addresses[worker])]
            or [worker for worker in peers if self._is_in(message, worker)]
        )

    def _is_in(self, message: str, worker: int) -> bool:
        kind, index = self._tasks[worker]
        return re.search(rf"/job:{kind}/(?:replica:0/)?task:{index}\b", message) is not None

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        """Sums one tensor per worker; each worker contributes through its first replica."""
        num_replicas = self._strategy.num_replicas_in_sync // self.count

        def of_replica(context: tf.distribute.ReplicaContext) -> tf.Tensor:
            return value if context.replica_id_in_sync_group % num_replicas == 0 else tf.zeros_like(value)

        values = self._strategy.experimental_distribute_values_from_function(of_replica)
        return self._strategy.reduce("SUM", values, axis=None)


def is_reachable(address: str) -> bool:
    """Returns whether a process listens at `host:port`; False also for a malformed address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
