"""The checkpoint formats, a module each, told apart by the contents of a directory.

Each module has these functions. `path` is a directory or, where the format has one, the prefix of a checkpoint's files.

    matches(path) -> bool                    returns whether `path` holds a checkpoint of the format, or only its
                                             configuration
    read_config(path) -> BertConfig          returns its sizes
    open_checkpoint(path)                    is a context manager that yields a `Checkpoint` with readable tensors
    read_tokenizer(path) -> dict | None      returns `vocabulary` (path or list), `lowercase` (None: unknown) and,
                                             where the format has it, `special_tokens_in_strings`
    read_settings(path) -> dict              returns `Checkpoint.settings`; only for our own presets
    write(path, checkpoint, tokenizer)       fills the new directory `path`; only for formats that we write
"""

import contextlib
import os
import tempfile
import types
from collections.abc import Iterator

from keras_bert.errors import InputError
from keras_bert.files import is_remote, keep_copies, local_copy
from keras_bert.formats.archive import extract, is_archive

_SAVED_MODEL = "model.keras"
_NO_PART = ("__MACOSX", ".DS_Store")  # Added by macOS to the archives that it makes.


@contextlib.contextmanager
def located(path: str, purpose: str = "weights") -> Iterator[str]:
    """Yields the directory or prefix of a checkpoint; for a zip, tar or `.keras` file, a temporary directory.

    The `model/` directory of a fine-tuned model has its tokenizer beside `model.keras`, which holds everything else.

    Raises:
        InputError: `path` is a file of another kind, or a zip or tar that is damaged or would write outside its
            directory.
    """
    path = path.removesuffix(".index")  # A TensorFlow checkpoint is named by its prefix.
    if is_remote(path):
        with keep_copies():
            copy = local_copy(path)
            try:
                with located(copy, purpose) as place:
                    yield place
            except InputError as error:  # The user knows the URL, not the copy.
                raise InputError(str(error).replace(copy, path)) from error
        return
    saved = os.path.join(path, _SAVED_MODEL)
    if purpose != "tokenizer" and os.path.isfile(saved) and format_of(path) is None:
        path = saved
    if not os.path.isfile(path):
        yield path
        return
    if not is_archive(path):
        raise InputError(
            f"{path}: expected a directory, zip, tar, .keras file or the prefix of a TensorFlow checkpoint, found "
            f"another kind of file; its directory may be meant: {os.path.dirname(path) or os.curdir}"
        )
    with tempfile.TemporaryDirectory(prefix="keras_bert_") as directory:
        extract(path, directory)
        inside = [name for name in os.listdir(directory) if name not in _NO_PART]
        alone = os.path.join(directory, inside[0]) if len(inside) == 1 else ""
        content = alone if os.path.isdir(alone) else directory
        try:
            if os.path.basename(path) == _SAVED_MODEL:  # It holds no other archive.
                yield content
                return
            with located(content, purpose) as place:
                yield place
        except InputError as error:  # The user knows the archive, not the directory.
            raise InputError(str(error).replace(directory, path)) from error


def find_format(path: str) -> types.ModuleType:
    """Returns the module of the format that `path` holds.

    Raises:
        InputError: no format matches; the message says what was found, and names the one directory inside that
            has a checkpoint.
    """
    module = format_of(path)
    if module is not None:
        return module
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    raise InputError(
        f"{path}: no BERT checkpoint. Expected config.json with model.weights.h5 (Keras) or model.safetensors (Hugging "
        "Face), bert_config.json with the files of a TensorFlow checkpoint (Google, Model Garden), or saved_model.pb "
        f"(TF-Hub). Found: {', '.join(names[:8]) or 'nothing'}.{_guess(path, names)}"
    )


def format_of(path: str) -> types.ModuleType | None:
    """Returns the module of the format of the checkpoint, or its configuration, that `path` holds, or None."""
    return next((module for module in modules().values() if module.matches(path)), None)


def _guess(path: str, names: list[str]) -> str:
    """Suggests the sub-directory or `.keras` file that was meant, if just one of `names` holds a checkpoint.

    In the output directory of a training it is the trained model, not the checkpoints that the training resumes from.
    """
    inside = [os.path.join(path, name) for name in names if name not in _NO_PART]
    candidates = [place for place in inside if os.path.isfile(os.path.join(place, _SAVED_MODEL))] or [
        place for place in inside if place.endswith(".keras") or (os.path.isdir(place) and _seems_checkpoint(place))
    ]
    return f" Did you mean {candidates[0]}?" if len(candidates) == 1 else ""


def _seems_checkpoint(path: str) -> bool:
    try:
        return format_of(path) is not None
    except (InputError, OSError):  # A damaged checkpoint would be a bad guess.
        return False


def find_tokenizer(path: str) -> dict | None:
    """Returns the settings of the first format that finds a tokenizer at `path`, with `path` as `place`, or None."""
    tokenizers = (module.read_tokenizer(path) for module in modules().values())
    settings = next((tokenizer for tokenizer in tokenizers if tokenizer is not None), None)
    return None if settings is None else {**settings, "place": path}


def modules() -> dict[str, types.ModuleType]:
    """Returns the formats by name, in the order in which they are tried on a directory."""
    from keras_bert.formats import google, hugging_face, keras_hub, keras_preset, model_garden, tf_hub

    ordered = (keras_preset, keras_hub, tf_hub, model_garden, google, hugging_face)
    return {module.__name__.rpartition(".")[2]: module for module in ordered}
