"""Extracts zip and tar files, but only if every member stays inside the directory and all fit on the disk.

The members' names and headers are limited in size too, since they may be compressed.
"""

import contextlib
import gzip
import os
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator

from keras_bert.errors import InputError
from keras_bert.files import parsing

# Largest ratio of extracted to packed bytes. Weights hardly shrink (a float32 model by a tenth), vocabularies shrink to
# a third. Deflate's limit is 1032.
_MOST_EXPANSION = 20
# Bytes. A tiny model of zeros may shrink to nothing. JSON of this size takes half a second and 15 MB.
_NEVER_A_BOMB = 2**19
# Bytes of all names and headers; PyTorch's zip of BERT-large has 40,000. tarfile copies global headers for each member,
# so that its memory grows with their square: 160 MB at worst.
_MOST_HEADERS = 2**18
_LONGEST_NAME = 255  # Characters. os.makedirs recurses for each folder.
_ENCRYPTED = 0x1  # PKWARE's APPNOTE, 4.4.4: bit 0 of the general purpose flags.


class _Metered:
    """A file that returns at most `_MOST_HEADERS` bytes until `is_listed` is set."""

    def __init__(self, path: str, file):
        self._path, self._file, self._left, self.is_listed = path, file, _MOST_HEADERS, False

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if self.is_listed:
            return self._file.read(size)
        data = self._file.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise InputError(
                f"{self._path}: the names and headers of its members take more than {_MOST_HEADERS:,} bytes. Expected "
                "some hundred members at most. Do not trust this file."
            )
        return data


@contextlib.contextmanager
def open_archive(path: str, kind: str = "zip") -> Iterator[zipfile.ZipFile | tarfile.TarFile]:
    """Opens a zip, tar or tar.gz, and limits the size of its list of members.

    A zip's list is read here. A tar's list is read with its members, so its `fileobj` stays metered.

    Raises:
        InputError: the list is too long, or the file is damaged.
    """
    with contextlib.ExitStack() as stack:
        with parsing(path, f"{kind} file"):
            with open(path, "rb") as file:
                unpack = gzip.open if kind == "tar" and file.read(2) == b"\x1f\x8b" else open
            metered = _Metered(path, stack.enter_context(unpack(path, "rb")))
            archive = zipfile.ZipFile(metered) if kind == "zip" else tarfile.open(fileobj=metered, mode="r:")
        metered.is_listed = kind == "zip"
        yield stack.enter_context(archive)


def is_archive(path: str) -> bool:
    """Returns whether a file is a zip or a tar, or a damaged file that begins like a zip.

    Raises:
        InputError: the file cannot be read, or is a tar whose headers take too many bytes.
    """
    try:
        with open(path, "rb") as file:
            begins_as_zip = file.read(2) == b"PK"
        return begins_as_zip or _is_tar(path) or zipfile.is_zipfile(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error


def _is_tar(path: str) -> bool:
    try:
        with open_archive(path, "tar"):
            return True
    except InputError as error:
        if error.__cause__ is None:  # tarfile itself found nothing wrong.
            raise
        return False


def extract(path: str, directory: str) -> None:
    """Extracts a zip, or a tar (Model Garden's archives are .tar.gz), into the empty `directory`.

    Raises:
        InputError: the file is not a whole zip or tar; it has too many members; a member's name leads outside the
            directory; a member is a link, a device, encrypted or compressed in a rare way; or the contents are far
            larger than the file, or larger than the free space. Nothing has been written then, unless a member's own
            bytes are damaged.
    """
    is_tar = os.path.isfile(path) and _is_tar(path)
    kind = "tar" if is_tar else "zip"
    with open_archive(path, kind) as archive:
        members, size = [], 0
        with parsing(path, f"{kind} file"):
            # tarfile looks for the next header after the member's bytes, so each member is checked first.
            for member in archive if is_tar else archive.infolist():
                size += (_check_tar_member if is_tar else check_zip_member)(path, member)
                _check_size(path, size, directory)
                members.append(member)
        if is_tar:
            archive.fileobj.is_listed = True
        for member in members:
            try:
                archive.extract(member, directory, **({"filter": "data"} if is_tar else {}))
            except Exception as error:  # The decompressors raise errors of their own.
                name = member.name if is_tar else member.filename
                raise InputError(
                    f"{path}: its member {name!r} cannot be extracted ({error}). Fetch the file again."
                ) from error


def _check_tar_member(path: str, member: tarfile.TarInfo) -> int:
    """Returns the member's size; raises InputError if it must not be extracted."""
    if not (member.isfile() or member.isdir()) or member.issparse() or member.size < 0 or len(member.pax_headers) > 99:
        name = member.name[:_LONGEST_NAME]
        raise InputError(f"{path}: its member {name!r} is neither file nor directory. Do not trust this file.")
    _check_name(path, member.name)
    return member.size


def check_zip_member(path: str, member: zipfile.ZipInfo) -> int:
    """Returns the member's size; raises InputError if it must not be extracted."""
    name = member.orig_filename  # `filename` is cut at a zero byte.
    _check_name(path, name)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a symbolic link" if kind == stat.S_IFLNK else "neither file nor directory"
        raise InputError(f"{path}: its member {name!r} is {what}. Do not trust this file.")
    if member.flag_bits & _ENCRYPTED:
        raise InputError(f"{path}: its member {name!r} is encrypted. Expected a zip without a password.")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Other methods may expand 20,000 times, and zipfile decompresses 64 KB at once.
        raise InputError(
            f"{path}: its member {name!r} is compressed by method {member.compress_type}. Expected stored or deflated "
            "members. Pack the directory again."
        )
    return member.file_size


def _check_name(path: str, name: str) -> None:
    leads_outside = name.startswith("/") or ".." in name.split("/") or re.match("[A-Za-z]:", name)
    if leads_outside or "\\" in name or "\0" in name or len(name) > _LONGEST_NAME:
        raise InputError(
            f"{path}: its member {name[:_LONGEST_NAME]!r} leads outside the directory, or would on another system, or "
            f"has a name of over {_LONGEST_NAME} characters. Do not trust this file."
        )


def _check_size(path: str, size: int, directory: str) -> None:
    packed = os.path.getsize(path)
    if size > max(_NEVER_A_BOMB, _MOST_EXPANSION * packed):
        raise InputError(
            f"{path}: its members would take at least {size:,} bytes, {size // max(packed, 1):,} times the file's "
            f"{packed:,}; weights take at most {_MOST_EXPANSION} times. Do not trust this file."
        )
    free = shutil.disk_usage(directory).free
    if size > free:
        raise InputError(
            f"{path}: its members take {size:,} bytes, and {directory} has {free:,} free. Make room, or set "
            "TMPDIR to a larger disk."
        )
