"""Whether a checkpoint is lower-cased: what its name says, and what its vocabulary says."""

import os
import re
from collections.abc import Iterable

_ENOUGH = 500  # pieces with Latin letters; a smaller vocabulary says nothing
_CASED_SHARE = 0.05  # Google's cased English vocabulary: 32% of those hold a capital, its Chinese one 0.05%


def case_of_name(name: str) -> bool | None:
    """Whether a checkpoint of this name is lower-cased, by the names that Google gave its own; None: it does not say.

    google-research/bert, tokenization.py:28, `validate_case_matches_checkpoint`.
    """
    name = os.path.basename(os.path.normpath(name)).lower()
    if re.search(r"(^|[-_])(uncased|multilingual[-_]l|chinese)", name):
        return True
    return False if re.search(r"(^|[-_])cased", name) else None


def case_of_vocabulary(pieces: Iterable[str]) -> bool | None:
    """Whether the pieces are lower-cased, by the share that holds a capital; None: too few Latin letters to tell.

    A wrong flag is not seen otherwise: every id is valid, and the scores are merely bad.
    """
    latin = [piece for piece in pieces if re.search("[A-Za-z]", piece) and not re.fullmatch(r"\[.*\]", piece)]
    if len(latin) < _ENOUGH:
        return None
    share = sum(bool(re.search("[A-Z]", piece)) for piece in latin) / len(latin)
    if share >= _CASED_SHARE:
        return False
    return True if share < _CASED_SHARE / 5 else None
