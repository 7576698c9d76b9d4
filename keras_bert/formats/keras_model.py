"""Presets and `.keras` files in KerasHub's layout, ours and KerasHub's: what both formats read alike, and the heads.

Heads are found by name, beside the backbone or in KerasHub's `task.weights.h5`, which `task.json` describes.

KerasHub's masked-LM head has exact GELU and a LayerNorm epsilon of 1e-5 whatever the backbone has; ours follows the
backbone, as google-research/bert does. `Checkpoint.masked_lm` holds the two settings, so that logits stay equal.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json, read_optional_json, write_json
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, check_depth, check_whole, collect, wrong_shape
from keras_bert.formats.keras_h5 import WeightsFile, open_weights, write_weights
from keras_bert.formats.weight_names import HEADS, HEADS_LAST, KERAS_HUB, OURS, encoder_sources, head_sources

_MOST_CLASSES = 2**17
CONFIG_FILE = "config.json"
TASK_FILE = "task.json"
_TASK_OF_HEADS = {  # Class and module.
    ("masked_lm", "next_sentence"): ("BertPretrainer", "keras_bert.models.pretrainer"),
    ("masked_lm",): ("BertMaskedLM", "keras_bert.models.masked_lm"),
    ("classification",): ("BertTextClassifier", "keras_bert.models.text_classifier"),
    ("token_classification",): ("BertTokenClassifier", "keras_bert.models.token_classifier"),
    ("question_answering",): ("BertSpanLabeler", "keras_bert.models.span_labeler"),
    ("multiple_choice",): ("BertMultipleChoice", "keras_bert.models.multiple_choice"),
}
_EMBEDDER = ("BertTextEmbedder", "keras_bert.models.text_embedder")
_TASKS = tuple(f"keras_bert>{name}" for name, _ in (*_TASK_OF_HEADS.values(), _EMBEDDER))
_MASKED_LMS = _TASKS[:2]
_TASKS += tuple(f"keras_hub>{name}" for name in ("BertMaskedLM", "BertTextClassifier", _EMBEDDER[0]))
_OF_PREPROCESSOR = (  # Settings of the task's preprocessors, besides the tokenizer and the length.
    *("pad_to_longest", "max_query_length", "mask_selection_rate", "mask_selection_length"),
    *("mask_token_rate", "random_token_rate"),
)
_OWN_NAMES = {"pooling_mode": "pooling"}  # KerasHub's arguments whose names differ from ours, which follow.

# keras_hub/src/layers/modeling/masked_lm_head.py and models/bert/bert_masked_lm.py.
KERAS_HUB_MASKED_LM = {"activation": "gelu", "layer_norm_epsilon": 1e-5}
_PLACES = {"masked_lm": "masked_lm_head"}
_NAMES = {"masked_lm_head": "mlm_head", "dense": "logits"}  # For files of KerasHub's tasks that hold no names.


# === Serialized Keras objects ===


def registered(config, names: tuple[str, ...]) -> list[dict]:
    """Lists the serialized Keras objects inside `config` with these registered names, outermost first."""
    objects, waiting = [], [config]
    while waiting:  # Not by recursion, since JSON may be nested more deeply than Python's stack.
        item = waiting.pop()
        if isinstance(item, dict):
            if item.get("registered_name") in names and isinstance(item.get("config"), dict):
                objects.append(item)
            item = list(item.values())
        if isinstance(item, list):
            waiting += reversed(item)
    return objects


def serialized(module: str, name: str, config: dict) -> dict:
    """Returns Keras's serialized form of an object of our class `name`."""
    return {"module": module, "class_name": name, "config": config, "registered_name": f"keras_bert>{name}"}


# === Reading ===


def read_sizes(path: str, names: tuple[str, ...], fields: Collection[str], **fixed) -> BertConfig:
    """Returns the configuration of the one backbone that `config.json` describes.

    Args:
        path: directory of a preset, or of an unpacked `.keras` file.
        names: the backbone's registered names.
        fields: the names of the settings that its configuration may have.
        **fixed: the settings that every such backbone has.

    Raises:
        InputError: the file describes no such backbone, an invalid one, or several of different sizes.
    """
    file = os.path.join(path, CONFIG_FILE)
    configs = set()
    for backbone in registered(read_json(file), names):
        sizes = {name: value for name, value in backbone["config"].items() if name in fields}
        try:
            configs.add(BertConfig(**sizes, **fixed))
        except (InputError, TypeError) as error:
            raise InputError(f"{file}: no configuration of a {names[0]} ({error}).") from error
    if len(configs) != 1:
        raise InputError(f"{file}: expected one {names[0]}, found {len(configs)} of different sizes.")
    return configs.pop()


@contextlib.contextmanager
def open_model(
    empty: Checkpoint, names: str, backbone: str, name_of_place: Callable[[str], str]
) -> Iterator[Checkpoint]:
    """Yields a checkpoint with the tensors of a backbone and its heads, and with `masked_lm`.

    Args:
        empty: the checkpoint without these. Its `source` is the directory of a preset, or of an unpacked `.keras` file.
        names: the encoder's names in the weights file, a column of `keras_bert.formats.weight_names`'s table.
        backbone: registered name of the backbone, for messages.
        name_of_place: as in `WeightsFile.add`.

    Raises:
        InputError: the weights are missing, damaged, those of several backbones, or of other sizes.
    """
    path, config = empty.source, empty.config
    sources = encoder_sources(names, config.num_layers)
    with contextlib.ExitStack() as stack:
        weights = stack.enter_context(open_weights(path, "model", name_of_place))
        parents = weights.parents_of(sources[0].names[0].rpartition("/")[0])  # The token table's.
        if len(parents) != 1:
            raise InputError(f"{weights.path}: expected the weights of one {backbone}, found {len(parents)}.")
        parent = parents[0]
        available = weights.find(sources, parent)
        tensors, _ = collect(sources, available, weights.path)
        check_whole(tensors, sources, weights.path)
        check_depth(weights.layers, f"{parent}transformer_layer_", config.num_layers, weights.path)
        # KerasHub's attention kernels, (H, N, D), show N; ours, (H, 3H), do not.
        expected = (config.hidden_dim, config.num_heads, config.hidden_dim // config.num_heads)
        for name in (name for source in sources if source.layout == HEADS_LAST for name in source.names):
            if available[name].shape != expected:
                by = f"{CONFIG_FILE}, num_heads {config.num_heads} among it"
                raise wrong_shape(f"{weights.path}: {name}", expected, by, available[name].shape)
        if os.path.isfile(os.path.join(path, "task.weights.h5")):
            of_task = open_weights(path, "task", lambda place: _NAMES.get(place, place.lstrip("_")))
            task_weights = stack.enter_context(of_task)
            heads, settings = _heads(task_weights, "", read_optional_json(os.path.join(path, TASK_FILE)))
        elif parent:  # In a whole model, the heads are beside the backbone.
            outer = parent.removesuffix("/").rpartition("/")[0]
            heads, settings = _heads(weights, f"{outer}/" if outer else "", read_json(os.path.join(path, CONFIG_FILE)))
        else:
            heads, settings = {}, {}
        yield dataclasses.replace(empty, tensors=tensors | heads, masked_lm=settings)


def _heads(weights: WeightsFile, parent: str, config: dict) -> tuple[dict[str, StoredTensor], dict]:
    """Returns the tensors of the heads under `parent`, of our classes or KerasHub's, and `Checkpoint.masked_lm`."""
    sources = head_sources(OURS, *HEADS)
    tensors, _ = collect(sources, weights.find(sources, parent), weights.path)
    others = [source for source in head_sources(KERAS_HUB, *HEADS) if source.path not in tensors]
    of_keras_hub, _ = collect(others, weights.find(others, parent), weights.path)
    settings = {}
    for task in registered(config, _MASKED_LMS):
        own = {name: task["config"].get(f"masked_lm_{name}") for name in KERAS_HUB_MASKED_LM}
        settings = {name: value for name, value in own.items() if value is not None}
    if any(path.startswith("masked_lm") for path in of_keras_hub):
        settings = KERAS_HUB_MASKED_LM
    return {**tensors, **of_keras_hub}, settings


def read_task_settings(path: str, config: dict) -> dict:
    """Returns the `task` of `Checkpoint.settings` for a preset or an unpacked `.keras` file.

    Args:
        path: the directory.
        config: the contents of its `config.json`.

    Returns:
        Dict of `task`, a dict of `class_name`, the constructor arguments that describe heads, `preprocessor`, the
        configuration of the preprocessor, and its `sequence_length`; or an empty dict, if there is no task. There is
        no `class_name` if the class is a user's own.
    """
    # A `.keras` file holds the task in `config.json`, a preset in `task.json`.
    configs = (config, read_optional_json(os.path.join(path, TASK_FILE)))
    tasks = [task for config in configs for task in registered(config, _TASKS)]
    tasks = tasks or [own for own in configs if _is_subclass(own)]
    if not tasks:
        return {}
    task = tasks[-1]["config"]
    if not (isinstance(count := task.get("num_classes") or 1, int) and count <= _MOST_CLASSES):
        raise InputError(f"{path}: its task has num_classes={str(count)[:99]}. Expected at most {_MOST_CLASSES:,}.")
    preprocessor = task.get("preprocessor")
    settings = preprocessor.get("config") if isinstance(preprocessor, dict) else None
    settings = settings if isinstance(settings, dict) else {}
    others = ("backbone", "preprocessor", "name")
    own = {_OWN_NAMES.get(name, name): value for name, value in task.items() if name not in others}
    of_text = {"preprocessor": settings, "sequence_length": settings.get("sequence_length")}
    name = tasks[-1].get("registered_name")
    return {"task": {**own, **of_text, **({"class_name": name.partition(">")[2]} if name in _TASKS else {})}}


def _is_subclass(own) -> bool:
    """Returns whether this is a serialized task model of a class that neither we nor KerasHub defined."""
    is_task = isinstance(own, dict) and isinstance(own.get("config"), dict) and "backbone" in own["config"]
    return is_task and not str(own.get("registered_name")).startswith("keras_")


# === Writing ===


def write_heads(path: str, checkpoint: Checkpoint, backbone: dict, tokenizer: dict | None) -> None:
    """Writes the heads of a checkpoint into our preset, if it has any.

    `task.weights.h5` has every head, in a layer of its name. `task.json` is written if a class of `keras_bert.models`
    has exactly these heads, and the checkpoint has all arguments of its constructor.

    Args:
        path: the preset's directory.
        checkpoint: an open checkpoint.
        backbone: the serialized backbone.
        tokenizer: the serialized tokenizer, or None.
    """
    heads, saved = checkpoint.heads, checkpoint.settings.get("task", {})
    is_known = heads in _TASK_OF_HEADS and (heads != ("multiple_choice",) or "num_choices" in saved)
    if is_known or checkpoint.is_embedder:
        name, module = _EMBEDDER if checkpoint.is_embedder else _TASK_OF_HEADS[heads]
        reader = "BertPreprocessor" if name in ("BertTextClassifier", "BertTextEmbedder") else f"{name}Preprocessor"
        length = saved.get("sequence_length") or checkpoint.config.max_sequence_length
        of_text = saved.get("preprocessor", {}) if saved.get("class_name") == name else {}
        own = {key: of_text[key] for key in _OF_PREPROCESSOR if key in of_text}
        settings = {"tokenizer": tokenizer, "sequence_length": length, **own}
        preprocessor = None if tokenizer is None else serialized("keras_bert.models", reader, settings)
        config = {"backbone": backbone, "preprocessor": preprocessor, **_arguments(checkpoint, name)}
        write_json(os.path.join(path, TASK_FILE), serialized(module, name, config))
    if not heads:
        return
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name.partition("/")[0] in heads}
    # Keras's own reader looks for layers by class and number, not by name.
    dense = [name.partition("/")[0] for name in tensors if name.count("/") == 1 and name.endswith("/kernel")]
    places = _PLACES | {name: f"dense_{number}" if number else "dense" for number, name in enumerate(dense)}
    write_weights(os.path.join(path, "task.weights.h5"), tensors, lambda name: places.get(name, name))


def _arguments(checkpoint: Checkpoint, class_name: str) -> dict:
    """Returns the arguments of our class `class_name` for a checkpoint: as saved, or as its heads imply."""
    saved = checkpoint.settings.get("task", {})
    no_head = ("class_name", "compile", "preprocessor", "sequence_length")
    own = {name: value for name, value in saved.items() if name not in no_head}
    own = own if saved.get("class_name", class_name) == class_name else {}  # A subclass of a user has none.
    own |= {f"masked_lm_{name}": value for name, value in checkpoint.masked_lm.items()}
    for head in ("classification", "token_classification"):
        if head in checkpoint.heads:
            own |= {"num_classes": checkpoint.tensors[f"{head}/bias"].shape[0], "labels": checkpoint.labels}
    return own
