"""Entity tags: the schemes IOB1, IOB2 and BILOU, the entities that tags mark, and entity-level F1.

A tag is "O", or a prefix, "-" and an entity type ("B-location"). With a single type the prefix alone is enough ("B").
A tag list belongs to one sentence.

    scheme  entity of one, two, three tokens    rule
    iob1    I     I I     I I I                 B- only where an entity directly follows another of its type
    iob2    B     B I     B I I                 B- starts every entity
    bilou   U     B L     B I L                 L- ends an entity, U- is a whole one (also read: IOBES's E- and S-)

Shapes: S sentences.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.answers.rules import OUTSIDE, join_tag, split_tag

SCHEMES = ("iob1", "iob2", "bilou")
_PREFIXES = {"iob1": "BI", "iob2": "BI", "bilou": "BILU"}
_SYNONYMS = {"E": "L", "S": "U"}  # IOBES to BILOU.
_OF_BILOU_ALONE = re.compile("[LUES](-.+)?").fullmatch


class Entity(NamedTuple):
    """An entity: tokens `[start, end)` of a sentence."""

    type: str
    start: int
    end: int


# === Schemes ===


def find_fault(tags: Sequence[str], scheme: str) -> tuple[int, str] | None:
    """Finds the first tag that breaks the rules of its scheme.

    Args:
        tags: tags of one sentence.
        scheme: one of `SCHEMES`.

    Returns:
        `(index of the token, reason)`, or None if all tags are valid.

    >>> find_fault(["O", "I-location"], "iob2")
    (1, "I-location follows O; expected B-location at an entity's first token")
    """
    return next(_faults(tags, scheme), None)


def _faults(tags: Sequence[str], scheme: str) -> Iterator[tuple[int, str]]:
    """Yields all faults as `find_fault` returns them, and ignores tags of another scheme as predecessors."""
    before, pair_before = OUTSIDE, (OUTSIDE, "")
    for index, tag in enumerate([*tags, OUTSIDE]):
        try:
            pair = _read(tag, scheme)
        except ValueError:
            allowed = ", ".join(f"{prefix}-" for prefix in _PREFIXES[scheme])
            yield index, f"{tag!r} is no tag of {scheme}; expected O, or one of {allowed} and a type"
            continue
        fault = _fault(scheme, *pair_before, *pair)
        if fault and index == len(tags):
            yield index - 1, f"{before} stands at the end of the sentence; {fault}"
        elif fault:
            yield index, f"{tag} follows {before}; {fault}"
        before, pair_before = tag, pair


def _read(tag: str, scheme: str) -> tuple[str, str]:
    prefix, entity_type = split_tag(tag)
    if scheme == "bilou":
        prefix = _SYNONYMS.get(prefix, prefix)
    if prefix not in _PREFIXES[scheme] + OUTSIDE:
        raise ValueError(f"`tag` must be of the scheme {scheme}. Received: tag={tag!r}")
    return prefix, entity_type


def _fault(scheme: str, before: str, type_before: str, prefix: str, entity_type: str) -> str | None:
    """Returns the expected tag if the scheme does not allow this one after the tag before."""
    follows = before != OUTSIDE and type_before == entity_type  # An entity of this type ends, or goes on, here.
    if scheme == "iob1" and prefix == "B" and not follows:
        return f"expected {join_tag('I', entity_type)}: in iob1 B- only separates two entities of one type"
    if scheme == "iob2" and prefix == "I" and not follows:
        return f"expected {join_tag('B', entity_type)} at an entity's first token"
    is_open, goes_on = before in ("B", "I"), prefix in ("I", "L")
    if scheme == "bilou" and is_open and not (goes_on and follows):
        return f"expected {join_tag('I', type_before)} or {join_tag('L', type_before)}, since an entity is open"
    if scheme == "bilou" and goes_on and not is_open:
        return f"expected {join_tag('B', entity_type)} or {join_tag('U', entity_type)} at an entity's first token"
    return None


def guess_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """Guesses the scheme of tag lists; without any entity it is "iob2".

    A prefix that only BILOU has decides. Otherwise the scheme with fewer violations wins: I- at an entity's first token
    violates iob2, B- where I- would do violates iob1. A string that is not a tag violates both.
    """
    if any(_OF_BILOU_ALONE(tag) for tags in sentences for tag in tags):
        return "bilou"
    iob1, iob2 = (sum(1 for tags in sentences for _ in _faults(tags, scheme)) for scheme in ("iob1", "iob2"))
    return "iob1" if iob1 < iob2 else "iob2"


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """Converts the tags of a sentence, in which `find_fault` finds none, to IOB2."""
    pairs = [_read(tag, scheme) for tag in tags]
    plain = [join_tag({"L": "I", "U": "B"}.get(prefix, prefix), entity_type) for prefix, entity_type in pairs]
    return entities_to_tags(find_entities(plain), len(tags))


# === Entities ===


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Finds the entities that IOB1 or IOB2 tags mark.

    Accepts any sequence, as conlleval and seqeval do by default: an entity starts at every B-, and at an I- that does
    not continue an entity of its type.

    Args:
        tags: tags of one sentence.

    Raises:
        ValueError: a string is not a tag, or has a prefix other than B- and I-.

    >>> find_entities(["B-person", "I-person", "O", "I-location"])
    [Entity(type='person', start=0, end=2), Entity(type='location', start=3, end=4)]
    """
    entities: list[Entity] = []
    for index, tag in enumerate(tags):
        prefix, entity_type = _read(tag, "iob2")
        if prefix == "I" and entities and (entities[-1].type, entities[-1].end) == (entity_type, index):
            entities[-1] = entities[-1]._replace(end=index + 1)
        elif prefix != OUTSIDE:
            entities.append(Entity(entity_type, index, index + 1))
    return entities


def entities_to_tags(entities: Iterable[Entity], num_tokens: int) -> list[str]:
    """Returns the IOB2 tags of a sentence of `num_tokens` tokens; the entities must not overlap."""
    tags = [OUTSIDE] * num_tokens
    for entity_type, start, end in entities:
        tags[start:end] = [join_tag("I", entity_type)] * (end - start)
        tags[start] = join_tag("B", entity_type)
    return tags


# === Scores ===


def count_entities(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Counts entities by sentence. A correct one has the type, first and last token of a gold one.

    Args:
        gold: S tag lists.
        predicted: S tag lists of the same lengths.

    Returns:
        A dict from entity type, in sorted order, to counts: int64, shape (S, 3), correct, predicted and gold entities.

    Raises:
        ValueError: a string is not a tag.

    >>> count_entities([["B-person", "O", "B-place"]], [["B-person", "O", "O"]])
    {'person': array([[1, 1, 1]]), 'place': array([[0, 0, 1]])}
    """
    counts: dict[str, np.ndarray] = {}
    for row, pair in enumerate(zip(gold, predicted, strict=True)):
        expected, actual = (set(find_entities(tags)) for tags in pair)
        for column, entities in enumerate((expected & actual, actual, expected)):
            for entity in entities:
                counts.setdefault(entity.type, np.zeros((len(gold), 3), np.int64))[row, column] += 1
    return dict(sorted(counts.items()))


def token_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Returns the share of tokens with the right tag; 0.0 without tokens."""
    is_right = [a == b for tags in zip(gold, predicted, strict=True) for a, b in zip(*tags, strict=True)]
    return sum(is_right) / max(1, len(is_right))
