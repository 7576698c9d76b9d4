"""Settings that every test process needs before TensorFlow is imported."""

import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # What the commands run with (tasks/flags.py).
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["HF_HUB_OFFLINE"] = "1"  # No test needs a network; a download is a mistake, and fails at once.
os.environ["MPLBACKEND"] = "Agg"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A job in the background of a shell ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
