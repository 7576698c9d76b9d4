"""Tables of predictions: written whole or not at all."""

import csv
from collections.abc import Iterable, Sequence

from keras_bert.files import atomic_path


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence], delimiter: str = "\t") -> None:
    """Writes a TSV file, or with another delimiter a CSV one, with a header."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
