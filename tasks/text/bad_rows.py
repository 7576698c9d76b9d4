"""Handles unusable rows of data files: refuses the file, or skips the rows and counts them."""

import os
import sys

from keras_bert.errors import InputError
from keras_bert.files import remove_path, write_table

BAD_ROWS = ("refuse", "skip")
SKIPPED_FILE = "skipped_rows.tsv"
_SHOWN = 20


class BadRows:
    """Collects the bad rows of data files, so that no row is dropped silently.

    A reader skips each bad row after calling `add`, and calls `finish` at the end of each file.

    Args:
        policy: "refuse" to refuse a file with bad rows; "skip" to skip, list and count them; None to skip only those
            that are added as `tolerated`, and refuse the others.

    >>> bad_rows = BadRows("skip")
    >>> bad_rows.add("train.tsv:7", "the label is empty")
    >>> bad_rows.count
    1
    """

    def __init__(self, policy: str | None = "refuse"):
        self.policy = policy
        self.rows: list[tuple[str, str]] = []
        self._refused: list[tuple[str, str]] = []
        self._finished = 0

    @property
    def count(self) -> int:
        return len(self.rows)

    def add(self, where: str, reason: str, tolerated: bool = False) -> None:
        """Records a bad row.

        Args:
            where: "path:line", or another place, such as "path: question '56be'".
            reason: what was expected, what was found, and how to fix it, in one or more sentences.
            tolerated: whether to skip the row unless the policy is "refuse".
        """
        self.rows.append((where, reason))
        if self.policy == "refuse" or not (self.policy or tolerated):
            self._refused.append((where, reason))

    def finish(self) -> None:
        """Ends a file: refuses it, or lists its skipped rows on standard error.

        Raises:
            InputError: the policy refuses rows of the file; names the first one and their number.
        """
        new, self._finished = self.rows[self._finished :], len(self.rows)
        if not new:
            return
        if self._refused:
            (where, reason), count = self._refused[0], len(self._refused)
            more = f" ({count} bad rows in all; --bad_rows=skip leaves them out.)" if count > 1 else ""
            raise InputError(f"{where}: {reason}{more}")
        for where, reason in new[:_SHOWN]:
            print(f"skipped: {where}: {reason}", file=sys.stderr)
        if len(new) > 1:
            more = f"{len(new) - _SHOWN} more, " if len(new) > _SHOWN else ""
            print(f"skipped: {more}{len(new)} in all.", file=sys.stderr)

    def write(self, output_dir: str) -> None:
        """Writes `skipped_rows.tsv` with the columns `where` and `reason`, or removes it if there are no bad rows."""
        path = os.path.join(output_dir, SKIPPED_FILE)
        if self.rows:
            write_table(path, ["where", "reason"], self.rows)
            print(f"Skipped rows: {path}", file=sys.stderr)
        else:
            remove_path(path)
