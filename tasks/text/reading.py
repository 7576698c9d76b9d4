"""Splits lines into sentences."""

import functools
from collections.abc import Callable

from keras_bert.errors import InputError


@functools.lru_cache(maxsize=1)
def sentence_splitter(name: str, language: str) -> Callable[[str], list[str]]:
    """Returns a function that splits a line into sentences.

    Args:
        name: "none" keeps each line as one sentence; "sentencex" applies Wikimedia's rules for some 240 languages, with
            no model to download (https://github.com/wikimedia/sentencex).
        language: language code of the text, such as "en"; ignored for "none".

    Raises:
        InputError: sentencex is not installed.
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
