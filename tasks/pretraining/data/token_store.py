"""Stores the tokenized text of a block in one file, from which a range of documents can be read by itself.

T: tokens of the block, N: sentences, D: documents. The file contains T, N and D, then the arrays of `Corpus` in reverse
order.
"""

import dataclasses
from typing import BinaryIO

import numpy as np

from keras_bert.files import open_file

_OFFSET = np.dtype(np.int64)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenized text without empty sentences or documents.

    Attributes:
        token_ids: uint16 or uint32, shape (T,), all documents one after another.
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

    def bounds(self, document: int) -> np.ndarray:
        """Returns the offsets of a document's n sentences in `token_ids`, and its end: int64, shape (n + 1,)."""
        first, last = self.document_starts[document : document + 2].tolist()
        return self.sentence_starts[first : last + 1]


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the smallest of uint16 and uint32 that holds every id."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def write_store(file: BinaryIO, corpus: Corpus) -> None:
    """Writes a corpus of at least one document."""
    sizes = [len(corpus.token_ids), corpus.num_sentences, corpus.num_documents]
    for array in (np.array(sizes), corpus.document_starts, corpus.sentence_starts):
        file.write(array.astype(_OFFSET, copy=False).tobytes())
    file.write(corpus.token_ids.tobytes())


def read_store(path: str, dtype: np.dtype, part: int = 0, num_parts: int = 1) -> Corpus:
    """Reads one of `num_parts` equal parts of the documents of a store, at least one document.

    Args:
        path: path of a file of `write_store`.
        dtype: `token_dtype` of the vocabulary.
        part: index of the part, in [0, num_parts).
        num_parts: number of parts.
    """
    with open_file(path) as file:

        def read(start: int, count: int, dtype: np.dtype = _OFFSET) -> np.ndarray:
            file.seek(start)
            return np.frombuffer(file.read(count * dtype.itemsize), dtype)

        _, num_sentences, num_documents = read(0, 3).tolist()
        first = num_documents * part // num_parts
        last = max(first + 1, num_documents * (part + 1) // num_parts)
        documents = read(8 * (3 + first), last - first + 1)
        place = 8 * (4 + num_documents)
        sentences = read(place + 8 * int(documents[0]), int(documents[-1] - documents[0]) + 1)
        place += 8 * (num_sentences + 1) + dtype.itemsize * int(sentences[0])
        tokens = read(place, int(sentences[-1] - sentences[0]), dtype)
    return Corpus(tokens, sentences - sentences[0], documents - documents[0])


def join(corpora: list[Corpus]) -> Corpus:
    """Returns the documents of several corpora as one."""
    token_ids = np.concatenate([corpus.token_ids for corpus in corpora])
    starts = []
    for name in ("sentence_starts", "document_starts"):
        arrays = [getattr(corpus, name) for corpus in corpora]
        offsets = np.cumsum([0, *(array[-1] for array in arrays)])
        shifted = [array[:-1] + offset for array, offset in zip(arrays, offsets[:-1], strict=True)]
        starts.append(np.concatenate([*shifted, offsets[-1:]]))
    return Corpus(token_ids, *starts)
