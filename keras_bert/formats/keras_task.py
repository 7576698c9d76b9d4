"""The heads of Keras presets and `.keras` files: found by name, and kept in KerasHub's `task.json`, `task.weights.h5`.

KerasHub's masked-LM head takes exact gelu and a LayerNorm epsilon of 1e-5 whatever the backbone has, where ours follows
the backbone, as google-research/bert does. `head_settings` of the checkpoint carries that, so that logits stay equal.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from keras_bert.files import read_json, write_json
from keras_bert.formats import weight_names as convert
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.formats.keras_h5 import WeightsFile, open_weights, registered, stored_tensors, write_weights
from keras_bert.formats.weight_names import AS_HERE, HEADS, WeightSource

TASK_FILE = "task.json"
STEM = "task"
_TASK_OF_HEADS = {  # Class and module, of those that are known by their heads: a checkpoint has no `num_choices`.
    ("masked_lm", "next_sentence"): ("BertPretrainer", "keras_bert.models.pretrainer"),
    ("masked_lm",): ("BertMaskedLM", "keras_bert.models.masked_lm"),
    ("classification",): ("BertTextClassifier", "keras_bert.models.text_classifier"),
    ("token_classification",): ("BertTokenClassifier", "keras_bert.models.token_classifier"),
    ("question_answering",): ("BertSpanLabeler", "keras_bert.models.span_labeler"),
}
_TASKS = (*(f"keras_bert>{name}" for name, _ in _TASK_OF_HEADS.values()), "keras_bert>BertMultipleChoice")
_MASKED_LMS = _TASKS[:2]

# keras_hub/src/layers/modeling/masked_lm_head.py and models/bert/bert_masked_lm.py.
KERAS_HUB_MASKED_LM = {"activation": "gelu", "layer_norm_epsilon": 1e-5}
_KERAS_HUB_PARTS = {
    "masked_lm/transform_dense": "mlm_head/intermediate_dense",
    "masked_lm/transform_layer_norm": "mlm_head/intermediate_layer_norm",
    "masked_lm": "mlm_head",
    "classification": "logits",
}
_PLACES = {"masked_lm": "masked_lm_head"}
_NAMES = {"masked_lm_head": "mlm_head", "dense": "logits"}  # Of files without names: KerasHub's tasks.


# === Reading ===


@contextlib.contextmanager
def open_heads(
    path: str, config: dict, weights: WeightsFile, parent: str
) -> Iterator[tuple[dict[str, StoredTensor], dict[str, dict]]]:
    """Gives the heads beside a backbone, and their settings.

    Args:
        path: directory of a preset, or of an unpacked `.keras` file.
        config: the contents of its `config.json`.
        weights: the open weights of the model.
        parent: str, what stands before the backbone's names there; heads are the backbone's neighbours.
    """
    tensors, settings = {}, {}
    if parent:
        outer = parent.removesuffix("/").rpartition("/")[0]
        tensors, settings = _heads(weights, f"{outer}/" if outer else "", config)
    if not os.path.isfile(os.path.join(path, f"{STEM}.weights.h5")):
        yield tensors, settings
        return
    with open_weights(path, STEM, lambda place: _NAMES.get(place, place.lstrip("_"))) as task_weights:
        yield _heads(task_weights, "", _read_task(path))


def read_settings(path: str, config: dict) -> dict:
    """Returns the constructor's arguments of the task in a preset or an unpacked `.keras` file, if there is one.

    Args:
        path, config: as in `open_heads`.

    Returns:
        Dict of `class_name`, the arguments that describe heads, and the preprocessor's `sequence_length`; or empty.
    """
    found = [one for place in (config, _read_task(path)) for one in registered(place, _TASKS)]
    if not found:
        return {}
    task = found[-1]["config"]
    preprocessor = task.get("preprocessor")
    length = preprocessor["config"].get("sequence_length") if isinstance(preprocessor, dict) else None
    own = {name: value for name, value in task.items() if name not in ("backbone", "preprocessor", "name")}
    return {**own, "class_name": found[-1]["registered_name"].partition(">")[2], "sequence_length": length}


def _read_task(path: str) -> dict:
    file = os.path.join(path, TASK_FILE)
    return read_json(file) if os.path.isfile(file) else {}


def _heads(weights: WeightsFile, parent: str, config: dict) -> tuple[dict[str, StoredTensor], dict[str, dict]]:
    ours = {head: [WeightSource(path, (path,), AS_HERE) for path in _paths(head)] for head in HEADS}
    tensors = stored_tensors(weights, [source for sources in ours.values() for source in sources], parent)
    settings = {}
    for task in registered(config, _MASKED_LMS):
        own = {name: task["config"].get(f"masked_lm_{name}") for name in KERAS_HUB_MASKED_LM}
        settings = {"masked_lm": {name: value for name, value in own.items() if value is not None}}
    others = [
        WeightSource(path, (theirs,), AS_HERE)
        for head in ("masked_lm", "classification")
        for path, theirs in keras_hub_paths(head).items()
        if path not in tensors
    ]
    found = stored_tensors(weights, others, parent)
    if any(path.startswith("masked_lm") for path in found):
        settings = {"masked_lm": KERAS_HUB_MASKED_LM}
    return {**tensors, **found}, {head: values for head, values in settings.items() if values}


def _paths(head: str) -> list[str]:
    return [source.path for source in convert.head_sources(convert.HUGGING_FACE, head)]


def keras_hub_paths(head: str) -> dict[str, str]:
    """Maps our paths of a head, `"masked_lm"` or `"classification"`, to those in KerasHub's tasks."""
    return {path: _at_keras_hub(path) for path in _paths(head)}


def _at_keras_hub(path: str) -> str:
    layer, _, variable = path.rpartition("/")
    return f"{_KERAS_HUB_PARTS[layer]}/{variable}"


# === Writing ===


def write_heads(path: str, checkpoint: Checkpoint, backbone: dict, preprocessor: Callable[[str], dict | None]) -> None:
    """Writes the heads of a checkpoint into our preset, if it has any.

    `task.weights.h5` has every head, in layers of its name. `task.json` comes along where a class of
    `keras_bert.models` has just these heads, and the checkpoint says all that its constructor must know.

    Args:
        path: the preset's directory.
        checkpoint: an open one.
        backbone: the serialized backbone.
        preprocessor: gives the serialized preprocessor by its class's name, or None.
    """
    heads = checkpoint.heads
    if not heads:
        return
    if heads in _TASK_OF_HEADS:
        name, module = _TASK_OF_HEADS[heads]
        config = {"backbone": backbone, "preprocessor": preprocessor(name), **_arguments(checkpoint, heads[0])}
        task = {"module": module, "class_name": name, "config": config, "registered_name": f"keras_bert>{name}"}
        write_json(os.path.join(path, TASK_FILE), task)
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name.partition("/")[0] in heads}
    dense = [name.partition("/")[0] for name in tensors if name.count("/") == 1 and name.endswith("/kernel")]
    places = {name: f"dense_{number}" if number else "dense" for number, name in enumerate(dense)}
    write_weights(
        os.path.join(path, f"{STEM}.weights.h5"), tensors, lambda name: places.get(name) or _PLACES.get(name, name)
    )


def _arguments(checkpoint: Checkpoint, head: str) -> dict:
    """Returns the constructor's arguments that describe a head."""
    if head == "masked_lm":
        own = checkpoint.head_settings.get(head, {})
        return {f"masked_lm_{name}": own.get(name) for name in KERAS_HUB_MASKED_LM}
    if head == "question_answering":
        return {}
    return {
        "num_classes": int(checkpoint.tensors[f"{head}/bias"].read().shape[0]),
        "labels": checkpoint.labels,
        "dropout": None,
    }
