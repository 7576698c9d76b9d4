"""Reads and writes files: errors name the path and line, and a file appears whole or not at all.

A path may be a URL that `tf.io.gfile` knows, such as gs://bucket/file: each function has one branch for URLs. Only that
branch imports TensorFlow, and TensorFlow's errors become OSErrors, as for a local path.
"""

import contextlib
import contextvars
import errno
import glob
import io
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from keras_bert.errors import InputError, first_line

# Largest size in bytes of a vocabulary, or of a JSON file beside a checkpoint. LaBSE's tokenizer.json, with 501,153
# pieces, has at most 14 MB. Parsed JSON takes up to 27 times its size in memory.
MOST_TEXT = 16 * 2**20
# Marks a remote directory that is being filled: in a bucket, no rename makes a directory appear at once. Directories
# without the mark count as complete, so that directories copied into a bucket by other programs can be read.
INCOMPLETE = "INCOMPLETE"
# Part of the names of unfinished files: on a disk shared by machines, whether another machine's process still runs
# cannot be known.
_MACHINE = re.sub(r"[^\w-]", "-", platform.node())
# The first bytes of binary files, what such a file is, and how to read it.
_BINARY = {
    b"PK\x03\x04": ("an Excel workbook or a zip archive", "Name a workbook .xlsx, and unpack an archive."),
    b"PAR1": ("a Parquet file", "Name it .parquet where a table is expected, or write it anew as text."),
    b"\xd0\xcf\x11\xe0": ("a file of an old version of Office, such as .xls", "Save it as text, CSV or .xlsx."),
    b"\x1f\x8b": ("a gzip archive", "Unpack it: gunzip."),
}
_SMALL = (".json", ".txt", ".yaml")  # Endings of files that may belong to a checkpoint and lie beside it.
_BUFFER = 2**20
# The state of `keep_copies`: the stack that removes the directories; URL -> (states of the files when copied, copy).
_copies = contextvars.ContextVar[tuple[contextlib.ExitStack, dict]]("keep_copies")  # The name appears in LookupErrors.


# === Local paths and URLs ===


def is_remote(path: str) -> bool:
    """Returns whether a path is a URL for `tf.io.gfile`; handles of presets (hf://, kaggle://) are not."""
    return re.match(r"(?!hf:|kaggle:)[a-z][a-z0-9+.-]*://", os.fspath(path)) is not None


@contextlib.contextmanager
def _remote(path: str) -> Iterator:
    """Yields `tf.io.gfile`, and turns its errors into OSErrors that name the path and the fix."""
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        known = {
            "NotFoundError": (errno.ENOENT, "no such file or bucket"),
            "PermissionDeniedError": (errno.EACCES, f"permission denied; {_LOG_IN}"),
            "UnauthenticatedError": (errno.EACCES, f"not logged in; {_LOG_IN}"),
            "UnimplementedError": (errno.EPROTONOSUPPORT, "TensorFlow knows no file system of this name here"),
        }
        number, reason = known.get(type(error).__name__, (errno.EIO, first_line(error)))
        raise OSError(number, reason, path) from error


def _gfile(function: str, path: str, *arguments, **options):
    """Calls a function of `tf.io.gfile`, whose errors become OSErrors."""
    with _remote(path) as gfile:
        return getattr(gfile, function)(path, *arguments, **options)


_LOG_IN = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"


def absolute(path: str) -> str:
    """Returns the absolute path, or a URL without trailing slashes."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)


def real_path(path: str) -> str:
    """Returns the absolute path with symbolic links resolved, or a URL without trailing slashes."""
    return absolute(path) if is_remote(path) else os.path.realpath(path)


def exists(path: str) -> bool:
    """Returns whether a path exists."""
    return _gfile("exists", path) if is_remote(path) else os.path.exists(path)


def is_directory(path: str) -> bool:
    """Returns whether a path is an existing directory."""
    return _gfile("isdir", path) if is_remote(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
    """Returns whether a path is an existing regular file; a local pipe is not one."""
    return exists(path) and not is_directory(path) if is_remote(path) else os.path.isfile(path)


def file_size(path: str) -> int:
    """Returns a file's size in bytes."""
    return file_state(path)[0]


def file_states(directory: str) -> dict[str, tuple[int, int]]:
    """Returns the size in bytes and the modification time in nanoseconds of each file below a directory, by path."""
    states = {}
    for folder, _, names in list(_gfile("walk", directory)) if is_remote(directory) else os.walk(directory):
        for path in (os.path.join(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):  # Removed meanwhile.
                states[path] = file_state(path)
    return states


def file_state(path: str) -> tuple[int, int]:
    """Returns a file's size in bytes and its modification time in nanoseconds."""
    if is_remote(path):
        state = _gfile("stat", path)
        return state.length, state.mtime_nsec
    state = os.stat(path)
    return state.st_size, state.st_mtime_ns


def list_directory(path: str) -> list[str]:
    """Returns the sorted names of a directory's entries."""
    return sorted(name.rstrip("/") for name in (_gfile("listdir", path) if is_remote(path) else os.listdir(path)))


def make_directory(path: str) -> None:
    """Makes a directory and its parents, unless they exist."""
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)
        return
    bucket = "/".join(path.split("/")[:3])
    if path.startswith("gs://") and not exists(bucket):  # TensorFlow would retry forever.
        raise FileNotFoundError(errno.ENOENT, "no such bucket", bucket)
    _gfile("makedirs", path)


def remove_path(path: str) -> None:
    """Removes a file or a directory tree, if it exists."""
    if is_remote(path):
        with contextlib.suppress(FileNotFoundError):
            _gfile("rmtree" if is_directory(path) else "remove", path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def move(source: str, target: str) -> None:
    """Moves a file, replacing an existing one; the target appears whole."""
    if is_remote(source) and is_remote(target):
        _gfile("rename", source, target, overwrite=True)
        return
    try:
        os.replace(source, target)
    except OSError:  # Another disk, or a bucket.
        with atomic_path(target) as temporary, open_file(source) as file, open(temporary, "wb") as copy:
            shutil.copyfileobj(file, copy, _BUFFER)
        remove_path(source)


def open_file(path: str) -> BinaryIO:
    """Opens a local or remote file for reading bytes; the file is seekable. To write, see `atomic_path`."""
    return io.BufferedReader(_RemoteFile(path), _BUFFER) if is_remote(path) else open(path, "rb")


class _RemoteFile(io.RawIOBase):
    """Adapts a file of `tf.io.gfile` to `io.BufferedReader`."""

    def __init__(self, path: str):
        self._path = path
        with _remote(path) as gfile:
            self._file = gfile.GFile(path, "rb")
            self._file.size()  # Opens it.

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def readinto(self, buffer: memoryview) -> int:
        with _remote(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def check_complete(directory: str) -> None:
    """Refuses a remote directory that `atomic_path` has begun to fill but not finished.

    Raises:
        InputError: the directory is half written.
    """
    if is_remote(directory) and exists(os.path.join(directory, INCOMPLETE)):
        raise InputError(
            f"{directory}: half written, since it holds {INCOMPLETE}. Wait for its writer, or run that command again."
        )


@contextlib.contextmanager
def keep_copies() -> Iterator[None]:
    """Keeps the local copies that are made in this context until its end, so that each is made once.

    A nested context does nothing. It also works as a decorator.
    """
    if _copies.get(None) is not None:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.callback(_copies.reset, _copies.set((stack, {})))
        yield


def local_copy(path: str) -> str:
    """Returns the path of a local copy of a remote file or directory; returns a local path unchanged.

    Readers that cannot open URLs, such as memory maps and HDF5, need the copy. For a URL this must be called inside
    `keep_copies`, which removes the copy at its end. If the original has changed since the last call, it is copied
    again.

    Args:
        path: a file, a directory, or the prefix of a TensorFlow checkpoint, which comes with the small files beside it.

    Raises:
        InputError: the directory is half written, or the path changes while it is copied.
        OSError: there is no such path, or it cannot be read.
        LookupError: `path` is a URL, and there is no `keep_copies` context.
    """
    if not is_remote(path):
        return path
    stack, copies = _copies.get()
    path = absolute(path)
    check_complete(path)
    states = _describe(path)
    if path not in copies or copies[path][0] != states:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="keras_bert_"))
        for name in states:
            target = os.path.join(directory, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _gfile("copy", os.path.join(os.path.dirname(path), name), target, overwrite=True)
        check_complete(path)
        if _describe(path) != states:
            raise InputError(f"{path}: changed while it was copied. Repeat the command when its writer has finished.")
        copies[path] = states, os.path.join(directory, os.path.basename(path))
    return copies[path][1]


def _describe(path: str) -> dict[str, tuple[int, int]]:
    """Returns `file_state` of the files that belong to a remote path, by their name relative to its parent."""
    parent, name = os.path.split(path)
    if exists(f"{path}.index"):
        names = [file for file in list_directory(parent) if file.startswith(f"{name}.") or file.endswith(_SMALL)]
        return {file: file_state(os.path.join(parent, file)) for file in names}
    states = file_states(path) if is_directory(path) else {path: file_state(path)}
    return {os.path.relpath(file, parent): state for file, state in states.items()}


# === Reading ===


def expand_files(patterns: str | list[str]) -> list[str]:
    """Lists the files that a flag such as `--input_file` names.

    Args:
        patterns: comma-separated string, or list of strings; each a path or a glob pattern. Only a pattern whose last
            part begins with a dot matches hidden files, in a bucket too. An existing path is used as it is, even if its
            name has commas, brackets or stars.

    Returns:
        The sorted matches of each pattern, in the order of the patterns; each file once.

    Raises:
        InputError: a pattern matches no file, or names a directory.
    """
    if isinstance(patterns, str):
        patterns = [patterns] if exists(patterns) else [part.strip() for part in patterns.split(",") if part.strip()]
    if not patterns:
        raise InputError("No input file was named. Expected a path, a glob pattern, or several with commas between.")
    files: dict[str, None] = {}
    for pattern in patterns:
        paths = [pattern] if exists(pattern) else _gfile("glob", pattern) if is_remote(pattern) else glob.glob(pattern)
        matches = sorted(path for path in paths if _is_hidden(path) <= _is_hidden(pattern))
        if not matches:
            raise InputError(f"{pattern}: no such file, and no file matches it as a pattern. Check the path.")
        for path in matches:
            if is_directory(path):
                raise InputError(f"{path}: expected a file, found a directory. Name its files, e.g. '{path}/*'.")
            files[path] = None
    return list(files)


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith(".")


def expand_file(flag: str, pattern: str) -> str:
    """Finds the one file that a flag such as `--dev_file` names.

    Args:
        flag: the flag's name, dashes included.
        pattern: a path, or a glob pattern that one file matches.

    Raises:
        InputError: the pattern matches no file or several, or names a directory.
    """
    paths = expand_files([pattern])
    if len(paths) != 1:
        raise InputError(f"{flag}={pattern}: expected one file, found {len(paths)}: {', '.join(paths)}. Name one.")
    return paths[0]


def check_size(path: str, most_bytes: int) -> None:
    """Refuses a file of more bytes than a file of its kind can have, before it is read.

    Raises:
        InputError: the file has more than `most_bytes`.
    """
    size = file_size(path)
    if size > most_bytes:
        raise InputError(f"{path}: expected at most {most_bytes:,} bytes, found {size:,}. Do not trust this file.")


@contextlib.contextmanager
def parsing(path: str, kind: str) -> Iterator[None]:
    """Turns any error that a parser raises on a damaged or hostile file into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: not a whole {kind} ({first_line(error)}). Fetch it again.") from error


def read_lines(path: str, most_bytes: int | None = None, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    """Yields `(line number from 1, text without its line end)` of a UTF-8 file.

    Only a line feed ends a line (a carriage return before it is dropped): exotic line separators inside a
    text stay text. A byte order mark at the file's start is dropped.

    Args:
        path: of the file.
        most_bytes: as in `check_size`; None for a file of any size.
        keep_ends: whether the text keeps its line end.

    Raises:
        InputError: the file cannot be opened, is larger, or a line is not valid UTF-8.
    """
    try:
        file = open_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    with file:
        if most_bytes is not None:
            check_size(path, most_bytes)
        yield from decode_lines(path, file, keep_ends)


def decode_lines(path: str, file: BinaryIO, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the same as `read_lines` for a file that is already open; `path` is for error messages."""
    for number, raw in enumerate(file, start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
            binary = next((kind for start, kind in _BINARY.items() if raw.startswith(start)), None)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if binary is not None:
                raise InputError(f"{path}: expected UTF-8 text, found {binary[0]}. {binary[1]}") from error
            charset = "UTF-16" if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
            raise InputError(
                f"{path}:{number}: not valid UTF-8 at byte {error.start} of the line (0x{raw[error.start]:02x}). "
                f"Convert the file first, e.g. iconv -f {charset} -t UTF-8."
            ) from error
        yield number, text if keep_ends else text.removesuffix("\n").removesuffix("\r")


# === Writing ===


def check_writable(directory: str) -> None:
    """Makes a directory and its parents, and checks that files can be written to it.

    Raises:
        InputError: it cannot be created or written.
    """
    try:
        make_directory(directory)
    except OSError as error:
        raise InputError(f"{directory}: cannot be created ({error.strerror}). Choose another output path.") from error
    if not is_remote(directory) and not os.access(directory, os.W_OK):
        raise InputError(f"{directory}: cannot be written. Choose another output path.")


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """Yields a temporary local path; what is written there becomes `path` on success, and is removed on any error.

    The caller may create a file or a directory under the temporary name. An existing `path` is replaced at the end, so
    that a reader never sees half a result. A local path is written beside its final place and renamed; leftovers of
    killed processes are removed at the start. A remote file is uploaded under another name and renamed; a remote
    directory is marked while it is filled (`check_complete`).

    Raises:
        InputError: the parent directory cannot be created or written.
    """
    path = absolute(path)
    parent = os.path.dirname(path)
    check_writable(parent)
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="keras_bert_") as directory:
            temporary = os.path.join(directory, os.path.basename(path))
            yield temporary
            _upload(temporary, path)
        return
    with temporary_path(path) as temporary:
        yield temporary
        _replace(temporary, path)


@contextlib.contextmanager
def temporary_path(path: str) -> Iterator[str]:
    """Yields a hidden path beside a local one, and removes whatever is still there at the end.

    The leftovers of killed processes of this machine are removed at the start.
    """
    _remove_leftovers(path)
    parent, name = os.path.split(path)
    temporary = os.path.join(parent, f".{name}.partial-{_MACHINE}-{os.getpid()}")
    try:
        yield temporary
    finally:
        remove_path(temporary)


def _upload(source: str, path: str) -> None:
    if not os.path.isdir(source):
        _upload_file(source, path)
        return
    make_directory(path)
    marker = os.path.join(path, INCOMPLETE)
    write_lines(marker, ["Another command is writing this directory, or was killed while it did."])
    for name in list_directory(path):
        if name != INCOMPLETE:
            remove_path(os.path.join(path, name))
    # The files of sub-directories come first, so that TensorFlow Serving, which does not know the mark, finds a
    # saved_model.pb only when its variables are there.
    for folder, _, names in os.walk(source, topdown=False):
        target = os.path.normpath(os.path.relpath(folder, source))
        directory = path if target == os.curdir else os.path.join(path, target)
        make_directory(directory)
        for name in sorted(names):
            _upload_file(os.path.join(folder, name), os.path.join(directory, name))
    remove_path(marker)


def _upload_file(source: str, path: str) -> None:
    # In a bucket, an upload appears at once. Other remote file systems need the rename, and ram:// appends to an
    # existing file.
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.partial")
    remove_path(temporary)
    with _remote(path) as gfile:
        gfile.copy(source, temporary)
        gfile.rename(temporary, path, overwrite=True)


def _replace(temporary: str, path: str) -> None:
    retired = f"{temporary}-old"
    try:
        if os.path.isdir(temporary) and os.path.isdir(path):
            os.rename(path, retired)  # A directory that is not empty cannot be replaced by one rename.
        os.replace(temporary, path)
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
    prefix = f".{name}.partial-{_MACHINE}-"
    # A directory may have thousands of files, each of which is written with such a search.
    for entry in sorted(entry for entry in os.listdir(parent) if entry.startswith(prefix)):
        match = re.fullmatch(r"(\d+)(-old)?", entry.removeprefix(prefix))
        # In a container, the next process often has the ID of the killed one.
        if match and (int(match[1]) == os.getpid() or not is_alive(int(match[1]))):
            if match[2]:
                _settle(os.path.join(parent, entry), path)
            else:
                remove_path(os.path.join(parent, entry))


def is_alive(process: int) -> bool:
    """Returns whether a process, given by its ID, may be running on this machine."""
    if os.name == "nt":  # There, signal 0 is Ctrl-C.
        return True
    try:
        with contextlib.suppress(PermissionError):  # It belongs to another user.
            os.kill(process, 0)  # Signal 0 only checks.
    except (ProcessLookupError, OverflowError):
        return False
    return True


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Writes lines of text, UTF-8 with line feeds, whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence], delimiter: str = "\t") -> None:
    """Writes a table with a header, whole or not at all.

    Args:
        path: path of the file.
        header: names of the columns.
        rows: values of the columns in each row. They are not quoted: a tab or line break becomes a space.
        delimiter: a tab, or a comma if no value contains a comma.
    """
    write_lines(path, (delimiter.join(re.sub(r"[\t\r\n]", " ", str(cell)) for cell in row) for row in (header, *rows)))


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
    except (RecursionError, ValueError) as error:  # Python refuses to convert numbers of thousands of digits.
        place = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else path
        reason = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", error)
        raise InputError(f"{place}: not valid JSON ({reason}). Correct the file or fetch it again.") from error


def read_object(path: str, most_bytes: int | None = MOST_TEXT) -> dict:
    """Reads a JSON file that holds an object, as `read_json` does.

    Raises:
        InputError: as `read_json`, or the file holds another type.
    """
    value = read_json(path, most_bytes)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}.")
    return value


def read_optional_json(path: str):
    """Reads a JSON file as `read_json` does; returns {} if there is no such file."""
    return read_json(path) if is_file(path) else {}


def read_optional_object(path: str) -> dict:
    """Reads a JSON file as `read_object` does; returns {} if there is no such file."""
    return read_object(path) if is_file(path) else {}
