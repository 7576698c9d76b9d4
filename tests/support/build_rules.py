"""Compares BUILD with what the source files import, and rewrites its `deps`.

    python tests/support/build_rules.py

rewrites the `deps` of every library. BUILD is Starlark, a subset of Python, so `exec` runs it with stub rules. The
functions take texts by path instead of a directory, so that a test can inject a fault and see whether it is found.
"""

import os
import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from source_imports import PACKAGES, imports, read, read_sources

_UNLOCKED = {
    "apache-beam",
    "distributed",
}  # They do not resolve together with the lock, so Bazel has no label for them.


class Target(NamedTuple):
    """One rule of BUILD."""

    rule: str
    name: str
    srcs: list[str]
    deps: list[str]
    main: str | None
    data: list[str]


def evaluate(build: str, sources: dict[str, str]) -> list[Target]:
    """Executes the text of a BUILD file.

    Args:
        build: the text.
        sources: the files that `glob` finds, by path.

    Returns:
        Its targets in the order of their declaration; `requirement("x")` becomes "@pip//x" in `deps`.
    """
    targets: list[Target] = []

    def stub(rule):
        def declare(name, srcs=(), deps=(), main=None, data=(), **_):
            targets.append(Target(rule, name, list(srcs), list(deps), main, list(data)))

        return declare

    def glob(include, exclude=(), allow_empty=False):
        del allow_empty
        wanted, unwanted = map(_glob_pattern, (include, exclude))
        return [path for path in sources if wanted.fullmatch(path) and not unwanted.fullmatch(path)]

    rules = {rule: stub(rule) for rule in ("py_library", "py_binary", "py_test")}
    ignored = {name: lambda *_, **__: None for name in ("package", "exports_files")}
    functions = {"glob": glob, "requirement": lambda name: f"@pip//{name}"}
    names = {**rules, **ignored, **functions}

    def load(label, *_):
        if label.startswith("//:"):
            exec(sources[label.removeprefix("//:")], names)

    names["load"] = load
    exec(compile(build, "BUILD", "exec"), names)
    return targets


def _glob_pattern(patterns: list[str]) -> re.Pattern:
    wildcards = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*"}
    split_patterns = (re.split(r"(\*\*/|\*\*|\*)", pattern) for pattern in patterns)
    return re.compile(
        "|".join("".join(wildcards.get(piece) or re.escape(piece) for piece in pieces) for pieces in split_patterns)
    )


def build_problems(build: str, sources: dict[str, str]) -> list[str]:
    """Compares BUILD with the sources.

    Args:
        build: text of the BUILD file.
        sources: text of every file, by path.

    Returns:
        A line for each problem, with its cure; none if all agree.
    """
    targets = evaluate(build, sources)
    owners = _owners(targets)
    problems = list(_source_problems(targets, owners, sources))
    declared = set()
    for target in targets:
        if f":{target.name}" in declared:
            problems.append(f":{target.name} is declared twice.")
        if target.rule == "py_library":
            problems += _dependency_problems(target, _needed(target, targets, sources), declared)
        elif target.rule == "py_binary" and (target.srcs != [target.main] or target.deps != [owners.get(target.main)]):
            problems.append(
                f":{target.name} must have its main file as its only source, and that file's library as its dependency."
            )
        declared.add(f":{target.name}")
    return problems


def rewrite_dependencies(build: str, sources: dict[str, str]) -> str:
    """Returns the text of BUILD with the `deps` that each library's imports need."""
    targets = evaluate(build, sources)
    for library in (target for target in targets if target.rule == "py_library"):
        labels = sorted(_needed(library, targets, sources), key=lambda label: (label.startswith("@"), label))
        deps = ", ".join(
            f'requirement("{label.removeprefix("@pip//")}")' if label.startswith("@") else f'"{label}"'
            for label in labels
        )
        if len(deps) > 106:  # With "    deps = [],": 120.
            indent = " " * 8
            lines = textwrap.fill(deps, 119, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
            deps = f"\n{lines},\n    "
        head, rest = build.split(f'    name = "{library.name}",\n')
        body, tail = rest.split("\n)\n", 1)
        body = re.sub(r"    deps = .*", "", f"{body}\n", flags=re.DOTALL) + (f"    deps = [{deps}],\n" if deps else "")
        build = f'{head}    name = "{library.name}",\n{body})\n{tail}'
    return build


def _owners(targets: list[Target]) -> dict[str, str]:
    """Returns the label of each source's library."""
    return {path: f":{target.name}" for target in targets if target.rule == "py_library" for path in target.srcs}


def _needed(library: Target, targets: list[Target], sources: dict[str, str]) -> dict[str, str]:
    """Returns the labels that a library must depend on, each with the reason.

    Every test depends on one library, which must therefore depend on all that its tests import.
    """
    owners = _owners(targets)
    tests = (target for target in targets if target.rule == "py_test" and target.deps == [f":{library.name}"])
    needed: dict[str, str] = {}
    for path in (*library.srcs, *(path for test in tests for path in test.srcs)):
        files, distributions = imports(path, sources) if path in sources else ((), set())
        labels = {owners[file]: f"{path} imports {file}" for file in files if file in owners}
        needed |= labels | {f"@pip//{name}": f"{path} imports it" for name in distributions - _UNLOCKED}
    return {label: reason for label, reason in needed.items() if label != f":{library.name}"}


def _source_problems(targets: list[Target], owners: dict[str, str], sources: dict[str, str]) -> Iterator[str]:
    tests = {path for target in targets if target.rule == "py_test" for path in target.srcs}
    data = {path for target in targets for path in target.data}
    for path in sources:
        folder = path.rpartition("/")[0]
        if path.endswith("_test.py"):
            if path not in tests:
                yield f"{path} has no py_test. Let the glob of the py_test rule in BUILD find it."
        elif path.endswith(".py"):
            if path not in owners:
                yield f'{path} is in no py_library. Add one for its room to BUILD: srcs = glob(["{folder}/*.py"]).'
        elif path.split("/")[0] in PACKAGES and path not in data:
            yield f'{path} is in no library\'s data. Add to that of its room in BUILD: data = glob(["{folder}/*"]).'
    for target in targets:
        if not target.srcs:
            yield f":{target.name} has no sources. Take it out of BUILD, or correct its glob."
        for path in target.srcs:
            if path not in sources:
                yield f":{target.name} names {path}, which is not there."
            elif target.rule == "py_library" and owners[path] != f":{target.name}":
                names = f":{target.name} and {owners[path]}"
                yield f"{path} is in two libraries, {names}. Exclude it from one of the globs in BUILD."


def _dependency_problems(library: Target, needed: dict[str, str], declared: set[str]) -> Iterator[str]:
    for label in sorted(needed.keys() - set(library.deps)):
        yield f":{library.name} lacks the dependency {label}: {needed[label]}. Add it to its deps in BUILD."
    for label in sorted(set(library.deps) - needed.keys()):
        idle = f":{library.name} has the idle dependency {label}"
        yield f"{idle}: none of its sources imports it. Delete it from its deps in BUILD."
    for label in library.deps:
        if label.startswith(":") and label not in declared:
            why = f" ({needed[label]})" if label in needed else ""
            yield f":{library.name} depends on {label}, which is not declared above it{why}. Move that up, or split it."


def main() -> None:
    """Rewrites the `deps` of BUILD, and prints the problems that remain."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sources, path = read_sources(root), os.path.join(root, "BUILD")
    build = rewrite_dependencies(read(path), sources)
    with open(path, "w", encoding="utf-8") as file:
        file.write(build)
    print("\n".join(build_problems(build, sources)))


if __name__ == "__main__":
    main()
