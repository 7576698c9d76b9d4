"""KerasHub's tests of its BERT: our classes take the places of KerasHub's.

The tests of `BertTextEmbedder`, which has no class of ours, run KerasHub's own on our backbone and tokenizer.
"""

import importlib
import importlib.util
import os
import sys

import oracle

NAME = "keras-hub-bert"
FOLDER = "keras-hub"
# Modules of keras_hub.src.models.bert, the class of each, and ours.
CLASSES = {
    "bert_backbone": ("BertBackbone", "BertBackbone"),
    "bert_tokenizer": ("BertTokenizer", "BertTokenizer"),
    "bert_masked_lm": ("BertMaskedLM", "BertMaskedLM"),
    "bert_masked_lm_preprocessor": ("BertMaskedLMPreprocessor", "BertMaskedLMPreprocessor"),
    "bert_text_classifier": ("BertTextClassifier", "BertTextClassifier"),
    "bert_text_classifier_preprocessor": ("BertTextClassifierPreprocessor", "BertPreprocessor"),
}


def run(folder: str) -> list[oracle.Case]:
    """Runs the suite's files, with this module as pytest's plugin."""
    tests = os.path.join("keras_hub", "src", "models", "bert")
    cases = oracle.pytest_cases("-p", __name__, "--noconftest", "--import-mode=importlib", tests, folder=folder)
    return [case for case in cases if not case.name.endswith(".test_session")]  # TensorFlow's base class has it.


# === Hooks of pytest, in its own process ===


def pytest_configure(config) -> None:
    """Puts our classes, and the suite's base class of tests, where the suite imports them from."""
    import keras_bert

    for module, (theirs, ours) in CLASSES.items():
        setattr(importlib.import_module(f"keras_hub.src.models.bert.{module}"), theirs, getattr(keras_bert, ours))
    name, path = "keras_hub.src.tests.test_case", config.rootpath / "keras_hub" / "src" / "tests" / "test_case.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def pytest_collection_modifyitems(items) -> None:
    """Leaves out the tests that KerasHub's own configuration leaves out too: they need presets from Kaggle."""
    import pytest

    for item in items:
        if item.get_closest_marker("extra_large"):
            item.add_marker(pytest.mark.skip(reason="It needs the network."))
