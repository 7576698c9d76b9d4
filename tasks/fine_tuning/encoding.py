"""Encodes texts, or pairs of texts, as token ids, and labels as class numbers.

Shapes: N examples or labels, R sequences, S tokens of the longest sequence of a chunk.
"""

from collections.abc import Sequence

import numpy as np

from keras_bert.answers.rules import LONG_TEXTS, POOLED
from tasks.fine_tuning.examples import Examples

# Sequences tokenized by one call of the preprocessor: a few megabytes of tensors, and a progress bar that moves.
CHUNK = 1024
_LONG_CHUNK = 64  # The same for texts that are not truncated.
_SHOWN = 20  # Labels in a message.
_CUT_AT_ONCE = 256  # Sequences that may have been cut, tokenized again by one call.


def encode_texts(
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    tokenizer,
    sequence_length: int,
    description: str,
    rows_per_example: int | None = None,
    long_text: str = LONG_TEXTS[0],
) -> Examples:
    """Turns texts into token ids, showing a progress bar.

    A pair that is too long loses tokens from the end of its longer text first (google-research/bert
    run_classifier.py:557).

    Args:
        texts: R texts.
        text_pairs: R second texts, or None.
        tokenizer: BertTokenizer.
        sequence_length: maximum tokens of a sequence, including special tokens.
        description: title of the progress bar.
        rows_per_example: as in `Examples`.
        long_text: one of `LONG_TEXTS`, how to read texts that are too long. Pairs are always truncated.

    Returns:
        Examples without labels.
    """
    import tensorflow as tf
    from tqdm import tqdm

    from keras_bert import BertPreprocessor
    from keras_bert.answers.windows import LongTexts

    if long_text == LONG_TEXTS[0]:
        preprocessor, size = BertPreprocessor(tokenizer, sequence_length, pad_to_longest=True), CHUNK
    else:
        read, size = LongTexts(tokenizer, sequence_length, long_text), _LONG_CHUNK
        read = tf.function(read, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    pieces, window_counts = [], [np.zeros(1, np.int64)]
    with tqdm(total=len(texts), desc=description, unit="text", mininterval=0.5) as progress:
        for first in range(0, len(texts), size):
            chunk = list(texts[first : first + size])
            inputs = chunk if text_pairs is None else (chunk, list(text_pairs[first : first + size]))
            if long_text == LONG_TEXTS[0]:
                encoded = preprocessor(inputs)
            else:
                encoded, rows = read(tf.constant(chunk))
                window_counts.append(np.bincount(rows, minlength=len(chunk)))
            outputs = {name: np.asarray(value) for name, value in encoded.items()}
            mask = outputs["padding_mask"].astype(bool)  # [chunk, S]
            pieces.append((outputs["token_ids"][mask], outputs["segment_ids"][mask], mask.sum(axis=1)))
            progress.update(len(chunk))
    token_ids, segment_ids, lengths = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    examples = Examples(token_ids, segment_ids, row_splits, rows_per_example=rows_per_example)
    if long_text not in POOLED:
        return examples
    return examples._replace(window_splits=np.cumsum(np.concatenate(window_counts)), pooling=long_text)


def lengths_before_cutting(
    examples: Examples, texts: Sequence[str], text_pairs: Sequence[str] | None, tokenizer, sequence_length: int
) -> np.ndarray:
    """Counts the tokens of examples without truncation. Only sequences at the limit are tokenized again.

    Args:
        examples: return value of `encode_texts`.
        texts, text_pairs, tokenizer, sequence_length: arguments of `encode_texts`.

    Returns:
        Tokens of each example's longest sequence, [CLS] and each text's [SEP] included: int64, shape (N,).
    """
    whole = np.diff(examples.sequence_splits)
    columns = [texts] if text_pairs is None else [texts, text_pairs]
    full = np.flatnonzero(whole >= sequence_length)
    for start in range(0, len(full), _CUT_AT_ONCE):
        rows = full[start : start + _CUT_AT_ONCE]
        cut = ([column[row] for row in rows] for column in columns)
        counts = [np.asarray(tokenizer.tokenize(column).row_lengths()) for column in cut]
        whole[rows] = sum(counts) + 1 + len(columns)
    return whole.reshape(examples.num_examples, -1).max(axis=1)


def label_ids(labels: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Returns the class number of each label, int32, shape (N,), or -1 for a label that is not among the class `names`.

    A tagger that was trained elsewhere may lack, say, the B- tag of an entity type.
    """
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers.get(label, -1) for label in labels], np.int32)


def format_labels(labels: Sequence[str]) -> str:
    """Lists labels for a message: all of them, or the first twenty and the total number."""
    shown = ", ".join(repr(label) for label in labels[:_SHOWN])
    return shown if len(labels) <= _SHOWN else f"{shown}, ... ({len(labels)} in all)"
