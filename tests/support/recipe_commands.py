"""The recipes' command lines, as `DRY_RUN=1` prints them."""

import functools
import itertools
import os
import shlex
import subprocess

from repository import ROOT

RECIPES = ROOT / "recipes"
SOURCED = {"common.sh", "glue_tasks.sh", "ner_files.sh", "pretraining.sh"}
SCRIPTS = sorted(path.name for path in RECIPES.glob("*.sh") if path.name not in SOURCED)
EXPECTED_SCRIPTS = [
    "ablations.sh",
    "features_ner.sh",
    "glue.sh",
    "learning_curve.sh",
    "model_size.sh",
    "ner.sh",
    "pretrain_base.sh",
    "pretrain_large.sh",
    "squad_1.1.sh",
    "squad_2.0.sh",
    "swag.sh",
]
COMMANDS = [
    "bert-classify",
    "bert-create-pretraining-data",
    "bert-ner",
    "bert-pretrain",
    "bert-squad",
    "bert-swag",
    "bert-train-vocab",
]
PATHS = {
    "DATA_DIR": "/none/data",
    "OUTPUT_DIR": "/none/out",
    "GLUE_DIR": "/none/glue",
    "SQUAD_DIR": "/none/squad",
    "TRAIN_TEXT": "/none/train/*.txt",
    "HELD_OUT_TEXT": "/none/held out/*.txt",
}
PRETRAINING = {"ablations.sh", "model_size.sh", "pretrain_base.sh", "pretrain_large.sh"}
# NER's recipes name the cased encoder themselves.
WITH_PRESET = {"glue.sh", "learning_curve.sh", "squad_1.1.sh", "squad_2.0.sh", "swag.sh"}

VARIANTS = [
    *((script, scale) for script in EXPECTED_SCRIPTS for scale in ("full", "laptop")),
    ("glue.sh", "full", ("PRESET", "large"), ("HARDWARE", "gpus"), ("TRAIN_WNLI", "1"), ("ACCUMULATION", "8")),
    ("squad_1.1.sh", "full", ("HARDWARE", "cpu")),
    ("ner.sh", "full", ("SEEDS", "1 2"), ("RATES", "5e-5")),
    ("pretrain_base.sh", "full", ("HARDWARE", "tpu"), ("TPU_NAME", "local"), ("OPTIMIZER", "lamb")),
    ("pretrain_base.sh", "full", ("HARDWARE", "gpu"), ("VOCAB_FILE", "/none/vocab.txt")),
    ("pretrain_large.sh", "laptop", ("OPTIMIZER", "lamb"), ("INPUT_FORMAT", "document_per_file")),
    ("ablations.sh", "full", ("HARDWARE", "tpu"), ("TPU_NAME", "local")),
    ("laptop/run.sh", "full", ("CORPUS_DIR", "/none/corpus"), ("RANDOM_SEED", "7")),
    ("laptop/run.sh", "full", ("CORPUS_DIR", "/none/corpus"), ("DOCUMENTS", "/none/a /none/b"), ("NUM_STEPS", "500")),
    ("chinese/run.sh", "full", ("RANDOM_SEED", "7")),
]


def start(script: str, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs a recipe with these environment variables and no others that it knows."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    command = ["bash", str(RECIPES / script), *flags]
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=60)


@functools.cache
def commands(script: str, scale: str = "full", *settings: tuple[str, str]) -> tuple[tuple[str, ...], ...]:
    """The command lines that a recipe would run, as lists of words."""
    preset = {"PRESET": "base"} if script in WITH_PRESET or scale == "laptop" else {}
    done = start(script, **{**PATHS, **preset, "DRY_RUN": "1", "SCALE": scale, **dict(settings)})
    assert done.returncode == 0, f"{script} {scale}: {done.stderr}"
    return tuple(tuple(shlex.split(line)) for line in done.stdout.splitlines())


def flags_of(command: tuple[str, ...]) -> dict[str, str]:
    return {word[2:].partition("=")[0]: word.partition("=")[2] for word in command[1:]}


def text_of(script: str) -> str:
    """The comment that a recipe opens with."""
    lines = (RECIPES / script).read_text(encoding="utf-8").splitlines()
    return "\n".join(itertools.takewhile(lambda line: line.startswith("#"), lines))
