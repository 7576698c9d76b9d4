"""WordPiece vocabularies: reading one, and refusing what no BERT can have been trained with. No TensorFlow."""

import os
from collections.abc import Iterable

from keras_bert.casing import case_of_vocabulary
from keras_bert.errors import InputError
from keras_bert.files import read_lines

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Attributes of a tokenizer, each with its `..._id`; KerasHub's preprocessors ask for `start_token` and `end_token`.
TOKEN_OF = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
TOKEN_OF |= {"start_token": "[CLS]", "end_token": "[SEP]"}

_MAX_PIECE_BYTES = 256  # tensorflow-text, `kMaxVocabTokenLengthInUTF8Bytes`.


def read_vocabulary(
    vocabulary: str | os.PathLike | Iterable[str],
    lowercase: bool | None = None,
    source: str = "The vocabulary",
    why: str = "",
) -> list[str]:
    """Reads a vocabulary and checks it.

    Args:
        vocabulary: path of a file with one piece a line (its number from 0 is the id), or the pieces.
        lowercase: bool, whether texts will be lower-cased, which the vocabulary must suit; None: not known yet.
        source: name of pieces that come without a file, for messages.
        why: what says `lowercase`, for messages.

    Returns:
        The pieces in the order of their ids, without white space around them. Lines of nothing but exotic white space
        (Google's Chinese vocabulary has two) may come out equal: of equal pieces the last counts, as for
        google-research/bert (tokenization.py, `load_vocab`).

    Raises:
        InputError: the file cannot be read; the vocabulary is empty, lacks a special token, holds one piece twice or
            one too long, or is cased where `lowercase` is True (uncased where it is False).
    """
    if isinstance(vocabulary, (str, os.PathLike)):
        source = os.fspath(vocabulary)
        vocabulary = (piece for _, piece in read_lines(source))
    raw = list(vocabulary)
    pieces = [piece.strip() for piece in raw]
    _check_pieces(source, raw, pieces)
    _check_case(source, pieces, lowercase, why)
    return pieces


def _check_pieces(source: str, raw: list[str], pieces: list[str]) -> None:
    if not any(pieces):
        raise InputError(f"{source}: the vocabulary is empty. Expected one WordPiece a line.")
    known = set(pieces)
    missing = [token for token in SPECIAL_TOKENS if token not in known]
    if missing:
        raise InputError(
            f"{source}: the vocabulary lacks {', '.join(missing)}. Expected a BERT vocabulary, one WordPiece a line, "
            f"with {' '.join(SPECIAL_TOKENS)}."
        )
    first: dict[str, int] = {}
    for number, piece in enumerate(raw, start=1):
        if piece.strip() and first.setdefault(piece, number) != number:
            raise InputError(f"{source}:{number}: the piece {piece!r} is on line {first[piece]} already. Remove one.")
        if len(piece.removeprefix("##").encode()) > _MAX_PIECE_BYTES:
            raise InputError(f"{source}:{number}: a piece of over {_MAX_PIECE_BYTES} bytes. Split or remove it.")


def _check_case(source: str, pieces: list[str], lowercase: bool | None, why: str) -> None:
    """Refuses a flag that contradicts the vocabulary: every id would be valid, and the scores merely bad."""
    case = case_of_vocabulary(pieces)
    if None in (case, lowercase) or case == lowercase:
        return
    found = "hardly a piece holds a capital" if case else "many pieces hold capitals"
    raise InputError(
        f"{source}: expected {'a lower-cased' if lowercase else 'a cased'} vocabulary, since lowercase={lowercase}"
        f"{why and f' by {why}'}, found {'a lower-cased' if case else 'a cased'} one "
        f"({found}). Pass lowercase={case} (--do_lower_case={case}), or the vocabulary that belongs to the checkpoint."
    )
