"""BUILD says what the files say: no source left out, no dependency missing, idle or upward."""

import ast
import os
import re

import build_rules
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture(scope="module")
def build():
    with open(os.path.join(ROOT, "BUILD"), encoding="utf-8") as file:
        return file.read()


@pytest.fixture(scope="module")
def real_sources():
    return build_rules.read_sources(ROOT)


@pytest.fixture()
def sources(real_sources):
    return dict(real_sources)


@pytest.fixture(scope="module")
def new_problems(build, real_sources):
    """Gives what `problems` says beyond what it says of the files as they are (nothing, says the first test)."""
    present = build_rules.problems(build, real_sources)
    return lambda build, sources: [line for line in build_rules.problems(build, sources) if line not in present]


def constant(path, name):
    """Value of a literal that a file assigns to `name`; the file is not executed."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        for node in ast.parse(file.read()).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == name:
                return ast.literal_eval(node.value)
    raise AssertionError(f"{path} does not assign {name}.")


def test_build_agrees_with_the_sources(build, sources):
    assert build_rules.problems(build, sources) == []


def test_build_loads_its_rules_from_rules_python(build):
    assert 'load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")' in build


def test_every_command_has_a_binary(build):
    binaries = {target.name: target.main for target in build_rules.evaluate(build) if target.rule == "py_binary"}
    for command, module in constant("setup.py", "COMMANDS").items():
        assert binaries.get(command) == module.replace(".", "/") + ".py"


def test_every_requirement_is_locked(build):
    with open(os.path.join(ROOT, "requirements_test_lock.txt"), encoding="utf-8") as file:
        locked = {line.split("==")[0].lower().replace("_", "-") for line in file if "==" in line}
    locked.add("apache-beam")  # It does not resolve together with the lock: setup.py has it as an extra.
    for target in build_rules.evaluate(build):
        for label in target.deps:
            if label.startswith("@pip//"):
                assert label.removeprefix("@pip//") in locked, target.name


def test_what_is_installed_requires_what_it_imports(sources):
    declared = {re.match(r"[\w-]+", requirement)[0] for requirement in constant("setup.py", "INSTALL_REQUIRES")}
    optional = constant("setup.py", "OPTIONAL_REQUIRES").values()
    declared |= {re.match(r"[\w-]+", requirement)[0] for extra in optional for requirement in extra}
    declared |= {
        "keras-hub",  # Keras NLP is a shell around it.
    }
    for path in sources:
        if path.split("/")[0] in ("keras_bert", "tasks", "export"):
            assert build_rules.imports(path, sources)[1] <= declared, path


def test_evaluate_reads_names_sources_and_requirements():
    targets = build_rules.evaluate(
        'load("x", "py_library")\n'
        'py_library(name = "a", srcs = ["keras_bert/a.py"], deps = [requirement("numpy")])\n'
        '[py_test(name = name, srcs = ["tests/%s.py" % name], deps = [":a"]) for name in ["a_test"]]\n'
    )
    assert targets == [
        build_rules.Target("py_library", "a", ["keras_bert/a.py"], ["@pip//numpy"], None),
        build_rules.Target("py_test", "a_test", ["tests/a_test.py"], [":a"], None),
    ]


def test_a_source_in_no_library_is_found(build, sources, new_problems):
    sources["keras_bert/stray.py"] = ""
    assert new_problems(build, sources) == [
        "keras_bert/stray.py is in no py_library. Add it to the srcs of one in BUILD."
    ]


def test_a_source_that_is_gone_is_found(build, sources, new_problems):
    del sources["tasks/prose.py"]
    sources["tasks/docstrings.py"] = sources["tasks/docstrings.py"].replace("from tasks import prose\n", "")
    assert ":docstrings names tasks/prose.py, which is not there." in new_problems(build, sources)


def test_an_import_without_a_dependency_is_found(build, sources, new_problems):
    sources["keras_bert/files.py"] += "\ndef late():\n    import sacrebleu\n"
    assert new_problems(build, sources) == [
        ":files lacks the dependency @pip//sacrebleu, which keras_bert/files.py imports."
    ]


def test_a_missing_dependency_on_a_library_is_found(build, sources, new_problems):
    sources["tasks/prose.py"] += "\nfrom keras_bert import config\n"
    assert new_problems(build, sources) == [":docstrings lacks the dependency :config, which tasks/prose.py imports."]


def test_a_dependency_nobody_imports_is_found(build, sources, new_problems):
    sources["tasks/docstrings.py"] = sources["tasks/docstrings.py"].replace("from tqdm import tqdm\n", "")
    assert new_problems(build, sources) == [
        ":docstrings has the dependency @pip//tqdm, which none of its sources imports."
    ]


def test_a_test_without_a_py_test_is_found(build, sources, new_problems):
    sources["tests/stray_test.py"] = ""
    assert new_problems(build, sources) == ["tests/stray_test.py has no py_test. Add it to TESTS in BUILD."]


def test_a_library_below_its_user_is_found():
    build = (
        'py_library(name = "b", srcs = ["keras_bert/b.py"], deps = [":a"])\n'
        'py_library(name = "a", srcs = ["keras_bert/a.py"])\n'
    )
    sources = {"keras_bert/a.py": "A = 1", "keras_bert/b.py": "from keras_bert.a import A"}
    assert build_rules.problems(build, sources) == [
        ":b depends on :a, which is not declared above it. Libraries stand in layer order."
    ]


def test_a_binary_without_its_library_is_found(build, sources, new_problems):
    fault = re.sub(r'(name = "bert-serve".*?)deps = \["?[^\]]*\]', r"\1deps = []", build, count=1, flags=re.DOTALL)
    assert fault != build
    assert new_problems(fault, sources) == [
        ":bert-serve must have its main file as its only source, and that file's library as its dependency."
    ]


@pytest.mark.parametrize(
    ("importer", "statement", "imported"),
    [
        ("keras_bert/config.py", "from tasks import flags", "tasks/flags.py"),
        ("keras_bert/config.py", "def late():\n    import export.run", "export/run.py"),
        ("tasks/strategy.py", "import export.run", "export/run.py"),
        ("tasks/glue/data.py", "from tasks.pretraining import masking", "tasks/pretraining/masking.py"),
        ("tasks/pretraining/data.py", "from tasks.glue.metrics import accuracy", "tasks/glue/metrics.py"),
        ("tasks/docstrings.py", "from tasks.glue import run", "tasks/glue/run.py"),
        ("export/local_server.py", "from tasks.glue import run", "tasks/glue/run.py"),
        ("tasks/flags.py", "import build_rules", "tests/build_rules.py"),
    ],
)
def test_an_upward_import_is_found(build, sources, new_problems, importer, statement, imported):
    sources[importer] += f"\n{statement}\n"
    expected = f"{importer} imports {imported}: upward. See the table of rooms in CONTRIBUTING.md."
    assert expected in new_problems(build, sources)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("tasks/glue/run.py", "tasks/flags.py"),
        ("tasks/glue/run.py", "tasks/glue/data.py"),
        ("tasks/glue/run.py", "keras_bert/config.py"),
        ("export/run.py", "tasks/glue/model.py"),
        ("export/run.py", "tasks/flags.py"),
        ("tests/glue_data_test.py", "export/run.py"),
    ],
)
def test_a_downward_import_is_allowed(importer, imported):
    assert not build_rules.upward(importer, imported)


def test_an_import_of_a_file_that_is_not_there_is_an_error(sources):
    sources["tasks/prose.py"] += "\nimport tasks.nowhere.at_all\n"
    with pytest.raises(ImportError, match=r"tasks/prose.py imports tasks.nowhere.at_all"):
        build_rules.imports("tasks/prose.py", sources)
