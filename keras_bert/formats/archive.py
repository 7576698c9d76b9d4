"""Extracts zip and tar files, but only if every member stays inside the directory and all fit on the disk."""

import contextlib
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

# The errors that tarfile, zipfile and their decompressors raise for a damaged file.
_BROKEN_STREAM = (zlib.error, lzma.LZMAError, EOFError)
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, *_BROKEN_STREAM, NotImplementedError, OSError, ValueError)


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
    is_tar = os.path.isfile(path) and tarfile.is_tarfile(path)
    check, options = (_check_tar_member, {"filter": "data"}) if is_tar else (_check_zip_member, {})
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(tarfile.open(path) if is_tar else zipfile.ZipFile(path))
            members = archive.getmembers() if is_tar else archive.infolist()
        except _DAMAGE as error:
            kind = "tar" if is_tar else "zip"
            raise InputError(f"{path}: not a whole {kind} file ({error}). Fetch it again.") from error
        _check_size(path, sum(check(path, member) for member in members), directory)
        for member in members:
            try:
                archive.extract(member, directory, **options)
            except _DAMAGE as error:
                name = member.name if is_tar else member.filename
                raise InputError(
                    f"{path}: its member {name!r} cannot be extracted ({error}). Fetch the file again."
                ) from error


def _check_tar_member(path: str, member: tarfile.TarInfo) -> int:
    """Returns the member's size; raises InputError if it must not be extracted."""
    if not (member.isfile() or member.isdir()):
        raise InputError(f"{path}: its member {member.name!r} is neither file nor directory. Do not trust this file.")
    _check_name(path, member.name)
    return member.size


def _check_zip_member(path: str, member: zipfile.ZipInfo) -> int:
    """Returns the member's size; raises InputError if it must not be extracted."""
    name = member.orig_filename  # `filename` is cut at a zero byte.
    _check_name(path, name)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a symbolic link" if kind == stat.S_IFLNK else "neither file nor directory"
        raise InputError(f"{path}: its member {name!r} is {what}. Do not trust this file.")
    if member.flag_bits & _ENCRYPTED:
        raise InputError(f"{path}: its member {name!r} is encrypted. Expected a zip without a password.")
    return member.file_size


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
