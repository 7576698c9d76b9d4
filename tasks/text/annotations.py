"""Reads annotated texts from JSON Lines or Parquet: words with tags, or texts with the positions of entities."""

import itertools
import re
from collections.abc import Iterator

from keras_bert.answers.rules import OUTSIDE
from keras_bert.tokenization.normalizer import is_punctuation
from tasks.text.bad_rows import BadRows
from tasks.text.rows import Broken, open_rows, read_usable

_TAGS = ("tags", "ner_tags")
_SPANS = ("spans", "entities", "label", "labels")
_EXPECTED = f"a list of tags in one of {_TAGS}, or of entities in one of {_SPANS}"
_has_break = re.compile(r"[\t\r\n]").search  # Would end a column or row of the predictions.


def read_annotations(path: str, needs_tags: bool, bad_rows: BadRows) -> list[list[tuple[int, list[str]]]]:
    """Reads a file whose rows are objects of one of two kinds.

    - `tokens` and `tags` (or `ner_tags`), as in Hugging Face's data sets: two lists of equal length.
    - `text` and `spans` (or `entities`, `label`, `labels`), as Prodigy, doccano and spaCy write them. Each span is a
      list of start, end and label, or an object with the keys `start`, `end` (or `start_offset`, `end_offset`) and
      `label`. Offsets count characters; the end is exclusive. The text is split at white space, around punctuation, and
      where an entity starts or ends.

    Args:
        path: the file, `.jsonl` in UTF-8 or `.parquet`.
        needs_tags: False also accepts `tokens` and `text` alone.
        bad_rows: collects rows of neither kind, rows without a word, and rows with a tab or a line break in a word or
            tag.

    Returns:
        One list per row, of `(number of the row, [token, tag])` for each token, or of `(number of the row, [token])`
        without tags.

    Raises:
        InputError: the file cannot be read, or holds no usable row; or `bad_rows` refuses it.
    """

    def read_row(line: int, row: dict) -> list[tuple[int, list[str]]]:
        fields = _fields(row, needs_tags)
        if not fields:
            raise Broken("expected a text of at least one word, found none. Fill it or remove the row.")
        if broken := next(filter(_has_break, itertools.chain.from_iterable(fields)), None):
            raise Broken(f"expected tokens and tags without tabs, on one line, found {broken!r}. Correct it.")
        return [(line, columns) for columns in fields]

    return read_usable(open_rows(path), read_row, bad_rows, f"{_EXPECTED}, in each row")[2]


def _fields(row: dict, needs_tags: bool) -> list[list[str]]:
    """Returns [token, tag] or [token] of each token; raises Broken."""
    text, tokens = row.get("text"), row.get("tokens")
    spans, tags = (next((row[key] for key in keys if row.get(key) is not None), None) for keys in (_SPANS, _TAGS))
    if isinstance(text, str) and (spans is not None or tokens is None):
        if spans is None and needs_tags:
            raise Broken(f"no entities. Expected {_EXPECTED}; an empty one if there are none.")
        return list(_tokens_of(text, spans))
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise Broken('expected a text as "text", or a list of words as "tokens".')
    if tags is None and not needs_tags:
        return [[token] for token in tokens]
    if not isinstance(tags, list) or len(tags) != len(tokens):
        raise Broken(f"no tag for each of the {len(tokens)} tokens. Expected {_EXPECTED}.")
    return [[token, str(tag)] for token, tag in zip(tokens, tags, strict=True)]


def _tokens_of(text: str, spans: list | None) -> Iterator[list[str]]:
    """Yields [token, tag] of each token, in IOB2; [token] if `spans` is None. Raises Broken."""
    if spans is not None and not isinstance(spans, list):
        raise Broken(f"expected a list of entities, found {type(spans).__name__}.")
    places = sorted(_span(text, span) for span in spans or ())
    for before, after in itertools.pairwise(places):
        if after[0] < before[1]:
            both = " and ".join(f"{text[start:end]!r} ({label})" for start, end, label in (before, after))
            raise Broken(f"two entities overlap: {both}. Expected at most one at each character.")
    cuts = [0, *itertools.chain.from_iterable(place[:2] for place in places), len(text)]
    labels = [None, *itertools.chain.from_iterable((label, None) for *_, label in places)]
    for (start, end), label in zip(itertools.pairwise(cuts), labels, strict=True):
        prefix = "B"
        for word in _words(text[start:end]):
            yield [word] if spans is None else [word, OUTSIDE if label is None else f"{prefix}-{label}"]
            prefix = "I"


def _span(text: str, span) -> tuple[int, int, str]:
    values = span
    if isinstance(span, dict):
        values = [span.get(key, span.get(f"{key}_offset")) for key in ("start", "end")] + [span.get("label")]
    if not (isinstance(values, list) and len(values) == 3 and isinstance(values[2], str) and values[2].strip()):
        raise Broken(f"expected an entity as [start, end, label], found {span!r}.")
    start, end, label = values
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
        raise Broken(f"expected an entity's start and end within 0 to {len(text)}, found {start!r} to {end!r}.")
    if not text[start:end].strip():
        raise Broken(f"the entity at {start} to {end} is white space.")
    return start, end, label.strip()


def _words(text: str) -> list[str]:
    return "".join(f" {char} " if is_punctuation(char) else char for char in text).split()
