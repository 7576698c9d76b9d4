"""Writing tables of predictions."""

import csv
from collections.abc import Iterable, Sequence

import numpy as np

from keras_bert.files import atomic_path
from tasks.fine_tuning.metrics import log_softmax


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence], delimiter: str = "\t") -> None:
    """Writes a table with a header, complete or not at all: TSV, or CSV with a comma as `delimiter`."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_probabilities(
    path: str, logits: np.ndarray, labels: Sequence, numbers: Iterable[int], delimiter: str = "\t"
) -> None:
    """Writes the columns `index`, `prediction`, and `probability_<label>` of each class.

    Args:
        path: file to write.
        logits: float, shape (N, C).
        labels: names of the C classes.
        numbers: index of each row, N numbers.
        delimiter: as in `write_table`.
    """
    shares = np.exp(log_softmax(logits))
    header = ["index", "prediction", *(f"probability_{label}" for label in labels)]
    rows = zip(numbers, shares, strict=True)
    cells = ([number, labels[row.argmax()], *(f"{share:.6f}" for share in row)] for number, row in rows)
    write_table(path, header, cells, delimiter)
