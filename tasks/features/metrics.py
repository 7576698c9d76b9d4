"""Scores of the feature-based tagger, computed on the host from every word's logits, and its worst mistakes.

Shapes: W words, N sentences, C tags.
"""

from collections.abc import Sequence

import numpy as np

from tasks.bootstrap import interval
from tasks.conll import Documents
from tasks.report import Mistake
from tasks.tags import count_entities, entities_to_tags, find_entities, score_counts, score_entities, token_accuracy

Tags = list[list[str]]


def best_tags(logits: np.ndarray, tags: Sequence[str], documents: Documents) -> Tags:
    """The most probable tags of each sentence, as sound IOB2: an I- that continues no entity becomes a B-.

    Args:
        logits: float32, shape (W, C).
        tags: C tags in IOB2.
        documents: the W words.
    """
    found = [tags[number] for number in logits.argmax(axis=-1)]
    return [entities_to_tags(find_entities(sentence), len(sentence)) for sentence in documents.split(found)]


def word_losses(logits: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Cross entropy of each word, float64, shape (W,); 0.0 where `numbers`, int32 (W,), is -1: an unknown tag."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    chosen = shifted[np.arange(len(numbers)), np.maximum(numbers, 0)]
    return np.where(numbers < 0, 0.0, np.log(np.exp(shifted).sum(axis=-1)) - chosen)


def score(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Entity-level precision, recall and F1 (micro averages, as conlleval), and the share of right tags."""
    overall, _ = score_entities(gold, predicted)
    figures = {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
    return {**figures, "token_accuracy": token_accuracy(gold, predicted)}


def score_details(gold: Tags, predicted: Tags) -> dict:
    """The F1's 95% bootstrap interval over sentences, `f1_interval`, and `per_type` figures."""
    counts = sum(count_entities(gold, predicted).values(), np.zeros((len(gold), 3), np.int64))
    low_high = interval(lambda rows: score_counts(counts[rows]).f1, len(gold))
    _, types = score_entities(gold, predicted)
    return {"f1_interval": list(low_high), "per_type": {name: one._asdict() for name, one in types.items()}}


def find_mistakes(documents: Documents, predicted: Tags, losses: np.ndarray) -> list[Mistake]:
    """The sentences whose entities are wrong, with the sum of their words' losses."""
    mistakes = []
    columns = (documents.tokens, documents.tags, documents.lines, losses)
    for words, gold, lines, costs, found in zip(*map(documents.split, columns), predicted, strict=True):
        answers = [[f"{' '.join(words[start:end])} ({name})" for name, start, end in find_entities(tags)]
                   for tags in (gold, found)]  # fmt: skip
        if find_entities(gold) != find_entities(found):
            expected, given = ("; ".join(answer) or "no entity" for answer in answers)
            text = [("text", " ".join(words)), ("expected", expected), ("predicted", given)]
            mistakes.append(Mistake(float(sum(costs)), [*text, ("where", f"{documents.path}:{lines[0]}")]))
    return mistakes
