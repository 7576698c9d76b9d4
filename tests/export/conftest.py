"""What the tests of exports share: graphs on disk, and verification in a fresh process where a test asks for it."""

import functools
import gc
import os
import shutil
import subprocess
from typing import NamedTuple

import filelock
import pytest
import toy_server
from toy_saved import ALL_HEADS, save_graph

from export.heads.base import Head
from export.verification import runner
from export.verification.verify import Probe


@pytest.fixture(autouse=True)
def _true_verification(request, monkeypatch):
    if request.node.get_closest_marker("fresh_process"):
        monkeypatch.setattr(runner, "subprocess", subprocess)


@pytest.fixture(name="quick_sessions")
def _quick_sessions():
    with toy_server.quick_sessions():
        yield


@pytest.fixture(scope="module")
def small_heap():
    """Hides all objects so far from the garbage collector, which a server runs for each version that ends.

    In a process of many tests each run took 0.3 s. The objects stay hidden, since `gc.unfreeze` would also show it what
    imports left (tests/conftest.py).
    """
    gc.collect()
    gc.freeze()


class Saved(NamedTuple):
    """A head's graph on disk, moved there from where it was written."""

    head: Head
    base: str

    @property
    def directory(self) -> str:
        return os.path.join(self.base, "1")

    @property
    def probes(self) -> list[Probe]:
        return _probes(self.head)


@functools.cache
def _probes(head: Head) -> list[Probe]:
    return head.probes(head.model)


@pytest.fixture(scope="session")
def saved(tmp_path_factory, worker_id):
    """Gives `Saved` by the name of a head; each is written once for all tests of all workers, and copied."""
    root = tmp_path_factory.mktemp("saved")
    shared = root if worker_id == "master" else tmp_path_factory.getbasetemp().parent

    @functools.cache
    def save(name: str) -> Saved:
        head, base = ALL_HEADS[name](), str(root / name.replace(" ", "_"))
        written = str(shared / f"graph_of_{name.replace(' ', '_')}")
        with filelock.FileLock(f"{written}.lock"):
            if not os.path.isdir(written):
                save_graph(head, f"{written}.unfinished")
                os.rename(f"{written}.unfinished", written)
        shutil.copytree(written, os.path.join(base, "1"))
        return Saved(head, base)

    return save
