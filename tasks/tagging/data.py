"""Labels of tagged words."""

from collections.abc import Sequence

from keras_bert.errors import InputError
from tasks.text import tags as tag_schemes
from tasks.text.bad_rows import BadRows
from tasks.text.conll import Documents, leave_out


def make_labels(documents: Documents) -> list[str]:
    """Makes the labels of the entity types of a file: "O", then B- and I- of each, sorted by type.

    Raises:
        InputError: the file has no entity.
    """
    types = entity_types(documents.tags)
    if not types:
        raise InputError(f"{documents.path}: no token is tagged as an entity. Expected some to learn from.")
    return [tag_schemes.OUTSIDE, *(tag_schemes.join_tag(prefix, name) for name in types for prefix in "BI")]


def entity_types(tags: Sequence[str]) -> list[str]:
    """Returns the types that tags, or labels, name: sorted, without "O"."""
    return sorted({tag_schemes.split_tag(tag)[1] for tag in set(tags) if tag != tag_schemes.OUTSIDE})


def check_labels(labels: list[str] | None, source: str) -> list[str]:
    """Checks the labels of a model that was trained elsewhere.

    Raises:
        InputError: there are none, or one is not "O", or B- or I- and a type.
    """
    expected = 'Expected "O", and B- and I- of each entity type'
    if not labels:
        raise InputError(f"{source}: the checkpoint does not name its labels (id2label). {expected}.")
    for label in labels:
        # In one scheme or the other this tag alone is a valid sentence, unless it is no tag.
        if all(tag_schemes.find_fault([label], scheme) for scheme in ("iob1", "iob2")):
            raise InputError(f"{source}: the label {label!r} is no tag. {expected}.")
    return labels


def leave_out_unknown(documents: Documents, labels: Sequence[str], bad_rows: BadRows) -> Documents:
    """Reports and leaves out the sentences with entities of a type that the labels do not have.

    Raises:
        InputError: there are some, and `bad_rows` refuses them.
    """
    known = entity_types(labels)
    shown = ", ".join(repr(name) for name in known[:20]) + (f", ... ({len(known)} in all)" if len(known) > 20 else "")
    faults = []
    for tags, lines in zip(documents.split(documents.tags), documents.split(documents.lines), strict=True):
        types = (tag_schemes.split_tag(tag)[1] if tag != tag_schemes.OUTSIDE else None for tag in tags)
        unknown = ((line, name) for line, name in zip(lines, types, strict=True) if name not in (None, *known))
        fault = next(unknown, None)
        faults.append(fault and (fault[0], f"unknown entity type {fault[1]!r}. Expected {shown}."))
    return leave_out(documents, faults, bad_rows)
