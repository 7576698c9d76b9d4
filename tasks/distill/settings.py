"""Settings of `bert-distill`: those of the teacher's command, and a few that say how the student learns."""

import contextlib
import dataclasses
import itertools
import os
import shlex
import zlib
from collections.abc import Sequence
from typing import ClassVar

from keras_bert.errors import InputError
from keras_bert.files import exists, expand_files, local_copy, open_file, read_optional_json, real_path
from keras_bert.presets.weights import read_bert_config
from tasks.classify.task import Classify
from tasks.embed.task import Embed
from tasks.fine_tuning.inputs import METRICS_FILE
from tasks.fine_tuning.model_files import MODEL_DIRECTORY, MODEL_FILE, model_directory, read_task
from tasks.fine_tuning.settings import FineTuningSettings, SplitSettings, StartSettings
from tasks.fine_tuning.task import Task
from tasks.ner.task import Ner
from tasks.score_words.task import ScoreWords
from tasks.settings import Settings, changeable, replaced, setting
from tasks.squad.task import Squad
from tasks.swag.task import Swag

TASKS = {task.name: task for task in (Classify, Squad, Swag, Ner, ScoreWords, Embed)}
# Settings that a student takes over from its teacher's training: the data, and how they are read.
_SHARED = {"train_file", "max_seq_length", "bad_rows", "drop_leaks", "dev_share", "validation_share"}
_OWN = {"few_labels", "find_wrong_labels", "precision", "num_negatives", "relative_margin", "reranker_dir"}
_OF_DEV = {"dev_file", "predict_file", "dev_share"}


class StudentSettings(Settings):
    """Settings of a student, in addition to those of its task."""

    teacher: str = changeable(
        dataclasses.MISSING, "Model to learn from: the output directory of a fine-tuning, or its model/."
    )
    preset: str | None = replaced(
        StartSettings,
        "preset",
        None,
        flag="student_preset",
        help="Encoder to start from, with the teacher's vocabulary; default: every second layer of the teacher.",
    )
    student_layers: list[int] | None = setting(
        None,
        "Layers to start from, counted from 1, of --student_preset or else of the teacher; 3,6 gives a student of two.",
        at_least=1,
    )
    unlabelled_file: str | None = changeable(
        None, "More rows to learn from, in the form of --test_file. The teacher's answers replace their labels."
    )
    teacher_temperature: float = setting(  # A trained classifier has a `temperature`, too.
        2.0,
        "Divisor of the logits of teacher and student in the loss: above 1, small probabilities count more.",
        flag="temperature",
        above=0.0,
        subject="training",
    )
    label_weight: float = setting(
        0.5, "Weight of the labels' own loss; the teacher's loss has the rest.", at_least=0.0, at_most=1.0
    )

    @classmethod
    def expand(cls, arguments: Sequence[str]) -> tuple[type[Settings], list[str]]:
        """Returns a class with the settings of the teacher's task and of a student, and the flags to take over.

        Args:
            arguments: the command line.

        Raises:
            InputError: the teacher is not the model of a fine-tuning.
        """
        pairs = itertools.pairwise([*arguments, ""])
        named = {_name(word): word.partition("=")[2] if "=" in word else after for word, after in pairs}
        if not named.get("teacher"):
            return cls, []
        directory = model_directory(named["teacher"])
        task = task_of(directory)
        own = {}
        if "few_labels" in task.Settings.__dataclass_fields__:  # Ways to learn from labels alone, without a teacher.
            own = {"few_labels": "off", "__annotations__": {"few_labels": ClassVar[str]}}
        settings_class = type(cls.__name__, (StudentSettings, task.Settings), own)
        stages = {name.removeprefix("no") for name in named} & {"do_train", "do_eval", "do_predict"}
        default = [] if stages else ["--do_train", "--do_eval"]
        # Without an evaluation, no row of the training file is held out.
        own = {*named, "dev_share"} if stages and "do_eval" not in named else {*named}
        shared = shared_flags(directory, task, own)
        if stages and "do_train" not in named:
            shared = [word for word in shared if _name(word) not in ("dev_share", "validation_share")]
        return settings_class, [*default, *shared]

    def __post_init__(self):
        super().__post_init__()
        if self.unlabelled_file and (self.jit_compile or self.distribution_strategy == "tpu"):
            raise InputError(
                "--unlabelled_file makes batches with any number of labels, which XLA would compile anew each time. "
                "Leave it out, or train without --jit_compile and TPU."
            )

    def identity(self):
        """Returns the settings that identify a run, with a checksum of the teacher's weights."""
        with open_file(os.path.join(local_copy(self.teacher), MODEL_FILE)) as file:
            return {**super().identity(), "teacher_checksum": zlib.crc32(file.read())}

    @property
    def kept_layers(self):
        return self.student_layers and [number - 1 for number in self.student_layers]


class DistillSettings(StudentSettings, SplitSettings):
    """Settings of `bert-distill` for any task of the teacher."""


def _name(argument: str) -> str:
    return argument.lstrip("-").partition("=")[0]


def task_of(directory: str) -> type[Task]:
    """Returns the task of a trained model.

    Raises:
        InputError: the directory has no trained model, or a model of a task that cannot be distilled.
    """
    name = read_task(directory, "a fine-tuning command")["task"]
    if name not in TASKS:
        raise InputError(f"--teacher={directory}: its task is {name!r}. Expected one of {', '.join(TASKS)}.")
    return TASKS[name]


def shared_flags(directory: str, task: type[Task], given: set[str]) -> list[str]:
    """Returns the flags of the teacher's training that also apply to the student, except for files that are gone.

    Args:
        directory: directory of the teacher's model, inside the output directory.
        task: task of the teacher.
        given: names of the student's own flags. If one of them names rows to evaluate on, no such flag is taken over.
    """
    results = read_optional_json(os.path.join(os.path.dirname(directory), METRICS_FILE))
    words = shlex.split(results.get("train_command", ""))[1:]
    general = {field.name for field in dataclasses.fields(FineTuningSettings)}
    names = {field.name for field in dataclasses.fields(task.Settings)} - general - _OWN | _SHARED
    names -= _OF_DEV if given & _OF_DEV else set()

    def is_there(word: str) -> bool:
        path = word.partition("=")[2]
        with contextlib.suppress(InputError):  # No file matches a pattern any more.
            return not _name(word).endswith(("_file", "_dir")) or exists(path) or bool(expand_files([path]))
        return False

    return [word for word in words if {_name(word), _name(word).removeprefix("no")} & names and is_there(word)]


def complete(settings: StudentSettings) -> StudentSettings:
    """Fills in the directory of the teacher's model, and the preset and layers to start from.

    Raises:
        InputError: the student would replace its teacher, or the encoder to start from lacks a layer.
    """
    teacher, preset = model_directory(settings.teacher), settings.preset
    own = os.path.join(settings.output_dir, MODEL_DIRECTORY)
    if real_path(teacher) in (real_path(settings.output_dir), real_path(own)):
        raise InputError(
            f"--output_dir={settings.output_dir}: holds the teacher, which the student would replace. Choose another "
            "directory."
        )
    if not settings.do_train:
        return dataclasses.replace(settings, teacher=teacher)
    layers = settings.student_layers
    if not (preset or settings.init_checkpoint or settings.bert_config_file):
        preset = teacher
    start = preset or settings.init_checkpoint
    if preset == teacher or layers:
        num_layers = read_bert_config(start).num_layers
        layers = layers or list(range(2 - num_layers % 2, num_layers + 1, 2))
        if max(layers) > num_layers:
            raise InputError(
                f"--student_layers={','.join(map(str, layers))}: {start} has {num_layers} layers. Name some of them, "
                "counted from 1."
            )
    return dataclasses.replace(settings, teacher=teacher, preset=preset, student_layers=layers)
