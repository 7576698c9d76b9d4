"""Tasks that tag words with entities: scores, predictions and loss, for any model; and what the report shows of them.

Shapes: N words, S sentences, C labels, E entity types.
"""

import functools
from collections.abc import Sequence

import numpy as np

from tasks.fine_tuning.encoding import label_ids
from tasks.fine_tuning.metrics import confusion_matrix, cross_entropies, intervals
from tasks.fine_tuning.task import Answers, Evaluation
from tasks.fine_tuning.word_task import WordSettings, WordTask
from tasks.report.page import Mistake, Score
from tasks.settings import changeable
from tasks.text import tags as tag_schemes
from tasks.text.conll import Documents, write_conll
from tasks.text.tags import SCHEMES

NO_ENTITY = "(none)"
NO_TYPE = "entity"  # Shown for tags without a type ("B", "I").
_MAIN = ("f1", "precision", "recall")
_COLUMNS = (*_MAIN, "gold", "predicted", "correct")

Tags = list[list[str]]


class EntitySettings(WordSettings):
    """Settings of a task that tags words."""

    tag_scheme: str = changeable("auto", "Scheme of the tags; auto: by each file.", choices=("auto", *SCHEMES))


class EntityTask(WordTask):
    """Base of the tasks that tag words. The spec has `labels`: class i is labels[i]."""

    metric = "f1"
    printed = ("token_accuracy", "loss", "test_f1")

    def describe(self, rows, encoded, spec):
        entities = count_all(rows.split(rows.tags))
        return {**super().describe(rows, encoded, spec), "train_entities": entities}

    def model_arguments(self, spec):
        return {"num_classes": len(spec.labels), "labels": spec.labels}

    def objective(self, spec):
        from tasks.fine_tuning.objectives import CrossEntropy

        return CrossEntropy("token_accuracy")

    def number(self, tags, spec):
        return label_ids(tags, spec.labels)

    def checkpoint_figures(self, answers):
        return self._score(answers)[0]

    def evaluate(self, answers, results):
        documents, (figures, predicted, losses) = answers.part.rows, self._score(answers)
        evaluation = evaluate_tags(documents, predicted, figures, losses)
        path = self.path_of("dev", self.settings.output_dir)
        evaluation.write = functools.partial(write_tags, path, documents, predicted)
        evaluation.details |= self.window_details(answers)
        return evaluation

    def _score(self, answers: Answers) -> tuple[dict[str, float], Tags, np.ndarray]:
        """Returns the figures, the predicted tags, and the loss of each word, float64, shape (N,)."""
        documents, ids = answers.part.rows, answers.encoded.source.labels
        predicted = predict_tags(answers.outputs, answers.trained.spec.labels, documents)
        losses = word_losses(answers.outputs, ids)
        figures = score(documents.split(documents.tags), predicted)
        return {**figures, "loss": mean_loss(losses, ids)}, predicted, losses

    def write_predictions(self, answers, output_dir):
        documents, path = answers.part.rows, self.path_of("test", output_dir)
        predicted = predict_tags(answers.outputs, answers.trained.spec.labels, documents)
        write_tags(path, documents, predicted)
        details = {
            "test_sentences": documents.num_sentences,
            "test_predicted_entities": count_all(predicted),
        }
        if documents.tags is not None:
            scores = score(documents.split(documents.tags), predicted)
            details |= {f"test_{name}": value for name, value in scores.items()}
        return [path], details


# === Scores, computed on the host from the logits of all words ===


def evaluate_tags(documents: Documents, predicted: Tags, figures: dict[str, float], losses: np.ndarray) -> Evaluation:
    """Evaluates the predicted tags of a file.

    Args:
        documents: N words, with their true tags.
        predicted: the predicted tags of each sentence.
        figures: figures of `score`, and the loss.
        losses: loss of each word, float, shape (N,).
    """
    gold = documents.split(documents.tags)
    ends, types = score_intervals(gold, predicted), score_types(gold, predicted)
    captions = {"f1": "entity F1", "token_accuracy": "token accuracy"}
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
        scores=[
            Score(captions.get(name, name), figures[name], *ends.get(name, ())) for name in (*_MAIN, "token_accuracy")
        ],
        confusion=confusion(gold, predicted),
        mistakes=find_mistakes(documents, predicted, losses),
        tables=[("Entity types", ["type", *_COLUMNS], rows)],
    )


def count_all(tags: Tags) -> int:
    """Returns the number of entities in all sentences."""
    return sum(len(tag_schemes.find_entities(one)) for one in tags)


def write_tags(path: str, documents: Documents, predicted: Tags) -> None:
    """Writes the columns token, the file's own tag in IOB2 (if it has tags), and predicted tag."""
    gold = [] if documents.tags is None else [documents.tags]
    write_conll(path, documents, *gold, [tag for tags in predicted for tag in tags])


def predict_tags(logits: np.ndarray, labels: Sequence[str], documents: Documents) -> Tags:
    """Returns the most probable tags as valid IOB2, with the entities that conlleval reads.

    An I- that continues no entity becomes a B-, so that every reader of the tags finds the same entities.

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


def score(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Returns F1, precision and recall over all entities (micro average, as in seqeval), and token accuracy."""
    overall, _ = tag_schemes.score_entities(gold, predicted)
    figures = {name: getattr(overall, name) for name in _MAIN}
    return {**figures, "token_accuracy": tag_schemes.token_accuracy(gold, predicted)}


def score_intervals(gold: Tags, predicted: Tags) -> dict[str, list[float]]:
    """Returns 95% bootstrap intervals over the sentences, [low, high], of F1, precision and recall."""
    by_type = tag_schemes.count_entities(gold, predicted).values()
    counts = sum(by_type, np.zeros((len(gold), 3), np.int64))
    statistics = {name: lambda drawn, name=name: getattr(tag_schemes.score_counts(drawn), name) for name in _MAIN}
    return intervals(statistics, counts)


def score_types(gold: Tags, predicted: Tags) -> dict[str, dict]:
    """Returns precision, recall, f1, correct, predicted and gold for each entity type."""
    _, types = tag_schemes.score_entities(gold, predicted)
    return {name or NO_TYPE: values._asdict() for name, values in types.items()}


def confusion(gold: Tags, predicted: Tags) -> tuple[list[str], np.ndarray]:
    """Counts entities by true type (first axis) and predicted type (second axis).

    Entities correspond if they have the same first and last token. An entity without a counterpart is counted against
    `NO_ENTITY`.

    Returns:
        (names: the sorted types, then `NO_ENTITY`; counts: int64, shape (E + 1, E + 1)).
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
    """Returns a sentence with its entities marked.

    >>> mark_entities(["in", "Redondo", "Beach", "."], ["O", "B-location", "I-location", "O"])
    'in [Redondo Beach](location) .'
    """
    words, at = [], 0
    for name, start, end in tag_schemes.find_entities(tags):
        words += [*tokens[at:start], f"[{' '.join(tokens[start:end])}]({name or NO_TYPE})"]
        at = end
    return " ".join([*words, *tokens[at:]])


def find_mistakes(documents: Documents, predicted: Tags, losses: np.ndarray) -> list[Mistake]:
    """Returns the sentences with a wrong entity, each with the sum of its words' losses.

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
