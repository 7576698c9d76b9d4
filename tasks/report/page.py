"""Writes report.html: the scores of a run and its worst mistakes, in one self-contained file.

`write_report` computes the contents, and `report.html.j2` lays them out.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.files import write_lines
from tasks.report import figures, formatting
from tasks.report.figures import Series

NUM_MISTAKES = 20
MAX_CLASSES = 200  # If there are more, those with the most mistakes are shown. A browser still opens 40,000 cells.
_ENVIRONMENT = formatting.environment(autoescape=True)  # Compiles the template once.
_MANY_CLASSES = 4  # With more classes, the most frequent confusions are listed too.
_MOST_CONFUSED = 10
_WIDE_NAMES = 8  # Column names are horizontal for at most this many classes, and this many characters in all.
_WIDE_CHARACTERS = 60


class Score(NamedTuple):
    """A headline figure.

    Attributes:
        name: name of the figure, e.g. "accuracy".
        value: the figure, or NaN if it is undefined for these rows.
        low, high: ends of its 95% interval (`tasks.report.bootstrap.interval`), or None.
        percent: whether the figure is a share or a correlation, from -1 to 1, which is shown times 100.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    percent: bool = True


class Mistake(NamedTuple):
    """An example that the model gets wrong.

    Attributes:
        loss: loss of the example. The mistakes with the largest loss are shown.
        parts: (caption, text) pairs to show, in this order. Texts captioned "expected" and "predicted" stand out.
        words: words with their shares in the prediction: `(index of the part, start, end, share)`, with character
            offsets `[start, end)`, in the order of the texts.
    """

    loss: float
    parts: list[tuple[str, str]]
    words: Sequence[tuple[int, int, int, float]] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a report.

    Attributes:
        title: heading of the page, such as the task and its starting checkpoint.
        scores: headline figures, the main one first.
        history: content of `history.json` (`tasks.engine.progress.History`), or None if nothing was trained.
        confusion: class names, and counts by true class (first axis) and predicted class: int, shape (C, C); or None.
        predictions: true and predicted values of a regression, float, shape (N,) each; or None.
        lengths: number of tokens of each example by split, int, shape (N,), before truncation if known.
        max_length: maximum number of tokens of an example.
        mistakes: examples that the model gets wrong, in any order. The `NUM_MISTAKES` with the largest loss are shown.
        settings: settings of the run, by name.
        notes: sentences at the top of the page, such as the number of skipped rows.
        panels: drawings of the model's confidence: heading, curves, axes.
        tables: further tables: caption, header, rows. Cells are numbers, strings or None.
        long_examples: treatment of examples above `max_length`: "cut", "split into windows", ...
        data_lines: sentences of the data check about all rows, and about each kind of fault; empty without a check.
        data_counts: number of rows of each label, by title of the file, the training file first.
        data_tables: further tables of the data check, as in `tables`.
    """

    title: str
    scores: Sequence[Score] = ()
    history: dict | None = None
    confusion: tuple[list[str], np.ndarray] | None = None
    predictions: tuple[np.ndarray, np.ndarray] | None = None
    lengths: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    max_length: int = 0
    mistakes: Sequence[Mistake] = ()
    settings: dict = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    panels: Sequence[tuple[str, list[Series], figures.Axes]] = ()
    tables: Sequence[tuple[str, list[str], list[list]]] = ()
    long_examples: str = "cut"
    data_lines: Sequence[str] = ()
    data_counts: dict[str, Counter] = dataclasses.field(default_factory=dict)
    data_tables: Sequence[tuple[str, list[str], list[list]]] = ()


def write_report(path: str, report: Report) -> None:
    """Writes a report as a single HTML file that includes its style and drawings, and has no scripts.

    Texts are escaped, so that they may contain anything. Equal reports give equal bytes. The file is replaced
    atomically, so that a failure keeps the earlier one.
    """
    _ENVIRONMENT.filters |= {"number": formatting.format_cell, "g": "{:g}".format}
    _ENVIRONMENT.globals |= {"formatting": formatting, "mark_words": _mark_words, "MAX_SERIES": figures.MAX_SERIES}
    worst = worst_mistakes(report.mistakes, NUM_MISTAKES)
    sections = {
        "scores": [_score(score) for score in report.scores],
        "curves": _panels(report.history or {}),
        "confusion": _confusion(*report.confusion) if report.confusion else None,
        "predictions": _scatter(*report.predictions) if report.predictions else None,
        "data": report.data_lines,
        "confidence": report.panels,
        "mistakes": {"worst": worst} if worst or report.scores else None,
        "lengths": [
            _lengths(name, tokens, report.max_length) for name, tokens in report.lengths.items() if len(tokens)
        ],
        "tables": [formatting.format_table(*table) for table in report.tables],
        "settings": report.settings,
    }
    page = _ENVIRONMENT.get_template("report.html.j2").render(report=report, sections=sections)
    write_lines(path, [formatting.escape_unprintable(page)])


def worst_mistakes(mistakes: Sequence[Mistake], count: int) -> list[Mistake]:
    """Returns the mistakes with the largest loss, the largest first; an undefined loss comes last."""
    return sorted(mistakes, key=lambda mistake: (math.isnan(mistake.loss), -mistake.loss))[:count]


def _mark_words(text: str, number: int, words: Sequence[tuple[int, int, int, float]]) -> list[tuple[str, str, str]]:
    """Cuts the text of a mistake's part at its words: (piece, class of its mark or "", share)."""
    most, pieces, position = max((abs(share) for *_, share in words), default=0.0), [], 0
    for part, start, end, share in words:
        if part != number or abs(share) <= most / 10 or not position <= start < end <= len(text):
            continue
        kind = ("for" if share > 0 else "against") + (" weak" if abs(share) < most / 3 else "")
        pieces += [(text[position:start], "", ""), (text[start:end], kind, f"{share:+.2f}".replace("-", "−"))]
        position = end
    return [*pieces, (text[position:], "", "")]


# === Scores ===


def _score(score: Score) -> dict:
    """Returns a figure, its interval and its scale as text, and their positions on the scale, from 0 to 1.

    The scale ends at 1, or at a round number above the figure. It starts at 0, or at minus its end if a number is
    negative.
    """
    numbers = [
        number for number in (score.value, score.low, score.high) if number is not None and math.isfinite(number)
    ]
    if not math.isfinite(score.value):
        return {"name": score.name, "shown": None, "interval": ""}
    largest = max(map(abs, numbers))
    last = 1.0 if largest <= 1.0 + 1e-6 else figures.find_ticks(0.0, largest)[-1]
    first = -last if min(numbers) < 0 else 0.0

    def show(number: float) -> str:
        return (f"{100 * number:.1f}" if score.percent else f"{number:,.4g}").replace("-", "−")

    has_interval = len(numbers) == 3
    return {
        "name": score.name,
        "shown": show(score.value),
        "unit": "%" if score.percent else "",
        "interval": f"95% interval {show(score.low)} to {show(score.high)}" if has_interval else "",
        "scale": f"on a scale from {show(first)} to {show(last)}",
        "places": [(number - first) / (last - first) for number in numbers] if score.percent or has_interval else [],
    }


# === Training ===


def _panels(history: dict) -> list[tuple[str, list[Series], figures.Axes]]:
    """Returns headings, curves and axes of the drawings: losses, figures up to 1, each other figure, learning rate."""
    training, evaluation = (_read_curves(history.get(name, [])) for name in ("training", "evaluations"))
    losses, shares, others = [], [], []
    for kind, curves in (("training", training), ("evaluation", evaluation)):
        for name, points in curves.items():
            if name == "loss" or name.endswith("_loss"):
                label = f"{kind} loss" if name == "loss" else f"{kind}: {name.removesuffix('_loss')}"
                losses.append(Series(label.replace("_", " "), points))
            elif kind == "evaluation":
                is_share = np.abs(points[:, 1]).max() <= 1.0
                (shares if is_share else others).append(Series(name.replace("_", " "), points))
    panels = [("Loss", losses), ("Evaluation", shares), *((curve.label, [curve]) for curve in others)]
    if "learning_rate" in training:
        panels.append(("Learning rate", [Series("learning rate", training["learning_rate"])]))
    return [(heading, series, figures.curve_axes(series[: figures.MAX_SERIES])) for heading, series in panels if series]


def _read_curves(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """Returns the steps and finite values of each figure, float64, shape (P, 2)."""
    curves = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                curves[name].append((row["step"], value))
    return {name: np.array(points, np.float64) for name, points in curves.items()}


# === Predictions ===


def _confusion(labels: Sequence[str], counts: np.ndarray) -> dict:
    """Returns the cells of the confusion matrix, and the most frequent confusions of many classes."""
    totals, correct = counts.sum(axis=1), np.diagonal(counts)
    wrong = totals + counts.sum(axis=0) - 2 * correct
    chosen = sorted(np.argsort(-wrong, kind="stable")[:MAX_CLASSES].tolist())
    shares = counts / np.maximum(totals, 1)[:, np.newaxis]
    names = [labels[index] for index in chosen]
    width = sum(min(len(name), 20) for name in names)
    return {
        "num_classes": len(labels),
        "names": names,
        "are_wide": len(names) <= _WIDE_NAMES and width <= _WIDE_CHARACTERS,
        "num_correct": int(correct.sum()),
        "num_rows": int(totals.sum()),
        "rows": [
            (labels[row], counts[row, chosen].tolist(), shares[row, chosen].tolist(), totals[row], correct[row])
            for row in chosen
        ],
        "most_confused": most_confused(labels, counts) if len(labels) > _MANY_CLASSES else None,
    }


def most_confused(labels: Sequence[str], counts: np.ndarray) -> formatting.Table | None:
    """Returns a table of the largest counts off the diagonal, or None if all are 0."""
    pairs = np.argwhere(counts).tolist()
    wrong = Counter({(true, predicted): counts[true, predicted] for true, predicted in pairs if true != predicted})
    rows = [
        [labels[true], labels[predicted], count, formatting.format_share(count, counts[true].sum())]
        for (true, predicted), count in wrong.most_common(_MOST_CONFUSED)
    ]
    header = ["true", "predicted", "times", "of the true class"]
    return formatting.format_table("Classes confused most often", header, rows) if rows else None


def _scatter(true: np.ndarray, predicted: np.ndarray) -> dict:
    true, predicted = np.asarray(true, np.float64), np.asarray(predicted, np.float64)
    axes, points = figures.scatter(true, predicted)
    return {"axes": axes, "points": points, "num_rows": len(true), "error": np.abs(true - predicted).mean()}


# === Lengths ===


def _lengths(split: str, tokens: np.ndarray, limit: int) -> dict:
    """Returns the histogram of the lengths of a split, and the numbers for its caption."""
    axes, bars = figures.histogram(tokens, limit)
    return {
        "name": split,
        "axes": axes,
        "bars": bars,
        "num_rows": len(tokens),
        "num_longer": int((tokens > limit).sum()),
        "num_full": int((tokens == limit).sum()),
        "median": int(np.median(tokens)),
        "longest": int(tokens.max()),
    }
