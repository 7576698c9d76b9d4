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
from keras_bert.formats.checkpoint import StoredTensor, check_claim, listed, shard_paths
from keras_bert.formats.weight_names import POOLER, WeightSource

# The order in which Keras's layers create their variables. A masked-LM head itself has one variable, the output bias.
_NUMBERS = {"kernel": "0", "gamma": "0", "embeddings": "0", "output_bias": "0", "bias": "1", "beta": "1"}
_LONGEST_NAME = 1000  # Characters of a layer's path; a model inside a model has 100.
_BETWEEN = ("layers", "_layer_checkpoint_dependencies")  # The second is Keras 2.13's word.


class WeightsFile:
    """The variables of one weights file, or of all its shards, by the names of their layers.

    Attributes:
        path: str, the file or the list of shards, for messages.
        layers: the datasets by the name of their layer, and by their number.
        num_bytes: int, size of the variables by their shapes.
    """

    def __init__(self, path: str):
        self.path = path
        self.num_bytes = 0
        self.layers: dict[str, dict[str, h5py.Dataset]] = {}
        self._seen: set[h5py.HLObject] = set()

    def add(self, group: h5py.Group, name_of_place: Callable[[str], str], name: str = "") -> None:
        """Adds the variables of a file.

        Args:
            group: the file, or a group of it.
            name_of_place: returns the name for the place of a layer that keeps no name.
            name: str, the layer that the group stands for; empty for a file.
        """
        for key in group:
            child = self._follow(group, key)
            # Hard links may form cycles, or lead to one object along exponentially many paths.
            if child in self._seen or len(name) > _LONGEST_NAME:
                raise InputError(f"{self.path}: {group.name[:99]}/{key[:99]} has a link to it. Do not trust this file.")
            self._seen.add(child)
            if key == "vars":
                numbered = {number: self._follow(child, number) for number in child}
                if numbered:
                    self.layers.setdefault(name, {}).update(numbered)
                self.num_bytes += sum(getattr(array, "nbytes", 0) for array in numbered.values())
            elif key in _BETWEEN:
                self.add(child, name_of_place, name)
            elif isinstance(child, h5py.Group):
                own = self._follow(child, "vars").attrs.get("name") if "vars" in child else None
                own = own if isinstance(own, str) else name_of_place(key)
                self.add(child, name_of_place, f"{name}/{own}" if name else own)

    def _follow(self, group: h5py.Group, key: str) -> h5py.Group | h5py.Dataset:
        # A soft or external link could lead to another file of this machine.
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise InputError(f"{self.path}: {group.name}/{key} is a link to another place. Do not trust this file.")
        return group[key]

    def parents_of(self, layer: str) -> list[str]:
        """Lists the prefixes under which a layer is found, each empty or with a trailing slash."""
        return [name.removesuffix(layer) for name in self.layers if name == layer or name.endswith(f"/{layer}")]

    def find(self, sources: Iterable[WeightSource], parent: str) -> dict[str, StoredTensor]:
        """Returns the variables in the file, by their names in the table.

        Args:
            sources: rows of `keras_bert.formats.weight_names`'s table, whose names are Keras's paths.
            parent: str, the prefix of the paths, empty or with a trailing slash.

        Returns:
            StoredTensors by name; the shape is () if something other than an array takes the place of a variable.
        """
        tensors = {}
        for name in (name for source in sources for name in source.names):
            layer, _, variable = f"{parent}{name}".rpartition("/")
            array = self.layers.get(layer, {}).get(_NUMBERS[variable])
            if array is not None:
                with parsing(self.path, "HDF5 file"):
                    read = functools.partial(_read_array, self.path, array)
                    tensors[name] = StoredTensor(array.name, getattr(array, "shape", None) or (), read)
        return tensors


def _read_array(path: str, dataset: h5py.Dataset) -> np.ndarray:
    """Reads an array in its stored float type.

    Raises:
        InputError: the data is outside the file, damaged, or not a float array.
    """
    with parsing(path, "HDF5 file"):
        where = f"{path}: {dataset.name}"
        if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
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


def open_arrays(path: str, stack: contextlib.ExitStack) -> dict[str, StoredTensor]:
    """Opens an HDF5 file of any layout, such as the weights of Keras 2.

    Args:
        path: str.
        stack: closes the file at its end.

    Returns:
        The arrays by their places, such as `bert/pooler/dense/kernel:0`; soft and external links are not followed.

    Raises:
        InputError: the file is damaged, or smaller than its arrays.
    """
    arrays: dict[str, h5py.Dataset] = {}

    def keep(place: str, item: h5py.HLObject) -> None:
        if len(place) > _LONGEST_NAME:
            raise InputError(f"{path}: {place[:99]}... is too long a place. Do not trust this file.")
        if isinstance(item, h5py.Dataset):
            arrays[place] = item

    with parsing(path, "HDF5 file"):
        stack.enter_context(h5py.File(path)).visititems(keep)  # Visits each object once, even if links form a cycle.
        check_claim(path, sum(array.nbytes for array in arrays.values()), os.path.getsize(path))
    return {
        place: StoredTensor(place, array.shape, functools.partial(_read_array, path, array))
        for place, array in arrays.items()
    }


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
            with parsing(shard, "HDF5 file"):
                weights.add(stack.enter_context(h5py.File(shard)), name_of_place)
        check_claim(path, weights.num_bytes, sum(map(os.path.getsize, shards)))
        yield weights


def check_whole(tensors: Mapping[str, StoredTensor], sources: Iterable[WeightSource], path: str) -> None:
    """Raises InputError if a variable of the encoder is missing; the pooler may be missing."""
    missing = [name for name, *_ in sources if name not in tensors and not name.startswith(f"{POOLER}/")]
    if missing:
        raise InputError(f"{path}: lacks {listed(missing)}. Expected all weights of a BERT's encoder.")


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
