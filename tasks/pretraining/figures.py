"""Renders the figures of a report as lines of text."""


def figure_lines(report: dict) -> list[str]:
    """Renders each number or string of a report as a line of name and value, and each `..._share` in per cent."""
    lines = []
    for name, value in report.items():
        if name.endswith("_share"):
            shown = f"{value:.2%}"
        elif isinstance(value, float):
            shown = f"{value:,.2f}"
        else:
            shown = f"{value:,}" if isinstance(value, int) else value
        lines.append(f"{name.replace('_', ' '):24}{shown:>14}")
    return lines
