"""Runs several stages in one directory, keeps finished ones, and summarizes them in a table."""

import os
import time
from collections.abc import Callable, Sequence

from keras_bert import files
from keras_bert.errors import InputError

SETTINGS_FILE = "flags.json"
_RECORDS = "stages"


class StageRun:
    """Runs stages one after another and remembers the finished ones.

    A stage is finished once its record exists in `<directory>/stages/<name>.json`. The record is written last, so an
    interrupted stage runs again.

    Args:
        directory: directory of the run.
        settings: settings that the results depend on; a directory with other settings is refused.
        overwrite: whether to remove an earlier run.
        inputs: paths that the stages read, which `overwrite` must not remove.

    Attributes:
        records: record of each stage run so far, by name.

    Raises:
        InputError: the directory has a run with other settings, files that do not belong to a run, or an input that
            would be removed.
    """

    def __init__(self, directory: str, settings: dict, overwrite: bool = False, inputs: Sequence[str] = ()):
        self.directory = directory
        self.records: dict[str, dict] = {}
        self._check(settings, overwrite, inputs)
        files.write_json(os.path.join(directory, SETTINGS_FILE), settings)
        files.make_directory(self.path(_RECORDS))

    def _check(self, settings: dict, overwrite: bool, inputs: Sequence[str]) -> None:
        path = os.path.join(self.directory, SETTINGS_FILE)
        if not files.is_directory(self.directory) or not files.list_directory(self.directory):
            return
        if not files.is_file(path) or not files.is_directory(self.path(_RECORDS)):
            raise InputError(
                f"{self.directory}: holds files, but no run of stages ({SETTINGS_FILE} and {_RECORDS}/). "
                "Choose another directory."
            )
        if overwrite:
            root = os.path.join(files.real_path(self.directory), "")
            if path := next((path for path in inputs if files.real_path(path).startswith(root)), None):
                raise InputError(f"{path}: lies in {self.directory}, which --overwrite empties. Move it elsewhere.")
            files.remove_path(self.directory)
            return
        before = files.read_json(path)
        changed = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
        if changed and files.list_directory(self.path(_RECORDS)):  # A run whose first stage failed has nothing to lose.
            differences = ", ".join(f"{name} was {before.get(name)!r}, is {settings.get(name)!r}" for name in changed)
            raise InputError(
                f"{self.directory}: holds a run with other settings ({differences}). Pass --overwrite to start anew, "
                "or choose another directory."
            )

    def path(self, *names: str) -> str:
        """Returns a path in the run's directory."""
        return os.path.join(self.directory, *names)

    def stage(self, name: str, work: Callable[[], dict], keep: bool = True) -> None:
        """Runs a stage, unless it is finished, and keeps its record.

        Args:
            name: title of the stage, and file name of its record.
            work: runs the stage; returns its record, with a `figure` (str) for the table.
            keep: False to run even a finished stage again.
        """
        record_path = self.path(_RECORDS, f"{name.replace(' ', '_').replace(',', '')}.json")
        number = len(self.records) + 1
        if keep and files.is_file(record_path):
            record = files.read_json(record_path)
            print(f"\n[{number}] {name}: done before, kept.", flush=True)
        else:
            print(f"\n[{number}] {name}", flush=True)
            start = time.monotonic()
            record = work()
            record["seconds"] = round(time.monotonic() - start, 1)
            files.write_json(record_path, record)
        self.records[name] = record

    def table(self) -> str:
        """Renders the records as a table with stage, time and figure."""
        rows = [(name, clock(record["seconds"]), record["figure"]) for name, record in self.records.items()]
        total = clock(sum(record["seconds"] for record in self.records.values()))
        rows = [("stage", "time", "figure"), *rows, ("total", total, "")]
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
        lines = [f"{name.ljust(widths[0])}  {took.rjust(widths[1])}  {figure}".rstrip() for name, took, figure in rows]
        rule = "-" * max(map(len, lines))
        return "\n".join([rule, lines[0], rule, *lines[1:-1], rule, lines[-1], rule])


def clock(seconds: float) -> str:
    """Renders seconds as minutes and seconds: 75 is `1:15`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
