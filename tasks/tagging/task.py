"""Tagging of named entities or other spans: a linear layer on each word's first sub-token (paper, section 5.3)."""

import dataclasses

from tasks.fine_tuning.entity_task import EntitySettings, EntityTask
from tasks.fine_tuning.word_task import WordSpec
from tasks.tagging import data

SCHEME = "iob2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingSpec(WordSpec):
    """Spec of a trained tagger.

    Attributes:
        labels: class i is labels[i]: "O", or B- or I- and a type.
        scheme: tag scheme of the labels.
    """

    labels: list[str]
    scheme: str = SCHEME


class Tagging(EntityTask):
    """Tagging of words in CoNLL files."""

    Settings = EntitySettings
    Spec = TaggingSpec
    name = "token_classification"
    command = "bert-ner"
    title = "Named entities"

    def make_spec(self, train):
        return TaggingSpec(labels=data.make_labels(train), **self.settings.spec_values)

    def foreign_spec(self, source, labels, num_outputs, parts):
        return TaggingSpec(labels=data.check_labels(labels, source), **self.settings.spec_values)

    def match(self, part, spec, bad_rows):
        if part.split != "dev":
            return part
        return part._replace(rows=data.leave_out_unknown(part.rows, spec.labels, bad_rows))

    def describe_model(self, trained):
        return {"labels": trained.spec.labels}
