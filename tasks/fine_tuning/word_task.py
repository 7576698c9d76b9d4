"""Base of the tasks that answer for each word of a CoNLL file, at its first sub-token (section 5.3 of the paper).

Shapes: N words of a file, T tokens of all windows, C outputs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import keras_bert
from keras_bert.answers.rules import check_stride
from tasks.fine_tuning import task
from tasks.fine_tuning.data_check import Content
from tasks.fine_tuning.examples import Examples
from tasks.fine_tuning.settings import SplitSettings
from tasks.settings import changeable
from tasks.text.bad_rows import BadRows
from tasks.text.conll import DELIMITERS, Documents, leave_out, read_conll
from tasks.text.word_windows import DOCUMENT_CONTEXT, Windows, make_windows

EXTENSIONS = (".conll", ".txt", ".tsv", ".jsonl", ".parquet")
PREDICTIONS = "predictions.conll"
_CONTEXT_NOTES = {
    "none": "Each sentence was read alone, without its document.",
    "document": "Each sentence was read with as much of its document around it as a sequence holds.",
}


class WordSettings(SplitSettings):
    """Settings of a task on words."""

    tag_column: int = changeable(-1, "Column of the tag, from 0 (the token's); negative: from the end.")
    data_dir: str | None = changeable(None, "Directory with files named train, dev and test, such as dev.conll.")
    delimiter: str | None = changeable(
        None,
        "Separator of the columns; default: tab if the first row has one, else white space.",
        choices=DELIMITERS,
        subject="data",
    )
    # Context and stride are part of the spec, which identifies a training by them.
    document_context: str = changeable(
        "none",
        "document: fill each sequence with the text around its sentence; a file without -DOCSTART- is one document.",
        choices=DOCUMENT_CONTEXT,
    )
    doc_stride: int | None = changeable(
        None,
        "Sub-tokens between the windows of a sentence longer than --max_seq_length; default: half of the latter.",
        at_least=1,
    )

    @property
    def spec_values(self) -> dict[str, Any]:
        """The fields of a `WordSpec`."""
        return {
            "sequence_length": self.max_seq_length,
            "document_context": self.document_context,
            "doc_stride": check_stride(self.max_seq_length, self.doc_stride),
        }

    def read_file(self, path: str, bad_rows: BadRows, needs_tags: bool) -> Documents:
        """Reads a file of words, with entity tags if the task's settings have a `tag_scheme`; see `read_conll`."""
        options = {name: getattr(self, name, None) for name in ("tag_column", "delimiter", "tag_scheme")}
        return read_conll(path, needs_tags=needs_tags, bad_rows=bad_rows, **options)


class WordSpec(task.Spec):
    """Spec of a model that answers for words.

    Attributes:
        document_context, doc_stride: as in `tasks.text.word_windows.make_windows`.
    """

    document_context: str
    doc_stride: int


class WordTask(task.Task):
    """Base of the tasks on words."""

    unit = "sentences"
    long_examples = "read in several windows"
    least_words = 0  # A sentence of one word is normal, as in a table of results.

    def number(self, tags: list[str], spec: WordSpec) -> np.ndarray:
        """Returns the labels for the objective, shape (N,). Negative integers and NaN get weight 0."""
        raise NotImplementedError

    def read(self, split, bad_rows):
        path = self.settings.find_file(split, (split,), EXTENSIONS, any_extension=True)
        return [task.Part(split, self.settings.read_file(path, bad_rows, needs_tags=split != "test"))]

    def groups(self, rows):
        return rows.document_numbers if self.settings.document_context == "document" else rows.split(rows.tokens)

    def content(self, rows):
        lines, tags = rows.split(rows.lines), rows.tags and list(map(tuple, rows.split(rows.tags)))
        texts = [(" ".join(words),) for words in rows.split(rows.tokens)]
        return Content(texts, tags, lambda sentence: f"{rows.path}:{lines[sentence][0]}")

    def take_rows(self, rows, kept):
        return rows.take(kept)

    def model_class(self):
        return keras_bert.BertTokenClassifier

    def describe(self, rows, encoded, spec):
        return {
            "train_sentences": rows.num_sentences,
            "train_words": len(rows.tokens),
            "train_windows": encoded.source.num_windows,
        }

    def encode(self, part, trained):
        from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer

        documents, spec = part.rows, trained.spec
        tokenizer = PythonBertTokenizer.of(trained.tokenizer)
        windows = make_windows(documents, tokenizer, spec.sequence_length, spec.doc_stride, spec.document_context)
        labels = None if documents.tags is None else self.number(documents.tags, spec)
        return task.Encoded(make_examples(windows, labels), windows.sentence_lengths, windows, windows.places)

    def window_details(self, answers: task.Answers) -> dict[str, int]:
        """Describes the windows of an evaluated file for `metrics.json`."""
        windows, limit = answers.encoded.source, answers.trained.spec.sequence_length
        long = int(np.count_nonzero(windows.sentence_lengths > limit))
        return {"windows": windows.num_windows, "long_sentences": long}

    def notes(self, spec):
        return [_CONTEXT_NOTES[spec.document_context]]


def leave_out_faulty(documents: Documents, find_fault: Callable[[str], str | None], bad_rows: BadRows) -> Documents:
    """Reports and leaves out the sentences with a bad tag, for which `find_fault` returns the reason.

    Raises:
        InputError: `bad_rows` refuses them, or no sentence is left.
    """
    faults = []
    for tags, lines in zip(documents.split(documents.tags), documents.split(documents.lines), strict=True):
        reasons = ((line, find_fault(tag)) for line, tag in zip(lines, tags, strict=True))
        faults.append(next((fault for fault in reasons if fault[1]), None))
    return leave_out(documents, faults, bad_rows)


def make_examples(windows: Windows, labels: np.ndarray | None = None) -> Examples:
    """Turns windows into examples.

    Args:
        windows: windows over N words.
        labels: labels of the words, shape (N,), or None. Negative integers and NaN have weight 0.

    Returns:
        `Examples` with the token labels `labels`, of the dtype of `labels`, and `weights`, float32: 1 at the first
        sub-token of each word, in the window that scores it, and 0 elsewhere.
    """
    token_labels = {}
    if labels is not None:
        is_known = labels >= 0 if labels.dtype.kind == "i" else np.isfinite(labels)
        values, weights = np.zeros(len(windows.token_ids), labels.dtype), np.zeros(len(windows.token_ids), np.float32)
        values[windows.places] = np.where(is_known, labels, 0)
        weights[windows.places] = is_known
        token_labels = {"labels": values, "weights": weights}
    segment_ids = np.zeros_like(windows.token_ids)
    return Examples(windows.token_ids, segment_ids, windows.row_splits, token_labels=token_labels)
