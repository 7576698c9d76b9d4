"""Finds the files of a task's splits, by a flag or in `--data_dir`."""

import os
from collections.abc import Sequence

from keras_bert.errors import InputError
from keras_bert.files import expand_file
from tasks.fine_tuning.settings import SplitSettings


def find_split(
    settings: SplitSettings, split: str, names: Sequence[str], extensions: Sequence[str], any_extension: bool = False
) -> str:
    """Finds the file of a split.

    Args:
        settings: settings with `--<split>_file`, which takes precedence, and `--data_dir`.
        split: "train", "dev" or "test".
        names: possible base names in `--data_dir`, without extension.
        extensions: possible extensions there.
        any_extension: whether a file named by a flag may have another extension.

    Raises:
        InputError: no file or several files match, or the format is unknown.
    """
    file = getattr(settings, f"{split}_file")
    if file:
        path = expand_file(f"--{split}_file", file)
        if not any_extension and os.path.splitext(path)[1].lower() not in extensions:
            raise InputError(f"{path}: expected a file name that ends in {' or '.join(extensions)}.")
        return path
    if not settings.data_dir:
        wanted = names[0] + extensions[0]
        raise InputError(f"No {split} file was named. Give --{split}_file, or --data_dir with a {wanted}.")
    candidates = [os.path.join(settings.data_dir, name + extension) for name in names for extension in extensions]
    found = [path for path in candidates if os.path.exists(path)]
    if len(found) != 1:
        state = f"{len(found)} of them are there" if found else "no such file"
        raise InputError(f"{' or '.join(found or candidates)}: {state}. Name the right one with --{split}_file.")
    return found[0]
