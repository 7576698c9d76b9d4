"""Handles SIGTERM, which schedulers send before they reclaim a machine: save a checkpoint and exit with status 42."""

import signal
import sys
import threading

PREEMPTED_STATUS = 42  # "Start me again"; TensorFlow's PreemptionCheckpointHandler exits with it too.


class Preempted(SystemExit):
    """Exits with `PREEMPTED_STATUS`: start the command again, which continues from a checkpoint if one is saved."""


class Preemption:
    """Context manager that records a SIGTERM.

    A second SIGTERM has its usual effect. Outside the main thread, Python delivers no signals and nothing is recorded.

    Attributes:
        requested: whether the signal has arrived; reset to False on exit.
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

    def stop(self, step: int, is_saved: bool = True) -> None:
        """Reports whether a checkpoint of `step` is saved, and exits.

        Raises:
            Preempted: always.
        """
        state = "The checkpoint is saved: the same command continues."
        state = state if is_saved else "No checkpoint is saved: the same command starts anew."
        print(f"Stopped by SIGTERM after step {step}. {state}", file=sys.stderr)
        raise Preempted(PREEMPTED_STATUS)

    def _note(self, *_) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None
