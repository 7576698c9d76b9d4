"""Calibrates a classifier: its temperature, and the least confidence with which it answers at all.

Both are chosen on rows that the model was not trained on. Confidence is the probability of the most probable class.

Shapes: N rows, C classes.
"""

import functools
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from tasks.fine_tuning.metrics import cross_entropies, log_softmax
from tasks.report.figures import Axes, Series

NEVER = 2.0  # A threshold that no probability reaches.
LEAST_ROWS = 50  # With fewer, the temperature stays 1.0.
LEAST_MISTAKES = 10  # With fewer, the temperature is not below 1.0: they do not show how sure a right answer may be.
_FOLDS = 10
_BINS = 10


class Choice(NamedTuple):
    """How outputs become answers.

    Attributes:
        temperature: divides the logits.
        threshold: least confidence of an answer; None: every row is answered.
    """

    temperature: float = 1.0
    threshold: float | None = None


# === Choice ===


def choose(logits: np.ndarray, labels: np.ndarray, precision: float | None, temperature: float | None) -> Choice:
    """Chooses temperature and threshold on rows that the model was not trained on.

    The temperature is that of `fit_temperature` if it lowers the cross entropy of rows that it was not fitted to by
    more than a standard error. A temperature that sharpens probabilities must lower it by two standard errors, on rows
    with enough mistakes, since the cost of a confident mistake has no bound. Otherwise the temperature is 1.0.

    Args:
        logits: float, shape (N, C).
        labels: true classes, int, shape (N,).
        precision: wanted share of right answers among those given; None: every row is answered.
        temperature: temperature that was chosen before; None: choose it, too.
    """
    if temperature is None:
        temperature = _choose_temperature(logits, labels)
    return Choice(temperature, precision and _find_threshold(logits / temperature, labels, precision))


def _find_threshold(logits: np.ndarray, labels: np.ndarray, precision: float) -> float:
    return least_confidence(*_confidence(logits, labels), precision)


def _choose_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    if len(labels) >= LEAST_ROWS:
        best, of_others = fit_temperature(logits, labels), cross_fit(fit_temperature, logits, labels)
        gains = cross_entropies(labels, logits) - cross_entropies(labels, logits / of_others[:, np.newaxis])
        is_softer, num_wrong = best > 1.0, np.sum(logits.argmax(axis=1) != labels)
        errors = np.mean(gains) / max(np.std(gains) / math.sqrt(len(gains)), 1e-12)
        if errors > 1 if is_softer else errors > 2 and num_wrong >= LEAST_MISTAKES:
            return best
    return 1.0


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the T with the least cross entropy of logits / T (Guo et al., arXiv:1706.04599, section 4.2).

    This is scikit-learn's `CalibratedClassifierCV(method="temperature")`, within the same bounds.
    """
    from scipy.optimize import minimize_scalar  # It takes half a second to import.

    def loss(log):
        return np.mean(cross_entropies(labels, logits * np.exp(log)))

    return float(np.exp(-minimize_scalar(loss, bounds=(-10.0, 10.0), options={"xatol": 1e-10}).x))


def least_confidence(confidence: np.ndarray, is_right: np.ndarray, precision: float) -> float:
    """Returns the least confidence at which answers reach a precision, or `NEVER` if no confidence does.

    One mistake is added to those that were made, as in conformal risk control (Angelopoulos et al., arXiv:2208.02814).
    This makes up for choosing the threshold on the same rows, and a few right answers do not show a high precision.

    Args:
        confidence: confidence of each answer, float, shape (N,).
        is_right: whether each answer is right, bool, shape (N,).
        precision: wanted share of right answers.
    """
    confidence, rights, is_last = ranked(confidence, is_right)
    enough = np.flatnonzero(is_last & (rights >= precision * (np.arange(len(rights)) + 2)))
    return threshold_after(confidence, enough[-1]) if len(enough) else NEVER


def ranked(scores: np.ndarray, is_hit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorts scores, the highest first, and counts the hits up to each.

    Returns:
        The scores; the counts; and whether each score is the last of its value, since answers of equal scores are given
        together.
    """
    order = np.argsort(-scores, kind="stable")
    scores = scores[order]
    return scores, np.cumsum(is_hit[order]), np.append(np.diff(scores) != 0, True)


def threshold_after(confidence: np.ndarray, last: int) -> float:
    """Returns a threshold halfway from index `last` of descending confidences to the next, safe from rounding."""
    return float(np.mean(confidence[last : last + 2])) if last + 1 < len(confidence) else 0.0


def _confidence(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the confidence of each answer, float64, and whether it is right, bool, both of shape (N,)."""
    return np.exp(log_softmax(logits).max(axis=1)), logits.argmax(axis=1) == labels


def cross_fit(fit: Callable, logits: np.ndarray, labels: np.ndarray, strata: np.ndarray | None = None) -> np.ndarray:
    """Returns for each row the result of `fit` on the other folds: float64, shape (N, ...).

    Args:
        fit: takes logits and labels of some rows.
        logits, labels: logits and labels of all rows, as in `choose`.
        strata: groups of which each fold gets an equal share, int, shape (N,); None: mistakes and right answers.
    """
    from tasks.fine_tuning.logistic_regression import fold_numbers

    strata = (logits.argmax(axis=1) == labels).astype(int) if strata is None else strata
    folds = fold_numbers(strata, _FOLDS)
    values = [fit(logits[folds != fold], labels[folds != fold]) for fold in range(folds.max() + 1)]
    return np.array(values, np.float64)[folds]


# === Assessment ===


def assess(
    logits: np.ndarray, labels: np.ndarray, choice: Choice, precision: float | None, chosen: Collection[str] = ()
) -> tuple[dict[str, Any], list[tuple[str, list[Series], Axes]], list[str]]:
    """Scores the confidence of the answers to some rows, before and after a choice.

    Args:
        logits, labels: as in `choose`.
        choice: how outputs become answers.
        precision: wanted precision, if there is one.
        chosen: what was chosen on these very rows: "temperature", "thresholds". Each tenth of the rows is then scored
            with a choice on the others.

    Returns:
        Figures for `metrics.json`; reliability diagram and risk-coverage curve, for the report; and sentences for it.
    """
    temperatures, thresholds = choice.temperature, choice.threshold
    if "temperature" in chosen and choice.temperature != 1.0:
        temperatures = cross_fit(fit_temperature, logits, labels)[:, np.newaxis]
    calibrated = logits / temperatures
    confidence, is_right = _confidence(calibrated, labels)
    details = {
        "temperature": choice.temperature,
        "calibrated_loss": float(np.mean(cross_entropies(labels, calibrated))),
        "brier_score": brier_score(logits, labels),
        "calibrated_brier_score": brier_score(calibrated, labels),
        "risk_coverage_area": float(np.mean(_risks(confidence, is_right))),
    }
    notes = []
    if choice.temperature != 1.0:
        before = float(np.mean(cross_entropies(labels, logits)))
        scored = " (each tenth of the rows by the temperature of the others)" if "temperature" in chosen else ""
        notes.append(
            f"Temperature {choice.temperature:.3g}: the negative log-likelihood goes from {before:.4f} to "
            f"{details['calibrated_loss']:.4f}{scored}, the Brier score from {details['brier_score']:.4f} to "
            f"{details['calibrated_brier_score']:.4f}."
        )
    if thresholds is not None:
        if "thresholds" in chosen:
            fit = functools.partial(_find_threshold, precision=precision)
            thresholds = cross_fit(fit, logits / choice.temperature, labels)
        is_given = np.exp(log_softmax(logits / choice.temperature).max(axis=1)) >= thresholds
        details |= _score_given(is_right[is_given], len(labels), precision)
        notes.append(_describe(details, choice.threshold, precision))
    series = [("before", _confidence(logits, labels)), ("after", (confidence, is_right))]
    return details, _panels(series[1:] if choice.temperature == 1.0 else series), notes


def brier_score(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean squared distance of the probabilities from the truth, over all classes: from 0 to 2."""
    shares = np.exp(log_softmax(logits))
    return float(np.mean(np.sum(np.square(shares - np.eye(shares.shape[1])[labels]), axis=1)))


def _score_given(is_right: np.ndarray, num_rows: int, precision: float | None) -> dict[str, Any]:
    from scipy.stats import binomtest

    count = len(is_right)
    scores = {"coverage": count / num_rows, **({"wanted_precision": precision} if precision else {})}
    if count:
        scores["answered_precision"] = float(np.mean(is_right))
        # Wilson's interval also holds for few rows (Brown et al. 2001).
        ends = binomtest(int(is_right.sum()), count).proportion_ci(method="wilson")
        scores["answered_precision_interval"] = [float(ends.low), float(ends.high)]
    return scores


def _describe(details: dict[str, Any], threshold: float, precision: float | None) -> str:
    """Describes the answers that a threshold leaves."""
    if threshold >= NEVER:
        wanted = "" if precision is None else f" of {precision:g}"
        return f"The wanted precision{wanted} cannot be reached on these rows at any confidence. No label is given."
    text = f"A label is given from a probability of {threshold:.3f}: to {details['coverage']:.1%} of these rows"
    if "answered_precision" not in details:
        return f"{text}."
    low, high = details["answered_precision_interval"]
    return f"{text}, {details['answered_precision']:.1%} of them rightly (95% interval {low:.1%} to {high:.1%})."


def _risks(confidence: np.ndarray, is_right: np.ndarray) -> np.ndarray:
    """Returns the share of mistakes among the 1, 2, ... N most confident answers: float64, shape (N,)."""
    return ranked(confidence, ~is_right)[1] / np.arange(1, len(confidence) + 1)


def _panels(answers: list[tuple[str, tuple[np.ndarray, np.ndarray]]]) -> list[tuple[str, list[Series], Axes]]:
    """Returns headings, curves and axes of the reliability diagram and of the risk-coverage curve."""
    reliability, risk = [], []
    for name, (confidence, is_right) in answers:
        order, risks = np.argsort(confidence, kind="stable"), _risks(confidence, is_right)
        bins = np.array_split(order, min(_BINS, len(order)))  # With the same number of rows each.
        points = np.array([(confidence[rows].mean(), is_right[rows].mean()) for rows in bins])
        reliability.append(Series(name, points))
        risk.append(Series(name, np.stack([np.arange(1, len(risks) + 1) / len(risks), risks], axis=1)))
    low = min(curve.points.min() for curve in reliability)
    reliability.append(Series("as sure as right", np.array([(low, low), (1.0, 1.0)])))
    return [
        ("Share of right answers by confidence", reliability, Axes((low, 1.0), (low, 1.0), "confidence")),
        ("Share of mistakes among the surest", risk, Axes((0.0, 1.0), (0.0, risk[0].points[:, 1].max()), "coverage")),
    ]
