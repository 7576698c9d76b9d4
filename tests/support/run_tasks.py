"""The fine-tuning tasks called from Python: settings by keyword, what `metrics.json` holds in return."""

from tasks.classification.task import Classification, ClassificationSettings
from tasks.embedding.task import Embedding
from tasks.features.extraction import extract
from tasks.features.settings import FeatureSettings
from tasks.fine_tuning.command import run_task
from tasks.fine_tuning.inputs import Inputs, read_inputs
from tasks.squad.task import Squad, SquadSettings
from tasks.swag.task import Swag, SwagSettings
from tasks.tagging.frozen import FrozenTagging
from tasks.tagging.task import Tagging
from tasks.word_scores.task import WordScores, WordScoreSettings


def classify(**settings) -> dict:
    return run_task(Classification(ClassificationSettings(**settings)))


def answer_questions(**settings) -> dict:
    return run_task(Squad(SquadSettings(**settings)))


def choose(**settings) -> dict:
    return run_task(Swag(SwagSettings(**settings)))


def tag(**settings) -> dict:
    return run_task(Tagging(Tagging.Settings(**settings)))


def extract_features(**settings) -> dict:
    return extract(FeatureSettings(**settings))


def tag_by_features(**settings) -> dict:
    return run_task(FrozenTagging(FrozenTagging.Settings(encoder="frozen", **settings)))


def score_words(**settings) -> dict:
    return run_task(WordScores(WordScoreSettings(**settings)))


def read_tables(*stages: str, **settings) -> Inputs:
    """Reads what `bert-classify` reads before it does anything; stages: train, eval, predict."""
    wanted = {f"do_{stage}": True for stage in stages}
    return read_inputs(
        Classification(ClassificationSettings(**{"output_dir": "", "preset": "tiny", **settings, **wanted}))
    )


def embed(**settings) -> dict:
    return run_task(Embedding(Embedding.Settings(**settings)))
