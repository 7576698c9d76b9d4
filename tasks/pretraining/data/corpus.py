"""Tokenizes blocks of text into stores on disk."""

import array
import functools
from collections.abc import Callable, Iterator

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from tasks.pretraining.data.token_store import Corpus, write_store
from tasks.pretraining.data.workspace import Workspace, open_workspace
from tasks.text.blocks import Block, split_block

_BYTES_PER_TOKEN = 4  # In English, which gives one store per block. Text with shorter tokens gives several.


def tokenize_block(directory: str, task: tuple[int, Block]) -> list[tuple[int, int, int, bool]]:
    """Tokenizes a block into one store or, if it is a large gzip file, several.

    Args:
        directory: directory of the workspace.
        task: number of the block, and the block.

    Returns:
        For each store, the numbers of tokens, sentences and documents, and whether its first document began before it.

    Raises:
        InputError: a file cannot be read, or is not UTF-8.
    """
    number, block = task
    workspace = open_workspace(directory)
    figures = []
    texts = split_block(block, workspace.settings.input_format)
    for corpus, is_continued in _tokenized(workspace, texts):
        with atomic_path(workspace.store_path(number, len(figures))) as temporary, open(temporary, "wb") as file:
            write_store(file, corpus)
        figures.append((len(corpus.token_ids), corpus.num_sentences, corpus.num_documents, is_continued))
    return figures


def _tokenized(workspace: Workspace, texts: Iterator[str | None]) -> Iterator[tuple[Corpus, bool]]:
    """Yields the text of each store, and whether its first document began before it.

    A document of more than two stores' tokens is cut.
    """
    settings, tokenizer, dtype = workspace.settings, workspace.tokenizer, workspace.dtype
    split = sentence_splitter(settings.sentence_splitter, settings.sentence_language)
    most = max(1, workspace.block_bytes // _BYTES_PER_TOKEN)
    token_ids, sentences, documents = array.array(dtype.char), [0], []
    has_ended = is_continued = False
    for text in texts:
        if text is None:
            has_ended = True
            continue
        for tokens in filter(None, map(tokenizer.tokenize, split(text))):
            if len(token_ids) >= (most if has_ended else 2 * most):
                yield _corpus(token_ids, sentences, documents), is_continued
                token_ids, sentences, documents = array.array(dtype.char), [0], []
            if not documents:
                is_continued = not has_ended
            if has_ended or not documents:
                documents.append(len(sentences) - 1)
            has_ended = False
            token_ids.extend(tokens)
            sentences.append(len(token_ids))
    if documents:
        yield _corpus(token_ids, sentences, documents), is_continued


def _corpus(token_ids: array.array, sentences: list[int], documents: list[int]) -> Corpus:
    return Corpus(np.array(token_ids), np.array(sentences), np.array([*documents, len(sentences) - 1]))


def sentence_splitter(name: str, language: str) -> Callable[[str], list[str]]:
    """Returns a function that splits a line into sentences.

    Args:
        name: "none" keeps each line as one sentence; "sentencex" applies Wikimedia's rules for some 240 languages, with
            no model to download (https://github.com/wikimedia/sentencex).
        language: language code of the text, such as "en"; ignored for "none".
    """
    if name == "none":
        return lambda text: [text]
    import sentencex

    return functools.partial(sentencex.segment, language)


def check_documents(paths: list[str], num_documents: int, input_format: str) -> None:
    """Refuses text of fewer than two documents.

    Raises:
        InputError: there are fewer. The message says how to fix it for the format.
    """
    named = f"{', '.join(paths[:5])}{' ...' if len(paths) > 5 else ''}"
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
