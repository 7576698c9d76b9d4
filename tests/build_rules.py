"""Executes BUILD with stub rules, and compares it with what the source files really import.

BUILD is Starlark, a subset of Python, so `exec` runs it. `problems` takes texts, not a directory: a test may
change one and see what is said.
"""

import ast
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

ROOMS = ("keras_bert", "tasks", "export", "tests", "benchmarks")  # Imports go only to the left.

# What the served graph may take from a task: its model, how texts become windows, and how answers are read off the
# logits (with the questions that they belong to).
_SERVED = ("__init__.py", "model.py", "answers.py", "windows.py", "data.py")

# Where the distribution is not called like the import.
_DISTRIBUTIONS = {
    "absl": "absl-py",
    "google": "protobuf",
    "grpc": "grpcio",
    "official": "tf-models-official",
    "orbit": "tf-models-official",
    "sklearn": "scikit-learn",
    "tensorflow_serving": "tensorflow-serving-api",
    "yaml": "pyyaml",
}


class Target(NamedTuple):
    """One rule of BUILD."""

    rule: str
    name: str
    srcs: list[str]
    deps: list[str]
    main: str | None


def evaluate(build: str) -> list[Target]:
    """Executes the text of a BUILD file.

    Returns:
        Its targets in the order of their declaration; a `requirement("x")` stands as "@pip//x" in `deps`.
    """
    targets: list[Target] = []

    def stub(rule):
        def declare(name, srcs=(), deps=(), main=None, **_):
            targets.append(Target(rule, name, list(srcs), list(deps), main))

        return declare

    rules = {rule: stub(rule) for rule in ("py_library", "py_binary", "py_test")}
    ignored = {name: lambda *_, **__: None for name in ("load", "package", "exports_files")}
    functions = {"glob": lambda _: [], "requirement": lambda name: f"@pip//{name}"}
    exec(compile(build, "BUILD", "exec"), {**rules, **ignored, **functions})
    return targets


def read_sources(root: str) -> dict[str, str]:
    """Reads every Python file of the rooms, by its path relative to `root` with `/` between."""
    sources = {}
    for room in ROOMS:
        for parent, _, names in os.walk(os.path.join(root, room)):
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(parent, name)
                    with open(path, encoding="utf-8") as file:
                        sources[os.path.relpath(path, root).replace(os.sep, "/")] = file.read()
    return dict(sorted(sources.items()))


def _module_file(module: str, sources: dict[str, str]) -> str | None:
    stem = module.replace(".", "/")
    places = (f"{stem}.py", f"{stem}/__init__.py", f"tests/{stem}.py", f"benchmarks/{stem}.py")  # Scripts: their own.
    return next((path for path in places if path in sources), None)


def _imported_modules(path: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields `(module, names)` of each import at any depth; `names` is empty for `import module`."""
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.split("/")[: -node.level] if node.level else []
            yield ".".join([*package, *filter(None, [node.module])]), [alias.name for alias in node.names]
        elif path.endswith("/__init__.py") and isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A package that imports on first use names its modules in strings.
            if node.value.startswith(f"{path.split('/')[0]}.") and node.value.replace(".", "").isidentifier():
                yield node.value, []


def imports(path: str, sources: dict[str, str]) -> tuple[set[str], set[str]]:
    """Returns the files of this repository, and the distributions of others, that a source file imports."""
    files, distributions = set(), set()
    for module, names in _imported_modules(path, sources[path]):
        found = {_module_file(f"{module}.{name}", sources) or _module_file(module, sources) for name in names}
        found = found or {_module_file(module, sources)}
        top = module.split(".")[0]
        if found - {None}:
            # An empty __init__.py gives nothing to anyone.
            files |= {file for file in found if file and sources[file].strip()}
        elif top in ROOMS:
            raise ImportError(f"{path} imports {module}, which is no file of this repository.")
        elif top not in sys.stdlib_module_names:
            distributions.add(_DISTRIBUTIONS.get(top, top.replace("_", "-")))
    return files - {path}, distributions


def upward(importer: str, imported: str) -> bool:
    """Tells whether an import goes against the order of the rooms, or from a task to its sibling."""
    own, other = importer.split("/"), imported.split("/")
    if own[0] != other[0]:
        is_inside_a_task = other[0] == "tasks" and len(other) > 2
        is_past_the_model = own[0] == "export" and is_inside_a_task and other[-1] not in _SERVED
        return ROOMS.index(own[0]) < ROOMS.index(other[0]) or is_past_the_model
    is_model_for_a_command = len(own) == 2 and other[-1] in _SERVED  # bert-convert runs what it converts
    return own[0] == "tasks" and len(other) > 2 and own[:-1] != other[:-1] and not is_model_for_a_command


def problems(build: str, sources: dict[str, str]) -> list[str]:
    """Compares BUILD with the sources.

    Args:
        build: text of the BUILD file.
        sources: text of every Python file, by path.

    Returns:
        One line for each fault, with the cure; none if all agree.
    """
    targets = evaluate(build)
    libraries = [target for target in targets if target.rule == "py_library"]
    owners = {path: f":{library.name}" for library in libraries for path in library.srcs}
    found = list(_source_problems(targets, owners, sources))
    declared = set()
    for target in targets:
        if f":{target.name}" in declared:
            found.append(f":{target.name} is declared twice.")
        if target.rule == "py_binary":
            found += _binary_problems(target, owners)
        else:
            found += _dependency_problems(target, owners, sources, declared)
        declared.add(f":{target.name}")
    for path in sources:
        for imported in sorted(imports(path, sources)[0]):
            if upward(path, imported):
                found.append(f"{path} imports {imported}: upward. See the table of rooms in CONTRIBUTING.md.")
    return found


def _source_problems(targets: list[Target], owners: dict[str, str], sources: dict[str, str]) -> Iterator[str]:
    tests = {path for target in targets if target.rule == "py_test" for path in target.srcs}
    for path in sources:
        if path.endswith("_test.py") and path not in tests:
            yield f"{path} has no py_test. Add it to TESTS in BUILD."
        elif not path.endswith("_test.py") and path not in owners:
            yield f"{path} is in no py_library. Add it to the srcs of one in BUILD."
    for target in targets:
        for path in target.srcs:
            if path not in sources:
                yield f":{target.name} names {path}, which is not there."
            elif target.rule == "py_library" and owners[path] != f":{target.name}":
                yield f"{path} is in two libraries, :{target.name} and {owners[path]}."


def _dependency_problems(
    target: Target, owners: dict[str, str], sources: dict[str, str], declared: set[str]
) -> Iterator[str]:
    own = set(target.srcs)
    needed: dict[str, str] = {}
    for path in filter(sources.__contains__, target.srcs):
        files, distributions = imports(path, sources)
        needed |= {owners.get(file, f"the library of {file}"): path for file in files - own}
        needed |= {f"@pip//{distribution}": path for distribution in distributions}
    for label in sorted(needed.keys() - set(target.deps)):
        yield f":{target.name} lacks the dependency {label}, which {needed[label]} imports."
    for label in sorted(set(target.deps) - needed.keys()):
        yield f":{target.name} has the dependency {label}, which none of its sources imports."
    for label in target.deps:
        if label.startswith(":") and label not in declared:
            yield f":{target.name} depends on {label}, which is not declared above it. Libraries stand in layer order."


def _binary_problems(target: Target, owners: dict[str, str]) -> Iterator[str]:
    if target.srcs != [target.main] or target.deps != [owners.get(target.main)]:
        yield f":{target.name} must have its main file as its only source, and that file's library as its dependency."
