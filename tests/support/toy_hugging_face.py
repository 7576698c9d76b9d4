"""Small transformers models of random weights, and the directories that hold them."""

import json
import shutil

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
SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"


def random_model(cls="BertForPreTraining", **changes):
    """A transformers model with nothing at zero or one."""
    torch.manual_seed(1)
    model = getattr(transformers, cls)(transformers.BertConfig(**{**SIZES, "initializer_range": 0.4, **changes}))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.4)
    return model.eval()


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
