"""Marks tests that compute in bfloat16, and skips them where TensorFlow cannot.

ONEDNN_MAX_CPU_ISA=AVX2 lets oneDNN pass for that of an older processor. TensorFlow asks the processor itself, hands it
products in bfloat16 because there is AVX-512, and aborts the process; without AVX-512 it computes them by Eigen.
"""

import os
import pathlib

import pytest

_CPU_INFO = pathlib.Path("/proc/cpuinfo")
IS_BROKEN = (
    not os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX512").startswith(("AVX512", "AVX10", "ALL", "DEFAULT"))
    and _CPU_INFO.exists()
    and "avx512f" in _CPU_INFO.read_text()
)
needs_bfloat16 = pytest.mark.skipif(
    IS_BROKEN, reason="with this ONEDNN_MAX_CPU_ISA TensorFlow aborts in bfloat16 on a processor with AVX-512"
)
