"""Renders the figures of a report as lines of text."""


def format_figures(report: dict) -> str:
    """Renders each number or text of a report as a line of name and value, and each `..._share` in per cent.

    >>> print(format_figures({"words": 1234, "unknown_share": 0.125, "loss": 2.345678, "lengths": [3, 4]}))
    words                              1,234
    unknown_share                     12.50%
    loss                              2.3457
    """
    lines = []
    for name, value in report.items():
        if isinstance(value, float):
            value = f"{value:.2%}" if name.endswith("_share") else f"{value:,.5g}"
        elif isinstance(value, int):
            value = f"{value:,}"
        if isinstance(value, str):
            lines.append(f"{name:26}{value:>14}")
    return "\n".join(lines)
