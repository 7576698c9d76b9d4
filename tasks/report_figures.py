"""The drawings of report.html, as SVG that takes its colours from the page and its text size from the panel."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tasks.report_html import escape

WIDTH, HEIGHT = 360, 220  # Of a panel, which is shown about as wide on a phone and on a desktop.
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 12, 34
MAX_POINTS = 400  # Of a curve: more than a panel has pixels; longer ones are averaged.
MAX_SERIES = 5  # As many as the style sheet has colours and dashes.
_MAX_BARS = 40

Series = tuple[str, np.ndarray, np.ndarray]  # Name, steps and values, both of shape (P,).


def draw_interval(value: float, low: float | None, high: float | None, scale: tuple[float, float], name: str) -> str:
    """Draws a score as a stroke on its scale, and its interval as a bar around it."""
    first, last = scale

    def place(number: float) -> float:
        return round(4 + 232 * min(1.0, max(0.0, (number - first) / (last - first))), 1)

    bar = ""
    if low is not None and high is not None:
        width = max(place(high) - place(low), 2.0)
        bar = f'<rect class="band" x="{place(low):g}" y="4" width="{width:g}" height="12" rx="2"/>'
    return (
        f'<svg viewBox="0 0 240 20" role="img" aria-label="{escape(name)}"><title>{escape(name)}</title>'
        f'<line class="track" x1="4" x2="236" y1="10" y2="10"/>{bar}'
        f'<line class="mark" x1="{place(value):g}" x2="{place(value):g}" y1="2" y2="18"/></svg>'
    )


def draw_curves(series: Sequence[Series], name: str, x_label: str) -> str:
    """Draws up to `MAX_SERIES` curves over the same steps; points that are not finite are left out.

    Args:
        series: the curves; at least one has a finite point.
        name: what the picture shows, for those who do not see it.
        x_label: what the horizontal axis counts.
    """
    series = [(label, *_thin(*_finite(steps, values))) for label, steps, values in series[:MAX_SERIES]]
    steps = np.concatenate([steps for _, steps, _ in series])
    values = np.concatenate([values for _, _, values in series])
    x_ticks = ticks(min(0.0, float(steps.min())), float(steps.max()))
    y_ticks = ticks(float(values.min()), float(values.max()))
    x_scale = _scale(min(x_ticks[0], 0.0), max(float(steps.max()), x_ticks[0] + 1e-9), _LEFT, WIDTH - _RIGHT)
    y_scale = _scale(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    parts = [_y_axis(y_ticks, y_scale), _x_axis([tick for tick in x_ticks if tick <= steps.max()], x_scale, x_label)]
    for number, (label, steps, values) in enumerate(series):
        parts.append(_curve(number, label, steps, values, x_scale, y_scale))
    return _panel(name, "".join(parts))


def draw_histogram(lengths: np.ndarray, limit: int, name: str) -> tuple[str, int]:
    """Draws how many examples have which length, and the limit as a dashed line.

    Bars hold the lengths above their left edge up to and with their right one. Far beyond the limit they stop, and
    the last one holds what is left.

    Args:
        lengths: tokens, shape (N,), N at least 1.
        limit: tokens that an example may have.
        name: what the picture shows, for those who do not see it.

    Returns:
        The drawing, and where its last bar begins that holds all that is longer; 0 if there is none such.
    """
    longest = int(lengths.max())
    shown = min(longest, max(2 * limit, math.ceil(np.quantile(lengths, 0.99))))
    width = 1
    while math.ceil(max(shown, limit) / width) > _MAX_BARS:
        width *= 2
    num_bars = math.ceil(max(shown, limit) / width)
    bars = np.minimum((np.maximum(lengths, 1) - 1) // width, num_bars - 1)
    counts = np.bincount(bars, minlength=num_bars)
    x_scale = _scale(0.0, num_bars * width, _LEFT, WIDTH - _RIGHT)
    y_ticks = ticks(0.0, float(counts.max()))
    y_scale = _scale(0.0, y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    x_ticks = [tick for tick in ticks(0.0, float(num_bars * width)) if tick <= num_bars * width]
    parts = [_y_axis(y_ticks, y_scale), _x_axis(x_ticks, x_scale, "tokens")]
    for number, count in enumerate(counts.tolist()):
        if count:
            edges = (number * width, (number + 1) * width)
            more = longest if number == num_bars - 1 else edges[1]
            title = f"{edges[0] + 1:,} to {max(more, edges[1]):,} tokens: {count:,}"
            kind = "bar over" if edges[0] >= limit else "bar"
            parts.append(_bar(x_scale, edges, y_scale(count), kind, title))
    parts.append(_limit_line(x_scale(limit), limit))
    return _panel(name, "".join(parts)), (num_bars - 1) * width if longest > num_bars * width else 0


def legend(names: Sequence[str]) -> str:
    """The key to the curves' colours and dashes, as a list of HTML."""
    items = "".join(
        f'<li><svg viewBox="0 0 26 8" aria-hidden="true"><path class="curve line-{number}" d="M1 4H25"/></svg>'
        f"{escape(name)}</li>"
        for number, name in enumerate(names[:MAX_SERIES])
    )
    return f'<ul class="legend">{items}</ul>'


def ticks(low: float, high: float, at_most: int = 6) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, in equal steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 187.0)
    [0.0, 50.0, 100.0, 150.0, 200.0]
    """
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = (low - abs(low) * 0.5, high + abs(high) * 0.5) if low else (0.0, 1.0)
    rough = (high - low) / (at_most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _finite(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keep = np.isfinite(values)
    return steps[keep], values[keep]


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Averages neighbours, so that at most `MAX_POINTS` are left."""
    if len(steps) <= MAX_POINTS:
        return steps, values
    parts = np.array_split(np.arange(len(steps)), MAX_POINTS)
    return np.array([steps[part].mean() for part in parts]), np.array([values[part].mean() for part in parts])


def _scale(first: float, last: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: round(start + (value - first) / (last - first) * (end - start), 2)


def _panel(name: str, content: str) -> str:
    name = escape(name)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}"><title>{name}</title>{content}</svg>'


def _curve(number: int, label: str, steps, values, x_scale, y_scale) -> str:
    points = [(x_scale(step), y_scale(value)) for step, value in zip(steps.tolist(), values.tolist(), strict=True)]
    line = f'<path class="curve line-{number}" d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}"/>'
    if len(points) > 25:
        return line
    dots = "".join(
        f'<circle class="mark-{number}" cx="{x:g}" cy="{y:g}" r="3">'
        f"<title>{escape(label)}, step {step:,.0f}: {value:.4g}</title></circle>"
        for (x, y), step, value in zip(points, steps.tolist(), values.tolist(), strict=True)
    )
    return (line if len(points) > 1 else "") + dots


def _bar(x_scale, edges: tuple[int, int], top: float, kind: str, title: str) -> str:
    left, right = x_scale(edges[0]), x_scale(edges[1])
    gap = 1 if right - left > 4 else 0
    height = max(HEIGHT - _BOTTOM - top, 1.0)  # One example among thousands is still seen.
    return (
        f'<rect class="{kind}" x="{left:g}" y="{HEIGHT - _BOTTOM - height:g}" width="{right - left - gap:g}" '
        f'height="{height:g}"><title>{title}</title></rect>'
    )


def _limit_line(x: float, limit: int) -> str:
    side = ("end", x - 5) if x > WIDTH / 2 else ("start", x + 5)
    return (
        f'<line class="limit" x1="{x:g}" x2="{x:g}" y1="{_TOP - 6}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<text class="limit-name" x="{side[1]:g}" y="{_TOP + 3}" text-anchor="{side[0]}">limit {limit:,}</text>'
    )


def _y_axis(values: Sequence[float], scale) -> str:
    lines = (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{scale(value):g}" y2="{scale(value):g}"/>'
        f'<text x="{_LEFT - 7}" y="{scale(value) + 4:g}" text-anchor="end">{_tick_name(value)}</text>'
        for value in values
    )
    return "".join(lines)


def _x_axis(values: Sequence[float], scale, label: str) -> str:
    base = HEIGHT - _BOTTOM
    names = "".join(
        f'<text x="{scale(value):g}" y="{base + 15}" text-anchor="middle">{_tick_name(value)}</text>'
        for value in values
    )
    return (
        f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>{names}'
        f'<text x="{WIDTH - _RIGHT}" y="{base + 30}" text-anchor="end">{escape(label)}</text>'
    )


def _tick_name(value: float) -> str:
    if abs(value) >= 1e5 or 0 < abs(value) < 1e-3:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:,.10g}".replace("-", "−")
