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
    latin = [piece for piece in pieces if _HAS_LATIN(piece) and not (piece[0] == "[" and piece[-1] == "]")]
    if len(latin) < _ENOUGH:
        return None
    share = sum(1 for piece in latin if _HAS_CAPITAL(piece)) / len(latin)
    if share >= _CASED_SHARE:
        return False
    return True if share < _CASED_SHARE / 5 else None
