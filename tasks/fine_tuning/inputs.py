"""Reads and checks a call's input before TensorFlow is imported: files, rows, and the spec of a trained model."""

import dataclasses
import os
import shlex
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import is_directory, is_file
from keras_bert.presets.catalog import PRESETS, resolve_preset
from keras_bert.presets.packages import EXTRAS, best_installed
from tasks.fine_tuning import model_files
from tasks.fine_tuning.data_check import Look, look, same_text
from tasks.fine_tuning.settings import FineTuningSettings, StartSettings
from tasks.fine_tuning.task import Part, Task
from tasks.report.card import flag_of
from tasks.text.bad_rows import BadRows

MODEL_DIRECTORY, METRICS_FILE = model_files.MODEL_DIRECTORY, "metrics.json"


class Inputs(NamedTuple):
    """The data of a call.

    Attributes:
        parts: the checked files.
        spec: spec of the model to train or of the trained one; None until a checkpoint from elsewhere is loaded.
        model_directory: directory of the trained model; None if there is none, or a new one is trained.
        bad_rows: the rows that were left out.
        look: findings of the data check of a training; None without training.
    """

    parts: list[Part]
    spec: Any
    model_directory: str | None
    bad_rows: BadRows
    look: Look | None = None

    def of(self, split: str) -> list[Part]:
        """Returns the files of a split; "test" includes the dev files whose answers are written."""
        return [part for part in self.parts if part.split == split or (part.is_predicted and split == "test")]

    @property
    def watched(self) -> Part | None:
        """The rows to score during training: the validation rows, or else the first dev file, or None."""
        return next(iter(self.of("validation") or self.of("dev")), None)


def read_inputs(task: Task) -> Inputs:
    """Reads and checks the files of the chosen stages.

    Raises:
        InputError: no stage is chosen, or a file, a row or a setting is wrong.
    """
    settings = task.settings
    wanted = settings.splits
    if not wanted:
        raise InputError(
            "Nothing to do. Give --do_train, --do_eval or --do_predict, or several of them. --train_file alone trains "
            "and evaluates."
        )
    bad_rows = BadRows(settings.bad_rows)
    held_out = {"dev": settings.dev_share, "validation": settings.validation_share} if settings.do_train else {}
    parts = [part for split in wanted if not held_out.get(split) for part in task.read(split, bad_rows)]
    spec, directory = None, None
    if settings.do_train:
        spec = task.make_spec(parts[0].rows)
    elif (directory := find_trained(settings)) is not None:
        spec = task.adjust_spec(read_spec(task, directory))
        for field, value in dataclasses.asdict(spec).items():
            name, given = settings.given_for(field)
            if given not in (None, value):
                print(f"{flag_of(name, getattr(settings, name))} has no effect: {directory} was trained with {value}.")
    if spec is not None:
        parts = [task.match(part, spec, bad_rows) for part in parts]
    for split, share in held_out.items():
        if share:
            rows = parts[0].rows
            strata = task.strata(rows)
            chosen = choose_rows([same_text(group) for group in task.groups(rows)], share, strata)
            if not chosen.any():
                count = f" ({len(set(strata))} labels in {len(chosen)} rows)" if strata is not None else ""
                raise InputError(
                    f"{rows.path}: --{split}_share={share} holds out no row: rows of one text, context or document "
                    f"stay together, and every label keeps some for training{count}. Give more rows, or --do_train "
                    "without a share."
                )
            print(f"Held out for {split}: {chosen.sum()} of {len(chosen)} {task.unit} (--{split}_share={share:g})")
            train = parts[0].with_rows(task.take_rows(rows, ~chosen))
            parts = [train, Part(split, task.take_rows(rows, chosen)), *parts[1:]]
    inputs = Inputs(parts=parts, spec=spec, model_directory=directory, bad_rows=bad_rows)
    return look_at(task, inputs) if settings.do_train else inputs


def look_at(task: Task, inputs: Inputs) -> Inputs:
    """Checks the data of a training, prints the findings, and leaves out leaks if the settings say so.

    Raises:
        InputError: all rows are leaks.
    """
    train, *rest = inputs.parts
    contents = {part.title: content for part in inputs.parts if (content := task.content(part.rows)) is not None}
    if train.title not in contents:
        return inputs
    evaluated = [part.title for part in rest if part.split in ("dev", "test")]
    findings = look(contents, evaluated, task.unit, task.least_words, task.settings.drop_leaks)
    print(*findings.lines, sep="\n")
    if task.settings.drop_leaks and findings.leaks.any():
        if findings.leaks.all():
            raise InputError(f"{train.rows.path}: --drop_leaks leaves no row. Give other rows to train on.")
        train = train.with_rows(task.take_rows(train.rows, ~findings.leaks))
    return inputs._replace(parts=[train, *rest], look=findings)


def choose_rows(groups: Sequence[Hashable], share: float, strata: Sequence[Hashable] | None = None) -> np.ndarray:
    """Chooses about a share of the rows of each stratum, by whole groups: at least one group, never all of a stratum.

    A group is chosen if that brings the share nearer to the given one. The choice depends on no seed or file name.

    Args:
        groups: group of each row.
        share: share of the rows to choose, between 0 and 1.
        strata: stratum of each row, such as its label; None for a single one. A group belongs to the stratum of its
            first row. The rounding error of a stratum is carried over to the next.

    Returns:
        bool, shape (rows,); all False if no stratum has two groups.
    """
    numbers: dict[Hashable, int] = {}
    number_of = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
    sizes, first_rows = np.bincount(number_of), np.unique(number_of, return_index=True)[1]
    members: dict[Hashable, list[int]] = {}
    for group in np.argsort(np.random.default_rng(0).permutation(len(sizes))):
        members.setdefault(strata[first_rows[group]] if strata else None, []).append(group)
    seen, chosen = 0, np.zeros(len(sizes), bool)
    for of_stratum in members.values():
        seen += sizes[of_stratum].sum()
        num_missing = round(share * seen) - sizes[chosen].sum()
        for group in of_stratum[:-1]:
            if sizes[group] < 2 * num_missing:
                chosen[group] = True
                num_missing -= sizes[group]
    spare = [group for of_stratum in members.values() if len(of_stratum) > 1 for group in of_stratum]
    if spare and not chosen.any():
        chosen[min(spare, key=sizes.__getitem__)] = True
    return chosen[number_of]


def find_trained(settings: FineTuningSettings) -> str | None:
    """Returns the directory of the trained model that a call without `do_train` uses.

    That is `model/` in the output directory, else the directory of an earlier run that `--init_checkpoint` or
    `--preset` names. Returns None if a preset from elsewhere is to be applied instead. If there is none of these, the
    result is `model/`, whose absence is reported when it is read.
    """
    directory, source = os.path.join(settings.output_dir, MODEL_DIRECTORY), settings.init_checkpoint or settings.preset
    if is_directory(directory) or not source:
        return directory
    directory = model_files.model_directory(source)
    return directory if is_file(os.path.join(directory, model_files.TASK_FILE)) else None


def read_spec(task: Task, directory: str) -> Any:
    """Reads the spec from `task.json`.

    Raises:
        InputError: the file is missing, belongs to another task, or lacks a value.
    """
    values = model_files.read_task(directory, task.command, task.name)
    fields = dataclasses.fields(task.Spec)
    missing = [field.name for field in fields if field.name not in values and field.default is dataclasses.MISSING]
    if missing:
        path = os.path.join(directory, model_files.TASK_FILE)
        raise InputError(f"{path}: lacks {', '.join(missing)}. Expected the model that {task.command} wrote.")
    return task.Spec(**{field.name: values[field.name] for field in fields if field.name in values})


def complete(task: Task) -> Task:
    """Fills in the settings that a call left open, and prints each with its flag.

    Raises:
        InputError: as in `TaskData.recognize_columns` and `best_installed`.
    """
    settings = task.settings
    chosen, columns = task.recognize_columns()
    if chosen:
        flags = shlex.join(flag_of(name, value) for name, value in chosen.items())
        print(f"Columns: {flags} (of {', '.join(columns)})")
    is_open = not (settings.preset or settings.init_checkpoint or settings.bert_config_file)
    if settings.do_train and is_open and (preset := best_installed()):
        chosen["preset"] = preset
        print(f"Preset: --preset={preset} (the best that is installed)")
    return dataclasses.replace(task, settings=dataclasses.replace(settings, **chosen))


def require_preset(settings: StartSettings, needed_for: str = "--do_train") -> None:
    """Checks that the encoder and vocabulary to start from are named and exist.

    Raises:
        InputError: they are not named, or do not exist.
    """
    if settings.init_checkpoint or settings.bert_config_file:
        return  # Checked when the files are linked (`tasks.fine_tuning.start`).
    if not settings.preset:
        install = " or ".join(f"pip install 'keras-bert-zoo[{extra}]'" for extra, _ in EXTRAS.values())
        raise InputError(
            f"{needed_for} needs --preset: a preset's directory or name, e.g. {', '.join(PRESETS)}. A training without "
            f"the flag takes one that is installed: {install}."
        )
    resolve_preset(settings.preset, "tokenizer")


def check_training(task: Task, parts: list[Part]) -> None:
    """Checks the requirements of a training, as far as possible without TensorFlow.

    Raises:
        InputError: a search or early stopping lacks a dev file, or there is no preset.
    """
    settings = task.settings
    has_dev = any(part.split in ("validation", "dev") for part in parts)
    if settings.is_search and not has_dev:
        raise InputError(
            "Several learning rates, batch sizes or restarts need --do_eval or --validation_share, to choose the best."
        )
    if settings.early_stopping_patience and not has_dev:
        raise InputError(
            "--early_stopping_patience needs an evaluation: give --do_eval with a dev file, or --validation_share."
        )
    require_preset(settings)
