"""Reads and writes files: errors name path and line, and a file appears whole or not at all."""

import contextlib
import csv
import glob
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from keras_bert.errors import InputError, first_line

# Bytes of a vocabulary, or of JSON beside a checkpoint. LaBSE's tokenizer.json, of 501,153 pieces, has 14 MB at most.
# Parsed JSON takes up to 27 times its bytes.
MOST_TEXT = 16 * 2**20


def expand_files(patterns: str | list[str]) -> list[str]:
    """Lists the files that a flag such as `--input_file` names.

    Args:
        patterns: comma-separated string, or list of strings; each a path or a glob pattern. An existing path is
            used as it is, even if its name has commas, brackets or stars.

    Returns:
        Sorted matches, pattern by pattern, in the order of the patterns, each file once.

    Raises:
        InputError: a pattern matches no file, or names a directory.
    """
    if isinstance(patterns, str):
        parts = [part.strip() for part in patterns.split(",") if part.strip()]
        patterns = [patterns] if os.path.exists(patterns) else parts
    if not patterns:
        raise InputError("No input file was named. Expected a path, a glob pattern, or several with commas between.")
    files: dict[str, None] = {}
    for pattern in patterns:
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not matches:
            raise InputError(f"{pattern}: no such file, and no file matches it as a pattern. Check the path.")
        for path in matches:
            if os.path.isdir(path):
                raise InputError(f"{path}: expected a file, found a directory. Name its files, e.g. '{path}/*'.")
            files[path] = None
    return list(files)


def expand_file(flag: str, pattern: str) -> str:
    """Finds the one file that a flag such as `--dev_file` names.

    Args:
        flag: the flag's name, dashes included.
        pattern: a path, or a glob pattern that one file matches.

    Raises:
        InputError: no file, several, or a directory.
    """
    paths = expand_files([pattern])
    if len(paths) != 1:
        raise InputError(f"{flag}={pattern}: expected one file, found {len(paths)}: {', '.join(paths)}.")
    return paths[0]


def check_size(path: str, most_bytes: int) -> None:
    """Refuses a file of more bytes than one of its kind can have, before it is read.

    Raises:
        InputError: it has more.
    """
    found = os.path.getsize(path)
    if found > most_bytes:
        raise InputError(f"{path}: expected at most {most_bytes:,} bytes, found {found:,}. Do not trust this file.")


@contextlib.contextmanager
def parsing(path: str, kind: str) -> Iterator[None]:
    """Turns whatever a parser raises for a damaged or hostile file into an InputError that names it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: not a whole {kind} ({first_line(error)}). Fetch it again.") from error


def read_lines(path: str, most_bytes: int | None = None) -> Iterator[tuple[int, str]]:
    """Yields `(line number from 1, text without its line end)` of a UTF-8 file.

    Only a line feed ends a line (a carriage return before it is dropped): exotic line separators inside a
    text stay text. A byte order mark at the file's start is dropped.

    Args:
        path: of the file.
        most_bytes: as in `check_size`; None for a file of any size.

    Raises:
        InputError: the file cannot be opened, is larger, or a line is not valid UTF-8.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    with file:
        if most_bytes is not None:
            check_size(path, most_bytes)
        yield from decode_lines(path, file)


def decode_lines(path: str, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yields the same as `read_lines` for a file that is already open; `path` is for error messages."""
    for number, raw in enumerate(file, start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {error.start} of the line"
            raise not_utf8(f"{path}:{number}", place, raw[error.start]) from error
        yield number, text.removesuffix("\n").removesuffix("\r")


def not_utf8(where: str, place: str, byte: int) -> InputError:
    """Returns the error for a text that is not UTF-8: `where` is its path and line, `place` tells the wrong byte."""
    return InputError(
        f"{where}: not valid UTF-8 at {place} (0x{byte:02x}). Convert the file first, e.g. iconv -f LATIN1 -t UTF-8."
    )


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """Gives a temporary path beside `path`; renames it to `path` on success, removes it on any error.

    The caller may create a file or a directory under the temporary name. An existing `path` is replaced at the end, so
    that a reader never sees half a result. Leftovers of killed processes are removed at the start.

    Raises:
        InputError: the parent directory cannot be created or written.
    """
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    try:
        os.makedirs(parent, exist_ok=True)
    except OSError as error:
        raise InputError(f"{parent}: cannot be created ({error.strerror}). Choose another output path.") from error
    if not os.access(parent, os.W_OK):
        raise InputError(f"{parent}: cannot be written. Choose another output path.")
    _remove_leftovers(path)
    temporary = os.path.join(parent, f".{os.path.basename(path)}.partial-{os.getpid()}")
    try:
        yield temporary
        _replace(temporary, path)
    finally:
        remove_path(temporary)


def _replace(temporary: str, path: str) -> None:
    if not (os.path.isdir(temporary) and os.path.isdir(path)):
        os.replace(temporary, path)
        return
    retired = f"{temporary}-old"
    try:
        os.rename(path, retired)  # A directory that is not empty cannot be replaced by one rename.
        os.rename(temporary, path)
    finally:
        _settle(retired, path)


def _settle(retired: str, path: str) -> None:
    """Removes the directory that a new `path` has replaced; puts it back if there is no new one."""
    if os.path.lexists(path):
        remove_path(retired)
    elif os.path.lexists(retired):
        os.rename(retired, path)


def _remove_leftovers(path: str) -> None:
    parent, name = os.path.split(path)
    for found in sorted(os.listdir(parent)):
        match = re.fullmatch(rf"{re.escape(f'.{name}.partial-')}(\d+)(-old)?", found)
        # In a container the next process often has the number of the killed one.
        if match and (int(match[1]) == os.getpid() or not is_alive(int(match[1]))):
            if match[2]:
                _settle(os.path.join(parent, found), path)
            else:
                remove_path(os.path.join(parent, found))


def is_alive(process: int) -> bool:
    """Returns whether a process is running on this machine."""
    try:
        with contextlib.suppress(PermissionError):  # It runs for somebody else.
            os.kill(process, 0)  # Signal 0 only checks.
    except (ProcessLookupError, OverflowError):
        return False
    return True


def remove_path(path: str) -> None:
    """Removes a file or a directory tree, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Writes lines of text, UTF-8 with line feeds, whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence], delimiter: str = "\t") -> None:
    """Writes a table with a header, complete or not at all: TSV, or CSV with a comma as `delimiter`."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_json(path: str, value) -> None:
    """Writes `value` as indented JSON, whole or not at all."""
    write_lines(path, [json.dumps(value, indent=2, ensure_ascii=False)])


def read_json(path: str, most_bytes: int | None = MOST_TEXT):
    """Reads a JSON file.

    Args:
        path: of the file.
        most_bytes: as in `check_size`; None for a file of any size.

    Raises:
        InputError: the file is missing, is larger or is not JSON; the message names the line.
    """
    text = "\n".join(line for _, line in read_lines(path, most_bytes))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON ({error.msg}).") from error
    except (RecursionError, ValueError) as error:  # Python refuses to convert numbers of thousands of digits.
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{path}: not valid JSON ({reason}).") from error


def read_optional_json(path: str):
    """Reads a JSON file as `read_json` does; returns {} if there is no such file."""
    return read_json(path) if os.path.isfile(path) else {}


def read_object(path: str, most_bytes: int | None = MOST_TEXT) -> dict:
    """Reads a JSON file that holds an object, as `read_json` does.

    Raises:
        InputError: as `read_json`; or it holds something else.
    """
    value = read_json(path, most_bytes)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}.")
    return value
