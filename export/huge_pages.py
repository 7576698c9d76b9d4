"""Moves a process's memory to huge pages, so that reading a model's weights takes fewer page walks.

A request of few tokens reads all kernels once, 43 MB for MiniLM, from 10,000 pages of 4 KiB. In pages of 2 MiB a
single request took 0.95 to 0.98 of its time (docs/benchmarks.md). Weights lie where TensorFlow and ONNX Runtime
have put them, so all memory is asked for.
"""

import contextlib
import ctypes
import os
import re

_MAPS = "/proc/self/maps"
_HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25  # Of Linux 6.1 and later; others refuse it.
# A private writable mapping of no file: begin and end.
_MEMORY = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw.p 0+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)


def collapse() -> None:
    """Asks the kernel for huge pages in place of those in use; a kernel that has none leaves all as it was.

    This takes a second for a gigabyte, in which other threads go on.
    """
    if not os.path.exists(_MAPS):
        return
    with open(_MAPS, encoding="utf-8") as file:
        ranges = [[int(number, 16) for number in found.groups()] for found in _MEMORY.finditer(file.read())]
    with contextlib.suppress(AttributeError):  # A C library without madvise.
        advise = ctypes.CDLL(None).madvise
        for begin, end in ranges:
            begin = -(-begin // _HUGE_PAGE) * _HUGE_PAGE
            size = (end - begin) // _HUGE_PAGE * _HUGE_PAGE
            if size > 0:
                advise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_COLLAPSE)
