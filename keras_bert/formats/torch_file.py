"""Reads PyTorch's own file of tensors, a zip with a pickle inside, by torch's restricted unpickler only."""

import functools
import importlib.util
import re
import zipfile
from collections.abc import Callable

import numpy as np

from keras_bert.errors import InputError

# In earlier versions a file can bypass `weights_only` and run code (CVE-2025-32434).
_SAFE_TORCH = (2, 6)


def open_torch_file(path: str) -> dict[str, Callable[[], np.ndarray]]:
    """Opens a file that `torch.save(model.state_dict(), path)` wrote.

    It builds tensors and containers only: a pickle that names anything else is refused before it runs.

    Returns:
        Functions of no arguments by the tensors' names; each returns its tensor in its stored float type.

    Raises:
        InputError: torch is missing or too old, the file is damaged, or it holds something else than tensors by name.
    """
    torch = _import_torch(path)
    try:
        # Only the zip that torch writes since 1.6 can be mapped into memory; older files are read whole.
        mmap = zipfile.is_zipfile(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # A damaged pickle can raise anything.
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"{path}: not a whole PyTorch file of tensors ({type(error).__name__}: {reason}). Fetch it again, and "
            "read it by other means only if you trust its author."
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in content.items()
    ):
        raise InputError(f"{path}: expected a model's state_dict, tensors by name, found {type(content).__name__}.")
    return {name: functools.partial(_read, path, name, tensor) for name, tensor in content.items()}


def _import_torch(path: str):
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            f"{path}: only torch can read this file, and it is not installed. Install it (pip install torch), or save "
            "the model again as model.safetensors: model.save_pretrained(directory, safe_serialization=True)."
        )
    import torch

    found = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if found < _SAFE_TORCH:
        raise InputError(
            f"{path}: before torch {'.'.join(map(str, _SAFE_TORCH))} such a file can run code as it is read. "
            f"Found torch {torch.__version__}. Update torch, or save the model again as model.safetensors."
        )
    return torch


def _read(path: str, name: str, tensor) -> np.ndarray:
    import torch

    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        raise InputError(f"{path}: {name}: expected dense floats, found {tensor.dtype}, {tensor.layout}.")
    plain = tensor.detach()
    if plain.dtype is torch.bfloat16:  # NumPy lacks this type.
        import ml_dtypes

        return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()
