"""Reads PyTorch's own file of tensors, a pickle and the numbers beside it, without torch and without unpickling.

A pickle is a program. It is read here by an interpreter that knows only numbers, names, containers and tensors. torch's
own restricted loader runs no code either, but can exhaust the memory: a file of 400 bytes can make it allocate a
`bytearray` of any size.
"""

import functools
import io
import itertools
import math
import mmap
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

import numpy as np

from keras_bert.errors import InputError, shown
from keras_bert.files import parsing
from keras_bert.formats.archive import check_zip_member, open_archive
from keras_bert.formats.checkpoint import StoredTensor, check_claim

_MOST_PICKLE = 2**20  # Bytes; BERT-large's has 60,000. In memory a pickle takes up to 60 times as much.
_MOST_AXES = 8
_MOST_NUMBERS = 2**48
_ORDERED_DICT, _PARAMETER = "collections.OrderedDict", "torch._utils._rebuild_parameter"
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_STORAGES = {
    **{"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"},
    **{"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8"},
    **{"ByteStorage": "uint8", "BoolStorage": "bool"},
}
_DTYPES = {f"torch.{name}": dtype for name, dtype in _STORAGES.items()}
# Operations of pickle's protocol 2, which torch uses. These push their argument or a constant.
_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE")
_CONSTANTS = {"NONE": type(None), "NEWFALSE": bool, "NEWTRUE": lambda: True}
_CONSTANTS |= {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_COUNTS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}  # These pop that many items.


class Storage(NamedTuple):
    """Numbers in the file: their type, the key of their storage, and their count."""

    dtype: np.dtype
    key: str
    count: int

    @property
    def num_bytes(self) -> int:
        return self.count * self.dtype.itemsize


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The number of bytes that the tensor takes as an array."""
        return math.prod(self.shape) * self.storage.dtype.itemsize

    def is_sound(self) -> bool:
        """Returns whether the tensor stays inside its storage, and has no more numbers than the storage."""
        numbers = (self.storage.count, self.offset, *self.shape, *self.strides)
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            return False
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return len(self.shape) <= _MOST_AXES and max(last + 1, math.prod(self.shape)) <= self.storage.count


def _interpret(stream: BinaryIO):
    """Evaluates a pickle on a stack machine that has only the operations that torch writes."""
    stack, stacks_below, memo = [], [], {}
    for operation, argument, _ in pickletools.genops(stream):
        name = operation.name
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            stacks_below.append(stack)
            stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            items, stack = stack, stacks_below.pop()
            _take(stack, name, items)
        elif name in _COUNTS:
            _take(stack, name, [stack.pop() for _ in range(_COUNTS[name])][::-1])
        elif name == "GLOBAL":
            stack.append(argument.replace(" ", "."))  # The name of a function or type, which is not imported.
            if stack[-1] not in (_ORDERED_DICT, _PARAMETER, *_TENSORS, *_DTYPES):
                raise pickle.UnpicklingError(f"it names {stack[-1][:99]}, which is no part of a tensor")
        elif name == "BINPERSID":
            stack.append(_storage(*stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_call(stack.pop(), arguments))
        elif name == "BUILD":  # Attributes of an object.
            stack.pop()
        elif name not in ("PROTO", "STOP"):
            raise pickle.UnpicklingError("it has operations that no tensor needs")
    return stack.pop()


def _take(stack: list, operation: str, items: list) -> None:
    """Pushes a tuple of items on the stack, or adds them to the list or dictionary on its top."""
    if "TUPLE" in operation:
        # Tuples that hold one tuple twice, over many levels, take few bytes, but exponential time to hash or print.
        inner = [number for item in items if type(item) is tuple for number in item]
        if len(items) > _MOST_AXES or not all(isinstance(number, int | float) for number in inner):
            raise pickle.UnpicklingError("it has a tuple that no tensor needs")
        stack.append(tuple(items))
    elif "APPEND" in operation:
        stack[-1].extend(items)
    else:
        stack[-1].update(_named(zip(items[::2], items[1::2], strict=True)))


def _named(items: Iterable[tuple]) -> dict[str, object]:
    # Numbers could be chosen to collide, so that a dictionary of them takes quadratic time.
    items = list(items)
    if not all(isinstance(name, str) for name, _ in items):
        raise pickle.UnpicklingError("it names something by something else than a string")
    return dict(items)


def _storage(kind: str, storage: str, key: str, location: str, count: int, *views) -> Storage:
    if kind != "storage" or not isinstance(key, str) or not 0 <= count <= _MOST_NUMBERS or any(views):
        raise pickle.UnpicklingError("it names something else than a storage")
    return Storage(np.dtype(_DTYPES[storage]), key, count)


def _call(function: str, arguments: tuple):
    """Returns the result of calling a function of torch's, or a type."""
    if function == _PARAMETER:
        return arguments[0]
    if function in _TENSORS:
        storage, offset, shape, strides, *_ = arguments
        tensor = Tensor(storage, offset, tuple(shape), tuple(strides))
        if not tensor.is_sound():
            raise pickle.UnpicklingError(f"a tensor of shape {shown(shape)} beyond its storage of {storage.count}")
        return tensor
    ordered = _named(itertools.chain(*arguments))
    for items in arguments:
        items.clear()  # Otherwise a few bytes could copy one list again and again.
    return ordered


def open_torch_file(path: str) -> dict[str, StoredTensor]:
    """Opens a file that `torch.save(model.state_dict(), path)` wrote.

    Returns:
        The tensors by name, in their stored types.

    Raises:
        InputError: the file is damaged, or holds something other than tensors by name.
    """
    import tensorflow  # noqa: F401  Registers bfloat16 with NumPy.

    with parsing(path, "PyTorch file of tensors"), open(path, "rb") as file:
        content, offsets = _read_zip(path) if file.read(2) == b"PK" else _read_old(file)
        if not isinstance(content, dict) or not all(
            isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
        ):
            raise InputError(f"{path}: expected a model's state_dict, tensors by name, found {type(content).__name__}.")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        check_claim(path, sum(tensor.num_bytes for tensor in set(content.values())), len(mapped))
        for storage in {tensor.storage for tensor in content.values()}:
            check_claim(path, offsets[storage.key] + storage.num_bytes, len(mapped))
    read = functools.partial(_read, path, mapped, offsets)
    return {
        name: StoredTensor(name, tensor.shape, functools.partial(read, name, tensor))
        for name, tensor in content.items()
    }


def _read_zip(path: str) -> tuple[object, dict[str, int]]:
    """Reads the file of torch 1.6 and later; returns its content, and the offset of each storage by its key."""
    with open_archive(path) as archive:
        for member in archive.infolist():
            check_zip_member(path, member)
        (member,) = (member for member in archive.infolist() if member.filename.endswith("/data.pkl"))
        root = member.filename.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist():
            _check_order(archive.open(f"{root}byteorder").read(9) == b"little")
        content = _load(archive.open(member))
        offsets = {}
        for member in archive.infolist():
            if member.filename.startswith(f"{root}data/") and member.compress_type == zipfile.ZIP_STORED:
                archive.fp.seek(member.header_offset + 26)  # PKWARE's APPNOTE, 4.3.7: lengths of name and extra field.
                lengths = struct.unpack("<HH", archive.fp.read(4))
                offsets[member.filename.removeprefix(f"{root}data/")] = member.header_offset + 30 + sum(lengths)
    return content, offsets


def _read_old(file: BinaryIO) -> tuple[object, dict[str, int]]:
    """Reads the file of earlier versions, five pickles followed by the storages; returns the same as `_read_zip`."""
    file.seek(0)
    _magic, _version, system, content, keys = (_load(file) for _ in range(5))
    _check_order(system["little_endian"])
    storages = {tensor.storage.key: tensor.storage for tensor in content.values()}
    offsets = {}
    for key in keys:
        offsets[key] = file.tell() + 8  # The count comes first.
        file.seek(offsets[key] + storages[key].num_bytes)
    return content, offsets


def _check_order(is_little_endian: bool) -> None:
    if not is_little_endian:
        raise pickle.UnpicklingError("numbers with their highest byte first; save it on another machine")


def _load(file: BinaryIO):
    """Reads one pickle, and leaves the file at its end."""
    start = file.tell()
    stream = io.BytesIO(file.read(_MOST_PICKLE))
    content = _interpret(stream)
    file.seek(start + stream.tell())
    return content


def _read(path: str, mapped: mmap.mmap, offsets: dict[str, int], name: str, tensor: Tensor) -> np.ndarray:
    dtype = tensor.storage.dtype
    if dtype.kind != "f" and dtype.name != "bfloat16":
        raise InputError(f"{path}: {name}: expected floats, found {dtype.name}.")
    start = offsets[tensor.storage.key] + tensor.offset * dtype.itemsize
    return np.ndarray(tensor.shape, dtype, mapped, start, [stride * dtype.itemsize for stride in tensor.strides])
