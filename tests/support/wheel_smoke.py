"""Tries an installation without extras, in its own interpreter and outside the checkout; `make dist` runs it.

Every command gives its help, texts become a trained model by a command, the model an export, and the export answers.
"""

import csv
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

WORDS = ["cat", "dog", "saw", "axe"]
ROWS = [(f"the {word}", "animal" if word in WORDS[:2] else "tool") for word in WORDS * 6]


def command(name: str, *flags: str) -> None:
    """Runs a command of the installation, and fails with its output if it fails."""
    print(f"{name} {' '.join(flags)}", flush=True)
    path = os.path.join(os.path.dirname(sys.executable), name)
    done = subprocess.run([path, *flags], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def write_preset(directory: str) -> None:
    """Writes an untrained encoder of few words."""
    import keras_bert

    if not pathlib.Path(keras_bert.__file__).is_relative_to(sys.prefix):
        sys.exit(f"{keras_bert.__file__} is not in {sys.prefix}: nothing of the installation was tried.")
    backbone = keras_bert.BertBackbone(10, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32)
    tokenizer = keras_bert.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", *WORDS])
    backbone.save_to_preset(directory)
    tokenizer.save_to_preset(directory)


def ask(export_dir: str) -> None:
    """Asks the export for the labels of two texts."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  Ops of the graph.

    answers = tf.saved_model.load(export_dir).signatures["serving_default"](tf.constant(["the cat", "the axe"]))
    print({name: value.numpy().tolist() for name, value in answers.items()})


def main() -> None:
    """Tries all of it in a temporary directory."""
    distribution = importlib.metadata.distribution("keras-bert-zoo")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for point in distribution.entry_points.select(group="console_scripts"):
            command(point.name, "--help")
        with open("table.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *ROWS])
        write_preset("preset")
        command("bert-classify", "--train_file=table.csv", "--preset=preset", "--output_dir=run", "--few_labels=off")
        command("bert-export", "--model_dir=run/model", "--export_dir=served", "--with_cc=off")
        ask("served/1")


if __name__ == "__main__":
    main()
