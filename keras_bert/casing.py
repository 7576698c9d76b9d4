"""Decides whether a checkpoint is lower-cased, by its name or by its vocabulary."""

import os
import re
from collections.abc import Iterable

_ENOUGH = 500  # Pieces with Latin letters. A smaller vocabulary proves nothing.
# Of these pieces, 32% hold a capital in Google's cased English vocabulary, 0.05% in its Chinese one.
_CASED_SHARE = 0.05

_HAS_LATIN = re.compile("[A-Za-z]").search
_HAS_CAPITAL = re.compile("[A-Z]").search


def case_of_name(name: str) -> bool | None:
    """Returns whether a checkpoint of this name is lower-cased, or None if the name does not tell.

    It follows the names of Google's checkpoints (google-research/bert, tokenization.py:28,
    `validate_case_matches_checkpoint`).
    """
    name = os.path.basename(os.path.normpath(name)).lower()
    if re.search(r"(^|[-_])(uncased|multilingual[-_]l|chinese)", name):
        return True
    return False if re.search(r"(^|[-_])cased", name) else None


def case_of_vocabulary(pieces: Iterable[str]) -> bool | None:
    """Returns whether the pieces are lower-cased, by the share that holds a capital, or None if too few tell.

    A wrong flag goes unnoticed otherwise: every id is valid, but the scores are bad.
    """
    count, share = _capitals(pieces)
    if count < _ENOUGH or _CASED_SHARE / 5 <= share < _CASED_SHARE:
        return None
    return share < _CASED_SHARE


def default_case(pieces: Iterable[str]) -> bool:
    """Returns whether texts are lower-cased for a vocabulary of which nothing else is known.

    They are, as in google-research/bert, unless the vocabulary is cased; a small one counts as cased if at least half
    of its pieces hold a capital.
    """
    case = case_of_vocabulary(pieces)
    return _capitals(pieces)[1] < 0.5 if case is None else case


def _capitals(pieces: Iterable[str]) -> tuple[int, float]:
    """Returns the number of pieces with Latin letters, and the share of these that holds a capital."""
    latin = [piece for piece in pieces if _HAS_LATIN(piece) and not (piece[0] == "[" and piece[-1] == "]")]
    return len(latin), sum(1 for piece in latin if _HAS_CAPITAL(piece)) / max(1, len(latin))
