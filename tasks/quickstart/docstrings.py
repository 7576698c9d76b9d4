"""Collects English prose without a download: the docstrings of the standard library and of installed packages.

A module is a document. Its text is the sentences of its docstrings (tasks/quickstart/prose.py). Source files are parsed
with `ast`, so nothing is imported or executed. Everything that looks random is a hash of a name, so machines with the
same packages have the same corpus.
"""

import ast
import importlib.metadata
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from keras_bert.errors import InputError
from tasks.quickstart import prose
from tasks.quickstart.corpus import Corpus, Document, hash_of
from tasks.text.parallel import LocalPool, available_cores, progress_bar

STANDARD_LIBRARY = "python"
DISTRIBUTION = "keras-bert-zoo"

# Directories to skip: tests, re-exports, copies of other packages, and code kept for old callers.
_SKIPPED_DIRECTORIES = frozenset(
    "test tests testing _api _vendor vendor _vendored_packages vendored externals third_party site-packages "
    "dist-packages idlelib lib2to3 ensurepip turtledemo pydoc_data distutils __pycache__".split()
)
# tf_keras is Keras 2, and nearly repeats keras; setuptools and pip carry copies of other packages. jinja2 and
# prometheus_client became requirements later, and are skipped so that the corpus and its figures stay the same.
_SKIPPED_PACKAGES = frozenset(
    "tf_keras setuptools pkg_resources pip keras_bert tasks export jinja2 prometheus_client".split()
)
_MODULE_FILE = re.compile(r"(?!test_|conftest)\w+(?<!_test)\.py")
# Longer files are generated; the longest one written by people (pandas/core/frame.py) has 725 kB.
_MAX_FILE_BYTES = 1_000_000
_FILES_PER_BATCH = 16


# === Modules ===


def read_module(path: str) -> list[tuple[str, list[str]]]:
    """Returns the name of each object with a docstring, such as `Class.method`, and the docstring's sentences.

    The module's own name is "". There is none if the file cannot be read or parsed.
    """
    try:
        with open(path, "rb") as file:
            source = file.read()
        if b'"""' not in source and b"'''" not in source or len(source) > _MAX_FILE_BYTES:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About invalid escape sequences in other people's code.
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return [(name, list(prose.sentences(docstring))) for name, docstring in _docstrings(tree, "")]


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yields the docstrings of a module and of its classes and functions by name, from top to bottom."""
    if docstring := ast.get_docstring(node, clean=False):
        yield name, docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, f"{name}.{child.name}".lstrip("."))


def list_modules(package: str, directory: str | None = None) -> list[tuple[str, str]]:
    """Lists `(module, path)` of a package's source files.

    Args:
        package: import name of an installed package, or "python" for the standard library.
        directory: directory of the package; by default that of the installed one.

    Returns:
        The modules, ordered by a hash of their names, so that a capped package is sampled evenly.
    """
    directory = directory or _directory_of(package)
    modules = []
    for path in _source_files(directory) if os.path.isdir(directory) else [f"{directory}.py"]:
        stem = os.path.relpath(path, directory).removesuffix(".py").removesuffix("__init__")
        name = "" if path == f"{directory}.py" else stem.replace(os.sep, ".").strip(".")
        modules.append((f"{package}.{name}".rstrip("."), path))
    return sorted(modules, key=lambda module: hash_of(module[0]))


def _directory_of(package: str) -> str:
    """Returns the path of a package, or of a module without its ending."""
    paths = sysconfig.get_paths()
    if package == STANDARD_LIBRARY:
        return paths["stdlib"]
    candidates = [os.path.join(paths[key], package) for key in ("purelib", "platlib")]
    return next(filter(os.path.exists, candidates), candidates[0])


def _source_files(directory: str) -> Iterator[str]:
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(set(directories) - _SKIPPED_DIRECTORIES)
        yield from (os.path.join(parent, name) for name in sorted(names) if _MODULE_FILE.fullmatch(name))


# === Packages ===


def installed_packages(required_only: bool = True) -> list[str]:
    """Lists the packages to read: the standard library, and the direct and indirect requirements of this project.

    Other installed packages are ignored, so that the corpus is the same wherever the locked versions are installed. If
    the project itself is not installed (a bare checkout on the path), all installed packages count.

    Args:
        required_only: whether to ignore them; False lists all installed packages.

    Returns:
        "python" first, then import names in alphabetical order.
    """
    required = _required_distributions(DISTRIBUTION) if required_only else None
    names = {
        name
        for name, distributions in importlib.metadata.packages_distributions().items()
        if name.isidentifier() and not name.startswith("_") and name not in _SKIPPED_PACKAGES
        if required is None or not required.isdisjoint(map(canonicalize_name, distributions))
    }
    return [STANDARD_LIBRARY, *sorted(names)]


def _required_distributions(root: str) -> set[str] | None:
    """Returns the direct and indirect requirements of a distribution; None if it is not installed."""
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
                pending.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen}


# === The corpus ===


def collect(
    packages: Iterable[str] | None = None,
    max_sentences_per_package: int = 20_000,
    num_workers: int | None = None,
    directories: dict[str, str] | None = None,
) -> Corpus:
    """Reads the docstrings of packages on all cores, with a progress bar.

    A sentence is kept only where it occurs first, so that licences and copied docstrings do not repeat.

    Args:
        packages: import names, with "python" for the standard library; by default `installed_packages()`.
        max_sentences_per_package: maximum number of sentences; modules are taken in the order of `list_modules`.
        num_workers: number of processes; by default one per core. With 1 this process does the work.
        directories: directories of packages that are not installed, by import name.

    Raises:
        InputError: there is not a single sentence of prose.
    """
    packages = installed_packages() if packages is None else list(packages)
    queues = {package: list_modules(package, (directories or {}).get(package)) for package in packages}
    left = dict.fromkeys(packages, max_sentences_per_package)
    documents: dict[str, list[Document]] = {package: [] for package in packages}
    functions: list[tuple[str, str, list[str]]] = []
    seen: set[str] = set()
    total = sum(map(len, queues.values()))
    bar = progress_bar("Reading docstrings", " modules", total)
    with LocalPool(num_workers or available_cores()) as pool, bar:
        for package, modules in pool.map(_read_batch, _batches(queues, left)):
            bar.update(len(modules))
            for module, found in modules:
                functions += [(module, f"{module}.{name}", some) for name, some in found if some and _is_public(name)]
                sentences = dict.fromkeys(text for _, some in found for text in some)
                sentences = [text for text in sentences if text not in seen][: left[package]]
                if sentences:
                    seen.update(sentences)
                    left[package] -= len(sentences)
                    documents[package].append(Document(package, module, sentences))
        bar.update(total - bar.n)  # Modules of full packages are not read.
    ordered = [document for package in packages for document in sorted(documents[package])]
    corpus = Corpus(ordered, sorted(functions))
    if not corpus.documents:
        raise InputError(f"No English prose in the docstrings of: {', '.join(packages)}. Name other packages.")
    return corpus


def _is_public(name: str) -> bool:
    return bool(name) and not any(part.startswith("_") for part in name.split("."))


def _batches(queues: dict[str, list], left: dict[str, int]) -> Iterator[tuple[str, list]]:
    """Yields `(package, modules)`, a few modules at a time, until the package has enough sentences."""
    for package, modules in queues.items():
        for start in range(0, len(modules), _FILES_PER_BATCH):
            if left[package] <= 0:
                break
            yield package, modules[start : start + _FILES_PER_BATCH]


def _read_batch(batch: tuple[str, list]) -> tuple[str, list[tuple[str, list]]]:
    package, modules = batch
    return package, [(module, read_module(path)) for module, path in modules]


def split(corpus: Corpus, held_out_share: float = 0.1) -> tuple[Corpus, Corpus]:
    """Splits a corpus into training and held-out documents by a hash of the module's name.

    This is not the hash that orders modules: a capped package would otherwise consist of held-out modules first.
    """
    bound = int(held_out_share * 2**64)
    modules = (document.module for document in corpus.documents)
    return corpus.split({module for module in modules if hash_of(f"held out? {module}") < bound})
