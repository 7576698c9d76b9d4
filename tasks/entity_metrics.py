"""Scores of entity tags, computed exactly on the host from every word's logits, and what reports show of them.

Shapes: N words, S sentences, C labels, E entity types.
"""

from collections.abc import Sequence

import numpy as np

from tasks import tags as tag_schemes
from tasks.bootstrap import interval
from tasks.conll import Documents
from tasks.report import Mistake

NO_ENTITY = "(none)"
NO_TYPE = "entity"  # How the type of tags without one ("B", "I") is shown.
_MAIN = ("precision", "recall", "f1")

Tags = list[list[str]]


def predict_tags(logits: np.ndarray, labels: Sequence[str], documents: Documents) -> Tags:
    """The most probable tags, as sound IOB2: entities are read as conlleval reads them, and written again.

    So an I- that continues no entity becomes a B-, and the written tags have the same entities for every reader.

    Args:
        logits: float, shape (N, C).
        labels: C tags with the prefixes B- and I-.
        documents: N words.
    """
    best = [labels[number] for number in logits.argmax(axis=-1)]
    return [tag_schemes.entities_to_tags(tag_schemes.find_entities(tags), len(tags)) for tags in documents.split(best)]


def word_losses(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Negative log probability of each word's true label, float64, shape (N,); 0 where `ids`, int (N,), is -1."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    losses = -log_probabilities[np.arange(len(ids)), np.maximum(ids, 0)]
    return np.where(ids >= 0, losses, 0.0)


def mean_loss(losses: np.ndarray, ids: np.ndarray) -> float:
    """Mean of `word_losses` over the words that have a label; 0.0 without any."""
    return float(losses.sum() / max(np.count_nonzero(ids >= 0), 1))


def score(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Precision, recall and F1 of all entities (micro average; seqeval's default, conlleval), and token accuracy."""
    overall, _ = tag_schemes.score_entities(gold, predicted)
    figures = {name: getattr(overall, name) for name in _MAIN}
    return {**figures, "token_accuracy": tag_schemes.token_accuracy(gold, predicted)}


def score_intervals(gold: Tags, predicted: Tags) -> dict[str, list[float]]:
    """95% bootstrap intervals over the sentences: `f1_interval`, ..., each [low, high]."""
    by_type = tag_schemes.count_entities(gold, predicted).values()
    counts = sum(by_type, np.zeros((len(gold), 3), np.int64))

    def statistic(name: str):
        return lambda rows: getattr(tag_schemes.score_counts(counts[rows]), name)

    return {f"{name}_interval": list(interval(statistic(name), len(gold))) for name in _MAIN}


def score_types(gold: Tags, predicted: Tags) -> dict[str, dict]:
    """For each entity type: precision, recall, f1, correct, predicted, gold."""
    _, types = tag_schemes.score_entities(gold, predicted)
    return {name or NO_TYPE: values._asdict() for name, values in types.items()}


def confusion(gold: Tags, predicted: Tags) -> tuple[list[str], np.ndarray]:
    """Counts entities by true type (first axis) and predicted type (second axis).

    The predicted entity with the same first and last token counts; where there is none, and for a predicted one where
    no such true entity is, the other type is `NO_ENTITY`.

    Returns:
        (names, the types sorted and `NO_ENTITY` last; int64 counts, shape (E + 1, E + 1)).
    """
    pairs = []
    for tags in zip(gold, predicted, strict=True):
        true, found = ({(start, end): name for name, start, end in tag_schemes.find_entities(one)} for one in tags)
        pairs += [(true.get(span), found.get(span)) for span in true.keys() | found.keys()]
    types = sorted({name for pair in pairs for name in pair if name is not None})
    places = {name: place for place, name in enumerate([*types, None])}
    counts = np.zeros((len(places), len(places)), np.int64)
    for true, found in pairs:
        counts[places[true], places[found]] += 1
    return [*(name or NO_TYPE for name in types), NO_ENTITY], counts


def mark_entities(tokens: Sequence[str], tags: Sequence[str]) -> str:
    """Writes a sentence with its entities marked.

    >>> mark_entities(["in", "Redondo", "Beach", "."], ["O", "B-location", "I-location", "O"])
    'in [Redondo Beach](location) .'
    """
    words, at = [], 0
    for name, start, end in tag_schemes.find_entities(tags):
        words += [*tokens[at:start], f"[{' '.join(tokens[start:end])}]({name or NO_TYPE})"]
        at = end
    return " ".join([*words, *tokens[at:]])


def find_mistakes(documents: Documents, predicted: Tags, losses: np.ndarray) -> list[Mistake]:
    """The sentences with a wrong entity; of each the sum of its words' losses.

    Args:
        documents: with gold tags.
        predicted: S tag lists.
        losses: float, shape (N,).
    """
    mistakes = []
    columns = (documents.tokens, documents.tags, documents.lines, losses)
    for tokens, gold, lines, costs, found in zip(*map(documents.split, columns), predicted, strict=True):
        if tag_schemes.find_entities(gold) != tag_schemes.find_entities(found):
            parts = [("expected", mark_entities(tokens, gold)), ("predicted", mark_entities(tokens, found))]
            mistakes.append(Mistake(float(sum(costs)), [*parts, ("where", f"{documents.path}:{lines[0]}")]))
    return mistakes
