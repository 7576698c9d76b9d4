"""Makes the quickstart's corpus from the user's own text: files are labels, and blank lines end documents."""

import hashlib
import itertools
import os

from keras_bert.errors import InputError
from keras_bert.files import absolute, read_lines
from tasks.quickstart.corpus import Corpus, Document, hash_of


def read_corpus(paths: list[str]) -> Corpus:
    """Reads text files with one sentence per line and a blank line between documents.

    A file takes the place of a package: its name, without the extension, labels its sentences. Files of the same name
    are told apart by their folders.

    Raises:
        InputError: none of the files has a sentence, or a line is not UTF-8.
    """
    documents = []
    for label, path in zip(_labels(paths), paths, strict=True):
        texts = (" ".join(line.split()) for _, line in read_lines(path))
        found = [list(sentences) for is_text, sentences in itertools.groupby(texts, bool) if is_text]
        documents += [Document(label, f"{label}:{index}", sentences) for index, sentences in enumerate(found)]
    if not documents:
        raise InputError(f"{', '.join(paths)}: no text. Expected one sentence a line.")
    return Corpus(documents)


def _labels(paths: list[str]) -> list[str]:
    """Returns the shortest path suffixes, without file extensions, that tell all paths apart."""
    parts = [os.path.splitext(absolute(path))[0].split(os.sep) for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(names[-depth:]) for names in parts]
        if len(set(labels)) == len(paths):
            return labels
    return list(paths)  # a.txt beside a.md


def split(corpus: Corpus, held_out_share: float = 0.1) -> tuple[Corpus, Corpus]:
    """Splits a corpus into training and held-out documents.

    Every label with two or more documents holds out its share, at least one. A hash of label and number chooses the
    documents, independently of the folder and of other files.

    Raises:
        InputError: one side would have fewer than two documents; a random next sentence needs a second one.
    """
    held_out = set()
    for label in corpus.sentences_by_package():
        own = sorted((document.module for document in corpus.documents if document.package == label), key=hash_of)
        if len(own) > 1:
            held_out.update(own[: max(1, round(held_out_share * len(own)))])
    parts = corpus.split(held_out)
    if min(part.num_documents for part in parts) < 2:
        raise InputError(
            f"--input_file: {corpus.num_documents} documents are too few to hold a tenth of them out. Give some "
            "dozens, with a blank line between documents."
        )
    return parts


def checksum(corpus: Corpus) -> str:
    """Returns a checksum of the text, which changes when a file is edited, added or removed."""
    digest = hashlib.sha256()
    for document in corpus.documents:
        digest.update("\n".join([document.module, *document.sentences, ""]).encode())
    return digest.hexdigest()[:16]
