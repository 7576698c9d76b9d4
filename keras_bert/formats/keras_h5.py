"""Reads and writes Keras 3's weights files, `model.weights.h5` and its shards, with h5py and without any Keras object.

Keras stores a layer's variables under its place in the model, `layers/bert_encoder_layer_3/output_dense/vars/0`: places
derive from class names, `layers` stands between a model and its layers, and a variable is a number. The attribute
`name` of `vars` keeps the layer's own name, by which we identify it. Files older than that attribute, and groups of
shards without variables, have only the place, from which each format derives the name.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import h5py
import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import parsing
from keras_bert.formats.checkpoint import StoredTensor, check_claim, shard_paths
from keras_bert.formats.weight_names import WeightSource

# The order in which Keras's layers create their variables. A masked-LM head itself has one variable, the output bias.
_NUMBERS = {"kernel": "0", "gamma": "0", "embeddings": "0", "output_bias": "0", "bias": "1", "beta": "1"}
_LONGEST_NAME = 1000  # Characters of a path; that of a layer in a model inside a model has 100.
_BETWEEN = ("layers", "_layer_checkpoint_dependencies")  # The second is Keras 2.13's word.


class WeightsFile:
    """The variables of one weights file, or of all its shards.

    Attributes:
        path: str, the file or the list of shards, for messages.
        layers: StoredTensors by the name of their layer, and by their number.
    """

    def __init__(self, path: str):
        self.path = path
        self.layers: dict[str, dict[str, StoredTensor]] = {}

    def add(self, path: str, name_of_place: Callable[[str], str], stack: contextlib.ExitStack) -> None:
        """Adds the variables of a file.

        Args:
            path: the file.
            name_of_place: returns the name for the place of a layer that keeps no name.
            stack: closes the file at its end.
        """
        arrays, names = open_arrays(path, stack)

        def layer_of(group: str) -> str:
            outer, _, place = group.rpartition("/")
            if place in ("", *_BETWEEN):
                return layer_of(outer) if place else ""
            own = names.get(f"{group}/vars")
            own = own if isinstance(own, str) else name_of_place(place)
            return f"{layer_of(outer)}/{own}"[-_LONGEST_NAME:].removeprefix("/")

        with parsing(path, "HDF5 file"):
            for place, array in arrays.items():
                group, number = f"/{place}".split("/vars/")
                self.layers.setdefault(layer_of(group), {})[number] = array

    def parents_of(self, layer: str) -> list[str]:
        """Lists the prefixes under which a layer is found, each empty or with a trailing slash."""
        return [name.removesuffix(layer) for name in self.layers if name == layer or name.endswith(f"/{layer}")]

    def find(self, sources: Iterable[WeightSource], parent: str) -> dict[str, StoredTensor]:
        """Returns the variables in the file, by their names in the table.

        Args:
            sources: rows of `keras_bert.formats.weight_names`'s table, whose names are Keras's paths.
            parent: str, the prefix of the paths, empty or with a trailing slash.
        """
        tensors = {}
        for name in (name for source in sources for name in source.names):
            layer, _, variable = f"{parent}{name}".rpartition("/")
            if array := self.layers.get(layer, {}).get(_NUMBERS[variable]):
                tensors[name] = array
        return tensors


def _read_array(path: str, dataset: h5py.Dataset) -> np.ndarray:
    """Reads an array in its stored float type.

    Raises:
        InputError: the data is outside the file, damaged, or not a float array.
    """
    with parsing(path, "HDF5 file"):
        where = f"{path}: {dataset.name}"
        if dataset.external or dataset.is_virtual:
            raise InputError(f"{where}: expected an array with its data in this file. Do not trust this file.")
        if dataset.chunks:  # A chunk is decompressed whole, whatever the shape of the array.
            raise InputError(f"{where}: expected an array in one piece, found chunks. Run h5repack -l CONTI -f NONE.")
        # HDF5 has no bfloat16: Keras stores two bytes and this attribute.
        is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2
        if dataset.dtype.kind != "f" and not is_bfloat16:
            raise InputError(
                f"{where}: expected floats, found {dataset.dtype}: a quantized model. Load its .keras file with "
                "keras.saving.load_model, or save the model before it is quantized."
            )
        # HDF5 would return zeros for data that was never written.
        if not dataset.id.get_storage_size() and dataset.size:
            raise InputError(f"{where}: says that it has {dataset.size} values, and holds none. Fetch the file again.")
        try:
            value = dataset[()]
        except OSError as error:
            raise InputError(f"{where}: cannot be read ({error}). Fetch the file again.") from error
        if is_bfloat16:
            import tensorflow as tf

            return value.view(tf.bfloat16.as_numpy_dtype)
        return value


def open_arrays(path: str, stack: contextlib.ExitStack) -> tuple[dict[str, StoredTensor], dict[str, object]]:
    """Opens an HDF5 file of any layout, such as the weights of Keras 2.

    Args:
        path: str.
        stack: closes the file at its end.

    Returns:
        The arrays by their places, such as `bert/pooler/dense/kernel:0`; and the attributes `name` of groups by theirs,
        which begin with a slash. Soft and external links, which could lead to another file of this machine, are not
        followed.

    Raises:
        InputError: the file is damaged, or smaller than its arrays.
    """
    arrays: dict[str, h5py.Dataset] = {}
    names: dict[str, object] = {}

    def keep(place: str, item: h5py.HLObject) -> None:
        if len(place) > _LONGEST_NAME:
            raise InputError(f"{path}: {place[:99]}... is too long a place. Do not trust this file.")
        if isinstance(item, h5py.Dataset):
            arrays[place] = item
        elif "name" in item.attrs:
            names[f"/{place}"] = item.attrs["name"]

    with parsing(path, "HDF5 file"):
        stack.enter_context(h5py.File(path)).visititems(keep)  # Visits each object once, even if links form a cycle.
        check_claim(path, sum(array.nbytes for array in arrays.values()), os.path.getsize(path))
    tensors = {
        place: StoredTensor(place, array.shape or (), functools.partial(_read_array, path, array))
        for place, array in arrays.items()
    }
    return tensors, names


@contextlib.contextmanager
def open_weights(directory: str, stem: str, name_of_place: Callable[[str], str]) -> Iterator[WeightsFile]:
    """Opens `<stem>.weights.h5`, or the shards that `<stem>.weights.json` lists.

    Raises:
        InputError: neither exists, a shard is missing, or a file is damaged or smaller than its arrays.
    """
    path, index = (os.path.join(directory, f"{stem}.weights.{ending}") for ending in ("h5", "json"))
    shards = [path]
    if os.path.isfile(index) and not os.path.isfile(path):
        path, shards = index, shard_paths(index, ".h5")
    elif not os.path.isfile(path):
        raise InputError(f"{path}: no such file. Expected the weights beside config.json.")
    weights = WeightsFile(path)
    with contextlib.ExitStack() as stack:
        for shard in shards:
            weights.add(shard, name_of_place, stack)
        yield weights


def write_weights(path: str, tensors: Mapping[str, StoredTensor], place_of_name: Callable[[str], str]) -> None:
    """Writes a weights file that Keras's `load_weights` reads, with one tensor in memory at a time.

    Args:
        path: str.
        tensors: StoredTensors by Keras's paths, such as `pooled_dense/kernel`.
        place_of_name: returns the place for the name of a layer.
    """
    with h5py.File(path, "w") as file:
        for name, tensor in tensors.items():
            *layers, variable = name.split("/")
            group = file.require_group("layers")
            for layer in layers:
                group = group.require_group(place_of_name(layer))
                group.require_group("vars").attrs["name"] = layer
            value = tensor.read()
            dataset = group["vars"].create_dataset(_NUMBERS[variable], data=value)
            if value.dtype.name == "bfloat16":
                dataset.attrs["dtype"] = "bfloat16"
