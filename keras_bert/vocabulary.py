"""Reads WordPiece vocabularies, and refuses those that no BERT can have been trained with. Imports no TensorFlow."""

import itertools
import os
import re
from collections.abc import Iterable

from keras_bert.errors import InputError
from keras_bert.files import MOST_TEXT, read_lines

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# A tokenizer's attributes, each with an `..._id` beside it. KerasHub's preprocessors use `start_token`, `end_token`.
TOKEN_OF = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
TOKEN_OF |= {"start_token": "[CLS]", "end_token": "[SEP]"}

_MOST_PIECES = 1_000_000  # LaBSE has 501,153.
MAX_PIECE_BYTES = 256  # tensorflow-text, `kMaxVocabTokenLengthInUTF8Bytes`.
_ENOUGH = 500  # Pieces with Latin letters that are needed to judge whether a vocabulary is lower-cased.
# 32% of these pieces have a capital in Google's cased English vocabulary, 0.05% in its Chinese one.
_CASED_SHARE = 0.05
_HAS_LATIN = re.compile("[A-Za-z]").search
_HAS_CAPITAL = re.compile("[A-Z]").search


class VocabularyLookup:
    """Mixin for tokenizers whose attribute `vocabulary` lists the pieces in the order of their ids, or is None."""

    def set_pieces(self, pieces: list[str], lowercase: bool | None) -> None:
        """Sets the vocabulary to checked pieces, and `lowercase`, by `default_case` if it is None."""
        self.lowercase = default_case(pieces) if lowercase is None else bool(lowercase)
        ids = {piece: index for index, piece in enumerate(pieces)}
        # Not by assignment: Keras would copy both, and search each piece for layers.
        vars(self).update(vocabulary=pieces, _ids=ids)

    def get_vocabulary(self) -> list[str]:
        """Returns the pieces in the order of their ids."""
        self._check_ready()
        return list(self.vocabulary)

    def vocabulary_size(self) -> int:
        """Returns the number of pieces."""
        self._check_ready()
        return len(self.vocabulary)

    def id_to_token(self, id: int) -> str:
        """Returns the piece with an id; raises ValueError for an id outside the vocabulary."""
        if not 0 <= id < self.vocabulary_size():
            raise ValueError(f"`id` must be in [0, {self.vocabulary_size()}). Received: id={id}")
        return self.vocabulary[id]

    def token_to_id(self, token: str) -> int:
        """Returns the id of a piece; raises ValueError for a piece that is not in the vocabulary."""
        self._check_ready()
        if token not in self._ids:
            raise ValueError(f"`token` must be in the vocabulary. Received: token={token!r}")
        return self._ids[token]

    def _check_ready(self) -> None:
        if self.vocabulary is None:
            raise ValueError("The tokenizer has no vocabulary: pass `vocabulary`, or call `load_assets`.")


def read_vocabulary(
    vocabulary: str | os.PathLike | Iterable[str], lowercase: bool | None = None, source: str = "The vocabulary"
) -> list[str]:
    """Reads a vocabulary and checks it.

    Args:
        vocabulary: path of a file with one piece per line (the line number, from 0, is the id), or the pieces.
        lowercase: bool, whether texts will be lower-cased; the vocabulary must suit it. None: not known yet.
        source: what messages call the vocabulary if it is not a file.

    Returns:
        The pieces in the order of their ids, without white space around them. Lines that hold only exotic white space
        (Google's Chinese vocabulary has two) may become equal. The last of equal pieces counts, as in
        google-research/bert (tokenization.py, `load_vocab`).

    Raises:
        InputError: the file cannot be read; the vocabulary is empty, lacks a special token, holds one piece twice or
            one too long, or is cased where `lowercase` is True (uncased where it is False).
    """
    if isinstance(vocabulary, (str, os.PathLike)):
        source = os.fspath(vocabulary)
        vocabulary = (piece for _, piece in read_lines(source, MOST_TEXT))
    raw = list(itertools.islice(vocabulary, _MOST_PIECES + 1))
    if len(raw) > _MOST_PIECES:
        raise InputError(f"{source}: expected at most {_MOST_PIECES:,} pieces. It is no vocabulary of a BERT.")
    pieces = [piece.strip() for piece in raw]
    _check_pieces(source, raw, pieces)
    check_case(source, pieces, lowercase)
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
        if len(piece.removeprefix("##").encode()) > MAX_PIECE_BYTES:
            raise InputError(f"{source}:{number}: a piece of over {MAX_PIECE_BYTES} bytes. Split or remove it.")
        if piece.strip() and first.setdefault(piece, number) != number:
            raise InputError(f"{source}:{number}: the piece {piece!r} is on line {first[piece]} already. Remove one.")


def check_case(source: str, pieces: list[str], lowercase: bool | None, why: str = "") -> None:
    """Refuses a `lowercase` that contradicts the vocabulary: every id would be valid, but the scores would be bad.

    Args:
        source: name of the vocabulary, for messages.
        pieces: the vocabulary.
        lowercase: bool, whether texts will be lower-cased; None: not known yet.
        why: the reason for `lowercase`, for messages.

    Raises:
        InputError: the vocabulary has the other case.
    """
    case = case_of_vocabulary(pieces)
    if None in (case, lowercase) or case == lowercase:
        return
    reason = "hardly any piece has a capital" if case else "many pieces have capitals"
    raise InputError(
        f"{source}: expected {'a lower-cased' if lowercase else 'a cased'} vocabulary, since lowercase={lowercase}"
        f"{why and f' by {why}'}, found {'a lower-cased' if case else 'a cased'} one "
        f"({reason}). Pass lowercase={case} (--do_lower_case={case}), or the vocabulary that belongs to the checkpoint."
    )


def check_rows(source: str, num_pieces: int, num_rows: int) -> None:
    """Raises InputError if a vocabulary has more pieces than the token table has rows.

    Fewer pieces are common, since tables are padded.
    """
    if num_pieces > num_rows:
        raise InputError(
            f"{source}: {num_pieces} pieces in the vocabulary, {num_rows} rows in the token table. Expected a row for "
            "each piece: the two belong to different models."
        )


# === Whether a checkpoint is lower-cased ===


def case_of_name(name: str) -> bool | None:
    """Returns whether a checkpoint of this name is lower-cased, or None if the name does not tell.

    The rules are those of Google's names (google-research/bert, tokenization.py:28,
    `validate_case_matches_checkpoint`).
    """
    name = os.path.basename(os.path.normpath(name)).lower()
    if re.search(r"(^|[-_])(uncased|multilingual[-_]l|chinese)", name):
        return True
    return False if re.search(r"(^|[-_])cased", name) else None


def case_of_vocabulary(pieces: Iterable[str]) -> bool | None:
    """Returns whether the pieces are lower-cased, judged by the share of pieces with a capital.

    Returns None if the pieces with Latin letters are too few, or their share is neither high nor low.
    """
    count, share = _capitals(pieces)
    if count < _ENOUGH or _CASED_SHARE / 5 <= share < _CASED_SHARE:
        return None
    return share < _CASED_SHARE


def default_case(pieces: Iterable[str]) -> bool:
    """Returns whether to lower-case texts for a vocabulary about which nothing else is known.

    The answer is True, as in google-research/bert, unless the vocabulary is cased. If `case_of_vocabulary` cannot tell,
    a vocabulary counts as cased if at least half of its pieces with Latin letters have a capital.
    """
    case = case_of_vocabulary(pieces)
    return _capitals(pieces)[1] < 0.5 if case is None else case


def _capitals(pieces: Iterable[str]) -> tuple[int, float]:
    """Returns the number of pieces with Latin letters, special tokens aside, and the share of these with a capital."""
    latin = [piece for piece in pieces if _HAS_LATIN(piece) and not (piece[0] == "[" and piece[-1] == "]")]
    return len(latin), sum(1 for piece in latin if _HAS_CAPITAL(piece)) / max(1, len(latin))
