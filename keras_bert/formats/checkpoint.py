"""A checkpoint of any format, under our names and in our layouts. Tensors are read only when they are needed."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.errors import InputError, shown
from keras_bert.files import read_object
from keras_bert.formats.weight_names import HEADS, POOLER, WeightSource, shape_to_ours, to_ours, to_theirs


class StoredTensor(NamedTuple):
    """A tensor in a checkpoint.

    Attributes:
        source: str, its file and its name there, for messages: `"model.safetensors: pooler.dense.weight"`.
        shape: tuple of int, in our layout.
        read: function of no arguments that returns the tensor in our layout, in the checkpoint's float type.
    """

    source: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint.

    Attributes:
        format: str, name of the module in `keras_bert/formats` that read it.
        source: str, the file or directory that it was read from, for messages.
        config: BertConfig.
        tensors: StoredTensor by the Keras path of our variable. Paths of heads begin with a name of
            `keras_bert.formats.weight_names.HEADS` (`masked_lm/output_bias`, `classification/kernel`, ...), the others
            are those of `BertBackbone`.
        labels: list of str, the classes of a fine-tuned head, or None.
        masked_lm: arguments in which the masked-LM head differs from the encoder; KerasHub's are
            `{"activation": "gelu", "layer_norm_epsilon": 1e-5}`.
        settings: settings that a preset of ours was saved with, besides its sizes: `layout`, `dtype` and `trainable` of
            `BertBackbone`, and `task`, the arguments of a task model with its `class_name`. A directory of
            sentence-transformers and a task of KerasHub's have `task` too.
    """

    format: str
    source: str
    config: BertConfig
    tensors: Mapping[str, StoredTensor]
    labels: list[str] | None = None
    masked_lm: Mapping[str, object] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of its heads, in the order of `keras_bert.formats.weight_names.HEADS`."""
        present = {path.partition("/")[0] for path in self.tensors}
        return tuple(head for head in HEADS if head in present)

    @property
    def has_pooler(self) -> bool:
        """True if it holds the pooler."""
        return "pooled_dense/kernel" in self.tensors

    @property
    def is_embedder(self) -> bool:
        """True if its settings are those of a `BertTextEmbedder`."""
        return "normalize" in self.settings.get("task", {})

    @property
    def pooling(self) -> str | None:
        """The `pooling` of a `BertTextClassifier` or `BertTextEmbedder`; None for a head on the pooler."""
        return self.settings.get("task", {}).get("pooling")

    def of_layers(self, numbers: Sequence[int]) -> "Checkpoint":
        """Returns a checkpoint that keeps only these encoder layers, numbered from 0, in this order."""
        stem, tensors = "transformer_layer_", {}
        for path, stored in self.tensors.items():
            layer, _, variable = path.partition("/")
            old = int(layer.removeprefix(stem)) if layer.startswith(stem) else None
            names = [layer] if old is None else [f"{stem}{new}" for new, number in enumerate(numbers) if number == old]
            tensors |= {f"{name}/{variable}": stored for name in names}
        config = self.config.replace(num_layers=len(numbers))
        return dataclasses.replace(self, config=config, tensors=tensors)

    def foreign_tensors(self, sources: Iterable[WeightSource]) -> Iterator[tuple[WeightSource, str, np.ndarray]]:
        """Yields the tensors in a foreign format, each with its row of the table and its foreign name.

        Variables that the checkpoint lacks are skipped.
        """
        for source in sources:
            if source.path in self.tensors:
                arrays = to_theirs(np.asarray(self.tensors[source.path].read()), source, self.config.num_heads)
                yield from ((source, name, array) for name, array in zip(source.names, arrays, strict=True))


def check_heads_follow_encoder(checkpoint: Checkpoint, format_owner: str) -> None:
    """Refuses heads whose activation, epsilon or pooling differs from the encoder's, which some formats cannot store.

    Raises:
        InputError: there is such a head.
    """
    check_output_activation(checkpoint, format_owner)
    if "classification" in checkpoint.heads and checkpoint.pooling is not None:
        raise InputError(
            f"{checkpoint.source}: its classification head reads pooled tokens (pooling={checkpoint.pooling!r}). In "
            f"{format_owner} that head reads the pooler. Expected a model that was trained with --few_labels=off."
        )
    for name, value in checkpoint.masked_lm.items():
        own = getattr(checkpoint.config, name)
        if value != own:
            raise InputError(
                f"{checkpoint.source}: its masked_lm head has {name}={value!r}, its encoder {own!r}. {format_owner} "
                "has one for both."
            )


def check_output_activation(checkpoint: Checkpoint, format_owner: str) -> None:
    """Refuses outputs that are not logits, unless they are the probabilities that the format's readers compute of them.

    Raises:
        InputError: the format has no place for such an activation.
    """
    task = checkpoint.settings.get("task", {})
    bias = next((checkpoint.tensors[path] for path in _OUTPUT_BIASES if path in checkpoint.tensors), None)
    probabilities = "sigmoid" if task.get("multi_label") else "softmax" if bias and bias.shape[0] > 1 else "linear"
    activation = task.get("activation") or "linear"
    if bias and activation not in ("linear", probabilities):
        raise InputError(
            f"{checkpoint.source}: its outputs have the activation {activation!r}. {format_owner} has no place for it. "
            "Keep it in our format, keras."
        )


def wrong_shape(source: str, expected: Sequence[int], by: str, shape: Sequence[int], more: str = "") -> InputError:
    """Returns the error for a tensor whose shape differs from what `by` says; `more` is appended to the message."""
    return InputError(f"{source}: expected shape {tuple(expected)} by {by}, found {tuple(shape)}{more}.")


_OUTPUT_BIASES = ("classification/bias", "token_classification/bias")
# The input and output sizes of our layers, by the end of their path; in other layers both are `hidden_dim`.
_SIZES = {
    "token_embedding": ("vocabulary_size", "hidden_dim"),
    "segment_embedding": ("num_segments", "hidden_dim"),
    "position_embedding": ("max_sequence_length", "hidden_dim"),
    "intermediate_dense": ("hidden_dim", "intermediate_dim"),
    "self_attention/output_dense": ("hidden_dim", "hidden_dim"),
    "output_dense": ("intermediate_dim", "hidden_dim"),
    "masked_lm": ("hidden_dim", "vocabulary_size"),  # The output bias.
}


def check_shapes(checkpoint: Checkpoint) -> None:
    """Compares the shapes that a checkpoint's files state with its configuration, before memory is allocated.

    Raises:
        InputError: a shape differs. A fine-tuned head may have any number of outputs.
    """
    for path, stored in checkpoint.tensors.items():
        layer, _, variable = path.rpartition("/")
        names = next((sizes for end, sizes in _SIZES.items() if layer.endswith(end)), ("hidden_dim", "hidden_dim"))
        inputs, outputs = (getattr(checkpoint.config, name) for name in names)
        if layer.endswith("query_key_value"):
            outputs *= 3
        elif layer in HEADS and layer != "masked_lm":
            outputs = stored.shape[-1] if stored.shape else None
        expected = (inputs, outputs) if variable in ("kernel", "embeddings") else (outputs,)
        if stored.shape != expected:
            raise wrong_shape(stored.source, expected, "the configuration", stored.shape, f" (in the layout of {path})")


def check_claim(path: str, claimed: int, file_size: int) -> None:
    """Refuses a file whose arrays take more bytes, by their shapes, than the file has: it is truncated or a bomb.

    Raises:
        InputError: the arrays take more bytes.
    """
    if claimed > file_size:
        raise InputError(
            f"{path}: truncated, compressed or hostile. Expected at least {claimed:,} bytes by the shapes of its "
            f"arrays, found {file_size:,}. Fetch it again."
        )


def shard_paths(index: str, ending: str) -> list[str]:
    """Returns the paths of the shards that an index of Hugging Face or Keras lists.

    Args:
        index: JSON file, whose `weight_map` gives the shard, or the shards, of each name.
        ending: the ending of the shards' names.

    Raises:
        InputError: the index lists no shards, or a shard that is missing, not beside the index, or of another ending.
    """
    shards_of = read_object(index).get("weight_map")
    values = shards_of.values() if isinstance(shards_of, dict) else [shards_of]
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    for name in names or [None]:
        is_name = isinstance(name, str) and os.path.basename(name.replace("\\", "/")) == name
        if not is_name or not name.endswith(ending):
            raise InputError(
                f"{index}: expected `weight_map` to list {ending} files beside the index, found {shown(name)}. "
                "Do not trust this file."
            )
    paths = {name: os.path.join(os.path.dirname(index), name) for name in sorted(set(names))}
    missing = [name for name, path in paths.items() if not os.path.isfile(path)]
    if missing:
        raise InputError(
            f"{index}: of the {len(paths)} shards that it lists, missing: {', '.join(missing)}. Fetch them."
        )
    return list(paths.values())


def listed(names: Sequence[str]) -> str:
    """Returns the first four names for a message, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def check_depth(names: Iterable[str], stem: str, num_layers: int, file: str, by: str = "config.json") -> None:
    """Refuses a file with layers beyond the configuration's.

    Args:
        names: the names in the file.
        stem: the part of a name before the number of a layer.
        num_layers: the configuration's number of layers.
        file, by: the names of the file and of its configuration, for messages.

    Raises:
        InputError: the file has more layers.
    """
    matches = [re.match(rf"{re.escape(stem)}(\d{{1,9}})\b", name) for name in names]
    beyond = [int(match[1]) for match in matches if match and int(match[1]) >= num_layers]
    if beyond:
        raise InputError(f"{file}: holds weights of layer {min(beyond)}, expected {num_layers} layers by {by}.")


def check_whole(tensors: Mapping[str, StoredTensor], sources: Iterable[WeightSource], path: str) -> None:
    """Raises InputError if a variable of the encoder is missing; the pooler may be missing as a whole."""
    missing = [name for name, *_ in sources if name not in tensors]
    if missing and missing != [f"{POOLER}/kernel", f"{POOLER}/bias"]:
        raise InputError(f"{path}: lacks {listed(missing)}. Expected all weights of a BERT's encoder.")


def collect(
    sources: Iterable[WeightSource], available: Mapping[str, StoredTensor], file: str
) -> tuple[dict[str, StoredTensor], list[str]]:
    """Pairs our variables with the tensors of a foreign file.

    Args:
        sources: rows of `keras_bert.formats.weight_names`'s table.
        available: the file's tensors, in its own layout and with its own name as `source`, by the name in the table.
        file: the file's name, for messages.

    Returns:
        The StoredTensors by our paths, and the names in the table that the file lacks.
    """
    tensors, missing = {}, []
    for source in sources:
        matches = [available[name] for name in source.names if name in available]
        missing += [name for name in source.names if name not in available]
        if len(matches) == len(source.names):
            names = ", ".join(tensor.source for tensor in matches)
            shape = shape_to_ours([tensor.shape for tensor in matches], source)
            tensors[source.path] = StoredTensor(f"{file}: {names}", shape, functools.partial(_read, matches, source))
    return tensors, missing


def _read(tensors: list[StoredTensor], source: WeightSource) -> np.ndarray:
    return to_ours([tensor.read() for tensor in tensors], source)


def assign(variables: Iterable, tensors: Mapping[str, StoredTensor], *, by: str = "the configuration") -> list[str]:
    """Assigns the checkpoint's values to variables.

    Args:
        variables: Keras variables; those whose path the checkpoint lacks are unchanged.
        tensors: the checkpoint's tensors.
        by: the origin of the expected shapes, for messages.

    Returns:
        Paths of the variables that the checkpoint lacks.

    Raises:
        InputError: a shape differs; the message names the file, the tensor, and both shapes.
    """
    variables = list(variables)
    held = [variable for variable in variables if variable.path in tensors]
    for variable in held:
        source, shape, _ = tensors[variable.path]
        if shape != tuple(variable.shape):
            raise wrong_shape(source, variable.shape, by, shape, f" (in the layout of {variable.path})")
    for variable in held:  # One at a time: a checkpoint may be larger than the memory that is left.
        variable.assign(tensors[variable.path].read())
    return [variable.path for variable in variables if variable.path not in tensors]
