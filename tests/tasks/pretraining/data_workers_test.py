"""Data creation by several processes: the same bytes; killed, it leaves nothing that looks whole, and goes on."""

import hashlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import fuzzing
import numpy as np
import processes
import pytest
from repository import ROOT

from keras_bert.errors import InputError
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data import driver, writing
from tasks.pretraining.data.corpus import tokenize_block
from tasks.pretraining.data.plan import NEIGHBOURS
from tasks.pretraining.data.publishing import check_published
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.data.token_store import read_store
from tasks.text import blocks
from tasks.text.parallel import LocalPool, WorkerLostError
from tasks.text.steps import scratch_directory

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


@pytest.fixture
def small_blocks(monkeypatch):
    """Cuts the text into some 20 blocks, of which each has neighbours."""
    monkeypatch.setattr(blocks, "_MEBIBYTE", 4_500)


def test_bytes_do_not_depend_on_workers_nor_on_batches(text, tmp_path, monkeypatch, small_blocks):
    expected = create(text, tmp_path / "one", num_shards=3)
    assert len(set(expected)) == 3 and sum(map(len, expected)) > 500_000
    assert (
        hashlib.sha256(b"".join(expected)).hexdigest().startswith("aef8a19b3c4eadfa")
    )  # Pins the bytes of this release.
    sizes = list(map(len, expected))
    assert max(sizes) < 1.1 * min(sizes)
    assert create(text, tmp_path / "three", num_shards=3, num_workers=3) == expected
    monkeypatch.setattr("tasks.pretraining.data.writing._INSTANCES_AT_ONCE", 7)
    assert create(text, tmp_path / "small", num_shards=3, num_workers=1) == expected


def test_no_data_pass_through_the_driver(text, tmp_path, monkeypatch, small_blocks):
    expected = create(text, tmp_path / "one", num_shards=2)
    for name in ("corpus.split_block", "writing.read_store", "writing.open_file", "writing.read_arrays"):
        monkeypatch.setattr(f"tasks.pretraining.data.{name}", None)  # Here, not in the workers.
    assert create(text, tmp_path / "two", num_shards=2, num_workers=2) == expected


def test_a_worker_opens_few_files(text, tmp_path, monkeypatch, small_blocks):
    stores, part_paths = [], []

    def recorded(path, dtype, *part):
        stores.append(path)
        return read_store(path, dtype, *part)

    def written(workspace, path, corpus, pairs):
        part_paths.append(path)
        return write_part(workspace, path, corpus, pairs)

    write_part = writing._write_part
    monkeypatch.setattr(writing, "read_store", recorded)
    monkeypatch.setattr(writing, "_write_part", written)
    create(text, tmp_path / "out", num_shards=40, num_workers=1)
    num_blocks = len(set(stores))
    assert num_blocks > NEIGHBOURS + 1
    assert len(stores) == num_blocks * (1 + NEIGHBOURS)  # However many blocks there are.
    assert len(set(part_paths)) == len(part_paths) < num_blocks + 40  # Whatever the number of shards, each file once.


# === Runs that are killed, and go on ===


class Killed(BaseException):
    """Stands for a SIGKILL: nothing handles it but context managers, whose work the next run must not need."""


def files_below(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_run_that_was_killed_goes_on_where_it_stopped(text, tmp_path, monkeypatch, small_blocks):
    """Before or behind any renaming of a finished file."""
    rename, tokenized, renamed = os.replace, [], []

    def counted(directory, task):
        tokenized.append(task[0])
        return tokenize_block(directory, task)

    def create_killed(moment):
        def replace(source, target):
            renamed.append(target)
            if len(renamed) == moment // 2 and moment % 2:
                raise Killed
            rename(source, target)
            if len(renamed) == moment // 2:
                raise Killed

        renamed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            patch.setattr(driver, "tokenize_block", counted)
            return create(text, tmp_path / "out", input_file=f"{text}/a.txt", num_shards=2, dupe_factor=1)

    expected = create_killed(0)
    files = {path: content for path, content in files_below(tmp_path).items() if path.suffix == ".npz"}
    num_blocks, num_renamed = len(tokenized), len(renamed)
    assert num_blocks > 10 and len(files) == 2
    moments = [
        *range(4, 2 * num_renamed, 2 * num_renamed // fuzzing.some(40)),
        *range(2 * num_renamed - 5, 2 * num_renamed),
    ]
    for moment in moments:
        for path in tmp_path.glob("out*"):
            path.unlink()
        tokenized.clear()
        with pytest.raises(Killed):
            create_killed(moment)
        assert len(list(tmp_path.glob("out-*"))) in (0, 2) or moment > 2 * num_renamed - 16  # Those of the last files.
        assert create_killed(0) == expected
        assert len(tokenized) <= num_blocks + 1 and set(tokenized) == set(range(num_blocks))
        assert {path: path.read_bytes() for path in files} == files
        assert not list(tmp_path.glob(".out.scratch"))


def test_another_flag_or_text_starts_afresh_and_says_so(text, tmp_path, monkeypatch, small_blocks, capsys):
    def fail(directory, block):
        raise Killed

    copy = shutil.copytree(text, tmp_path / "text")
    for changes in ({}, {"random_seed": 6}, "text", "vocabulary"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(driver, "write_block", fail)
            create(copy, tmp_path / "out")
        capsys.readouterr()
        if changes == "text":
            (copy / "a.txt").write_text((copy / "a.txt").read_text().replace("w1", "w2"))
        elif changes == "vocabulary":
            (copy / "vocab.txt").write_text((copy / "vocab.txt").read_text() + "\nnew")
        flags = changes if isinstance(changes, dict) else {}
        report = create(copy, tmp_path / "out", **flags)
        printed = capsys.readouterr().err
        assert ("tasks are finished already" in printed) == (not changes)
        assert ("out.scratch was made from other text or flags. Starting over." in printed) == bool(changes)
        assert changes or report == create(copy, tmp_path / "again", **flags)
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("scratch")) == []


def test_a_lost_worker_leaves_what_is_finished(text, tmp_path, monkeypatch, small_blocks, capsys):
    def lose(self, function, arguments, *shared):
        for argument in list(arguments)[:5]:
            yield function(*shared, argument)
        raise WorkerLostError("A worker process was killed")

    with monkeypatch.context() as patch, pytest.raises(InputError, match="was killed"):
        patch.setattr(LocalPool, "map", lose)
        create(text, tmp_path / "out")
    create(text, tmp_path / "out")
    assert "tokenize: 5 of " in capsys.readouterr().err


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


def test_results_come_in_order():
    with LocalPool(2) as pool:
        everything = list(pool.map(describe, range(40), "place"))
        again = list(pool.map(describe, [7], "place"))
    assert [result[:2] for result in everything] == [("place", number) for number in range(40)]
    processes = {result[2] for result in everything}
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


# === Scratch directories ===


def test_a_scratch_directory_is_kept_for_the_same_work(tmp_path):
    path = tmp_path / "deep" / ".scratch"
    (path / "left").mkdir(parents=True)
    with pytest.raises(KeyError), scratch_directory(str(path), "mine") as directory:
        assert os.listdir(path) == ["mine"] and os.listdir(directory) == []
        (path / "mine" / "file").write_text("x")
        raise KeyError
    with scratch_directory(str(path), "mine") as directory:
        assert os.listdir(directory) == ["file"]
    assert os.listdir(tmp_path / "deep") == []
    with pytest.raises(InputError), scratch_directory(str(path), "mine"):
        raise InputError("bad text")
    assert not path.exists()


def test_a_scratch_directory_has_one_owner(tmp_path, text):
    with scratch_directory(str(tmp_path / ".out.scratch"), "mine"):
        with pytest.raises(InputError, match="another run is writing there"):
            create(text, tmp_path / "out")
        assert os.listdir(tmp_path / ".out.scratch") == ["mine"]
    create(text, tmp_path / "out")


def test_a_scratch_directory_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/x: cannot be created .Not a directory"):
        with scratch_directory(str(tmp_path / "file" / "x"), "mine"):
            pass


def start(text, output_file):
    command = [sys.executable, "-m", "tasks.pretraining.create_data", "--num_workers=2", "--num_shards=2"]
    values = {"input_file": f"{text}/[ab].txt", "output_file": output_file, "vocab_file": f"{text}/vocab.txt"}
    settings = {**values, **SETTINGS, "dupe_factor": 1}
    return subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in settings.items())],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


KILLED = """
import os, signal
from tasks.pretraining import create_data
replace = os.replace
def replace_and_die(source, target):
    replace(source, target)
    if target.endswith("out-00000-of-00002"):
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace_and_die
create_data.console_main()
"""


def test_no_training_takes_old_and_new_files_for_a_whole(text, tmp_path):
    """REVIEW2.md, B: a kill between two renames left the first file of the new set beside the second of the old."""
    values = {"input_file": f"{text}/a.txt", "output_file": f"{tmp_path}/out", "vocab_file": f"{text}/vocab.txt"}
    values |= {**SETTINGS, "dupe_factor": 1, "num_shards": 2}

    def run(*program, **changes):
        options = (f"--{name}={value}" for name, value in (values | changes).items())
        return processes.run([sys.executable, *program, *options], cwd=ROOT, capture_output=True, text=True)

    def train():
        settings = {
            "input_file": f"{tmp_path}/out-*",
            "output_dir": f"{tmp_path}/run",
            "vocab_file": values["vocab_file"],
        }
        options = [
            *(f"--{name}={value}" for name, value in settings.items()),
            "--do_train",
            "--bert_config_file=missing",
        ]
        return processes.run(
            [sys.executable, "-m", "tasks.pretraining.run", *options], cwd=ROOT, capture_output=True, text=True
        ).stderr.strip()

    assert run("-m", "tasks.pretraining.create_data").returncode == 0
    old = [(tmp_path / f"out-0000{shard}-of-00002").read_bytes() for shard in range(2)]
    assert run("-c", KILLED, random_seed=6).returncode == -signal.SIGKILL
    now = [(tmp_path / f"out-0000{shard}-of-00002").read_bytes() for shard in range(2)]
    assert now[0] != old[0] and now[1] == old[1]
    refusal = "out-00000-of-00002: may belong to a mix of old and new files: .out-00000-of-00002.INCOMPLETE lists it."
    assert refusal in train().splitlines()[-1]
    assert run("-m", "tasks.pretraining.create_data", random_seed=6).returncode == 0
    assert (tmp_path / "out-00001-of-00002").read_bytes() != old[1]
    assert "old and new files" not in (said := train()) and "missing" in said
    assert run("-m", "tasks.pretraining.create_data", num_shards=3).returncode == 0
    assert "out-00000-of-00002, " in (said := train()) and "out-00000-of-00003: files of two sets of one name" in said


@pytest.mark.parametrize("names", [("out", "out-00000-of-00002"), ("out-00001-of-00003", "out-00000-of-00002")])
def test_two_sets_of_one_name_are_refused(tmp_path, names):
    paths = [str(tmp_path / name) for name in names]
    check_published([paths[0], str(tmp_path / "other"), str(tmp_path / "out-1-of-2"), paths[0]])
    with pytest.raises(InputError, match=f"{paths[0]}, {paths[1]}: files of two sets of one name"):
        check_published(paths)


def wait_for(condition, seconds=60):
    for _ in range(seconds * 20):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it never came")


def processes_on(path):
    """Processes of this command: the path stands on their command line, or their parent is such a one."""
    pids, parents = set(), {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if str(path).encode() in file.read():
                    pids.add(int(name))
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return pids | {process for process, parent in parents.items() if parent in pids}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_at_any_moment_the_same_command_goes_on(text, tmp_path, number):
    names = [f"out-0000{shard}-of-00002" for shard in range(2)]
    large = tmp_path / "text"
    large.mkdir()
    for name in ("a.txt", "b.txt"):
        (large / name).write_text((text / name).read_text() * 120)
    shutil.copyfile(text / "vocab.txt", large / "vocab.txt")
    for name in names:
        (tmp_path / name).write_text("of an earlier run")
    scratch = tmp_path / ".out.scratch"
    rng, continued = random.Random(number), 0
    for _ in range(4):
        process = start(large, tmp_path / "out")
        moment = rng.randint(1, 5) + len(list(scratch.glob("*/*/0*.json")))
        wait_for(lambda p=process, n=moment: p.poll() is not None or len(list(scratch.glob("*/*/0*.json"))) >= n)
        if process.poll() is not None:
            continued += b"tasks are finished already" in process.stderr.read()
            break
        running = processes_on(tmp_path) - {process.pid}
        process.send_signal(number)
        # The last two of a line: before the command has said what a signal does.
        codes = {signal.SIGKILL: [-9], signal.SIGTERM: [143, -15], signal.SIGINT: [130, 1, -2]}
        assert process.wait(30) in codes[number]
        continued += b"tasks are finished already" in process.stderr.read()
        if scratch.exists():
            is_publishing = len(list(scratch.glob("*/join/0*"))) == 2 or list(scratch.glob("*-finished"))
            assert is_publishing or [(tmp_path / name).read_text() for name in names] == ["of an earlier run"] * 2
            assert is_publishing or set(os.listdir(tmp_path)) == {*names, ".out.scratch", "text"}
        wait_for(lambda running=running: not any(os.path.exists(f"/proc/{pid}") for pid in running), 20)
    assert continued
    settings = {"num_shards": 2, "dupe_factor": 1}
    assert create(large, tmp_path / "out", **settings) == create(large, tmp_path / "again", **settings)
    assert not scratch.exists()
    assert len(list(itertools.chain(tmp_path.glob("out*"), tmp_path.glob(".out*")))) == 5
