"""The recipes: bash reads them, what is missing is named, and their commands exist with these flags."""

import gzip
import importlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import repository
from light_commands import Call, run_calls
from recipe_commands import (
    COMMANDS,
    EXPECTED_SCRIPTS,
    PATHS,
    PRETRAINING,
    RECIPES,
    SCRIPTS,
    SOURCED,
    VARIANTS,
    commands,
    flags_of,
    start,
    text_of,
)

from keras_bert.presets.catalog import find_preset

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


# === The scripts ===


def test_every_table_has_its_recipe_and_the_readme_lists_all():
    assert SCRIPTS == EXPECTED_SCRIPTS
    readme = (RECIPES / "README.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        assert readme.count(f"`{script}`") >= 2, script  # at full size and for the laptop


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.sh")), ids=lambda path: str(path.relative_to(RECIPES)))
def test_bash_reads_it(path):
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert os.access(path, os.X_OK) == (path.name not in SOURCED)
    assert "set -euo pipefail" in (RECIPES / "common.sh").read_text()
    assert not re.search(r"/(work|root|home)/", path.read_text())


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_opens_with_command_cost_and_expected_score(script):
    text = text_of(script)
    assert f"recipes/{script}" in text and "SCALE=laptop" in text
    for heading in ("# Cost:", "# Expected", "# Laptop:"):
        assert heading in text, heading


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_missing_variable_is_one_line_that_names_it(script):
    done = start(script)
    assert done.returncode == 2 and done.stdout == ""
    missing = "TRAIN_TEXT" if script in PRETRAINING else "DATA_DIR"
    expected = f"sh: the environment variable {missing} is not set. Expected (a|the) .*"
    assert re.fullmatch(rf"[\w.]+{expected}\.", done.stderr.strip())


@pytest.mark.parametrize(
    ("script", "changes", "message"),
    [
        ("glue.sh", {"SCALE": "small"}, "SCALE=small: expected one of: full laptop."),
        ("glue.sh", {"HARDWARE": "tpu"}, "HARDWARE=tpu: expected one of: cpu gpu gpus."),
        ("glue.sh", {"TASKS": "sst3"}, "sst3: no task of GLUE."),
        ("glue.sh", {}, "/none/data/MNLI: no such file or directory. Expected GLUE's folders in /none/data."),
        ("squad_1.1.sh", {}, "/none/data/train-v1.1.json: no such file or directory. Check DATA_DIR."),
        ("swag.sh", {"SCALE": "laptop"}, "/none/data/train.csv: no such file or directory."),
        ("ner.sh", {}, "/none/data/eng.train: no such file or directory."),
        ("features_ner.sh", {"ROWS": "first", "DRY_RUN": "1"}, "ROWS: no row of Table 7 is called first."),
        ("pretrain_base.sh", {"OPTIMIZER": "sgd"}, "OPTIMIZER=sgd: expected one of: bert-2018 lamb."),
        ("pretrain_base.sh", {"HARDWARE": "tpu"}, "the environment variable TPU_NAME is not set."),
        ("ablations.sh", {"VARIANTS": "all", "DRY_RUN": "1"}, "VARIANTS: no variant is called all."),
    ],
)
def test_wrong_settings_stop_with_one_line(script, changes, message):
    done = start(script, **{**PATHS, "PRESET": "base", **changes})
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1


# === The commands ===


def test_every_command_line_parses_with_the_command_s_own_flags():
    calls = []
    for name in COMMANDS:
        lines = [command for variant in VARIANTS for command in commands(*variant) if command[0] == name]
        assert lines, f"no recipe runs {name}"
        calls.append(Call(repository.COMMANDS[name], lines, only_parses=True))
    *runs, refused = run_calls(
        [*calls, Call(repository.COMMANDS["bert-squad"], [["bert-squad", "--no_flag=1"]], only_parses=True)]
    )
    assert refused["lines"][0][0] == 2 and "no_flag" in refused["lines"][0][1]
    for call, done in zip(calls, runs, strict=True):
        wrong = [said for said in zip(call.lines, done["lines"], strict=True) if said[1] != [0, ""]]
        assert not wrong and not done["imported"]


def test_no_recipe_runs_anything_else():
    names = {command[0] for variant in VARIANTS for command in commands(*variant)}
    assert names == set(COMMANDS)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in RECIPES.glob("*.sh"))
    assert (
        set(re.findall(r"^ *run (\S+)", sources, re.MULTILINE)) | set(re.findall(r"\brun (bert-\S+)", sources)) == names
    )


def test_presets_resolve_and_no_two_runs_share_a_directory():
    for variant in VARIANTS:
        directories = []
        for command in commands(*variant):
            flags = flags_of(command)
            if "preset" in flags and not flags["preset"].startswith("/none/out/"):
                assert find_preset(flags["preset"]) is not None, flags["preset"]
            if command[0] not in ("bert-train-vocab", "bert-create-pretraining-data"):
                directories.append(flags["output_dir"])
        # The one exception: GLUE's diagnostic set is answered by the model of MNLI.
        doubled = {directory for directory in directories if directories.count(directory) > 1}
        assert doubled <= {"/none/out/mnli"}, variant
    assert find_preset("cased_L-12_H-768_A-12").lowercase is False


def test_flags_after_the_name_go_to_the_training():
    done = start("swag.sh", "--num_train_epochs=1", **PATHS, PRESET="base", DRY_RUN="1")
    assert flags_of(tuple(shlex.split(done.stdout)))["num_train_epochs"] == "1"


# === Run for real, with commands that only note their arguments ===


def test_a_laptop_run_slices_the_data_and_calls_the_commands(tmp_path):
    tools, data = tmp_path / "bin", tmp_path / "data"
    tools.mkdir()
    (tools / "bert-classify").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    (tools / "bert-classify").chmod(0o755)
    (data / "sst2").mkdir(parents=True)
    rows = [f"text {number}\t{number % 2}" for number in range(9)]
    (data / "sst2" / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (data / "stsb").mkdir()
    (data / "stsb" / "train.csv").write_text("a,b,5.0\n")
    done = start(
        "glue.sh",
        PATH=f"{tools}:{os.environ['PATH']}",
        DATA_DIR=str(data),
        OUTPUT_DIR=str(tmp_path / "out"),
        PRESET="tiny",
        SCALE="laptop",
        TASKS="SST-2 STS-B",
        LAPTOP_ROWS="4",
    )
    assert done.returncode == 0, done.stderr
    slices = tmp_path / "out" / "slices"
    assert (slices / "sst2" / "train.tsv").read_text().splitlines() == ["sentence\tlabel", *rows[:4]]
    first, second = (tmp_path / "called").read_text().splitlines()
    assert f"--train_file={slices}/sst2/train.tsv --dev_file={data}/sst2/dev.tsv" in first
    assert "--task_name=table --regression --column_names=sentence1,sentence2,score" in second


def test_glue_packs_the_submission(tmp_path):
    tools, data = tmp_path / "bin", tmp_path / "data"
    tools.mkdir()
    # Writes what bert-classify would: the answers of the task, and other files that GLUE does not take.
    (tools / "bert-classify").write_text(
        'for flag in "$@"; do case "$flag" in\n'
        "--output_dir=*) out=${flag#*=};; --task_name=ax) name=AX;; --task_name=rte) name=RTE;;\n"
        "--task_name=mnli) name=MNLI-m;; esac; done\n"
        'mkdir -p "$out"; echo x > "$out/$name.tsv"; echo x > "$out/predictions.tsv"\n'
    )
    (tools / "bert-classify").chmod(0o755)
    (tools / "python").symlink_to(sys.executable)
    for name in ("MNLI", "RTE", "WNLI"):
        (data / name).mkdir(parents=True)
    (data / "WNLI" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n")
    done = start(
        "glue.sh",
        PATH=f"{tools}:{os.environ['PATH']}",
        DATA_DIR=str(data),
        OUTPUT_DIR=str(tmp_path / "out"),
        PRESET="base",
        TASKS="mnli rte wnli",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "wnli" / "WNLI.tsv").read_text() == "index\tprediction\n0\t0\n1\t0\n"
    shutil.unpack_archive(tmp_path / "out" / "submission.zip", tmp_path / "unpacked")
    assert sorted(path.name for path in (tmp_path / "unpacked").iterdir()) == [
        "AX.tsv",
        "MNLI-m.tsv",
        "RTE.tsv",
        "WNLI.tsv",
    ]
    assert "submission.zip: 4 files; GLUE takes 11." in done.stdout


def test_the_learning_curve_slices_each_label_and_draws_both_starts(tmp_path):
    tools, data = tmp_path / "bin", tmp_path / "data"
    tools.mkdir()
    # Writes what bert-classify would: 80% from pre-trained weights with each seed, 50% and 60% from random ones.
    (tools / "bert-classify").write_text(
        f'echo "$@" >> {tmp_path}/called\nsecond=0.8\nfirst=0.8\nfor flag in "$@"; do case "$flag" in\n'
        "--output_dir=*) out=${flag#*=};; --noload_weights) first=0.5; second=0.6;;\nesac; done\n"
        'mkdir -p "$out/sweep"; echo "{\\"runs\\": [{\\"metrics\\": {\\"accuracy\\": $first}}, '
        '{\\"metrics\\": {\\"accuracy\\": $second}}]}" > "$out/sweep/sweep.json"\n'
    )
    (tools / "bert-classify").chmod(0o755)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # A link would not see its packages.
    (tools / "python").chmod(0o755)
    data.mkdir()
    rows = [f"text {number}\t{'abb'[number % 3]}" for number in range(30)]
    for part in ("train", "dev"):
        (data / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    done = start(
        "learning_curve.sh",
        PATH=f"{tools}:{os.environ['PATH']}",
        DATA_DIR=str(data),
        OUTPUT_DIR=str(tmp_path / "out"),
        PRESET="tiny",
        SCALE="laptop",
        SIZES="2 8",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2:] == [
        f"| {size} | 80.0 (80.0 to 80.0) | 55.0 (50.0 to 60.0) | +25.0 (+20.0 to +30.0) |" for size in (2, 8)
    ]
    assert (tmp_path / "out" / "slices" / "train_2.tsv").read_text().splitlines() == [
        "sentence\tlabel",
        *rows[:3],
        rows[3],
    ]
    calls = (tmp_path / "called").read_text().splitlines()
    assert ["--num_train_epochs=800 " in call for call in calls] == [True, True, False, False]
    assert (tmp_path / "out" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


# === Text of the longer run ===


@pytest.fixture(name="prose")
def _prose(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES / "laptop")
    return importlib.import_module("prose")


def test_documents_give_their_english_prose(prose, tmp_path):
    html = (
        "<html><head><title>The title of a page is no sentence.</title></head><body><p>The <code>read</code> call "
        "returns the number of bytes, and moves on.</p><pre>The code is not to be read.</pre>"
        "<p>Der Leser wird in diesem Satz um Geduld gebeten.</p></body></html>"
    )
    man = (
        ".TH TAIL 1\n.SH DESCRIPTION\nPrint the last lines of each\n.I file\nto the standard output.\n.PP\n"
        "With \\fB\\-f\\fP it waits for more of the file.\n"
    )
    (tmp_path / "page.html").write_text(html)
    (tmp_path / "tail.1.gz").write_bytes(gzip.compress(man.encode()))
    (tmp_path / "names.pod").write_text("=head1 NAMES\n\nThe name of a B<file> is all that you have to give.\n")
    (tmp_path / "logo.svg").write_text("<text>The picture of a file is not to be read.</text>")
    sentences = {
        pathlib.Path(document.name).name: document.sentences for document in prose.read_documents(str(tmp_path))
    }
    assert sentences == {
        "names.pod": ["The name of a file is all that you have to give."],
        "page.html": ["The read call returns the number of bytes, and moves on."],
        "tail.1.gz": [
            "Print the last lines of each file to the standard output.",
            "With -f it waits for more of the file.",
        ],
    }


def test_texts_to_test_on_and_repeats_are_left_out(prose, tmp_path, monkeypatch, capsys):
    tested = "It is the best film that anyone has made about a lighthouse."
    words = "one two three four five six seven eight".split()
    texts = [f"This is the page with number {word} of the book." for word in words]
    for number, text in enumerate(texts):
        path = tmp_path / f"documents/{number % 2}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text} It is said that {tested.lower()} {texts[0]}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/dev.tsv").write_text(f"sentence\tlabel\n{tested}\t1\n")
    (tmp_path / "text").mkdir()
    documents = [prose.Document(str(number % 2), str(number), "name", [text]) for number, text in enumerate(texts)]
    monkeypatch.setattr(prose.docstrings, "collect", lambda **_: documents[:4])
    prose.main(str(tmp_path / "text"), [str(tmp_path / "documents")], [str(tmp_path / "tests")])
    lines = {
        name: {
            line
            for part in ("train", "held_out")
            for line in (tmp_path / f"text/{part}_{name}.txt").read_text().split("\n")
        }
        for name in ("docstrings", "manuals")
    }
    assert lines == {"docstrings": {*texts[:4], ""}, "manuals": {*texts[4:], ""}}
    assert "manuals: 24 sentences, of which 4 are kept" in capsys.readouterr().out


def test_the_longer_run_keeps_its_finished_stages(tmp_path):
    """With commands that write the names of their files alone, stopped at the first vocabulary."""
    commands, text, data = tmp_path / "bin", tmp_path / "out" / "text", tmp_path / "out" / "data"
    commands.mkdir()
    scripts = {
        "python": f"shift; touch {text}/{{train,held_out}}_{{docstrings,manuals}}.txt",
        "bert-train-vocab": f"[[ -e {tmp_path}/on ]]; mkdir -p {data}; touch {data}/vocab.txt",
        "bert-create-pretraining-data": 'for word in "$@"; do [[ "$word" != --output_file=* ]] || '
        'touch "${word#*=}.report.json"; done',
        "bert-pretrain": "exit 0",
    }
    for name, script in scripts.items():
        path = commands / name
        path.write_text(f"#!/bin/bash\nset -e\necho {name} >> {tmp_path}/calls\n{script}\n")
        path.chmod(0o755)
    for folder in ("inaugural", "state_union"):
        (tmp_path / "corpus" / folder).mkdir(parents=True)
        for year in (1985, 1989):
            (tmp_path / "corpus" / folder / f"{year}-Name.txt").write_text("We are here.\n")
    (tmp_path / "corpus" / "wikitext2-valid.txt").write_text("".join(f" = {n} = \n text {n}\n" for n in range(1, 12)))
    environment = {
        **{"PATH": f"{commands}:{os.environ['PATH']}", "CORPUS_DIR": f"{tmp_path}/corpus"},
        **{"OUTPUT_DIR": f"{tmp_path}/out", "DOCUMENTS": "/none"},
    }
    calls = []
    for is_on in (False, True, True):
        if is_on:
            (tmp_path / "on").touch()
        script = ["bash", str(RECIPES / "laptop" / "run.sh")]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_on, done.stderr
        calls.append((tmp_path / "calls").read_text().split())
        (tmp_path / "calls").unlink()
    assert calls[0] == ["python", "bert-train-vocab"] and calls[2] == ["bert-pretrain"]
    assert calls[1] == ["bert-train-vocab", *["bert-create-pretraining-data"] * 8, "bert-pretrain"]
    assert (text / "held_out_articles.txt").read_text() == " = 5 = \n text 5\n"
    assert sorted(path.name for path in (text / "held_out").iterdir()) == [
        f"{folder}-1985-Name.txt" for folder in ("inaugural", "state_union")
    ]
