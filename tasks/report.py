"""report.html: what a run reached and where the model fails, in one file that needs nothing else to be read."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.files import atomic_path
from tasks import report_figures as figures
from tasks.report_html import MAX_CLASSES, confusion_table, escape, format_cell, most_confused, table
from tasks.report_style import STYLE

NUM_MISTAKES = 20
_MAX_CHARACTERS = 10_000  # Of a text in a mistake.
_BRIEF = 60  # Characters up to which an answer is set in bold.
_MANY_CLASSES = 4  # Above it the pairs that are confused most are listed too.


class Score(NamedTuple):
    """A headline figure.

    Attributes:
        name: what it is, e.g. "accuracy".
        value: the figure; NaN if it is not defined for these rows.
        low, high: ends of its 95% interval (`tasks.bootstrap.interval`), or None.
        percent: whether `value` (and `low`, `high`) is a share or a correlation, from -1 to 1, to be shown times 100.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    percent: bool = True


class Mistake(NamedTuple):
    """An example that the model has wrong.

    Attributes:
        loss: how wrong; the largest are shown.
        parts: what to show of it, in this order: (caption, text). Texts captioned "expected" and "predicted" stand
            out.
    """

    loss: float
    parts: list[tuple[str, str]]


def write_report(
    path: str,
    *,
    title: str,
    scores: list[Score],
    history: dict | None,
    confusion: tuple[list[str], np.ndarray] | None,
    lengths: dict[str, np.ndarray],
    max_length: int,
    mistakes: list[Mistake],
    settings: dict,
    notes: Sequence[str] = (),
    tables: Sequence[tuple[str, list[str], list[list]]] = (),
    long_examples: str = "cut",
) -> None:
    """Writes a run's report: HTML with its style and its drawings inside, without scripts; whole or not at all.

    Whatever the texts hold is shown as text. The same arguments give the same bytes.

    Args:
        path: the file to write.
        title: the page's heading, such as the task and what the run started from.
        scores: the headline figures, the main one first.
        history: what `history.json` holds (`tasks.reporting.History`); None: nothing was trained.
        confusion: class names, and counts by true class (first axis) and predicted class: int, shape (C, C); or None.
        lengths: tokens of each example by split: int, shape (N,). Before they are cut, where that is known.
        max_length: tokens that an example may have.
        mistakes: examples that the model has wrong, in any order; the `NUM_MISTAKES` of the largest loss are shown.
        settings: the run's settings by name.
        notes: sentences that stand above everything else, e.g. how many bad rows were left out.
        tables: further tables: caption, header, rows; cells of numbers, strings or None.
        long_examples: what happens to an example above `max_length`: "cut", "split into windows", ...
    """
    sections = [
        ("scores", "Scores", _scores(scores)),
        ("curves", "Training", _curves(history)),
        ("confusion", "Confusions", _confusion(confusion)),
        ("mistakes", "Worst mistakes", _mistakes(mistakes, has_scores=bool(scores))),
        ("lengths", "Lengths", _lengths(lengths, max_length, long_examples)),
        ("tables", "Tables", "".join(f'<div class="gap">{table(*one)}</div>' for one in tables)),
        ("settings", "Settings", _settings(settings)),
    ]
    sections = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections)
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{heading}</h2>{content}'
        "</section>\n"
        for name, heading, content in sections
    )
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # Should an escape be missing somewhere, the page still cannot run or load anything.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header><h1 dir="auto">'
        f'{escape(title)}</h1></header>\n<nav aria-label="Sections">{links}</nav>\n{_notes(notes)}<main>\n{body}'
        "</main>\n</body>\n</html>\n"
    )
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(page)


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f'<li dir="auto">{escape(note)}</li>' for note in notes)
    return f'<ul class="notes">{items}</ul>\n' if items else ""


def _scores(scores: Sequence[Score]) -> str:
    if not scores:
        return ""
    cards = "".join(_score(score) for score in scores)
    explained = ""
    if any(score.low is not None and math.isfinite(score.low) for score in scores):
        explained = (
            '<p class="soft">The bar around each mark is the 95% interval over 1,000 redraws of the evaluated '
            "examples with replacement: how far the figure would move with other examples of the same kind. How far "
            "it would move with another seed of the training is another question.</p>"
        )
    return f'<div class="scores">{cards}</div>{explained}'


def _score(score: Score) -> str:
    for number in (score.value, score.low, score.high):
        if score.percent and number is not None and abs(number) > 1.0 + 1e-6:
            raise ValueError(f"A score with `percent=True` must be from -1 to 1. Received: {score}")
    if not math.isfinite(score.value):
        return (
            f'<div class="score"><h3>{escape(score.name)}</h3><div class="value">–</div>'
            '<p class="soft">not defined for these examples</p></div>'
        )
    shown, unit = _show_score(score.value, score.percent)
    long = " long" if len(shown) > 6 else ""
    return (
        f'<div class="score"><h3>{escape(score.name)}</h3><div class="value{long}">{shown}'
        f'{f"""<span class="unit"> {unit}</span>""" if unit else ""}</div>{_score_bar(score, shown + unit)}</div>'
    )


def _score_bar(score: Score, shown: str) -> str:
    """The score on its scale, and its interval; nothing for a figure that has neither."""
    has_interval = all(end is not None and math.isfinite(end) for end in (score.low, score.high))
    if not has_interval and not score.percent:
        return ""
    scale = _score_scale(score)
    text = f"on a scale from {_ends(scale, score.percent)}"
    if not has_interval:
        return figures.draw_interval(score.value, None, None, scale, f"{score.name}: {shown}, {text}")
    interval = f"95% interval {_ends((score.low, score.high), score.percent)}"
    drawing = figures.draw_interval(
        score.value, score.low, score.high, scale, f"{score.name}: {shown}, {interval}, {text}"
    )
    return f'{drawing}<p class="soft">{interval}</p>'


def _show_score(value: float, percent: bool) -> tuple[str, str]:
    text = f"{100 * value:.1f}" if percent else f"{value:,.4g}"
    return text.replace("-", "−"), "%" if percent else ""


def _ends(ends: tuple[float, float], percent: bool) -> str:
    low, high = (_show_score(end, percent)[0] for end in ends)
    return f"{low} to {high}"


def _score_scale(score: Score) -> tuple[float, float]:
    """From 0 to 1 (or to a round number above the figure); from -1 where the figure or its interval is below 0."""
    known = [end for end in (score.value, score.low, score.high) if end is not None and math.isfinite(end)]
    largest = max(map(abs, known))
    last = 1.0 if largest <= 1.0 + 1e-6 else figures.ticks(0.0, largest)[-1]
    return (-last if min(known) < 0 else 0.0), last


def _curves(history: dict | None) -> str:
    if not history:
        return ""
    training, evaluations = history.get("training", []), history.get("evaluations", [])
    names = list(dict.fromkeys(name for row in training for name in row))
    losses = [_series(training, name, _loss_name(name, "training")) for name in names if _is_loss(name)]
    figure_names = list(dict.fromkeys(name for row in evaluations for name in row if name != "step"))
    losses += [_series(evaluations, name, _loss_name(name, "evaluation")) for name in figure_names if _is_loss(name)]
    others = [_series(evaluations, name, name) for name in figure_names if not _is_loss(name)]
    shares = [one for one in others if _largest(one) <= 1.0]
    larger = [one for one in others if _largest(one) > 1.0]
    panels = [
        _curve_panel("Loss", losses),
        _curve_panel("Evaluation", shares),
        *(_curve_panel(one[0], [one]) for one in larger),
        _curve_panel("Learning rate", [_series(training, "learning_rate", "learning rate")]),
    ]
    panels = [panel for panel in panels if panel]
    return f'<div class="panels">{"".join(panels)}</div>' if panels else ""


def _largest(series: figures.Series) -> float:
    return np.abs(series[2]).max(initial=0.0, where=np.isfinite(series[2]))


def _is_loss(name: str) -> bool:
    return name == "loss" or name.endswith("_loss")


def _loss_name(name: str, kind: str) -> str:
    return f"{kind} loss" if name == "loss" else f"{kind}: {name.removesuffix('_loss')}"


def _series(rows: Sequence[dict], name: str, label: str) -> figures.Series:
    rows = [row for row in rows if isinstance(row.get(name), int | float)]
    steps = np.array([row["step"] for row in rows], np.float64)
    return label.replace("_", " "), steps, np.array([row[name] for row in rows], np.float64)


def _curve_panel(heading: str, series: list[figures.Series]) -> str:
    series = [one for one in series if np.isfinite(one[2]).any()]
    if not series:
        return ""
    ends = []
    for label, _, values in series[: figures.MAX_SERIES]:
        values = values[np.isfinite(values)]
        ends.append(f"{label} from {values[0]:.4g} to {values[-1]:.4g}")
    drawing = figures.draw_curves(series, f"{heading} over the steps: {'; '.join(ends)}.", "step")
    names = figures.legend([one[0] for one in series]) if len(series) > 1 or series[0][0] != heading.lower() else ""
    more = len(series) - figures.MAX_SERIES
    caption = f"<figcaption>{more} more in history.json.</figcaption>" if more > 0 else ""
    return f"<figure><h3>{escape(_heading(heading))}</h3>{drawing}{names}{caption}</figure>"


def _heading(name: str) -> str:
    return name[:1].upper() + name[1:]


def _confusion(confusion: tuple[list[str], np.ndarray] | None) -> str:
    if confusion is None:
        return ""
    labels, counts = confusion[0], np.asarray(confusion[1])
    if counts.shape != (len(labels), len(labels)):
        raise ValueError(f"`confusion` must have counts of shape {(len(labels),) * 2}. Received: {counts.shape}")
    right, total = int(np.trace(counts)), int(counts.sum())
    shown = min(len(labels), MAX_CLASSES)
    text = (
        f"{right:,} of {total:,} are on the diagonal, where they belong. Each row is a true class, each column what "
        "the model said; the stronger its colour, the larger a cell's share of its row."
    )
    if shown < len(labels):
        text += f" The {shown} of {len(labels)} classes with the most mistakes are shown."
    content = f"<p>{text}</p>{confusion_table(labels, counts)}"
    pairs = most_confused(labels, counts) if len(labels) > _MANY_CLASSES else []
    if pairs:
        header = ["true", "predicted", "times", "of the true class"]
        content += f'<div class="gap">{table("Classes confused most often", header, pairs)}</div>'
    return content


def _lengths(lengths: dict[str, np.ndarray], max_length: int, long_examples: str) -> str:
    panels = "".join(
        _length_panel(split, np.asarray(tokens), max_length, long_examples)
        for split, tokens in lengths.items()
        if len(tokens)
    )
    return f'<div class="panels">{panels}</div>' if panels else ""


def _length_panel(split: str, tokens: np.ndarray, max_length: int, long_examples: str) -> str:
    over, full = int((tokens > max_length).sum()), int((tokens == max_length).sum())
    if over:
        text = f"Longer than {max_length:,} tokens, and {long_examples}: {_part(over, len(tokens))}."
    elif full:  # They may have been cut before they were counted.
        text = f"Filling all {max_length:,} tokens: {_part(full, len(tokens))}."
    else:
        text = f"None of {len(tokens):,} is longer than {max_length:,} tokens."
    middle = f" Half have at most {int(np.median(tokens)):,}, the longest has {int(tokens.max()):,}."
    drawing, rest = figures.draw_histogram(tokens, max_length, f"Lengths of {split} in tokens. {text}{middle}")
    if rest:
        middle += f" The last bar holds all above {rest:,}."
    return f"<figure><h3>{escape(split)}</h3>{drawing}<figcaption>{escape(text + middle)}</figcaption></figure>"


def _part(count: int, total: int) -> str:
    share = "under 0.1%" if count < 0.001 * total else f"{count / total:.1%}"
    return f"{count:,} of {total:,} ({share})"


def _mistakes(mistakes: Sequence[Mistake], has_scores: bool) -> str:
    if not mistakes:
        return "<p>There is none to show.</p>" if has_scores else ""
    worst = sorted(mistakes, key=lambda one: -math.inf if math.isnan(one.loss) else one.loss, reverse=True)
    worst = worst[:NUM_MISTAKES]
    cards = "".join(_mistake(place, one) for place, one in enumerate(worst, start=1))
    return (
        f"<p>The {len(worst)} that cost the most, the costliest first. A confident wrong answer costs more than a "
        f'doubtful one; sometimes it is the expected answer that is wrong.</p><ol class="mistakes">{cards}</ol>'
    )


def _mistake(place: int, mistake: Mistake) -> str:
    parts = "".join(
        f'<dt dir="auto">{escape(caption)}</dt>'
        f'<dd{_kind(caption, text)}{_focus(text)} dir="auto">{escape(_shorten(text))}</dd>'
        for caption, text in mistake.parts
    )
    return (
        f'<li class="mistake"><header><span>{place}</span><span>loss {mistake.loss:.3f}</span></header>'
        f"<dl>{parts}</dl></li>"
    )


def _kind(caption: str, text: str) -> str:
    if caption not in ("expected", "predicted"):
        return ""
    return f' class="{caption}{" brief" if len(text) <= _BRIEF else ""}"'


def _focus(text: str) -> str:
    return ' tabindex="0"' if len(text) > 400 else ""  # It may scroll, which must work from the keyboard.


def _shorten(text: str) -> str:
    text = format_cell(text)
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}… ({len(text) - _MAX_CHARACTERS:,} more characters)"


def _settings(settings: dict) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td dir="auto">{escape(_setting(value))}</td></tr>'
        for name, value in sorted(settings.items())
    )
    if not rows:
        return ""
    return (
        f'<details><summary>{len(settings)} settings</summary><table class="settings"><tbody>{rows}</tbody></table>'
        "</details>"
    )


def _setting(value) -> str:
    """As it would stand after the flag: numbers as they are, lists with commas."""
    return format_cell(value) if value is None or isinstance(value, list | tuple) else str(value)
