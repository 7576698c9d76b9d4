"""Describes the machine, for the first line of a benchmark's output."""

import os
import platform

_INSTRUCTIONS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def describe_machine() -> str:
    """Returns the processor, its instructions for products, its cores and TensorFlow's oneDNN flag in one line."""
    flag = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "not set")
    name = _of_processor("model name") or platform.processor() or platform.machine()
    known = ", ".join(instructions()) or "no AVX2"
    return f"{name} ({known}), {os.cpu_count()} cores, TF_ENABLE_ONEDNN_OPTS={flag}"


def instructions() -> list[str]:
    """Names those of the processor's instructions that products may use."""
    return [name for name in _INSTRUCTIONS if name in _of_processor("flags").split()]


def _of_processor(key: str) -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.partition(":")[0].strip() == key:
                    return line.partition(":")[2].strip()
    return ""
