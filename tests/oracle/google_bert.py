"""google-research/bert's tests of its tokenizer, on our tokenizers in Python and in the graph."""

import importlib
import sys

import oracle
from bert_names import ENGINE

NAME = "google-bert-tokenization"
FOLDER = "bert"


def run(folder: str) -> list[oracle.Case]:
    """Runs the suite's file twice, with this module as pytest's plugin."""
    arguments = ("-p", __name__, "--noconftest", "--import-mode=importlib", "tokenization_test.py")
    cases = []
    for engine in ("python", "graph"):
        engine_cases = oracle.pytest_cases(*arguments, folder=folder, environment={ENGINE: engine})
        cases += [
            case._replace(name=f"{case.name}, {engine}") for case in engine_cases if "test_session" not in case.name
        ]
    return cases


def pytest_configure() -> None:
    """Makes `import tokenization` give our tokenizers, in pytest's own process."""
    sys.modules["tokenization"] = importlib.import_module("bert_names")
