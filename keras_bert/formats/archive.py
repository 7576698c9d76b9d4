"""Extracts zip and tar files, but only if every member stays inside the directory and all fit on the disk."""

import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib

from keras_bert.errors import InputError

# Compressed weights hardly shrink (a float32 model by a tenth), vocabularies to a third. Deflate's limit is 1032.
_MOST_EXPANSION = 100
_NEVER_A_BOMB = 64 * 2**20  # Bytes. A small model of zeros may shrink to nothing.
_ENCRYPTED = 0x1  # PKWARE's APPNOTE, 4.4.4: bit 0 of the general purpose flags.

# The errors that zipfile and its decompressors raise for a damaged file.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, OSError, ValueError)


def is_archive(path: str) -> bool:
    """Tells whether a file is a zip or a tar, or a damaged file that begins as a zip.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            begins_as_zip = file.read(2) == b"PK"
        return begins_as_zip or tarfile.is_tarfile(path) or zipfile.is_zipfile(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}). Check the file.") from error


def extract(path: str, directory: str) -> None:
    """Extracts a zip, or a tar (Model Garden's archives are .tar.gz), into the empty `directory`.

    Raises:
        InputError: the file is not a whole zip or tar; a member's name leads outside the directory; a member is a link,
            a device or encrypted; or the contents are far larger than the file, or larger than the free space. Nothing
            has been written then, unless a member's own bytes are damaged.
    """
    if os.path.isfile(path) and tarfile.is_tarfile(path):
        _extract_tar(path, directory)
    else:
        _extract_zip(path, directory)


def _extract_tar(path: str, directory: str) -> None:
    try:
        with tarfile.open(path) as archive:
            members = archive.getmembers()
            for member in members:
                if not (member.isfile() or member.isdir()):
                    raise InputError(
                        f"{path}: its member {member.name!r} is neither file nor directory. Do not trust this file."
                    )
                _check_name(path, member.name)
            _check_size(path, sum(member.size for member in members), directory)
            archive.extractall(directory, members, filter="data")
    except (tarfile.TarError, *_DAMAGE) as error:
        raise InputError(f"{path}: not a whole tar file ({error}). Fetch it again.") from error


def _extract_zip(path: str, directory: str) -> None:
    try:
        archive = zipfile.ZipFile(path)
    except _DAMAGE as error:
        raise InputError(f"{path}: not a whole zip file ({error}). Fetch it again.") from error
    with archive:
        members = archive.infolist()
        for member in members:
            _check_member(path, member)
        _check_size(path, sum(member.file_size for member in members), directory)
        for member in members:
            try:
                archive.extract(member, directory)
            except _DAMAGE as error:
                raise InputError(
                    f"{path}: its member {member.filename!r} cannot be extracted ({error}). Fetch the file again."
                ) from error


def _check_member(path: str, member: zipfile.ZipInfo) -> None:
    name = member.orig_filename  # `filename` is cut at a zero byte.
    _check_name(path, name)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a symbolic link" if kind == stat.S_IFLNK else "neither file nor directory"
        raise InputError(f"{path}: its member {name!r} is {what}. Do not trust this file.")
    if member.flag_bits & _ENCRYPTED:
        raise InputError(f"{path}: its member {name!r} is encrypted. Expected a zip without a password.")


def _check_name(path: str, name: str) -> None:
    leads_outside = name.startswith("/") or ".." in name.split("/") or re.match("[A-Za-z]:", name)
    if leads_outside or "\\" in name or "\0" in name:
        raise InputError(
            f"{path}: its member {name!r} leads outside the directory, or would on another system. Do not trust this "
            "file."
        )


def _check_size(path: str, size: int, directory: str) -> None:
    packed = os.path.getsize(path)
    if size > max(_NEVER_A_BOMB, _MOST_EXPANSION * packed):
        raise InputError(
            f"{path}: its members would take {size:,} bytes, {size // max(packed, 1):,} times the file's {packed:,}; "
            f"weights take at most {_MOST_EXPANSION} times. Do not trust this file."
        )
    free = shutil.disk_usage(directory).free
    if size > free:
        raise InputError(
            f"{path}: its members take {size:,} bytes, and {directory} has {free:,} free. Make room, or set "
            "TMPDIR to a larger disk."
        )
