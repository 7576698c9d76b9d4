"""The report of pre-training data: counts of what was written, printed and drawn."""

import io
import json
import operator
from typing import NamedTuple

import numpy as np

from tasks.pretraining.data.masking import MaskedBatch
from tasks.pretraining.figures import figure_lines

_BARS = 32


class Counts(NamedTuple):
    """Totals over the instances written; `+` adds them up.

    Attributes:
        lengths: int64, shape (max_seq_length + 1,), instances by their number of tokens.
        masked: masked positions.
        shown_mask, shown_kept: those that show [MASK], and those that show the original token.
        random_next: instances with a random second segment.
    """

    lengths: np.ndarray = np.zeros(1, np.int64)
    masked: int = 0
    shown_mask: int = 0
    shown_kept: int = 0
    random_next: int = 0

    @classmethod
    def of(cls, batch: MaskedBatch, lengths: np.ndarray, is_random_next: np.ndarray, mask_token_id: int) -> "Counts":
        """Counts a batch that `mask_batch` has returned."""
        is_used = np.arange(batch.mask_ids.shape[1]) < batch.num_masked[:, np.newaxis]
        shown = np.take_along_axis(batch.token_ids, batch.mask_positions, axis=1)[is_used]
        is_mask = shown == mask_token_id
        is_kept = (shown == batch.mask_ids[is_used]) & ~is_mask
        by_length = np.bincount(lengths, minlength=batch.token_ids.shape[1] + 1)
        return cls(by_length, len(shown), int(is_mask.sum()), int(is_kept.sum()), int(is_random_next.sum()))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(operator.add, self, other))

    def as_json(self) -> dict:
        """Returns the arguments of `Counts` as JSON can hold them."""
        return {**self._asdict(), "lengths": self.lengths.tolist()}

    @classmethod
    def from_json(cls, values: dict) -> "Counts":
        return cls(**{**values, "lengths": np.array(values["lengths"], np.int64)})

    def report(self) -> dict:
        """Returns counts and shares of at least one instance.

        `mask_share`, `kept_share` and `random_share` are of the masked positions. `length_histogram` has the
        instances of `from` to `to` tokens.
        """
        instances, longest = int(self.lengths.sum()), len(self.lengths) - 1
        width = -(-longest // _BARS)
        real_tokens = int((self.lengths * np.arange(len(self.lengths))).sum())
        masked = max(self.masked, 1)
        return {
            "instances": instances,
            "real_tokens": real_tokens,
            "padding_share": 1 - real_tokens / (instances * longest),
            "masked_share": self.masked / real_tokens,
            "mask_share": self.shown_mask / masked,
            "kept_share": self.shown_kept / masked,
            "random_share": (self.masked - self.shown_mask - self.shown_kept) / masked,
            "random_next_share": self.random_next / instances,
            "length_histogram": [
                {"from": start, "to": min(end, longest), "instances": int(self.lengths[start : end + 1].sum())}
                for start, end in ((start, start + width - 1) for start in range(1, longest + 1, width))
            ],
        }


def format_report(report: dict) -> str:
    """Renders a report as lines of name and figure, then the first and last of the files."""
    figures = {name: value for name, value in report.items() if isinstance(value, int | float)}
    files = report["output_files"]
    shown = files if len(files) <= 4 else [*files[:2], f"... {len(files)} files", files[-1]]
    return "\n".join([*figure_lines(figures), *shown])


def report_files(prefix: str) -> tuple[str, str]:
    """Returns the paths of the report and of the histogram of lengths."""
    return f"{prefix}.report.json", f"{prefix}.lengths.png"


def render_json(report: dict) -> bytes:
    """Renders a report as indented JSON."""
    return (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode()


def draw_lengths(report: dict) -> bytes:
    """Draws the histogram of lengths: a PNG."""
    from matplotlib.figure import Figure

    bars = report["length_histogram"]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    widths = [bar["to"] - bar["from"] + 1 for bar in bars]
    axes.bar([bar["from"] - 0.5 for bar in bars], [bar["instances"] for bar in bars], widths, align="edge", ec="white")
    axes.set(
        xlabel="tokens of an instance",
        ylabel="instances",
        title=f"{report['instances']:,} instances, {report['padding_share']:.1%} padding",
    )
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()
