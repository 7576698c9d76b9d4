"""Python commands as processes that start at once: forks of one that has imported TensorFlow.

`popen` and `run` take what `subprocess.Popen` and `subprocess.run` take, and behave as they do: arguments, environment,
working directory, streams, signals, sessions and exit status are the command's own. docs/testing.md says what differs
from a new interpreter; where that is the point of a test, it calls `subprocess`.
"""

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence

import fork_server

# Libraries, or Python itself, read these only once: at import, which happened in the server.
_READ_ONCE = {
    "KERAS_BACKEND": "tensorflow",
    "OMP_NUM_THREADS": None,
    "PYTHONHASHSEED": None,
    "PYTHONOPTIMIZE": None,
    "PYTHONWARNINGS": None,
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_XLA_FLAGS": None,
    "XLA_FLAGS": None,
}
_ADDRESS = "KERAS_BERT_FORK_SERVER"  # environment variable with the path of the socket of a running server


class Popen(subprocess.Popen):
    """`subprocess.Popen` of a Python command whose process is forked from the server's.

    Args:
        is_quick: whether it saves what costs more than it gains in a test: TensorFlow's optimizer of graphs, and a new
            interpreter for each Python command that it runs itself (`run_forked`).
    """

    def __init__(self, *args, is_quick: bool = False, **settings):
        self._is_quick = is_quick
        super().__init__(*args, **settings)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        startupinfo, creationflags, shell, *others = others
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others = others
        restore_signals, gid, gids, uid, umask, start_new_session, process_group = others
        unknown = (executable, preexec_fn, pass_fds, startupinfo, shell, gid, gids, uid)
        if any(unknown) or umask != -1 or process_group not in (None, -1):
            raise ValueError("A forked command takes args, cwd, env, start_new_session and streams; use subprocess.")
        environment = {name: os.fspath(value) for name, value in (os.environ if env is None else env).items()}
        options, program = _program(args)
        _check_environment(environment)
        request = {
            "program": program,
            "unbuffered": "-u" in options,
            "cwd": os.path.abspath(cwd or os.getcwd()),
            "env": environment,
            "start_new_session": bool(start_new_session),
            "is_quick": self._is_quick,
        }
        streams = tuple(
            default if stream == -1 else stream for default, stream in enumerate((p2cread, c2pwrite, errwrite))
        )
        self._connection = _connect()
        if self._is_quick:
            environment[_ADDRESS] = os.environ[_ADDRESS]
        fork_server.send(self._connection, request, streams)
        self.pid, _ = fork_server.receive(self._connection)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags):
        if wait_flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        with self._connection:
            try:
                status, _ = fork_server.receive(self._connection)
            except (EOFError, ConnectionError):
                status = signal.SIGKILL  # The server is gone, and with it the process.
        return self.pid, status

    def _internal_poll(self, _deadstate=None):
        return super()._internal_poll(_deadstate, _waitpid=lambda _, flags: self._try_wait(flags))


popen = Popen


def run(command, *, input=None, capture_output=False, timeout=None, check=False, **settings):
    """`subprocess.run` of a Python command, by a quick `Popen`."""
    if input is not None:
        settings["stdin"] = subprocess.PIPE
    if capture_output:
        settings.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with Popen(command, is_quick=True, **settings) as process:
        try:
            output, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def run_forked(command, **settings):
    """`subprocess.run` of any command, by `run` if it is one of Python: what takes the place of `subprocess.run`."""
    return (run if command[0] == sys.executable else _run_fresh)(command, **settings)


_run_fresh = subprocess.run
# What takes the place of the module `subprocess`, in modules that run commands.
FORKING = types.SimpleNamespace(run=run_forked, TimeoutExpired=subprocess.TimeoutExpired)


def _program(command: Sequence) -> tuple[set[str], dict]:
    """Returns the interpreter's options, and what it is to run as `fork_server` takes it."""
    python, *rest = map(os.fspath, command)
    options = set()
    while rest and rest[0] in ("-u", "-I"):
        options.add(rest.pop(0))
    if python != sys.executable or not rest:
        raise ValueError(f"Only commands of sys.executable can be forked. Received: {command!r}")
    kind = {"-m": "module", "-c": "code"}.get(rest[0], "file")
    if kind != "file":
        rest.pop(0)
    elif rest[0].startswith("-"):
        raise ValueError(f"No forked command knows the option {rest[0]}; use subprocess. Received: {command!r}")
    return options, {"kind": kind, "name": rest[0], "arguments": rest[1:], "isolated": "-I" in options}


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, value in _READ_ONCE.items():
        if name in environment and environment[name] != os.environ.get(name, value):
            raise ValueError(f"{name} is read when TensorFlow is imported, before the fork; use subprocess.")


# === The server ===


def start_server(stack: contextlib.ExitStack) -> None:
    """Starts a server for this process and those that it starts, such as xdist's workers; `stack` ends it."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fork_server_"))
    address = os.path.join(folder, "socket")
    # One thread of BLAS is none: a fork has no other threads.
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", OPENBLAS_NUM_THREADS="1")
    process = subprocess.Popen(
        [sys.executable, fork_server.__file__, address], stdin=subprocess.PIPE, env=environment, start_new_session=True
    )
    stack.enter_context(process)  # closes its standard input, which ends it, and waits
    os.environ[_ADDRESS] = address
    stack.callback(os.environ.pop, _ADDRESS)


def _connect() -> socket.socket:
    if _ADDRESS not in os.environ:
        stack = contextlib.ExitStack()
        start_server(stack)
        atexit.register(stack.close)
    connection = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + 60
    while True:
        try:
            connection.connect(os.environ[_ADDRESS])
            return connection
        except (FileNotFoundError, ConnectionRefusedError):  # It has not come so far.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
