"""`bert-classify` chooses temperature and thresholds on held-out rows, keeps them, and answers "none" in doubt."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import toy_classifier
from run_tasks import classify
from toy_classifier import COLUMNS, KINDS, toy_rows, write_preset, write_rows

from export.heads.loading import load_head
from keras_bert import BertTextClassifier
from keras_bert.answers.rules import NO_LABEL
from keras_bert.errors import InputError
from tasks.classify.data import Table
from tasks.classify.task import Classify, ClassifySettings, ClassifySpec
from tasks.convert.run import ConversionSettings, convert
from tasks.fine_tuning.examples import Examples
from tasks.fine_tuning.task import Answers, Encoded, Part, Trained

PRECISION = 0.9


def noisy_rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Rows of which the label of one in eight is wrong: all alike are learned by heart, and none is sure."""
    generator = np.random.default_rng(seed)
    return [(text, KINDS[KINDS.index(kind) ^ int(generator.random() < 0.125)]) for text, kind in toy_rows(count, seed)]


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    """Directory of the tables and of the run, and its `metrics.json`."""
    directory = tmp_path_factory.mktemp("doubt")
    copies = 10  # An epoch ends with an evaluation, so training rows repeat within it.
    for split, count, seed in (("train", 96, 1), ("dev", 300, 2), ("test", 40, 3)):
        rows = noisy_rows(count, seed) * (copies if split == "train" else 1)
        write_rows(directory / f"{split}.csv", [("words", "kind"), *rows])
    training = {**toy_classifier.TRAINING, "num_train_epochs": 30 / copies}
    stages = {"do_train": True, "do_eval": True, "do_predict": True}
    results = classify(
        output_dir=str(directory / "run"),
        preset=write_preset(directory / "preset"),
        load_weights=False,
        data_dir=str(directory),
        precision=PRECISION,
        **stages,
        **COLUMNS,
        **training,
    )
    return directory, results


def task_of(directory) -> dict:
    return json.loads((directory / "run" / "model" / "task.json").read_text())


def test_the_model_keeps_what_lowers_its_loss(run):
    directory, results = run
    task = task_of(directory)
    assert task["temperature"] == results["temperature"] > 1.0
    assert task["thresholds"] == [task["thresholds"][0]] * 2 and 0.5 < task["thresholds"][0] < 1.0
    assert results["calibrated_loss"] < results["loss"]
    assert results["wanted_precision"] == PRECISION and 0.1 < results["coverage"] < 1.0
    low, high = results["answered_precision_interval"]
    assert low <= PRECISION <= high
    page = (directory / "run" / "report.html").read_text()
    assert '<section id="confidence"' in page and "Share of mistakes among the surest" in page
    card = (directory / "run" / "README.md").read_text()
    assert f"Temperature {task['temperature']:.3g}" in card and "A label is given from a probability of" in card


@pytest.mark.usefixtures("eagerly")
def test_answers_are_those_of_the_predictions(run, tmp_path, monkeypatch):
    directory, _ = run
    rows = [line.split("\t") for line in (directory / "run" / "predictions.tsv").read_text().splitlines()[1:]]
    threshold = task_of(directory)["thresholds"][0]
    names = {row[1] for row in rows}
    assert NO_LABEL in names and names & set(KINDS)
    for _, name, *shares in rows:
        assert (name == NO_LABEL) == (max(map(float, shares)) < threshold)
    texts = [text for text, _ in noisy_rows(40, 3)]
    answers = BertTextClassifier.from_preset(directory / "run" / "model").answer(texts)
    assert [answer["label"] for answer in answers] == [row[1] for row in rows]
    np.testing.assert_allclose(
        [answer["probabilities"] for answer in answers], np.array([row[2:] for row in rows], float), atol=2e-6
    )
    assert [answer["score"] for answer in answers] == [max(answer["probabilities"]) for answer in answers]
    shorter = BertTextClassifier.from_preset(directory / "run" / "model", sequence_length=20)
    assert shorter.answer_settings["temperature"] > 1.0 and shorter.answer_settings["thresholds"] is not None
    kept = BertTextClassifier.from_preset(directory / "run" / "model")
    kept.save_to_preset(tmp_path / "kept")
    kept.save(tmp_path / "kept.keras")
    convert(ConversionSettings(source=str(directory / "run" / "model"), target=str(tmp_path / "converted")))
    loaded = [BertTextClassifier.from_preset(tmp_path / name) for name in ("kept", "kept.keras", "converted")]
    assert {model.preprocessor.sequence_length for model in loaded} == {kept.preprocessor.sequence_length}
    monkeypatch.setenv("HOME", str(directory))
    loaded.append(BertTextClassifier.from_preset("~/run/model"))
    for again in [*loaded, keras.saving.load_model(tmp_path / "kept.keras")]:
        assert again.answer(texts) == answers and again.answer_settings == kept.answer_settings
    head = load_head(str(directory / "run" / "model"))
    served = head.answer_texts(head.model, {"text": np.array(texts, object)})
    assert [label.decode() for label in served["label"].numpy()] == [row[1] for row in rows]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("source", ["preset", "init_checkpoint"])
def test_an_earlier_run_answers_as_it_was_trained(run, source, tmp_path, capsys):
    directory, _ = run
    (tmp_path / "metrics.json").write_text('{"preset": "another", "test_predictions": ["CoLA.tsv"]}')
    for name in ("CoLA.tsv", "report.html"):
        (tmp_path / name).write_text("another model's")
    given = {source: str(directory / "run" / "model"), "test_file": str(directory / "test.csv"), **COLUMNS}
    # Figures of another model in this directory would not stand beside its own.
    assert classify(output_dir=str(tmp_path), do_predict=True, max_seq_length=9, **given)["preset"] == given[source]
    assert not (tmp_path / "CoLA.tsv").exists() and (tmp_path / "report.html").read_text().startswith("<!")
    told = f"--max_seq_length=9 has no effect: {directory}/run/model was trained with "
    assert told in capsys.readouterr().out
    assert (tmp_path / "predictions.tsv").read_text() == (directory / "run" / "predictions.tsv").read_text()


@pytest.mark.parametrize("several", [False, True])
def test_shown_answers_are_those_of_the_trained_model(several):
    """Of labels "a" and "b", with logits that are four times too large, or moved by one."""
    generator, classes = np.random.default_rng(0), ["a", "b"]
    margins = generator.normal(size=400)
    outputs = (np.stack([margins, -margins], axis=1) * 4 - several).astype(np.float32)
    names = np.where(generator.random(400) < 1 / (1 + np.exp(-2 * margins)), "a", "b").tolist()
    labels = np.array([classes.index(name) for name in names])
    labels = np.eye(2, dtype=np.float32)[labels] if several else labels
    settings = ClassifySettings(output_dir="out", do_train=True, do_eval=True, precision=0.9, multi_label=several)
    numbers = list(range(400))
    spec = ClassifySpec(sequence_length=32, labels=classes, num_texts=1, multi_label=several)
    of_rows = [(name,) for name in names] if several else names
    table = Table("dev.csv", numbers, numbers, 400, ["text"] * 400, None, of_rows)
    examples = Examples(*[np.zeros(0, np.int32)] * 2, np.zeros(401, np.int64), {"labels": labels})
    answers = Answers(Trained(None, None, spec), Part("dev", table), Encoded(examples, np.ones(400)), outputs)
    evaluation = Classify(settings).evaluate(answers, {})
    kept = dataclasses.replace(spec, **evaluation.chosen)
    assert several or kept.temperature > 2.0
    shown = [dict(mistake.parts) for mistake in evaluation.mistakes] + list(map(dict, evaluation.examples))
    assert len({row["predicted"].split()[0] for row in shown}) > 1
    for row in shown:
        logits = outputs[int(row["row"].rpartition(":")[2])]
        if several:
            shares = dict(zip(classes, 1 / (1 + np.exp(-logits)), strict=True))
            least = zip(classes, kept.thresholds, strict=True)
            given = [f"{name} {shares[name]:.0%}" for name, threshold in least if shares[name] >= threshold]
            assert row["predicted"] == (", ".join(given) or "no label")
        else:
            share = 1 / (1 + np.exp((logits.min() - logits.max()) / kept.temperature))
            answer = f"{classes[logits.argmax()]} {share:.0%}"
            assert row["predicted"] == (answer if share >= kept.thresholds[0] else f"{NO_LABEL} ({answer})")


@pytest.mark.usefixtures("eagerly")
def test_an_evaluation_alone_changes_nothing_but_by_the_flag(run):
    directory, results = run
    task = task_of(directory)
    call = {"output_dir": str(directory / "run"), "data_dir": str(directory), **COLUMNS, "do_eval": True}
    again = classify(**call, dev_file=str(directory / "test.csv"))
    assert task_of(directory) == task and again["temperature"] == results["temperature"]
    assert "wanted_precision" not in again and again["coverage"] < 1.0
    classify(**call, precision=0.999)  # 999 right answers would show it.
    assert task_of(directory) == {**task, "thresholds": [2.0, 2.0]}
    model = BertTextClassifier.from_preset(directory / "run" / "model")
    assert model.answer("cat")["label"] == NO_LABEL
    assert model.answer("cat", thresholds=[0.0, 0.0])["label"] in KINDS


@pytest.mark.usefixtures("eagerly")
def test_models_of_earlier_versions_have_neither(run, tmp_path):
    directory, _ = run
    model = BertTextClassifier.from_preset(directory / "run" / "model")
    model.answer_settings = {}
    plain = model.answer("cat")
    assert plain["label"] in KINDS
    earlier = {name: value for name, value in task_of(directory).items() if name not in ("temperature", "thresholds")}
    copied = shutil.copytree(directory / "run" / "model", tmp_path / "model")
    (copied / "task.json").write_text(json.dumps(earlier))
    assert BertTextClassifier.from_preset(copied).answer("cat") == plain
    assert load_head(str(copied)).thresholds is None


@pytest.mark.parametrize(
    ("header", "rows", "flags", "said"),
    [
        (("words", "kind"), [("cat", "none"), ("saw", "tool")] * 4, {}, "'none' in doubt, and one of the labels has"),
        (("words", "kind"), [("cat", "1.5"), ("saw", "2")] * 4, {"regression": True}, "scores have no least conf"),
        (("words", "kind"), [("cat", "animal"), ("saw", "tool")] * 4, {"do_eval": False}, "chosen on labelled rows"),
    ],
)
def test_what_cannot_be_in_doubt_is_refused(header, rows, flags, said, tmp_path):
    path = write_rows(tmp_path / "train.csv", [header, *rows])
    stages = {"do_train": True, "do_eval": True, **flags}
    with pytest.raises(InputError, match=said):
        classify(output_dir=str(tmp_path / "run"), train_file=path, precision=0.9, **COLUMNS, **stages)


@pytest.mark.usefixtures("eagerly")
def test_thresholds_need_a_label_for_each():
    model, preprocessor = toy_classifier.classifier(), toy_classifier.assets()
    model.preprocessor = preprocessor
    with pytest.raises(ValueError, match="`thresholds` must be one for each label"):
        model.answer("cat", thresholds=[0.5])
    with pytest.raises(ValueError, match="`temperature` must be above 0"):
        model.answer("cat", temperature=0.0)


@pytest.fixture(scope="module", name="several")
def _several(tmp_path_factory):
    """A run on rows of several labels: its directory, and the settings of an evaluation."""
    directory = tmp_path_factory.mktemp("several")
    generator = np.random.default_rng(4)
    for split, count in (("train", 64), ("dev", 200)):
        rows = []
        for _ in range(count):
            chosen = [word for word in ("cat", "saw") if generator.random() < 0.5]
            noisy = [word for word in chosen if generator.random() < 0.8]
            rows.append((", ".join([*chosen, "w1"]), *(int(word in noisy) for word in ("cat", "saw"))))
        write_rows(directory / f"{split}.csv", [("words", "cat", "saw"), *rows])
    call = {"output_dir": str(directory / "run"), "text_column": "words", "label_column": "cat,saw"}
    call |= {"data_dir": str(directory), "do_eval": True}
    training = {**toy_classifier.TRAINING, "preset": write_preset(directory / "preset"), "load_weights": False}
    classify(**call, **training, do_train=True, precision=0.7)
    return directory, call


@pytest.mark.usefixtures("eagerly")
def test_several_labels_have_a_threshold_each(several):
    directory, call = several
    task = task_of(directory)
    assert len(task["thresholds"]) == 2 and task["temperature"] == 1.0
    results = classify(**call)
    assert results["thresholds"] == task["thresholds"]
    for scores in results["chosen_per_label"].values():
        assert scores["precision"] >= 0.7
    model = BertTextClassifier.from_preset(directory / "run" / "model")
    answer = model.answer("cat, w1")
    shares = zip(model.labels, answer["probabilities"], task["thresholds"], strict=True)
    assert set(answer["labels"]) == {name for name, share, least in shares if share >= least}
    assert model.answer("cat, w1", thresholds=[0.0, 0.0])["num_labels"] == 2
    assert load_head(str(directory / "run" / "model")).thresholds == task["thresholds"]
