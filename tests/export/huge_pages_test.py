"""Memory moves to huge pages, and holds what it held."""

import mmap
import os

import numpy as np
import pytest

from export import huge_pages

_SIZE = 16 << 20


def _huge_kilobytes(address: int) -> int:
    """Returns how much of the mapping around an address is in huge pages."""
    with open("/proc/self/smaps", encoding="utf-8") as file:
        is_around = False
        for line in file:
            first, *rest = line.split()
            if not first.endswith(":"):
                begin, end = (int(number, 16) for number in first.split("-"))
                is_around = begin <= address < end
            elif is_around and first == "AnonHugePages:":
                return int(rest[0])
    raise AssertionError(f"{address:x}: no mapping")


@pytest.fixture
def memory():
    with mmap.mmap(-1, _SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapping:
        yield mapping


def test_memory_in_use_gets_huge_pages(memory):
    if _kernel() < (6, 1) or not os.path.exists("/sys/kernel/mm/transparent_hugepage"):
        pytest.skip("This kernel moves no memory to huge pages.")
    array = np.frombuffer(memory, np.int64)
    array[:] = np.arange(array.size)
    huge_pages.collapse()
    assert _huge_kilobytes(array.ctypes.data) >= (_SIZE - 2 * (2 << 20)) >> 10  # But for what is not aligned.
    np.testing.assert_array_equal(array, np.arange(array.size))
    del array


def _kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])


def test_a_machine_without_proc_or_madvise_goes_on(memory, monkeypatch):
    memory[:4] = b"held"
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda name: object())
    huge_pages.collapse()
    monkeypatch.setattr(huge_pages, "_MAPS", "/nowhere")
    huge_pages.collapse()
    assert memory[:4] == b"held"
