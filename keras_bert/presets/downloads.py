"""Finds a preset's files in `$KERAS_BERT_HOME`, in packages, in the caches of Hugging Face and Kaggle, or online."""

import fnmatch
import functools
import hashlib
import os
import pathlib
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence

from absl import logging

from keras_bert.errors import InputError
from keras_bert.formats.archive import open_archive
from keras_bert.presets.packages import find_package, list_packages

HOME_VARIABLE = "KERAS_BERT_HOME"
HUGGING_FACE, KAGGLE = "Hugging Face", "Kaggle"

# File names of configurations, and of weights in one file, in the formats that are read.
_CONFIGS = {"config.json", "bert_config.json", "saved_model.pb"}
_WEIGHTS = {"model.safetensors", "pytorch_model.bin", "tf_model.h5", "model.weights.h5", "model.weights.json"}
_WEIGHTS |= {"variables/variables.index"}

# The files that sentence-transformers adds; all are small except a dense layer's weights.
_EMBEDDER = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
_EMBEDDER += ("*_Pooling/config.json", "*_Dense/config.json")
# Small files that may also say how texts are split.
_SPLITTING = ("added_tokens.json", "special_tokens_map.json", "sentence_bert_config.json")

# The files to fetch from Hugging Face for each purpose. A group is fetched only if the groups before it do not suffice.
_AT_HUGGING_FACE = {
    "config": (("config.json", *_EMBEDDER),),
    "weights": (
        (
            *("config.json", "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
            *(*_EMBEDDER, "*_Dense/model.safetensors", "*_Dense/pytorch_model.bin"),
        ),
        ("model.weights.h5", "task.json", "task.weights.h5"),  # KerasHub's format
        ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"),
        ("tf_model.h5", "tf_model.h5.index.json", "tf_model-*-of-*.h5"),
    ),
    "tokenizer": (
        ("vocab.txt", "tokenizer_config.json", "tokenizer.json", *_SPLITTING),
        ("assets/tokenizer/vocabulary.txt",),  # KerasHub's format
    ),
}
# The files of a KerasHub preset on Kaggle for each purpose, and those that only a preset with a head has.
_AT_KAGGLE = {
    "config": ("config.json",),
    "weights": ("config.json", "model.weights.h5"),
    "tokenizer": ("tokenizer.json", "assets/tokenizer/vocabulary.txt"),
}
_HEAD_AT_KAGGLE = ("task.json", "task.weights.h5")


class _NotHereError(Exception):
    """A place lacks the wanted files; the message says why."""


def find_files(names: Sequence[str], purpose: str, handles: Mapping[str, str | None]) -> tuple[str | None, list[str]]:
    """Looks for a preset's files in the home directory, in packages, then in the caches, and downloads them last.

    Args:
        names: the preset's names, under `$KERAS_BERT_HOME` and in installed packages.
        purpose: `"config"`, `"weights"` or `"tokenizer"`; a copy without that part does not count.
        handles: the preset's handle on each hub, or None, in the order to try: on `HUGGING_FACE`, `owner/name` or
            `owner/name@revision`; on `KAGGLE`, `owner/model/framework/variation`, optionally with `/version`.

    Returns:
        The path of a directory or zip, or None if no place has it; and the places that lack it, each with the reason.

    Raises:
        InputError: an installed package lacks the folder of the files.
    """
    home, tried = os.environ.get(HOME_VARIABLE), []
    paths = [os.path.join(home, *f"{name}{end}".split("/")) for name in names for end in ("", ".zip") if home]
    attempts = [(path, functools.partial(_checked, path)) for path in paths if os.path.exists(path)]
    if not attempts:
        places = f"{home}: {', '.join(names)}, as a directory or .zip (not there)"
        tried.append(places if home else f"${HOME_VARIABLE} (not set)")
    packages = [package.partition(":")[0] for name, package in list_packages().items() if name in names]
    directories = list(filter(None, map(find_package, names)))
    attempts += [(directory, functools.partial(_checked, directory)) for directory in directories]
    if not directories:
        absent = f"package {', '.join(packages)} (not installed)"
        tried.append(absent if packages else "installed packages (none carries it)")
    find = {HUGGING_FACE: _cached_by_hugging_face, KAGGLE: _cached_by_kaggle}
    fetch = {HUGGING_FACE: _download_from_hugging_face, KAGGLE: _download_from_kaggle}
    hubs = [(hub, handle) for hub, handle in handles.items() if handle]
    attempts += [(f"{hub}'s cache of {handle}", functools.partial(find[hub], handle)) for hub, handle in hubs]
    attempts += [(f"download of {handle} from {hub}", functools.partial(fetch[hub], handle)) for hub, handle in hubs]
    for place, attempt in attempts:
        try:
            return attempt(purpose), tried
        except (_NotHereError, InputError) as error:
            reason = str(error).removeprefix(f"{place}: ")
        # The libraries let the errors of their HTTP clients through, and change clients between versions.
        except Exception as error:
            reason = f"{type(error).__name__}: {textwrap.shorten(str(error), 160, placeholder=' ...')}"
        if os.path.exists(place):
            logging.warning("%s: not used (%s).", place, reason)
        tried.append(f"{place} ({reason})")
    return None, tried


# === Contents of a copy ===


def _lacks(files: Collection[str], purpose: str) -> str:
    """Returns what a copy with these files (relative paths with slashes) lacks for a purpose; "" if nothing."""
    files = set(files)
    if purpose == "tokenizer":
        # transformers 5 writes the second pair; KerasHub's tokenizer.json holds no vocabulary.
        is_there = "vocab.txt" in files or {"tokenizer.json", "tokenizer_config.json"} <= files
        is_there = is_there or any(re.fullmatch(r"assets/.+\.txt", file) for file in files)
        return "" if is_there else "a vocabulary (vocab.txt)"
    checkpoint = any(".data-0" in file and f"{file.partition('.data-0')[0]}.index" in files for file in files)
    if not (files & _CONFIGS or checkpoint):
        return "a configuration (config.json)"
    shards = (("model", "safetensors"), ("pytorch_model", "bin"), ("tf_model", "h5"))
    if purpose == "config" or checkpoint or files & _WEIGHTS or any(_has_shards(files, *names) for names in shards):
        return ""
    return "weights (model.safetensors)"


def _has_shards(files: Collection[str], stem: str, suffix: str) -> bool:
    """Returns whether all shards of the weights, and their index, are among the files."""
    matches = [re.fullmatch(rf"{stem}-(\d+)-of-(\d+)\.{suffix}", file) for file in files]
    numbers = {int(match[1]) for match in matches if match}
    expected = max((int(match[2]) for match in matches if match), default=0)
    return expected > 0 and len(numbers) == expected and f"{stem}.{suffix}.index.json" in files


def _files_of(path: str) -> list[str]:
    """Lists the files of a zip, or of a directory and those of its folders that may matter, without dangling links."""
    if not os.path.isdir(path):
        with open_archive(path) as archive:
            files = [member.filename for member in archive.infolist() if not member.is_dir()]
        folders = {file.partition("/")[0] if "/" in file else "" for file in files}
        return [file.partition("/")[2] for file in files] if len(folders) == 1 and "" not in folders else files
    paths = []
    for place, folders, names in os.walk(path):
        if place == path:
            folders[:] = [folder for folder in folders if re.fullmatch(r"assets|variables|\d+_Dense", folder)]
        paths += [os.path.join(place, name) for name in names]
    return [os.path.relpath(file, path).replace(os.sep, "/") for file in paths if os.path.isfile(file)]


def _checked(path: str, purpose: str, files: Collection[str] | None = None) -> str:
    """Returns `path` if its `files`, by default all of them, suffice for a purpose."""
    lacking = _lacks(_files_of(path) if files is None else files, purpose)
    if lacking:
        raise _NotHereError(f"lacks {lacking}")
    return path


# === Hugging Face ===


def _cached_by_hugging_face(handle: str, purpose: str) -> str:
    from huggingface_hub import constants

    name, _, revision = handle.partition("@")
    copies = os.path.join(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
    reference = os.path.join(copies, "refs", revision or "main")
    commit = pathlib.Path(reference).read_text("utf-8").strip() if os.path.isfile(reference) else revision
    directory = os.path.join(copies, "snapshots", commit)
    if not commit or not os.path.isdir(directory):
        raise _NotHereError("not there")
    return _checked(directory, purpose)


def _download_from_hugging_face(handle: str, purpose: str) -> str:
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise _NotHereError("HF_HUB_OFFLINE is set")
    name, _, revision = handle.partition("@")
    lacking = ""
    for patterns in _AT_HUGGING_FACE[purpose]:
        logging.info("Downloading %s of %s from Hugging Face: %s", purpose, handle, ", ".join(patterns))
        directory = snapshot_download(name, revision=revision or None, allow_patterns=list(patterns))
        files = _files_of(directory)
        _check_digests(directory, [name for name in files if any(fnmatch.fnmatch(name, part) for part in patterns)])
        lacking = _lacks(files, purpose)
        if not lacking:
            return directory
    raise _NotHereError(f"lacks {lacking}")


def _check_digests(directory: str, files: list[str]) -> None:
    """Checks large files, which Hugging Face's cache names by their SHA-256, since its library checks only sizes."""
    for name in files:
        path = os.path.join(directory, name)
        # Small text files are not named by their SHA-256, and without symbolic links no file is.
        expected = os.path.basename(os.readlink(path)) if os.path.islink(path) else ""
        if not re.fullmatch("[0-9a-f]{64}", expected):
            continue
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected:
            for damaged in (os.path.realpath(path), path):
                os.remove(damaged)
            raise _NotHereError(f"{name} arrived damaged: expected SHA-256 {expected}, received {digest}")


# === Kaggle ===


def _cached_by_kaggle(handle: str, purpose: str) -> str:
    from kagglehub.cache import Cache, get_cached_path
    from kagglehub.handle import parse_model_handle

    model = parse_model_handle(handle)
    if not model.is_versioned():
        versions = os.path.dirname(get_cached_path(model.with_version(1)))
        names = os.listdir(versions) if os.path.isdir(versions) else ()
        numbers = [int(name) for name in names if name.isdigit()]
        model = model.with_version(max(numbers, default=1))
    directory = get_cached_path(model)
    if not os.path.isdir(directory):
        raise _NotHereError("not there")
    # kagglehub writes a download under its final name, and marks the file or the whole model once it is complete.
    cache, files = Cache(), _files_of(directory)
    whole = files if cache.load_from_cache(model) else [name for name in files if cache.load_from_cache(model, name)]
    return _checked(directory, purpose, whole)


def _download_from_kaggle(handle: str, purpose: str) -> str:
    from huggingface_hub import constants
    from kagglehub import model_download

    if constants.HF_HUB_OFFLINE:  # kagglehub has no such switch of its own.
        raise _NotHereError("HF_HUB_OFFLINE is set")
    if handle.split("/")[2].lower() != "keras":  # A SavedModel needs all of its files.
        logging.info("Downloading %s from Kaggle", handle)
        return _checked(model_download(handle), purpose)
    logging.info("Downloading %s of %s from Kaggle: %s", purpose, handle, ", ".join(_AT_KAGGLE[purpose]))
    for name in _AT_KAGGLE[purpose]:
        directory = model_download(handle, path=name)[: -len(name) - 1]
    for name in _HEAD_AT_KAGGLE if purpose == "weights" else ():
        try:
            model_download(handle, path=name)
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status != 404 and "is not present in the model files" not in str(error):
                raise
    return _checked(directory, purpose)
