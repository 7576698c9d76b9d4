"""Small transformers models of random weights, and the directories that hold them."""

import json
import shutil

import h5py
import numpy as np
import pytest

from keras_bert.presets import weights

SIZES = {
    "vocab_size": 100,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "type_vocab_size": 3,
}


class _Optional:
    """A package that is imported where a test first uses it, which is skipped without it: not in every process."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        return getattr(pytest.importorskip(self._name), name)


torch, transformers = _Optional("torch"), _Optional("transformers")
SAFETENSORS, TORCH, TENSORFLOW = "model.safetensors", "pytorch_model.bin", "tf_model.h5"


def random_model(cls="BertForPreTraining", **changes):
    """A transformers model, of BERT, DistilBERT or ELECTRA, with nothing at zero or one."""
    torch.manual_seed(1)
    sizes, model_class = {**SIZES, "initializer_range": 0.4}, getattr(transformers, cls)
    if cls.startswith("Electra"):
        sizes["embedding_size"] = sizes["hidden_size"]
    elif cls.startswith("DistilBert"):
        sizes["hidden_dim"] = sizes.pop("intermediate_size")
    model = model_class(model_class.config_class(**{**sizes, **changes}))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.4)
    return model.eval()


def tensorflow_arrays(state, num_heads=None):
    """Arrays by their names in transformers 4's `TFBert...` classes, for a `state_dict` of torch's names and arrays.

    With `num_heads`, attention is laid out as in versions 4.2 and 4.3.
    """
    arrays = {}
    for name, value in state.items():
        *layers, ending = name.split(".")
        if layers[-1].endswith("_embeddings"):
            ending = "weight" if layers[-1] == "word_embeddings" else "embeddings"
        elif layers[-1].lower().replace("_", "").endswith("layernorm"):
            ending = {"weight": "gamma", "bias": "beta"}[ending]
        elif ending == "weight":
            ending, value = "kernel", value.T
        if num_heads and layers[-2] == "self":
            value = value.reshape(*value.shape[:-1], num_heads, -1)
        elif num_heads and layers[-3:] == ["attention", "output", "dense"] and ending == "kernel":
            value = value.reshape(num_heads, -1, value.shape[-1])
        place = "/".join([*layers, ending]).replace("layer/", "layer_._")
        place = place.replace("cls/predictions", "mlm___cls/predictions").replace("cls/seq", "nsp___cls/seq")
        arrays[f"{place}:0"] = value
    return arrays


def save_tensorflow(state, directory, model="tf_bert_model", **layout):
    """Writes the `tf_model.h5` that the class of this name in snake case saves."""
    arrays = tensorflow_arrays(state, **layout)
    groups = list(dict.fromkeys(place.partition("/")[0] for place in arrays))
    with h5py.File(directory / TENSORFLOW, "w") as file:
        file.attrs["layer_names"] = groups
        for group in groups:
            starts = (f"{group}/", "bert/embeddings/") if group == "mlm___cls" else f"{group}/"
            own = {f"{model}/{place}": value for place, value in arrays.items() if place.startswith(starts)}
            file.create_group(group).attrs["weight_names"] = list(own)
            for place, value in own.items():
                file[f"{group}/{place}"] = value


def numpy_state(model):
    """The weights of a transformers model, without copies of tied ones, as arrays by their names."""
    return {name: value.numpy() for name, value in model.state_dict().items() if ".decoder." not in name}


def read_all(directory):
    """Every tensor of a directory, under our names and in our layouts."""
    with weights.open_checkpoint(str(directory)) as checkpoint:
        return {path: stored.read() for path, stored in checkpoint.tensors.items()}


def copied(directory, target, config=None, tensors=None):
    """A copy, with changes: to its configuration; of its tensors, by a function of the dict."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(directory, target, dirs_exist_ok=True)
    if config:
        values = {**json.loads((target / "config.json").read_text()), **config}
        (target / "config.json").write_text(json.dumps(values))
    if tensors:
        changed = tensors(load_file(target / SAFETENSORS))
        changed = {name: np.ascontiguousarray(value) for name, value in changed.items()}
        save_file(changed, target / SAFETENSORS)
    return target
