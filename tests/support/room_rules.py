"""Checks the order of the rooms: who may import whom, how large a folder may be, and where flags are defined."""

import ast
import collections
import functools
import re
from collections.abc import Iterator

from source_imports import PACKAGES, imports

# From the ground up. A room may import itself and the floors below it, but not another room of its own floor. A folder
# of `tasks` that is not named here is a task: "tasks/*".
FLOORS = (
    ("keras_bert/errors.py",),
    ("keras_bert/files.py",),
    ("keras_bert/config.py", "keras_bert/vocabulary.py"),
    ("keras_bert/formats",),
    ("keras_bert/presets",),
    ("keras_bert/encoder",),
    ("keras_bert/tokenization",),
    ("keras_bert/answers",),
    ("keras_bert/models",),
    ("keras_bert",),
    ("tasks/settings.py",),
    ("tasks/engine", "tasks/report", "tasks/text"),
    ("tasks/flags.py",),
    ("tasks/fine_tuning",),
    ("tasks/features",),  # `bert-ner --encoder=frozen` trains on them.
    ("tasks/*",),
    ("tasks/quickstart", "tasks/convert", "tasks/distill"),  # A student takes the parts of its teacher's task.
    ("tasks/held_out.py",),
    # What all of `export` may use: names of files and signatures.
    ("export/base_path.py", "export/signatures.py"),
    ("export/graph", "export/verification"),
    ("export/heads", "export/clients.py"),
    ("export/companion_files.py",),
    ("export/saved_model.py",),
    ("export/targets",),
    ("export/server/runtime",),
    ("export/server",),
    ("export/run.py", "export/local_server.py"),
    ("benchmarks",),
    ("tests",),
)

# Rooms that in their package only these may import: what reads a preset does not ask for the format of its files.
ONLY_FOR = {"keras_bert/formats": ("keras_bert/presets",)}

# Imports that break the order. This list may only shrink.
EXCEPTIONS: set[tuple[str, str]] = set()

# What `export` takes from `tasks`. This list may only shrink.
EXPORT_MAY_IMPORT = {
    # Flags from settings.
    "tasks/flags.py",
    "tasks/settings.py",
    # Models and their files.
    "tasks/fine_tuning/model_files.py",
    # The rows that the training held out, on which 8 bits are measured.
    "tasks/held_out.py",
    # The card of the training.
    "tasks/report/card.py",
}

# A module-level container that starts empty is a cache that outlives a run.
_CONTAINERS = re.compile("dict|list|set|defaultdict|OrderedDict|Counter|deque|Weak.*")

MAX_MODULES = 20  # In a folder of the packages, not counting `__init__.py`.
MAX_AT_THE_TOP = {"keras_bert": 8, "export": 8}


def room_problems(sources: dict[str, str], entries: set[str]) -> list[str]:
    """Checks all files against the rules of this module.

    Args:
        sources: text of every file, by path.
        entries: the files of the commands, which may define flags.

    Returns:
        A line for each problem, with its cure; none if all rules hold.
    """
    problems, used = [], set()
    for path in filter(lambda path: path.endswith(".py"), sources):
        for imported in sorted(imports(path, sources)[0]):
            if is_upward(path, imported):
                used |= {(path, imported), imported if path.startswith("export/") else None}
                if not _is_excepted(path, imported):
                    problems.append(
                        f"{path} imports {imported}: against the order of the rooms (FLOORS in "
                        "tests/support/room_rules.py). Move what it needs to a room below both."
                    )
    lists = {"EXCEPTIONS": EXCEPTIONS, "EXPORT_MAY_IMPORT": EXPORT_MAY_IMPORT}
    for name, exceptions in lists.items():
        for unused in sorted(exceptions - used):
            cure = f"Delete it from {name} in tests/support/room_rules.py."
            problems.append(f"Nothing needs the exception {unused} any longer. {cure}")
    problems += [
        f"{path}:{line} is a cache that outlives a run. Let an object own it that the caller keeps or a context closes."
        for path, line in _module_caches(sources)
    ]
    problems += _cycle_problems(sources)
    return [*problems, *_folder_problems(sources), *_flag_problems(sources, entries)]


def is_upward(importer: str, imported: str) -> bool:
    """Returns whether an import goes to a higher floor, or to another room of the same one; exceptions do not count."""
    (own_floor, own_room), (other_floor, other_room) = _place(importer), _place(imported)
    if importer.startswith("export/") and imported.startswith("tasks/"):
        return True  # Allowed only by `EXPORT_MAY_IMPORT`.
    is_inside = importer.split("/")[0] == imported.split("/")[0]
    if other_room in ONLY_FOR and is_inside and own_room != other_room:
        return own_room not in ONLY_FOR[other_room]
    return own_room != other_room and own_floor <= other_floor


def _is_excepted(importer: str, imported: str) -> bool:
    return (importer, imported) in EXCEPTIONS or (importer.startswith("export/") and imported in EXPORT_MAY_IMPORT)


def _place(path: str) -> tuple[int, str]:
    """Returns the number of a file's floor, and the name of its room."""
    rooms = {room: floor for floor, names in enumerate(FLOORS) for room in names}
    segments = path.split("/")
    for room in (path, "/".join(segments[:3]), "/".join(segments[:2]), segments[0]):
        if room in rooms:
            return rooms[room], room
    return rooms["tasks/*"], "/".join(segments[:2])


def _module_caches(sources: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Yields path and line of each container of a module that starts empty; a table of constants does not."""
    for path in sources:
        if path.split("/")[0] in PACKAGES and path.endswith(".py"):
            yield from ((path, line) for line in _empty_containers(path, sources[path]))


@functools.cache  # Tests inject one fault after another into the same files.
def _empty_containers(path: str, text: str) -> list[int]:
    assigned = (node for node in ast.parse(text, path).body if isinstance(node, ast.Assign | ast.AnnAssign))
    return [node.lineno for node in assigned if _starts_empty(node.value)]


def _starts_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    name = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
    return bool(_CONTAINERS.fullmatch(name)) and (name == "defaultdict" or not value.args)


def _cycle_problems(sources: dict[str, str]) -> Iterator[str]:
    """Yields circular imports, those inside functions among them: they only put the error off."""
    paths = [path for path in sources if path.split("/")[0] in PACKAGES and path.endswith(".py")]
    edges = {path: sorted(imports(path, sources)[0] - {path}) for path in paths}
    done: set[str] = set()

    def visit(path: str, above: list[str]) -> Iterator[str]:
        if path in above:
            circle = [*above[above.index(path) :], path]
            yield f"Circular import: {' -> '.join(circle)}. Move what they share to a third module."
        elif path not in done:
            for imported in edges.get(path, ()):
                yield from visit(imported, [*above, path])
            done.add(path)

    for path in edges:
        yield from visit(path, [])


def _folder_problems(sources: dict[str, str]) -> Iterator[str]:
    modules = [path for path in sources if path.split("/")[0] in PACKAGES and path.endswith(".py")]
    counts = collections.Counter(path.rpartition("/")[0] for path in modules if not path.endswith("/__init__.py"))
    for folder, count in counts.items():
        limit = MAX_AT_THE_TOP.get(folder, MAX_MODULES)
        if count > limit:
            yield f"{folder}/ holds {count} modules; at most {limit} are allowed. Split it."


def _flag_problems(sources: dict[str, str], entries: set[str]) -> Iterator[str]:
    for path in sources:
        if path.split("/")[0] in PACKAGES and path not in {"tasks/flags.py", *entries} and "DEFINE" in sources[path]:
            for node in ast.walk(ast.parse(sources[path], path)):
                if isinstance(node, ast.Attribute) and node.attr.startswith("DEFINE"):
                    yield (
                        f"{path}:{node.lineno} defines a flag. Define flags in tasks/flags.py or in the module of a "
                        "command, and pass their values on as arguments."
                    )
