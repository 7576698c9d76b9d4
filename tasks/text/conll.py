"""Files of tagged tokens in CoNLL's columns: one token a line, a blank line between sentences.

The first column is the token, `tag_column` the tag; a line whose first column begins with -DOCSTART- begins a
document, as in CoNLL-2003.

Shapes: N tokens, S sentences, D documents of a file.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_lines
from tasks.text import tags as tag_schemes
from tasks.text.bad_rows import BadRows

DELIMITERS = ("whitespace", "tab")
DOCUMENT_START = "-DOCSTART-"
_BLANKS = " \t"


class Documents(NamedTuple):
    """The tokens of one file, in the file's order.

    Attributes:
        path: the file.
        tokens: N words.
        tags: N tags, in IOB2 whatever the file's scheme; None for a file without tags.
        lines: N line numbers, counted from 1.
        sentence_splits: int64, shape (S + 1,): sentence i is tokens `[sentence_splits[i], sentence_splits[i + 1])`.
        document_splits: int64, shape (D + 1,), counts sentences; a file without -DOCSTART- lines is one document.
        scheme: the file's own, one of `tasks.text.tags.SCHEMES`; None without tags.
        delimiter: one of `DELIMITERS`.
        has_document_lines: whether there are -DOCSTART- lines.
    """

    path: str
    tokens: list[str]
    tags: list[str] | None
    lines: list[int]
    sentence_splits: np.ndarray
    document_splits: np.ndarray
    scheme: str | None
    delimiter: str
    has_document_lines: bool

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_splits) - 1

    def checksum(self) -> int:
        """Returns a number that depends on words, tags, sentences and documents, not on the file."""
        splits = (self.sentence_splits.tolist(), self.document_splits.tolist())
        return zlib.crc32(repr((self.tokens, self.tags, splits)).encode())

    def split(self, values: Sequence) -> list[list]:
        """Cuts N values, such as `tokens` or `tags`, into sentences: S lists."""
        limits = self.sentence_splits.tolist()
        return [list(values[start:stop]) for start, stop in zip(limits, limits[1:], strict=False)]

    def take(self, kept: np.ndarray) -> "Documents":
        """Leaves sentences out: `kept` is bool, shape (S,). A document that loses all of them goes too."""
        lengths = np.diff(self.sentence_splits)
        places = np.flatnonzero(np.repeat(kept, lengths))
        numbers = np.repeat(np.arange(len(self.document_splits) - 1), np.diff(self.document_splits))[kept]
        return self._replace(
            tokens=[self.tokens[place] for place in places],
            tags=None if self.tags is None else [self.tags[place] for place in places],
            lines=[self.lines[place] for place in places],
            sentence_splits=_splits(lengths[kept]),
            document_splits=_splits(np.unique(numbers, return_counts=True)[1]),
        )


class _Row(NamedTuple):
    line: int
    fields: list[str]


# === Reading ===


def read_conll(
    path: str,
    *,
    tag_column: int = -1,
    delimiter: str | None = None,
    tag_scheme: str | None = "auto",
    needs_tags: bool = True,
    bad_rows: BadRows,
) -> Documents:
    """Reads a file of tagged tokens; a sentence with a bad row is left out as a whole, and counted once.

    A row is bad if it has another number of columns than most, an empty token or tag, or a tag that breaks the rules
    of the scheme.

    Args:
        path: the file, UTF-8.
        tag_column: number of the column with the tag, from 0; negative ones count from the end.
        delimiter: "whitespace": blanks and tabs, as in CoNLL-2003; "tab": one tab, as in WNUT-17, so that tokens may
            hold blanks; None: "tab" if the first row has one.
        tag_scheme: one of `tasks.text.tags.SCHEMES`; "auto" tells it by the content (`tasks.text.tags.guess_scheme`);
            None: the column holds no tags of spans, and stays as it is.
        needs_tags: False takes a file of one column too, which then has no tags.
        bad_rows: collects what is wrong.

    Raises:
        InputError: a bad row, where `bad_rows` refuses them; no tag column; no sentence, or no sound one.
    """
    if delimiter is None:
        delimiter = _guess_delimiter(path)
    sentences, starts = _read_sentences(path, delimiter)
    width = Counter(len(row.fields) for rows in sentences for row in rows).most_common(1)[0][0]
    column = _find_tag_column(path, sentences[0][0], width, tag_column, needs_tags)
    documents = _join(path, sentences, starts, delimiter, column)
    faults = [_find_fault(rows, width, column) for rows in sentences]
    if column is not None and tag_scheme is not None:
        by_sentence = documents.split(documents.tags)
        sound = [tags for tags, fault in zip(by_sentence, faults, strict=True) if fault is None]
        scheme = tag_schemes.guess_scheme(sound) if tag_scheme == "auto" else tag_scheme
        faults = [
            fault or _find_tag_fault(rows, tags, scheme)
            for rows, tags, fault in zip(sentences, by_sentence, faults, strict=True)
        ]
        tags = [
            tags if fault else tag_schemes.convert_tags(tags, scheme)
            for tags, fault in zip(by_sentence, faults, strict=True)
        ]
        documents = documents._replace(tags=[tag for sentence in tags for tag in sentence], scheme=scheme)
    return leave_out(documents, faults, bad_rows)


def leave_out(documents: Documents, faults: Sequence[tuple[int, str] | None], bad_rows: BadRows) -> Documents:
    """Reports faulty sentences and leaves them out.

    Args:
        documents: S sentences.
        faults: of each sentence (line, what is wrong with its first bad row), or None.
        bad_rows: where they are reported.

    Raises:
        InputError: `bad_rows` refuses them, or no sentence is left.
    """
    for fault in faults:
        if fault is not None:
            bad_rows.add(f"{documents.path}:{fault[0]}", fault[1])
    bad_rows.finish()
    kept = np.array([fault is None for fault in faults])
    if not kept.any():
        raise InputError(f"{documents.path}: none of the {len(kept)} sentences can be used. See the rows left out.")
    return documents if kept.all() else documents.take(kept)


def _guess_delimiter(path: str) -> str:
    for _, text in read_lines(path):
        if text.strip(_BLANKS) and not text.startswith(DOCUMENT_START):
            return "tab" if "\t" in text else "whitespace"
    return "whitespace"


def _read_sentences(path: str, delimiter: str) -> tuple[list[list[_Row]], list[int]]:
    """Returns the rows of each sentence, and the numbers of the sentences at -DOCSTART- lines."""
    sentences, starts, rows = [], [], []
    for line, text in _with_end(path):
        is_blank, is_start = not text.strip(_BLANKS), text.startswith(DOCUMENT_START)
        if not is_blank and not is_start:
            fields = text.split("\t") if delimiter == "tab" else re.split(f"[{_BLANKS}]+", text.strip(_BLANKS))
            rows.append(_Row(line, fields))
            continue
        if rows:
            sentences.append(rows)
            rows = []
        if is_start:
            starts.append(len(sentences))
    if not sentences:
        raise InputError(f"{path}: the file holds no sentences. Expected a token and its tag a line.")
    return sentences, starts


def _with_end(path: str) -> Iterator[tuple[int, str]]:
    yield from read_lines(path)
    yield 0, ""


def _find_tag_column(path: str, row: _Row, width: int, tag_column: int, needs_tags: bool) -> int | None:
    if width == 1 and not needs_tags:
        return None
    if width == 1:
        raise InputError(f"{path}:{row.line}: expected a token and its tag, found one column. Check --delimiter.")
    column = tag_column + width if tag_column < 0 else tag_column
    if not 0 < column < width:
        raise InputError(
            f"{path}:{row.line}: no tag column {tag_column} beside the token: there are {width} columns, counted from "
            "0. Check --tag_column and --delimiter."
        )
    return column


def _find_fault(rows: list[_Row], width: int, column: int | None) -> tuple[int, str] | None:
    for line, fields in rows:
        if len(fields) != width:
            return line, f"expected {width} columns, found {len(fields)}. Check for a missing or an extra delimiter."
        if not fields[0].strip():
            return line, "the token is empty. Fill it or remove the row."
        if column is not None and not fields[column].strip():
            return line, "the tag is empty. Write O for a token outside of all entities."
    return None


def _find_tag_fault(rows: list[_Row], tags: list[str], scheme: str) -> tuple[int, str] | None:
    fault = tag_schemes.find_fault(tags, scheme)
    return fault and (rows[fault[0]].line, f"{fault[1]}. Correct the tag, or name the right --tag_scheme.")


def _join(path: str, sentences: list[list[_Row]], starts: list[int], delimiter: str, column: int | None) -> Documents:
    """Makes `Documents` of raw rows: the tags as they stand, "" where a row lacks them."""
    rows = [row for sentence in sentences for row in sentence]
    limits = sorted({0, *starts, len(sentences)})
    return Documents(
        path=path,
        tokens=[row.fields[0] for row in rows],
        tags=None if column is None else [_tag(row, column) for row in rows],
        lines=[row.line for row in rows],
        sentence_splits=_splits([len(sentence) for sentence in sentences]),
        document_splits=np.array(limits, np.int64),
        scheme=None,
        delimiter=delimiter,
        has_document_lines=bool(starts),
    )


def _tag(row: _Row, column: int) -> str:
    return row.fields[column].strip(_BLANKS) if column < len(row.fields) else ""


def _splits(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


# === Writing ===


def write_conll(path: str, documents: Documents, *columns: Sequence[str]) -> None:
    """Writes the tokens and further columns, whole or not at all, as `read_conll` reads them.

    Args:
        path: the file to write.
        documents: gives tokens, sentences, -DOCSTART- lines if it has any, and the delimiter: a tab, or a blank.
        columns: N values each, such as the gold tags and the predicted ones.
    """
    delimiter = "\t" if documents.delimiter == "tab" else " "
    rows = list(zip(documents.tokens, *columns, strict=True))
    starts = set(documents.document_splits[:-1].tolist()) if documents.has_document_lines else ()
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for number, sentence in enumerate(documents.split(rows)):
            if number in starts:
                file.write(delimiter.join([DOCUMENT_START, *[tag_schemes.OUTSIDE] * len(columns)]) + "\n\n")
            file.writelines(delimiter.join(row) + "\n" for row in sentence)
            file.write("\n")
