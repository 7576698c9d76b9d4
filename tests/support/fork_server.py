"""A process that has imported TensorFlow, and forks itself for every Python command that a test runs.

`processes.py` starts it and speaks to it. Each command is one connection to a Unix socket: a JSON request and the three
standard streams go in; the process id comes out, then the exit status. Closing the connection kills the command.

Nothing of this project is imported here: a command imports it anew, from where the test's PYTHONPATH says. Nothing that
is imported may start threads or initialize devices, since neither survives a fork.
"""

import atexit
import contextlib
import gc
import importlib.util
import io
import json
import locale
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types

import cheap_graphs

PRELOADED = (
    *("tensorflow", "tensorflow_text", "keras", "keras_nlp"),
    *("absl.app", "grpc", "h5py", "numpy.testing", "sklearn.metrics", "tqdm"),
)
PROJECT = ("keras_bert", "tasks", "export", "benchmarks")


class Server:
    """Forks on request, and reports how each forked process ended."""

    def __init__(self, path: str):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}  # process id -> the connection that asked for it

    def serve(self) -> None:
        """Serves until standard input, held open by the parent process, ends."""
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (self._listener, wake, sys.stdin):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for pid in self._clients:
                        os.kill(pid, signal.SIGKILL)
                    return
                if key.fileobj is self._listener:
                    self._fork_for(self._listener.accept()[0])
                elif key.fileobj is wake:
                    wake.recv(4096)
                    self._reap()
                elif key.fileobj in self._clients.values():
                    self._kill_abandoned(key.fileobj)

    def _fork_for(self, client: socket.socket) -> None:
        request, streams = receive(client)
        pid = os.fork()
        if pid == 0:
            become(request, streams)
        for stream in streams:
            os.close(stream)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ)
        send(client, pid)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # none is left
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended
                if client := self._clients.pop(pid, None):
                    self._selector.unregister(client)
                    with client, contextlib.suppress(OSError):
                        send(client, status)

    def _kill_abandoned(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        pid = next(pid for pid, connection in self._clients.items() if connection is client)
        del self._clients[pid]
        client.close()
        os.kill(pid, signal.SIGKILL)


def send(connection: socket.socket, message, streams: tuple[int, ...] = ()) -> None:
    """Sends a JSON document in a line, with file descriptors."""
    line = json.dumps(message).encode() + b"\n"
    sent = socket.send_fds(connection, [line], streams)
    connection.sendall(line[sent:])


def receive(connection: socket.socket) -> tuple:
    """Returns a JSON document and the file descriptors that came with it."""
    line, streams, _, _ = socket.recv_fds(connection, 1, 3)  # The descriptors come with the first byte.
    while line and not line.endswith(b"\n"):
        # The status of a process that has ended already waits behind the id.
        waiting = connection.recv(65536, socket.MSG_PEEK)
        line += connection.recv(waiting.find(b"\n") + 1 or len(waiting))
        if not waiting:
            break
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed")
    return json.loads(line), streams


# === In the forked process ===


def become(request: dict, streams: list[int]) -> None:
    """Turns this process into the one that was asked for. Never returns."""
    status = 1
    try:
        _set_up(request, streams)
        status = _run(request)
    finally:
        os._exit(status)


def _set_up(request: dict, streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)  # the server's own, and the two ends of other commands' connections
    if request["start_new_session"]:
        os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["is_quick"]:
        _save_time()
    encoding = locale.getpreferredencoding(False)
    unbuffered = request["unbuffered"] or "PYTHONUNBUFFERED" in os.environ
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        open(1, "wb", 0 if unbuffered else -1, closefd=False),
        encoding,
        line_buffering=os.isatty(1),
        write_through=unbuffered,
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        open(2, "wb", 0, closefd=False), encoding, "backslashreplace", line_buffering=True, write_through=True
    )


def _save_time() -> None:
    """Builds cheap graphs, and forks the Python commands that this one runs: an export is verified by another."""
    processes = sys.modules["processes"]  # Which imports this module, and lies in no folder of the path any longer.
    subprocess.run = processes.run_forked
    if "tensorflow" in sys.modules:
        cheap_graphs.begin()


def _run(request: dict) -> int:
    """Runs a program as `__main__`; returns the exit status."""
    try:
        _run_main(**request["program"])
    except SystemExit as end:
        status = _exit_status(end.code)
    except BaseException as error:
        error = error.with_traceback(error.__traceback__.tb_next.tb_next)  # without this function and `_run_main`
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    else:
        status = 0
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        status = 120  # as Python itself
    if status == -signal.SIGINT:  # as Python itself, so that a shell learns of it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _run_main(kind: str, name: str, arguments: list[str], isolated: bool) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=None)
    sys.argv = ["-c" if kind == "code" else name, *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]
    if not isolated:
        folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        sys.path[:0] = [{"module": os.getcwd(), "code": "", "file": os.path.dirname(name)}[kind], *folders]
    importlib.invalidate_caches()
    if kind == "module":
        runpy._run_module_as_main(name)
    elif kind == "code":
        exec(compile(name, "<string>", "exec"), main.__dict__)
    else:
        main.__file__ = name
        with io.open_code(name) as file:
            program = compile(file.read(), name, "exec")
        exec(program, main.__dict__)


def _exit_status(code) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def main() -> None:
    """Reads the socket's path from the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process, which then ends this one.
    server = Server(sys.argv[1])  # first, so that clients can connect and wait
    importlib.import_module("processes")
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [folder for folder in sys.path[1:] if folder not in given]
    for name in PRELOADED:
        if importlib.util.find_spec(name.partition(".")[0]):  # `make test-versions` also tests without some of them.
            importlib.import_module(name)
    loaded = [name for name in sys.modules if name.partition(".")[0] in PROJECT]
    if loaded:
        raise ImportError(f"The fork server must not import this project. It has: {loaded}")
    gc.collect()
    gc.freeze()  # Else a forked process copies every page that its garbage collector looks at.
    gc.set_threshold(20000, 20, 50)  # As the tests (tests/conftest.py).
    server.serve()


if __name__ == "__main__":
    main()
