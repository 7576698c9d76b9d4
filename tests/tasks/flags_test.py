"""Runs commands as users do, as modules and console scripts: help, wrong flags, wrong input, Ctrl-C."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

COMMAND = '''
"""Tells what a command is.

The second paragraph.
"""

import dataclasses
import json

from keras_bert.errors import InputError
from tasks import flags as task_flags
from tasks.engine.settings import TrainingSettings
from tasks.fine_tuning.settings import FineTuningSettings
from tasks.settings import replaced, setting


class DemoSettings(TrainingSettings):
    output_dir: str = setting(dataclasses.MISSING, "Directory of the results.")
    do_train: bool = setting(False, "Train the model.")
    do_eval: bool = setting(False, "Evaluate the model.")
    num_train_epochs: float = replaced(FineTuningSettings, "num_train_epochs", 3.0)
    warmup_proportion: float = replaced(FineTuningSettings, "warmup_proportion", 0.1)
    own_flag: str = setting("x", "The flag of this command.")


def main(settings):
    if settings.own_flag == "input":
        raise InputError("corpus.txt:3: not valid UTF-8.\\nConvert it.")
    if settings.own_flag == "interrupt":
        raise KeyboardInterrupt
    if settings.own_flag == "full":
        raise OSError(28, "No space left on device")
    if settings.own_flag == "directory":
        from keras_bert.files import write_json
        write_json(settings.output_dir, {})
    if settings.own_flag == "wait":
        import time
        from keras_bert.files import atomic_path
        with atomic_path(settings.output_dir) as temporary, open(temporary, "w"):
            print("waiting", flush=True)
            time.sleep(60)
    if settings.own_flag == "imports":
        import importlib.util
        import sys
        assert "jax" not in sys.modules  # SciPy asks any value there for its classes.
        for allow in (lambda: None, task_flags.allow_all_packages):
            allow()
            print(*filter(importlib.util.find_spec, ("jax", "matplotlib", "pandas", "sklearn", "html")))
    if settings.own_flag == "bug":
        raise KeyError("a bug")
    import os
    environment = {name: os.environ.get(name) for name in task_flags.ENVIRONMENT}
    print(json.dumps({"flags": dataclasses.asdict(settings), "environment": environment}))


console_main = task_flags.console_main(main, DemoSettings)


if __name__ == "__main__":
    console_main()
'''

# What a console script does, and a report at exit on what was imported.
SCRIPT = """
import atexit, sys
atexit.register(lambda: print("tensorflow" in sys.modules, file=open({report!r}, "w")))
sys.argv[0] = "/somewhere/bin/bert-demo"
import demo_command
demo_command.console_main()
"""


@pytest.fixture
def call(tmp_path):
    (tmp_path / "demo_command.py").write_text(COMMAND)
    report = str(tmp_path / "report")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), os.getcwd()]))
    for name in ("TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND"):
        environment.pop(name, None)

    def run(*arguments, as_script=True, **extra):
        start = ["-c", SCRIPT.format(report=report)] if as_script else ["-m", "demo_command"]
        began = time.monotonic()
        command = [sys.executable, *start, *arguments]
        done = subprocess.run(command, env={**environment, **extra}, capture_output=True, text=True, timeout=60)
        print(arguments, f"{time.monotonic() - began:.2f} s")
        if as_script:
            with open(report) as file:
                assert file.read() == "False\n", "TensorFlow was imported"
        return done

    return run


def _seconds_of_children() -> float:
    """What processes that have ended took of a core, which does not hang on what else the machine does."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("as_script", [True, False])
@pytest.mark.parametrize("option", ["--help", "-help", "-?"])
def test_help_lists_own_and_shared_flags(call, as_script, option):
    began = _seconds_of_children()
    done = call(option, as_script=as_script)
    assert _seconds_of_children() - began < 3  # About 0.13 s; TensorFlow would take more than 3.
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("Tells what a command is.\n\nThe second paragraph.\n")
    name = "bert-demo" if as_script else "python -m demo_command"
    assert f"Usage: {name} [flags]" in done.stdout
    for flag in ("own_flag", "output_dir", "[no]do_train", "learning_rate"):
        assert f"\n  --{flag}: " in done.stdout
    for flag in ("num_train_epochs", "distribution_strategy", "mixed_precision", "[no]jit_compile"):
        assert f"\n  --{flag}: " in done.stdout


WRONG = {
    "--nope=1": "Unknown command line flag 'nope'",
    "--learning_rat=1": "Did you mean: learning_rate",
    "--train_batch_size=0": "--train_batch_size=0: must be at least 1",
    "--train_batch_size=many": "--train_batch_size=many",
    "--learning_rate=nan": "--learning_rate=nan: must be a finite number",
    "--learning_rate=-1": "--learning_rate=-1",
    "--num_train_epochs=0": "must be greater than 0",
    "--warmup_proportion=1.5": "--warmup_proportion=1.5",
    "--optimizer=sgd": "must be one of bert-2018, adamw, lamb",
    "--layer_decay=0": "must be greater than 0",
    "--layer_decay=1.5": "--layer_decay=1.5",
    "--layer_decay=inf": "--layer_decay=inf: must be a finite number",
    "--mixed_precision=float64": "must be one of float32, bfloat16, float16",
    "--distribution_strategy=two": "must be one of one_device, mirrored",
}


@pytest.mark.parametrize("argument", WRONG)
def test_wrong_flag_is_one_line(call, argument):
    done = call("--output_dir=out", argument)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("bert-demo: error: ")
    assert WRONG[argument] in done.stderr


def test_missing_flag_and_stray_argument(call):
    done = call()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--output_dir must have a value" in done.stderr
    done = call("--output_dir=")  # A shell variable that is not set: not the current directory.
    assert done.returncode == 2 and "flag --output_dir=: Expected a value, found none." in done.stderr
    done = call("--output_dir=out", "--do_train", "false")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unexpected argument 'false'" in done.stderr


@pytest.mark.parametrize("as_script", [True, False])
def test_errors_of_the_command(call, as_script):
    name = "bert-demo" if as_script else "python -m demo_command"
    done = call("--output_dir=out", "--own_flag=input", as_script=as_script)
    assert done.returncode == 1
    assert done.stderr == f"{name}: error: corpus.txt:3: not valid UTF-8. Convert it.\n"
    done = call("--output_dir=out", "--own_flag=interrupt", as_script=as_script)
    assert done.returncode == 130
    assert done.stderr == f"{name}: interrupted.\n"
    done = call("--output_dir=out", "--own_flag=bug", as_script=as_script)
    assert done.returncode == 1
    assert "KeyError: 'a bug'" in done.stderr.splitlines()[-1]  # A bug keeps its traceback.


def test_errors_of_the_operating_system_are_one_line(call, tmp_path):
    (tmp_path / "metrics.json").mkdir()
    done = call(f"--output_dir={tmp_path}/metrics.json", "--own_flag=directory")
    assert done.returncode == 1
    assert done.stderr == f"bert-demo: error: {tmp_path}/metrics.json: Is a directory\n"
    done = call("--output_dir=out", "--own_flag=full")
    assert done.returncode == 1
    assert done.stderr == "bert-demo: error: [Errno 28] No space left on device\n"
    assert not [name for name in os.listdir(tmp_path) if ".partial" in name]


def test_sigterm_leaves_nothing_half_written(call, tmp_path):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), os.getcwd()]))
    command = [sys.executable, "-m", "demo_command", f"--output_dir={tmp_path}/result", "--own_flag=wait"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"waiting\n"
        assert [name for name in os.listdir(tmp_path) if ".partial" in name]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
        assert process.stderr.read() == b""
    assert not [name for name in os.listdir(tmp_path) if "result" in name]


def test_packages_that_no_command_uses_are_hidden_from_tensorflow(call):
    done = call("--output_dir=out", "--own_flag=imports")
    hidden, allowed, _ = done.stdout.splitlines()
    assert hidden == "html"
    assert allowed == "jax matplotlib pandas sklearn html"  # The tests' own environment has them.


@pytest.mark.parametrize("as_script", [True, False])
def test_settings_and_environment(call, as_script):
    arguments = ["--output_dir=out", "--train_batch_size=7", "--nodo_eval"]
    done = call(*arguments, as_script=as_script, TF_CPP_MIN_LOG_LEVEL="0")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["environment"] == {
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "0",  # The user's.
        "KERAS_BACKEND": "tensorflow",
        "OPENBLAS_NUM_THREADS": "1",
    }
    flags = result["flags"]
    assert flags["train_batch_size"] == 7
    assert (flags["output_dir"], flags["own_flag"], flags["num_gpus"]) == ("out", "x", None)
    assert "help" not in flags and "verbosity" not in flags
