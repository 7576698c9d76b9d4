"""The corpus of docstrings: what is read, in which order, how it is split, labelled and written."""

import collections
import os
import subprocess
import sys

import pytest
from repository import ROOT

from keras_bert.errors import InputError
from keras_bert.files import write_lines
from tasks.quickstart import docstrings
from tasks.quickstart.corpus import Corpus, Document, hash_of, label_sentences

PLANTS = '''"""Reads the leaves of the plants."""

raise RuntimeError("imported!")

class Leaf:
    """A leaf is green in the spring."""

    def fall(self):
        """Falls to the ground in autumn.

        A leaf is green in the spring.
        """

    async def grow(self):
        """Grows when it has light and water."""

"""This string is no docstring at all."""
'''
STONES = '"""Collects the stones of the field."""\n\ndef f():\n    """A leaf is green in the spring."""\n'


@pytest.fixture()
def packages(tmp_path):
    """Two packages by name, and where they lie."""
    files = {
        "plants/__init__.py": PLANTS,
        "plants/deep/roots.py": '"""The roots are deep in the earth."""',
        "plants/broken.py": '"""This file is of no use."""\ndef (:',
        "plants/latin.py": b'"""Caf\xe9 is the word in this one."""',
        "plants/leaf_test.py": '"""Tests that the leaves are green."""',
        "plants/tests/stem.py": '"""Tests that the stem is green."""',
        "plants/_vendor/copy.py": '"""A copy of the work of others."""',
        "plants/notes.txt": "This text is not in a module.",
        "stones.py": STONES,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {"plants": str(tmp_path / "plants"), "stones": str(tmp_path / "stones")}


def collect(packages, **arguments):
    return docstrings.collect(packages, directories=packages, num_workers=1, **arguments)


def numbered(package, count, sentences=1, start=0):
    """Documents of one package, with as many sentences in each, numbered from `start`."""
    return [
        Document(
            package,
            f"{package}.m{i}",
            [f"The sentence {j} of module {i} in {package[0]} here." for j in range(sentences)],
        )
        for i in range(start, start + count)
    ]


def test_collect_reads_docstrings_without_importing(packages):
    corpus = collect(packages)
    assert corpus.documents == [
        Document(
            "plants",
            "plants",
            [
                "Reads the leaves of the plants.",
                "A leaf is green in the spring.",
                "Falls to the ground in autumn.",
                "Grows when it has light and water.",
            ],
        ),
        Document("plants", "plants.deep.roots", ["The roots are deep in the earth."]),
        Document("stones", "stones", ["Collects the stones of the field."]),
    ]
    assert (corpus.num_documents, corpus.num_sentences) == (3, 6)
    assert corpus.sentences_by_package() == {"plants": 5, "stones": 1}
    assert corpus.summary() == f"3 documents, 6 sentences, {corpus.num_bytes} bytes"


def test_processes_give_what_one_gives(packages):
    assert docstrings.collect(packages, directories=packages, num_workers=2) == collect(packages)


def test_collect_stops_at_the_cap(packages):
    corpus = collect(packages, max_sentences_per_package=2)
    assert corpus.sentences_by_package() == {"plants": 2, "stones": 1}


def test_a_full_package_is_read_no_further():
    left = {"a": 10, "b": 10}
    batches = docstrings._batches({"a": list(range(100)), "b": [0]}, left)
    assert next(batches) == ("a", list(range(docstrings._FILES_PER_BATCH)))
    left["a"] = 0
    assert list(batches) == [("b", [0])]


def test_a_corpus_without_prose_is_an_error(tmp_path):
    (tmp_path / "empty.py").write_text("X = 1\n")
    with pytest.raises(InputError, match="No English prose in the docstrings of: empty"):
        collect({"empty": str(tmp_path / "empty")})


def test_installed_packages_are_those_that_the_project_requires(monkeypatch):
    requires = {
        docstrings.DISTRIBUTION: ["Tensor_Flow>=2", "pytest; extra == 'test'"],
        "tensor-flow": ["numpy", "gone"],
        "numpy": ["tensor.flow"],
    }

    def lookup(name):
        if name not in requires:
            raise docstrings.importlib.metadata.PackageNotFoundError(name)
        return requires[name]

    monkeypatch.setattr(docstrings.importlib.metadata, "requires", lookup)
    providers = {"tensorflow": ["tensor_flow"], "numpy": ["numpy"], "pytest": ["pytest"], "_numpy": ["numpy"]}
    monkeypatch.setattr(docstrings.importlib.metadata, "packages_distributions", lambda: providers)
    assert docstrings.installed_packages() == ["python", "numpy", "tensorflow"]
    del requires[docstrings.DISTRIBUTION]
    assert docstrings.installed_packages() == ["python", "numpy", "pytest", "tensorflow"]


def test_the_standard_library_is_found():
    modules = dict(docstrings.list_modules("python"))
    assert {"python.json.decoder", "python.zipfile", "python.email"} <= modules.keys()
    assert not any(part in module.split(".") for module in modules for part in ("test", "idlelib", "site-packages"))


def test_an_installed_package_and_an_installed_module_are_found():
    assert "absl.flags" in dict(docstrings.list_modules("absl"))
    assert [name for name, _ in docstrings.list_modules("six")] == ["six"]


def test_real_packages_give_many_sentences_and_no_markup():
    corpus = docstrings.collect(["absl", "tqdm"], num_workers=1)
    texts = [text for document in corpus.documents for text in document.sentences]
    assert len(texts) > 300
    assert len(set(texts)) == len(texts)
    assert not any(mark in text for text in texts for mark in ("`", ">>>", "::", "\n", "\t", "http"))
    defines = next(document for document in corpus.documents if document.module == "absl.flags._defines")
    assert any("flag" in text for text in defines.sentences)


def test_split_is_by_module_and_the_same_whatever_else_is_there():
    corpus = Corpus(numbered("plants", 1000))
    training, held_out = docstrings.split(corpus, held_out_share=0.1)
    assert 70 < held_out.num_documents < 130
    assert training.num_documents + held_out.num_documents == 1000
    assert docstrings.split(Corpus(corpus.documents[:500]), 0.1)[1].documents == [
        document for document in held_out.documents if document in corpus.documents[:500]
    ]


def test_a_capped_package_is_held_out_no_more_than_others():
    modules = sorted((f"plants.m{i}" for i in range(1000)), key=hash_of)[:300]
    corpus = Corpus([Document("plants", module, ["It is green in here."]) for module in modules])
    assert docstrings.split(corpus, held_out_share=0.1)[1].num_documents < 60


def test_write_gives_a_sentence_a_line_and_a_blank_line_after_a_document(tmp_path, packages):
    corpus = collect(packages)
    path = tmp_path / "out" / "corpus.txt"
    write_lines(str(path), corpus.lines())
    text = path.read_text()
    assert text.split("\n\n")[1:] == ["The roots are deep in the earth.", "Collects the stones of the field.", ""]
    assert len(text.encode()) == corpus.num_bytes
    assert os.listdir(path.parent) == ["corpus.txt"]


def test_labels_are_the_largest_packages_in_equal_shares():
    training = Corpus(numbered("apple", 30) + numbered("berry", 20) + numbered("cherry", 5))
    dev = Corpus(numbered("apple", 4, start=30) + numbered("berry", 3, start=20))
    rows, dev_rows = label_sentences(training, dev, num_packages=2, max_training_rows=15, max_dev_rows=10)
    assert collections.Counter(label for _, label in rows) == {"apple": 15, "berry": 15}
    assert collections.Counter(label for _, label in dev_rows) == {"apple": 3, "berry": 3}
    assert [label for _, label in rows] != sorted(label for _, label in rows), "rows are mixed"


def test_a_sentence_that_names_a_label_or_says_little_is_no_row():
    documents = [
        Document(
            "apple",
            "apple.m",
            [
                "An Apple a day keeps the doctor away, they say.",
                "It is short.",
                "The fruit of this tree is red and it is sweet.",
            ],
        ),
        Document("berry", "berry.m", ["The fruit of this bush is blue and it is small."]),
    ]
    rows, _ = label_sentences(Corpus(documents), Corpus(documents), num_packages=2)
    assert sorted(rows) == [
        ("The fruit of this bush is blue and it is small.", "berry"),
        ("The fruit of this tree is red and it is sweet.", "apple"),
    ]


def test_importing_costs_no_tensorflow():
    code = "import sys, tasks.quickstart.docstrings; print({'tensorflow', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
