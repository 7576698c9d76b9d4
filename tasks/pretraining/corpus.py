"""Text files tokenized into a store on disk, by several processes, the same whatever their number."""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.python_tokenizer import PythonBertTokenizer
from tasks.pretraining.reading import Piece, split_piece, text_units
from tasks.pretraining.sentences import sentence_splitter
from tasks.pretraining.token_store import StoreWriter, token_dtype

VOCABULARY = "vocab.txt"  # A copy in the directory of the store: what a worker needs lies there.


class TextRules(NamedTuple):
    """How text becomes documents, sentences and tokens, under the names of the flags."""

    do_lower_case: bool = True
    input_format: str = "sentences"
    sentence_splitter: str = "none"
    sentence_language: str = "en"


class TokenizedUnit(NamedTuple):
    """Some text: token ids of all its sentences, token count of each, and where documents begin.

    Attributes:
        token_ids: uint16 or uint32, shape (tokens,).
        lengths: int64, shape (sentences,), at least 1 each.
        starts_document: bool, shape (sentences,), whether a document ended since the sentence before, or since the
            beginning of the unit.
        ends_document: bool, whether a document ended since the last sentence.
        num_bytes: int, what was read of the files.
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    starts_document: np.ndarray
    ends_document: bool
    num_bytes: int


@functools.lru_cache(maxsize=1)
def open_tokenizer(directory: str, do_lower_case: bool) -> PythonBertTokenizer:
    """The tokenizer of the vocabulary in a store's directory; a process builds it once."""
    return PythonBertTokenizer(os.path.join(directory, VOCABULARY), do_lower_case)


def tokenize_unit(directory: str, unit: list[Piece], *, rules: TextRules, open_file: Callable = open) -> TokenizedUnit:
    """Tokenizes some pieces of the text. Sentences that give no token are left out.

    Raises:
        InputError: a file cannot be read, or is not UTF-8.
    """
    tokenizer = open_tokenizer(directory, rules.do_lower_case)
    split = sentence_splitter(rules.sentence_splitter, rules.sentence_language)
    token_ids, lengths, starts_document = [], [], []
    has_ended = False
    for piece in unit:
        for text in split_piece(piece, rules.input_format, open_file):
            if text is None:
                has_ended = True
                continue
            for sentence in split(text):
                found = tokenizer.tokenize(sentence)
                if found:
                    token_ids.extend(found)
                    lengths.append(len(found))
                    starts_document.append(has_ended)
                    has_ended = False
    return TokenizedUnit(
        np.array(token_ids, token_dtype(tokenizer.vocabulary_size())),
        np.array(lengths, np.int64),
        np.array(starts_document, bool),
        has_ended,
        sum(piece.num_bytes for piece in unit),
    )


def create_store(
    directory: str,
    files: list[str],
    rules: TextRules,
    vocabulary_size: int,
    pool,
    *,
    open_file: Callable = open,
    progress=None,
) -> StoreWriter:
    """Tokenizes files into a store in `directory`, which holds the vocabulary; says how much it holds.

    A document runs on into the next file unless something ends it (create_pretraining_data.py:183-204). Documents
    without a sentence are left out.

    Args:
        pool: `tasks.pretraining.parallel.LocalPool`, or what maps as it does.
        open_file: `open`, or another function of path and mode.
        progress: object with `update(n)`, such as a tqdm bar, or None; counts bytes.

    Raises:
        InputError: text that cannot be read, or fewer than two documents.
    """
    tokenize = functools.partial(tokenize_unit, rules=rules, open_file=open_file)
    has_ended = True
    with StoreWriter(directory, vocabulary_size) as writer:
        units = text_units(files, open_file=open_file, split_gzip=pool.reads_text)
        for unit in pool.map(tokenize, directory, units):
            if len(unit.lengths):
                unit.starts_document[0] |= has_ended
                has_ended = False
                writer.append(unit.token_ids, unit.lengths, unit.starts_document)
            has_ended |= unit.ends_document
            if progress is not None:
                progress.update(unit.num_bytes)
    _check_documents(files, writer.num_documents, rules.input_format)
    return writer


def _check_documents(files: list[str], num_documents: int, input_format: str) -> None:
    named = f"{', '.join(files[:5])}{' ...' if len(files) > 5 else ''}"
    if not num_documents:
        raise InputError(f"{named}: no text. Expected one sentence a line and a blank line between documents.")
    if num_documents == 1:
        cure = {
            "sentences": "Put a blank line between documents.",
            "wikitext": "Expected a title before each, as in ' = Title = '.",
            "document_per_file": "Give several files.",
        }
        raise InputError(
            f"{named}: only one document, but a random next sentence comes from another document, so that half of the "
            f"next-sentence labels would be wrong. {cure[input_format]}"
        )
