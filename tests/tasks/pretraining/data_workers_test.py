"""Data creation by several processes: the same bytes; killed or failed, it leaves nothing that looks whole."""

import hashlib
import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from repository import ROOT

from keras_bert.errors import InputError
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data import corpus
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.data.workspace import scratch_directory
from tasks.text.parallel import LocalPool
from tasks.text.reading import LINES

SETTINGS = {
    "max_seq_length": 64,
    "max_predictions_per_seq": 10,
    "masked_lm_prob": 0.15,
    "short_seq_prob": 0.1,
    "dupe_factor": 3,
    "random_seed": 5,
    "do_whole_word_mask": True,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """(vocabulary, two files): 150 documents of up to 30 sentences."""
    directory = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(300)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *(f"##w{number}" for number in range(100))]
    (directory / "vocab.txt").write_text("\n".join(pieces))
    for name in ("a.txt", "b.txt"):
        documents = []
        for _ in range(75):
            sentences = [
                "".join(f"{' ' if rng.random() < 0.8 else ''}w{rng.integers(100)}" for _ in range(rng.integers(1, 20)))
                for _ in range(rng.integers(1, 31))
            ]
            documents.append("\n".join(sentences))
        (directory / name).write_text("\n\n".join(documents) + "\n")
    return directory


def create(text, output_file, **changes):
    arguments = {
        "input_file": f"{text}/[ab].txt",
        "output_file": str(output_file),
        "vocab_file": f"{text}/vocab.txt",
        **SETTINGS,
        **changes,
    }
    report = create_pretraining_data(DataSettings(**arguments))
    return [open(path, "rb").read() for path in report["output_files"]]


def test_bytes_do_not_depend_on_workers_nor_on_how_work_is_cut(text, tmp_path, monkeypatch):
    expected = create(text, tmp_path / "one", num_shards=3)
    assert len(set(expected)) == 3 and sum(map(len, expected)) > 500_000
    assert hashlib.sha256(b"".join(expected)).hexdigest().startswith("aef1e5260d76154c")  # Since the first release.
    monkeypatch.setattr(corpus, "LINES", LINES._replace(piece_bytes=10_000, unit_bytes=10_000))
    monkeypatch.setattr("tasks.pretraining.data.writing._TOKENS_PER_UNIT", 3_000)
    monkeypatch.setattr("tasks.pretraining.data.writing._DOCUMENTS_PER_UNIT", 40)
    monkeypatch.setattr("tasks.pretraining.data.driver.INSTANCES_PER_UNIT", 100)
    assert create(text, tmp_path / "three", num_shards=3, num_workers=3) == expected
    monkeypatch.setattr("tasks.pretraining.data.writing._INSTANCES_AT_ONCE", 7)
    monkeypatch.setattr("tasks.pretraining.data.writing._LOOK_UPS_AT_ONCE", 2)
    assert create(text, tmp_path / "small", num_shards=3, num_workers=1) == expected


def test_an_error_in_a_worker_reaches_the_caller_and_leaves_nothing(text, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"w1\n\nw2\xff\n")
    with pytest.raises(InputError, match=r"bad.txt:3: not valid UTF-8"):
        create(text, tmp_path / "out", input_file=str(tmp_path / "bad.txt"), num_workers=2)
    assert os.listdir(tmp_path) == ["bad.txt"]


# === The pool ===


def describe(directory, argument):
    return directory, argument, os.getpid()


def fail(directory, argument):
    raise InputError(f"{directory}: {argument} cannot be read")


def die(directory, argument):
    os._exit(1)


def test_results_come_in_order_and_arguments_are_drawn_a_few_ahead():
    drawn = []

    def arguments():
        for number in range(40):
            drawn.append(number)
            yield number

    with LocalPool(2) as pool:
        results = pool.map(describe, arguments(), "place")
        first = next(results)
        assert len(drawn) < 8
        everything = [first, *results]
        again = list(pool.map(describe, [7], "place"))
    assert [found[:2] for found in everything] == [("place", number) for number in range(40)]
    processes = {found[2] for found in everything}
    assert len(processes) <= 2 and os.getpid() not in processes
    assert again[0][2] in processes  # started once


def test_one_worker_is_the_calling_process():
    with LocalPool(1) as pool:
        assert list(pool.map(describe, "ab", "place")) == [("place", letter, os.getpid()) for letter in "ab"]


def test_errors_of_workers_are_input_errors():
    with LocalPool(2) as pool, pytest.raises(InputError, match="place: 0 cannot be read"):
        list(pool.map(fail, range(9), "place"))
    with LocalPool(2) as pool, pytest.raises(InputError, match="A worker process was killed.*Lower --num_workers"):
        list(pool.map(die, range(9), "place"))


# === Scratch directories, and runs that are killed ===


def test_a_scratch_directory_is_empty_then_gone(tmp_path):
    path = tmp_path / "deep" / ".scratch"
    (path / "left").mkdir(parents=True)
    with scratch_directory(str(path)) as found:
        assert os.listdir(found) == []
        (path / "file").write_text("x")
    assert os.listdir(tmp_path / "deep") == []
    with pytest.raises(KeyError), scratch_directory(str(path)):
        raise KeyError
    assert not path.exists()


def test_a_scratch_directory_has_one_owner(tmp_path, text):
    with scratch_directory(str(tmp_path / ".out.scratch")):
        with pytest.raises(InputError, match="another run is writing there"):
            create(text, tmp_path / "out")
        assert os.listdir(tmp_path / ".out.scratch") == []
    create(text, tmp_path / "out")


def test_a_scratch_directory_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/x: cannot be created .Not a directory"):
        with scratch_directory(str(tmp_path / "file" / "x")):
            pass


def start(text, output_file):
    command = [sys.executable, "-m", "tasks.pretraining.create_data", "--num_workers=2", "--num_shards=2"]
    values = {"input_file": f"{text}/[ab].txt", "output_file": output_file, "vocab_file": f"{text}/vocab.txt"}
    settings = {**values, **SETTINGS, "dupe_factor": 120}
    return subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in settings.items())],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait_for(condition, seconds=60):
    for _ in range(seconds * 20):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("waited in vain")


def processes_on(path):
    """Processes of this command: the path stands on their command line, or their parent is such a one."""
    found, parents = set(), {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if str(path).encode() in file.read():
                    found.add(int(name))
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found | {process for process, parent in parents.items() if parent in found}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_half_way_it_leaves_no_file_that_looks_whole(text, tmp_path, number):
    names = [f"out-0000{shard}-of-00002" for shard in range(2)]
    for name in names:
        (tmp_path / name).write_text("of an earlier run")
    process = start(text, tmp_path / "out")
    scratch = tmp_path / ".out.scratch"
    wait_for(lambda: process.poll() is not None or sum(os.path.getsize(path) for path in scratch.glob("0*")) > 10**5)
    assert process.returncode is None, process.stderr.read()
    running = processes_on(tmp_path)
    assert len(running) >= 3
    process.send_signal(number)
    assert process.wait(30) == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert [(tmp_path / name).read_text() for name in names] == ["of an earlier run"] * 2
    left = {".out.scratch"} if number == signal.SIGKILL else set()
    assert set(os.listdir(tmp_path)) == {*names, *left}
    wait_for(lambda: not any(os.path.exists(f"/proc/{one}") for one in running - {process.pid}), 20)
    found = create(text, tmp_path / "out", num_shards=2, num_workers=1)
    assert found == create(text, tmp_path / "again", num_shards=2)
    assert not scratch.exists()
    assert len(list(itertools.chain(tmp_path.glob("out*"), tmp_path.glob(".out*")))) == 4  # two reports
