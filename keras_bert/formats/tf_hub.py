"""Reads Google's encoders on TF-Hub and Kaggle (`bert_en_uncased_L-12_H-768_A-12/4`): SavedModels, which are not run.

`official/nlp/tools/export_tfhub_lib.py` wrote them: `saved_model.pb`, `variables/`, `assets/vocab.txt`. The variables,
`do_lower_case` among them, are a Model Garden checkpoint. The sizes follow from the shapes; the activation is in the
settings that Keras saved beside the graph.
"""

import contextlib
import glob
import os
from collections.abc import Iterator

from keras_bert.config import SAME_ACTIVATIONS, BertConfig, find_activation
from keras_bert.errors import InputError
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.formats.model_garden import config_of_shapes, to_our_names
from keras_bert.formats.model_garden_graph import find_variables, read_object_graph
from keras_bert.formats.tensorflow_files import TensorFlowCheckpoint, search

GRAPH_FILE = "saved_model.pb"
_SETTINGS_FILES = ("keras_metadata.pb", GRAPH_FILE)  # Written by TensorFlow 2.5 and later, and by earlier versions.
# By Keras's names of functions. Model Garden registered its own GELU, the tanh form; Keras's own is the erf form.
_ACTIVATIONS = {"Text>gelu": "gelu_tanh", "gelu": "gelu", **SAME_ACTIVATIONS}


def matches(path: str) -> bool:
    return os.path.isfile(os.path.join(path, GRAPH_FILE))


def read_config(path: str) -> BertConfig:
    return _config(path, find_variables(_open_variables(path)))


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    stored = _open_variables(path)
    variables = find_variables(stored)
    config = _config(path, variables)
    yield Checkpoint("tf_hub", path, config, to_our_names(variables, config, stored.path))


def _open_variables(path: str) -> TensorFlowCheckpoint:
    prefix = os.path.join(path, "variables", "variables")
    if not os.path.isfile(f"{prefix}.index"):
        raise InputError(f"{prefix}.index: no such file. Expected the variables of the SavedModel.")
    return TensorFlowCheckpoint(prefix)


def _config(path: str, variables: dict[str, StoredTensor]) -> BertConfig:
    for file in filter(os.path.isfile, (os.path.join(path, name) for name in _SETTINGS_FILES)):
        if search(file, rb'"norm_first": true'):
            raise InputError(f"{file}: expected BERT's LayerNorm after each sum, found norm_first=true.")
        match = search(file, rb'"inner_activation": "([^"]{0,99})"')
        if match:
            name = match[1].decode(errors="replace")
            return config_of_shapes(variables, find_activation(file, "inner_activation", name, _ACTIVATIONS))
    return config_of_shapes(variables)


def read_tokenizer(path: str) -> dict | None:
    vocabularies = glob.glob(os.path.join(glob.escape(path), "assets", "*.txt"))  # Under the exported file's name.
    if not matches(path) or len(vocabularies) != 1:
        return None
    stored = _open_variables(path)
    variable = read_object_graph(stored).children.get("do_lower_case")
    is_there = variable is not None and stored.shapes.get(variable.key) == ()
    lowercase = bool(stored.read(variable.key)) if is_there else None
    return {"vocabulary": vocabularies[0], "lowercase": lowercase}
