"""`bert-squad` from files to files: a tiny model learns 32 questions by heart; wrong input exits with one line."""

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
from toy_hugging_face import random_model

from keras_bert.errors import InputError
from tasks.bad_rows import BadRows
from tasks.squad import stages
from tasks.squad.answers import best_answers
from tasks.squad.data import read_squad
from tasks.squad.run import answer_questions

ROOT = pathlib.Path(__file__).parents[1]
WINDOWS = {
    "max_seq_length": toy_squad.MAX_SEQ_LENGTH,
    "doc_stride": toy_squad.DOC_STRIDE,
    "max_query_length": toy_squad.MAX_QUERY_LENGTH,
}
TRAINING = {"train_batch_size": 16, "eval_batch_size": 64, "learning_rate": 1e-3, "num_train_epochs": 18.0, **WINDOWS}
SHORT = {**TRAINING, "num_train_epochs": 3.0}
SCRIPT = """
import json, sys
from official.nlp.tools import squad_evaluate_v{0} as script
data, *rest = [json.load(open(path)) for path in sys.argv[1:]]
print(json.dumps(script.evaluate(data["data"], *rest)))
"""


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_squad.save_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory):
    """Paths by version ("1", "2") and part: 32 questions, the same five times ("many"), and 32 new ones ("dev")."""
    directory = tmp_path_factory.mktemp("files")
    return {
        (version, part): toy_squad.write(directory / f"{part}{version}.json", toy_squad.questions(version == "2", *how))
        for version in ("1", "2")
        for part, how in {"train": (0,), "many": (0, 5), "dev": (1,)}.items()
    }  # fmt: skip


def run_whole(preset, files, version, output_dir):
    results = answer_questions(output_dir=str(output_dir), preset=preset, train_file=files[version, "many"],
                               predict_file=files[version, "train"], do_train=True, do_eval=True, do_predict=True,
                               version_2_with_negative=version == "2" or None, **TRAINING)  # fmt: skip
    return output_dir, results


@pytest.fixture(scope="module", name="run_1")
def _run_1(preset, files, tmp_path_factory):
    """A whole run on SQuAD 1.1: (output directory, what `answer_questions` returned)."""
    return run_whole(preset, files, "1", tmp_path_factory.mktemp("run1"))


@pytest.fixture(scope="module", name="run_2")
def _run_2(preset, files, tmp_path_factory):
    """The same on SQuAD 2.0."""
    return run_whole(preset, files, "2", tmp_path_factory.mktemp("run2"))


def read(path):
    return json.loads(pathlib.Path(path).read_text())


def known_answers(path):
    qas = [qa for article in read(path)["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    return {qa["id"]: qa["answers"][0]["text"] if qa["answers"] else "" for qa in qas}


# === Whole runs ===


@pytest.mark.slow
def test_answers_are_learned_by_heart(run_1, files):
    output_dir, results = run_1
    assert results == read(output_dir / "metrics.json")
    assert (results["exact"], results["f1"], results["total"]) == (100.0, 100.0, 32)
    assert results["exact_interval"] == [100.0, 100.0] and results["loss"] < 0.5
    assert results["train_questions"] == 160 and results["train_windows"] == 5 * results["eval_windows"] > 5 * 64
    assert results["train_steps"] == int(results["train_windows"] * 18 / 16) and results["skipped_rows"] == 0
    assert read(output_dir / "predictions.json") == known_answers(files["1", "train"])
    assert not (output_dir / "null_odds.json").exists() and "best_f1" not in results
    assert read(output_dir / "model" / "task.json")["version_2_with_negative"] is False


def test_that_there_is_no_answer_is_learned_too(run_2, files):
    output_dir, results = run_2
    assert (results["exact"], results["HasAns_exact"], results["NoAns_exact"]) == (100.0, 100.0, 100.0)
    assert (results["HasAns_total"], results["NoAns_total"], results["best_f1"]) == (24, 8, 100.0)
    known = known_answers(files["2", "train"])
    assert read(output_dir / "predictions.json") == known and "" in known.values()
    odds = read(output_dir / "null_odds.json")
    threshold = results["null_score_diff_threshold"]
    assert {name for name, value in odds.items() if value > threshold} == {name for name in known if not known[name]}
    assert read(output_dir / "model" / "task.json") == {
        "task": "question_answering", "sequence_length": 48, "doc_stride": 24, "max_query_length": 12,
        "n_best_size": 20, "max_answer_length": 30, "version_2_with_negative": True,
        "null_score_diff_threshold": threshold,
    }  # fmt: skip


def test_n_best_lists_hold_google_s_fields(run_2):
    nbest, predictions = (read(run_2[0] / name) for name in ("nbest_predictions.json", "predictions.json"))
    assert nbest.keys() == predictions.keys()
    for name, entries in nbest.items():
        assert set(entries[0]) == {"text", "probability", "start_logit", "end_logit"} and len(entries) <= 21
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1.0)
        assert predictions[name] in [entry["text"] for entry in entries]


def test_the_curve_s_last_evaluation_is_the_final_one(run_2):
    output_dir, results = run_2
    last = read(output_dir / "history.json")["evaluations"][-1]
    assert last["step"] == results["train_steps"] and last["span_accuracy"] > 0.95
    assert last["loss"] == pytest.approx(results["loss"], rel=1e-3)


def test_the_report_shows_scores_tables_and_windows(run_2):
    page = (run_2[0] / "report.html").read_text()
    for text in ("SQuAD 2.0", "exact match", "By question word", "By answer", "Lengths", "doc_stride",
                 "questions without an answer left unanswered", "This threshold gives the highest F1"):  # fmt: skip
        assert text in page, text
    assert re.search("Longer than 48 tokens, and split into windows|None of .* is longer than 48 tokens", page)


# === Other questions than those of the training ===


@pytest.fixture(scope="module", name="other")
def _other(run_2, files, tmp_path_factory):
    """The trained model on new questions, of which it answers some: (directory, results)."""
    output_dir = tmp_path_factory.mktemp("other")
    shutil.copytree(run_2[0] / "model", output_dir / "model")
    results = answer_questions(output_dir=str(output_dir), predict_file=files["2", "dev"], do_eval=True,
                               do_predict=True)  # fmt: skip
    assert 10.0 < results["f1"] < 99.0
    return output_dir, results


@pytest.mark.oracle
def test_the_official_script_gives_the_same_numbers_for_the_files(other, files):
    output_dir, results = other
    command = [sys.executable, "-c", SCRIPT.format("2_0"), files["2", "dev"], str(output_dir / "predictions.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    official = json.loads(done.stdout)
    for name in ("exact", "f1", "total", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"):
        assert results[name] == pytest.approx(official[name]), name
    assert results["f1"] == pytest.approx(results["best_f1"])


@pytest.mark.slow
@pytest.mark.oracle
def test_the_official_script_of_1_1_gives_the_same_numbers(run_1, files, tmp_path):
    shutil.copytree(run_1[0] / "model", tmp_path / "model")
    results = answer_questions(output_dir=str(tmp_path), predict_file=files["1", "dev"], do_eval=True, do_predict=True)
    command = [sys.executable, "-c", SCRIPT.format("1_1"), files["1", "dev"], str(tmp_path / "predictions.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    official = json.loads(done.stdout)
    assert 10.0 < results["f1"] < 99.0
    assert results["f1"] == pytest.approx(100.0 * official["final_f1"])
    assert results["exact"] == pytest.approx(100.0 * official["exact_match"])
    assert "Worst mistakes" in (tmp_path / "report.html").read_text()


def test_questions_without_known_answers_get_the_same_answers(other, files, tmp_path):
    """By the model that was scored, at its threshold, in other batches."""
    shutil.copytree(other[0] / "model", tmp_path / "model")
    content = read(files["2", "dev"])
    for article in content["data"]:
        for qa in article["paragraphs"][0]["qas"]:
            del qa["answers"], qa["is_impossible"]
    file = toy_squad.write(tmp_path / "test.json", content)
    results = answer_questions(output_dir=str(tmp_path), predict_file=file, do_predict=True, eval_batch_size=7)
    assert results == {"skipped_rows": 0} == read(tmp_path / "metrics.json")
    assert read(tmp_path / "predictions.json") == read(other[0] / "predictions.json")
    odds, before = read(tmp_path / "null_odds.json"), read(other[0] / "null_odds.json")
    assert list(odds) == list(before) and list(odds.values()) == pytest.approx(list(before.values()), abs=1e-4)
    page = (tmp_path / "report.html").read_text()
    answer_questions(output_dir=str(other[0]), predict_file=file, do_predict=True)
    assert "By question word" in (other[0] / "report.html").read_text() and "By question word" not in page


def test_given_settings_take_the_place_of_the_model_s(other, files, tmp_path):
    shutil.copytree(other[0] / "model", tmp_path / "model")
    settings = {"output_dir": str(tmp_path), "predict_file": files["2", "dev"], "do_eval": True, "do_predict": True}
    results = answer_questions(**settings, null_score_diff_threshold=-1000.0, n_best_size=2)
    assert results["HasAns_f1"] == 0.0 and results["NoAns_f1"] == 100.0
    assert results["best_f1"] == pytest.approx(other[1]["best_f1"], abs=5.0) and results["best_f1"] > results["f1"]
    assert set(read(tmp_path / "predictions.json").values()) == {""}
    assert all(len(entries) <= 3 for entries in read(tmp_path / "nbest_predictions.json").values())
    assert read(tmp_path / "model" / "task.json")["null_score_diff_threshold"] == -1000.0
    results = answer_questions(**settings, doc_stride=9, max_seq_length=32, version_2_with_negative=True)
    assert results["eval_windows"] > other[1]["eval_windows"] and results["f1"] > 10.0
    task = read(tmp_path / "model" / "task.json")
    assert task["null_score_diff_threshold"] == results["null_score_diff_threshold"] != -1000.0
    assert task["doc_stride"] == 24 and task["n_best_size"] == 20


# === Continuing ===


def test_a_finished_training_is_kept_and_other_settings_are_refused(run_2, preset, files, tmp_path):
    shutil.copytree(run_2[0], tmp_path / "run")
    settings = {"output_dir": str(tmp_path / "run"), "preset": preset, "train_file": files["2", "many"],
                "do_train": True, "version_2_with_negative": True, **TRAINING}  # fmt: skip
    checkpoints = sorted(os.listdir(tmp_path / "run" / "checkpoints"))
    again = answer_questions(**settings)
    assert again == run_2[1]
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == checkpoints
    for name in ("task.json", "assets/tokenizer/vocabulary.txt"):
        assert (tmp_path / "run" / "model" / name).read_text() == (run_2[0] / "model" / name).read_text()
    with pytest.raises(InputError, match=re.escape("holds a training with doc_stride=24. It cannot continue with 8")):
        answer_questions(**{**settings, "doc_stride": 8})
    with pytest.raises(InputError, match="holds a training with train_windows_checksum="):
        answer_questions(**{**settings, "train_file": files["2", "dev"]})


@pytest.mark.slow
def test_a_stopped_training_continues_as_if_it_had_not_been_stopped(preset, files, tmp_path, monkeypatch):
    settings = {"preset": preset, "train_file": files["2", "train"], "predict_file": files["2", "dev"],
                "do_train": True, "do_eval": True, "do_predict": True, "version_2_with_negative": True,
                **SHORT}  # fmt: skip
    undisturbed = answer_questions(output_dir=str(tmp_path / "a"), **settings)

    def stop(*_):
        raise KeyboardInterrupt

    from tasks.training import Trainer

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", stop)  # Called after the first checkpoint.
        with pytest.raises(KeyboardInterrupt):
            answer_questions(output_dir=str(tmp_path / "b"), **settings)
    assert not (tmp_path / "b" / "model").exists() and not (tmp_path / "b" / "metrics.json").exists()
    resumed = answer_questions(output_dir=str(tmp_path / "b"), **settings)
    for name in undisturbed.keys() - {"train_seconds", "eval_seconds"}:
        assert resumed[name] == pytest.approx(undisturbed[name], rel=1e-4), name
    for name in ("predictions.json", "training.json"):
        assert read(tmp_path / "b" / name) == read(tmp_path / "a" / name), name


# === A checkpoint that was fine-tuned elsewhere ===


@pytest.mark.oracle
def test_a_hugging_face_question_answerer_answers_as_in_torch(files, tmp_path):
    import torch

    model = random_model("BertForQuestionAnswering", vocab_size=len(toy_squad.VOCABULARY), max_position_embeddings=48)
    model.save_pretrained(tmp_path / "model_of_others")
    (tmp_path / "model_of_others" / "vocab.txt").write_text("\n".join(toy_squad.VOCABULARY) + "\n")
    preset = str(tmp_path / "model_of_others")
    answer_questions(output_dir=str(tmp_path / "run"), preset=preset, predict_file=files["2", "dev"], do_predict=True,
                     version_2_with_negative=True, **WINDOWS)  # fmt: skip
    questions = read_squad(files["2", "dev"], with_answers=False, version_2_with_negative=True, bad_rows=BadRows())
    ours = stages.load({"test": questions}, {"sequence_length": 48, "doc_stride": 24, "max_query_length": 12},
                       output_dir=str(tmp_path / "run"), preset=preset)  # fmt: skip
    windows = ours.windows["test"]
    examples = windows.examples
    theirs = np.empty((len(examples.token_ids), 2), np.float32)
    for first, limit in zip(examples.row_splits[:-1], examples.row_splits[1:], strict=True):
        ids, segments = (
            torch.tensor(values[first:limit][None]).long() for values in (examples.token_ids, examples.segment_ids)
        )
        with torch.no_grad():
            outputs = model(ids, token_type_ids=segments)
        theirs[first:limit] = torch.stack([outputs.start_logits[0], outputs.end_logits[0]], dim=-1).numpy()
    _, logits = stages.answer(ours.answerer, questions, windows, 16, "test")
    assert np.abs(theirs).max() > 1.0
    np.testing.assert_allclose(logits, theirs, atol=2e-5)
    expected = best_answers(questions, windows, theirs[:, 0], theirs[:, 1], version_2_with_negative=True)
    assert read(tmp_path / "run" / "predictions.json") == expected.predictions
    assert read(tmp_path / "run" / "null_odds.json") == pytest.approx(expected.null_odds, abs=1e-4)
    assert not (tmp_path / "run" / "model").exists()


# === Refusals ===


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_train": False}, "Nothing to do. Give --do_train, --do_eval or --do_predict"),
        ({"train_file": None}, "--do_train needs --train_file"),
        ({"do_predict": True}, "--do_predict needs --predict_file"),
        ({"train_file": "no-such-file.json"}, "no-such-file.json: no such file"),
        ({"preset": None}, "--do_train needs --preset"),
        ({"preset": "no-such-preset"}, "no-such-preset: no such directory"),
        ({"max_seq_length": 49}, "--max_seq_length=49: .* has positions for 48 tokens"),
        ({"max_seq_length": 15}, "--max_seq_length=15 leaves no room for the context"),
        ({"train_batch_size": 2000}, r"--train_file: \d+ windows in 3 epochs do not fill one batch of 2000"),
        ({"version_2_with_negative": None}, r"question '0-3': the question has no answer.*\(8 bad rows in all"),
        ({"do_train": False, "do_predict": True, "predict_file": "TRAIN"}, "task.json: no such file.*bert-squad wrote"),
    ],
)
def test_wrong_settings(preset, files, tmp_path, changes, message):
    settings = {"preset": preset, "train_file": files["2", "train"], "do_train": True, "version_2_with_negative": True,
                **SHORT, **changes}  # fmt: skip
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


def test_questions_that_cannot_be_used_are_refused_or_counted(preset, files, tmp_path):
    content = read(files["2", "train"])
    question = content["data"][1]["paragraphs"][0]["qas"][0]
    question["answers"] = [{**question["answers"][0], "answer_start": 3}]
    train = toy_squad.write(tmp_path / "train.json", content)
    content = read(files["2", "dev"])
    del content["data"][0]["paragraphs"][0]["qas"][3]["is_impossible"]
    dev = toy_squad.write(tmp_path / "dev.json", content)
    settings = {"output_dir": str(tmp_path / "run"), "preset": preset, "train_file": train, "predict_file": dev,
                "do_train": True, "do_eval": True, "version_2_with_negative": True, **SHORT}  # fmt: skip
    with pytest.raises(InputError, match=r"train.json: question '1-0': the answer '\w+' is not in the context at char"):
        answer_questions(**settings)
    with pytest.raises(InputError, match=r"dev.json: question '0-3': the question has no known answer to be scored by"):
        answer_questions(**{**settings, "train_file": files["2", "train"]})
    results = answer_questions(**settings, bad_rows="skip")  # As google-research/bert does.
    assert (results["skipped_rows"], results["train_questions"], results["total"]) == (2, 31, 31)
    rows = (tmp_path / "run" / "skipped_rows.tsv").read_text().splitlines()
    assert len(rows) == 3 and rows[1].startswith(f"{train}: question '1-0'\t")
    assert "2 questions were skipped: see skipped_rows.tsv" in (tmp_path / "run" / "report.html").read_text()


def test_scoring_needs_known_answers(files, tmp_path):
    content = read(files["1", "dev"])
    for article in content["data"]:
        for qa in article["paragraphs"][0]["qas"]:
            qa["answers"] = []
    file = toy_squad.write(tmp_path / "test.json", content)
    with pytest.raises(InputError, match=r"no known answer to be scored by. Expected one, or --version_2.*32 bad rows"):
        answer_questions(output_dir=str(tmp_path), predict_file=file, do_eval=True)
    with pytest.raises(InputError, match="no question in the file has a known answer; leave out --do_eval"):
        answer_questions(output_dir=str(tmp_path), predict_file=file, do_eval=True, bad_rows="skip")


# === The command ===


def test_a_wrong_answer_is_one_line_and_exit_status_1(preset, files, tmp_path):
    content = read(files["1", "train"])
    content["data"][2]["paragraphs"][0]["qas"][1]["answers"] = [{"text": "violet", "answer_start": 5}]
    file = toy_squad.write(tmp_path / "train.json", content)
    command = [sys.executable, "-X", "importtime", "-m", "tasks.squad.run", f"--train_file={file}",
               f"--preset={preset}", "--do_train", f"--output_dir={tmp_path}/run"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    (message,) = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert f"error: {file}: question '2-1': the answer 'violet' is not in the context" in message
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "tasks.squad.data" in imported and not imported & {"tensorflow", "keras", "matplotlib", "sklearn"}
    assert not (tmp_path / "run").exists()


def test_the_command_prints_the_scores_and_keeps_its_flags(other, files):
    command = [sys.executable, "-m", "tasks.squad.run", f"--predict_file={files['2', 'dev']}", "--do_eval",
               f"--output_dir={other[0]}"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    exact, f1, *rest = done.stdout.splitlines()
    assert re.fullmatch(r"exact: \d+\.\d\d \(95% interval \d+\.\d\d to \d+\.\d\d\)", exact) and f1.startswith("f1: ")
    assert [line.partition(":")[0] for line in rest[:4]] == [
        "HasAns_exact", "HasAns_f1", "NoAns_exact", "null_score_diff_threshold"
    ]  # fmt: skip
    assert read(other[0] / "flags.json")["predict_file"] == files["2", "dev"]


def test_the_flags_help_names_google_s_defaults():
    done = subprocess.run([sys.executable, "-m", "tasks.squad.run", "--help"], cwd=ROOT, capture_output=True, text=True,
                          timeout=100, check=True)  # fmt: skip
    text = " ".join(done.stdout.split())
    for name, default in stages.QuestionAnswerer._field_defaults.items():
        if name in ("doc_stride", "max_query_length", "n_best_size", "max_answer_length"):
            assert re.search(rf"--{name}: [^-]*else {default}\.", text), name
    assert "--[no]version_2_with_negative" in text and "--null_score_diff_threshold" in text
