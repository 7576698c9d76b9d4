"""English prose without a download: the docstrings of the standard library and of the installed packages.

A module is a document; the paragraphs of its docstrings, split into sentences (tasks/prose.py), are its text.
Source files are read with `ast`, so nothing is imported or executed. The result is the same on every machine
with the same packages: everything that looks random here is a hash of a name.
"""

import ast
import collections
import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import itertools
import multiprocessing
import os
import re
import signal
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from packaging.requirements import Requirement
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from tasks import prose

STANDARD_LIBRARY = "python"
DISTRIBUTION = "keras-bert-zoo"

# Not documents of their own: tests, re-exports, copies of other packages, and parts kept for old callers.
_SKIPPED_DIRECTORIES = frozenset(
    "test tests testing _api _vendor vendor _vendored_packages vendored externals third_party site-packages "
    "dist-packages idlelib lib2to3 ensurepip turtledemo pydoc_data distutils __pycache__".split()
)
# tf_keras is Keras 2, whose sentences are nearly those of keras; setuptools and pip carry copies of others.
_SKIPPED_PACKAGES = frozenset("tf_keras setuptools pkg_resources pip keras_bert tasks export".split())
_MODULE_FILE = re.compile(r"(?!test_|conftest)\w+(?<!_test)\.py")
# The name of tf-models-official says nothing, and its sentences read like TensorFlow's and Keras's.
_SKIPPED_LABELS = frozenset(["official"])
# Longer ones are generated; the longest here that people wrote (pandas/core/frame.py) has 725 kB.
_MAX_FILE_BYTES = 1_000_000
_FILES_PER_BATCH = 16


class Document(NamedTuple):
    """The sentences of one module, in their order; of docstrings, none occurs in another document."""

    package: str
    module: str
    sentences: list[str]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents, in the order of their packages and modules."""

    documents: list[Document]

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_sentences(self) -> int:
        return sum(len(document.sentences) for document in self.documents)

    @property
    def num_bytes(self) -> int:
        """Size of the file that `write` makes of it."""
        sentences = (text for document in self.documents for text in document.sentences)
        return sum(len(text.encode()) + 1 for text in sentences) + len(self.documents)

    def sentences_by_package(self) -> dict[str, int]:
        """Number of sentences of each package, the largest first; equal ones by name."""
        counts = collections.Counter()
        for document in self.documents:
            counts[document.package] += len(document.sentences)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def summary(self) -> str:
        """One line for people: how many documents, sentences and bytes."""
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_bytes:,} bytes"


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and their functions, from the top down."""
    if docstring := ast.get_docstring(node, clean=False):
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child)


def read_module(path: str) -> list[str]:
    """Returns the sentences of one source file's docstrings; none if it can't be read or parsed."""
    try:
        with open(path, "rb") as file:
            source = file.read()
        if b'"""' not in source and b"'''" not in source or len(source) > _MAX_FILE_BYTES:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Other people's invalid escape sequences.
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return list(dict.fromkeys(text for docstring in _docstrings(tree) for text in prose.sentences(docstring)))


def _source_files(directory: str) -> Iterator[str]:
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(set(directories) - _SKIPPED_DIRECTORIES)
        yield from (os.path.join(parent, name) for name in sorted(names) if _MODULE_FILE.fullmatch(name))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def list_modules(package: str, directory: str | None = None) -> list[tuple[str, str]]:
    """Lists `(module, path)` of a package's source files.

    Args:
        package: import name of an installed package, or "python" for the standard library.
        directory: where the package lies; the installed one by default.

    Returns:
        The modules in the order of a hash of their names, so that a capped package is sampled evenly.
    """
    paths = sysconfig.get_paths()
    if package == STANDARD_LIBRARY and directory is None:
        directory = paths["stdlib"]
    if directory is None:
        candidates = (os.path.join(paths[key], package) for key in ("purelib", "platlib"))
        directory = next((path for path in candidates if os.path.exists(path)), os.path.join(paths["purelib"], package))
    files = _source_files(directory) if os.path.isdir(directory) else [f"{directory}.py"]
    modules = []
    for path in files:
        stem = os.path.relpath(path, directory).removesuffix(".py").removesuffix("__init__")
        name = "" if path == f"{directory}.py" else stem.replace(os.sep, ".").strip(".")
        modules.append((f"{package}.{name}".rstrip("."), path))
    return sorted(modules, key=lambda module: _hash(module[0]))


def installed_packages() -> list[str]:
    """Lists the packages to read: the standard library, and what this project's own installation brought along.

    Other packages on the machine don't count, so that the corpus is the same wherever the locked versions are. Where
    the project is not installed (a bare checkout on the path), every installed package counts.

    Returns:
        "python" first, then import names in alphabetical order.
    """
    by_import_name = importlib.metadata.packages_distributions()
    required = _required_distributions(DISTRIBUTION)
    names = {
        name
        for name, distributions in by_import_name.items()
        if name.isidentifier() and not name.startswith("_") and name not in _SKIPPED_PACKAGES
        if required is None or any(_normalize(distribution) in required for distribution in distributions)
    }
    return [STANDARD_LIBRARY, *sorted(names)]


def _normalize(distribution: str) -> str:
    return distribution.lower().replace("_", "-").replace(".", "-")


def _required_distributions(root: str) -> set[str] | None:
    """Names of a distribution's requirements, theirs, and so on; None if it is not installed."""
    pending, seen = [(root, frozenset())], set()
    while pending:
        name, extras = pending.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            if name == root:
                return None
            continue
        for requirement in map(Requirement, requires):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or [""]):
                pending.append((_normalize(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen}


def collect(
    packages: Iterable[str] | None = None,
    max_sentences_per_package: int = 20_000,
    num_workers: int | None = None,
    directories: dict[str, str] | None = None,
) -> Corpus:
    """Reads the docstrings of packages, on all cores, with a progress bar.

    A sentence counts once, where it occurs first: of licences and of copied docstrings one is left.

    Args:
        packages: import names, "python" for the standard library; `installed_packages()` by default.
        max_sentences_per_package: where to stop with a package; its modules are taken in the order of a hash.
        num_workers: processes; one for each core by default, and with 1 this process does the work.
        directories: where packages lie that are not installed, by import name.

    Raises:
        InputError: there was not one sentence of prose.
    """
    packages = installed_packages() if packages is None else list(packages)
    num_workers = num_workers or _num_cores()
    queues = {package: list_modules(package, (directories or {}).get(package)) for package in packages}
    seen: set[str] = set()
    documents: dict[str, list[Document]] = {package: [] for package in packages}
    counts = collections.Counter()
    total = sum(map(len, queues.values()))
    with tqdm(total=total, desc="Reading docstrings", unit=" modules", mininterval=0.5) as bar:
        batches = _batches(queues, is_full=lambda package: counts[package] >= max_sentences_per_package)
        for package, modules, texts in _read_batches(batches, num_workers):
            bar.update(len(modules))
            for (module, _), found in zip(modules, texts, strict=True):
                found = [text for text in found if text not in seen][: max_sentences_per_package - counts[package]]
                if found:
                    seen.update(found)
                    counts[package] += len(found)
                    documents[package].append(Document(package, module, found))
        bar.update(total - bar.n)  # The modules of full packages.
    corpus = Corpus([document for package in packages for document in sorted(documents[package])])
    if not corpus.documents:
        raise InputError(f"No English prose in the docstrings of: {', '.join(packages)}. Name other packages.")
    return corpus


def _num_cores() -> int:
    """Cores that this process may use; where the system (macOS) can't say, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(queues: dict[str, list], is_full: Callable[[str], bool]) -> Iterator[tuple[str, list]]:
    """Yields `(package, modules)`, package by package, a few files at a time, until the package is full."""
    for package, modules in queues.items():
        for start in range(0, len(modules), _FILES_PER_BATCH):
            if is_full(package):
                break
            yield package, modules[start : start + _FILES_PER_BATCH]


def _read_batches(batches: Iterator[tuple[str, list]], num_workers: int) -> Iterator[tuple[str, list, list[list[str]]]]:
    """Reads batches in their order, a bounded number ahead, and adds each module's sentences."""
    if num_workers == 1:
        for package, modules in batches:
            yield package, modules, _read_modules(modules)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        num_workers, mp_context=multiprocessing.get_context("spawn"), initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # Ctrl-C is the parent's: workers die with it, without tracebacks.
    )  # fmt: skip
    try:
        ahead = collections.deque()
        while True:
            for package, modules in itertools.islice(batches, 3 * num_workers - len(ahead)):
                ahead.append((package, modules, pool.submit(_read_modules, modules)))
            if not ahead:
                break
            package, modules, future = ahead.popleft()
            yield package, modules, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_modules(modules: list[tuple[str, str]]) -> list[list[str]]:
    return [read_module(path) for _, path in modules]


def split(corpus: Corpus, held_out_share: float = 0.1) -> tuple[Corpus, Corpus]:
    """Splits a corpus into training and held-out documents, by a hash of the module's name.

    The hash is another than the one that orders modules, or a capped package would keep all that is held out.
    """
    bound = int(held_out_share * 2**64)
    training, held_out = [], []
    for document in corpus.documents:
        (held_out if _hash(f"held out? {document.module}") < bound else training).append(document)
    return Corpus(training), Corpus(held_out)


def write(corpus: Corpus, path: str) -> None:
    """Writes a corpus as text: one sentence a line, a blank line after each document. Whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for document in corpus.documents:
            file.writelines(f"{text}\n" for text in document.sentences)
            file.write("\n")


def label_sentences(
    training: Corpus,
    held_out: Corpus,
    num_packages: int = 8,
    max_training_rows: int = 1000,
    max_dev_rows: int = 250,
    min_words: int = 8,
    hide_names: bool = True,
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Makes a classification task of a split corpus: which package does this sentence document?

    The labels are the packages with most sentences, of those with held-out documents, each equally often. No dev row
    is also a training row.

    Args:
        training: documents to draw the training rows from.
        held_out: documents to draw the dev rows from.
        num_packages: how many labels.
        max_training_rows, max_dev_rows: per label; fewer if a label has fewer sentences.
        min_words: shorter sentences are left out: they could stand anywhere.
        hide_names: leave out sentences that name one of the labels, since that gives the answer away.

    Returns:
        Training rows and dev rows, each a list of `(sentence, package)` in the order of a hash.
    """
    names = [name for name in training.sentences_by_package() if name in held_out.sentences_by_package()]
    packages = [name for name in names if name not in _SKIPPED_LABELS][:num_packages]
    name = re.compile(rf"\b(?:{'|'.join(map(re.escape, packages))})\b", re.IGNORECASE)
    is_training = {text for document in training.documents for text in document.sentences}

    def is_fit(text: str, is_dev: bool) -> bool:
        hidden = hide_names and name.search(text)
        return len(text.split()) >= min_words and not hidden and not (is_dev and text in is_training)

    return (
        _balanced_rows(training, packages, max_training_rows, lambda text: is_fit(text, is_dev=False)),
        _balanced_rows(held_out, packages, max_dev_rows, lambda text: is_fit(text, is_dev=True)),
    )


def _balanced_rows(
    corpus: Corpus, packages: list[str], max_rows: int, is_fit: Callable[[str], bool]
) -> list[tuple[str, str]]:
    rows: dict[str, list] = {package: [] for package in packages}
    for document in corpus.documents:
        if document.package in rows:
            rows[document.package] += [(text, document.package) for text in document.sentences if is_fit(text)]
    num_rows = min(max_rows, *map(len, rows.values())) if rows else 0

    def by_hash(row):
        return _hash(row[0])

    return sorted((row for found in rows.values() for row in sorted(found, key=by_hash)[:num_rows]), key=by_hash)


def write_table(rows: list[tuple[str, str]], path: str) -> None:
    """Writes rows as tab-separated values under a header `sentence`, `label`. Whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines("\t".join(row) + "\n" for row in [("sentence", "label"), *rows])
