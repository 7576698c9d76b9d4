"""Writes the docstrings of all installed packages as text to train on and held-out text, for recipes/laptop/run.sh.

    python recipes/laptop/docstrings.py runs/laptop/text

Writes `train_docstrings.txt` and `held_out_docstrings.txt`, a tenth of the modules: a sentence on a line, a blank line
between modules. Prints the size of both.
"""

import os
import sys

from keras_bert.files import write_lines
from tasks.quickstart import corpus, docstrings


def main(directory: str) -> None:
    documents = corpus.without_repeats(docstrings.collect(num_packages=None, max_sentences=sys.maxsize))
    for part, texts in zip(("train", "held_out"), corpus.split(documents), strict=True):
        write_lines(os.path.join(directory, f"{part}_docstrings.txt"), corpus.lines_of(texts))
        print(f"{part}: {corpus.summary(texts)}")


if __name__ == "__main__":
    main(sys.argv[1])
