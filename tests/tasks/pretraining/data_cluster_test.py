"""Data creation on Apache Beam and its clusters: the bytes of the local run; and what is said where Beam is missing."""

import contextlib
import gzip
import hashlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from repository import ROOT, SHARED

from keras_bert.errors import InputError
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data import driver
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.data.shard_index import index_path
from tasks.pretraining.train_vocab import VocabularySettings, train_vocab

SETTINGS = {
    "max_seq_length": 32,
    "max_predictions_per_seq": 5,
    "masked_lm_prob": 0.15,
    "short_seq_prob": 0.1,
    "dupe_factor": 2,
    "random_seed": 5,
    "do_whole_word_mask": False,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    directory = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]))
    for name in ("a.txt", "b.txt"):
        documents = ["\n".join(" ".join(rng.choice(list("abcdefgh"), 9)) for _ in range(12)) for _ in range(30)]
        (directory / name).write_text("\n\n".join(documents) + "\n")
    (directory / "b.gz").write_bytes(gzip.compress((directory / "b.txt").read_bytes()))
    return directory


def create(text, output_file, **changes):
    arguments = {
        "input_file": [f"{text}/a.txt", f"{text}/b.txt"],
        "output_file": str(output_file),
        "vocab_file": f"{text}/vocab.txt",
        **SETTINGS,
        **changes,
    }
    return create_pretraining_data(DataSettings(**arguments))


def test_beam_is_not_imported_unasked(text, tmp_path):
    create(text, tmp_path / "out")
    assert "tasks.pretraining.data.beam" not in sys.modules or "apache_beam" in sys.modules


def needs_beam():
    pytest.importorskip("apache_beam", reason="apache-beam, which has a lock of its own, is not installed")


def test_direct_runner_writes_the_bytes_of_the_local_run(text, tmp_path):
    needs_beam()
    local = create(text, tmp_path / "local", num_shards=3)
    (tmp_path / "beam-00000-of-00003").write_text("of an earlier run")
    files = [f"{text}/a.txt", f"{text}/b.gz"]
    beam = create(text, tmp_path / "beam", num_shards=3, runner="DirectRunner", input_file=files)
    assert digests(beam) == digests(local)
    same = set(local) - {"seconds", "output_files"}
    assert {name: beam[name] for name in same} == {name: local[name] for name in same}
    shards = [f"{name}-0000{shard}-of-00003" for name in ("beam", "local") for shard in range(3)]
    reports = [f"{name}.report.json" for name in ("beam", "local")]
    indexes = [f".{shard}.index.npz" for shard in shards]
    assert sorted(os.listdir(tmp_path)) == sorted([*shards, *reports, *indexes])


def test_direct_runner_counts_the_words_of_the_local_run(text, tmp_path):
    needs_beam()
    written = []
    for runner in (None, "DirectRunner"):
        settings = {"input_file": [f"{text}/a.txt", f"{text}/b.gz"], "vocab_file": str(tmp_path / "vocab.txt")}
        counts = tmp_path / "text.counts"
        train_vocab(VocabularySettings(**settings, word_counts_file=str(counts), runner=runner))
        written.append((counts.read_bytes(), (tmp_path / "vocab.txt").read_bytes()))
    assert written[0] == written[1]
    assert sorted(os.listdir(tmp_path)) == ["text.counts", "vocab.txt"]


def test_beam_refuses_what_the_local_run_refuses(text, tmp_path):
    needs_beam()
    (tmp_path / "bad.txt").write_bytes(b"a\n\nb\xff\n")
    with pytest.raises(InputError, match=r"bad.txt:3: not valid UTF-8 at byte 1 of the line \(0xff\)"):
        create(text, tmp_path / "out", input_file=str(tmp_path / "bad.txt"), runner="DirectRunner")
    with pytest.raises(InputError, match="--runner=NoRunner .*Beam refuses them"):
        create(text, tmp_path / "out", runner="NoRunner")
    assert os.listdir(tmp_path) == ["bad.txt"]


# === Clusters on this machine ===


class Cluster:
    """Processes of a cluster; ended with the context."""

    def __init__(self):
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.started:
            process.kill()
            process.wait()

    def start(self, directory, *command):
        # The worker pool of Beam starts whatever is called python.
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"}
        with open(directory / "cluster.log", "a") as log:
            command = [sys.executable, "-m", *map(str, command)]
            self.started.append(subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=log))
        return self.started[-1]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for_port(port):
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    pytest.fail("the cluster did not start")


@contextlib.contextmanager
def dask(directory, num_workers):
    """(address, worker processes) of a scheduler and workers with one thread each, over TCP."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with Cluster() as cluster:
        cluster.start(
            directory, "distributed.cli.dask_scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard"
        )
        wait_for_port(port)
        flags = ["--nthreads=1", "--no-nanny", "--no-dashboard"]
        workers = [cluster.start(directory, "distributed.cli.dask_worker", address, *flags) for _ in range(num_workers)]
        yield address, workers


@pytest.fixture
def large_text(text, tmp_path):
    """100 MB of text, or what $CLUSTER_MEGABYTES says: that of ../shared/data, or of docstrings, again and again."""
    corpus = (SHARED / "corpus" / "wikitext2-valid.txt").read_text(encoding="utf-8")
    size, written = int(os.environ.get("CLUSTER_MEGABYTES", 100)) * 10**6, 0
    with open(tmp_path / "text", "w", encoding="utf-8") as file:
        for number in itertools.count():
            if written >= size:
                return {"input_file": str(tmp_path / "text"), "vocab_file": str(SHARED / "vocab" / "uncased_en.txt")}
            part = "\n".join(f"{number}\n{line}\n" for line in corpus.split("\n") if line.strip())
            file.write(part)
            written += len(part.encode())


def test_killed_workers_of_dask_change_nothing(text, tmp_path, large_text):
    needs_beam()
    sizes = {"max_seq_length": 128, "max_predictions_per_seq": 20, "dupe_factor": 1, "num_shards": 5}
    arguments = {**large_text, **sizes}
    local = create(text, tmp_path / "local", **arguments)
    rng = random.Random(os.environ.get("CLUSTER_SEED", 0))
    with dask(tmp_path, 4) as (address, workers):
        killers = []
        for process in rng.sample(workers, 2):
            killers.append(threading.Timer(local["seconds"] * rng.uniform(0.1, 0.6) + 5, process.kill))
            killers[-1].start()
        report = create(
            text, tmp_path / "dask", **arguments, runner="dask", beam_options=[f"--dask_client_address={address}"]
        )
        for killer in killers:
            killer.join()
        assert sum(process.poll() == -signal.SIGKILL for process in workers) == 2
        assert report["seconds"] > killers[1].interval or report["seconds"] > killers[0].interval
    assert digests(report) == digests(local)
    assert not (tmp_path / ".dask.scratch").exists()


def digests(report):
    """The bytes of the shards and their indexes."""
    paths = [path for shard in report["output_files"] for path in (shard, index_path(shard))]
    return [hashlib.sha256(open(path, "rb").read()).hexdigest() for path in paths]


def test_beams_own_job_service_writes_the_bytes_of_the_local_run(text, tmp_path):
    needs_beam()
    local = create(text, tmp_path / "local", num_shards=2)
    jobs, workers = free_port(), free_port()
    service = "apache_beam.runners.portability.local_job_service_main"
    pool = "apache_beam.runners.worker.worker_pool_main"
    with Cluster() as cluster:
        cluster.start(tmp_path, service, f"--port={jobs}")
        cluster.start(tmp_path, pool, f"--service_port={workers}")
        wait_for_port(jobs)
        wait_for_port(workers)
        options = [f"--job_endpoint=localhost:{jobs}", "--environment_type=EXTERNAL"]
        options.append(f"--environment_config=localhost:{workers}")
        portable = create(text, tmp_path / "portable", num_shards=2, runner="portable", beam_options=options)
    assert digests(portable) == digests(local)


def test_a_run_goes_on_with_another_engine(text, tmp_path, monkeypatch, capsys):
    needs_beam()

    def fail(directory, block):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(driver, "write_block", fail)
        create(text, tmp_path / "out")
    beam = create(text, tmp_path / "out", runner="DirectRunner")
    assert "tokenize: 1 of 1 tasks are finished already" in capsys.readouterr().err
    assert digests(beam) == digests(create(text, tmp_path / "local"))
