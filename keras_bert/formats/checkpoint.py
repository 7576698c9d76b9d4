"""A checkpoint of any format, under our names and in our layouts. Tensors are read when they are needed."""

import concurrent.futures
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.formats.weight_names import HEADS, WeightSource, to_ours, to_theirs


class StoredTensor(NamedTuple):
    """A tensor that a checkpoint holds.

    Attributes:
        source: str, its file and its name there, for messages: `"model.safetensors: pooler.dense.weight"`.
        read: function of no arguments that returns it in our layout, in the checkpoint's float type.
    """

    source: str
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
        head_settings: arguments of the heads that compute differently from the encoder, by head. KerasHub's are
            `{"masked_lm": {"activation": "gelu", "layer_norm_epsilon": 1e-5}}`. Other heads follow the encoder.
        settings: settings that a preset of ours was saved with, beside its sizes: `layout`, `dtype` and `trainable` of
            `BertBackbone`, and `task`, the arguments of a task model with its `class_name`.
    """

    format: str
    source: str
    config: BertConfig
    tensors: Mapping[str, StoredTensor]
    labels: list[str] | None = None
    head_settings: Mapping[str, dict] = dataclasses.field(default_factory=dict)
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

    def foreign_tensors(self, sources: Iterable[WeightSource]) -> Iterator[tuple[WeightSource, str, np.ndarray]]:
        """Yields the tensors of a foreign format, each with its row of the table and its name there.

        Variables that the checkpoint lacks are left out.
        """
        for source in sources:
            if source.path in self.tensors:
                parts = to_theirs(np.asarray(self.tensors[source.path].read()), source, self.config.num_heads)
                yield from ((source, name, part) for name, part in zip(source.names, parts, strict=True))


def check_heads_follow_encoder(checkpoint: Checkpoint, format_owner: str) -> None:
    """Refuses heads with an activation or epsilon of their own, for formats with one for encoder and heads.

    Raises:
        InputError: there is such a head.
    """
    for head, settings in checkpoint.head_settings.items():
        for name, value in settings.items():
            own = getattr(checkpoint.config, name)
            if value != own:
                raise InputError(
                    f"{checkpoint.source}: its {head} head has {name}={value!r}, its encoder {own!r}. {format_owner} "
                    "has one for both."
                )


def wrong_shape(
    source: str, expected: Sequence[int], by: str, found: Sequence[int] | None, more: str = ""
) -> InputError:
    """Returns the error for a tensor `source` that has another shape than `by` says; `more` follows."""
    found = None if found is None else tuple(found)
    return InputError(f"{source}: expected shape {tuple(expected)} by {by}, found {found}{more}.")


def listed(names: Sequence[str]) -> str:
    """Returns the first four names for a message, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def check_depth(names: Iterable[str], stem: str, num_layers: int, file: str, by: str = "config.json") -> None:
    """Refuses a file with layers beyond the configuration's.

    Args:
        names: of what the file holds.
        stem: what stands before the number of a layer.
        num_layers: of the configuration.
        file, by: the names of the file and of its configuration, for messages.

    Raises:
        InputError: it has more layers.
    """
    matches = [re.match(rf"{re.escape(stem)}(\d+)\b", name) for name in names]
    beyond = [int(match[1]) for match in matches if match and int(match[1]) >= num_layers]
    if beyond:
        raise InputError(f"{file}: holds weights of layer {min(beyond)}, expected {num_layers} layers by {by}.")


def collect(
    sources: Iterable[WeightSource], available: Mapping[str, str], read: Callable[[str], np.ndarray], file: str
) -> tuple[dict[str, StoredTensor], list[str]]:
    """Pairs our variables with the tensors of a foreign file.

    Args:
        sources: rows of `keras_bert.formats.weight_names`'s table.
        available: the file's own name of each tensor, for messages, by its name in the table.
        read: gives a tensor by its name in the table.
        file: for messages.

    Returns:
        The StoredTensors by our paths, and the names in the table that the file lacks.
    """
    tensors, missing = {}, []
    for source in sources:
        absent = [name for name in source.names if name not in available]
        missing += absent
        if not absent:
            stored = ", ".join(available[name] for name in source.names)
            tensors[source.path] = StoredTensor(f"{file}: {stored}", functools.partial(_read, read, source))
    return tensors, missing


def _read(read: Callable[[str], np.ndarray], source: WeightSource) -> np.ndarray:
    return to_ours([read(name) for name in source.names], source)


def assign(variables: Iterable, tensors: Mapping[str, StoredTensor], *, by: str = "the configuration") -> list[str]:
    """Assigns the checkpoint's values to variables.

    Args:
        variables: Keras variables; those whose path the checkpoint lacks stay as they are.
        tensors: the checkpoint's.
        by: the origin of the expected shapes, for messages.

    Returns:
        Paths of the variables that the checkpoint lacks.

    Raises:
        InputError: a shape differs; the message names file, tensor, expected and received.
    """
    variables = list(variables)
    held = [variable for variable in variables if variable.path in tensors]
    values = _read_ahead([tensors[variable.path] for variable in held])
    for variable, value in zip(held, values, strict=True):
        stored = tensors[variable.path]
        if tuple(value.shape) != tuple(variable.shape):
            layout = f" (in the layout of {variable.path})"
            raise wrong_shape(stored.source, variable.shape, by, value.shape, layout)
        variable.assign(value)
    return [variable.path for variable in variables if variable.path not in tensors]


def _read_ahead(stored: list[StoredTensor]) -> Iterator[np.ndarray]:
    """Yields the tensors while a thread reads the next one: reading takes about as long as copying."""
    # It is one tensor ahead, no more: a checkpoint may be larger than the memory that is left.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = None
        for tensor in stored:
            current, following = following, pool.submit(tensor.read)
            if current is not None:
                yield current.result()
        if following is not None:
            yield following.result()
