"""Communication between the processes of a multi-worker training, besides gradients.

All workers must call the same methods in the same order; each call waits for all of them. With one process, calls are
free.
"""

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError

# Raised by TensorFlow, depending on timing, when another worker is lost.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
)


class Workers:
    """The processes that a strategy spans.

    Args:
        strategy: `tf.distribute.Strategy`.

    Attributes:
        count: number of processes.
        addresses: of these, `host:port`; empty for a single one.
        index: index of this process, from 0.
        is_chief: whether this process is worker 0, which writes all files.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self.count, self.index, self.addresses = 1, 0, []
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            cluster = resolver.cluster_spec()
            # In the order in which TensorFlow numbers their replicas.
            kinds = [kind for kind in ("chief", "worker") if kind in cluster.jobs]
            tasks = [(kind, index) for kind in kinds for index in cluster.task_indices(kind)]
            self.count, self.index = len(tasks), tasks.index((resolver.task_type, resolver.task_id))
            self.addresses = [cluster.task_address(*task) for task in tasks]
        self.is_chief = self.index == 0

    def gather(self, value) -> np.ndarray:
        """Returns the values of all workers, numbers or arrays of equal shape: float64, shape (count, ...)."""
        if self.count == 1:
            return np.array([value], np.float64)
        mine = np.zeros((self.count, *np.shape(value)))
        mine[self.index] = value
        return self._sum(tf.constant(mine[np.newaxis])).numpy()[0]

    def check_equal(self, values: Mapping[str, int]) -> None:
        """Refuses to go on with workers of different data.

        Args:
            values: name -> number below 2^53 that all workers must have; the same names on each.

        Raises:
            InputError: a worker has another number than the chief; names both.
        """
        found = self.gather(list(values.values()))
        for worker, row in enumerate(found):
            for name, number, chief in zip(values, row, found[0], strict=True):
                if number != chief:
                    raise InputError(
                        f"{name}: worker {worker} ({self.addresses[worker]}) has another than worker 0 "
                        f"({self.addresses[0]}). All workers need the same data, vocabulary and flags."
                    )

    def from_chief(self, value: float) -> float:
        """Returns the chief's value."""
        return float(self.gather(value)[0])

    def wait(self) -> None:
        """Waits for all workers; one that exits early may take the others down.

        Raises:
            InputError: another worker is gone.
        """
        with self.naming_lost_ones():
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
        """Turns the errors that a lost worker causes into one message.

        Raises:
            InputError: another worker is gone.
        """
        try:
            yield
        except _LOST as error:
            if self.count == 1:
                raise
            raise InputError(
                f"Another worker of this training is gone ({type(error).__name__}). Start all {self.count} again with "
                "the same command: they continue from the last checkpoint."
            ) from error

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        """Sums one tensor per worker; each worker contributes through its first replica."""
        num_replicas = self._strategy.num_replicas_in_sync // self.count

        def part(context: tf.distribute.ReplicaContext) -> tf.Tensor:
            return value if context.replica_id_in_sync_group % num_replicas == 0 else tf.zeros_like(value)

        parts = self._strategy.experimental_distribute_values_from_function(part)
        return self._strategy.reduce("SUM", parts, axis=None)
