"""Writing tables of predictions."""

from collections.abc import Iterable, Sequence

import numpy as np

from keras_bert.files import write_table
from tasks.fine_tuning.metrics import log_softmax


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
