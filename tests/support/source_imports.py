"""What the files of the repository import, read from their text: nothing is imported."""

import ast
import functools
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

PACKAGES = ("keras_bert", "tasks", "export")  # What is installed.
COMMAND_TABLE = "commands.bzl"
FOLDERS = (*PACKAGES, "benchmarks", "tests")

# Distributions that are not named after what they are imported as.
_DISTRIBUTIONS = {
    "absl": "absl-py",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "google": "protobuf",
    "grpc": "grpcio",
    "official": "tf-models-official",
    "opentelemetry": "opentelemetry-sdk",
    "orbit": "tf-models-official",
    "sklearn": "scikit-learn",
    "tensorflow_serving": "tensorflow-serving-api",
    "yaml": "pyyaml",
}


def distribution_of(package: str) -> str:
    """Returns the name of the distribution that installs a package, which is named as it is imported."""
    return _DISTRIBUTIONS.get(package, package.replace("_", "-"))


class Import(NamedTuple):
    """One imported name: `import module`, or `from module import name`."""

    module: str
    name: str | None
    is_at_import: bool  # Not inside a function: it runs when the importing module is imported.


def read_sources(root: str) -> dict[str, str]:
    """Reads the files of `FOLDERS`.

    Returns:
        The text of each file, by its path relative to `root` with `/` between; "" for files that are not Python.
    """
    sources = {COMMAND_TABLE: read(os.path.join(root, COMMAND_TABLE))}
    for top in FOLDERS:
        for parent, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [folder for folder in folders if folder != "__pycache__"]
            for name in (name for name in names if not name.startswith(".")):
                path = os.path.join(parent, name)
                is_python = name.endswith(".py")
                sources[os.path.relpath(path, root).replace(os.sep, "/")] = read(path) if is_python else ""
    return dict(sorted(sources.items()))


def read(path: str) -> str:
    """Returns the text of a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


@functools.cache
def _parsed_imports(path: str, text: str) -> tuple[Import, ...]:
    tree = ast.parse(text, path)
    module_imports = list(_find_imports(path, tree.body, True))
    if path.endswith("/__init__.py"):  # A package that imports on first use names its modules in strings.
        package = f"{path.split('/')[0]}."
        strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        named = (value for value in strings if isinstance(value, str) and value.startswith(package))
        module_imports += [Import(value, None, False) for value in named if value.replace(".", "").isidentifier()]
    return tuple(module_imports)


def _find_imports(path: str, statements: list[ast.AST], is_at_import: bool) -> Iterator[Import]:
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, None, is_at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *filter(None, [node.module])])
            yield from (Import(module, alias.name, is_at_import) for alias in node.names)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                inner = getattr(node, block, [])
                yield from _find_imports(path, inner, is_at_import and not is_function and not is_for_types)


def _module_file(module: str, sources: dict[str, str]) -> str | None:
    stem = module.replace(".", "/")
    # Benchmarks and adapters of suites are scripts, and find each other on the path; tests find their helpers there.
    folders = ("tests/support", "tests/oracle", "benchmarks")
    places = (f"{stem}.py", f"{stem}/__init__.py", *(f"{folder}/{stem}.py" for folder in folders))
    return next((path for path in places if path in sources), None)


def imports(path: str, sources: dict[str, str], at_import_only: bool = False) -> tuple[set[str], set[str]]:
    """Returns the files of this repository, and the distributions of others, that a source file imports.

    Args:
        path: the file.
        sources: text of every file, by path.
        at_import_only: leaves out imports inside functions.

    Raises:
        ImportError: the file imports a module of this repository that is not there.
    """
    files, distributions = set(), set()
    for module, name, is_at_import in _parsed_imports(path, sources[path]):
        if at_import_only and not is_at_import:
            continue
        submodule = name and _module_file(f"{module}.{name}", sources)
        file = submodule or _module_file(module, sources)
        top = module.split(".")[0]
        if top in FOLDERS and (file is None or (name and not submodule and not sources[file].strip())):
            raise ImportError(f"{path} imports {name or module} of {module}, which is not there.")
        if file:
            files |= {file} if sources[file].strip() else set()  # An empty __init__.py gives nothing to anyone.
        elif top not in sys.stdlib_module_names:
            distributions.add(distribution_of(top))
    return files - {path}, distributions
