"""Sweeps: what is run, kept, chosen and told, with runs that only pretend to train."""

import json
import math
import statistics

import numpy as np
import pytest

from keras_bert.errors import InputError
from tasks.fine_tuning import sweep

GRID = {"learning_rate": [5e-5, 3e-5], "train_batch_size": [16, 32], "random_seed": [7]}
TWO_SEEDS = {**GRID, "random_seed": [7, 8]}


class Runs:
    """Stands for the training: notes the calls, and answers by `score(settings)`, a figure or what to raise."""

    def __init__(self, score, metric="accuracy"):
        self.score, self.metric = score, metric
        self.calls = []

    def __call__(self, settings, directory):
        self.calls.append((settings, directory))
        value = self.score(settings)
        if isinstance(value, BaseException):
            raise value
        return {self.metric: value, "rows": 10}

    @property
    def names(self):
        return [sweep.run_name(settings) for settings, _ in self.calls]


def by_settings(settings):
    return settings["learning_rate"] * 1e4 + settings["train_batch_size"] / 100 + settings["random_seed"] / 1000


def run_sweep(directory, run_one, grid=GRID, shared=()):
    return sweep.run_sweep(str(directory), grid, run_one, getattr(run_one, "metric", "accuracy"), dict(shared))


def read_summary(directory):
    return json.loads((directory / "sweep" / "sweep.json").read_text())


def test_every_combination_is_run_from_every_seed(tmp_path):
    runs = Runs(by_settings)
    result = run_sweep(tmp_path, runs, TWO_SEEDS)
    assert runs.names == [
        f"lr{rate}_batch{batch}_seed{seed}" for rate in ("5e-05", "3e-05") for batch in (16, 32) for seed in (7, 8)
    ]
    assert all(directory == str(tmp_path / "sweep" / sweep.run_name(settings)) for settings, directory in runs.calls)
    assert result["best"] == {"learning_rate": 5e-5, "train_batch_size": 32, "random_seed": 8}
    assert result["directory"] == str(tmp_path / "sweep" / "lr5e-05_batch32_seed8")
    assert result["metrics"] == {"accuracy": by_settings(result["best"]), "rows": 10}
    assert [run["score"] for run in result["runs"]] == [by_settings(settings) for settings, _ in runs.calls]


def test_lower_may_be_better(tmp_path):
    result = run_sweep(tmp_path, Runs(by_settings, "validation_loss"))
    assert result["best"] == {"learning_rate": 3e-5, "train_batch_size": 16, "random_seed": 7}


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_first_of_equals_wins(tmp_path, metric):
    result = run_sweep(tmp_path, Runs(lambda settings: 0.5, metric), TWO_SEEDS)
    assert result["name"] == "lr5e-05_batch16_seed7"


@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), float("-inf"), None])
@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_what_is_no_number_never_wins(tmp_path, nothing, metric):
    runs = Runs(lambda settings: 0.2 if settings["train_batch_size"] == 32 else nothing, metric)
    result = run_sweep(tmp_path, runs)
    assert result["name"] == "lr5e-05_batch32_seed7"
    assert [run["score"] for run in result["runs"]] == [None, 0.2, None, 0.2]
    again = run_sweep(tmp_path, Runs(by_settings, metric))
    assert again["best"] == result["best"] and again["combinations"] == result["combinations"]


def test_figures_over_the_seeds(tmp_path):
    scores = {1: 0.81, 2: 0.84, 3: 0.78, 4: 0.83}
    result = run_sweep(tmp_path, Runs(lambda settings: scores[settings["random_seed"]]), {"random_seed": [*scores]})
    (combination,) = result["combinations"]
    assert combination["mean"] == pytest.approx(0.815)
    # Deviations -0.005, 0.025, -0.035, 0.015: squares sum to 0.0021, over n - 1 = 3.
    assert combination["standard_deviation"] == pytest.approx(math.sqrt(0.0007))
    assert combination["standard_deviation"] == pytest.approx(np.std(list(scores.values()), ddof=1))
    assert combination["spread"] == pytest.approx(0.06)
    assert (combination["lowest"], combination["highest"], combination["runs"]) == (0.78, 0.84, 4)


def test_one_seed_has_no_deviation(tmp_path):
    result = run_sweep(tmp_path, Runs(by_settings))
    assert {row["standard_deviation"] for row in result["combinations"]} == {None}


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path, capsys):
    runs = Runs(lambda settings: InputError("step 40: loss nan.") if settings["random_seed"] == 7 else 0.6)
    result = run_sweep(tmp_path, runs, TWO_SEEDS)
    assert len(runs.calls) == 8
    assert [run["error"] for run in result["runs"]] == ["step 40: loss nan.", None] * 4
    assert {row["failed"] for row in result["combinations"]} == {1}
    assert {row["mean"] for row in result["combinations"]} == {0.6}
    captured = capsys.readouterr()
    assert "lr5e-05_batch16_seed7 failed: step 40: loss nan." in captured.err
    assert "1 of 2" in captured.out and "failed" in captured.out


def test_a_run_that_failed_is_tried_again(tmp_path):
    run_sweep(tmp_path, Runs(lambda settings: InputError("full") if settings["train_batch_size"] == 16 else 0.5))
    runs = Runs(lambda settings: 0.9)
    result = run_sweep(tmp_path, runs)
    assert runs.names == ["lr5e-05_batch16_seed7", "lr3e-05_batch16_seed7"]
    assert result["name"] == "lr5e-05_batch16_seed7" and result["metrics"]["accuracy"] == 0.9


def test_if_all_fail_the_first_reason_is_given(tmp_path):
    with pytest.raises(InputError, match=r"none of 4 .*, and 4 failed. The first, lr5e-05_.*: no such preset"):
        run_sweep(tmp_path, Runs(lambda settings: InputError("no such preset")))
    assert read_summary(tmp_path)["best"] is None
    assert len(read_summary(tmp_path)["runs"]) == 4


def test_if_no_score_is_finite_that_is_said(tmp_path):
    with pytest.raises(InputError, match="none of 4 runs has a finite accuracy, and 0 failed. Lower --learning_rate"):
        run_sweep(tmp_path, Runs(lambda settings: float("nan")))


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_an_interrupted_sweep_keeps_what_is_finished(tmp_path, capsys, stop):
    unkilled = run_sweep(tmp_path / "unkilled", Runs(by_settings), TWO_SEEDS)
    stopped = Runs(
        lambda settings: stop if sweep.run_name(settings) == "lr5e-05_batch32_seed8" else by_settings(settings)
    )
    with pytest.raises(type(stop)):
        run_sweep(tmp_path / "killed", stopped, TWO_SEEDS)
    assert len(read_summary(tmp_path / "killed")["runs"]) == 3
    capsys.readouterr()
    rest = Runs(by_settings)
    result = run_sweep(tmp_path / "killed", rest, TWO_SEEDS)
    assert rest.names[0] == "lr5e-05_batch32_seed8" and len(rest.calls) == 5
    assert "3 of 8 runs are finished already" in capsys.readouterr().err
    assert result["runs"] == unkilled["runs"] and result["combinations"] == unkilled["combinations"]
    assert read_summary(tmp_path / "killed") == read_summary(tmp_path / "unkilled")


def test_a_finished_sweep_runs_nothing_and_says_the_same(tmp_path, capsys):
    first = run_sweep(tmp_path, Runs(by_settings))
    printed = capsys.readouterr().out
    again = Runs(by_settings)
    assert run_sweep(tmp_path, again) == first
    assert not again.calls
    assert capsys.readouterr().out == printed


def test_a_larger_grid_takes_over_what_is_there(tmp_path):
    run_sweep(tmp_path, Runs(by_settings))
    runs = Runs(by_settings)
    run_sweep(tmp_path, runs, {**GRID, "train_batch_size": [16, 32, 64]})
    assert runs.names == ["lr5e-05_batch64_seed7", "lr3e-05_batch64_seed7"]


def test_a_run_with_other_shared_settings_is_refused(tmp_path):
    run_sweep(tmp_path, Runs(by_settings), shared={"preset": "tiny", "labels": ("a",)})
    run_sweep(tmp_path, Runs(by_settings), shared={"preset": "tiny", "labels": ["a"]})
    runs = Runs(by_settings)
    with pytest.raises(InputError, match=r"seed7: holds a run with other settings \(preset: tiny there, base now\)"):
        run_sweep(tmp_path, runs, shared={"preset": "base", "labels": ["a"]})
    assert not runs.calls


def test_a_damaged_record_is_refused(tmp_path):
    path = tmp_path / "sweep" / "lr5e-05_batch16_seed7" / "sweep_run.json"
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"sweep_run.json: expected a"):
        run_sweep(tmp_path, Runs(by_settings))


def test_progress_tells_the_place_and_the_time_left(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now[0])

    def run_one(settings, directory):
        now[0] += 240.0
        return {"accuracy": 0.5}

    run_sweep(tmp_path, run_one)
    lines = [line for line in capsys.readouterr().err.splitlines() if " run " in line]
    assert lines == [
        "sweep: run 1 of 4: lr5e-05_batch16_seed7",
        "sweep: run 2 of 4, about 12:00 left: lr5e-05_batch32_seed7",
        "sweep: run 3 of 4, about 08:00 left: lr3e-05_batch16_seed7",
        "sweep: run 4 of 4, about 04:00 left: lr3e-05_batch32_seed7",
    ]


def test_the_table_is_lined_up_and_names_the_best(tmp_path, capsys):
    result = run_sweep(tmp_path, Runs(by_settings), TWO_SEEDS)
    over_seeds, each = capsys.readouterr().out.strip().split("\n\n")
    lines = over_seeds.splitlines()
    assert lines[0] == "accuracy of each combination over its seeds"
    assert lines[1].split("  ")[-1] == "spread" and len({len(line) for line in lines[1:]}) == 1
    mean = statistics.fmean(row["score"] for row in result["runs"][:2])
    assert f"2 of 2  {mean:.4f}" in lines[2]
    assert [line.split()[:3] for line in each.splitlines() if line.endswith("best")] == [["5e-05", "32", "8"]]


def test_the_tables_fit_a_report(tmp_path):
    result = run_sweep(tmp_path, Runs(by_settings))
    for caption, header, rows in sweep.tables(result):
        assert caption.startswith("accuracy")
        assert {len(row) for row in rows} == {len(header)}
    assert sweep.tables(read_summary(tmp_path)) == sweep.tables(result)


def test_a_value_given_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--train_batch_size: 16 is given twice"):
        run_sweep(tmp_path, Runs(by_settings), {"train_batch_size": [16, 32, 16]})
