"""Reads and splits the quickstart's text, labelled documents of sentences, and makes rows from them."""

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
_PASSAGE_SENTENCES = 3  # Enough to fill a sequence of 64 tokens.


class Document(NamedTuple):
    """A document as a list of sentences.

    Attributes:
        label: label for the classifier: the package of a docstring, or the name of a text file.
        group: name of a module, or of a document in a file. The documents of a group are held out together.
        name: name of the object that the docstring describes, or of the document.
        sentences: sentences in their order, without line breaks.
    """

    label: str
    group: str
    name: str
    sentences: list[str]


def read_texts(paths: list[str]) -> list[Document]:
    """Reads text files with one sentence per line and a blank line between documents.

    The label of a file's sentences is its path, without the directory that all paths share and without the extension.

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
    """Removes all but the first occurrence of each sentence, so that no training sentence is held out, too."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        sentences = [text for text in dict.fromkeys(document.sentences) if text not in seen]
        seen.update(sentences)
        if sentences:
            kept.append(document._replace(sentences=sentences))
    return kept


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Splits documents into training and held-out documents.

    A tenth of the groups of each label is held out, at least one, unless the label has a single group. A hash chooses
    them, independently of other labels.

    Raises:
        InputError: one side would have fewer than two groups. A random next sentence needs a second one.
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
    """Returns a 64-bit hash of a text, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def lines_of(documents: list[Document]) -> Iterator[str]:
    """Yields the sentences of each group, followed by an empty line."""
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

    The labels are those with the most held-out sentences; each gets the same number of rows. From the third label on,
    a label with less than a tenth of the sentences of the largest one is left out, since it would limit the others.

    Args:
        sides: documents for the training rows and for the dev rows.
        num_labels: maximum number of labels.
        max_rows: maximum number of rows per label, for training and for dev.
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
    """Returns (name, question, passage) of documents: the first sentence, and up to three that follow it.

    Documents of a single sentence are left out. The rows are in the order of a hash.
    """
    return _mixed(
        (document.name, document.sentences[0], " ".join(document.sentences[1 : 1 + _PASSAGE_SENTENCES]))
        for document in documents
        if len(document.sentences) > 1
    )
