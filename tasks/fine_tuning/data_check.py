"""Checks the rows before training, and finds labels that are likely wrong by cross-validated probabilities.

Texts are compared without letter case, in Unicode's normal form (NFC), and with single blanks for white space: most
vocabularies do not tell such texts apart. This module does not import TensorFlow.

Shapes: N rows, C classes.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

_SHOWN_LABELS = 5
# Thai, Lao, Burmese, Khmer, kana and Chinese characters: words of their scripts have no blanks between them.
_WORD = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]|\w+")


class Content(NamedTuple):
    """The rows of a file, in the form in which they are compared.

    Attributes:
        texts: one or more texts of each row.
        answers: label, score or other answer of each row; None without answers, or if a text may have several.
        place: takes the index of a row and returns `path:line`.
        counts: number of rows of each label; None without labels.
    """

    texts: Sequence[tuple[str, ...]]
    answers: Sequence[Hashable] | None
    place: Callable[[int], str]
    counts: Counter | None = None


class Look(NamedTuple):
    """Findings of a data check.

    Attributes:
        figures: figures for `metrics.json`, whose names begin with `data_`.
        lines: a line about all rows, and one for each kind of fault.
        counts: number of rows of each label, by title of the file, for files with labels.
        leaks: whether each training row is also in a dev or test file: bool, shape (N,).
    """

    figures: dict[str, Any]
    lines: list[str]
    counts: dict[str, Counter]
    leaks: np.ndarray


def same_text(value: Any) -> Any:
    """Normalizes a text, or each text of a tuple or list, so that texts that count as the same become equal.

    >>> same_text(["Cafe\\u0301 ", "au  lait"]) == same_text(("CAFÉ", "au lait"))
    True
    """
    if isinstance(value, tuple | list):
        return tuple(map(same_text, value))
    if not isinstance(value, str):
        return value
    text = " ".join(value.casefold().split())
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def look(files: dict[str, Content], evaluated: Sequence[str], unit: str, least_words: int, drops_leaks: bool) -> Look:
    """Looks for duplicates, leaks, contradictions and short texts.

    Args:
        files: content of each file by title, the training file first.
        evaluated: titles of the dev and test files.
        unit: name of the rows.
        least_words: rows with fewer words are reported.
        drops_leaks: whether leaks are left out of the training.
    """
    train, kinds = next(iter(files.values())), _compare(files, evaluated)
    rows = [(of.place, row, " ".join(texts)) for of in files.values() for row, texts in enumerate(of.texts)]
    words = [(place, row, len(_WORD.findall(text))) for place, row, text in rows]
    of_train = [count for _, _, count in words[: len(train.texts)]]
    kinds["short_texts"] = [(place(row),) for place, row, count in words if count < least_words]
    leaks = np.zeros(len(of_train), bool)
    leaks[[row for *_, row in kinds["leaks"]]] = True
    cure = "They were left out of the training (--drop_leaks)." if drops_leaks else "--drop_leaks trains without them."
    texts = {
        "duplicates": (f"{unit} that repeat another of their file", "Take them out if they should not count twice."),
        "leaks": (f"training {unit} that are also in dev or test", f"They inflate the scores. {cure}"),
        "contradictions": ("texts with different answers", "Correct them, or take them out."),
        "short_texts": (f"{unit} of fewer than {least_words} words", "Check that no text was lost."),
    }
    lines = [f"Data: {len(of_train)} training {unit}{_describe(train.counts)}; {np.median(of_train):.0f} words at the "]
    lines[0] += f"median, {max(of_train)} at most"
    if missing := [f"no {name.replace('_', ' ')}" for name, faults in kinds.items() if not faults]:
        lines[0] += f"; {', '.join(missing)}"
    for name, faults in kinds.items():
        if faults:
            (what, cure), at = texts[name], " and ".join(faults[0][:2])
            lines.append(f"{name.replace('_', ' ').capitalize()} ({what}): {len(faults)}, the first at {at}. {cure}")
    figures = {"data_rows": len(of_train), "data_median_words": float(np.median(of_train))}
    figures |= {f"data_{name}": len(faults) for name, faults in kinds.items()}
    return Look(figures, lines, {title: of.counts for title, of in files.items() if of.counts}, leaks)


def _compare(files: dict[str, Content], evaluated: Sequence[str]) -> dict[str, list[tuple]]:
    """Returns the faults by kind: place of each, place of the row it repeats, and for leaks the index of the row."""
    train, *_ = files
    faults, first, answers = {"duplicates": [], "leaks": [], "contradictions": []}, {}, {}
    for title in [*(title for title in files if title != train), train]:  # Leaks need the other files first.
        content = files[title]
        for row, texts in enumerate(content.texts):
            # A digest, so that a million long texts need not be held twice.
            key = hashlib.blake2b(repr(same_text(texts)).encode("utf-8", "surrogatepass"), digest_size=16).digest()
            place, answer = content.place(row), content.answers and content.answers[row]
            if title == train and (leak := next((first[of, key] for of in evaluated if (of, key) in first), None)):
                faults["leaks"].append((place, leak, row))
            if (earlier := first.setdefault((title, key, answer), place)) != place:
                faults["duplicates"].append((place, earlier))
            first.setdefault((title, key), place)
            if content.answers is None:
                continue
            other, earlier, is_said = answers.setdefault(key, (answer, place, False))
            if other != answer and not is_said:
                faults["contradictions"].append((place, earlier))
                answers[key] = (other, earlier, True)
    return faults


def _describe(counts: Counter | None) -> str:
    if not counts:
        return ""
    shown = [f"{count} {label}" for label, count in counts.most_common(_SHOWN_LABELS)]
    more = [f"{len(counts) - _SHOWN_LABELS} more"] if len(counts) > _SHOWN_LABELS else []
    return f", {len(counts)} labels ({', '.join(shown + more)})"


def find_doubtful(logs: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    """Finds labels that are likely wrong by confident learning (Northcutt, Jiang and Chuang 2021, arXiv:1911.00068).

    A row counts towards class j if its probability of j is at least the mean over the rows labelled j. If several
    classes qualify, it counts towards the most probable one. The counts by label and class are the confident joint
    (section 3.1), which is scaled to the number of rows of each label. Each cell off its diagonal gives the number of
    doubtful rows: those whose probability of the class exceeds that of the label most ("prune by noise rate", section
    3.2).

    Args:
        logs: log-probabilities of each row by a model that was not trained on it, float, shape (N, C).
        labels: class numbers, int, shape (N,).

    Returns:
        `(row, likely class)` of each doubtful row, the largest margin first.
    """
    probabilities, num_classes = np.exp(logs), logs.shape[1]
    own, counts = probabilities[np.arange(len(labels)), labels], np.bincount(labels, minlength=num_classes)
    means = np.bincount(labels, own, num_classes) / np.maximum(counts, 1)
    confident = np.where(probabilities >= np.where(counts > 0, means, np.inf), probabilities, -1.0)
    is_counted, margins, doubtful = confident.max(axis=1) >= 0, probabilities - own[:, np.newaxis], {}
    for label in np.flatnonzero(counts):
        rows = np.flatnonzero(labels == label)
        joint = np.bincount(confident[rows[is_counted[rows]]].argmax(axis=1), minlength=num_classes)
        for likely in np.flatnonzero(joint * (np.arange(num_classes) != label)):
            number = round(joint[likely] * len(rows) / joint.sum())
            for row in rows[np.argsort(-margins[rows, likely], kind="stable")[:number]].tolist():
                if margins[row, likely] > max(0.0, margins[row, doubtful.get(row, label)]):
                    doubtful[row] = int(likely)
    return sorted(doubtful.items(), key=lambda pair: -margins[pair])
