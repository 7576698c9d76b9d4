"""Runs several stages in one directory, keeps finished ones, and summarizes them in a table."""

import os
import time
from collections.abc import Callable

from tqdm import tqdm

from keras_bert import files
from keras_bert.errors import InputError

_SETTINGS, _RECORDS = "flags.json", "stages"


class StageRun:
    """Runs stages one after another and remembers the finished ones.

    A stage is finished once its record exists in `<directory>/stages/<name>.json`. The record is written last, so an
    interrupted stage runs again.

    Args:
        directory: directory of the run.
        settings: settings that the results depend on.
        contents: checksums of what the stages read, each by a name such as "text (--input_file)".

    Attributes:
        records: record of each stage run so far, by name.

    Raises:
        InputError: the directory has a run with other settings or contents, or files that do not belong to a run.
    """

    def __init__(self, directory: str, settings: dict, contents: dict[str, object]):
        self.directory = directory
        self.records: dict[str, dict] = {}
        self._check(settings, contents)
        files.write_json(self.path(_SETTINGS), settings | contents)
        files.make_directory(self.path(_RECORDS))

    def _check(self, settings: dict, contents: dict[str, object]) -> None:
        if not files.is_directory(self.directory) or not files.list_directory(self.directory):
            return
        if not files.is_file(self.path(_SETTINGS)) or not files.is_directory(self.path(_RECORDS)):
            raise InputError(
                f"{self.directory}: holds files, but no run of stages ({_SETTINGS} and {_RECORDS}/). "
                "Choose another directory."
            )
        before, now = files.read_json(self.path(_SETTINGS)), settings | contents
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if changed and files.list_directory(self.path(_RECORDS)):  # A run whose first stage failed has nothing to lose.
            differences = (
                f"the {name} has changed since it began"
                if name in contents
                else f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
                for name in changed
            )
            raise InputError(
                f"{self.directory}: holds a run that cannot continue: {', '.join(differences)}. Choose "
                "another --output_dir, or remove this one."
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
        clock, records = tqdm.format_interval, self.records
        rows = [(name, clock(record["seconds"]), record["figure"]) for name, record in records.items()]
        total = clock(sum(record["seconds"] for record in records.values()))
        rows = [("stage", "time", "figure"), *rows, ("total", total, "")]
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
        lines = [f"{name.ljust(widths[0])}  {took.rjust(widths[1])}  {figure}".rstrip() for name, took, figure in rows]
        rule = "-" * max(map(len, lines))
        return "\n".join([rule, lines[0], rule, *lines[1:-1], rule, lines[-1], rule])
