"""A forked command behaves as one that a new interpreter runs: tests/support/processes.py beside subprocess."""

import os
import signal
import socket
import subprocess
import sys

import fork_server
import processes
import pytest

PROGRAMS = {
    "arguments and streams": "import sys; print(sys.argv, input()); print('error', file=sys.stderr)",
    "environment and folder": "import os; print(os.environ['COLOR'], 'HOME' in os.environ, os.getcwd())",
    "status": "raise SystemExit(300)",
    "a text as status": "import sys; sys.exit('it failed')",
    "an exception": "def f(): raise ValueError(3)\nf()",
    "a syntax error": "f(",
    "interrupted": "raise KeyboardInterrupt",
    "aborted": "import os; os.abort()",
    "thread, then exit handlers": (
        "import atexit, threading, time\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()"
    ),
    "nothing of the tests": "import sys; print('pytest' in sys.modules, 'keras_bert' in sys.modules, sys.path[0])",
    "a class of its own": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))), __name__)",
}


@pytest.mark.parametrize("kind", ["code", "file", "module"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_ends_and_speaks_as_a_new_interpreter(tmp_path, name, kind):
    (tmp_path / "program.py").write_text(PROGRAMS[name])
    start = {"code": ["-c", PROGRAMS[name]], "file": [str(tmp_path / "program.py")], "module": ["-m", "program"]}[kind]
    ended = [
        run(
            [sys.executable, *start, "one", "two"],
            input="a line\n",
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"COLOR": "blue", "PATH": os.environ["PATH"]},
        )
        for run in (processes.run, subprocess.run)
    ]
    for part in ("returncode", "stdout", "stderr"):
        assert getattr(ended[0], part) == getattr(ended[1], part)


def test_an_isolated_one_sees_neither_folder_nor_environment(tmp_path):
    (tmp_path / "json.py").write_text("raise ImportError")
    program = f"import json, sys; print({str(tmp_path)!r} in sys.path)"
    settings = {"cwd": tmp_path, "env": {"PYTHONPATH": str(tmp_path)}, "capture_output": True, "text": True}
    done = processes.run([sys.executable, "-I", "-c", program], **settings)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_signals_reach_it(number):
    program = "import time; print('ready', flush=True); time.sleep(60)"
    with processes.popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n" and process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=30) == -number


def test_a_session_of_its_own_gets_the_groups_signals():
    program = "import os, time; print(os.getsid(0) == os.getpid() == os.getpgid(0), flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program]
    with processes.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"True\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


def test_one_that_takes_too_long_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def test_tensorflow_is_imported_and_not_initialized():
    program = (
        "import sys, threading; print('tensorflow' in sys.modules, threading.active_count())\n"
        "from tensorflow.python.eager import context\n"
        "print(context.context_safe() is None or not context.context()._initialized)\n"
    )
    done = processes.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True 1\nTrue\n", done.stderr


@pytest.mark.parametrize("is_quick", [True, False])
def test_the_python_commands_of_a_quick_one_are_forked(is_quick):
    program = "import sys; print('tensorflow' in sys.modules)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {program!r}], cwd='/', env={{}})"
    command = [sys.executable, "-c", outer]
    with processes.popen(command, is_quick=is_quick, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=60)[0] == f"{is_quick}\n"


@pytest.mark.parametrize(
    ("command", "settings", "message"),
    [
        (["python", "-c", ""], {}, "Only commands of sys.executable"),
        ([sys.executable, "-X", "importtime", "-c", ""], {}, "knows the option -X; use subprocess"),
        ([sys.executable, "-c", ""], {"env": {"KERAS_BACKEND": "torch"}}, "KERAS_BACKEND is read when"),
        ([sys.executable, "-c", ""], {"preexec_fn": print}, "takes args, cwd, env"),
    ],
)
def test_what_only_a_new_interpreter_can_do_is_refused(command, settings, message):
    with pytest.raises(ValueError, match=message):
        processes.popen(command, **settings)


def test_messages_that_wait_together_are_read_one_by_one():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in (4472, 0, {"long": "x" * 70000}):
            fork_server.send(ours, message)
        assert [fork_server.receive(theirs)[0] for _ in range(3)] == [4472, 0, {"long": "x" * 70000}]
        ours.sendall(b"12")
        ours.close()
        with pytest.raises(EOFError, match="the connection was closed"):
            fork_server.receive(theirs)
