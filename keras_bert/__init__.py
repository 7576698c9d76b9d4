"""BERT for TensorFlow and Keras: raw text to served model.

Names are imported on first use, so that `keras_bert.BertConfig` and `keras_bert.list_presets` do not load TensorFlow.
If Keras is already imported, the Keras classes are imported at once, so that `keras.saving.load_model` finds them.
"""

import importlib.util
import sys

__version__ = "0.1.0.dev0"

_LIGHT = {
    "BertConfig": "keras_bert.config",
    "InputError": "keras_bert.errors",
    "list_presets": "keras_bert.presets.catalog",
}
__all__ = [
    *_LIGHT,
    "BertBackbone",
    "BertMaskedLM",
    "BertMaskedLMPreprocessor",
    "BertMultipleChoice",
    "BertMultipleChoicePreprocessor",
    "BertPreprocessor",
    "BertPretrainer",
    "BertPretrainerPreprocessor",
    "BertSpanLabeler",
    "BertSpanLabelerPreprocessor",
    "BertTextClassifier",
    "BertTextEmbedder",
    "BertTokenClassifier",
    "BertTokenClassifierPreprocessor",
    "BertTokenizer",
]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'keras_bert' has no attribute {name!r}. It has: {', '.join(__all__)}")
    # All Keras classes come from one package: importing any one of them registers them all for loading.
    value = getattr(importlib.import_module(_LIGHT.get(name, "keras_bert.models")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "keras" in sys.modules and importlib.util.find_spec("tensorflow"):  # Without TensorFlow, using a class says so.
    importlib.import_module("keras_bert.models")
