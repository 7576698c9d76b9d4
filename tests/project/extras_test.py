"""The core and the extras: what each module may import, and what commands say where only the core is installed."""

import importlib.metadata
import re

import pytest
from light_commands import Call, run_calls
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository import COMMANDS, ROOT, setup_literals
from source_imports import PACKAGES, distribution_of, imports, read_sources

from tasks.settings import EXTRAS

SETUP = setup_literals()


def names(requirements):
    return {Requirement(requirement).name for requirement in requirements}


CORE = names(SETUP["INSTALL_REQUIRES"])
OPTIONAL = set().union(*map(names, SETUP["OPTIONAL_REQUIRES"].values())) - CORE
# A module that imports an extra's package at its top, which others may import inside functions alone.
GUARDED = {
    "export/graph/onnx_encoder.py",
    "export/graph/onnx_nodes.py",
    "export/graph/onnx_session.py",
    "export/targets/int8.py",
    "export/targets/onnx.py",
    "tasks/pretraining/data/beam.py",
}
REFUSED = {
    "bert-quickstart": ("serve", []),
    "bert-serve": ("serve", ["--model_base_path=missing"]),
    "bert-serve --runtime": ("serve", ["--model_base_path=missing", "--runtime=onnxruntime"]),
    "bert-serve --precision": ("serve", ["--model_base_path=missing", "--precision=int8"]),
    "bert-squad": ("squad", ["--train_file=missing.json", "--predict_file=missing.json", "--output_dir=out"]),
    "bert-squad --do_eval": ("squad", ["--do_eval", "--predict_file=missing.json", "--output_dir=out"]),
    "bert-export --onnx": ("onnx", ["--onnx", "--litert", "--model_dir=missing", "--export_dir=out"]),
    "bert-export --int8": ("onnx", ["--int8", "--model_dir=missing", "--export_dir=out"]),
    "bert-export --litert": ("litert", ["--litert", "--model_dir=missing", "--export_dir=out"]),
    "bert-classify": ("excel", ["--train_file={directory}/rows.xlsx", "--output_dir={directory}/out"]),
    "bert-features": ("parquet", ["--preset=missing", "--input_file=missing", "--output_file=out.parquet"]),
    "bert-train-vocab": ("cluster", ["--input_file=missing", "--vocab_file=out", "--runner=dask"]),
    "bert-create-pretraining-data": (
        "sentences",
        ["--input_file=missing", "--vocab_file=missing", "--output_file=out", "--sentence_splitter=sentencex"],
    ),
}


def missing_from_core():
    """What is installed here but would not be with the core alone, by the names of the packages."""
    waiting, core = list(map(Requirement, SETUP["INSTALL_REQUIRES"])), set()
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key not in core:
            core.add(key)
            extras = [{"extra": extra} for extra in requirement.extras or [""]]
            required = map(Requirement, importlib.metadata.requires(requirement.name) or [])
            waiting += [
                dependency
                for dependency in required
                if not dependency.marker or any(map(dependency.marker.evaluate, extras))
            ]
    kept = {name for name, _ in core} | {canonicalize_name("keras-bert-zoo")}
    owners = importlib.metadata.packages_distributions()
    return {package for package, all_of in owners.items() if kept.isdisjoint(map(canonicalize_name, all_of))}


@pytest.fixture(scope="module")
def sources():
    return read_sources(ROOT)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What --help and the refused command lines give where the core alone is installed."""
    lines = {name: [name, "--help"] for name in COMMANDS}
    directory = tmp_path_factory.mktemp("rows")
    (directory / "rows.xlsx").touch()
    flags = {name: [flag.format(directory=directory) for flag in flags] for name, (_, flags) in REFUSED.items()}
    lines |= {("refused", name): [name.split()[0], *flags[name]] for name in REFUSED}
    results = run_calls([Call(COMMANDS[line[0]], [line]) for line in lines.values()], without=missing_from_core())
    return dict(zip(lines, results, strict=True))


def test_the_core_is_small_and_each_requirement_names_a_file_that_imports_it(sources):
    text = (ROOT / "setup.py").read_text(encoding="utf-8").partition("INSTALL_REQUIRES = [\n")[2].partition("]\n")[0]
    reasons = dict(re.findall(r'^    "([\w-]+).*",  # (\S+)$', text, re.MULTILINE))
    assert reasons.keys() == CORE and len(CORE) <= 18
    assert [name for name, path in reasons.items() if name not in imports(path, sources)[1]] == []


def test_the_table_of_packages_is_that_of_setup():
    for extra, packages in EXTRAS.items():
        assert set(map(distribution_of, packages)) <= names(SETUP["OPTIONAL_REQUIRES"][extra]), extra
    assert names(SETUP["OPTIONAL_REQUIRES"]["onnx"]) <= names(SETUP["OPTIONAL_REQUIRES"]["serve"])


def test_modules_of_the_core_import_no_extra_at_their_top(sources):
    ours = {path for path in sources if path.endswith(".py") and path.split("/")[0] in PACKAGES}
    direct = {path: imports(path, sources, at_import_only=True) for path in ours}
    reaching = {path for path in ours if direct[path][1] & OPTIONAL}
    while more := {path for path in ours - reaching if direct[path][0] & reaching}:
        reaching |= more
    assert {path for path in reaching if not path.startswith("export/server/")} == GUARDED


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_the_core_alone(answers, command):
    ((status, text),) = answers[command]["lines"]
    assert status == 0 and "Traceback" not in text, text


@pytest.mark.parametrize("name", REFUSED)
def test_a_missing_extra_is_said_in_one_line_before_anything_else(answers, name):
    extra, _ = REFUSED[name]
    ((status, text),) = answers["refused", name]["lines"]
    assert status == 1 and text.count("\n") == 1, text
    assert text.endswith(f"Run: pip install 'keras-bert-zoo[{extra}]'\n"), text
    assert answers["refused", name]["imported"] == []


def test_each_extra_is_refused_somewhere():
    assert {extra for extra, _ in REFUSED.values()} == EXTRAS.keys()
