"""BERT for TensorFlow and Keras: raw text to served model.

Names are imported on first use, so that `keras_bert.BertConfig` and `keras_bert.list_presets` cost no TensorFlow.
"""

import importlib

__version__ = "0.1.0.dev0"

_HOME_OF = {
    "BertBackbone": "keras_bert.backbone",
    "BertConfig": "keras_bert.config",
    "BertMaskedLM": "keras_bert.backbone",
    "BertPreprocessor": "keras_bert.preprocessor",
    "BertTextClassifier": "keras_bert.backbone",
    "BertTokenizer": "keras_bert.tokenizer",
    "InputError": "keras_bert.errors",
    "list_presets": "keras_bert.presets",
}
__all__ = [
    "BertBackbone",
    "BertConfig",
    "BertMaskedLM",
    "BertPreprocessor",
    "BertTextClassifier",
    "BertTokenizer",
    "InputError",
    "list_presets",
]


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'keras_bert' has no attribute {name!r}. It has: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
