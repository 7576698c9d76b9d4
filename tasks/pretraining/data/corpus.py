"""Tokenizes text files into a store on disk; the number of processes does not change the result."""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from tasks.pretraining.data.token_store import StoreWriter, token_dtype
from tasks.pretraining.data.workspace import Workspace, open_workspace
from tasks.text.parallel import progress_bar
from tasks.text.reading import LINES, Piece, sentence_splitter, split_piece, text_units


class TokenizedUnit(NamedTuple):
    """Token ids of some text, with the bounds of its sentences and documents.

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


def tokenize_unit(directory: str, unit: list[Piece], *, open_file: Callable = open) -> TokenizedUnit:
    """Tokenizes some pieces of the text, leaving out sentences that give no token.

    Args:
        directory: the workspace's.

    Raises:
        InputError: a file cannot be read, or is not UTF-8.
    """
    workspace = open_workspace(directory)
    settings, tokenizer = workspace.settings, workspace.tokenizer
    split = sentence_splitter(settings.sentence_splitter, settings.sentence_language)
    token_ids, lengths, starts_document = [], [], []
    has_ended = False
    for piece in unit:
        for text in split_piece(piece, settings.input_format, open_file):
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


def create_store(workspace: Workspace, files: list[str], pool, *, open_file: Callable = open) -> StoreWriter:
    """Tokenizes files into the workspace's store; the writer returned says how much it holds.

    A document runs on into the next file unless something ends it (google-research/bert,
    create_pretraining_data.py:183-204). Documents without a sentence are left out.

    Args:
        pool: `tasks.text.parallel.LocalPool`, or what maps like it.
        open_file: `open`, or another function of path and mode.

    Raises:
        InputError: text that cannot be read, or fewer than two documents.
    """
    tokenize = functools.partial(tokenize_unit, open_file=open_file)
    has_ended = True
    num_bytes = sum(os.path.getsize(path) for path in files if os.path.exists(path))  # A remote file's is not known.
    with (
        StoreWriter(workspace.directory, workspace.tokenizer.vocabulary_size()) as writer,
        progress_bar("tokenize", "B", num_bytes) as progress,
    ):
        units = text_units(files, LINES, open_file=open_file, split_gzip=pool.reads_text)
        for unit in pool.map(tokenize, units, workspace.directory):
            if len(unit.lengths):
                unit.starts_document[0] |= has_ended
                has_ended = False
                writer.append(unit.token_ids, unit.lengths, unit.starts_document)
            has_ended |= unit.ends_document
            progress.update(unit.num_bytes)
    _check_documents(files, writer.num_documents, workspace.settings.input_format)
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
