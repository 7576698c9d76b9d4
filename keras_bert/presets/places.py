"""Finds the files of a preset."""

import contextlib
import os

from keras_bert import formats
from keras_bert.files import exists
from keras_bert.presets.catalog import Preset, find_preset, name_of, resolve_preset


def located(preset: str | os.PathLike, purpose: str = "config") -> contextlib.AbstractContextManager[str]:
    """Finds a preset's files for a purpose, as `resolve_preset` does; gives their directory or prefix."""
    return formats.located(resolve_preset(preset, purpose), purpose)


def published(preset: str | os.PathLike) -> Preset | None:
    """Returns the preset of a name, or None for a path, a handle, and a name that a file here has too."""
    name = name_of(preset)
    return None if exists(name) else find_preset(name)
