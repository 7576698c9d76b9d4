"""`bert-score-words` from files to files: each word's number is learned, written and searched for."""

import json

import numpy as np
import pytest
import toy_words
from run_tasks import score_words
from scipy import stats
from toy_words import SCALE, score_of, write_file, write_preset

from keras_bert.errors import InputError

TRAINING = {**toy_words.TRAINING, "learning_rate": 6e-3, "num_train_epochs": 2}


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("words")
    write_preset(directory / "preset")
    for split, count, seed in (("train", 240, 0), ("dev", 40, 1), ("test", 12, 2)):
        write_file(directory / f"{split}.conll", count, seed, with_numbers=split != "test")
    return directory


@pytest.fixture(scope="module", name="run")
def _run(files):
    """One whole run: (output directory, what `metrics.json` holds)."""
    results = score_words(
        output_dir=str(files / "run"),
        preset=str(files / "preset"),
        data_dir=str(files),
        do_train=True,
        do_eval=True,
        do_predict=True,
        **TRAINING,
    )
    return files / "run", results


def rows_of(path):
    return [line.split(" ") for line in path.read_text().splitlines() if line]


def test_numbers_are_learned(run):
    output_dir, results = run
    assert results == json.loads((output_dir / "metrics.json").read_text())
    assert results["pearson"] > 0.95 and results["loss"] == results["mean_squared_error"]
    assert results["loss"] < 0.05 * SCALE**2
    curve = json.loads((output_dir / "history.json").read_text())["evaluations"]
    assert curve[-1]["loss"] < 0.2  # In squared standard deviations, as the training's own.
    assert set(results["intervals"]) == {"pearson", "spearman", "mean_squared_error"}
    low, high = results["intervals"]["pearson"]
    assert low <= results["pearson"] <= high
    numbered = [row for row in rows_of(output_dir.parent / "dev.conll") if row[1] != "_"]
    assert results["words"] == len(numbered) and results["sentences"] == 40 and results["long_sentences"] > 0
    assert results["train_sentences"] == 240 and results["train_windows"] > 240


def test_every_word_of_the_test_file_gets_its_number(run):
    written, read = rows_of(run[0] / "predictions.conll"), rows_of(run[0].parent / "test.conll")
    assert [row[0] for row in written] == [row[0] for row in read]
    true, predicted = [score_of(row[0]) for row in written], [float(row[1]) for row in written]
    assert stats.pearsonr(true, predicted).statistic > 0.95
    assert run[1]["test_words"] == len(read)


def test_the_report_draws_predictions_and_lists_words(run):
    page = (run[0] / "report.html").read_text()
    for text in ("Word scores", "mean squared error", "read in several windows", "Each sentence was read alone"):
        assert text in page
    assert '<section id="mistakes"' in page and '<section id="confusion"' not in page


def test_a_file_with_numbers_is_answered_beside_them(run, files):
    score_words(output_dir=str(run[0]), test_file=str(files / "dev.conll"), do_predict=True)
    written, read = rows_of(run[0] / "predictions.conll"), rows_of(files / "dev.conll")
    assert [row[:2] for row in written] == read and all(np.isfinite(float(row[2])) for row in written)


@pytest.mark.slow
def test_a_search_keeps_the_best(files, tmp_path):
    results = score_words(
        output_dir=str(tmp_path),
        preset=str(files / "preset"),
        data_dir=str(files),
        do_train=True,
        do_eval=True,
        **{**TRAINING, "num_train_epochs": 1, "learning_rate": [1e-6, 3e-3]},
    )
    assert results["sweep"]["best"]["learning_rate"] == 3e-3
    runs = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["runs"]
    assert runs[0]["score"] < runs[1]["score"] == results["pearson"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w1 0.5\nw2 high\n", "dev.conll:2: expected a number, or _ for a word without one, found 'high'."),
        ("w1 nan\n", "dev.conll:1: expected a number"),
        ("w1 1_0\n", "found '1_0'. Write it in the digits 0 to 9"),
        ("w1 1e39\n", "dev.conll:1: expected a number"),
        ("w1 _\n", "dev.conll: no word has a number. Expected some"),
    ],
)
def test_what_is_no_number_is_named_by_its_line(run, tmp_path, text, message):
    (tmp_path / "dev.conll").write_text(text)
    with pytest.raises(InputError) as error:
        score_words(output_dir=str(run[0]), dev_file=str(tmp_path / "dev.conll"), do_eval=True)
    assert message in str(error.value)


def test_training_needs_a_number(files, tmp_path):
    (tmp_path / "train.conll").write_text("w1 _\nw2 _\n")
    with pytest.raises(InputError, match="train.conll: no word has a number. Expected some to learn from"):
        score_words(output_dir=str(tmp_path), preset="x", train_file=str(tmp_path / "train.conll"), do_train=True)
