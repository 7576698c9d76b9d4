"""The quickstart's corpus: sentences of documents that carry a label, their held-out part, and files made of them."""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from keras_bert.files import atomic_path

# The name of tf-models-official says nothing, and its sentences read like TensorFlow's and Keras's.
_SKIPPED_LABELS = frozenset(["official"])


class Document(NamedTuple):
    """The sentences of one module of a package, in their order; a text file is a package too."""

    package: str
    module: str
    sentences: list[str]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents, in the order of their packages and modules."""

    documents: list[Document]

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_sentences(self) -> int:
        return sum(len(document.sentences) for document in self.documents)

    @property
    def num_bytes(self) -> int:
        """The size of the file that `write_lines` makes of `lines()`."""
        return sum(len(line.encode()) + 1 for line in self.lines())

    def lines(self) -> Iterator[str]:
        """Yields one sentence a line, and an empty line after each document."""
        for document in self.documents:
            yield from document.sentences
            yield ""

    def sentences_by_package(self) -> dict[str, int]:
        """Returns the number of sentences of each package, the largest first; equal ones by name."""
        counts = collections.Counter()
        for document in self.documents:
            counts[document.package] += len(document.sentences)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def summary(self) -> str:
        """Returns one line with the numbers of documents, sentences and bytes."""
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_bytes:,} bytes"

    def split(self, held_out: set[str]) -> tuple["Corpus", "Corpus"]:
        """Returns the documents whose modules are not in `held_out`, and those whose modules are."""
        parts = [], []
        for document in self.documents:
            parts[document.module in held_out].append(document)
        return Corpus(parts[0]), Corpus(parts[1])


def hash_of(text: str) -> int:
    """Returns 64 bits that look random and are the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Writes a text file, whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def label_sentences(
    training: Corpus,
    held_out: Corpus,
    num_packages: int = 8,
    max_training_rows: int = 1000,
    max_dev_rows: int = 250,
    min_words: int = 8,
    hide_names: bool = True,
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Makes a classification task of a split corpus: which package does this sentence document?

    The labels are the packages with most sentences, of those with held-out documents, each equally often. No dev row
    is also a training row.

    Args:
        training: documents to draw the training rows from.
        held_out: documents to draw the dev rows from.
        num_packages: how many labels.
        max_training_rows, max_dev_rows: per label; fewer if a label has fewer sentences.
        min_words: shorter sentences are left out: they could stand anywhere.
        hide_names: leave out sentences that name one of the labels, since that gives the answer away.

    Returns:
        Training rows and dev rows, each a list of `(sentence, package)` in the order of a hash.
    """
    candidates = held_out.sentences_by_package().keys() - _SKIPPED_LABELS
    packages = [name for name in training.sentences_by_package() if name in candidates][:num_packages]
    name = re.compile(rf"\b(?:{'|'.join(map(re.escape, packages))})\b", re.IGNORECASE)

    def draw(corpus: Corpus, max_rows: int, excluded: set[str]) -> list[tuple[str, str]]:
        rows: dict[str, list] = {package: [] for package in packages}
        for package, _, sentences in corpus.documents:
            for text in sentences if package in rows else ():
                is_hidden = text in excluded or hide_names and name.search(text)
                if len(text.split()) >= min_words and not is_hidden:
                    rows[package].append((text, package))
        num_rows = min(max_rows, *map(len, rows.values())) if rows else 0
        drawn = [row for found in rows.values() for row in sorted(found, key=_row_hash)[:num_rows]]
        return sorted(drawn, key=_row_hash)

    known = {text for document in training.documents for text in document.sentences}
    return draw(training, max_training_rows, set()), draw(held_out, max_dev_rows, known)


def _row_hash(row: tuple[str, str]) -> int:
    return hash_of(row[0])
