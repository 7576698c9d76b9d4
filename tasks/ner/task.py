"""Tagging of named entities or other spans: a linear layer on each word's first sub-token (paper, section 5.3)."""

from collections.abc import Sequence

from keras_bert.errors import InputError
from tasks.fine_tuning.encoding import format_labels
from tasks.fine_tuning.entity_task import EntityTask
from tasks.fine_tuning.word_task import WordSpec, leave_out_faulty
from tasks.ner.settings import NerSettings
from tasks.text import tags as tag_schemes
from tasks.text.bad_rows import BadRows
from tasks.text.conll import Documents

SCHEME = "iob2"


class NerSpec(WordSpec):
    """Spec of a trained tagger.

    Attributes:
        labels: class i is labels[i]: "O", or B- or I- and a type.
        scheme: tag scheme of the labels.
    """

    labels: list[str]
    scheme: str = SCHEME


class Ner(EntityTask):
    """Tagging of words in CoNLL files."""

    Settings = NerSettings
    Spec = NerSpec
    name = "token_classification"
    command = "bert-ner"
    title = "Named entities"

    def make_spec(self, train):
        return NerSpec(labels=make_labels(train), **self.settings.spec_values)

    def foreign_spec(self, source, labels, num_outputs, parts):
        return NerSpec(labels=check_labels(labels, source), **self.settings.spec_values)

    def match(self, part, spec, bad_rows):
        if part.split != "dev":
            return part
        return part.with_rows(leave_out_unknown(part.rows, spec.labels, bad_rows))

    def describe_model(self, trained):
        return {"labels": trained.spec.labels}


# === Labels ===


def make_labels(documents: Documents) -> list[str]:
    """Returns the labels for the entity types of a file: "O", then B- and I- of each type, sorted.

    Raises:
        InputError: the file has no entities.
    """
    types = entity_types(documents.tags)
    if not types:
        raise InputError(
            f"{documents.path}: no token is tagged as an entity. Expected some to learn from. Check --tag_column."
        )
    return [tag_schemes.OUTSIDE, *(tag_schemes.join_tag(prefix, name) for name in types for prefix in "BI")]


def entity_types(tags: Sequence[str]) -> list[str]:
    """Returns the sorted entity types of tags or labels, without "O"."""
    return sorted({tag_schemes.split_tag(tag)[1] for tag in set(tags) if tag != tag_schemes.OUTSIDE})


def check_labels(labels: list[str] | None, source: str) -> list[str]:
    """Checks the labels of a model that was trained elsewhere.

    Raises:
        InputError: there are no labels, or one is neither "O" nor B- or I- and a type.
    """
    expected = 'Expected "O", and B- and I- of each entity type'
    if not labels:
        raise InputError(f"{source}: the checkpoint does not name its labels (id2label). {expected}.")
    for label in labels:
        # Any tag is a valid sentence by itself in one of the two schemes.
        if all(tag_schemes.find_fault([label], scheme) for scheme in ("iob1", "iob2")):
            raise InputError(f"{source}: the label {label!r} is no tag. {expected}.")
    return labels


def leave_out_unknown(documents: Documents, labels: Sequence[str], bad_rows: BadRows) -> Documents:
    """Reports and leaves out the sentences with entities of unknown types.

    Raises:
        InputError: there are some, and `bad_rows` refuses them.
    """
    known = entity_types(labels)

    def find_fault(tag: str) -> str | None:
        name = None if tag == tag_schemes.OUTSIDE else tag_schemes.split_tag(tag)[1]
        return None if name in (None, *known) else f"unknown entity type {name!r}. Expected {format_labels(known)}."

    return leave_out_faulty(documents, find_fault, bad_rows)
