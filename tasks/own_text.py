"""The quickstart's text when it is the user's own: files as labels, documents between blank lines. No TensorFlow."""

import hashlib
import os

from keras_bert.errors import InputError
from keras_bert.files import read_lines
from tasks.docstrings import Corpus, Document


def read_corpus(paths: list[str]) -> Corpus:
    """Reads text files, one sentence a line and a blank line between documents.

    A file stands for a package: its name, without the ending, is the label of its sentences; files of one name are
    told apart by their folders.

    Raises:
        InputError: there is no sentence in any of them, or a line is not UTF-8.
    """
    documents = []
    for label, path in zip(_labels(paths), paths, strict=True):
        sentences: list[str] = []
        index = 0
        for _, line in [*read_lines(path), (0, "")]:
            text = " ".join(line.split())
            if text:
                sentences.append(text)
            elif sentences:
                documents.append(Document(label, f"{label}:{index}", sentences))
                sentences = []
                index += 1
    if not documents:
        raise InputError(f"{', '.join(paths)}: no text. Expected one sentence a line.")
    return Corpus(documents)


def _labels(paths: list[str]) -> list[str]:
    """The shortest ends of the paths, without the files' endings, that tell all of them apart."""
    parts = [os.path.splitext(os.path.abspath(path))[0].split(os.sep) for path in paths]
    depth = 1
    while len({tuple(names[-depth:]) for names in parts}) < len(paths) and depth < max(map(len, parts)):
        depth += 1
    labels = ["/".join(names[-depth:]) for names in parts]
    return labels if len(set(labels)) == len(paths) else list(paths)  # a.txt beside a.md


def split(corpus: Corpus, held_out_share: float = 0.1) -> tuple[Corpus, Corpus]:
    """Splits a corpus into training and held-out documents: of every label its share, at least one of two or more.

    Which ones, a hash of label and number decides: neither the folder nor the other files have a say.

    Raises:
        InputError: fewer than two documents would remain on either side (a random next sentence needs another one).
    """
    held_out_modules = set()
    for label in corpus.sentences_by_package():
        own = sorted(
            (document.module for document in corpus.documents if document.package == label),
            key=lambda module: hashlib.sha256(module.encode()).digest(),
        )
        if len(own) > 1:
            held_out_modules.update(own[: max(1, round(held_out_share * len(own)))])
    training, held_out = [], []
    for document in corpus.documents:
        (held_out if document.module in held_out_modules else training).append(document)
    if min(len(training), len(held_out)) < 2:
        raise InputError(
            f"--input_file: {corpus.num_documents} documents are too few to hold a tenth of them out. Give some "
            "dozens, with a blank line between documents."
        )
    return Corpus(training), Corpus(held_out)


def checksum(corpus: Corpus) -> str:
    """A fingerprint of the text: another one where a file was edited, added or removed."""
    digest = hashlib.sha256()
    for document in corpus.documents:
        digest.update("\n".join([document.module, *document.sentences, ""]).encode())
    return digest.hexdigest()[:16]
