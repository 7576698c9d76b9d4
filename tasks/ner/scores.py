"""Scores tagged entities on the host, from the logits of all words, and makes their part of the report.

Shapes: N words, S sentences, C labels, E entity types.
"""

from collections.abc import Sequence

import numpy as np

from tasks.fine_tuning.metrics import confusion_matrix, cross_entropies, intervals, precision_recall_f1, shown_rows
from tasks.text import tags as tag_schemes
from tasks.text.conll import Documents, write_conll

NO_ENTITY = "(none)"
NO_TYPE = "entity"  # Name to show for tags without a type ("B", "I").
MAIN = ("f1", "precision", "recall")

Tags = list[list[str]]


def count_all(tags: Tags) -> int:
    """Returns the number of entities in all sentences."""
    return sum(len(tag_schemes.find_entities(sentence)) for sentence in tags)


def write_tags(path: str, documents: Documents, predicted: Tags) -> str:
    """Writes the columns token, the file's tag in IOB2 (if it has tags), and predicted tag; returns the path."""
    write_conll(path, documents, [tag for tags in predicted for tag in tags])
    return path


def predict_tags(logits: np.ndarray, labels: Sequence[str], documents: Documents) -> Tags:
    """Returns the most probable tags as valid IOB2, with the entities that conlleval reads.

    An I- that does not continue an entity becomes a B-, so that every reader of the tags finds the same entities.

    Args:
        logits: float, shape (N, C).
        labels: C tags with the prefixes B- and I-.
        documents: N words.
    """
    best = [labels[number] for number in logits.argmax(axis=-1)]
    return [tag_schemes.entities_to_tags(tag_schemes.find_entities(tags), len(tags)) for tags in documents.split(best)]


def word_losses(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the negative log probability of each word's true label: float64, shape (N,), 0 where `ids` is -1."""
    return np.where(ids >= 0, cross_entropies(np.maximum(ids, 0), logits), 0.0)


def mean_loss(losses: np.ndarray, ids: np.ndarray) -> float:
    """Returns the mean of `word_losses` over the words with a label, or 0.0 if there are none."""
    return float(losses.sum() / max(np.count_nonzero(ids >= 0), 1))


def count_total(gold: Tags, predicted: Tags) -> np.ndarray:
    """Counts the entities of all types together: correct, predicted and gold ones, int64, shape (S, 3)."""
    return sum(tag_schemes.count_entities(gold, predicted).values(), np.zeros((len(gold), 3), np.int64))


def score(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Returns F1, precision and recall over all entities (micro average, as in seqeval), and token accuracy."""
    figures = precision_recall_f1(*count_total(gold, predicted).sum(axis=0))
    return {**{name: figures[name] for name in MAIN}, "token_accuracy": tag_schemes.token_accuracy(gold, predicted)}


def score_intervals(gold: Tags, predicted: Tags) -> dict[str, list[float]]:
    """Returns 95% bootstrap intervals over the sentences, [low, high], of F1, precision and recall."""
    statistics = {name: lambda drawn, name=name: precision_recall_f1(*drawn.sum(axis=0))[name] for name in MAIN}
    return intervals(statistics, count_total(gold, predicted))


def score_types(gold: Tags, predicted: Tags) -> dict[str, dict]:
    """Returns precision, recall, f1, correct, predicted and gold for each entity type."""
    scores = {}
    for name, rows in tag_schemes.count_entities(gold, predicted).items():
        counts = dict(zip(("correct", "predicted", "gold"), rows.sum(axis=0).tolist(), strict=True))
        scores[name or NO_TYPE] = {**precision_recall_f1(*counts.values()), **counts}
    return scores


def confusion(gold: Tags, predicted: Tags) -> tuple[list[str], np.ndarray]:
    """Counts entities by true type (first axis) and predicted type (second axis).

    Entities correspond if they have the same first and last token. An entity without a counterpart is counted against
    `NO_ENTITY`.

    Returns:
        The names, which are the sorted types and `NO_ENTITY`; and the counts, int64, shape (E + 1, E + 1).
    """
    pairs = []
    for tags in zip(gold, predicted, strict=True):
        entities = (tag_schemes.find_entities(sentence) for sentence in tags)
        true, answered = ({(start, end): name for name, start, end in sentence} for sentence in entities)
        pairs += [(true.get(span), answered.get(span)) for span in true.keys() | answered.keys()]
    types = sorted({name for pair in pairs for name in pair if name is not None})
    numbers = {name: number for number, name in enumerate([*types, None])}
    rows, columns = ([numbers[pair[side]] for pair in pairs] for side in (0, 1))
    return [*(name or NO_TYPE for name in types), NO_ENTITY], confusion_matrix(rows, columns, len(numbers))


def mark_entities(tokens: Sequence[str], tags: Sequence[str]) -> str:
    """Returns a sentence with its entities marked.

    >>> mark_entities(["in", "Redondo", "Beach", "."], ["O", "B-location", "I-location", "O"])
    'in [Redondo Beach](location) .'
    """
    words, at = [], 0
    for name, start, end in tag_schemes.find_entities(tags):
        words += [*tokens[at:start], f"[{' '.join(tokens[start:end])}]({name or NO_TYPE})"]
        at = end
    return " ".join([*words, *tokens[at:]])


def show_sentences(documents: Documents, predicted: Tags, losses: np.ndarray) -> dict:
    """Returns the `shown_rows`: sentences, of which the worst have a wrong entity and the largest sum of losses.

    Args:
        documents: words with gold tags, in IOB2.
        predicted: S tag lists of `predict_tags`.
        losses: loss of each word, float, shape (N,).
    """
    gold, sentences = documents.split(documents.tags), documents.split(documents.tokens)
    sums = np.add.reduceat(losses, documents.sentence_splits[:-1])
    is_wrong = [tags != answer for tags, answer in zip(gold, predicted, strict=True)]

    def show(row: int) -> list[tuple[str, str]]:
        marked = (mark_entities(sentences[row], tags[row]) for tags in (gold, predicted))
        place = f"{documents.path}:{documents.lines[documents.sentence_splits[row]]}"
        return [*zip(("expected", "predicted"), marked, strict=True), ("where", place)]

    return shown_rows(sums, np.array(is_wrong, bool), show)
