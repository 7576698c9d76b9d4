"""Collects English prose without a download: the docstrings of the standard library and of installed packages.

Source files are parsed with `ast`, so nothing is imported or executed. Machines with the same packages get the same
text.
"""

import ast
import inspect
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Iterator

from tasks.quickstart.corpus import Document, hash_of
from tasks.settings import available_cores
from tasks.text.parallel import LocalPool, progress_bar

_SKIPPED_DIRECTORIES = frozenset("test tests testing vendor third_party site-packages dist-packages".split())
_MAX_FILE_BYTES = 1_000_000  # Longer files are usually generated.
# Text is cut at these before it is split into sentences.
_BREAK = re.compile(
    r"\n\s*\n"  # A blank line,
    r"|^.*\n\s*(?:-{3,}|={3,}|~{3,})$"  # a title and its underline,
    r"|^\s*[\w*, ]+ : .*$"  # NumPy's `name : type`,
    r"|^\s*:?[\w*`,. ()\[\]|]+:(?=\s)"  # `name (type):`, `:param name:`, or a title such as `Args:`,
    r"|^\s*(?:[-*]|\d+\.)\s",  # a bullet.
    re.MULTILINE,
)
_MARKUP = re.compile(r":[a-z:]+:(?=`)|[`*]+")
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.|i\.e\.)\s+(?=[A-Z])")
# From 5 to 60 words without marks of code.
_SENTENCE = re.compile(r"[A-Z][\w'-]*(?:[,;]? \(?[\w.'/-]+\)?){4,59}[.!?]", re.ASCII)


def sentences(docstring: str) -> Iterator[str]:
    """Yields the English sentences of a docstring, without markup.

    >>> list(sentences("Reads the `file` and closes it.\\n\\nArgs:\\n    path: Where the file is stored.\\n"))
    ['Reads the file and closes it.', 'Where the file is stored.']
    """
    for piece in _BREAK.split(inspect.cleandoc(docstring)):
        text = " ".join(_MARKUP.sub("", piece).split())
        yield from filter(_SENTENCE.fullmatch, _END.split(text))


def packages() -> dict[str, str]:
    """Returns name -> directory: "python", the standard library, then installed packages, the largest first."""
    paths = sysconfig.get_paths()
    directories = [path.parent for path in pathlib.Path(paths["purelib"]).glob("[!_]*/__init__.py")]
    sizes = {directory: sum(path.stat().st_size for path in _source_files(directory)) for directory in directories}
    directories.sort(key=lambda directory: (-sizes[directory], directory.name))
    return {"python": paths["stdlib"], **{directory.name: str(directory) for directory in directories}}


def _source_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Lists the modules of a directory, without tests, private folders and vendored packages."""
    paths = [(path, path.relative_to(directory).parts[:-1]) for path in directory.rglob("*.py")]
    return [
        path
        for path, folders in paths
        if _SKIPPED_DIRECTORIES.isdisjoint(folders) and not any(folder.startswith("_") for folder in folders)
    ]


def read_package(max_sentences: int, package: tuple[str, str]) -> list[Document]:
    """Reads modules in the order of a hash until there are `max_sentences`. Each docstring is a document.

    Args:
        max_sentences: number of sentences after which no further module is read.
        package: name and directory.
    """
    name, directory = package[0], pathlib.Path(package[1])
    modules = {}
    for path in _source_files(directory):
        modules[".".join([name, *path.relative_to(directory).with_suffix("").parts]).removesuffix(".__init__")] = path
    documents, num_sentences = [], 0
    for module in sorted(modules, key=hash_of):
        for function, docstring in _docstrings(_parse(modules[module]), module):
            if texts := list(sentences(docstring)):
                documents.append(Document(name, module, function, texts))
                num_sentences += len(texts)
        if num_sentences >= max_sentences:
            break
    return documents


def _parse(path: pathlib.Path) -> ast.Module:
    """Parses a file; returns an empty module if it has no docstring or cannot be parsed."""
    try:
        source = path.read_bytes()
        if b'"""' in source and len(source) <= _MAX_FILE_BYTES:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Other people's code may have invalid escape sequences.
                return ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        pass
    return ast.Module([], [])


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yields name and docstring of a module and of its classes and functions, from top to bottom."""
    if docstring := ast.get_docstring(node, clean=False):
        yield name, docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, f"{name}.{child.name}")


def collect(num_packages: int | None, max_sentences: int) -> list[Document]:
    """Reads the docstrings of the standard library and the largest packages on all cores, with a progress bar.

    Args:
        num_packages: number of packages; None for all.
        max_sentences: see `read_package`.
    """
    chosen = list(packages().items())[:num_packages]
    with LocalPool(available_cores()) as pool, progress_bar("Reading docstrings", " packages", len(chosen)) as bar:
        documents = []
        for package in pool.map(read_package, chosen, max_sentences):
            documents += package
            bar.update()
    return documents
