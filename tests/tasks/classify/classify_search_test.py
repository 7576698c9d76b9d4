"""The paper's search: every combination is trained once, the best on dev is kept, and its table is shown."""

import json
import shutil
from pathlib import Path

import pytest
from run_tasks import classify
from toy_classifier import COLUMNS, TRAINING, write_preset, write_tables

from keras_bert import BertBackbone
from keras_bert.errors import InputError
from tasks.fine_tuning import sweep

GRID = {"learning_rate": [1e-6, 6e-3], "train_batch_size": [16]}


@pytest.fixture(scope="module", name="settings")
def _settings(tmp_path_factory):
    """Settings of a search of two rates, of which one cannot learn."""
    directory = tmp_path_factory.mktemp("search")
    write_tables(directory, train=640, dev=40, test=6)
    preset = write_preset(directory / "preset")
    return {
        "output_dir": str(directory / "run"),
        "preset": preset,
        "data_dir": str(directory),
        **COLUMNS,
        **{**TRAINING, "num_train_epochs": 1},
        **GRID,
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
    }


@pytest.fixture(scope="module", name="search")
def _search(settings):
    return Path(settings["output_dir"]), classify(**settings)


def test_the_best_on_dev_is_kept(search):
    directory, results = search
    runs = json.loads((directory / "sweep" / "sweep.json").read_text())["runs"]
    seeds = [(run["settings"]["learning_rate"], run["settings"]["random_seed"]) for run in runs]
    assert seeds == [(1e-6, 3), (6e-3, 3)]
    assert runs[0]["score"] < runs[1]["score"] == results["accuracy"]
    assert results["sweep"]["best"]["learning_rate"] == 6e-3 and results["sweep"]["metric"] == "accuracy"
    best = directory / "sweep" / results["sweep"]["name"]
    assert (directory / "history.json").read_text() == (best / "history.json").read_text()
    assert results["loss"] == pytest.approx(json.loads((best / "metrics.json").read_text())["loss"], rel=1e-5)
    assert len((directory / "predictions.tsv").read_text().splitlines()) == 7


def test_what_the_runs_leave(search):
    directory, _ = search
    for run in (directory / "sweep").iterdir():
        if run.is_dir():
            assert {"metrics.json", "report.html", "model"} <= {path.name for path in run.iterdir()}
            assert not (run / "checkpoints").exists()
    page = (directory / "report.html").read_text()
    assert "accuracy of each combination over its seeds" in page and "accuracy of each run" in page


@pytest.mark.usefixtures("eagerly")
def test_finished_runs_are_kept_and_a_changed_one_is_refused(search, settings, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(sweep.Session, "train", refuse)
    again = classify(**settings)
    assert again["accuracy"] == search[1]["accuracy"] and again["sweep"] == search[1]["sweep"]
    copy = shutil.copytree(search[0], tmp_path / "run")
    classify(**{**settings, "output_dir": str(copy), "do_predict": False})
    assert not (copy / "predictions.tsv").exists()  # They may be another model's.
    with pytest.raises(InputError, match="holds a run with other settings .num_train_epochs: 1 there, 2 now"):
        classify(**{**settings, "num_train_epochs": 2})


def test_finished_runs_of_another_preset_are_refused(search, settings, tmp_path):
    backbone = BertBackbone.from_preset(settings["preset"])
    backbone.set_weights([weight * 2 for weight in backbone.get_weights()])
    other = shutil.copytree(settings["preset"], tmp_path / "other")
    backbone.save_to_preset(str(other))
    with pytest.raises(InputError, match="holds a run with other settings .weights_checksum: "):
        classify(**{**settings, "preset": str(other)})


def test_each_combination_is_trained_from_several_seeds(settings, tmp_path, monkeypatch):
    trained = []

    def fail(session):
        trained.append((session.settings.learning_rate, session.settings.random_seed))
        raise InputError("no training")

    monkeypatch.setattr(sweep.Session, "train", fail)
    with pytest.raises(InputError, match="4 failed. The first, lr1e-06_batch16_seed3: no training"):
        classify(**{**settings, "output_dir": str(tmp_path), "num_restarts": 2})
    assert trained == [(1e-6, 3), (1e-6, 4), (6e-3, 3), (6e-3, 4)]


def test_a_search_needs_something_to_choose_by(settings, tmp_path):
    with pytest.raises(InputError, match="need --do_eval or --validation_share, to choose the best"):
        classify(**{**settings, "do_eval": False})
    wrong = {**settings, "output_dir": str(tmp_path), "train_batch_size": [1000, 2000]}
    with pytest.raises(InputError, match="4 failed. .* 640 examples and .*=1 do not fill one batch of 1000"):
        classify(**wrong)
