"""Tokenized text on disk: an array of token ids and the offsets of sentences and documents, mapped to memory.

T: tokens of the corpus, N: its sentences, D: its documents.
"""

import dataclasses
import mmap
import os

import numpy as np

TOKENS, SENTENCES, DOCUMENTS = "tokens.bin", "sentences.bin", "documents.bin"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenized text without empty sentences or documents.

    Attributes:
        token_ids: uint16 or uint32, shape (T,), all documents one after another.
        sentence_starts: int64, shape (N + 1,), offsets into `token_ids`; the last is T.
        document_starts: int64, shape (D + 1,), offsets into the sentences; the last is N.
        maps: the memory maps below the arrays, if they lie in files.
    """

    token_ids: np.ndarray
    sentence_starts: np.ndarray
    document_starts: np.ndarray
    maps: tuple[mmap.mmap, ...] = ()

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

    def release(self) -> None:
        """Returns the memory of pages that were read to the system; the next access maps them again."""
        for mapped in self.maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the smallest of uint16 and uint32 that holds every id."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def open_store(directory: str, vocabulary_size: int) -> Corpus:
    """Opens a store of at least one document that a `StoreWriter` has written."""
    dtypes = {TOKENS: token_dtype(vocabulary_size), SENTENCES: np.int64, DOCUMENTS: np.int64}
    maps = [np.memmap(os.path.join(directory, name), dtype, "r") for name, dtype in dtypes.items()]
    # Plain arrays: slices of `np.memmap` are made in Python, and slower.
    return Corpus(*map(np.asarray, maps), maps=tuple(array.base for array in maps))


class StoreWriter:
    """Appends tokenized sentences to the files of a store; a context manager.

    Attributes:
        num_documents, num_sentences, num_tokens: what was appended so far.
    """

    def __init__(self, directory: str, vocabulary_size: int):
        self.num_documents = self.num_sentences = self.num_tokens = 0
        self._dtype = token_dtype(vocabulary_size)
        self._files = {name: open(os.path.join(directory, name), "wb") for name in (TOKENS, SENTENCES, DOCUMENTS)}

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        """Appends the last offsets and closes the files."""
        self._write(SENTENCES, [self.num_tokens])
        self._write(DOCUMENTS, [self.num_sentences])
        for file in self._files.values():
            file.close()

    def append(self, token_ids: np.ndarray, lengths: np.ndarray, starts_document: np.ndarray) -> None:
        """Appends sentences.

        Args:
            token_ids: integers, shape (tokens,), all sentences one after another.
            lengths: int64, shape (sentences,), tokens of each, at least 1.
            starts_document: bool, shape (sentences,), whether a sentence is the first of a document.
        """
        self._files[TOKENS].write(token_ids.astype(self._dtype, copy=False).tobytes())
        self._write(SENTENCES, self.num_tokens + np.cumsum(lengths) - lengths)
        self._write(DOCUMENTS, self.num_sentences + np.flatnonzero(starts_document))
        self.num_documents += int(starts_document.sum())
        self.num_sentences += len(lengths)
        self.num_tokens += len(token_ids)

    def _write(self, name: str, offsets) -> None:
        self._files[name].write(np.asarray(offsets, np.int64).tobytes())
