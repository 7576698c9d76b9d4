"""Scores of entity tags, computed on the host from the logits of all words, and what the report shows of them.

Shapes: N words, S sentences, C labels, E entity types.
"""

from collections.abc import Sequence

import numpy as np

from tasks.fine_tuning.metrics import confusion_matrix, cross_entropies, intervals
from tasks.fine_tuning.task import Evaluation
from tasks.report.page import Mistake, Score
from tasks.text import tags as tag_schemes
from tasks.text.conll import Documents, write_conll

NO_ENTITY = "(none)"
NO_TYPE = "entity"  # How the type of tags without one ("B", "I") is shown.
_MAIN = ("f1", "precision", "recall")
_COLUMNS = (*_MAIN, "gold", "predicted", "correct")

Tags = list[list[str]]


def evaluate_tags(documents: Documents, logits: np.ndarray, ids: np.ndarray, labels: Sequence[str]) -> Evaluation:
    """Scores the tags of a file.

    Args:
        documents: N words, with their true tags.
        logits: float, shape (N, C).
        ids: class numbers of the true tags, int, shape (N,); -1 for one that is none of `labels`.
        labels: C tags.
    """
    gold, predicted = documents.split(documents.tags), predict_tags(logits, labels, documents)
    losses = word_losses(logits, ids)
    figures = {**score(gold, predicted), "loss": mean_loss(losses, ids)}
    ends, types = score_intervals(gold, predicted), score_types(gold, predicted)
    captions = {"f1": "entity F1"}
    rows = [[name, *(row[column] for column in _COLUMNS)] for name, row in types.items()]
    return Evaluation(
        figures,
        ends,
        {
            "per_type": types,
            "sentences": documents.num_sentences,
            "words": len(documents.tokens),
            "entities": count_all(gold),
        },
        scores=[Score(captions.get(name, name), figures[name], *ends[name]) for name in _MAIN]
        + [Score("token accuracy", figures["token_accuracy"])],
        confusion=confusion(gold, predicted),
        mistakes=find_mistakes(documents, predicted, losses),
        tables=[("Entity types", ["type", *_COLUMNS], rows)],
    )


def count_all(tags: Tags) -> int:
    """Returns the number of entities in all sentences."""
    return sum(len(tag_schemes.find_entities(one)) for one in tags)


def write_tags(path: str, documents: Documents, predicted: Tags) -> None:
    """Writes columns: token, the file's own tag in IOB2 if it has one, predicted tag."""
    gold = [] if documents.tags is None else [documents.tags]
    write_conll(path, documents, *gold, [tag for tags in predicted for tag in tags])


def predict_tags(logits: np.ndarray, labels: Sequence[str], documents: Documents) -> Tags:
    """Returns the most probable tags as valid IOB2: entities are read as conlleval reads them, and written again.

    An I- that continues no entity becomes a B-, so that the written tags have the same entities for every reader.

    Args:
        logits: float, shape (N, C).
        labels: C tags with the prefixes B- and I-.
        documents: N words.
    """
    best = [labels[number] for number in logits.argmax(axis=-1)]
    return [tag_schemes.entities_to_tags(tag_schemes.find_entities(tags), len(tags)) for tags in documents.split(best)]


def word_losses(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the negative log probability of each word's true label, float64, shape (N,); 0 where `ids` is -1."""
    return np.where(ids >= 0, cross_entropies(np.maximum(ids, 0), logits), 0.0)


def mean_loss(losses: np.ndarray, ids: np.ndarray) -> float:
    """Returns the mean of `word_losses` over the words that have a label; 0.0 without any."""
    return float(losses.sum() / max(np.count_nonzero(ids >= 0), 1))


def score(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Returns F1, precision and recall of all entities (micro average, as seqeval), and token accuracy."""
    overall, _ = tag_schemes.score_entities(gold, predicted)
    figures = {name: getattr(overall, name) for name in _MAIN}
    return {**figures, "token_accuracy": tag_schemes.token_accuracy(gold, predicted)}


def score_intervals(gold: Tags, predicted: Tags) -> dict[str, list[float]]:
    """Returns 95% bootstrap intervals over the sentences, [low, high], of F1, precision and recall."""
    by_type = tag_schemes.count_entities(gold, predicted).values()
    counts = sum(by_type, np.zeros((len(gold), 3), np.int64))

    def statistic(name: str):
        return lambda rows: getattr(tag_schemes.score_counts(counts[rows]), name)

    return intervals({name: statistic(name) for name in _MAIN}, len(gold))


def score_types(gold: Tags, predicted: Tags) -> dict[str, dict]:
    """Returns for each entity type: precision, recall, f1, correct, predicted, gold."""
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
    true, found = ([places[pair[side]] for pair in pairs] for side in (0, 1))
    return [*(name or NO_TYPE for name in types), NO_ENTITY], confusion_matrix(true, found, len(places))


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
