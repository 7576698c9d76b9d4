"""Zip files: extracted only where every member stays inside the directory."""

import os
import zipfile

from keras_bert.errors import InputError


def extract(path: str, directory: str) -> None:
    """Extracts a zip into `directory`, which is empty.

    Raises:
        InputError: the zip is damaged, or a member's name leads outside (nothing is written then).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_member(path, member)
            archive.extractall(directory)
    except (zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{path}: a damaged zip file ({error}). Fetch it again.") from error


def _check_member(path: str, member: zipfile.ZipInfo) -> None:
    name = member.filename.replace("\\", "/")
    if name.startswith("/") or ".." in name.split("/") or os.path.splitdrive(member.filename)[0]:
        raise InputError(f"{path}: its member {member.filename!r} leads outside the directory. Do not trust this file.")
    if (member.external_attr >> 16) & 0o170000 == 0o120000:
        raise InputError(f"{path}: its member {member.filename!r} is a symbolic link. Do not trust this file.")
