"""The heads of Keras presets and `.keras` files: found by name, and kept in KerasHub's `task.json`, `task.weights.h5`.

KerasHub's masked-LM head takes exact gelu and a LayerNorm epsilon of 1e-5 whatever the backbone has, where ours follows
the backbone, as google-research/bert does. `head_settings` of the checkpoint carries that, so that logits stay equal.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from keras_bert import convert
from keras_bert.convert import AS_HERE, HEADS, WeightSource
from keras_bert.files import read_json, write_json
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.formats.keras_h5 import WeightsFile, open_weights, registered, stored_tensors, write_weights

TASK_FILE = "task.json"
STEM = "task"
PRETRAINER = "keras_bert>BertPretrainer"
CLASSIFIER = "keras_bert>BertTextClassifier"
MASKED_LM = "keras_bert>BertMaskedLM"

# keras_hub/src/layers/modeling/masked_lm_head.py and models/bert/bert_masked_lm.py.
KERAS_HUB_MASKED_LM = {"activation": "gelu", "layer_norm_epsilon": 1e-5}
_KERAS_HUB_PARTS = {
    "masked_lm/transform_dense": "mlm_head/intermediate_dense",
    "masked_lm/transform_layer_norm": "mlm_head/intermediate_layer_norm",
    "masked_lm": "mlm_head",
    "classification": "logits",
}
_PLACES = {
    "masked_lm": "masked_lm_head",
    "mlm_head": "masked_lm_head",
    "intermediate_dense": "_intermediate_dense",
    "intermediate_layer_norm": "_intermediate_layer_norm",
}
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


def pretrainer_settings(path: str, config: dict) -> dict:
    """`use_next_sentence` of a `BertPretrainer` in a preset or an unpacked `.keras` file, if there is one that says it.

    Args:
        path, config: as in `open_heads`.
    """
    found = [one["config"].get("use_next_sentence") for place in (config, _read_task(path))
             for one in registered(place, (PRETRAINER,))]  # fmt: skip
    said = [value for value in found if isinstance(value, bool)]
    return {"use_next_sentence": said[-1]} if said else {}


def _read_task(path: str) -> dict:
    file = os.path.join(path, TASK_FILE)
    return read_json(file) if os.path.isfile(file) else {}


def _heads(weights: WeightsFile, parent: str, config: dict) -> tuple[dict[str, StoredTensor], dict[str, dict]]:
    ours = {head: [WeightSource(path, (path,), AS_HERE) for path in _paths(head)] for head in HEADS}
    tensors = stored_tensors(weights, [source for sources in ours.values() for source in sources], parent)
    settings = {}
    for pretrainer in registered(config, (PRETRAINER,)):
        own = {name: pretrainer["config"].get(f"masked_lm_{name}") for name in KERAS_HUB_MASKED_LM}
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

    `task.weights.h5` has every head, in layers of its name. `task.json` comes along where a class describes just these
    heads: `BertPretrainer` (masked LM with next sentence), `BertTextClassifier`, or `BertMaskedLM` of KerasHub's kind.

    Args:
        path: the preset's directory.
        checkpoint: an open one.
        backbone: the serialized backbone.
        preprocessor: gives the serialized preprocessor of a task of KerasHub, by the class's name, or None.
    """
    heads = checkpoint.heads
    if not heads:
        return
    own = checkpoint.head_settings.get("masked_lm", {})
    task = _task(checkpoint, heads, own, preprocessor)
    if task is not None:
        task["config"]["backbone"] = backbone
        write_json(os.path.join(path, TASK_FILE), task)
    is_theirs = task is not None and task["registered_name"] == MASKED_LM
    tensors = {}
    for head in heads:
        for name in _paths(head):
            if name in checkpoint.tensors:
                renamed = head == "classification" or (head == "masked_lm" and is_theirs)
                tensors[_at_keras_hub(name) if renamed else name] = checkpoint.tensors[name]
    dense = [name.partition("/")[0] for name in tensors if name.count("/") == 1 and name.endswith("/kernel")]
    places = {name: f"dense_{number}" if number else "dense" for number, name in enumerate(dense)}
    write_weights(
        os.path.join(path, f"{STEM}.weights.h5"), tensors, lambda name: places.get(name) or _PLACES.get(name, name)
    )


def _task(checkpoint: Checkpoint, heads: tuple[str, ...], own: dict, preprocessor) -> dict | None:
    if heads == ("masked_lm", "next_sentence"):
        settings = {f"masked_lm_{name}": value for name, value in own.items()}
        return _object("tasks.pretraining.model", PRETRAINER, {"preprocessor": None, **settings})
    if heads == ("classification",):
        config = {
            "preprocessor": preprocessor("BertTextClassifierPreprocessor"),
            "num_classes": int(checkpoint.tensors["classification/bias"].read().shape[0]),
            "activation": "linear",
            "dropout": 0.1,
        }
        return _object("keras_bert.backbone", CLASSIFIER, config)
    if heads == ("masked_lm",) and own == KERAS_HUB_MASKED_LM:
        config = {"preprocessor": preprocessor("BertMaskedLMPreprocessor")}
        return _object("keras_bert.backbone", MASKED_LM, config)
    return None


def _object(module: str, registered_name: str, config: dict) -> dict:
    name = registered_name.partition(">")[2]
    return {"module": module, "class_name": name, "config": config, "registered_name": registered_name}
