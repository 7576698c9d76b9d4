"""Writes the docstrings of all installed packages as text to train on and held-out text, for recipes/laptop/run.sh.

    python recipes/laptop/docstrings.py runs/laptop/text

Writes `train_docstrings.txt` and `held_out_docstrings.txt`, a tenth of the modules: a sentence on a line, a blank line
between modules. Prints the size of both.
"""

import os
import sys

from keras_bert.files import write_lines
from tasks.quickstart import docstrings


def main(directory: str) -> None:
    packages = docstrings.installed_packages(required_only=False)
    corpus = docstrings.collect(packages, max_sentences_per_package=sys.maxsize)
    for part, texts in zip(("train", "held_out"), docstrings.split(corpus), strict=True):
        write_lines(os.path.join(directory, f"{part}_docstrings.txt"), texts.lines())
        print(f"{part}: {texts.summary()}")


if __name__ == "__main__":
    main(sys.argv[1])
