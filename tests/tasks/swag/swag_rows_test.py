"""benchmarks/swag_rows.py: rows that bert-swag reads, whose right choice is the next sentence of the document."""

import os
import subprocess
import sys

import pytest
from repository import ROOT

from tasks.swag.data import Columns, read_table
from tasks.text.bad_rows import BadRows

pytest.importorskip("sentencex")

DOCUMENTS = {
    name: [f"Here stands sentence {number} of {name} for all." for number in range(12)] for name in ("one", "two")
}


def _run(folder, *arguments) -> subprocess.CompletedProcess:
    for name, sentences in DOCUMENTS.items():
        # A line of two sentences, of which one is too short to be used; then a sentence a line.
        (folder / f"{name}.txt").write_text("Thank you. " + "\n".join(sentences) + "\n")
    texts = [f"--train_text={folder}/*.txt", f"--dev_text={folder}/one.txt", f"--output_dir={folder}/rows"]
    script = os.path.join(ROOT, "benchmarks", "swag_rows.py")
    environment = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, script, *texts, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _read(path):
    return read_table(str(path), Columns(), BadRows("refuse"))


def test_the_right_choice_comes_next_and_no_other_is_near(tmp_path):
    finished = _run(tmp_path, "--num_train_rows=20", "--num_dev_rows=11")
    assert finished.returncode == 0, finished.stderr
    train, dev = _read(tmp_path / "rows" / "train.csv"), _read(tmp_path / "rows" / "val.csv")
    assert (len(train.lines), len(dev.lines), train.num_choices) == (20, 11, 4)
    assert len(set(train.contexts)) == 20 and set(dev.contexts) == set(DOCUMENTS["one"][:11])
    assert len(set(train.labels)) > 1
    for context, choices, label in zip(train.contexts, train.choices, train.labels, strict=True):
        sentences = next(sentences for sentences in DOCUMENTS.values() if context in sentences)
        place = sentences.index(context)
        distances = [sentences.index(choice) - place for choice in choices]
        assert distances.pop(label) == 1
        assert len(set(distances)) == 3 and all(abs(distance) >= 3 for distance in distances)


def test_a_seed_gives_the_same_rows_and_another_others(tmp_path):
    tables = []
    for seed in (1, 1, 2):
        assert _run(tmp_path, "--num_train_rows=9", "--num_dev_rows=9", f"--random_seed={seed}").returncode == 0
        tables.append((tmp_path / "rows" / "train.csv").read_text())
    assert tables[0] == tables[1] != tables[2]


def test_too_little_text_is_refused_and_nothing_written(tmp_path):
    finished = _run(tmp_path, "--num_train_rows=23")
    assert finished.returncode != 0
    assert "2 documents give 22 rows. Expected 23: give more text." in finished.stderr
    assert not list((tmp_path / "rows").iterdir())
