"""What people install: the commands, the locks, the wheel, and the paths that the README names."""

import ast
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Flags that each command must list, among others: those that bert-quickstart passes.
FLAGS = {
    "bert-quickstart": "input_file output_dir overwrite",
    "bert-train-vocab": "input_file vocab_file vocab_size do_lower_case",
    "bert-create-pretraining-data": "input_file output_file vocab_file do_lower_case max_seq_length "
    "max_predictions_per_seq masked_lm_prob short_seq_prob dupe_factor random_seed do_whole_word_mask",
    "bert-pretrain": "input_file eval_input_file output_dir vocab_file preset bert_config_file num_layers hidden_dim "
    "num_heads intermediate_dim init_checkpoint max_seq_length max_predictions_per_seq train_batch_size "
    "eval_batch_size learning_rate num_train_steps num_warmup_steps optimizer save_checkpoints_steps random_seed",
    "bert-classify": "task_name data_dir train_file dev_file test_file text_column text_pair_column label_column "
    "labels preset load_weights do_train do_eval do_predict output_dir max_seq_length train_batch_size learning_rate "
    "num_train_epochs random_seed",
    "bert-squad": "train_file predict_file output_dir preset do_train do_eval do_predict max_seq_length doc_stride "
    "max_query_length n_best_size max_answer_length version_2_with_negative null_score_diff_threshold bad_rows",
    "bert-swag": "train_file dev_file test_file output_dir preset do_train do_eval do_predict max_seq_length",
    "bert-ner": "data_dir train_file dev_file test_file output_dir preset do_train do_eval do_predict max_seq_length "
    "document_context tag_scheme tag_column",
    "bert-features": "input_file output_file preset layers combine pooling max_seq_length",
    "bert-convert": "from to to_format do_lower_case tolerance compare_with_peers",
    "bert-export": "model_dir export_dir version",
    "bert-serve": "model_name model_base_path rest_api_port host",
}

# Runs a command's --help and says on stderr what it cost.
HELP = """
import importlib, sys, time
sys.argv = [sys.argv[1], "--help"]
try:
    importlib.import_module({module!r}).console_main()
finally:
    heavy = sorted({{"tensorflow", "keras", "matplotlib", "sklearn"}} & set(sys.modules))
    print("COST", time.process_time(), *heavy, file=sys.stderr)
"""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def setup_constants():
    """The literals that setup.py assigns, by name; the file is not executed."""
    assignments = [node for node in ast.parse(read("setup.py")).body if isinstance(node, ast.Assign)]
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in assignments
        if isinstance(node.value, ast.List | ast.Dict)
    }


def lock(path):
    """Versions that a lock file pins, by normalized name."""
    lines = [line for line in read(path).splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines), f"{path}: pins alone"
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


COMMANDS = setup_constants()["COMMANDS"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_flags_and_imports_nothing_heavy(command):
    result = subprocess.run(
        [sys.executable, "-c", HELP.format(module=COMMANDS[command]), command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    listed = set(re.findall(r"--(?:\[no\])?(\w+)", result.stdout + result.stderr))
    assert set(FLAGS[command].split()) <= listed, result.stderr
    cost = re.search(r"^COST (\S+)(.*)$", result.stderr, re.MULTILINE)
    assert cost[2].split() == [], "imported at the top of a module that defines flags"
    assert float(cost[1]) < 1.0, "seconds of processor time"
    assert "Traceback" not in result.stderr


def test_every_command_has_its_flags_here():
    assert FLAGS.keys() == COMMANDS.keys()


@pytest.mark.parametrize(
    ("path", "required"),
    [("requirements_lock.txt", "INSTALL_REQUIRES"), ("requirements_test_lock.txt", "TEST_REQUIRES")],
)
def test_lock_satisfies_setup(path, required):
    pins = lock(path)
    for requirement in map(Requirement, setup_constants()[required]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_test_lock_holds_the_runtime_lock():
    assert lock("requirements_lock.txt").items() <= lock("requirements_test_lock.txt").items()


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


def test_readme_has_no_placeholder():
    assert not re.search(r"^[A-Z][A-Z_]{5,}$", read("README.md"), re.MULTILINE)


def test_where_is_paths_exist():
    section = read("README.md").split("Where is", 1)[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|") and "`" in line]
    paths = [
        path for row in rows for path in re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|txt|toml)|BUILD)`", row)
    ]
    assert len(paths) >= len(rows) >= 5
    for path in paths:
        assert os.path.exists(os.path.join(ROOT, path)), path


@pytest.fixture()
def checkout(tmp_path):
    """A copy of what a clone holds, so that a build leaves nothing here and finds nothing of an earlier build."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    for name in ("keras_bert", "tasks", "export", "tests"):
        shutil.copytree(os.path.join(ROOT, name), directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("BUILD", "LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(os.path.join(ROOT, name), directory)
    return directory


@pytest.mark.slow
def test_wheel_holds_the_packages_and_nothing_else(checkout, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index"]
    result = subprocess.run([*command, "-w", str(tmp_path)], cwd=checkout, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("keras_bert_zoo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
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
    assert any(name.endswith("/licenses/LICENSE") for name in names)
