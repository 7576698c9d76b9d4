"""How many heaps the threads of a process have."""

import os
import platform
import subprocess
import sys

import pytest
from repository import ROOT

# Prints the number of heaps that eight threads, all alive at the same time, have allocated from.
_COUNT = """
import ctypes, os, re, threading
from export.server.runtime import memory
if {limits}:
    memory.limit_arenas()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(8)
def allocate():
    barrier.wait()
    assert library.malloc(100_000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
memory.return_free_pages()
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(b"{path}", b"w"))
assert library.malloc_info(0, file) == 0 and library.fclose(file) == 0
print(len(re.findall("<heap nr", open("{path}").read())))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="Another C library has no such heaps.")
@pytest.mark.parametrize(
    ("limits", "variables", "expected"),
    [
        (True, {}, {1, 2}),
        (True, {"MALLOC_ARENA_MAX": "5"}, {3, 4, 5}),  # The user's own number.
        (False, {}, {3, 4, 5, 6, 7, 8, 9}),
    ],
)
def test_threads_share_two_heaps(tmp_path, limits, variables, expected):
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | variables
    code = _COUNT.format(limits=limits, path=tmp_path / "heaps.xml")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) in expected
