"""The quickstart's text: labelled documents of sentences, their split, and the rows made of them."""

import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import read_lines

_HELD_OUT_SHARE = 0.1
_PASSAGE_SENTENCES = 3  # They fill a sequence of 64 tokens.


class Document(NamedTuple):
    """Sentences in their order.

    Attributes:
        label: what a classifier tells apart: the package of a docstring, the name of a text file.
        group: module or part of a file; all of its documents are held out, or none.
        name: name of what the document describes.
        sentences: sentences, each on one line.
    """

    label: str
    group: str
    name: str
    sentences: list[str]


def read_texts(paths: list[str]) -> list[Document]:
    """Reads text files with one sentence a line and a blank line between documents.

    A path without the folder that all paths share, and without its extension, labels a file's sentences.

    Raises:
        InputError: none of the files has a sentence, or a line is not UTF-8.
    """
    start, documents = os.path.commonprefix(paths).rfind("/") + 1, []
    for path in paths:
        label = os.path.splitext(path[start:])[0]
        lines = (" ".join(line.split()) for _, line in read_lines(path))
        texts = [list(sentences) for is_text, sentences in itertools.groupby(lines, bool) if is_text]
        names = (f"{label}:{number}" for number in itertools.count())
        documents += [Document(label, name, name, sentences) for name, sentences in zip(names, texts, strict=False)]
    if not documents:
        raise InputError(f"{', '.join(paths)}: no text. Expected one sentence a line.")
    return documents


def without_repeats(documents: Iterable[Document]) -> list[Document]:
    """Keeps a sentence only where it occurs first, so that no text to learn from is one to be tested on."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        sentences = [text for text in dict.fromkeys(document.sentences) if text not in seen]
        seen.update(sentences)
        if sentences:
            kept.append(document._replace(sentences=sentences))
    return kept


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Splits documents into training and held-out ones.

    Each label with several groups holds a tenth of them out, at least one. A hash chooses them, independently of other
    labels.

    Raises:
        InputError: one side would have fewer than two groups; a random next sentence needs a second one.
    """
    groups: dict[str, set[str]] = {}
    for document in documents:
        groups.setdefault(document.label, set()).add(document.group)
    held_out = set()
    for names in groups.values():
        count = max(1, round(_HELD_OUT_SHARE * len(names))) if len(names) > 1 else 0
        held_out.update(sorted(names, key=hash_of)[:count])
    sides = [], []
    for document in documents:
        sides[document.group in held_out].append(document)
    if min(len({document.group for document in side}) for side in sides) < 2:
        raise InputError(
            f"--input_file: {len(documents)} documents are too few to hold a tenth of them out. Give some dozens, with "
            "a blank line between documents."
        )
    return sides


def hash_of(text: str) -> int:
    """Returns 64 random-looking bits, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def lines_of(documents: list[Document]) -> Iterator[str]:
    """Yields the sentences of each group, and an empty line after it."""
    for _, group in itertools.groupby(documents, lambda document: document.group):
        for document in group:
            yield from document.sentences
        yield ""


def summary(documents: list[Document]) -> str:
    """Renders the numbers of groups, sentences and bytes as one line."""
    lines = list(lines_of(documents))
    num_groups, num_bytes = lines.count(""), sum(len(line.encode()) + 1 for line in lines)
    return f"{num_groups:,} documents, {len(lines) - num_groups:,} sentences, {num_bytes:,} bytes"


# === Rows ===


def label_sentences(
    sides: Sequence[list[Document]], num_labels: int, max_rows: Sequence[int], hide_names: bool
) -> list[list[tuple[str, str]]]:
    """Makes a classification task: where does this sentence come from?

    The labels are those with the most held-out sentences, with equally many rows each. Labels beyond the second that
    would leave the others less than a tenth of their rows are left out.

    Args:
        sides: documents for the training rows and for the dev rows.
        num_labels: maximum number of labels.
        max_rows: maximum number of rows for each label, of each side.
        hide_names: whether to leave out sentences that name a label, which would give the answer away.

    Returns:
        Training rows and dev rows, each a list of `(sentence, label)` in the order of a hash.
    """
    training, held_out = sides
    known = Counter(document.label for document in training for _ in document.sentences)
    counts = Counter(document.label for document in held_out if document.label in known for _ in document.sentences)
    sizes = {label: min(known[label], max_rows[0]) for label, _ in counts.most_common(num_labels)}
    labels = [label for place, label in enumerate(sizes) if place < 2 or 10 * sizes[label] >= max(sizes.values())]
    names = re.compile(rf"\b(?:{'|'.join(map(re.escape, labels))})\b", re.IGNORECASE)

    def draw(documents: list[Document], max_rows: int) -> list[tuple[str, str]]:
        rows: dict[str, list] = {label: [] for label in labels}
        for document in documents:
            for text in document.sentences if document.label in rows else ():
                if not (hide_names and names.search(text)):
                    rows[document.label].append((text, document.label))
        num_rows = min(max_rows, *map(len, rows.values())) if rows else 0
        return _mixed(row for of_label in rows.values() for row in _mixed(of_label)[:num_rows])

    return [draw(documents, most) for documents, most in zip(sides, max_rows, strict=True)]


def _mixed(rows: Iterable[tuple]) -> list[tuple]:
    return sorted(rows, key=lambda row: hash_of("\t".join(row)))


def search_rows(documents: list[Document]) -> list[tuple[str, str, str]]:
    """Returns name, question (first sentence) and passage (what follows it) of documents, in the order of a hash."""
    return _mixed(
        (document.name, document.sentences[0], " ".join(document.sentences[1 : 1 + _PASSAGE_SENTENCES]))
        for document in documents
        if len(document.sentences) > 1
    )
