"""Runs this project's commands as the stages of a longer run, and shows their command lines."""

import contextlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

# Commands run as modules, which works without their scripts on the path.
_MODULES = {
    "bert-train-vocab": "tasks.pretraining.train_vocab",
    "bert-create-pretraining-data": "tasks.pretraining.create_data",
    "bert-pretrain": "tasks.pretraining.run",
    "bert-classify": "tasks.classify.run",
    "bert-embed": "tasks.embed.run",
    "bert-export": "export.run",
    "bert-serve": "export.local_server",
}


def run_command(command: str, **settings) -> None:
    """Shows and runs one of this project's commands, with its output on the terminal.

    Args:
        command: name of the console script.
        **settings: flags and their values; None leaves a flag out.

    Raises:
        SystemExit: the command failed, with its exit status; it has printed the reason.
    """
    with start_command(command, **settings) as process:
        status = process.wait()
    if status:
        raise SystemExit(status if status > 0 else 128 - status)


@contextlib.contextmanager
def start_command(command: str, stdout=None, **settings) -> Iterator[subprocess.Popen]:
    """Shows and starts a command. On exit, sends SIGTERM if the process still runs, and waits for it to end.

    Args:
        command, settings: as in `run_command`.
        stdout: as in `subprocess.Popen`.
    """
    options = [f"--{name}={value}" for name, value in settings.items() if value is not None]
    print(f"$ {command} {shlex.join(options)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", _MODULES[command], *options], stdout=stdout, text=True)
    try:
        yield process
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)  # Ctrl-C in a terminal reached it too: let it clean up.
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
