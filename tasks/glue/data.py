"""From a table of texts to the token ids and labels of its rows, once.

Shapes: N rows of a table, S tokens of the longest of some rows, T tokens of a whole table.
"""

from collections.abc import Sequence

import numpy as np

from tasks.examples import Examples
from tasks.glue.tables import Table

# Rows tokenized by one call of the preprocessor: some megabytes of intermediate tensors, and a moving progress bar.
ENCODE_ROWS = 1024


def encode_table(table: Table, preprocessor, labels: Sequence[str], description: str = "tokenize") -> Examples:
    """Turns the texts into token ids, showing a progress bar.

    Args:
        table: the texts; its labels are among `labels` (`tables.keep_known_labels`), or are scores.
        preprocessor: a `BertPreprocessor` (it also truncates); padding is taken off again.
        labels: the labels in the order of their class numbers; empty for scores.
        description: the name of the stage on the progress bar.

    Returns:
        `Examples` with `labels`: int32 class numbers, or float32 scores, shape (N,); none for a table without.
    """
    from tqdm import tqdm

    pieces = []
    with tqdm(total=len(table.texts), desc=description, unit="row", mininterval=0.5) as progress:
        for start in range(0, len(table.texts), ENCODE_ROWS):
            texts = table.texts[start : start + ENCODE_ROWS]
            inputs = texts if table.text_pairs is None else (texts, table.text_pairs[start : start + ENCODE_ROWS])
            pieces.append(_encode(preprocessor, inputs))
            progress.update(len(texts))
    token_ids, segment_ids, lengths = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Examples(token_ids, segment_ids, row_splits, _encode_labels(table, labels))


def _encode(preprocessor, inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    outputs = {name: np.asarray(value) for name, value in preprocessor(inputs).items()}
    mask = outputs["padding_mask"].astype(bool)  # [rows, S]
    return outputs["token_ids"][mask], outputs["segment_ids"][mask], mask.sum(axis=1)


def _encode_labels(table: Table, labels: Sequence[str]) -> dict[str, np.ndarray]:
    if table.labels is None:
        return {}
    if not labels:
        return {"labels": np.array(table.labels, np.float32)}
    numbers = {label: number for number, label in enumerate(labels)}
    return {"labels": np.array([numbers[label] for label in table.labels], np.int32)}
