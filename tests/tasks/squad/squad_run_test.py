"""`bert-squad` from files to files: a tiny model learns 16 questions by heart; wrong input exits with one line."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import toy_squad
from repository import ROOT
from run_tasks import answer_questions
from toy_hugging_face import random_model

from keras_bert.errors import InputError
from tasks.fine_tuning import command
from tasks.fine_tuning.examples import Predictor
from tasks.fine_tuning.inputs import read_inputs
from tasks.fine_tuning.session import Session
from tasks.flags import make_flags, parse
from tasks.squad.answers import apply_threshold, best_answers
from tasks.squad.task import DEFAULTS, Squad, SquadSettings

WINDOWS = {
    "max_seq_length": toy_squad.MAX_SEQ_LENGTH,
    "doc_stride": toy_squad.DOC_STRIDE,
    "max_query_length": toy_squad.MAX_QUERY_LENGTH,
}
TRAINING = {"train_batch_size": 32, "eval_batch_size": 64, "learning_rate": 1e-3, "num_train_epochs": 2.0, **WINDOWS}
COPIES = 50  # of each question to train on, since an epoch ends with an evaluation.


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_squad.save_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory):
    """Paths by version ("1", "2") and part.

    "train": 32 questions; "half": 16 of them; "many": these 50 times; "dev": these and 16 new ones.
    """
    directory = tmp_path_factory.mktemp("files")

    def write(version: str, part: str) -> str:
        content = toy_squad.questions(version == "2", 0, COPIES if part == "many" else 1)
        if part != "train":
            content["data"] = [article for article in content["data"] if int(article["title"]) < 4]
        if part == "dev":
            content["data"] += toy_squad.questions(version == "2", 1)["data"][4:]
        return toy_squad.write(directory / f"{part}{version}.json", content)

    return {(version, part): write(version, part) for version in "12" for part in ("train", "half", "many", "dev")}


@pytest.fixture(scope="module", name="run")
def _run(preset, files, tmp_path_factory):
    """A whole run on SQuAD 2.0: (output directory, what `answer_questions` returned)."""
    output_dir = tmp_path_factory.mktemp("run")
    results = answer_questions(
        output_dir=str(output_dir),
        preset=preset,
        train_file=files["2", "many"],
        predict_file=files["2", "half"],
        do_train=True,
        do_eval=True,
        do_predict=True,
        version_2_with_negative=True,
        **TRAINING,
    )
    return output_dir, results


def read(path):
    return json.loads(pathlib.Path(path).read_text())


def known_answers(path):
    qas = [qa for article in read(path)["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    return {qa["id"]: qa["answers"][0]["text"] if qa["answers"] else "" for qa in qas}


# === Whole runs ===


def test_answers_and_that_there_is_none_are_learned_by_heart(run, files):
    output_dir, results = run
    assert results == read(output_dir / "metrics.json")
    assert results["intervals"] == {"exact": [100.0, 100.0], "f1": [100.0, 100.0]} and results["loss"] < 0.5
    assert results["train_questions"] == 16 * COPIES
    assert results["train_windows"] == COPIES * results["eval_windows"] > 32 * COPIES
    assert results["train_steps"] == int(results["train_windows"] * 2 / 32) and results["skipped_rows"] == 0
    assert (results["exact"], results["HasAns_exact"], results["NoAns_exact"]) == (100.0, 100.0, 100.0)
    assert (results["HasAns_total"], results["NoAns_total"], results["total"], results["best_f1"]) == (12, 4, 16, 100.0)
    known = known_answers(files["2", "half"])
    assert read(output_dir / "predictions.json") == known and "" in known.values()
    odds = read(output_dir / "null_odds.json")
    threshold = results["null_score_diff_threshold"]
    assert {name for name, value in odds.items() if value > threshold} == {name for name in known if not known[name]}
    assert read(output_dir / "model" / "task.json") == {
        "task": "question_answering",
        "sequence_length": 48,
        "doc_stride": 24,
        "max_query_length": 12,
        "n_best_size": 20,
        "max_answer_length": 30,
        "version_2_with_negative": True,
        "null_score_diff_threshold": threshold,
    }


def test_n_best_lists_hold_google_s_fields(run):
    nbest, predictions = (read(run[0] / name) for name in ("nbest_predictions.json", "predictions.json"))
    assert nbest.keys() == predictions.keys()
    for name, entries in nbest.items():
        assert set(entries[0]) == {"text", "probability", "start_logit", "end_logit"} and len(entries) <= 21
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1.0)
        assert predictions[name] in [entry["text"] for entry in entries]


def test_the_curve_s_last_evaluation_is_the_final_one(run):
    output_dir, results = run
    last = read(output_dir / "history.json")["evaluations"][-1]
    assert last["step"] == results["train_steps"] and last["span_accuracy"] > 0.95
    assert last["loss"] == pytest.approx(results["loss"], rel=1e-3)


def test_the_report_shows_scores_and_windows(run):
    page = (run[0] / "report.html").read_text()
    for text in (
        "SQuAD 2.0: ",
        "exact match",
        "Lengths",
        'doc_stride</th><td dir="auto">24<',
        "questions without an answer left unanswered",
        "This threshold gives the highest F1",
    ):
        assert text in page, text
    assert re.search("Longer than 48 tokens, and split into windows|None of .* is longer than 48 tokens", page)


# === Other questions beside those of the training ===


@pytest.fixture(scope="module", name="other")
def _other(run, files, tmp_path_factory):
    """The trained model on old and new questions, of which it answers some: (directory, results)."""
    output_dir = tmp_path_factory.mktemp("other")
    shutil.copytree(run[0] / "model", output_dir / "model")
    results = answer_questions(
        output_dir=str(output_dir), predict_file=files["2", "dev"], do_eval=True, do_predict=True
    )
    assert 40.0 < results["f1"] < 99.0
    return output_dir, results


@pytest.mark.oracle
def test_the_official_script_gives_the_same_numbers_for_the_files(other, files):
    output_dir, results = other
    script = pytest.importorskip("official.nlp.tools.squad_evaluate_v2_0")
    official = script.evaluate(read(files["2", "dev"])["data"], read(output_dir / "predictions.json"))
    for name in ("exact", "f1", "total", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"):
        assert results[name] == pytest.approx(official[name]), name
    assert results["f1"] == pytest.approx(results["best_f1"])


@pytest.mark.oracle
def test_the_same_model_scored_as_in_1_1_has_the_official_script_s_numbers(run, files, tmp_path):
    shutil.copytree(run[0] / "model", tmp_path / "model")
    (tmp_path / "null_odds.json").write_text("{}")  # Left by an earlier call.
    results = answer_questions(
        output_dir=str(tmp_path),
        predict_file=files["1", "dev"],
        do_eval=True,
        do_predict=True,
        version_2_with_negative=False,
    )
    script = pytest.importorskip("official.nlp.tools.squad_evaluate_v1_1")
    official = script.evaluate(read(files["1", "dev"])["data"], read(tmp_path / "predictions.json"))
    assert 40.0 < results["f1"] < 99.0
    assert results["f1"] == pytest.approx(100.0 * official["final_f1"])
    assert results["exact"] == pytest.approx(100.0 * official["exact_match"])
    assert not {"best_f1", "NoAns_f1", "null_score_diff_threshold"} & results.keys()
    assert not (tmp_path / "null_odds.json").exists() and "" not in read(tmp_path / "predictions.json").values()
    page = (tmp_path / "report.html").read_text()
    assert "SQuAD 1.1" in page and "Worst mistakes" in page
    assert read(tmp_path / "model" / "task.json") == read(run[0] / "model" / "task.json")


def test_questions_without_known_answers_get_the_same_answers(other, files, tmp_path):
    """By the model that was scored, at its threshold, in other batches."""
    shutil.copytree(other[0] / "model", tmp_path / "model")
    content = read(files["2", "dev"])
    for article in content["data"]:
        for qa in article["paragraphs"][0]["qas"]:
            del qa["answers"], qa["is_impossible"]
    file = toy_squad.write(tmp_path / "test.json", content)
    results = answer_questions(output_dir=str(tmp_path), predict_file=file, do_predict=True, eval_batch_size=7)
    assert results == read(tmp_path / "metrics.json") and (results["test_file"], results["test_questions"]) == (
        file,
        32,
    )
    test = {"test_file", "test_rows_checksum", "test_questions", "test_predictions"}
    assert results.keys() == {*test, "skipped_rows"}
    assert read(tmp_path / "predictions.json") == read(other[0] / "predictions.json")
    odds, before = read(tmp_path / "null_odds.json"), read(other[0] / "null_odds.json")
    assert list(odds) == list(before) and list(odds.values()) == pytest.approx(list(before.values()), abs=1e-4)
    page = (tmp_path / "report.html").read_text()
    answer_questions(output_dir=str(other[0]), predict_file=file, do_predict=True)
    assert "exact match" in (other[0] / "report.html").read_text() and "exact match" not in page


def test_given_settings_take_the_place_of_the_model_s(other, files, tmp_path):
    shutil.copytree(other[0] / "model", tmp_path / "model")
    settings = {"output_dir": str(tmp_path), "predict_file": files["2", "dev"], "do_eval": True, "do_predict": True}
    results = answer_questions(**settings, null_score_diff_threshold=-1000.0, n_best_size=2)
    assert results["HasAns_f1"] == 0.0 and results["NoAns_f1"] == 100.0
    assert results["best_f1"] == pytest.approx(other[1]["best_f1"], abs=10.0) and results["best_f1"] > results["f1"]
    assert set(read(tmp_path / "predictions.json").values()) == {""}
    assert all(len(entries) <= 3 for entries in read(tmp_path / "nbest_predictions.json").values())
    assert read(tmp_path / "model" / "task.json")["null_score_diff_threshold"] == -1000.0
    results = answer_questions(**settings, doc_stride=9, max_seq_length=32, version_2_with_negative=True)
    assert results["eval_windows"] > other[1]["eval_windows"] and results["f1"] > 10.0
    task = read(tmp_path / "model" / "task.json")
    assert task["null_score_diff_threshold"] == results["null_score_diff_threshold"] != -1000.0
    assert task["doc_stride"] == 24 and task["n_best_size"] == 20
    with pytest.raises(InputError, match="--max_seq_length=49: .*model has positions for 48 tokens"):
        answer_questions(**settings, max_seq_length=49)


# === Continuing ===


@pytest.mark.slow
def test_a_finished_training_is_kept_and_other_settings_are_refused(run, preset, files, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    settings = {
        "output_dir": str(tmp_path / "run"),
        "preset": preset,
        "train_file": files["2", "many"],
        "do_train": True,
        "version_2_with_negative": True,
        **TRAINING,
    }
    checkpoints = sorted(os.listdir(tmp_path / "run" / "checkpoints"))
    again = answer_questions(**settings)
    assert again == run[1]
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == checkpoints
    for name in ("task.json", "assets/tokenizer/vocabulary.txt"):
        assert (tmp_path / "run" / "model" / name).read_text() == (run[0] / "model" / name).read_text()
    with pytest.raises(InputError, match=re.escape("holds a training with doc_stride=24. It cannot continue with 8")):
        answer_questions(**{**settings, "doc_stride": 8})
    with pytest.raises(InputError, match="holds a training with train_rows_checksum="):
        answer_questions(**{**settings, "train_file": files["2", "dev"]})


# === A search; questions that cannot be used ===


@pytest.fixture(scope="module", name="search")
def _search(preset, files, tmp_path_factory):
    """The settings of a search of two rates, on files with a question each that cannot be used."""
    folder = tmp_path_factory.mktemp("search")
    content = read(files["1", "train"])
    question = content["data"][1]["paragraphs"][0]["qas"][0]
    question["answers"] = [{**question["answers"][0], "answer_start": 3}]
    train = toy_squad.write(folder / "train.json", content)
    content = read(files["1", "train"])
    content["data"][0]["paragraphs"][0]["qas"][3]["answers"] = []
    return {
        "output_dir": str(folder / "run"),
        "preset": preset,
        "train_file": train,
        "predict_file": toy_squad.write(folder / "dev.json", content),
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
        **TRAINING,
        "learning_rate": [1e-7, 3e-3],
    }


@pytest.mark.slow
def test_a_search_keeps_the_rate_of_the_higher_f1(search):
    results = answer_questions(**search, bad_rows="skip")
    output_dir = pathlib.Path(search["output_dir"])
    assert results == read(output_dir / "metrics.json")
    sweep = results["sweep"]
    assert sweep["metric"] == "f1" and len(sweep["combinations"]) == 2
    assert 0.0 < results["f1"] == max(combination["highest"] for combination in sweep["combinations"])
    assert results["train_steps"] == int(results["train_windows"] * 2 / 32)
    low, high = results["intervals"]["f1"]
    assert low <= results["f1"] <= high
    assert len(read(output_dir / "predictions.json")) == 31
    assert read(output_dir / "model" / "task.json")["version_2_with_negative"] is False


def test_questions_that_cannot_be_used_are_refused_or_counted(search, files):
    train, dev = search["train_file"], search["predict_file"]
    with pytest.raises(InputError, match=r"train.json: question '1-0': the answer '\w+' is not in the context at char"):
        answer_questions(**search, bad_rows="refuse")
    with pytest.raises(InputError, match=r"dev.json: question '0-3': the question has no known answer to be scored by"):
        answer_questions(**{**search, "train_file": files["1", "train"]})
    inputs = read_inputs(Squad(SquadSettings(**search, bad_rows="skip")))
    # As google-research/bert does.
    places = [where for where, _ in inputs.bad_rows.rows]
    assert places == [f"{train}: question '1-0'", f"{dev}: question '0-3'"]
    assert [len(part.rows.questions) for part in inputs.of("train") + inputs.of("dev")] == [31, 31]


# === A checkpoint that was fine-tuned elsewhere ===


@pytest.mark.slow
@pytest.mark.oracle
def test_a_hugging_face_question_answerer_answers_as_in_torch(files, tmp_path):
    import torch

    model = random_model("BertForQuestionAnswering", vocab_size=len(toy_squad.VOCABULARY), max_position_embeddings=48)
    model.save_pretrained(tmp_path / "model_of_others")
    (tmp_path / "model_of_others" / "vocab.txt").write_text("\n".join(toy_squad.VOCABULARY) + "\n")
    preset = str(tmp_path / "model_of_others")
    settings = SquadSettings(
        output_dir=str(tmp_path / "run"),
        preset=preset,
        predict_file=files["2", "dev"],
        do_predict=True,
        version_2_with_negative=True,
        **WINDOWS,
    )
    task = Squad(settings)
    session = Session(task, read_inputs(task))
    session.load()
    (path, *_) = session.predict()
    assert path == str(tmp_path / "run" / "predictions.json")
    (part,) = session.inputs.parts
    encoded = task.encode(part, session.trained)
    questions, windows = part.rows.questions, encoded.source
    examples = windows.examples
    theirs = np.empty((len(examples.token_ids), 2), np.float32)
    for first, limit in zip(examples.row_splits[:-1], examples.row_splits[1:], strict=True):
        ids, segments = (
            torch.tensor(values[first:limit][None]).long() for values in (examples.token_ids, examples.segment_ids)
        )
        with torch.no_grad():
            outputs = model(ids, token_type_ids=segments)
        theirs[first:limit] = torch.stack([outputs.start_logits[0], outputs.end_logits[0]], dim=-1).numpy()
    logits = encoded.compute_outputs(Predictor(session.trained.model), 16, "test")
    assert np.abs(theirs).max() > 1.0
    np.testing.assert_allclose(logits, theirs, atol=2e-5)
    best = best_answers(questions, windows, theirs, session.trained.spec)
    expected = apply_threshold(best, 0.0)
    assert read(tmp_path / "run" / "predictions.json") == expected.predictions
    assert read(tmp_path / "run" / "null_odds.json") == pytest.approx(expected.null_odds, abs=1e-4)
    assert not (tmp_path / "run" / "model").exists()


# === Refusals ===


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_train": False, "train_file": None}, "Nothing to do. Give --do_train, --do_eval or --do_predict"),
        ({"train_file": None}, "--do_train needs --train_file"),
        ({"do_predict": True}, "--do_predict needs --predict_file"),
        ({"train_file": "no-such-file.json"}, "no-such-file.json: no such file"),
        ({"preset": None}, "--do_train needs --preset"),
        ({"preset": "no-such-preset"}, "no-such-preset: no such directory"),
        ({"max_seq_length": 49}, "--max_seq_length=49: .* has positions for 48 tokens"),
        ({"max_seq_length": 15}, "=15 leaves no room for .* --max_query_length=12 tokens and 3 .* Expected 16"),
        ({"train_batch_size": 2000}, r"train.*json: \d+ examples and .*=2 do not fill one batch of 2000"),
        ({"null_score_diff_threshold": float("inf")}, "--null_score_diff_threshold=inf: must be a finite number"),
        ({"version_2_with_negative": None}, r"question '0-3': the question has no answer.*\(8 bad rows in all"),
        ({"do_train": False, "do_predict": True, "predict_file": "TRAIN"}, "task.json: no such file.*bert-squad wrote"),
    ],
)
def test_wrong_settings(preset, files, tmp_path, changes, message):
    settings = {
        "preset": preset,
        "train_file": files["2", "train"],
        "do_train": True,
        "version_2_with_negative": True,
        **TRAINING,
        **changes,
    }
    if settings.get("predict_file"):
        settings |= {"predict_file": files["2", "train"], "preset": None}
    with pytest.raises(InputError, match=message):
        answer_questions(output_dir=str(tmp_path), **settings)
    assert not (tmp_path / "model").exists() and not (tmp_path / "metrics.json").exists()


def test_a_preset_without_the_head_cannot_answer(preset, files, tmp_path):
    with pytest.raises(InputError, match="expected a fine-tuned question_answering head, found none"):
        answer_questions(
            output_dir=str(tmp_path), preset=preset, predict_file=files["1", "dev"], do_predict=True, **WINDOWS
        )


def test_scoring_needs_known_answers(preset, files, tmp_path):
    content = read(files["1", "dev"])
    for article in content["data"]:
        for qa in article["paragraphs"][0]["qas"]:
            qa["answers"] = []
    file = toy_squad.write(tmp_path / "test.json", content)
    settings = {"output_dir": str(tmp_path), "preset": preset, "predict_file": file, "do_eval": True}
    with pytest.raises(InputError, match=r"no known answer to be scored by. Expected one, or --version_2.*32 bad rows"):
        answer_questions(**settings)
    with pytest.raises(InputError, match="no question in the file has a known answer. Leave out --do_eval"):
        answer_questions(**settings, bad_rows="skip")


def test_a_damaged_task_file_is_refused(run, files, tmp_path):
    (tmp_path / "model").mkdir()
    task = read(run[0] / "model" / "task.json")
    settings = {"output_dir": str(tmp_path), "predict_file": files["2", "dev"], "do_predict": True}
    toy_squad.write(tmp_path / "model" / "task.json", {**task, "task": "classification"})
    with pytest.raises(InputError, match="expected the task 'question_answering'.*found 'classification'"):
        answer_questions(**settings)
    del task["doc_stride"], task["n_best_size"]
    toy_squad.write(tmp_path / "model" / "task.json", task)
    with pytest.raises(
        InputError, match="task.json: lacks doc_stride, n_best_size. Expected the model that bert-squad"
    ):
        answer_questions(**settings)


# === The command ===


def test_a_wrong_answer_is_one_line_and_exit_status_1(preset, files, tmp_path):
    content = read(files["1", "train"])
    content["data"][2]["paragraphs"][0]["qas"][1]["answers"] = [{"text": "violet", "answer_start": 5}]
    file = toy_squad.write(tmp_path / "train.json", content)
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "tasks.squad.run",
        f"--train_file={file}",
        f"--preset={preset}",
        "--do_train",
        "--bad_rows=refuse",
        f"--output_dir={tmp_path}/run",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    (message,) = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert f"error: {file}: question '2-1': the answer 'violet' is not in the context" in message
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "tasks.squad.data" in imported and not imported & {"tensorflow", "keras", "matplotlib", "sklearn"}
    assert not (tmp_path / "run").exists()


def test_the_command_prints_the_scores_and_keeps_its_flags(other, files, capsys):
    arguments = [f"--predict_file={files['2', 'dev']}", "--do_eval", f"--output_dir={other[0]}"]
    command.main(Squad(parse(SquadSettings, arguments)))
    exact, f1, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"exact: \d+\.\d\d \(95% interval \d+\.\d\d to \d+\.\d\d\)", exact) and f1.startswith("f1: ")
    assert [line.partition(":")[0] for line in rest[:4]] == [
        "HasAns_exact",
        "HasAns_f1",
        "NoAns_exact",
        "null_score_diff_threshold",
    ]
    assert all(re.fullmatch(r"\w+: -?\d+\.\d\d", line) for line in rest[:4])
    answers = rest[rest.index("Some answers:") + 1 : -1]
    assert len(answers) == 5 and all(
        re.match(r"  question: .* \| context: .* \| predicted: ", line) for line in answers
    )
    assert read(other[0] / "flags.json")["predict_file"] == files["2", "dev"]


def test_the_flags_help_names_google_s_defaults():
    values = make_flags(SquadSettings)
    for name in ("doc_stride", "max_query_length", "n_best_size", "max_answer_length"):
        assert values[name].help.endswith(f"Default: the trained model's, else {getattr(DEFAULTS, name)}."), name
    assert values["max_seq_length"].help.endswith("else 384.")
