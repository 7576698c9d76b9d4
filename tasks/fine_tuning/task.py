"""Defines the interface between a task and the session that trains, evaluates and applies it.

A task has three parts: `TaskData` reads the files, `TaskModel` names the model and encodes the rows for it, and
`TaskScoring` scores and writes the answers. `tasks.fine_tuning.session` does the rest. A task is immutable: results of
a run are kept in the spec, in `Trained`, or in `Answers`. This module does not import TensorFlow, so that a wrong file
is reported within a second.
"""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tasks.fine_tuning.data_check import Content
from tasks.fine_tuning.examples import Examples, Predictor
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


@dataclasses.dataclass(frozen=True, eq=False)  # Hashed by identity: the same file may be read twice.
class Part:
    """The data of one file.

    Attributes:
        split: "train", "dev" or "test"; "validation" for the rows held out of the training file; "unlabelled" for
            rows that a student learns only by its teacher's answers.
        rows: an object of the task's own type. It has the attributes `path` and `lines`, with an item for each row, and
            a method `checksum()`, whose result depends on the rows but not on their path.
        name: "" for the first file of a split. For any other file, the prefix of its figures, such as "mismatched".
        is_predicted: whether the answers to a dev file are also written, like those to a test file.
    """

    split: str
    rows: Any
    name: str = ""
    is_predicted: bool = False

    @property
    def title(self) -> str:
        return f"{self.split} {self.name}".strip()

    def figure(self, name: str) -> str:
        """Returns the name of one of this file's figures in `metrics.json`: `accuracy`, `mismatched_accuracy`."""
        return f"{self.name}_{name}" if self.name else name

    def with_rows(self, rows: Any) -> "Part":
        return dataclasses.replace(self, rows=rows)


@dataclasses.dataclass
class Encoded:
    """Token ids of a file, and the task's own record of their origin.

    Attributes:
        examples: the sequences.
        lengths: number of tokens of each row before truncation, int, shape (N,), for the report.
        source: the task's own alignment of rows and tokens.
        places: indices of the tokens whose answers count, int, shape (P,); None: all T tokens count.
    """

    examples: Examples
    lengths: np.ndarray
    source: Any = None
    places: np.ndarray | None = None

    def compute_outputs(self, predictor: Predictor, batch_size: int, description: str) -> np.ndarray:
        """Applies a model. Returns float32, shape (N, ...), or (P, C) or (T, C) if it answers for each token."""
        outputs = predictor.compute_outputs(self.examples, batch_size, description)
        return outputs if self.places is None else outputs[self.places]


class Trained(NamedTuple):
    """A model, with its tokenizer and spec.

    Attributes:
        model: keras.Model; None while it is being built.
        tokenizer: BertTokenizer.
        spec: the task's `Spec`.
        encoder: addition of `TaskModel.prepare`, such as a frozen encoder; None if the model takes token ids.
    """

    model: Any
    tokenizer: Any
    spec: Any
    encoder: Any = None


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
        confusion, predictions, mistakes, tables, panels, notes: as in `tasks.report.page.Report`.
        examples: captioned texts of some rows, right or wrong, as in `Mistake`.
        chosen: values of the spec that the evaluation determined, such as a threshold. The trained model keeps them.
        write: writes the answers of an evaluation to a file and returns its path; None if the task keeps none. Called
            only on the chief.
    """

    figures: dict[str, float]
    intervals: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    scores: list[Score] = dataclasses.field(default_factory=list)
    confusion: tuple[list[str], np.ndarray] | None = None
    predictions: tuple[np.ndarray, np.ndarray] | None = None
    mistakes: list[Mistake] = dataclasses.field(default_factory=list)
    examples: list[list[tuple[str, str]]] = dataclasses.field(default_factory=list)
    tables: list[tuple[str, list[str], list[list]]] = dataclasses.field(default_factory=list)
    panels: list[tuple] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    chosen: dict[str, Any] = dataclasses.field(default_factory=dict)
    write: Callable[[], str] | None = None


class TaskData(abc.ABC):
    """The part of a task that reads files, without TensorFlow.

    Attributes:
        settings: settings of the run.
        Settings: dataclass of the command's settings.
        Spec: dataclass of the content of `task.json`.
        unit: name of the rows in messages and notes.
        long_examples: treatment of examples that are too long, for the report.
        least_words: rows with fewer words are reported before training.
    """

    settings: FineTuningSettings
    Settings: ClassVar[type[FineTuningSettings]]
    Spec: ClassVar[type]
    unit: ClassVar[str] = "rows"
    long_examples: ClassVar[str] = "cut"
    least_words: ClassVar[int] = 2

    @abc.abstractmethod
    def read(self, split: str, bad_rows: BadRows) -> list[Part]:
        """Reads and checks the files of "train", "dev" or "test". Unusable rows go to `bad_rows`.

        Raises:
            InputError: a file is missing or unusable; the message names file and line.
        """

    def recognize_columns(self) -> tuple[dict[str, Any], Sequence[str]]:
        """Returns the settings of columns that no flag names, by name, and all columns of the first file to read.

        Raises:
            InputError: no column or several columns may be meant; the message names them and the flag.
        """
        return {}, ()

    @abc.abstractmethod
    def make_spec(self, train: Any) -> Any:
        """Derives the spec of a new model from the settings and the training rows.

        Raises:
            InputError: the rows cannot be learned from, for example because there is a single class.
        """

    def adjust_spec(self, spec: Any) -> Any:
        """Returns a loaded model's spec, overridden by the settings of this call."""
        return spec

    def foreign_spec(self, source: str, labels: list[str] | None, num_outputs: int, parts: list[Part]) -> Any:
        """Makes the spec of a checkpoint that was fine-tuned elsewhere, by default like that of a new model.

        Args:
            source: name of the checkpoint, for messages.
            labels: class names in the checkpoint, or None.
            num_outputs: number of units of the checkpoint's head.
            parts: files of this call.
        """
        return self.make_spec(parts[0].rows)

    def match(self, part: Part, spec: Any, bad_rows: BadRows) -> Part:
        """Checks a file against the spec. Rows that do not fit, such as those with unknown labels, go to `bad_rows`."""
        return part

    def groups(self, rows: Any) -> Sequence[Hashable]:
        """Returns the group of each row. Rows that depend on one another, such as those of one text, share a group.

        A group is held out of the training rows as a whole.

        Raises:
            InputError: rows of this kind cannot be evaluated.
        """
        return range(len(rows.lines))

    def strata(self, rows: Any) -> Sequence[Hashable] | None:
        """Returns the stratum of each row, such as its label, or None. An equal share of every stratum is held out."""
        return None

    def content(self, rows: Any) -> Content | None:
        """Returns the content of the rows for the data check; None if they are not checked."""
        return None

    def take_rows(self, rows: Any, kept: np.ndarray) -> Any:
        """Returns the rows where `kept`, bool (N,), is true. `rows` is a named tuple whose lists are columns."""
        columns = {name: column for name, column in rows._asdict().items() if isinstance(column, list)}
        return rows._replace(**{name: list(itertools.compress(column, kept)) for name, column in columns.items()})


class TaskModel(abc.ABC):
    """The part of a task that names its model, and encodes rows for it.

    Attributes:
        settings: settings of the run.
        name: the task's name in `task.json`.
        command: the command's name, for messages.
    """

    settings: FineTuningSettings
    name: ClassVar[str]
    command: ClassVar[str]

    @abc.abstractmethod
    def model_class(self) -> type | None:
        """Returns the class of the model, one of `keras_bert.models`, or None if the task builds its own.

        `bert-export` takes no models of other classes.
        """

    def model_arguments(self, spec: Any) -> dict[str, Any]:
        """Returns the arguments of the model's constructor besides the backbone."""
        return {}

    def few_labels(self, rows: Any, spec: Any) -> str:
        """Returns the `method` of `tasks.fine_tuning.few_labels.choose`, or "off" to fine-tune all weights."""
        return "off"

    def balance(self, examples: Examples, spec: Any) -> Examples:
        """Adds weights to the training examples, or how often to draw each, if the settings ask for it."""
        return examples

    def teach(self, examples: Examples, unlabelled: list[Examples], spec: Any) -> Examples:
        """Adds unlabelled examples to the training examples, and a teacher's answers to all of them."""
        return examples

    def standardizes(self, spec: Any) -> bool:
        """Returns whether numbers are learned in standard deviations from their mean; the saved model answers in units.

        A new head answers about 0, and a step of the optimizer changes its answers by a few tenths. Prices or
        milliseconds would stay out of reach.
        """
        return False

    def objective(self, spec: Any):
        """Returns the `tasks.engine.train_step.Objective` to minimize: the cross entropy of the right class."""
        from tasks.fine_tuning.objectives import CrossEntropy

        return CrossEntropy()

    @abc.abstractmethod
    def encode(self, part: Part, trained: Trained) -> Encoded:
        """Turns a file into token ids, and labels if it has them, showing a progress bar."""

    def prepare(self, origin, trained: Trained) -> Trained:
        """Adds an encoder if `encode` needs more than the tokenizer. Called before the model is built.

        `origin` is a `tasks.fine_tuning.start.Start`.
        """
        return trained

    def build_training_model(self, origin, trained: Trained):
        """Builds the model to train."""
        from tasks.fine_tuning.start import build_model

        model = build_model(origin, self.settings, self.model_class(), self.model_arguments(trained.spec))
        return self.to_answer(model, trained.spec)

    def to_answer(self, model, spec):
        """Converts an instance of `model_class` to the model that is trained and that answers."""
        return model

    def model_to_save(self, trained: Trained):
        """Returns the model to save in `model/`."""
        return trained.model

    def load(self, directory: str, spec: Any) -> Trained:
        """Loads the model that answers from a directory in which `model_to_save` was saved."""
        model, tokenizer, _ = load_model(directory, self.name, self.command)
        return Trained(self.to_answer(model, spec), tokenizer, spec)


class TaskScoring(abc.ABC):
    """The part of a task that scores, writes and describes the answers.

    Attributes:
        settings: settings of the run.
        title: the task's name for readers; None: derived from `name`.
        metric: figure by which the best of several models is chosen; see `metric_of`.
        stopping_metric: figure of `checkpoint_figures` that early stopping watches; None for that of `metric_of`. Lower
            is better if the name ends in "loss".
        changes_answers: fields of the spec that training does not depend on.
        decimals: decimals of printed figures.
        printed: figures to print after an evaluation, besides those with intervals.
    """

    settings: FineTuningSettings
    name: ClassVar[str]
    title: ClassVar[str | None] = None
    metric: ClassVar[str]
    stopping_metric: ClassVar[str | None] = None
    changes_answers: ClassVar[tuple[str, ...]] = ()
    decimals: ClassVar[int] = 4
    printed: ClassVar[tuple[str, ...]] = ("loss",)

    def title_of(self, spec: Spec) -> str:
        """Returns a title of the model's task, for the heading of its report."""
        return self.title or self.name.replace("_", " ").capitalize()

    def metric_of(self, part: Part) -> str:
        """Returns the name of the figure on a file by which the best of several models is chosen."""
        return self.metric

    @abc.abstractmethod
    def evaluate(self, answers: Answers, results: dict) -> Evaluation:
        """Scores the answers to a labelled file.

        Args:
            answers: answers to one file.
            results: content of `metrics.json` so far, including the description of the training data.
        """

    def checkpoint_figures(self, answers: Answers) -> dict[str, float]:
        """Scores the answers during training. The figures include the one that early stopping watches."""
        return self.evaluate(answers, {}).figures

    def choose(self, answers: Answers) -> dict[str, Any]:
        """Returns the values of the spec to choose by the answers to validation rows. The model keeps them."""
        return {}

    @abc.abstractmethod
    def write_predictions(self, answers: Answers, output_dir: str) -> tuple[list[str], dict[str, Any]]:
        """Writes the model's answers to a test file.

        Returns:
            Paths of the written files, and details for `metrics.json`, whose names begin with `test_`.
        """

    def describe(self, rows: Any, encoded: Encoded, spec: Any) -> dict[str, Any]:
        """Describes the training data for `metrics.json`: JSON values whose names begin with `train_`."""
        return {"train_rows": encoded.examples.num_examples}

    def describe_model(self, trained: Trained) -> dict[str, Any]:
        """Describes the model for `metrics.json`: JSON values by name, such as its labels."""
        return {}

    def notes(self, spec: Any) -> list[str]:
        """Returns sentences that open the report."""
        return []


@dataclasses.dataclass(frozen=True, eq=False)
class Task(TaskData, TaskModel, TaskScoring):
    """A fine-tuning task and the settings of a run. Subclasses are frozen dataclasses without a decorator."""

    settings: FineTuningSettings

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, eq=False)(cls)
