"""Checkpoints of a training run: saved whole, restored from the newest that can be read."""

import glob
import os
import re
import sys

import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.files import read_json, remove_path, write_json

SETTINGS_FILE = "training.json"


class Checkpoints:
    """The checkpoints `ckpt-<step>` of one training run, in one directory.

    Written by `tf.train.CheckpointManager`: the index file comes last, so that a killed run leaves no checkpoint
    that looks finished and is not. Variables are stored as two lists, in the order given. (Saving the Keras model
    object instead would silently leave out any layer that Keras does not track.)

    Args:
        directory: where they are, or will be.
        step: int64 scalar variable, the number of finished training steps.
        weights: the model's variables.
        optimizer_variables: the optimizer's.
    """

    def __init__(
        self, directory: str, step: tf.Variable, weights: list[tf.Variable], optimizer_variables: list[tf.Variable]
    ):
        self.directory = directory
        self.step = step
        self._checkpoint = tf.train.Checkpoint(step=step, weights=weights, optimizer=optimizer_variables)

    def save(self, keep: int) -> None:
        """Saves `ckpt-<step>` and removes the oldest of this run's beyond `keep` of them."""
        manager = tf.train.CheckpointManager(self._checkpoint, self.directory, max_to_keep=keep)
        manager.save(checkpoint_number=int(self.step.numpy()))
        self.remove_leftovers(keep)

    def remove_leftovers(self, keep: int) -> None:
        """Removes what killed runs left beside the newest `keep`: halves, and old ones that no manager knows of."""
        names = {os.path.basename(path) for path in self._paths()[:keep]}
        for entry in sorted(os.listdir(self.directory)):
            match = re.match(r"(ckpt-\d+)(\.index$|\.data-\d+-of-\d+$|[._])", entry)
            is_old = match is not None and (match[1] not in names or len(match[2]) == 1)
            if is_old or entry.startswith("checkpoint.tmp"):  # The latter: the state file, not yet renamed.
                remove_path(os.path.join(self.directory, entry))

    def restore(self) -> int:
        """Restores the newest readable checkpoint into the variables, and says on standard error if one is broken.

        Returns:
            Its step; 0 if there is no checkpoint.

        Raises:
            InputError: there are checkpoints, and all are broken, or the newest is of another model.
        """
        paths = self._paths()
        for path in paths:
            try:
                self._checkpoint.restore(path).assert_consumed()
                return int(self.step.numpy())
            except (tf.errors.OpError, IndexError) as error:  # TensorFlow's IndexError: the file ends too early.
                reason = str(error).splitlines()[0]
                print(f"{path}: broken checkpoint ({reason}); trying the one before it.", file=sys.stderr)
            except (ValueError, AssertionError) as error:
                raise InputError(
                    f"{path}: a checkpoint of another model or optimizer ({str(error).splitlines()[0]}). "
                    "Give the settings it was made with, or another output directory."
                ) from error
        if paths:
            raise InputError(f"{self.directory}: every checkpoint is broken. Remove the directory to start anew.")
        return 0

    def _paths(self) -> list[str]:
        """Paths of all finished checkpoints, newest first; from the files, since the state file may be older."""
        steps = {}
        for path in glob.glob(os.path.join(glob.escape(self.directory), "ckpt-*.index")):
            match = re.fullmatch(r"ckpt-(\d+)\.index", os.path.basename(path))
            if match:
                steps[int(match[1])] = path.removesuffix(".index")
        return [steps[step] for step in sorted(steps, reverse=True)]


def keep_settings(output_dir: str, settings: dict, writes: bool = True) -> None:
    """Notes what a training computes; refuses to continue one that began with something else.

    A checkpoint restores whenever the shapes match: without this, a changed learning rate would have no effect, or half
    of one, and nobody would know.

    Args:
        output_dir: the training's directory; `training.json` in it holds the settings.
        settings: what the weights depend on, as JSON values.
        writes: False: only compare.

    Raises:
        InputError: `output_dir` has checkpoints of a training with other settings.
    """
    path = os.path.join(output_dir, SETTINGS_FILE)
    resumes = os.path.isdir(os.path.join(output_dir, "checkpoints")) and os.path.exists(path)
    before = read_json(path) if resumes else settings
    for name, value in settings.items():
        if before.get(name) != value:
            raise InputError(
                f"{output_dir}: holds a training with {name}={before.get(name)!r}. It cannot continue with {value!r}. "
                "Choose another --output_dir, or remove this one."
            )
    if writes:
        write_json(path, settings)
