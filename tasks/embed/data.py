"""Reads groups of texts: a text, its match, and texts that do not match; or two texts and their similarity.

This module does not import TensorFlow, so that a wrong file is reported within a second. Shapes: N rows of a table, K
texts of a row.
"""

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import read_lines
from tasks.text.bad_rows import BadRows
from tasks.text.rows import Broken, check_number, check_text, open_rows, parse_number, read_usable, take

SCORE_NAMES = ("score", "label", "similarity_score")
_CURE = "Name the right ones with --text_columns and --score_column."


class Table(NamedTuple):
    """The usable rows of one file, in the file's order.

    Attributes:
        path: the file.
        lines: N line numbers, counted from 1, of each row's first line.
        texts: N lists of K texts.
        scores: N similarities of the first two texts, or None.
    """

    path: str
    lines: list[int]
    texts: list[list[str]]
    scores: list[float] | None

    @property
    def num_texts(self) -> int:
        """K."""
        return len(self.texts[0])

    def checksum(self) -> int:
        return zlib.crc32(repr(self[2:]).encode())


def read_table(path: str, text_columns: Sequence[str] | None, score_column: str | None, bad_rows: BadRows) -> Table:
    """Reads a table of texts.

    A row is bad if it is malformed, lacks a column, has an empty text or a score that is not a number.

    Args:
        path: the file, as `open_rows` reads it.
        text_columns: columns of the texts; None for all columns but the score, in the order of the header or of the
            first object.
        score_column: column of the similarity; None for the first of `SCORE_NAMES` that occurs, if any.
        bad_rows: collects the bad rows.

    Raises:
        InputError: a column is missing; without `text_columns`, a column of texts holds numbers; there is a score, but
            not two texts; no row is usable; or `bad_rows` refuses the file.
    """
    if len(set(text_columns or ())) < len(text_columns or ()):
        raise InputError(f"--text_columns={','.join(text_columns)}: names a column twice. Name each once.")
    file, chosen = open_rows(path), []

    def choose(columns: Sequence[str]) -> None:
        names = {name.lower(): name for name in columns if name not in (text_columns or ())}
        score = score_column or next((names[name] for name in SCORE_NAMES if name in names), None)
        chosen.extend([list(text_columns or (name for name in columns if name != score)), score])

    if file.columns is not None:
        if number := next((name for name in file.columns if re.fullmatch(r"[-+]?\d+([.,]\d+)?", name)), None):
            raise InputError(
                f"{path}:1: expected the names of the columns, found the number {number!r}. Write a first line with "
                "their names, such as question,passage,score."
            )
        choose(file.columns)
        file.require([*chosen[0], *[chosen[1]] * (chosen[1] is not None)], _CURE)

    def read_row(_, row: dict) -> tuple[list[str], float | None]:
        if not chosen:
            choose(list(row))
        names, score = chosen
        if not names:
            raise Broken(f"no text beside {score!r}. {_CURE}")
        if not text_columns and (key := next((name for name in row if name not in (*names, score)), None)):
            raise Broken(f"key {key!r} is not in the first object, whose keys are the columns. {_CURE}")
        try:
            texts = [check_text(name, take(row, name)) for name in names]
            return texts, score and check_number(score, take(row, score))
        except Broken as error:
            raise error if text_columns and score_column else Broken(f"{error} {_CURE}") from error

    _, lines, values, _ = read_usable(file, read_row, bad_rows, "one or more texts in each row")
    texts, scores = map(list, zip(*values, strict=True))
    for name, column in zip(chosen[0], zip(*texts, strict=True), strict=True):
        if not text_columns and all(parse_number(text) is not None for text in column):
            raise InputError(f"{path}: column {name!r} holds numbers, not texts to embed. {_CURE}")
    if chosen[1] is not None and len(chosen[0]) != 2:
        raise InputError(
            f"{path}: a score is the similarity of two texts, but a row has {len(chosen[0])}: "
            f"{', '.join(chosen[0])}. {_CURE}"
        )
    return Table(path=path, lines=lines, texts=texts, scores=None if chosen[1] is None else scores)


def read_sentences(path: str) -> Table:
    """Reads raw text, UTF-8 with a sentence per line; blank lines are left out.

    Raises:
        InputError: there is no sentence.
    """
    sentences = [(line, text.strip()) for line, text in read_lines(path) if text.strip()]
    if not sentences:
        raise InputError(f"{path}: the file holds no text. Expected a sentence per line.")
    return Table(path=path, lines=[line for line, _ in sentences], texts=[[text] for _, text in sentences], scores=None)
