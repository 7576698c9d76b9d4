"""What people install: the commands, the locks and the wheel."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from repository import COMMANDS, ROOT, setup_literals


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def lock(path):
    """Versions that a lock file pins, by normalized name."""
    lines = [line for line in read(path).splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines), f"{path}: pins alone"
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


SETUP = setup_literals()
ALL = [
    requirement
    for name, more in SETUP["OPTIONAL_REQUIRES"].items()
    if name not in SETUP["APART"]
    for requirement in more
]


@pytest.mark.parametrize(
    ("path", "required"),
    [
        ("requirements_lock.txt", SETUP["INSTALL_REQUIRES"] + ALL),
        ("requirements_test_lock.txt", SETUP["TEST_REQUIRES"]),
        ("requirements_docs_lock.txt", SETUP["OPTIONAL_REQUIRES"]["docs"]),
        ("requirements_cluster_lock.txt", SETUP["INSTALL_REQUIRES"] + SETUP["OPTIONAL_REQUIRES"]["cluster"]),
    ],
    ids=["runtime", "test", "docs", "cluster"],
)
def test_lock_satisfies_setup(path, required):
    pins = lock(path)
    for requirement in map(Requirement, required):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_test_lock_holds_the_runtime_lock():
    assert lock("requirements_lock.txt").items() <= lock("requirements_test_lock.txt").items()


def test_the_lock_of_clusters_is_the_runtime_lock_but_for_what_beam_wants_older():
    runtime, cluster = lock("requirements_lock.txt"), lock("requirements_cluster_lock.txt")
    differing = {name for name, version in runtime.items() if cluster.get(name, version) != version}
    refused = {"pillow", "protobuf", "pyarrow", "python-dateutil"}
    assert differing == refused | {"grpcio-health-checking", "grpcio-reflection"}  # By protobuf.
    assert {"apache-beam", "dask", "distributed"} <= cluster.keys() and not {
        "pytest",
        "pip",
        "keras-bert-zoo",
    } & cluster.keys()


@pytest.mark.parametrize("path", ["requirements_lock.txt", "requirements_test_lock.txt"])
def test_lock_is_complete(path):
    """Whatever a locked package requires here is locked too, at a version that it accepts."""
    pins = lock(path)
    for name in pins:
        assert importlib.metadata.version(name).split("+")[0] == pins[name], f"{name}: not what is locked is installed"
        for requirement in map(Requirement, importlib.metadata.requires(name) or []):
            if name == "torch" and re.match(r"nvidia|cuda|triton", requirement.name):
                continue  # Only its build for CUDA asks for these; which build pip takes, the machine decides.
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            assert canonicalize_name(requirement.name) in pins, f"{name} requires {requirement}"
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True), name


def test_locked_packages_run_on_the_oldest_python_that_setup_allows():
    oldest = re.search(r'python_requires=">=([\d.]+)', read("setup.py"))[1]
    for name in lock("requirements_lock.txt"):
        supported = importlib.metadata.metadata(name).get("Requires-Python")
        assert supported is None or SpecifierSet(supported).contains(f"{oldest}.9"), name


def test_version_is_said_once_and_the_same():
    version = re.search(r'version="([^"]+)"', read("setup.py"))[1]
    assert f'__version__ = "{version}"' in read("keras_bert/__init__.py")
    assert re.search(r'version = "([^"]+)"', read("MODULE.bazel"))[1] == version.split(".dev")[0]


@pytest.fixture()
def checkout(tmp_path):
    """A copy of what a clone holds, so that a build leaves nothing here and finds nothing of an earlier build."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    for name in ("keras_bert", "tasks", "export", "tests"):
        shutil.copytree(os.path.join(ROOT, name), directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("BUILD", "LICENSE", "README.md", "commands.bzl", "pyproject.toml", "setup.py"):
        shutil.copy(os.path.join(ROOT, name), directory)
    return directory


def test_wheel_holds_the_packages_and_nothing_else(checkout, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index"]
    result = subprocess.run([*command, "-w", str(tmp_path)], cwd=checkout, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("keras_bert_zoo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    installed = {name for name in names if ".dist-info/" not in name}
    expected = {
        path.relative_to(checkout).as_posix()
        for package in ("keras_bert", "tasks", "export")
        for path in (checkout / package).rglob("*")
        if path.is_file()
    }
    assert installed == expected
    assert set(re.findall(r"^(\S+ = \S+)$", entry_points, re.MULTILINE)) == {
        f"{command} = {module}:console_main" for command, module in COMMANDS.items()
    }
    required = set(re.findall(r'^Requires-Dist: (.*); extra == "all"$', metadata, re.MULTILINE))
    assert set(map(Requirement, required)) == set(map(Requirement, ALL))
    assert any(name.endswith("/licenses/LICENSE") for name in names)
