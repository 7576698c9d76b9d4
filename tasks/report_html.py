"""Pieces of report.html: text that cannot break the page, numbers, tables, the confusion matrix."""

import html
import math
import re
from collections.abc import Sequence

import numpy as np

MAX_CLASSES = 200  # Above it the matrix has the classes with the most mistakes: a page of 40,000 cells still opens.
_WIDE_NAMES = 8  # Classes up to which the names of the columns lie flat, if they have few enough characters.
_WIDE_CHARACTERS = 60
_MOST_CONFUSED = 10
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?\s?%?|\d+ of \d+|-|–|")


def escape(text) -> str:
    """Makes any text safe inside an element and inside a quoted attribute; tabs and line feeds stay.

    Control characters, lone surrogates and noncharacters, which HTML or UTF-8 cannot hold, are written as in Python.

    >>> print(escape('<b a="1">' + chr(7)))
    &lt;b a=&quot;1&quot;&gt;\\x07
    """
    return html.escape(_CONTROLS.sub(_show_control, str(text)), quote=True)


def _show_control(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def format_number(value: float) -> str:
    """A number as a person reads it: counts in groups of three, other numbers with up to four significant places.

    >>> [format_number(value) for value in (67349, 0.87654321, 5e-05, float("nan"))]
    ['67,349', '0.8765', '5e-05', '–']
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def format_cell(value) -> str:
    """A table's cell or a setting's value, as plain text."""
    if value is None:
        return "–"
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return format_number(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return str(value)


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table with a caption, in a box of its own that scrolls; columns of numbers stand at the right."""
    if any(len(row) != len(header) for row in rows):
        raise ValueError(f"Each row of a table must have a cell for each of its columns {header}. Received: {rows}")
    columns = [format_column([row[index] for row in rows]) for index in range(len(header))]
    numeric = [all(_NUMBER.fullmatch(text) for text in column) and any(column) for column in columns]
    head = _cells("th", header, numeric, ' scope="col"')
    body = "".join(f"<tr>{_cells('td', texts, numeric)}</tr>" for texts in zip(*columns, strict=True))
    return (
        f'<div class="box short" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>'
        f"{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def format_column(values: Sequence) -> list[str]:
    """The cells of one column as plain text; fractions of like size get the same number of places.

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


def _cells(tag: str, texts: Sequence[str], numeric: Sequence[bool], attributes: str = "") -> str:
    return "".join(
        f'<{tag}{kind}{attributes} dir="auto">{escape(text)}</{tag}>'
        for text, kind in zip(texts, [' class="number"' if one else "" for one in numeric], strict=True)
    )


def confusion_table(labels: Sequence[str], counts: np.ndarray) -> str:
    """The confusion matrix as a table in a box that scrolls, its names staying in view.

    Args:
        labels: C names.
        counts: int, true class by predicted class, shape (C, C).
    """
    chosen = _most_wrong(counts)
    totals = counts.sum(axis=1)
    width = sum(min(len(labels[index]), 20) for index in chosen)
    kind = "confusion" if len(chosen) <= _WIDE_NAMES and width <= _WIDE_CHARACTERS else "confusion many"
    names = {index: _name(labels[index]) for index in chosen}
    head = "".join(f'<th scope="col">{names[index]}</th>' for index in chosen)
    body = "".join(
        f'<tr><th scope="row">{names[row]}</th>{_matrix_cells(counts[row], chosen, totals[row])}'
        f'<td class="sum">{totals[row]:,}</td><td class="sum">{_share(counts[row, row], totals[row])}</td></tr>'
        for row in chosen
    )
    return (
        '<div class="box short" tabindex="0" role="region" aria-label="Confusion matrix">'
        f'<table class="{kind}"><thead><tr><th scope="col">true ↓<br>predicted →</th>{head}'
        f'<th scope="col">rows</th><th scope="col">found</th></tr></thead><tbody>{body}</tbody></table></div>'
    )


def _most_wrong(counts: np.ndarray) -> list[int]:
    """Class numbers to show, in their order."""
    if len(counts) <= MAX_CLASSES:
        return list(range(len(counts)))
    wrong = counts.sum(axis=1) + counts.sum(axis=0) - 2 * np.diagonal(counts)
    return sorted(np.argsort(-wrong, kind="stable")[:MAX_CLASSES].tolist())


def _name(label: str) -> str:
    return f'<span class="name" dir="auto" title="{escape(label)}">{escape(label)}</span>'


def _matrix_cells(row: np.ndarray, chosen: list[int], total: int) -> str:
    cells = []
    for index in chosen:
        share = row[index] / total if total else 0.0
        deep = ' class="deep"' if share > 0.55 else ""
        style = f' style="--share:{0.06 + 0.94 * share:.2f}"' if share else ""
        cells.append(f"<td{deep}{style}>{row[index] if row[index] else ''}</td>")
    return "".join(cells)


def _share(part: int, total: int) -> str:
    return f"{part / total:.1%}" if total else "–"


def most_confused(labels: Sequence[str], counts: np.ndarray) -> list[list]:
    """The largest counts off the diagonal: rows of true class, predicted class, count, share of the true class."""
    wrong = np.array(counts)
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_CONFUSED]
    pairs = [divmod(int(index), len(wrong)) for index in order]
    totals = counts.sum(axis=1)
    return [
        [labels[true], labels[predicted], int(wrong[true, predicted]), _share(wrong[true, predicted], totals[true])]
        for true, predicted in pairs
        if wrong[true, predicted]
    ]
