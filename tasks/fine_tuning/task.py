"""The interface between a task and the session that trains, evaluates and applies it.

A task says where its data lie, how they become token ids, which model answers, and how answers are scored and written.
`tasks.fine_tuning.session` does the rest. No TensorFlow here: a wrong file is reported within a second.
"""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tasks.fine_tuning.examples import Examples, compute_outputs, compute_token_outputs, make_train_dataset
from tasks.fine_tuning.model_files import load_model
from tasks.fine_tuning.settings import FineTuningSettings
from tasks.report.page import Mistake, Score
from tasks.text.bad_rows import BadRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """What a trained model needs beside weights and vocabulary; `task.json` holds its fields.

    Attributes:
        sequence_length: tokens of a sequence at most, special tokens included.
    """

    sequence_length: int


class Part(NamedTuple):
    """The data of one file.

    Attributes:
        split: "train", "dev" or "test".
        rows: of a type of the task's own, with the attribute `path`, and `checksum()`, a number that depends on the
            rows and not on where they lie.
        name: "" for the first file of a split; a prefix for the figures of a further one, such as "mismatched".
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
    """Token ids of a file, and the task's own record of where they come from.

    Attributes:
        examples: the sequences.
        lengths: tokens of each row before truncation, int, shape (N,), for the report.
        per_token: whether the model answers for every token, not for every example.
        source: the task's own alignment between rows and tokens.
    """

    examples: Examples
    lengths: np.ndarray
    per_token: bool = False
    source: Any = None

    @property
    def num_examples(self) -> int:
        """Number of examples that an epoch counts."""
        return self.examples.num_examples

    def make_train_dataset(self, batch_size: int, seed: int, start_step: int, num_steps: int, length: int | None):
        """Makes the training batches; see `tasks.fine_tuning.examples.make_train_dataset`."""
        return make_train_dataset(self.examples, batch_size, seed, start_step, num_steps, length=length)

    def compute_outputs(self, model, batch_size: int, description: str) -> np.ndarray:
        """Applies a model: float32, shape (N, ...), or (T, C) where it answers for every token."""
        compute = compute_token_outputs if self.per_token else compute_outputs
        return compute(model, self.examples, batch_size, description)


class Trained(NamedTuple):
    """A model with all that its answers need.

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
        outputs: of `Encoded.compute_outputs`.
    """

    trained: Trained
    part: Part
    encoded: Encoded
    outputs: np.ndarray


@dataclasses.dataclass
class Evaluation:
    """Scores of a model's answers, and what the report shows of them.

    Attributes:
        figures: figures by name; those of `Task.metrics` first, `loss` last.
        intervals: 95% bootstrap intervals [low, high] by the figures' names.
        details: further JSON values for `metrics.json`: counts, figures per class.
        scores: headline figures of the report.
        confusion, predictions, mistakes, tables, notes: as in `tasks.report.page.Report`.
        found: values of the spec that were found here, such as a threshold; the trained model keeps them.
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


class Predictions(NamedTuple):
    """Files that were written, and what `metrics.json` tells of them (names begin with `test_`)."""

    paths: list[str]
    details: dict[str, Any] = {}


class Task(abc.ABC):
    """A fine-tuning task; one instance serves one run.

    Class attributes:
        Settings: dataclass of the command's settings.
        Spec: dataclass of what `task.json` holds.
        name: the task's name in `task.json`.
        command: the command's name, for messages.
        metric: figure by which the best of several models is chosen.
        stopping_metric: figure of `checkpoint_figures` by which early stopping decides; a loss is better lower.
        unit: what a row is called in messages and notes.
        long_examples: what happens to an example that is too long, for the report.
        decimals: digits of printed figures behind the point.
        printed: figures to print after an evaluation, beside those with intervals.
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
        """Returns the task of one run of a search."""
        return type(self)(settings)

    @property
    def title(self) -> str:
        """The report's heading."""
        return self.name.replace("_", " ").capitalize()

    # === Data: without TensorFlow ===

    @abc.abstractmethod
    def read(self, split: str, bad_rows: BadRows) -> list[Part]:
        """Reads and checks the files of "train", "dev" or "test"; rows that cannot be used go to `bad_rows`.

        Raises:
            InputError: a file is missing or cannot be used; the message names file and line.
        """

    @abc.abstractmethod
    def make_spec(self, train: Any) -> Any:
        """Derives the spec of a new model from the settings and the training rows.

        Raises:
            InputError: the rows cannot be learned from, such as a single class.
        """

    def adjust_spec(self, spec: Any) -> Any:
        """Returns a loaded model's spec with what the settings of this call override."""
        return spec

    def match(self, part: Part, spec: Any, bad_rows: BadRows) -> Part:
        """Checks a file against the spec; rows that do not fit, such as unknown labels, go to `bad_rows`."""
        return part

    def num_examples(self, rows: Any) -> int | None:
        """Returns the number of examples in `rows`, or None where only the tokenizer tells."""
        return None

    def describe(self, rows: Any, encoded: Encoded, spec: Any) -> dict[str, Any]:
        """Returns what `metrics.json` tells of the training data, JSON values whose names begin with `train_`."""
        return {"train_rows": encoded.num_examples}

    def describe_model(self, trained: "Trained") -> dict[str, Any]:
        """Returns what `metrics.json` tells of the model, JSON values by name, such as its labels."""
        return {}

    # === Model ===

    @abc.abstractmethod
    def model_class(self) -> type | None:
        """Returns the class of the model, one of `keras_bert.models`; None for a model of the task's own."""

    def model_arguments(self, spec: Any) -> dict[str, Any]:
        """Returns the arguments of its constructor, beside the backbone."""
        return {}

    def build_training_model(self, origin, settings: FineTuningSettings, spec: Any) -> tuple[Any, Any]:
        """Builds the model to train and returns it with its encoder; see `tasks.fine_tuning.start.build_model`."""
        from tasks.fine_tuning.start import build_model

        return build_model(origin, settings, self.model_class(), self.model_arguments(spec))

    def model_to_save(self, trained: Trained):
        """Returns the model that `model/` holds."""
        return trained.model

    def load(self, directory: str) -> tuple[Any, Any]:
        """Returns the model that answers and the tokenizer, of a directory with what `model_to_save` returned."""
        model, tokenizer, _ = load_model(directory, self.name, self.command)
        return model, tokenizer

    @abc.abstractmethod
    def num_outputs(self, spec: Any) -> int:
        """Returns the size of the model's last axis, by which a loaded model is checked against `task.json`."""

    @abc.abstractmethod
    def objective(self):
        """Returns the `tasks.engine.train_step.Objective` to minimize."""

    def foreign_spec(self, source: str, labels: list[str] | None, num_outputs: int, parts: list[Part]) -> Any:
        """Makes the spec of a checkpoint that was fine-tuned elsewhere.

        Args:
            source: where it comes from, for messages.
            labels: the checkpoint's class names, or None.
            num_outputs: units of its head.
            parts: the files of this call.
        """
        raise NotImplementedError

    def identity(self, part: Part, spec: Any) -> dict[str, Any]:
        """Returns what, beside settings and encoder, must stay when a stopped training continues."""
        return {**dataclasses.asdict(spec), "train_rows_checksum": part.rows.checksum()}

    @abc.abstractmethod
    def encode(self, part: Part, trained: Trained) -> Encoded:
        """Turns a file into token ids, and labels where it has them, showing a progress bar."""

    # === Answers ===

    @abc.abstractmethod
    def evaluate(self, answers: Answers, results: dict) -> Evaluation:
        """Scores the answers to a labelled file.

        Args:
            answers: of one file.
            results: what `metrics.json` holds so far, the description of the training data among it.
        """

    def checkpoint_figures(self, answers: Answers) -> dict[str, float]:
        """Scores the answers during training: `stopping_metric` among others."""
        return self.evaluate(answers, {}).figures

    @abc.abstractmethod
    def write_predictions(self, answers: Answers, output_dir: str) -> Predictions:
        """Writes the answers to a file of the split "test"."""

    def notes(self, spec: Any) -> list[str]:
        """Returns sentences that open the report."""
        return []
