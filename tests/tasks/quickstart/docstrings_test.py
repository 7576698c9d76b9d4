"""Docstrings as text: which sentences are kept, which packages and modules are read, and in which order."""

import subprocess
import sys

import pytest
from repository import ROOT

from tasks.quickstart import docstrings
from tasks.quickstart.corpus import Document, hash_of

GOOGLE = """Trains a `model` on *batches* of text.

    The loop stops early when the loss
    no longer falls.  It is resumed from the
    last checkpoint (e.g. The best one).

    Example:
        >>> train(model)

    Args:
        model: The model that is to be trained.
        steps (int): Number of steps, and it
            may be larger than one epoch.
        **kwargs: Passed on.
    """
NUMPY = """Compute the mean of the array.

Parameters
----------
a : array_like
    Array containing the numbers to average.
axis : int, optional
    Axis along which the means are computed.

Notes
-----
The arithmetic mean is the sum of the elements
divided by their number.

>>> mean([1, 2])
1.5
"""
SPHINX = """Opens the file for the reader.

:param path: Where the :class:`File` is stored.
:returns: The text of the whole file.

- It is closed at the end.
- Its name is kept for later.
"""


@pytest.mark.parametrize(
    ("docstring", "sentences"),
    [
        (
            GOOGLE,
            [
                "Trains a model on batches of text.",
                "The loop stops early when the loss no longer falls.",
                "It is resumed from the last checkpoint (e.g. The best one).",
                "The model that is to be trained.",
                "Number of steps, and it may be larger than one epoch.",
            ],
        ),
        (
            NUMPY,
            [
                "Compute the mean of the array.",
                "Array containing the numbers to average.",
                "Axis along which the means are computed.",
                "The arithmetic mean is the sum of the elements divided by their number.",
            ],
        ),
        (
            SPHINX,
            [
                "Opens the file for the reader.",
                "Where the File is stored.",
                "The text of the whole file.",
                "It is closed at the end.",
                "Its name is kept for later.",
            ],
        ),
        ("Too short a text.", []),
        ("without a capital it is no sentence.", []),
        ("It has no full stop at all", []),
        ("It has x = 1 and so it is code.", []),
        ("The caf\u00e9 is not in ASCII, so it is left out.", []),
    ],
)
def test_sentences_of_a_docstring(docstring, sentences):
    assert list(docstrings.sentences(docstring)) == sentences


PLANTS = '''"""Reads the leaves of the plants."""

raise RuntimeError("imported!")

class Leaf:
    """A leaf is green in the spring. It is brown in the autumn."""

    def fall(self):
        """Falls to the ground in autumn."""

    async def grow(self):
        """Grows when it has light and water."""

def short():
    """Returns."""

"""This string is no docstring at all."""
'''


def test_a_docstring_is_a_document_and_nothing_is_imported(tmp_path):
    files = {
        "__init__.py": PLANTS,
        "deep/roots.py": '"""The roots are deep in the earth."""',
        "broken.py": '"""This file has no use."""\ndef (:',
        "latin.py": b'"""Caf\xe9 is the word in this one."""',
        "tests/stem.py": '"""Tests that the stem is green."""',
        "_vendor/copy.py": '"""A copy of the work of others."""',
        "notes.txt": "This text is not in a module.",
    }
    for name, text in files.items():
        path = tmp_path / "plants" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    plants = [
        Document("plants", "plants", "plants", ["Reads the leaves of the plants."]),
        Document(
            "plants",
            "plants",
            "plants.Leaf",
            ["A leaf is green in the spring.", "It is brown in the autumn."],
        ),
        Document("plants", "plants", "plants.Leaf.fall", ["Falls to the ground in autumn."]),
        Document("plants", "plants", "plants.Leaf.grow", ["Grows when it has light and water."]),
    ]
    name = "plants.deep.roots"
    roots = [Document("plants", name, name, ["The roots are deep in the earth."])]
    modules = sorted([plants, roots], key=lambda module: hash_of(module[0].group))
    package = ("plants", str(tmp_path / "plants"))
    assert docstrings.read_package(100, package) == modules[0] + modules[1]
    assert docstrings.read_package(1, package) == modules[0]


def test_packages_are_the_standard_library_and_the_largest_first():
    names = list(docstrings.packages())
    assert names[0] == "python" and "keras" in names[:10]
    assert names.index("keras") < names.index("absl")


def test_the_standard_library_is_read_without_what_is_installed_in_it():
    documents = docstrings.read_package(1000, ("python", docstrings.packages()["python"]))
    assert sum(len(document.sentences) for document in documents) >= 1000
    assert not any(part in document.group.split(".") for document in documents for part in ("test", "site-packages"))


def test_collect_reads_each_package():
    documents = docstrings.collect(2, 10)
    assert [label for label in dict.fromkeys(document.label for document in documents)] == list(docstrings.packages())[
        :2
    ]


def test_importing_costs_no_tensorflow():
    code = "import sys, tasks.quickstart.docstrings; print({'tensorflow', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
