"""The fine-tuning tasks called from Python: settings by keyword, what `metrics.json` holds in return."""

import os

from tasks.classify.task import Classify, ClassifySettings
from tasks.embed.task import Embed
from tasks.features.extraction import extract
from tasks.features.settings import FeatureSettings
from tasks.fine_tuning.command import run_task
from tasks.fine_tuning.inputs import Inputs, read_inputs
from tasks.ner.frozen import FrozenNer
from tasks.ner.task import Ner
from tasks.score_words.task import ScoreWords, ScoreWordsSettings
from tasks.squad.task import Squad, SquadSettings
from tasks.swag.task import Swag, SwagSettings


def classify(**settings) -> dict:
    return run_task(Classify(ClassifySettings(**settings)))


def answer_questions(**settings) -> dict:
    return run_task(Squad(SquadSettings(**settings)))


def choose(**settings) -> dict:
    return run_task(Swag(SwagSettings(**settings)))


def tag(**settings) -> dict:
    return run_task(Ner(Ner.Settings(**settings)))


def extract_features(**settings) -> dict:
    return extract(FeatureSettings(**settings))


def tag_by_features(**settings) -> dict:
    directory = os.path.join(settings["output_dir"], "features")
    return run_task(FrozenNer(FrozenNer.Settings(encoder="frozen", **settings), features_directory=directory))


def score_words(**settings) -> dict:
    return run_task(ScoreWords(ScoreWordsSettings(**settings)))


def read_tables(*stages: str, **settings) -> Inputs:
    """Reads what `bert-classify` reads before it does anything; stages: train, eval, predict."""
    wanted = {f"do_{stage}": True for stage in stages}
    return read_inputs(Classify(ClassifySettings(**{"output_dir": "", "preset": "tiny", **settings, **wanted})))


def embed(**settings) -> dict:
    return run_task(Embed(Embed.Settings(**settings)))
