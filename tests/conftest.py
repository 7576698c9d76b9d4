"""What every test process needs before TensorFlow is imported, and what is said at the end of a run."""

import collections
import contextlib
import functools
import gc
import os
import reprlib
import signal
import sys

import cheap_graphs
import fuzzing
import processes
import pytest
from google.protobuf import message, text_format
from repository import ROOT

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # What the commands run with (tasks/flags.py).
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["HF_HUB_OFFLINE"] = "1"  # No test needs a network; a download is a mistake, and fails at once.
os.environ["MPLBACKEND"] = "Agg"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # LLVM's optimizer takes a sixth of compiled tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # OpenBLAS's and torch's threads spin, and workers use all cores anyway.
# As `pythonpath` in pyproject.toml, for the processes that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])

gc.disable()  # Until all tests are collected: imports make half a million objects that stay.

# A job in the background of a shell ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

_at_end = contextlib.ExitStack()
_LONGEST_ID = 60
_ID = reprlib.Repr()
_ID.maxstring = _ID.maxother = 30


def pytest_configure(config) -> None:
    """Starts one fork server for all of xdist's workers; without them the first command that is tested starts it."""
    if config.getoption("numprocesses", None):
        processes.start_server(_at_end)


def pytest_make_parametrize_id(val) -> str | None:
    """Names documents, bytes and messages by what is in them, so that a list of tests says what was sent."""
    if isinstance(val, message.Message):
        text = text_format.MessageToString(val, as_one_line=True)
    elif isinstance(val, bytes) and len(val) > _LONGEST_ID:
        text = f"{val[:20]!r} and more, {len(val)} bytes"
    elif isinstance(val, str) and len(val) > 2 * _LONGEST_ID:
        text = f"{val[:20]!r} and more, {len(val)} characters"
    elif isinstance(val, dict | list) and val:
        text = _ID.repr(val)
    else:
        return None
    return None if " at 0x" in text else ascii(text)[1 : 2 * _LONGEST_ID].rstrip("'\"")


def pytest_collection_modifyitems(config, items) -> None:
    """Leaves the slow tests, and the cases that a slow test does not keep, to `make test-all`.

    Files of few tests come first: those are the whole runs, and at the end the other workers would wait for them.
    """
    if not fuzzing.FULL and not any("::" in argument for argument in config.args):
        left = [item for item in items if _is_left_out(item)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not _is_left_out(item)]
    counts = collections.Counter(item.path for item in items)
    items.sort(key=lambda item: (counts[item.path], item.path))


def _is_left_out(item) -> bool:
    marker = item.get_closest_marker("slow")
    return marker is not None and item.name.partition("[")[2].rstrip("]") not in marker.kwargs.get("keep", ())


def pytest_collection_finish() -> None:
    """Takes what imports left, half a million objects, out of the garbage collector's sight: a tenth of all time."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20000, 20, 50)
    if "tensorflow" in sys.modules:
        cheap_graphs.begin()
        _fork_verification()
    if tokenizer := sys.modules.get("keras_bert.tokenization.tokenizer"):
        _share_engines(tokenizer)


def _fork_verification() -> None:
    """Lets exports be verified in forks: a new interpreter takes five seconds to import TensorFlow.

    In tests marked `fresh_process` it does (tests/export/conftest.py), and where a user's command verifies.
    """
    from export.verification import runner

    runner.subprocess = processes.FORKING


def _share_engines(tokenizer) -> None:
    """Lets tokenizers of equal vocabularies share their graphs: tracing one takes an eighth of a small training.

    They stay graphs under `eagerly` too, where each `tf.data.Dataset.map` would trace them once more.
    """
    make = tokenizer._Engine

    @functools.lru_cache(32)
    def shared(pieces, lowercase):
        engine = make(list(pieces), lowercase)
        for name in ("_ids_of", "_spans_of", "_settle_rare", "_tokenize_exactly"):
            if function := getattr(engine, name, None):  # Without tensorflow-text there are none.
                setattr(engine, name, _traced_once(function))
        return engine

    tokenizer._Engine = lambda pieces, lowercase: shared(tuple(pieces), lowercase)


def _traced_once(function):
    trace = functools.cache(function.get_concrete_function)
    return lambda *tensors: trace()(*tensors)


@pytest.fixture
def eagerly():
    """Runs the functions of a test at once, where it asks each so rarely that tracing costs more than all else."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def pytest_unconfigure() -> None:
    """Ends the fork server."""
    _at_end.close()


def pytest_terminal_summary(terminalreporter) -> None:
    """Says in one line what was skipped and why."""
    skipped = [(report.nodeid, report.longrepr[2]) for report in terminalreporter.getreports("skipped")]
    if skipped:
        terminalreporter.write_line(skipped_line(skipped))


def skipped_line(skipped: list[tuple[str, str]]) -> str:
    """Returns the line about skipped tests, from the id of each and its reason."""
    by_reason = collections.defaultdict(list)
    for test, reason in skipped:
        by_reason[reason.removeprefix("Skipped: ").rstrip(".")].append(test.partition("::")[0].rpartition("/")[2])
    parts = [
        f"{len(files)} of {', '.join(sorted(set(files)))} ({reason})"
        for reason, files in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    ]
    return f"Skipped {len(skipped)}: {'; '.join(parts)}."
