"""What a preset's name means: its architecture, and where its files come from, nearest first."""

import dataclasses
import os

from keras_bert.config import BertConfig
from keras_bert.errors import InputError

HOME_VARIABLE = "KERAS_BERT_HOME"
_UNCASED_VOCABULARY_SIZE = 30522


@dataclasses.dataclass(frozen=True)
class Preset:
    """A published BERT.

    Attributes:
        name: str, the short name.
        full_name: str, Google's name of the checkpoint.
        config: BertConfig, with google-research/bert's tanh gelu.
        lowercase: bool, whether its vocabulary is uncased.
        parameters: int, number of weights of the encoder with its pooler.
        hugging_face: str, `owner/name` of a copy in Hugging Face's format.
    """

    name: str
    full_name: str
    config: BertConfig
    lowercase: bool
    parameters: int
    hugging_face: str


def _uncased(name: str, full_name: str, layers: int, hidden: int, heads: int, parameters: int, hub: str) -> Preset:
    config = BertConfig(_UNCASED_VOCABULARY_SIZE, layers, heads, hidden, 4 * hidden)
    return Preset(name, full_name, config, True, parameters, hub)


# Sizes: google-research/bert's README (base and large; the miniatures of Turc et al. 2019, arXiv:1908.08962).
_ALL = (
    _uncased("tiny", "uncased_L-2_H-128_A-2", 2, 128, 2, 4_385_920, "google/bert_uncased_L-2_H-128_A-2"),
    _uncased("mini", "uncased_L-4_H-256_A-4", 4, 256, 4, 11_170_560, "google/bert_uncased_L-4_H-256_A-4"),
    _uncased("small", "uncased_L-4_H-512_A-8", 4, 512, 8, 28_763_648, "google/bert_uncased_L-4_H-512_A-8"),
    _uncased("medium", "uncased_L-8_H-512_A-8", 8, 512, 8, 41_373_184, "google/bert_uncased_L-8_H-512_A-8"),
    _uncased("base", "uncased_L-12_H-768_A-12", 12, 768, 12, 109_482_240, "google-bert/bert-base-uncased"),
    _uncased("large", "uncased_L-24_H-1024_A-16", 24, 1024, 16, 335_141_888, "google-bert/bert-large-uncased"),
)
PRESETS = {preset.name: preset for preset in _ALL}


class _PresetTable(list):
    """The presets, shown as a table when printed."""

    def __str__(self) -> str:
        rows = [("name", "checkpoint", "layers", "hidden", "heads", "parameters", "cased")]
        for preset in self:
            config = preset.config
            sizes = (config.num_layers, config.hidden_dim, config.num_heads, f"{preset.parameters:,}")
            rows.append((preset.name, preset.full_name, *map(str, sizes), "no" if preset.lowercase else "yes"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    __repr__ = __str__


def list_presets() -> list[Preset]:
    """Lists the presets by size; printing the list shows a table.

    >>> len(list_presets())
    6
    """
    return _PresetTable(_ALL)


def find_preset(name: str) -> Preset | None:
    """Returns the preset of a short or full name, or None."""
    return next((preset for preset in _ALL if name in (preset.name, preset.full_name)), None)


_NEEDS = {"config": ("config.json",), "weights": ("config.json", "model.safetensors"), "tokenizer": ("vocab.txt",)}


def resolve_preset(preset: str, purpose: str = "config") -> str:
    """Finds the directory that holds a preset's files: offline first, download last.

    Order: `preset` as a directory; `$KERAS_BERT_HOME/<name>`; Hugging Face's cache; download through
    `huggingface_hub` (checksummed and resumable; switched off by `HF_HUB_OFFLINE=1`).

    Args:
        preset: a directory, a zip or `.keras` file, the prefix of a TensorFlow checkpoint, a short name, Google's name
            of a checkpoint, or `hf://owner/name`.
        purpose: str, what the caller will read, `"config"`, `"weights"` or `"tokenizer"`; a cached copy without it does
            not count.

    Returns:
        A path; one that was named as such is returned as it is.

    Raises:
        InputError: no place has it; the message lists what was tried.
    """
    if os.path.exists(preset) or os.path.exists(f"{preset}.index"):
        return preset
    needs = _NEEDS[purpose]
    known = find_preset(preset)
    handle = known.hugging_face if known else preset.removeprefix("hf://") if preset.startswith("hf://") else None
    if handle is None:
        raise InputError(
            f"{preset}: no such directory, and no preset of that name. Expected a directory with a config.json, "
            f"one of {', '.join(PRESETS)}, or hf://owner/name."
        )
    tried = []
    home = os.environ.get(HOME_VARIABLE)
    names = (known.name, known.full_name) if known else (handle,)
    if home:
        for name in names:
            directory = os.path.join(home, name)
            if os.path.isdir(directory):
                return directory
            tried.append(f"{directory} (not there)")
    else:
        tried.append(f"${HOME_VARIABLE} (not set)")
    return _hugging_face_directory(preset, handle, needs, tried)


def _hugging_face_directory(preset: str, handle: str, needs: tuple[str, ...], tried: list[str]) -> str:
    from huggingface_hub import snapshot_download

    patterns = ["config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"]
    for where, only_local in (("Hugging Face's cache", True), (f"download of {handle}", False)):
        try:
            directory = snapshot_download(handle, allow_patterns=patterns, local_files_only=only_local)
        except (OSError, ValueError) as error:  # the hub's own errors derive from these two
            tried.append(f"{where} ({type(error).__name__})")
            continue
        missing = [name for name in needs if not os.path.isfile(os.path.join(directory, name))]
        if not missing:
            return directory
        tried.append(f"{where} (lacks {', '.join(missing)})")
    place = f"${HOME_VARIABLE}/{preset.removeprefix('hf://')}"
    raise InputError(
        f"{preset}: {', '.join(needs)} not found. Tried: {'; '.join(tried)}. Put a directory with config.json, "
        f"model.safetensors and vocab.txt at {place}, or pass load_weights=False for the architecture alone."
    )
