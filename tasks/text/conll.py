"""Reads and writes CoNLL files of tagged tokens, with a token per line and a blank line between sentences.

The first column holds the token, `tag_column` the tag. As in CoNLL-2003, a line that starts with -DOCSTART- starts a
document.

Shapes: N tokens, S sentences, D documents of a file.
"""

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import read_lines, write_lines
from tasks.text import tags as tag_schemes
from tasks.text.annotations import read_annotations
from tasks.text.bad_rows import BadRows

DELIMITERS = ("whitespace", "tab")
DOCUMENT_START = "-DOCSTART-"
_BLANKS = " \t"


class Documents(NamedTuple):
    """The tokens of one file, in the file's order.

    Attributes:
        path: the file.
        tokens: N words.
        tags: N tags, converted to IOB2; None for a file without tags.
        lines: N line numbers, from 1.
        sentence_splits: int64, shape (S + 1,); sentence i is tokens `[sentence_splits[i], sentence_splits[i + 1])`.
        document_splits: int64, shape (D + 1,), offsets into the sentences; without -DOCSTART- lines the file is one
            document.
        delimiter: one of `DELIMITERS`.
        has_document_lines: whether the file has -DOCSTART- lines.
    """

    path: str
    tokens: list[str]
    tags: list[str] | None
    lines: list[int]
    sentence_splits: np.ndarray
    document_splits: np.ndarray
    delimiter: str
    has_document_lines: bool

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_splits) - 1

    @property
    def document_numbers(self) -> np.ndarray:
        """The document of each sentence, counted from 0: int64, shape (S,)."""
        return np.repeat(np.arange(len(self.document_splits) - 1), np.diff(self.document_splits))

    def checksum(self) -> int:
        """Returns a CRC-32 of tokens, tags, sentence and document boundaries; the file's path does not matter."""
        splits = (self.sentence_splits.tolist(), self.document_splits.tolist())
        return zlib.crc32(repr((self.tokens, self.tags, splits)).encode())

    def split(self, values: Sequence) -> list[list]:
        """Splits N values, such as `tokens` or `tags`, into S lists, one per sentence."""
        return [list(values[start:stop]) for start, stop in itertools.pairwise(self.sentence_splits.tolist())]

    def take(self, kept: np.ndarray) -> "Documents":
        """Keeps the sentences where `kept`, bool of shape (S,), is true; documents left empty are dropped."""
        lengths = np.diff(self.sentence_splits)
        is_kept = np.repeat(kept, lengths)
        return self._replace(
            tokens=list(itertools.compress(self.tokens, is_kept)),
            tags=None if self.tags is None else list(itertools.compress(self.tags, is_kept)),
            lines=list(itertools.compress(self.lines, is_kept)),
            sentence_splits=splits_of(lengths[kept]),
            document_splits=splits_of(np.unique(self.document_numbers[kept], return_counts=True)[1]),
        )


def splits_of(lengths: Sequence[int]) -> np.ndarray:
    """Returns the offsets of n consecutive pieces of the given lengths, and their end: int64, shape (n + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


_Row = tuple[int, list[str]]  # Line number and fields.


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
    """Reads a file of tagged tokens; JSON Lines and Parquet by `read_annotations`.

    A row is bad if its number of columns differs from that of most rows, if its token or tag is empty, or if its tag
    breaks the rules of the scheme. A sentence with bad rows is left out as a whole and counted once.

    Args:
        path: the file, UTF-8.
        tag_column: index of the column with the tag; negative ones count from the end.
        delimiter: "whitespace": blanks and tabs, as in CoNLL-2003; "tab": one tab, as in WNUT-17, so that tokens may
            contain blanks; None: "tab" if the first row has a tab.
        tag_scheme: one of `tasks.text.tags.SCHEMES`; "auto" for `tasks.text.tags.guess_scheme`; None if the column
            holds values other than entity tags, which are not checked.
        needs_tags: False also accepts a file of a single column, which has no tags.
        bad_rows: collects the bad rows.

    Raises:
        InputError: `bad_rows` refuses a bad row; there is no tag column; or no sentence can be used.
    """
    if path.lower().endswith((".jsonl", ".parquet")):
        sentences, starts, delimiter = read_annotations(path, needs_tags, bad_rows), [], "tab"
    else:
        sentences, starts, delimiter = _read_sentences(path, delimiter)
    width = Counter(len(fields) for rows in sentences for _, fields in rows).most_common(1)[0][0]
    column = _find_tag_column(path, sentences[0][0], width, tag_column, needs_tags)
    faults = [_find_fault(rows, width, column) for rows in sentences]
    tags = None if column is None else [[_tag(fields, column) for _, fields in rows] for rows in sentences]
    if tags is not None and tag_scheme is not None:
        sound = [number for number, fault in enumerate(faults) if fault is None]
        guess = tag_scheme == "auto"
        scheme = tag_schemes.guess_scheme([tags[number] for number in sound]) if guess else tag_scheme
        for number in sound:
            if fault := tag_schemes.find_fault(tags[number], scheme):
                line, _ = sentences[number][fault[0]]
                faults[number] = (line, f"{fault[1]}. Correct the tag, or name the right --tag_scheme.")
            else:
                tags[number] = tag_schemes.convert_tags(tags[number], scheme)
    rows = list(itertools.chain.from_iterable(sentences))
    documents = Documents(
        path=path,
        tokens=[fields[0] for _, fields in rows],
        tags=None if tags is None else list(itertools.chain.from_iterable(tags)),
        lines=[line for line, _ in rows],
        sentence_splits=splits_of([len(rows) for rows in sentences]),
        document_splits=np.array(sorted({0, *starts, len(sentences)}), np.int64),
        delimiter=delimiter,
        has_document_lines=bool(starts),
    )
    return leave_out(documents, faults, bad_rows)


def leave_out(documents: Documents, faults: Sequence[tuple[int, str] | None], bad_rows: BadRows) -> Documents:
    """Reports the sentences with bad rows and leaves them out.

    Args:
        documents: S sentences.
        faults: for each sentence `(line, reason)` of its first bad row, or None.
        bad_rows: collects the bad rows.

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


def _read_sentences(path: str, delimiter: str | None) -> tuple[list[list[_Row]], list[int], str]:
    """Returns the rows of each sentence, the indices of the sentences after -DOCSTART- lines, and the delimiter."""
    sentences, starts, rows = [], [], []
    for line, text in itertools.chain(read_lines(path), [(0, "")]):  # The end of the file ends a sentence too.
        is_blank, is_start = not text.strip(_BLANKS), text.startswith(DOCUMENT_START)
        if not is_blank and not is_start:
            delimiter = delimiter or ("tab" if "\t" in text else "whitespace")
            fields = text.split("\t") if delimiter == "tab" else re.split(f"[{_BLANKS}]+", text.strip(_BLANKS))
            rows.append((line, fields))
            continue
        if rows:
            sentences.append(rows)
            rows = []
        if is_start:
            starts.append(len(sentences))
    if not sentences:
        raise InputError(f"{path}: the file holds no sentences. Expected a token and its tag on each line.")
    return sentences, starts, delimiter


def _find_tag_column(path: str, row: _Row, width: int, tag_column: int, needs_tags: bool) -> int | None:
    if width == 1 and not needs_tags:
        return None
    if width == 1:
        raise InputError(f"{path}:{row[0]}: expected a token and its tag, found one column. Check --delimiter.")
    column = tag_column + width if tag_column < 0 else tag_column
    if not 0 < column < width:
        raise InputError(
            f"{path}:{row[0]}: no tag column {tag_column} beside the token: there are {width} columns, counted from "
            "0. Check --tag_column and --delimiter."
        )
    return column


def _find_fault(rows: list[_Row], width: int, column: int | None) -> tuple[int, str] | None:
    for line, fields in rows:
        if len(fields) != width:
            reason = f"expected {width} columns, as most lines have, found {len(fields)}"
            return line, f"{reason}. A line is a token and its tag; check for a missing or an extra delimiter."
        if not fields[0].strip():
            return line, "the token is empty. Fill it or remove the row."
        if column is not None and not fields[column].strip():
            return line, "the tag is empty. Write O for a token outside of all entities, _ for one without a number."
    return None


def _tag(fields: list[str], column: int) -> str:
    """Returns the tag of a row, "" if the row is too short to have one."""
    return fields[column].strip(_BLANKS) if column < len(fields) else ""


# === Writing ===


def write_conll(path: str, documents: Documents, answers: Sequence[str]) -> None:
    """Writes the columns token, the file's own tag (if it has tags), and answer, in the format that `read_conll` reads.

    The file is written atomically.

    Args:
        path: the file to write.
        documents: the tokens, sentences and -DOCSTART- lines to write; its delimiter becomes a tab or a blank.
        answers: N values, such as the predicted tags.
    """
    delimiter = "\t" if documents.delimiter == "tab" else " "
    columns = [answers] if documents.tags is None else [documents.tags, answers]
    rows = list(zip(documents.tokens, *columns, strict=True))
    starts = set(documents.document_splits[:-1].tolist()) if documents.has_document_lines else ()
    lines = []
    for number, sentence in enumerate(documents.split(rows)):
        if number in starts:
            lines += [delimiter.join([DOCUMENT_START, *[tag_schemes.OUTSIDE] * len(columns)]), ""]
        lines += [*map(delimiter.join, sentence), ""]
    write_lines(path, lines)
