"""Few rows a label: a linear head on embeddings, frozen or trained, chosen by cross-validation."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from light_commands import Call, run_calls
from toy_classifier import ANIMALS, COLUMNS, KINDS, TOOLS, WORDS, toy_rows, write_preset, write_rows, write_tables
from toy_saved import trace_answer

from export.heads.loading import load_head
from keras_bert import BertBackbone, BertTextClassifier, BertTokenizer
from keras_bert.errors import InputError
from tasks import flags
from tasks.classify.data import Table
from tasks.classify.task import Classify, ClassifySettings
from tasks.fine_tuning import few_labels
from tasks.fine_tuning.command import run_task
from tasks.fine_tuning.model_files import save_model
from tasks.fine_tuning.session import Session


@pytest.fixture(scope="module", name="untrained")
def _untrained(tmp_path_factory):
    return write_preset(tmp_path_factory.mktemp("untrained"))


@pytest.fixture(scope="module", name="tables")
def _tables(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    write_tables(directory)
    for name, count, seed in (("few.csv", 24, 5), ("little.csv", 6, 1)):
        write_rows(directory / name, [("words", "kind"), *toy_rows(count, seed)])
    return directory


@pytest.fixture(scope="module", name="preset")
def _preset(untrained, tmp_path_factory):
    """A classifier whose encoder knows the task, as one that was trained on sentences does, and whose head does not."""
    directory = str(tmp_path_factory.mktemp("trained") / "model")
    encoder = BertBackbone.from_preset(untrained)
    vectors = encoder.token_embedding.embeddings.numpy()
    for words, sign in ((ANIMALS, 1.0), (TOOLS, -1.0)):
        vectors[[WORDS.index(word) for word in words], 0] = sign
    encoder.token_embedding.embeddings.assign(vectors)
    saved = {"task": "classification", "sequence_length": 24, "num_texts": 1, "labels": list(KINDS)}
    save_model(directory, BertTextClassifier(encoder, labels=KINDS), BertTokenizer(WORDS), saved)
    return directory


@pytest.fixture(name="run")
def _run(preset, tables, tmp_path):
    def run(*words):
        given = [f"--output_dir={tmp_path / 'run'}", f"--preset={preset}", f"--train_file={tables / 'few.csv'}"]
        given += [f"--dev_file={tables / 'dev.csv'}", "--do_train", "--do_eval", "--max_seq_length=24"]
        given += [f"--{name}={column}" for name, column in COLUMNS.items()]
        return run_task(Classify(flags.parse(ClassifySettings, [*given, *words])))

    return run


@pytest.mark.usefixtures("eagerly")
def test_frozen_embeddings_are_chosen_and_the_model_is_an_ordinary_one(run, tmp_path, capfd):
    results = run()
    assert results["train_few_labels"] == "frozen" and results["train_steps"] == 0
    assert list(results["train_few_labels_accuracy"]) == ["frozen"] and results["accuracy"] > 0.9
    line = "Few labels (24 rows): frozen embeddings with logistic regression"
    assert line in capfd.readouterr().out and line in (tmp_path / "run" / "report.html").read_text()
    model = BertTextClassifier.from_preset(tmp_path / "run" / "model")
    assert model.pooling == "mean" and model.labels == list(KINDS)
    texts, kinds = zip(*toy_rows(75, 1), strict=True)
    answers = model(model.preprocessor(list(texts))).numpy().argmax(1)
    assert np.mean([KINDS[answer] for answer in answers] == np.array(kinds)) == results["accuracy"]
    again = run("--nodo_train", "--preset=", "--train_file=")
    assert again["accuracy"] == results["accuracy"] and again["train_few_labels"] == "frozen"
    assert line in (tmp_path / "run" / "report.html").read_text()
    head = load_head(str(tmp_path / "run" / "model"))
    outputs = trace_answer(head)(text=tf.constant(texts))
    expected = [answer["probabilities"] for answer in model.answer(list(texts))]
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    "words",
    [
        ["--few_labels=auto"],
        ["--few_labels=off", "--find_wrong_labels"],
        ["--long_text=mean", "--find_wrong_labels", "--num_train_epochs=2"],
    ],
)
def test_labels_that_are_likely_wrong_are_listed(run, tables, words, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(Session, "_fit", lambda *given: 1.0)  # The list is made before plain fine-tuning.
    rows = toy_rows(24, 5)
    other = next(kind for kind in KINDS if kind != rows[3][1])
    path = write_rows(tmp_path / "wrong.csv", [("words", "kind"), *rows[:3], (rows[3][0], other), *rows[4:]])
    words = [f"--train_file={path}", "--train_batch_size=8", "--nodo_eval", *words]
    results, table = run(*words), tmp_path / "run" / "doubtful_labels.tsv"
    header, *lines = [line.split("\t") for line in table.read_text().splitlines()]
    assert header == ["place", "label", "suggested", "probability_of_label", "probability_of_suggested", "text"]
    assert lines[0][:3] == [f"{path}:5", other, rows[3][1]] and lines[0][-1] == rows[3][0]
    assert float(lines[0][3]) < float(lines[0][4]) and results["data_doubtful_labels"] == len(lines) < 6
    assert f", the first at {path}:5 ({other}, more likely {rows[3][1]})" in capfd.readouterr().out
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Likely wrong labels: " in report and f"{path}:5" in report
    if "--find_wrong_labels" not in words:
        again = run("--nodo_train", "--preset=", "--train_file=", f"--dev_file={tables / 'little.csv'}")
        assert again["data_doubtful_labels"] == len(lines) and table.exists()
        assert "data_doubtful_labels" not in run(*words, "--nofind_wrong_labels") and not table.exists()


def test_auto_trains_the_encoder_where_rows_suffice_and_stays_as_sure_as_cross_validation_found_right(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(few_labels, "STEPS", (10, 10))
    monkeypatch.setattr(few_labels, "LEAST_ROWS_TO_TRAIN", 24)
    (texts, kinds), spreads = zip(*toy_rows(24, 5), *toy_rows(75, 1), strict=True), []
    for method, chosen, num_steps in (("frozen", "frozen", 0), ("auto", "contrastive", 10)):
        results = run(f"--few_labels={method}", "--num_train_epochs=9", "--nodo_eval")
        assert (results["train_few_labels"], results["train_steps"]) == (chosen, num_steps)
        assert results["train_few_labels_accuracy"].keys() == {"frozen"}
        model = BertTextClassifier.from_preset(tmp_path / "run" / "model")
        assert model.backbone.layout == "rectangular"  # The encoder was trained in another one.
        logits = model(model.preprocessor(list(texts))).numpy()
        assert np.mean([KINDS[answer] for answer in logits[24:].argmax(1)] == np.array(kinds[24:])) > 0.9
        logits = logits[:24]
        spreads.append(np.std(logits - logits.mean(axis=1, keepdims=True)))
        (tmp_path / "run").rename(tmp_path / method)
    assert spreads[1] == pytest.approx(spreads[0], rel=1e-3)
    monkeypatch.setattr(few_labels, "LEAST_ROWS_TO_TRAIN", 25)  # Which the flag overrules.
    monkeypatch.setattr(few_labels.Candidates, "train_encoder", lambda *given: 3)
    results = run("--few_labels=contrastive", "--nodo_eval")
    assert (results["train_few_labels"], results["train_steps"]) == ("contrastive", 3)


@pytest.mark.usefixtures("eagerly")
def test_rows_held_out_and_predictions_in_float16(run, tables, tmp_path):
    predicts = ["--do_predict", f"--test_file={tables / 'test.csv'}"]
    results = run("--dev_file=", "--dev_share=0.25", "--mixed_precision=float16", *predicts)
    assert results["train_few_labels"] == "frozen" and results["train_rows"] == 18
    assert len((tmp_path / "run" / "predictions.tsv").read_text().splitlines()) == 38


def test_auto_compares_where_rows_can_tell_also_in_float16_and_beside_validation_rows(run, monkeypatch):
    monkeypatch.setattr(few_labels, "STEPS", (10, 10))
    monkeypatch.setattr(few_labels, "LEAST_ROWS_TO_TRAIN", 18)
    monkeypatch.setattr(few_labels, "LEAST_ROWS_TO_COMPARE", 8)
    results = run("--few_labels=auto", "--validation_share=0.25", "--mixed_precision=float16")
    assert (results["train_few_labels"], results["train_steps"]) == ("contrastive", 10)
    assert results["train_few_labels_accuracy"].keys() == {"frozen", "contrastive"}
    assert results["accuracy"] > 0.9 and "validation_accuracy" in results


@pytest.mark.usefixtures("eagerly")
def test_a_search_and_early_stopping_fine_tune(run, monkeypatch):
    methods = []

    def train(self, method="off"):
        methods.append(method)
        raise InputError("enough")

    monkeypatch.setattr(Session, "train", train)
    for words in ([], ["--num_restarts=2"], ["--learning_rate=1e-5,2e-5"], ["--early_stopping_patience=1"]):
        with pytest.raises(InputError, match="enough"):
            run(*words)
    assert methods == ["auto"] + ["off"] * 5


def test_useless_embeddings_lead_to_plain_fine_tuning_which_resumes(run, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(few_labels, "LEAST_ROWS_TO_TRAIN", 24)
    monkeypatch.setattr(few_labels, "LEAST_ROWS_TO_COMPARE", 12)
    monkeypatch.setattr(few_labels.Candidates, "train_encoder", lambda *given: 2)  # Which changes nothing here.
    rows = [("w1", kind) for _ in range(12) for kind in KINDS]  # All texts are alike.
    path = write_rows(tmp_path / "alike.csv", [("words", "kind"), *rows])
    words = [f"--train_file={path}", "--train_batch_size=8", "--few_labels=auto", "--num_train_epochs=3"]
    first = run(*words, "--nodo_eval")
    assert re.search(
        r"not listed, since the embeddings contradict the labels of (1[3-9]|2\d) of 24 rows", capfd.readouterr().out
    )
    assert "data_doubtful_labels" not in first and not (tmp_path / "run" / "doubtful_labels.tsv").exists()
    results = run(*words)  # Nothing is left to train.
    assert results["train_few_labels"] == "off" and results["train_steps"] == 9 and results["accuracy"] < 1
    assert results["train_seconds"] == first["train_seconds"]
    write_rows(tmp_path / "alike.csv", [("words", "kind"), *rows[1:]])
    monkeypatch.setattr(few_labels, "choose", lambda *given: pytest.fail("It was worked on before it was refused."))
    with pytest.raises(InputError, match="holds a training with train_rows_checksum="):
        run(*words)


@pytest.mark.usefixtures("eagerly")
def test_a_second_training_removes_the_predictions_of_the_first(run, tables, tmp_path):
    test, predictions = f"--test_file={tables / 'test.csv'}", tmp_path / "run" / "predictions.tsv"
    words = ["--nodo_eval", "--few_labels=frozen"]
    run(*words, "--do_predict", test)
    run("--nodo_train", "--preset=", "--train_file=", f"--dev_file={tables / 'little.csv'}")
    assert "\nTrained from " in (tmp_path / "run" / "README.md").read_text()  # Which this call was not told.
    copy = predictions.with_name("predictions_2024.tsv")
    copy.write_bytes(predictions.read_bytes())
    history = predictions.with_name("history.json")
    history.write_text('{"training": [{"step": 1, "loss": 0.5}], "evaluations": []}')  # That of a search.
    run(*words)
    assert not predictions.exists() and copy.exists() and not history.exists()
    assert 'id="curves"' not in (tmp_path / "run" / "report.html").read_text()
    run(*words, "--do_predict", test)
    assert predictions.exists()


@pytest.mark.usefixtures("eagerly")
def test_names_alone_give_a_start(run, untrained, tmp_path):
    path = write_rows(tmp_path / "dev.csv", [("words", "kind"), ("cat", "cat"), ("saw", "saw"), ("cat, w1", "cat")])
    words = [f"--preset={untrained}", "--labels=saw,cat", "--train_file=", f"--dev_file={path}"]
    results = run("--few_labels=names", *words)
    assert results["train_rows"] == 0 and not {"train_label_counts", "train_data", "majority_accuracy"} & set(results)
    card, report = ((tmp_path / "run" / name).read_text() for name in ("README.md", "report.html"))
    assert "| dev |" in card and "--labels`" not in card and "the most frequent training class" not in report
    assert results["train_few_labels"] == "names" and results["accuracy"] == 1.0
    assert json.loads((tmp_path / "run" / "model" / "task.json").read_text())["labels"] == ["saw", "cat"]


def test_more_rows_a_recipe_or_random_weights_keep_plain_fine_tuning(tables):
    def method(rows=150, num_labels=2, **settings):
        task = Classify(ClassifySettings(output_dir="out", do_train=True, **settings))
        labels = [KINDS[number % 2] for number in range(rows)]
        table = task_table(labels)
        return task.few_labels(table, task.make_spec(table))

    assert method() == "auto" and method(rows=199) == "auto" and method(rows=200) == "off"
    plain = [{"load_weights": False}, {"init_checkpoint": "x"}, {"task_name": "SST-2", "labels": list(KINDS)}]
    plain += [{"lora_rank": 4}, {"learning_rate": [1e-5, 2e-5]}, {"early_stopping_patience": 1}, {"num_restarts": 2}]
    plain += [{"few_labels": "off"}, {"num_train_epochs": 25.0}, {"bert_config_file": "x"}, {"reinit_layers": 1}]
    plain += [{"optimizer": "lamb"}, {"train_batch_size": 8}, {"gradient_accumulation_steps": 2}, {"layer_decay": 0.9}]
    plain += [{"warmup_proportion": 0.2}]
    assert [method(**settings) for settings in plain] == ["off"] * len(plain)


def task_table(labels):
    numbers = list(range(len(labels)))
    return Table("train.csv", numbers, numbers, len(labels), ["text"] * len(labels), None, labels)


REFUSED = {
    "--few_labels=frozen --lora_rank=4": "Leave out --lora_rank, or give --few_labels=off.",
    "--few_labels=frozen --reinit_layers=2": "Leave out --reinit_layers, or give --few_labels=off.",
    "--few_labels=contrastive --learning_rate=1e-5,2e-5": "Leave out --learning_rate, or give --few_labels=off.",
    "--few_labels=frozen --text_pair_column=other": "Leave out --text_pair_column, or give --few_labels=off.",
    "--few_labels=auto --regression": "Leave out --regression, or give --few_labels=off.",
    "--few_labels=names": "Name them with --labels.",
    "--few_labels=names --labels=a,b --train_file=t.csv": "Leave out --train_file and shares of its rows, and",
}


def test_what_only_plain_fine_tuning_can_follow_is_refused():
    lines = [["bert-classify", "--output_dir=out", "--do_train", *flags.split()] for flags in REFUSED]
    (answers,) = run_calls([Call("tasks.classify.run", lines)])
    for (status, printed), message in zip(answers["lines"], REFUSED.values(), strict=True):
        assert status == 1 and message in printed
    assert answers["imported"] == []
