"""The quickstart's corpus: labelled documents of sentences, their split, and the files made from them."""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Iterator
from typing import NamedTuple

# The name of this package (tf-models-official) says little, and its sentences read like TensorFlow's and Keras's.
_SKIPPED_LABELS = frozenset(["official"])


class Document(NamedTuple):
    """The sentences of a module of a package, in order; a text file also counts as a package."""

    package: str
    module: str
    sentences: list[str]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents, in the order of their packages and modules.

    Attributes:
        documents: the documents.
        functions: module, name and sentences of each public function and class of theirs.
    """

    documents: list[Document]
    functions: list[tuple[str, str, list[str]]] = dataclasses.field(default_factory=list, compare=False)

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_sentences(self) -> int:
        return sum(len(document.sentences) for document in self.documents)

    @property
    def num_bytes(self) -> int:
        """Size of the file that `keras_bert.files.write_lines` makes of `lines()`."""
        return sum(len(line.encode()) + 1 for line in self.lines())

    def lines(self) -> Iterator[str]:
        """Yields the sentences, and an empty line after each document."""
        for document in self.documents:
            yield from document.sentences
            yield ""

    def sentences_by_package(self) -> dict[str, int]:
        """Returns the number of sentences by package, the largest first, and equal ones by name."""
        counts = collections.Counter()
        for document in self.documents:
            counts[document.package] += len(document.sentences)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def summary(self) -> str:
        """Renders the numbers of documents, sentences and bytes as one line."""
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_bytes:,} bytes"

    def split(self, held_out: set[str]) -> tuple["Corpus", "Corpus"]:
        """Returns the documents whose modules are not in `held_out`, and those whose modules are."""
        parts = Corpus([]), Corpus([])
        for document in self.documents:
            parts[document.module in held_out].documents.append(document)
        for function in self.functions:
            parts[function[0] in held_out].functions.append(function)
        return parts


def hash_of(text: str) -> int:
    """Returns 64 random-looking bits, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def label_sentences(
    training: Corpus,
    held_out: Corpus,
    num_packages: int = 8,
    max_training_rows: int = 1000,
    max_dev_rows: int = 250,
    min_words: int = 8,
    hide_names: bool = True,
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Makes a classification task from a split corpus: which package does this sentence come from?

    The labels are the packages with the most sentences among those with held-out documents, with equally many rows
    each. No dev row is also a training row.

    Args:
        training: documents for the training rows.
        held_out: documents for the dev rows.
        num_packages: maximum number of labels.
        max_training_rows, max_dev_rows: maximum number of rows per label.
        min_words: minimum length; shorter sentences could come from anywhere.
        hide_names: whether to leave out sentences that name a label, which would give the answer away.

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
