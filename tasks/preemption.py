"""SIGTERM as schedulers send it before they take a machine away: save, and leave with a status that says so."""

import signal
import sys
import threading

PREEMPTED_STATUS = 42  # "Saved: start me again"; the status of TensorFlow's own handler too.


class Preempted(SystemExit):
    """Ends the command with `PREEMPTED_STATUS`: the training has saved a checkpoint and can continue."""

    def __init__(self):
        super().__init__(PREEMPTED_STATUS)


class Preemption:
    """Notes SIGTERM while its `with` lasts; in another thread than the main one it never hears of it.

    A second SIGTERM does what it did before.

    Attributes:
        requested: whether the signal has come; False again at the end of the `with`.
    """

    def __init__(self):
        self.requested = False
        self._previous = None

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *exception) -> None:
        self.requested = False
        self._restore()

    def stop(self, step: int) -> None:
        """Leaves, after the checkpoint of `step` was saved.

        Raises:
            Preempted: always.
        """
        print(
            f"Stopped by SIGTERM after step {step}. The checkpoint is saved: the same command continues.",
            file=sys.stderr,
        )
        raise Preempted

    def _note(self, *_) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None
