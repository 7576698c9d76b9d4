"""Data creation on Apache Beam: the bytes of the local run; and what is said where Beam is missing."""

import gzip
import os
import shutil
import sys

import numpy as np
import pytest

from keras_bert.errors import InputError
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data.settings import DataSettings

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


def contents(report):
    return [open(path, "rb").read() for path in report["output_files"]]


def test_a_missing_beam_says_how_to_get_it(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "tasks.pretraining.data.beam", raising=False)
    with pytest.raises(InputError, match=r"--runner needs Apache Beam.*pip install 'keras-bert-zoo\[beam\]'"):
        create(text, tmp_path / "out", runner="DirectRunner")
    assert os.listdir(tmp_path) == []


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
    assert contents(beam) == contents(local)
    same = set(local) - {"seconds", "output_files"}
    assert {name: beam[name] for name in same} == {name: local[name] for name in same}
    shards = [f"{name}-0000{shard}-of-00003" for name in ("beam", "local") for shard in range(3)]
    reports = [f"{name}.{end}" for name in ("beam", "local") for end in ("lengths.png", "report.json")]
    assert sorted(os.listdir(tmp_path)) == sorted([*shards, *reports])


def test_beam_refuses_what_the_local_run_refuses(text, tmp_path):
    needs_beam()
    (tmp_path / "bad.txt").write_bytes(b"a\n\nb\xff\n")
    with pytest.raises(InputError, match=r"bad.txt:3: not valid UTF-8 at byte 1 of the line \(0xff\)"):
        create(text, tmp_path / "out", input_file=str(tmp_path / "bad.txt"), runner="DirectRunner")
    with pytest.raises(InputError, match="--runner=NoRunner .*Beam refuses them"):
        create(text, tmp_path / "out", runner="NoRunner")
    assert os.listdir(tmp_path) == ["bad.txt"]


def test_a_store_that_is_no_disk_is_copied_to_the_workers(text, tmp_path, monkeypatch):
    needs_beam()
    from apache_beam.io.localfilesystem import LocalFileSystem

    class ElsewhereFileSystem(LocalFileSystem):
        """The folder `tmp_path` under the scheme "elsewhere"."""

        def __init__(self, pipeline_options):
            super().__init__(pipeline_options)
            for name in ("mkdirs", "create", "open", "exists"):
                setattr(self, name, self._with_paths(getattr(super(), name)))

        def _with_paths(self, method):
            return lambda path, *args, **kwargs: method(self._path(path), *args, **kwargs)

        @staticmethod
        def _path(path):
            return str(tmp_path / path.removeprefix("elsewhere://"))

        @classmethod
        def scheme(cls):
            return "elsewhere"

        def join(self, basepath, *paths):
            return "/".join([basepath.rstrip("/"), *paths])

        def split(self, path):
            return tuple(path.rsplit("/", 1))

        def rename(self, sources, destinations):
            super().rename([self._path(path) for path in sources], [self._path(path) for path in destinations])

        def delete(self, paths):
            for path in map(self._path, paths):
                (shutil.rmtree if os.path.isdir(path) else os.remove)(path)

        def match(self, patterns, limits=None):
            found = super().match([self._path(pattern) for pattern in patterns], limits)
            for result in found:
                for metadata in result.metadata_list:
                    metadata.path = f"elsewhere://{os.path.relpath(metadata.path, tmp_path)}"
            return found

    (tmp_path / "bucket").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "bucket" / name).write_bytes((text / name).read_bytes())
    local = create(text, tmp_path / "local", num_shards=2)
    arguments = {"runner": "DirectRunner", "num_shards": 2, "input_file": "elsewhere://bucket/*.txt"}
    create(text, "elsewhere://bucket/out", **arguments)
    found = [(tmp_path / "bucket" / f"out-0000{shard}-of-00002").read_bytes() for shard in range(2)]
    assert found == contents(local)
    assert not [name for name in os.listdir(tmp_path / "bucket") if name.startswith(".")]
