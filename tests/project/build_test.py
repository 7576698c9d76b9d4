"""BUILD agrees with the sources, and imports keep to the order of the rooms. Injected faults are found."""

import ast
import re

import build_rules
import pytest
import room_rules
from repository import COMMANDS, ROOT, setup_literals
from source_imports import PACKAGES, imports, read_sources

SETUP = setup_literals()
BUILD = (ROOT / "BUILD").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sources():
    """Texts of the files. A test that injects a fault makes a dict of its own: `sources | changes`."""
    return read_sources(str(ROOT))


@pytest.fixture(scope="module")
def faults(sources):
    """A function: the problems that `check` finds in the sources with `changes`, but not in the sources as they are."""
    present = {check: check(sources) for check in (problems, room_problems)}
    return lambda check, changes: [line for line in check(sources | changes) if line not in present[check]]


def problems(sources):
    return build_rules.build_problems(BUILD, sources)


def room_problems(sources):
    mains = {target.main for target in build_rules.evaluate(BUILD, sources) if target.rule == "py_binary"}
    return room_rules.room_problems(sources, mains | {path for path in sources if path.endswith("/run.py")})


# === As the files are ===


def test_build_agrees_with_the_sources(sources):
    disagreements = problems(sources)
    cure = "BUILD disagrees with the sources; `python tests/support/build_rules.py` rewrites its deps:"
    assert not disagreements, "\n".join([cure, *disagreements])


def test_the_rooms_are_in_order(sources):
    violations = room_problems(sources)
    assert not violations, "\n".join(["The rules of tests/support/room_rules.py are broken:", *violations])


def test_the_formatter_is_never_switched_off(sources):
    assert not [path for path, text in sources.items() if re.search(r"#\s*fmt:\s*(skip|off)", text)]


def test_variables_are_nouns(sources):
    vague = [
        f"{path}:{node.lineno}"
        for path, text in sources.items()
        if path.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if (getattr(node, "arg", None) if isinstance(node, ast.arg) else getattr(node, "id", None))
        in ("found", "one", "its")
    ]
    assert not vague, "\n".join(["Name what these hold, such as `row` or `matches`:", *vague])


def test_contributing_lists_the_rooms_in_their_order():
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    floors = [", ".join(f"`{room}`" for room in floor) for floor in room_rules.FLOORS]
    floors[floors.index("`tasks/*`")] = "any other folder of `tasks`"
    assert [row for row in rows if row in floors] == floors


def test_build_loads_its_rules_from_rules_python():
    assert 'load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")' in BUILD
    assert BUILD.count("\n") <= 400


def test_every_command_has_a_binary(sources):
    targets = build_rules.evaluate(BUILD, sources)
    binaries = {target.name: target.main for target in targets if target.rule == "py_binary"}
    assert binaries == {name: f"{module.replace('.', '/')}.py" for name, module in COMMANDS.items()}


def test_every_requirement_is_locked(sources):
    lines = (ROOT / "requirements_test_lock.txt").read_text(encoding="utf-8").splitlines()
    locked = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    for target in build_rules.evaluate(BUILD, sources):
        required = {label.removeprefix("@pip//") for label in target.deps if label.startswith("@pip//")}
        # The others run in environments of their own: peers of benchmarks, and tests/oracle/search_stacks.py.
        own = {"datasets", "openvino", "setfit", "langchain-openai", "llama-index", "openai"}
        assert required <= locked | own, target.name


def test_what_is_installed_requires_what_it_imports(sources):
    optional = sum(SETUP["OPTIONAL_REQUIRES"].values(), [])
    requirements = [*SETUP["INSTALL_REQUIRES"], *optional]
    declared = {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}
    for path in sources:
        if path.split("/")[0] in PACKAGES and path.endswith(".py"):
            undeclared = imports(path, sources)[1] - declared
            assert not undeclared, f"{path} imports {undeclared}: add it to setup.py."


# === What `evaluate` understands ===


def test_evaluate_reads_names_sources_and_requirements():
    files = ["a/b.py", "a/c.py", "a/d/e.py", "a/d/e_test.py", "a/d/page.html"]
    targets = build_rules.evaluate(
        'load("x", "py_library")\n'
        'py_library(name = "a", srcs = glob(["a/*.py"], exclude = ["a/c.py"]), deps = [requirement("numpy")])\n'
        'py_library(name = "d", srcs = glob(["a/d/e.py"]), data = glob(["**/*.html"]))\n'
        '[py_test(name = path, srcs = [path], deps = [":a"]) for path in glob(["a/**/*_test.py"])]\n',
        dict.fromkeys(files, ""),
    )
    assert targets == [
        build_rules.Target("py_library", "a", ["a/b.py"], ["@pip//numpy"], None, []),
        build_rules.Target("py_library", "d", ["a/d/e.py"], [], None, ["a/d/page.html"]),
        build_rules.Target("py_test", "a/d/e_test.py", ["a/d/e_test.py"], [":a"], None, []),
    ]


# === Faults between BUILD and the sources ===


def test_new_modules_and_tests_need_no_line(faults):
    paths = ("tasks/engine/new.py", "tests/tasks/engine/new_test.py")
    assert faults(problems, dict.fromkeys(paths, "import tensorflow")) == []


def test_a_new_room_is_found(faults):
    assert faults(problems, {"export/new_room/data.py": ""}) == [
        "export/new_room/data.py is in no py_library. Add one for its room to BUILD: "
        'srcs = glob(["export/new_room/*.py"]).'
    ]


def test_a_data_file_in_no_library_is_found(faults):
    assert faults(problems, {"tasks/new_room/page.html": ""}) == [
        "tasks/new_room/page.html is in no library's data. Add to that of its room in BUILD: "
        'data = glob(["tasks/new_room/*"]).'
    ]


SMALL = """
py_library(name = "a", srcs = glob(["keras_bert/*.py"]))
py_library(name = "b", srcs = glob(["tasks/*.py"]), deps = [":a", requirement("numpy")])
py_binary(name = "run", srcs = ["tasks/run.py"], main = "tasks/run.py", deps = [":b"])
py_library(name = "support", srcs = ["tests/conftest.py"], deps = [requirement("pytest")])
[py_test(name = path, srcs = [path], deps = [":support"]) for path in glob(["tests/**/*_test.py"])]
"""
SMALL_SOURCES = {
    "keras_bert/a.py": "A = 1",
    "tasks/b.py": "import numpy\nfrom keras_bert.a import A",
    "tasks/run.py": "from tasks import b",
    "tests/conftest.py": "",
    "tests/x/b_test.py": "import pytest",
}


def test_the_small_build_agrees():
    assert build_rules.build_problems(SMALL, SMALL_SOURCES) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"keras_bert/*.py"', '"keras_bert/*.txt"', ":a has no sources. Take it out of BUILD, or correct its glob."),
        ('["tests/conftest.py"]', '["tests/gone.py"]', ":support names tests/gone.py, which is not there."),
        (
            'glob(["keras_bert/*.py"])',
            'glob(["**/a.py", "tasks/*.py"])',
            "tasks/b.py is in two libraries, :a and :b. Exclude it from one of the globs in BUILD.",
        ),
        (
            '[":a", requirement("numpy")]',
            '[requirement("numpy")]',
            ":b lacks the dependency :a: tasks/b.py imports keras_bert/a.py. Add it to its deps in BUILD.",
        ),
        (
            ', requirement("numpy")',
            "",
            ":b lacks the dependency @pip//numpy: tasks/b.py imports it. Add it to its deps in BUILD.",
        ),
        (
            'requirement("pytest")',
            "",
            ":support lacks the dependency @pip//pytest: tests/x/b_test.py imports it. Add it to its deps in BUILD.",
        ),
        (
            'requirement("numpy")',
            'requirement("numpy"), requirement("tqdm")',
            ":b has the idle dependency @pip//tqdm: none of its sources imports it. Delete it from its deps in BUILD.",
        ),
        (
            'name = "a",',
            'name = "c",',
            ":b depends on :a, which is not declared above it. Move that up, or split it.",
        ),
        (
            'deps = [":b"])',
            'deps = [":a"])',
            ":run must have its main file as its only source, and that file's library as its dependency.",
        ),
        (
            "tests/**/*_test.py",
            "tests/*_test.py",
            "tests/x/b_test.py has no py_test. Let the glob of the py_test rule in BUILD find it.",
        ),
        ('name = "b"', 'name = "a"', ":a is declared twice."),
    ],
)
def test_a_fault_of_build_is_found(old, new, expected):
    assert old in SMALL
    assert expected in build_rules.build_problems(SMALL.replace(old, new, 1), SMALL_SOURCES)


def test_a_library_below_its_user_is_found():
    first, second = 'py_library(name = "a"', 'py_library(name = "b"'
    lines = SMALL.splitlines()
    assert lines[1].startswith(first) and lines[2].startswith(second)
    assert build_rules.build_problems("\n".join([lines[2], lines[1], *lines[3:]]), SMALL_SOURCES) == [
        ":b depends on :a, which is not declared above it (tasks/b.py imports keras_bert/a.py). "
        "Move that up, or split it."
    ]


def test_dependencies_are_rewritten():
    many = [f"package_{number}" for number in range(10)]
    build = (
        'py_library(\n    name = "a",\n    srcs = ["keras_bert/a.py"],\n    deps = [":gone"],\n)\n\n'
        'py_library(\n    name = "b",\n    srcs = ["tasks/b.py"],\n)\n\n'
        'py_library(\n    name = "c",\n    srcs = ["tasks/c.py"],\n    deps = [\n        ":a",\n    ],\n)\n'
    )
    sources = {
        "keras_bert/a.py": "A = 1",
        "tasks/b.py": "import numpy\nimport absl.flags\nfrom keras_bert.a import A",
        "tasks/c.py": f"import {', '.join(many)}",
    }
    rewritten = build_rules.rewrite_dependencies(build, sources)
    assert rewritten == (
        'py_library(\n    name = "a",\n    srcs = ["keras_bert/a.py"],\n)\n\n'
        'py_library(\n    name = "b",\n    srcs = ["tasks/b.py"],\n'
        '    deps = [":a", requirement("absl-py"), requirement("numpy")],\n)\n\n'
        'py_library(\n    name = "c",\n    srcs = ["tasks/c.py"],\n    deps = [\n'
        '        requirement("package-0"), requirement("package-1"), requirement("package-2"), '
        'requirement("package-3"),\n        requirement("package-4"), requirement("package-5"), '
        'requirement("package-6"), requirement("package-7"),\n        requirement("package-8"), '
        'requirement("package-9"),\n    ],\n)\n'
    )
    assert build_rules.rewrite_dependencies(rewritten, sources) == rewritten
    assert build_rules.build_problems(rewritten, sources) == []


def test_a_late_import_needs_its_dependency():
    sources = SMALL_SOURCES | {"keras_bert/a.py": "def late():\n    import sacrebleu"}
    assert ":a lacks the dependency @pip//sacrebleu: keras_bert/a.py imports it. Add it to its deps in BUILD." in (
        build_rules.build_problems(SMALL, sources)
    )


@pytest.mark.parametrize(
    "statement", ["import tasks.nowhere", "from tasks import nowhere", "from tasks.nowhere import x"]
)
def test_an_import_of_a_file_that_is_not_there_is_an_error(sources, statement):
    sources = sources | {"tasks/engine/new.py": statement}
    with pytest.raises(ImportError, match=r"tasks/engine/new.py imports .*tasks.*, which is not there"):
        problems(sources)


# === Faults against the order of the rooms ===


UPWARD = [
    ("keras_bert", "tasks/engine"),
    ("keras_bert/formats", "export"),
    ("keras_bert/formats", "keras_bert/presets"),
    ("keras_bert/presets", "keras_bert/tokenization"),
    ("keras_bert/tokenization", "keras_bert/formats"),
    ("keras_bert/models", "keras_bert/formats"),
    ("keras_bert/encoder", "keras_bert/models"),
    ("keras_bert/encoder", "keras_bert/tokenization"),
    ("tasks/engine", "export"),
    ("tasks/engine", "tasks/fine_tuning"),
    ("tasks/engine", "tasks/report"),
    ("tasks/fine_tuning", "tasks/squad"),
    ("tasks/classify", "tasks/pretraining/data"),
    ("tasks/new_task", "tasks/squad"),
    ("tasks/squad", "tasks/quickstart"),
    ("tasks/quickstart", "tasks/convert"),
    ("export", "tasks/classify"),
    ("export/heads", "tasks/engine"),
    ("export/heads", "benchmarks"),
    ("export/graph", "export/heads"),
    ("export/graph", "export/verification"),
    ("export/heads", "export/targets"),
    ("export/server/runtime", "export/server"),
    ("export/targets", "export/server"),
    ("tasks/engine", "tests/support"),
    ("benchmarks", "tests/support"),
]


@pytest.mark.parametrize("statement", ["import {}", "def late():\n    import {}"])
def test_an_import_against_the_order_is_found(faults, statement):
    changes, expected = {}, []
    for number, rooms in enumerate(UPWARD):
        importer, imported = f"{rooms[0]}/importer_{number}.py", f"{rooms[1]}/imported_{number}.py"
        is_on_the_path = imported.startswith(("tests", "benchmarks"))
        module = f"imported_{number}" if is_on_the_path else imported.removesuffix(".py").replace("/", ".")
        changes |= {importer: statement.format(module), imported: "x = 1"}
        expected.append(
            f"{importer} imports {imported}: against the order of the rooms (FLOORS in tests/support/room_rules.py). "
            "Move what it needs to a room below both."
        )
    lines = [line for line in faults(room_problems, changes) if "against the order" in line]
    assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("tasks/classify/run.py", "tasks/classify/task.py"),
        ("tasks/convert/run.py", "tasks/convert/proof.py"),
        ("tasks/squad/run.py", "tasks/flags.py"),
        ("tasks/new_task/task.py", "tasks/fine_tuning/task.py"),
        ("tasks/new_task/task.py", "tasks/new_task/data.py"),
        ("tasks/fine_tuning/columns.py", "tasks/text/rows.py"),
        ("tasks/convert/proof.py", "tasks/pretraining/train/model.py"),
        ("tasks/pretraining/train/stages.py", "tasks/pretraining/data/records.py"),
        ("export/run.py", "keras_bert/models/classifier.py"),
        ("tests/tasks/squad/squad_data_test.py", "export/run.py"),
        ("benchmarks/machine.py", "export/run.py"),
    ],
)
def test_an_import_with_the_order_is_allowed(importer, imported):
    assert not room_rules.is_upward(importer, imported)


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("EXPORT_MAY_IMPORT", "tasks/engine/training.py"),
        ("EXCEPTIONS", ("tasks/engine/one.py", "tasks/squad/two.py")),
    ],
)
def test_an_exception_that_nothing_needs_is_found(faults, monkeypatch, name, unused):
    monkeypatch.setattr(room_rules, name, getattr(room_rules, name) | {unused})
    assert faults(room_problems, {}) == [
        f"Nothing needs the exception {unused} any longer. Delete it from {name} in tests/support/room_rules.py."
    ]


def test_a_circle_of_modules_is_found(faults):
    changes = {
        "tasks/new_room/one.py": "class One:\n    from . import two\n",
        "tasks/new_room/two.py": "if True:\n    from .three import x\n",
        "tasks/new_room/three.py": "from . import one\n",
    }
    assert faults(room_problems, changes) == [
        "Circular import: tasks/new_room/one.py -> tasks/new_room/two.py -> "
        "tasks/new_room/three.py -> tasks/new_room/one.py. Move what they share to a third module."
    ]


@pytest.mark.parametrize("late", ["def late():\n    {}\n", "import typing\nif typing.TYPE_CHECKING:\n    {}\n"])
def test_a_late_import_makes_a_circle_too(faults, late):
    late = late.format("from . import one")
    changes = {"tasks/new_room/one.py": "from . import two\n", "tasks/new_room/two.py": late}
    assert faults(room_problems, changes) == [
        "Circular import: tasks/new_room/one.py -> tasks/new_room/two.py -> tasks/new_room/one.py. Move what they "
        "share to a third module."
    ]


@pytest.mark.parametrize("value", ["{}", "[]", "set()", "weakref.WeakKeyDictionary()", "collections.defaultdict(list)"])
def test_a_cache_of_a_module_is_found(faults, value):
    text = "import weakref\n\nTABLE = {{1: 2}}\nNAMES = set(TABLE)\n_cache{} = {}\n\ndef late():\n    seen = {}\n"
    for annotation in ("", ": dict"):
        assert faults(room_problems, {"tasks/new_room/new.py": text.format(annotation, value, "{}")}) == [
            "tasks/new_room/new.py:5 is a cache that outlives a run. Let an object own it that the caller keeps or a "
            "context closes."
        ]


def test_a_crowded_folder_is_found(faults):
    crowd = {f"tasks/new_room/module_{number}.py": "" for number in range(20)}
    assert faults(room_problems, crowd | {"tasks/new_room/__init__.py": ""}) == []
    assert faults(room_problems, crowd | {"tasks/new_room/another.py": ""}) == [
        "tasks/new_room/ holds 21 modules; at most 20 are allowed. Split it."
    ]
    top = {f"export/module_{number}.py": "" for number in range(8)}
    assert [line for line in faults(room_problems, top) if "export/ holds" in line]


def test_a_flag_outside_the_commands_is_found(faults):
    text = 'from absl import flags\n\nflags.DEFINE_string("late", None, "Text.")\n'
    assert faults(room_problems, {"tasks/new_room/new.py": text, "tasks/new_task/run.py": text}) == [
        "tasks/new_room/new.py:3 defines a flag. Define flags in tasks/flags.py or in the module of a command, and "
        "pass their values on as arguments."
    ]
