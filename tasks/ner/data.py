"""Tagged tokens as the encoder's input: files, labels, and the labels of sub-tokens.

Only a word's first sub-token is labelled and scored (paper, section 5.3).

Shapes: N words, S sentences, T tokens of all windows, C labels.
"""

import os
from collections.abc import Sequence

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import expand_file
from tasks import tags as tag_schemes
from tasks.bad_rows import BadRows
from tasks.conll import Documents, leave_out, read_conll
from tasks.examples import Examples
from tasks.ner.windows import Windows

EXTENSIONS = (".conll", ".txt", ".tsv")


# === Files ===


def find_split(data_dir: str | None, split: str, file: str | None) -> str:
    """Finds the file of a split.

    Args:
        data_dir: the directory that holds `train.conll`, `dev.conll`, `test.conll` (or `.txt`, `.tsv`), or None.
        split: "train", "dev" or "test".
        file: the path that `--<split>_file` gave, or None; it goes before `data_dir`.

    Raises:
        InputError: there is no such file, or several of them.
    """
    if file:
        return expand_file(f"--{split}_file", file)
    if not data_dir:
        raise InputError(f"No {split} file was named. Give --{split}_file, or --data_dir with a {split}.conll.")
    candidates = [os.path.join(data_dir, split + extension) for extension in EXTENSIONS]
    found = [path for path in candidates if os.path.exists(path)]
    if len(found) != 1:
        state = "several are there" if found else "no such file"
        raise InputError(f"{' or '.join(found or candidates)}: {state}. Name the right one with --{split}_file.")
    return found[0]


def read_splits(paths: dict[str, str], bad_rows: BadRows, **columns) -> dict[str, Documents]:
    """Reads the file of each split; "test" needs no tags.

    Args:
        paths: file by split.
        bad_rows: collects what is wrong.
        **columns: `tag_column`, `delimiter`, `tag_scheme` of `tasks.conll.read_conll`.

    Raises:
        InputError: as `read_conll`.
    """
    return {
        split: read_conll(path, needs_tags=split != "test", bad_rows=bad_rows, **columns)
        for split, path in paths.items()
    }


# === Labels ===


def make_labels(documents: Documents) -> list[str]:
    """Makes the labels of the entity types of a file: "O", then B- and I- of each, sorted by type.

    Raises:
        InputError: the file has no entity.
    """
    types = entity_types(documents.tags)
    if not types:
        raise InputError(f"{documents.path}: no token is tagged as an entity. Expected some to learn from.")
    return [tag_schemes.OUTSIDE, *(tag_schemes.join_tag(prefix, name) for name in types for prefix in "BI")]


def entity_types(tags: Sequence[str]) -> list[str]:
    """The types that tags, or labels, name: sorted, without "O"."""
    return sorted({tag_schemes.split_tag(tag)[1] for tag in set(tags) if tag != tag_schemes.OUTSIDE})


def check_labels(labels: list[str] | None, source: str) -> list[str]:
    """Checks the labels of a model that was trained elsewhere.

    Raises:
        InputError: there are none, or one is not "O", or B- or I- and a type.
    """
    expected = 'Expected "O", and B- and I- of each entity type'
    if not labels:
        raise InputError(f"{source}: the checkpoint does not name its labels (id2label). {expected}.")
    for label in labels:
        # In one scheme or the other a sentence may be this tag alone, unless it is none.
        if all(tag_schemes.find_fault([label], scheme) for scheme in ("iob1", "iob2")):
            raise InputError(f"{source}: the label {label!r} is no tag. {expected}.")
    return labels


def leave_out_unknown(documents: Documents, labels: Sequence[str], bad_rows: BadRows) -> Documents:
    """Reports and leaves out the sentences with entities of a type that the labels do not have.

    Raises:
        InputError: there are some, and `bad_rows` refuses them.
    """
    known = entity_types(labels)
    shown = ", ".join(repr(name) for name in known[:20]) + (f", ... ({len(known)} in all)" if len(known) > 20 else "")
    faults = []
    for tags, lines in zip(documents.split(documents.tags), documents.split(documents.lines), strict=True):
        types = (tag_schemes.split_tag(tag)[1] if tag != tag_schemes.OUTSIDE else None for tag in tags)
        unknown = ((line, name) for line, name in zip(lines, types, strict=True) if name not in (None, *known))
        fault = next(unknown, None)
        faults.append(fault and (fault[0], f"unknown entity type {fault[1]!r}. Expected {shown}."))
    return leave_out(documents, faults, bad_rows)


# === Examples ===


def label_ids(tags: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Class numbers of N tags, int32; -1 for a tag that the labels lack (a foreign model may have no B- of a type)."""
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([numbers.get(tag, -1) for tag in tags], np.int32)


def make_examples(windows: Windows, ids: np.ndarray | None = None) -> Examples:
    """Makes the examples of windows.

    Args:
        windows: of N words.
        ids: class numbers of the words, int32, shape (N,), or None; -1 weighs nothing.

    Returns:
        `Examples` with the token labels `labels`, int32, and `weights`, float32: 1 at the first sub-token of each word
        in the window where it is scored, 0 elsewhere.
    """
    token_labels = {}
    if ids is not None:
        labels, weights = np.zeros(len(windows.token_ids), np.int32), np.zeros(len(windows.token_ids), np.float32)
        labels[windows.places] = np.maximum(ids, 0)
        weights[windows.places] = ids >= 0
        token_labels = {"labels": labels, "weights": weights}
    segment_ids = np.zeros_like(windows.token_ids)
    return Examples(windows.token_ids, segment_ids, windows.row_splits, token_labels=token_labels)
