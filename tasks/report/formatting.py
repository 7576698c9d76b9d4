"""Formats numbers, tables and texts for the report, and makes the templates' environment."""

import math
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import jinja2
import numpy as np

# Not allowed in HTML or UTF-8: control characters, lone surrogates and noncharacters.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?\s?%?|\d+ of \d+|-|–|")


class Table(NamedTuple):
    """A table as text.

    Attributes:
        caption: caption above the table.
        header: names of the columns.
        is_numeric: whether each column has only numbers, which are right-aligned.
        rows: the cells.
    """

    caption: str
    header: Sequence[str]
    is_numeric: list[bool]
    rows: list[tuple[str, ...]]


def environment(autoescape: bool) -> jinja2.Environment:
    """Returns the environment of this folder's templates, which refuses undefined names."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__))),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def escape_unprintable(text: str) -> str:
    """Replaces characters that are not allowed in a page by Python's escapes, and keeps tabs and line feeds.

    >>> print(escape_unprintable("bell " + chr(7)))
    bell \\x07
    """
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def format_cell(value) -> str:
    """Formats the cell of a table: counts with thousands separators, other numbers with four significant digits.

    >>> [format_cell(value) for value in (67349, 0.87654321, 5e-05, float("nan"), None, ["a", "b"])]
    ['67,349', '0.8765', '5e-05', '–', '–', 'a, b']
    """
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return str(value)
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def format_setting(value) -> str:
    """Formats a value as its flag accepts it: numbers in full, lists with commas."""
    return format_cell(value) if value is None or isinstance(value, list | tuple) else str(value)


def format_column(values: Sequence) -> list[str]:
    """Formats the cells of a column, with the same number of decimals for fractions of similar size.

    >>> format_column([0.8714, 0.87, None])
    ['0.8714', '0.8700', '–']
    """
    fractions = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    if not fractions or any(0 < value < 1e-3 or value >= 1e4 for value in fractions):
        return [format_cell(value) for value in values]
    places = 4 if max(fractions) < 10 else 2
    return [
        f"{value:.{places}f}" if isinstance(value, float) and math.isfinite(value) else format_cell(value)
        for value in values
    ]


def format_table(caption: str, header: Sequence[str], rows: Sequence[Sequence]) -> Table:
    """Formats a table's cells, column by column."""
    columns = [format_column([row[index] for row in rows]) for index in range(len(header))]
    is_numeric = [all(map(_NUMBER.fullmatch, column)) and any(column) for column in columns]
    return Table(caption, header, is_numeric, list(zip(*columns, strict=True)))


def format_tick(value: float) -> str:
    """Formats the number at a tick as briefly as possible.

    >>> [format_tick(value) for value in (0.2, -1500.0, 2e-05)]
    ['0.2', '−1,500', '2e-5']
    """
    if abs(value) >= 1e5 or 0 < abs(value) < 1e-3:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:,.10g}".replace("-", "−")


def format_share(part: int, whole: int) -> str:
    """Formats a share in percent, or as a dash if `whole` is 0.

    >>> [format_share(1, 3), format_share(0, 0)]
    ['33.3%', '–']
    """
    return f"{part / whole:.1%}" if whole else "–"


def format_part(part: int, whole: int) -> str:
    """Formats a count, the total and the share, without rounding a small share to 0.

    >>> [format_part(50, 1200), format_part(1, 5000)]
    ['50 of 1,200 (4.2%)', '1 of 5,000 (under 0.1%)']
    """
    share = "under 0.1%" if part < 0.001 * whole else f"{part / whole:.1%}"
    return f"{part:,} of {whole:,} ({share})"
