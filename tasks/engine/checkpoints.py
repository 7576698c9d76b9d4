"""Saves the checkpoints of a training run atomically, and restores the newest readable one."""

import json
import os
import re
import sys

import tensorflow as tf

from keras_bert.errors import InputError, first_line
from keras_bert.files import is_directory, list_directory, read_optional_json, remove_path, write_json
from tasks.engine.time_budget import CLOCK_FILE


class Checkpoints:
    """The checkpoints `ckpt-<step>` of one training run.

    `tf.train.CheckpointManager` writes the index file last, so a killed run never leaves a half-written checkpoint
    that looks complete. Variables are stored as two lists, in the given order: saving the Keras model object instead
    would silently skip layers that Keras does not track.

    Args:
        directory: the checkpoint directory; need not exist yet.
        step: int64 scalar variable, the number of finished training steps.
        weights: the model's variables.
        optimizer: the optimizer's variables.
    """

    def __init__(self, directory: str, step: tf.Variable, weights: list[tf.Variable], optimizer: list[tf.Variable]):
        self.directory = directory
        self.step = step
        self._checkpoint = tf.train.Checkpoint(step=step, weights=weights, optimizer=optimizer)

    def save(self, keep: int) -> None:
        """Saves `ckpt-<step>` and removes all but the newest `keep` checkpoints."""
        manager = tf.train.CheckpointManager(self._checkpoint, self.directory, max_to_keep=keep)
        manager.save(checkpoint_number=int(self.step.numpy()))
        self.remove_leftovers(keep)

    def remove_leftovers(self, keep: int) -> None:
        """Removes partial and surplus checkpoints that killed runs left behind; keeps the newest `keep`."""
        names = {os.path.basename(path) for path in self._paths()[:keep]}
        for entry in list_directory(self.directory):
            match = re.match(r"(ckpt-\d+)(\.index$|\.data-\d+-of-\d+$|[._])", entry)
            is_old = match is not None and (match[1] not in names or len(match[2]) == 1)
            if is_old or entry.startswith("checkpoint.tmp"):  # TensorFlow's state file before its rename.
                remove_path(os.path.join(self.directory, entry))

    def restore(self, step: int | None = None) -> int:
        """Restores the checkpoint of a step, by default the newest readable one; reports broken ones on standard error.

        Returns:
            The restored step; 0 if there is no checkpoint.

        Raises:
            InputError: every checkpoint is broken, the one of `step` is missing, or one belongs to another model.
        """
        paths = self._paths() if step is None else [self._path(step)]
        for path in paths:
            try:
                self._checkpoint.restore(path).assert_consumed()
                return int(self.step.numpy())
            except (tf.errors.OpError, IndexError) as error:  # TensorFlow raises IndexError for a truncated file.
                print(f"{path}: broken checkpoint ({first_line(error)}); trying the one before it.", file=sys.stderr)
            except (ValueError, AssertionError) as error:
                raise InputError(
                    f"{path}: a checkpoint of another model or optimizer ({first_line(error)}). "
                    "Give the settings it was made with, or another output directory."
                ) from error
        if paths:
            raise InputError(f"{self.directory}: every checkpoint is broken. Remove the directory to start anew.")
        return 0

    def _paths(self) -> list[str]:
        """Returns the paths of all complete checkpoints, newest first.

        Lists the files themselves: a crash may leave TensorFlow's state file out of date.
        """
        names = list_directory(self.directory) if is_directory(self.directory) else []
        steps = [int(match[1]) for match in (re.fullmatch(r"ckpt-(\d+)\.index", name) for name in names) if match]
        return [self._path(step) for step in sorted(steps, reverse=True)]

    def _path(self, step: int) -> str:
        return os.path.join(self.directory, f"ckpt-{step}")


def keep_settings(output_dir: str, settings: dict, writes: bool = True) -> None:
    """Records the settings of a training in `training.json`; refuses to resume one that started with other settings.

    A checkpoint restores whenever the shapes match. Without this check, a changed learning rate would silently take
    effect halfway through a training. If the settings have changed and there is no checkpoint, the time that the
    earlier training took is forgotten.

    Args:
        output_dir: the training's directory.
        settings: everything the weights depend on, as JSON values.
        writes: False only compares.

    Raises:
        InputError: `output_dir` holds checkpoints of a training with other settings.
    """
    path = os.path.join(output_dir, "training.json")
    settings = json.loads(json.dumps(settings))  # As in the file: lists instead of tuples.
    before = read_optional_json(path) or settings
    changed = [name for name, value in settings.items() if before.get(name) != value]
    if changed and is_directory(os.path.join(output_dir, "checkpoints")):
        raise InputError(
            f"{output_dir}: holds a training with {changed[0]}={before.get(changed[0])!r}. It cannot continue with "
            f"{settings[changed[0]]!r}. Choose another --output_dir, or remove this one."
        )
    if writes and changed:
        remove_path(os.path.join(output_dir, CLOCK_FILE))
    if writes:
        write_json(path, settings)
