"""The files that sentence-transformers adds to a Hugging Face directory: what follows the encoder, and in which order.

`modules.json` lists the modules; `1_Pooling/config.json`, `2_Dense/config.json` with its weights, and
`sentence_bert_config.json` describe them. `config_sentence_transformers.json` has the prompts. Other modules, or
several dense layers, are refused when an embedder is built, and cause a warning when only the encoder is read.
"""

import os

import numpy as np
from absl import logging
from safetensors.numpy import save_file

from keras_bert.config import POOLINGS
from keras_bert.errors import InputError, shown
from keras_bert.files import read_json, read_object, read_optional_json, read_optional_object, write_json
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, collect
from keras_bert.formats.hugging_face_files import CONFIG_FILE, SAFETENSORS_FILE, open_weights
from keras_bert.formats.hugging_face_tokenizer import SETTINGS_FILE
from keras_bert.formats.weight_names import HUGGING_FACE, head_sources

_MODULES, _LENGTH_FILE, _CONFIG = "modules.json", "sentence_bert_config.json", "config.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_HEAD = "embedding"
# Our name for an activation, by torch's class. Keras's "gelu" is the erf form, as is torch's.
_ACTIVATIONS = {
    "linear.Identity": None,
    "activation.Tanh": "tanh",
    "activation.ReLU": "relu",
    "activation.GELU": "gelu",
    "activation.Sigmoid": "sigmoid",
}
_OLD_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean"}


def encoder_path(path: str) -> str:
    """Returns the encoder's directory: `path`, or the first module's directory, as versions before 2 wrote it."""
    modules = read_optional_json(os.path.join(path, _MODULES))
    first = modules[0] if isinstance(modules, list) and modules else None
    name = first.get("path") if isinstance(first, dict) else None
    is_inside = isinstance(name, str) and name != "" and os.path.basename(name) == name
    return os.path.join(path, name) if is_inside and os.path.isdir(os.path.join(path, name)) else path


def read_settings(path: str) -> dict:
    """Reads the arguments of `BertTextEmbedder` from a directory, in the form of the task in `Checkpoint.settings`.

    Returns:
        Dict of `class_name`, the arguments, and `sequence_length`; or of `class_name` and `refusal`, the message for
        modules that an embedder cannot have; or an empty dict, if `path` is not a directory of sentence-transformers.
    """
    if not os.path.isfile(os.path.join(path, _MODULES)):
        return {}
    try:
        return {"class_name": "BertTextEmbedder", **_arguments(path), "sequence_length": _sequence_length(path)}
    except InputError as error:
        return {"class_name": "BertTextEmbedder", "refusal": str(error)}


def _arguments(path: str) -> dict:
    modules = _find_modules(path)
    pooling_file, normalize = os.path.join(path, modules["Pooling"], _CONFIG), "Normalize" in modules
    arguments = {"pooling": _pooling(pooling_file), "normalize": normalize, **_prompts(path)}
    arguments["include_prompt"] = read_object(pooling_file).get("include_prompt") is not False
    file = os.path.join(path, _PROMPTS_FILE)
    similarity = read_optional_object(file).get("similarity_fn_name")
    if similarity not in (None, "cosine") and not (normalize and similarity == "dot"):
        message = "%s: its similarity_fn_name is %s; similarity and search compare by cosine here."
        logging.log_first_n(logging.WARNING, message, 1, file, similarity)
    if "Dense" not in modules:
        return arguments
    file = os.path.join(path, modules["Dense"], _CONFIG)
    config = read_object(file)
    name = str(config.get("activation_function", "activation.Tanh"))
    activation = next((ours for theirs, ours in _ACTIVATIONS.items() if name.endswith(theirs)), "")
    if activation == "" or config.get("use_residual"):
        expected = ", ".join(_ACTIVATIONS)
        raise InputError(f"{file}: expected a dense layer without residual and with one of {expected}, found {name}.")
    return {**arguments, "embedding_activation": activation}


def _find_modules(path: str) -> dict[str, str]:
    """Returns the directories of the modules by kind: Transformer, Pooling and, if present, Dense and Normalize."""
    file = os.path.join(path, _MODULES)
    modules = read_json(file)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and isinstance(module.get("path"), str)
        for module in modules
    ):
        raise InputError(f"{file}: expected a list of modules with `type` and `path`.")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    kinds = ["Transformer" if kind == "BERT" else kind for kind in kinds]  # Its name before version 0.3.
    known = [kind for kind in ("Transformer", "Pooling", "Dense", "Normalize") if kind in kinds]
    outside = [module["path"] for module in modules if os.path.basename(module["path"]) != module["path"]]
    if kinds != known or known[:2] != ["Transformer", "Pooling"] or outside:
        expected = "expected Transformer, Pooling, then at most one Dense and one Normalize, each beside this file"
        raise InputError(f"{file}: {expected}, found {', '.join(outside or kinds)}.")
    return dict(zip(kinds, (module["path"] for module in modules), strict=True))


def _pooling(file: str) -> str:
    config = read_object(file)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [_OLD_MODES.get(key, key) for key in config if key.startswith("pooling_mode_") and config[key]]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLINGS:
        raise InputError(f"{file}: expected one way of pooling among {', '.join(POOLINGS)}, found {shown(modes)}.")
    return modes[0]


def _prompts(path: str) -> dict:
    file = os.path.join(path, _PROMPTS_FILE)
    config = read_optional_object(file)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise InputError(f"{file}: expected prompts to be texts by name, found {shown(prompts)}.")
    if default is not None and default not in list(prompts):
        raise InputError(f"{file}: expected default_prompt_name to be a name of prompts, found {shown(default)}.")
    return {"prompts": prompts, "default_prompt": default}


def _sequence_length(path: str) -> int | None:
    # Since version 6 it is in the tokenizer's settings. Tokenizers without a limit have a number of 31 digits there.
    path = encoder_path(path)
    keys = ((_LENGTH_FILE, "max_seq_length"), (SETTINGS_FILE, "model_max_length"))
    lengths = [read_optional_object(os.path.join(path, file)).get(key) for file, key in keys]
    length = next((length for length in lengths if isinstance(length, int) and 2 < length < 2**16), None)
    positions = read_optional_object(os.path.join(path, CONFIG_FILE)).get("max_position_embeddings")
    return min(length, positions) if length and isinstance(positions, int) else length


def check_case(path: str, lowercase: bool | None) -> bool | None:
    """Returns whether texts are lower-cased, given what the tokenizer's own files say.

    Raises:
        InputError: sentence-transformers lower-cases texts for a cased tokenizer, and so keeps their accents.
    """
    file = os.path.join(path, _LENGTH_FILE)
    if not read_optional_object(file).get("do_lower_case"):
        return lowercase
    if lowercase is False:
        raise InputError(
            f"{file}: expected do_lower_case to be false, as the tokenizer is cased, found true: sentence-transformers "
            "lower-cases texts and keeps their accents. Lower-case the texts yourself, and set it to false."
        )
    return True


def read_dense(path: str, stack) -> dict[str, StoredTensor]:
    """Returns the tensors of the dense layer by our names.

    Args:
        path: path of the sentence-transformers directory.
        stack: `contextlib.ExitStack` that keeps the weights' file open.

    Raises:
        InputError: its weights are missing or damaged.
    """
    weights = stack.enter_context(open_weights(os.path.join(path, _find_modules(path)["Dense"])))
    tensors, missing = collect(head_sources(HUGGING_FACE, _HEAD), weights.tensors, weights.path)
    if missing == ["linear.bias"]:
        outputs = tensors[f"{_HEAD}/kernel"].shape[-1:]
        bias = StoredTensor(f"{weights.path}: no linear.bias", outputs, lambda: np.zeros(outputs, np.float32))
        return {**tensors, f"{_HEAD}/bias": bias}
    if missing:
        raise InputError(f"{weights.path}: lacks {', '.join(missing)}. Expected the weights of a dense layer.")
    return tensors


def write(path: str, checkpoint: Checkpoint) -> None:
    """Adds the files of an embedder to a directory that holds its encoder in Hugging Face's format."""
    task = checkpoint.settings["task"]
    inputs = checkpoint.config.hidden_dim
    modes = {key: mode == task["pooling"] for key, mode in _OLD_MODES.items()}
    modes["include_prompt"] = task.get("include_prompt", True)
    configs = {"Pooling": {"word_embedding_dimension": inputs, **modes}}
    tensors = {name: part for source, name, part in checkpoint.foreign_tensors(head_sources(HUGGING_FACE, _HEAD))}
    if tensors:
        theirs_by_ours = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
        if (activation := theirs_by_ours.get(own := task["embedding_activation"])) is None:
            expected = ", ".join(ours or "linear" for ours in theirs_by_ours)
            raise InputError(
                f"{checkpoint.source}: its dense layer has the activation {own!r}. sentence-transformers' may have one "
                f"of {expected}. Keep it in our format, keras."
            )
        sizes = {"in_features": inputs, "out_features": len(tensors["linear.bias"]), "bias": True}
        configs["Dense"] = {**sizes, "activation_function": f"torch.nn.modules.{activation}"}
    if task["normalize"]:
        configs["Normalize"] = {}
    modules = [("", "Transformer")]
    for name, config in configs.items():
        place = f"{len(modules)}_{name}"
        modules.append((place, name))
        write_json(os.path.join(path, place, _CONFIG), config)
        if name == "Dense":
            save_file(tensors, os.path.join(path, place, SAFETENSORS_FILE), metadata={"format": "pt"})
    # The names of versions 2 to 5, which version 6 reads too.
    listed = [
        {"idx": index, "name": str(index), "path": place, "type": f"sentence_transformers.models.{name}"}
        for index, (place, name) in enumerate(modules)
    ]
    write_json(os.path.join(path, _MODULES), listed)
    length = task.get("sequence_length") or checkpoint.config.max_sequence_length
    write_json(os.path.join(path, _LENGTH_FILE), {"max_seq_length": length, "do_lower_case": False})
    if prompts := task.get("prompts"):
        values = {"prompts": dict(prompts), "default_prompt_name": task.get("default_prompt")}
        write_json(os.path.join(path, _PROMPTS_FILE), values)
