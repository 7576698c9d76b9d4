"""Writes English prose as text to train on and held-out text, for recipes/laptop/run.sh.

    python recipes/laptop/prose.py runs/laptop/text --documents=/usr/share/doc --documents=/usr/share/man \\
        --tests=data/sst2 --tests=data/rte

Takes the docstrings of all installed packages, and the HTML, XML, POD, man pages and plain text below each
`--documents`, gzip-compressed or not. Writes `train_*.txt` and `held_out_*.txt`, a tenth of the modules or files: a
sentence on a line, a blank line between documents. Prints the size of each.

Kept are sentences of 5 to 60 words without marks of code of which a sixth are common English words, each where it
occurs first. Left out are those that share eight words in a row with a file below a `--tests`.
"""

import argparse
import gzip
import html.parser
import os
import re
import sys
from collections.abc import Iterator

from keras_bert.files import write_lines
from tasks.quickstart import corpus, docstrings
from tasks.quickstart.corpus import Document

_COMMON = frozenset(
    "a all an and are as at be but by can for from had has have he if in is it its may not of on or that the their "
    "they this to was we when which will with you your".split()
)
_COMMON_SHARE = 1 / 6
_MAX_BYTES = 20_000_000  # Larger files are indexes and tables.
_SHARED_WORDS = 8
_TEXTS = re.compile(r"\.(?:html?|xhtml|xml|page|pod|txt|rst|md|dict\.dz|[1-8][a-z]*)(?:\.gz)?$|^[^.]+$")
_INLINE = frozenset("a abbr app b cite cmd code em emphasis guilabel i kbd key link q span strong tt u var".split())
_SKIPPED = frozenset("head script style pre programlisting screen table nav header footer".split())
_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\xa0": " ", "–": "-", "—": "-"})
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_MAN_FONTS = re.compile(r"\\f(?:\[\w*\]|\(\w\w|\w)|\\[&|^/,]")
_POD_FONTS = re.compile(r"[BCEFILSXZ]<+\s?([^<>]*?)\s?>+")


class _Prose(html.parser.HTMLParser):
    """Collects the text of HTML or XML, with a blank line around blocks."""

    def __init__(self):
        super().__init__()
        self.texts, self.skipped = [], []

    def handle_starttag(self, tag, attrs):
        if tag in _SKIPPED:
            self.skipped.append(tag)
        elif tag not in _INLINE:
            self.texts.append("\n\n")

    def handle_endtag(self, tag):
        if tag in self.skipped:
            del self.skipped[self.skipped.index(tag) :]
        elif tag not in _INLINE:
            self.texts.append("\n\n")

    def handle_data(self, data):
        if not self.skipped:
            self.texts.append(data)


def _without_markup(name: str, text: str) -> str:
    if re.search(r"\.(?:html?|xhtml|xml|page)(?:\.gz)?$", name):
        parser = _Prose()
        parser.feed(text)
        return "".join(parser.texts)
    if re.search(r"\.[1-8][a-z]*(?:\.gz)?$", name):
        text = re.sub(r"^\.(?:B|I|BR|IR|RB|RI|BI|IB|SM|Nm|Em|Sy) ", "", text, flags=re.MULTILINE)
        return _MAN_FONTS.sub("", re.sub(r"^[.'].*$", "\n", text, flags=re.MULTILINE)).replace("\\-", "-")
    if ".pod" in name:
        return _POD_FONTS.sub(r"\1", re.sub(r"^=\w+.*$", "\n", text, flags=re.MULTILINE))
    return text


def _is_english(sentence: str) -> bool:
    words = sentence.lower().split()
    return sum(word in _COMMON for word in words) >= _COMMON_SHARE * len(words)


def read_documents(directory: str) -> Iterator[Document]:
    """Yields the English sentences of the files below a directory, a document each; its folders are the labels."""
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not _TEXTS.search(name) or os.path.islink(path) or os.path.getsize(path) > _MAX_BYTES:
                continue
            with open(path, "rb") as file:
                content = file.read()
            if content[:2] == b"\x1f\x8b":
                content = gzip.decompress(content)
            text = _without_markup(name, content.decode("utf-8", errors="replace").translate(_QUOTES))
            paragraphs = map(docstrings.sentences, _BLANK_LINE.split(text))
            if sentences := [sentence for paragraph in paragraphs for sentence in paragraph if _is_english(sentence)]:
                label = os.path.relpath(path, directory).split(os.sep)[0]
                yield Document(label, path, path, sentences)


def word_runs(text: str) -> Iterator[str]:
    """Yields every eight words in a row, without case or punctuation."""
    words = re.findall(r"\w+", text.lower())
    for start in range(len(words) - _SHARED_WORDS + 1):
        yield " ".join(words[start : start + _SHARED_WORDS])


def main(directory: str, documents: list[str], tests: list[str]) -> None:
    """Writes and describes the text."""
    known = set()
    for folder in tests:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = file.read()
            # CoNLL has a word a line.
            known.update(word_runs(re.sub(r"\t\S+$", "", text, flags=re.MULTILINE) if ".conll" in name else text))
    sources = {"docstrings": docstrings.collect(num_packages=None, max_sentences=sys.maxsize)}
    if documents:
        sources["manuals"] = [document for folder in documents for document in read_documents(folder)]
    seen: set[str] = set()
    for source, source_documents in sources.items():
        num_sentences = sum(len(document.sentences) for document in source_documents)
        kept = []
        for document in corpus.without_repeats(source_documents):
            sentences = [text for text in document.sentences if text not in seen and known.isdisjoint(word_runs(text))]
            seen.update(sentences)
            if sentences:
                kept.append(document._replace(sentences=sentences))
        print(
            f"{source}: {num_sentences:,} sentences, "
            f"of which {sum(len(document.sentences) for document in kept):,} are kept"
        )
        for part, texts in zip(("train", "held_out"), corpus.split(kept), strict=True):
            write_lines(os.path.join(directory, f"{part}_{source}.txt"), corpus.lines_of(texts))
            print(f"{source}, {part}: {corpus.summary(texts)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for name in ("--documents", "--tests"):
        parser.add_argument(name, action="append", default=[])
    main(**vars(parser.parse_args()))
