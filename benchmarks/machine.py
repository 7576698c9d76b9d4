"""Description of the machine, for the first line of a benchmark's output."""

import os
import platform


def describe_machine() -> str:
    """Returns the processor, its cores and TensorFlow's oneDNN flag in one line."""
    flag = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "not set")
    return f"{_processor()}, {os.cpu_count()} cores, TF_ENABLE_ONEDNN_OPTS={flag}"


def _processor() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
