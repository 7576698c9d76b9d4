"""`bert-classify` on rows with any number of labels: from a table to served answers, and what it reads and refuses."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf
import toy_classifier
from run_tasks import classify, read_tables
from toy_classifier import ANIMALS, FILLER, KINDS, TOOLS, write_preset

from export import run as export_run
from export.run import ExportSettings
from keras_bert import BertTextClassifier
from keras_bert.errors import InputError
from tasks import flags
from tasks.classify.task import Classify
from tasks.fine_tuning import command
from tasks.fine_tuning.inputs import complete

TRAINING = ["--train_batch_size=16", "--learning_rate=5e-3", "--num_train_epochs=10", "--max_seq_length=24"]


def labelled_rows(count: int, seed: int) -> list[tuple[str, list[str]]]:
    """Texts that name an animal, a tool, both or neither, in turn."""
    generator, rows = np.random.default_rng(seed), []
    for index in range(count):
        labels = [kind for kind, bit in zip(KINDS, (1, 2), strict=True) if index & bit]
        words = [generator.choice({"animal": ANIMALS, "tool": TOOLS}[kind]) for kind in labels]
        words += list(generator.choice(FILLER, generator.integers(1, 6)))
        rows.append((", ".join(generator.permutation(words)), labels))
    return rows


def write_table(path, rows) -> str:
    """CSV as a spreadsheet writes it, with a mark of its encoding and CRLF; returns the path."""
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, lineterminator="\r\n").writerows(rows)
    return str(path)


def write_labelled(path, rows) -> str:
    return write_table(path, [("text", "topics"), *((text, "|".join(labels)) for text, labels in rows)])


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    """A training typed as a user types it, and its export: (directory, what was printed)."""
    directory = tmp_path_factory.mktemp("several")
    train = write_labelled(directory / "train.csv", labelled_rows(400, 0))
    test = write_table(directory / "test.csv", [("text",), *((text,) for text, _ in labelled_rows(40, 1))])
    line = [f"--train_file={train}", f"--test_file={test}", "--label_column=topics", "--multi_label", *TRAINING]
    line += [f"--preset={write_preset(directory / 'preset')}", f"--output_dir={directory}/run"]
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("builtins.print", lambda *values, **_: printed.append(" ".join(map(str, values))))
        stages = ["--do_train", "--do_eval", "--do_predict"]
        command.main(Classify(flags.parse(Classify.Settings, [*line, *stages])))
        settings = {"model_dir": f"{directory}/run/model", "export_dir": f"{directory}/served"}
        printed.append(export_run.export(ExportSettings(**settings, with_cc="off", onnx=True)))
    return directory, printed


def test_it_is_learned_and_each_label_is_scored(run):
    directory, printed = run
    assert "Columns: --text_column=text '--label_separator=|' (of text, topics)" in printed
    metrics = json.loads((directory / "run" / "metrics.json").read_text())
    assert metrics["micro_f1"] > 0.95 and metrics["macro_f1"] > 0.95 and metrics["mean_average_precision"] > 0.95
    assert set(metrics["intervals"]) == {"micro_f1", "macro_f1", "exact_match"}
    assert metrics["rows"] == 80 and list(metrics["train_label_counts"]) == list(KINDS)
    keys = ["rows", "predicted", "correct", "precision", "recall", "f1", "average_precision"]
    assert {name: list(scores) for name, scores in metrics["per_label"].items()} == dict.fromkeys(KINDS, keys)
    page = (directory / "run" / "report.html").read_text()
    assert '<h1 dir="auto">animal and tool: train.csv</h1>' in page and "average precision" in page
    assert "text-classification" in (directory / "run" / "README.md").read_text()


def test_predictions_name_the_labels(run):
    rows = [line.split("\t") for line in (run[0] / "run" / "predictions.tsv").read_text().splitlines()]
    assert rows[0] == ["index", "labels", "probability_animal", "probability_tool"]
    named = [row[1].split("|") if row[1] else [] for row in rows[1:]]
    assert named == [labels for _, labels in labelled_rows(40, 1)]
    shares = np.array([row[2:] for row in rows[1:]], float)
    assert [[kind for kind, share in zip(KINDS, row, strict=True) if share >= 0.5] for row in shares] == named


@pytest.mark.usefixtures("eagerly")
def test_the_model_and_its_export_answer_alike(run):
    directory, printed = run
    model = BertTextClassifier.from_preset(directory / "run" / "model")
    texts = ["w1, cat, saw", "w2, w3", "axe"]
    answers = model.answer(texts)
    assert [sorted(answer["labels"]) for answer in answers] == [["animal", "tool"], [], ["tool"]]
    for answer in answers:
        assert answer["scores"] == sorted((p for p in answer["probabilities"] if p >= 0.5), reverse=True)
        assert answer["num_labels"] == len(answer["labels"])
    served = tf.saved_model.load(str(directory / "served" / "1")).signatures
    outputs = {name: value.numpy() for name, value in served["serving_default"](text=tf.constant(texts)).items()}
    assert outputs["labels"].shape == outputs["scores"].shape == (3, 2) and outputs["num_labels"].tolist() == [2, 0, 1]
    assert outputs["labels"][1:].tolist() == [[b"", b""], [b"tool", b""]] and outputs["scores"][1].tolist() == [0, 0]
    right = [answer["probabilities"] for answer in answers]
    np.testing.assert_allclose(outputs["probabilities"], right, atol=1e-6)
    assert (
        "largest difference from the SavedModel" in printed[-1]
        and "any number of these labels: animal, tool." in printed[-1]
    )


@pytest.mark.usefixtures("eagerly")
def test_the_model_alone_scores_and_refuses_rows_of_one_label(run, tmp_path):
    dev = write_labelled(tmp_path / "dev.csv", labelled_rows(40, 2))
    line = [f"--dev_file={dev}", "--label_column=topics", "--text_column=text", f"--output_dir={run[0]}/run"]
    settings = flags.parse(Classify.Settings, [*line, "--do_eval", "--label_separator=|"])
    assert command.run_task(Classify(settings))["exact_match"] > 0.9
    dev = write_table(tmp_path / "dev.csv", [("text", "topics"), ("cat", "animal"), ("saw", "tool")])
    with pytest.raises(InputError, match="a model of several labels a row. Give --multi_label, and a file to match"):
        command.run_task(Classify(flags.parse(Classify.Settings, [*line, "--do_eval"])))


# === Tables ===

LISTS = [["price", "taste"], [], ["taste"], ["price"]]
TEXTS = ["cheap and sweet", "it was there", "sweet again", "cheap again"]


def as_json(name: str, values) -> str:
    rows = zip(TEXTS, values, strict=True)
    return "".join(json.dumps({"text": text, name: value}) + "\n" for text, value in rows)


def as_csv(*names: str, values) -> list:
    return [("text", *names), *((text, *row) for text, row in zip(TEXTS, values, strict=True))]


MARKS = [("1", "0"), ("0", "0"), ("1.0", "FALSE"), ("true", "1")]
FORMS = {
    "lists": (as_json("topics", LISTS), [], "--text_column=text --label_column=topics --multi_label"),
    "lists in CSV": (
        as_csv("topics", values=[(json.dumps(labels),) for labels in LISTS]),
        [],
        "--text_column=text --label_column=topics --multi_label",
    ),
    "lists of Python in CSV": (
        as_csv("topics", values=[(str(labels),) for labels in LISTS]),
        [],
        "--text_column=text --label_column=topics --multi_label",
    ),
    "null for none": (as_json("topics", [None, *LISTS[1:]]), ["--multi_label", "--label_column=topics"], None),
    **{
        f"separated by {mark}": (
            as_csv("topics", values=[(f"{mark} ".join(labels),) for labels in LISTS]),
            ["--multi_label", "--label_column=topics"],
            f"--text_column=text '--label_separator={mark}'",
        )
        for mark in "|;"
    },
    "one label at most": (
        as_csv("topics", values=[("price",), ("",), ("taste",), ("price",)]),
        ["--multi_label", "--label_column=topics"],
        "--text_column=text",
    ),
    "one label of two words at most": (
        as_csv("topics", values=[("good price",), ("",), ("taste",), ("good price",)]),
        ["--multi_label", "--label_column=topics"],
        "--text_column=text",
    ),
    "columns": (
        as_csv("sweet", "bitter", values=MARKS),
        ["--label_column=sweet,bitter"],
        "--text_column=text --multi_label",
    ),
    "columns of JSON": (
        "".join(
            json.dumps({"text": text, "sweet": a, "bitter": b}) + "\n"
            for text, a, b in zip(TEXTS, (True, False, 1, 1), (0, 0, 0, True), strict=True)
        ),
        ["--label_column=sweet,bitter"],
        "--text_column=text --multi_label",
    ),
}
EXPECTED = {
    "null for none": [(), (), ("taste",), ("price",)],
    "one label at most": [("price",), (), ("taste",), ("price",)],
    "one label of two words at most": [("good price",), (), ("taste",), ("good price",)],
    **dict.fromkeys(("columns", "columns of JSON"), [("sweet",), (), ("sweet",), ("sweet", "bitter")]),
}


def write_form(directory, content) -> str:
    if isinstance(content, str):
        (directory / "train.jsonl").write_text(content)
        return str(directory / "train.jsonl")
    return write_table(directory / "train.csv", content)


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_read_from_cells_lists_and_columns(form, tmp_path, capsys):
    content, more, said = FORMS[form]
    path = write_form(tmp_path, content)
    line = [f"--train_file={path}", "--do_train", "--preset=x", "--output_dir=out", *more]
    task = complete(Classify(flags.parse(Classify.Settings, line)))
    printed = capsys.readouterr().out
    assert said is None or f"Columns: {said} (of " in printed
    again = Classify(flags.parse(Classify.Settings, line))
    assert task.table_task.is_multi_label and (again.table_task.is_multi_label or "lists" in form)
    settings = {name: getattr(task.settings, name) for name in ("text_column", "label_column", "multi_label")}
    inputs = read_tables("train", train_file=path, label_separator=task.settings.label_separator, **settings)
    assert inputs.parts[0].rows.labels == EXPECTED.get(form, [tuple(labels) for labels in LISTS])
    names = {label for labels in inputs.parts[0].rows.labels for label in labels}
    order = ["sweet", "bitter"] if "columns" in form else sorted(names)  # As the columns, or else by name.
    assert inputs.spec.multi_label and inputs.spec.labels == order


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        (["a|b,c", "a", "b", "c"], ["--multi_label"], r"holds '\|' and ','.*--label_separator='\|'"),
        (["a|b", "a||b", "b", "a"], ["--label_separator=|"], "train.csv:3: column 'topics' is empty"),
        (["a|b", "a", "b", "c"], ["--multi_label", "--regression"], "--regression predicts a number, --multi_label"),
        (["a", "a", "", "a"], ["--multi_label"], "has only the label 'a'. Expected at least two"),
        (
            ["a|b", "a", "b", ""],
            ["--label_separator=|", "--few_labels=frozen"],
            "--few_labels is for single texts with one label each",
        ),
        (
            ["0", "2", "1", "0"],
            ["--label_column=topics,more"],
            "train.csv:3: column 'topics': expected 0 or 1, or false",
        ),
        (
            ['["a"]', '["b", a]', "[]", '["b"]'],
            [],
            r"""train.csv:3: column 'topics': expected a label, or a list of them in JSON, found '\["b", a\]'""",
        ),
        (["['a' 'b']", "['a']", "['b' 'c']", "['b' 'a']"], [], "train.csv:2: column 'topics': expected a label, or"),
        (["0", "1"] * 2, ["--label_column=topics,more", "--labels=a,b"], "the columns are the labels. Leave out"),
        (["0", "1"] * 2, ["--multi_label", "--task_name=sst2"], "--multi_label: sst2 has one label a row"),
    ],
)
def test_what_cannot_be_meant_is_refused(values, more, message, tmp_path):
    path = write_table(tmp_path / "train.csv", as_csv("topics", "more", values=[(value, "0") for value in values]))
    line = [f"--train_file={path}", "--label_column=topics", "--do_train", "--preset=x", "--output_dir=out", *more]
    with pytest.raises(InputError, match=message):
        command.run_task(complete(Classify(flags.parse(Classify.Settings, line))))


def test_a_file_of_another_separator_and_unknown_labels_are_bad_rows(tmp_path, capsys):
    train = write_labelled(tmp_path / "train.csv", labelled_rows(8, 0))
    dev = write_table(tmp_path / "dev.csv", [("text", "topics"), ("a", "animal"), ("b", "animal|plant"), ("c", "tool")])
    files = {"train_file": train, "dev_file": dev, "label_column": "topics", "bad_rows": "skip"}
    inputs = read_tables("train", "eval", **files, label_separator="|")
    assert inputs.parts[1].rows.labels == [("animal",), ("tool",)] and inputs.bad_rows.count == 1
    assert "dev.csv:3: unknown label 'plant'. Expected 'animal', 'tool'." in capsys.readouterr().err
    with pytest.raises(InputError, match=r"dev.csv:3: column 'topics': 'animal\|plant' may be several labels. Say so"):
        read_tables("eval", dev_file=dev, label_column="topics", multi_label=True, output_dir=str(tmp_path))


def test_rows_are_held_out_in_proportion_to_their_rarest_label(tmp_path):
    rows = [(f"w{number}", ["common", *["rare"] * (number % 10 == 0)]) for number in range(100)]
    train = write_labelled(tmp_path / "train.csv", rows)
    inputs = read_tables("train", "eval", train_file=train, label_column="topics", label_separator="|", dev_share=0.2)
    assert [sum("rare" in labels for labels in part.rows.labels) for part in inputs.parts] == [8, 2]


# === Checkpoints of others ===


@pytest.mark.oracle
@pytest.mark.usefixtures("eagerly")
def test_a_checkpoint_of_transformers_says_that_it_has_several_labels(tmp_path):
    """And the loss that is minimized is its own."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tasks.fine_tuning.objectives import SigmoidCrossEntropy

    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(
        vocab_size=len(toy_classifier.WORDS),
        **sizes,
        initializer_range=0.5,
        problem_type="multi_label_classification",
        id2label={0: "price", 1: "taste", 2: "service"},
    )
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(toy_classifier.WORDS) + "\n")
    model = BertTextClassifier.from_preset(tmp_path / "theirs", sequence_length=8)
    assert model.multi_label and model.labels == ["price", "taste", "service"]
    features = model.preprocessor(["cat, w1", "saw"])
    ids, mask = (torch.tensor(np.asarray(features[name])).long() for name in ("token_ids", "padding_mask"))
    labels = np.array([[1, 0, 1], [0, 0, 0]], np.float32)
    with torch.no_grad():
        right = theirs(ids, attention_mask=mask, labels=torch.tensor(labels))
    logits = model(features)
    np.testing.assert_allclose(logits, right.logits, atol=1e-5)
    targets, objective = {"labels": tf.constant(labels)}, SigmoidCrossEntropy()
    loss = objective.sums(logits, targets)["loss"] / objective.weights(features, targets)["loss"]
    assert float(loss) == pytest.approx(right.loss.item(), abs=1e-6)
    assert float(model.loss(labels, logits)) == pytest.approx(right.loss.item(), abs=1e-6)
    dev = write_table(tmp_path / "dev.csv", [("text", "topics"), ("cat", "price"), ("saw", "taste")])
    settings = {"preset": str(tmp_path / "theirs"), "dev_file": dev, "label_column": "topics", "do_eval": True}
    settings |= {"output_dir": str(tmp_path / "run"), "max_seq_length": 8}
    assert 0 <= classify(**settings, multi_label=True)["micro_f1"] <= 1
    with pytest.raises(InputError, match="was trained on several labels a row. Give --multi_label"):
        classify(**settings)
