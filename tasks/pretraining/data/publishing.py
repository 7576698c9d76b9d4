"""Moves finished shards to their places, so that no training mistakes a mix of old and new shards for a whole set.

No rename replaces several files at once. While the shards are moved, a mark in each of their directories lists them,
and `check_published` refuses the listed files. If the command is killed meanwhile, the mark stays until the command has
been repeated.
"""

import os
import re
from collections.abc import Sequence

from keras_bert import files
from keras_bert.errors import InputError
from tasks.pretraining.data.shard_index import index_path

REPORT_ENDING = ".report.json"  # End of the name of a set's report, which begins like the names of the set's files.
_MARK = f".{files.INCOMPLETE}"  # End of the name of a mark, which begins with the first file of the set.


def publish(sources: Sequence[str], output_files: Sequence[str]) -> None:
    """Moves shards and their indexes, replacing earlier files. Skips those that a killed call has already moved.

    Args:
        sources: paths of the shards in the scratch directory; the path of an index adds `.npz`.
        output_files: paths to move the shards to.

    Raises:
        InputError: a shard was moved before a kill, and then removed.
    """
    pairs = list(zip(sources, map(files.absolute, output_files), strict=True))
    for source, path in pairs:
        if not (files.exists(source) or files.exists(path)):
            raise InputError(f"{path}: was removed after an interrupted run had finished it. Run the command again.")
    names_by_mark: dict[str, list[str]] = {}
    for _, path in pairs:
        mark = os.path.join(os.path.dirname(path), f".{os.path.basename(pairs[0][1])}{_MARK}")
        names_by_mark.setdefault(mark, []).append(os.path.basename(path))
    for mark, names in names_by_mark.items():
        files.write_lines(mark, names)
    for source, path in pairs:
        for moved, target in ((source, path), (f"{source}.npz", index_path(path))):
            if files.exists(moved):
                files.move(moved, target)
    for mark in names_by_mark:
        files.remove_path(mark)


def check_published(paths: Sequence[str]) -> None:
    """Refuses files of a set that is being replaced, or whose replacement was killed, and two sets of one name.

    Raises:
        InputError: a mark lists one of the files, or they come from runs with different --num_shards.
    """
    sets: dict[str, tuple[str, str]] = {}  # By name of the set: one of its files, and the number of shards or "".
    for path in paths:
        name, count = re.fullmatch(r"(.+?)(?:-\d{5}-of-(\d{5}))?", path, re.DOTALL).groups("")
        first, expected = sets.setdefault(name, (path, count))
        if count != expected:
            raise InputError(f"{first}, {path}: files of two sets of one name. Remove those of the older one.")
    paths = {files.absolute(path): path for path in paths}
    for directory in sorted(set(map(os.path.dirname, paths))):
        for mark in (name for name in files.list_directory(directory) if name.endswith(_MARK)):
            for _, name in files.read_lines(os.path.join(directory, mark)):
                if path := paths.get(os.path.join(directory, name)):
                    raise InputError(
                        f"{path}: may belong to a mix of old and new files: {mark} lists it. Wait until the command "
                        "that writes them ends, or run it again."
                    )
