"""Presets by name: the architecture that a name means, and the files that belong to it, nearest first."""

import difflib
import os
import re

from keras_bert import preset_table
from keras_bert.downloads import HOME_VARIABLE, Sources, find_files
from keras_bert.errors import InputError
from keras_bert.files import exists
from keras_bert.preset_table import Preset

PRESETS = {preset.name: preset for preset in preset_table.SHORT}  # by short name
_BY_NAME = {name: preset for preset in preset_table.ALL for name in preset.names}

_HUGGING_FACE_HANDLE = r"hf://[\w.-]+(/[\w.-]+)?(@[\w./-]+)?"
_KAGGLE_HANDLE = r"kaggle://[\w.-]+(/[\w.-]+){3}(/\d+)?"
_WANTED = {"config": "configuration", "weights": "weights", "tokenizer": "vocabulary"}


class _PresetTable(list):
    """The presets, shown as a table when printed."""

    def __str__(self) -> str:
        rows = [("name", "checkpoint", "layers", "hidden", "heads", "parameters", "case")]
        for preset in self:
            config = preset.config
            sizes = (config.num_layers, config.hidden_dim, config.num_heads, f"{preset.parameters:,}")
            case = {True: "uncased", False: "cased", None: "-"}[preset.lowercase]
            rows.append((preset.name, preset.full_name, *map(str, sizes), case))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        # Text to the left, numbers to the right.
        line = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<>>>><", widths, strict=True))
        return "\n".join(line.format(*row).rstrip() for row in rows)

    __repr__ = __str__


def list_presets() -> list[Preset]:
    """Lists the presets: the short names by size, Google's other checkpoints, KerasHub's; printing shows a table.

    >>> presets = list_presets()
    >>> [preset.name for preset in presets[:6]]
    ['tiny', 'mini', 'small', 'medium', 'base', 'large']
    >>> len(presets)
    60
    """
    return _PresetTable(preset_table.ALL)


def find_preset(name: str) -> Preset | None:
    """Returns the preset of a name (short, Google's, KerasHub's, or of its repository at Hugging Face), or None.

    >>> find_preset("bert_base_zh").full_name
    'chinese_L-12_H-768_A-12'
    """
    return _BY_NAME.get(name)


def find_handle(handle: str) -> Preset | None:
    """Returns the preset that `hf://owner/name` is a copy of, or None."""
    repository = handle.removeprefix("hf://").partition("@")[0]
    copies = (preset for preset in preset_table.ALL if preset.hugging_face == repository)
    return next(copies, None) if handle.startswith("hf://") else None


def name_of(preset: str | os.PathLike) -> str:
    """Returns a preset's name or path as a string, `~` expanded.

    Raises:
        InputError: `preset` is neither a string nor a path.
    """
    name = os.fspath(preset) if isinstance(preset, os.PathLike) else preset
    if not isinstance(name, str):
        raise InputError(f"expected a preset's name or path, received {preset!r}.")
    return os.path.expanduser(name)


def resolve_preset(preset: str | os.PathLike, purpose: str = "config") -> str:
    """Finds the directory or file that holds a preset's files, offline first, by download last.

    The order is: `preset` as a path; under `$KERAS_BERT_HOME` a directory or zip of any of its names, or Google's
    archive; the caches of Hugging Face and Kaggle; a download through `huggingface_hub` or `kagglehub` of the files
    that the purpose needs (checksummed and resumable; `HF_HUB_OFFLINE=1` switches it off). KerasHub's names ask Kaggle
    first, all others Hugging Face.

    Args:
        preset: a directory, a zip or `.keras` file, the prefix of a TensorFlow checkpoint, a name that `find_preset`
            knows, `hf://owner/name[@revision]`, or `kaggle://owner/model/framework/variation[/version]`.
        purpose: str, the part that the caller will read, `"config"`, `"weights"` or `"tokenizer"`; a cached copy
            without it does not count.

    Returns:
        The path. If `preset` is a path, it is returned unchanged, apart from `~`.

    Raises:
        InputError: no place has the preset; the message lists the places that were tried.
    """
    preset = name_of(preset)
    if exists(preset) or exists(f"{preset}.index"):
        return preset
    known = find_preset(preset)
    if known is not None and known.lowercase is None and purpose == "tokenizer":
        raise InputError(f"{preset}: its tokenizer is of another kind (SentencePiece). Expected BERT's WordPieces.")
    path, tried = find_files(_sources(preset, known), purpose)
    if path is None:
        wanted, cure = _WANTED[purpose], _cure(preset, known, purpose)
        raise InputError(f"{preset}: {wanted} not found. Tried: {'; '.join(tried)}. {cure}")
    return path


def _sources(preset: str, known: Preset | None) -> Sources:
    if known is not None:
        archive = (known.archive.removesuffix(".zip"),) if known.archive else ()
        kaggle_first = preset == known.keras_hub
        return Sources((*known.names, *archive), known.hugging_face, known.kaggle, kaggle_first)
    scheme, _, handle = preset.partition("://")
    if re.fullmatch(_HUGGING_FACE_HANDLE, preset):
        return Sources((handle,), hugging_face=handle)
    if re.fullmatch(_KAGGLE_HANDLE, preset):
        return Sources((handle,), kaggle=handle)
    if scheme in ("hf", "kaggle"):
        form = "owner/name[@revision]" if scheme == "hf" else "owner/model/framework/variation[/version]"
        raise InputError(f"{preset}: not a handle. Expected {scheme}://{form}.")
    close = difflib.get_close_matches(preset, _BY_NAME, n=3)
    raise InputError(
        f"{preset}: no such directory, and no preset of that name. "
        + (f"Close to it: {', '.join(close)}. " if close else "")
        + f"Expected a path, one of {', '.join(PRESETS)}, another name that keras_bert.list_presets() shows, "
        "hf://owner/name, or kaggle://owner/model/framework/variation."
    )


def _cure(preset: str, known: Preset | None, purpose: str) -> str:
    home = os.environ.get(HOME_VARIABLE) or f"${HOME_VARIABLE}"
    name = preset.partition("://")[2] or preset
    files = "vocab.txt" if purpose == "tokenizer" else "config.json, model.safetensors and vocab.txt"
    cure = f"Put a directory with {files} at {os.path.join(home, *name.split('/'))}"
    if known is not None and known.archive:
        cure += f", or Google's archive {known.archive} at {os.path.join(home, known.full_name)}.zip"
    if known is not None and purpose == "weights":
        cure += ", or pass load_weights=False for the architecture alone"
    return f"{cure}."
