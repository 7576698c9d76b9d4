"""The interface between a task and the session that trains, evaluates and applies it.

A task defines its data files, their encoding as token ids, its model, and how answers are scored and written.
`tasks.fine_tuning.session` does the rest. This module does not import TensorFlow, so that a wrong file is reported
within a second.
"""

import abc
import copy
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tasks.fine_tuning.examples import Examples, compute_outputs, make_train_dataset
from tasks.fine_tuning.model_files import load_model
from tasks.fine_tuning.settings import FineTuningSettings
from tasks.report.page import Mistake, Score
from tasks.settings import Values
from tasks.text.bad_rows import BadRows


class Spec(Values):
    """The values that a trained model needs besides weights and vocabulary. `task.json` holds its fields.

    Attributes:
        sequence_length: maximum tokens of a sequence, including special tokens.
    """

    sequence_length: int


class Part(NamedTuple):
    """The data of one file.

    Attributes:
        split: "train", "dev" or "test"; "validation" for the rows held out of the training file.
        rows: of the task's own type, with the attribute `path` and a method `checksum()`, whose number depends on the
            rows but not on their path.
        name: "" for the first file of a split. For any other, a prefix of its figures, such as "mismatched".
    """

    split: str
    rows: Any
    name: str = ""

    @property
    def title(self) -> str:
        return f"{self.split} {self.name}".strip()

    def figure(self, name: str) -> str:
        """Returns the name of one of this file's figures in `metrics.json`: `accuracy`, `mismatched_accuracy`."""
        return f"{self.name}_{name}" if self.name else name


@dataclasses.dataclass
class Encoded:
    """Token ids of a file, and the task's own record of their origin.

    Attributes:
        examples: the sequences.
        lengths: tokens of each row before truncation, int, shape (N,), for the report.
        per_token: whether the model answers for every token rather than for every example.
        source: the task's own alignment of rows and tokens.
    """

    examples: Examples
    lengths: np.ndarray
    per_token: bool = False
    source: Any = None

    @property
    def num_examples(self) -> int:
        """Number of examples in an epoch."""
        return self.examples.num_examples

    def make_train_dataset(self, batch_size: int, seed: int, start_step: int, num_steps: int, length: int | None):
        """Makes the training batches; see `tasks.fine_tuning.examples.make_train_dataset`."""
        return make_train_dataset(self.examples, batch_size, seed, start_step, num_steps, length=length)

    def compute_outputs(self, model, batch_size: int, description: str) -> np.ndarray:
        """Applies a model: float32, shape (N, ...), or (T, C) if it answers for every token."""
        return compute_outputs(model, self.examples, batch_size, description, self.per_token)


class Trained(NamedTuple):
    """A model, with its tokenizer and spec.

    Attributes:
        model: keras.Model; None while it is being built.
        tokenizer: BertTokenizer.
        spec: the task's `Spec`.
    """

    model: Any
    tokenizer: Any
    spec: Any


class Answers(NamedTuple):
    """A model's answers to one file.

    Attributes:
        trained: the model that gave them.
        part: the file.
        encoded: its token ids.
        outputs: return value of `Encoded.compute_outputs`.
    """

    trained: Trained
    part: Part
    encoded: Encoded
    outputs: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """True class numbers or scores, shape (N,), of a task with one label per example."""
        return self.encoded.examples.labels["labels"]


@dataclasses.dataclass
class Evaluation:
    """Scores of a model's answers, and their contents for the report.

    Attributes:
        figures: figures by name, the main one first and `loss` last.
        intervals: 95% bootstrap intervals [low, high], by the names of their figures.
        details: further JSON values for `metrics.json`, such as counts and figures per class.
        scores: headline figures of the report.
        confusion, predictions, mistakes, tables, notes: as in `tasks.report.page.Report`.
        found: values of the spec that the evaluation determined, such as a threshold. The trained model keeps them.
        write: writes the answers to files, if the task keeps those of an evaluation; called on the chief alone.
    """

    figures: dict[str, float]
    intervals: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    scores: list[Score] = dataclasses.field(default_factory=list)
    confusion: tuple[list[str], np.ndarray] | None = None
    predictions: tuple[np.ndarray, np.ndarray] | None = None
    mistakes: list[Mistake] = dataclasses.field(default_factory=list)
    tables: list[tuple[str, list[str], list[list]]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    found: dict[str, Any] = dataclasses.field(default_factory=dict)
    write: Callable[[], None] | None = None


class Task(abc.ABC):
    """A fine-tuning task; one instance serves one run.

    Class attributes:
        Settings: dataclass of the command's settings.
        Spec: dataclass of what `task.json` holds.
        name: the task's name in `task.json`.
        command: the command's name, for messages.
        metric: figure that chooses the best of several models; see `metric_of`.
        stopping_metric: figure of `checkpoint_figures` that early stopping watches. Lower is better for a loss.
        unit: name of the rows in messages and notes.
        long_examples: treatment of examples that are too long, for the report.
        decimals: decimals of printed figures.
        printed: figures to print after an evaluation, besides those with intervals.
    """

    Settings: ClassVar[type[FineTuningSettings]]
    Spec: ClassVar[type]
    name: ClassVar[str]
    command: ClassVar[str]
    metric: ClassVar[str]
    stopping_metric: ClassVar[str]
    unit: ClassVar[str] = "rows"
    long_examples: ClassVar[str] = "cut"
    decimals: ClassVar[int] = 4
    printed: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(self, settings: FineTuningSettings):
        self.settings = settings

    def for_run(self, settings: FineTuningSettings) -> "Task":
        """Returns the task of one run of a search, which knows what this one has read."""
        run = copy.copy(self)
        run.settings = settings
        return run

    @property
    def title(self) -> str:
        """The report's heading."""
        return self.name.replace("_", " ").capitalize()

    # === Data: without TensorFlow ===

    @abc.abstractmethod
    def read(self, split: str, bad_rows: BadRows) -> list[Part]:
        """Reads and checks the files of "train", "dev" or "test". Unusable rows go to `bad_rows`.

        Raises:
            InputError: a file is missing or unusable; the message names file and line.
        """

    @abc.abstractmethod
    def make_spec(self, train: Any) -> Any:
        """Derives the spec of a new model from the settings and the training rows.

        Raises:
            InputError: the rows cannot be learned from, as with a single class.
        """

    def adjust_spec(self, spec: Any) -> Any:
        """Returns a loaded model's spec, overridden by the settings of this call."""
        return spec

    def match(self, part: Part, spec: Any, bad_rows: BadRows) -> Part:
        """Checks a file against the spec. Rows that do not fit, such as those with unknown labels, go to `bad_rows`."""
        return part

    def groups(self, rows: Any) -> Sequence[Hashable]:
        """Returns the group of each row. Rows that depend on one another, such as those of one text, share a group.

        A group is held out of the training rows as a whole.

        Raises:
            InputError: rows like these cannot be evaluated.
        """
        return range(len(next(iter(_columns(rows).values()))))

    def take_rows(self, rows: Any, kept: np.ndarray) -> Any:
        """Returns the rows of a file, a named tuple whose lists are its columns, where `kept`, bool (N,), is true."""
        columns = _columns(rows)
        return rows._replace(**{name: list(itertools.compress(column, kept)) for name, column in columns.items()})

    def metric_of(self, part: Part) -> str:
        """Returns the figure of a file that chooses the best of several models."""
        return self.metric

    def stopping_metric_of(self, part: Part) -> str:
        """Returns the figure of a file that early stopping watches."""
        return self.stopping_metric

    def num_examples(self, rows: Any) -> int | None:
        """Returns the number of examples in `rows`, or None if it depends on the tokenizer."""
        return None

    def describe(self, rows: Any, encoded: Encoded, spec: Any) -> dict[str, Any]:
        """Describes the training data for `metrics.json`: JSON values whose names begin with `train_`."""
        return {"train_rows": encoded.num_examples}

    def describe_model(self, trained: "Trained") -> dict[str, Any]:
        """Describes the model for `metrics.json`: JSON values by name, such as its labels."""
        return {}

    # === Model ===

    @abc.abstractmethod
    def model_class(self) -> type | None:
        """Returns the class of the model, one of `keras_bert.models`, or None if the task builds its own."""

    def model_arguments(self, spec: Any) -> dict[str, Any]:
        """Returns the arguments of the model's constructor besides the backbone."""
        return {}

    def build_training_model(self, origin, settings: FineTuningSettings, spec: Any) -> tuple[Any, Any]:
        """Builds the model to train. Returns it and its encoder, as `tasks.fine_tuning.start.build_model` does."""
        from tasks.fine_tuning.start import build_model

        return build_model(origin, settings, self.model_class(), self.model_arguments(spec))

    def model_to_save(self, trained: Trained):
        """Returns the model to save in `model/`."""
        return trained.model

    def load(self, directory: str) -> tuple[Any, Any]:
        """Loads the model that answers, and the tokenizer, from a directory with the model of `model_to_save`."""
        model, tokenizer, _ = load_model(directory, self.name, self.command)
        return self.to_answer(model), tokenizer

    def to_answer(self, model):
        """Returns the model that answers, from the one in `model/` or in a checkpoint."""
        return model

    def num_outputs(self, spec: Any) -> int | None:
        """Returns the size of the model's last axis, to check a loaded model against `task.json`; None: unknown."""
        return self.model_arguments(spec)["num_classes"]

    @abc.abstractmethod
    def objective(self):
        """Returns the `tasks.engine.train_step.Objective` to minimize."""

    def foreign_spec(self, source: str, labels: list[str] | None, num_outputs: int, parts: list[Part]) -> Any:
        """Makes the spec of a checkpoint that was fine-tuned elsewhere, by default as that of a new model.

        Args:
            source: name of the checkpoint, for messages.
            labels: its class names, or None.
            num_outputs: units of its head.
            parts: files of this call.
        """
        return self.make_spec(parts[0].rows)

    def identity(self, part: Part, spec: Any) -> dict[str, Any]:
        """Returns the values, besides settings and encoder, that must not change when a stopped training continues."""
        return {**dataclasses.asdict(spec), "train_rows_checksum": part.rows.checksum()}

    @abc.abstractmethod
    def encode(self, part: Part, trained: Trained) -> Encoded:
        """Turns a file into token ids, and labels if it has them, showing a progress bar."""

    # === Answers ===

    @abc.abstractmethod
    def evaluate(self, answers: Answers, results: dict) -> Evaluation:
        """Scores the answers to a labelled file.

        Args:
            answers: answers to one file.
            results: content of `metrics.json` so far, including the description of the training data.
        """

    def checkpoint_figures(self, answers: Answers) -> dict[str, float]:
        """Scores the answers during training. The figures include `stopping_metric_of` the file."""
        return self.evaluate(answers, {}).figures

    @abc.abstractmethod
    def write_predictions(self, answers: Answers, output_dir: str) -> tuple[list[str], dict[str, Any]]:
        """Writes the answers to a file of the split "test".

        Returns:
            Paths of the written files, and details for `metrics.json`, whose names begin with `test_`.
        """

    def notes(self, spec: Any) -> list[str]:
        """Returns sentences that open the report."""
        return []


def _columns(rows: Any) -> dict[str, list]:
    return {name: column for name, column in rows._asdict().items() if isinstance(column, list)}
