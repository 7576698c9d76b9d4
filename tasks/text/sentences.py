"""Splits lines that hold paragraphs into sentences, by a library."""

import functools
from collections.abc import Callable

from keras_bert.errors import InputError


@functools.lru_cache(maxsize=1)
def sentence_splitter(name: str, language: str) -> Callable[[str], list[str]]:
    """Returns a function from the text of a line to its sentences.

    Args:
        name: "none": a line is a sentence; "sentencex": Wikimedia's rules, for some 240 languages, with no model to
            download (https://github.com/wikimedia/sentencex).
        language: code of the text's language, such as "en"; for "none" it does not matter.

    Raises:
        InputError: the library is not installed.
    """
    if name == "none":
        return lambda text: [text]
    try:
        import sentencex
    except ImportError as error:
        raise InputError(
            "--sentence_splitter=sentencex needs the package sentencex: pip install 'keras-bert-zoo[sentences]'. "
            "Without it, give text with one sentence a line."
        ) from error
    return functools.partial(sentencex.segment, language)
