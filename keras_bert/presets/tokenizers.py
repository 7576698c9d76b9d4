"""Finds the vocabulary of a preset in any format, and decides whether it is lower-cased."""

import contextlib
import os
from collections.abc import Iterator

from keras_bert import formats
from keras_bert.errors import InputError
from keras_bert.files import absolute, exists, read_lines
from keras_bert.presets.catalog import located, name_of, original_of
from keras_bert.vocabulary import case_of_name, case_of_vocabulary, check_case, read_vocabulary


def has_tokenizer(preset: str | os.PathLike) -> bool:
    """Returns whether a preset's files include a tokenizer.

    Raises:
        InputError: the preset is not found.
    """
    with located(preset, "tokenizer") as place:
        return formats.find_tokenizer(place) is not None


@contextlib.contextmanager
def open_tokenizer(preset: str | os.PathLike) -> Iterator[dict]:
    """Yields a preset's tokenizer settings.

    They are `vocabulary`, path or list; `lowercase`, None if the files do not tell; in KerasHub's layout
    `special_tokens_in_strings`; and `place`, the directory of the files, for an archive that of its extracted files.

    Raises:
        InputError: the preset is not found, or it has no tokenizer.
    """
    with located(preset, "tokenizer") as place:
        settings = formats.find_tokenizer(place)
        if settings is None:
            raise InputError(
                f"{place}: no tokenizer. Expected assets/tokenizer/vocabulary.txt (with tokenizer.json), vocab.txt, or "
                "assets/vocab.txt."
            )
        yield settings


def case_of_preset(preset: str) -> bool | None:
    """Returns whether a preset of this name is lower-cased, None if the name does not tell."""
    known = original_of(preset)
    if known is not None:
        return known.lowercase
    is_prefix = exists(f"{preset}.index") or preset.endswith(".index")  # A TensorFlow checkpoint.
    name = os.path.dirname(absolute(preset)) if is_prefix else preset
    return case_of_name(absolute(name) if exists(name) else name)


def decide_case(preset: str, settings: dict, lowercase: bool | None = None) -> bool | None:
    """Decides whether a preset is lower-cased, and checks its vocabulary.

    The first source that is not None decides: `lowercase`, the checkpoint's publication, its own settings, the pieces
    of the vocabulary, the preset's name.

    Args:
        preset: the preset's name or path.
        settings: those of `open_tokenizer`.
        lowercase: bool, the user's choice, or None.

    Returns:
        bool, or None if no source tells.

    Raises:
        InputError: the vocabulary is not a BERT vocabulary (`read_vocabulary`) or contradicts the decision; or
            `lowercase` or the settings contradict the preset's name, and the vocabulary does not confirm them.
    """
    vocabulary = settings["vocabulary"]
    source = os.fspath(vocabulary) if isinstance(vocabulary, str | os.PathLike) else f"{preset}: its vocabulary"
    pieces = read_vocabulary(vocabulary, source=source)
    by_vocabulary = case_of_vocabulary(pieces)
    known, by_name = original_of(preset), case_of_preset(preset)
    published = known and known.lowercase  # Copies may contradict it: those of Chinese BERT do.
    if by_name is None:
        by_name = case_of_name(settings.get("place", ""))
    answers = {
        "the argument": lowercase,
        "what it was published as": published,
        "its own settings": settings["lowercase"],
        "its vocabulary": by_vocabulary,
        "its name": by_name,
    }
    why, case = next(((why, case) for why, case in answers.items() if case is not None), ("", None))
    check_case(source, pieces, case, why)
    if None in (by_name, case) or case in (by_name, by_vocabulary) or (lowercase is not None and published is None):
        return case
    cure = f"Pass lowercase={by_name} (--do_lower_case={by_name})"
    if published is None:
        cure += f", or lowercase={case} where the name misleads"
    raise InputError(
        f"{preset}: by its name the checkpoint is {'uncased' if by_name else 'cased'}, but lowercase={case} by {why}. "
        f"{cure}."
    )


def read_tokenizer(preset: str | os.PathLike, lowercase: bool | None = None) -> dict | None:
    """Returns a preset's tokenizer settings, or None if the checkpoint has no vocabulary.

    Args:
        preset: as in `BertBackbone.from_preset`.
        lowercase: bool, the user's choice, or None; see `decide_case`.

    Returns:
        Dict of `vocabulary`, list of pieces; `lowercase`, bool; and the other settings of `open_tokenizer`.

    Raises:
        InputError: as `decide_case`; or nothing tells whether the vocabulary is lower-cased; or `lowercase` contradicts
            the checkpoint's own settings, and neither vocabulary nor name confirms it.
    """
    preset = name_of(preset)
    with located(preset, "tokenizer") as place:
        settings = formats.find_tokenizer(place)
        if settings is None:
            return None
        case = decide_case(preset, settings, lowercase)
        pieces = settings["vocabulary"]
        if isinstance(pieces, str):
            pieces = [piece for _, piece in read_lines(pieces)]
    if case is None:
        raise InputError(f"{preset}: nothing says whether its vocabulary is lower-cased. Say it by --do_lower_case.")
    own = settings["lowercase"]
    if None not in (lowercase, own) and case not in (own, case_of_vocabulary(pieces), case_of_preset(preset)):
        raise InputError(
            f"{preset}: by its own settings its vocabulary is {'un' if own else ''}cased. Received: do_lower_case="
            f"{lowercase}. Pass --do_lower_case={own}."
        )
    del settings["place"]
    return settings | {"vocabulary": pieces, "lowercase": case}
