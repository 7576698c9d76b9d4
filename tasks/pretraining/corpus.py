"""Raw text as one flat array of token ids with the offsets of its sentences and documents.

T: tokens of the corpus, N: its sentences, D: its documents.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import expand_files, read_lines

_LINES_PER_BATCH = 4096


class Corpus(NamedTuple):
    """Tokenized text without empty sentences or documents.

    Attributes:
        token_ids: int32, shape (T,), all documents one after another.
        sentence_starts: int64, shape (N + 1,), offsets into `token_ids`; the last is T.
        document_starts: int64, shape (D + 1,), offsets into the sentences; the last is N.
    """

    token_ids: np.ndarray
    sentence_starts: np.ndarray
    document_starts: np.ndarray

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1

    def bounds(self, document: int) -> list[int]:
        """Offsets into `token_ids` of one document's sentences, and its end: n + 1 of them."""
        first, last = self.document_starts[document : document + 2]
        return self.sentence_starts[first : last + 1].tolist()


def read_corpus(input_file: str | list[str], tokenizer) -> Corpus:
    """Reads and tokenizes text: one sentence a line, a blank line between documents.

    A document runs on into the next file unless a blank line ends it (create_pretraining_data.py:183-204). Sentences
    that give no token, and documents without a sentence, are left out.

    Args:
        input_file: paths or patterns, as `keras_bert.files.expand_files` takes them.
        tokenizer: BertTokenizer.

    Raises:
        InputError: no such file, a line that is not UTF-8, or fewer than two documents.
    """
    files = expand_files(input_file)
    token_ids, lengths, documents = [], [], []
    num_bytes = sum(os.path.getsize(path) for path in files)
    with tqdm(total=num_bytes, desc="tokenize", unit="B", unit_scale=True, mininterval=0.5) as progress:
        for batch in _tokenized_batches(files, tokenizer):
            token_ids.append(batch.token_ids)
            lengths.append(batch.lengths)
            documents.append(batch.documents)
            progress.update(batch.num_bytes)
    if not token_ids:
        raise InputError(_EMPTY.format(", ".join(files)))
    return _assemble(files, np.concatenate(token_ids), np.concatenate(lengths), np.concatenate(documents))


_EMPTY = "{}: no text. Expected one sentence a line and a blank line between documents."


def _assemble(files: list[str], token_ids: np.ndarray, lengths: np.ndarray, documents: np.ndarray) -> Corpus:
    documents = documents[lengths > 0]
    lengths = lengths[lengths > 0]
    if not len(lengths):
        raise InputError(_EMPTY.format(", ".join(files)))
    first_of_document = np.flatnonzero(np.diff(documents, prepend=-1))
    if len(first_of_document) < 2:
        raise InputError(
            f"{', '.join(files)}: only one document, but a random next sentence comes from another document, so that "
            "half of the next-sentence labels would be wrong. Put a blank line between documents."
        )
    return Corpus(
        token_ids,
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.append(first_of_document, len(lengths)).astype(np.int64),
    )


class _TokenizedBatch(NamedTuple):
    """Some lines: token ids of all, token count and document number of each, and their size in the file."""

    token_ids: np.ndarray
    lengths: np.ndarray
    documents: np.ndarray
    num_bytes: int


def _line_batches(files: list[str]) -> Iterator[tuple[list[str], list[int], int]]:
    document = 0
    texts: list[str] = []
    documents: list[int] = []
    num_bytes = 0
    for path in files:
        for _, line in read_lines(path):
            text = line.strip()
            num_bytes += len(line.encode()) + 1
            if not text:
                document += 1
                continue
            texts.append(text)
            documents.append(document)
            if len(texts) == _LINES_PER_BATCH:
                yield texts, documents, num_bytes
                texts, documents, num_bytes = [], [], 0
    if texts:
        yield texts, documents, num_bytes


def _tokenized_batches(files: list[str], tokenizer) -> Iterator[_TokenizedBatch]:
    import tensorflow as tf

    errors: list[InputError] = []

    def batches():  # tf.data would turn an exception into an error of its own: end early, and raise below
        try:
            yield from _line_batches(files)
        except InputError as error:
            errors.append(error)

    def tokenize(texts, documents, num_bytes):
        tokens = tokenizer.tokenize(texts)
        return tokens.flat_values, tokens.row_lengths(), documents, num_bytes

    signature = (tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    dataset = dataset.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)
    for token_ids, lengths, documents, num_bytes in dataset.as_numpy_iterator():
        yield _TokenizedBatch(token_ids.astype(np.int32), lengths, documents, int(num_bytes))
    if errors:
        raise errors[0]
