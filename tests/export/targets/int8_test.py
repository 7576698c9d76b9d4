"""bert-export --int8: which products may be 8 bits, what that costs, and when it is refused."""

import dataclasses
import os

import numpy as np
import pytest
from toy_classifier import LABELS, VOCABULARY, assets
from toy_heads import HEADS, backbone, shaken
from toy_saved import save_graph

from export import saved_model
from export.base_path import INT8_FILE
from export.heads.classification import Classification
from export.heads.embeddings import Embeddings
from export.run import ExportSettings, export
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from export.targets import int8, onnx, real_text
from keras_bert import BertPreprocessor, BertTokenizer
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.models import BertTextClassifier
from tasks import held_out
from tasks.classify.task import ClassifySettings
from tasks.fine_tuning.model_files import save_model

_TEXTS = np.array([b"the cat sat on the mat", b"hello world", b"who was jim"], object)
_SPEC = {"task": "classification", "labels": LABELS, "sequence_length": 32, "num_texts": 1}


def _classifier(**changes) -> BertTextClassifier:
    sizes = {"hidden_dim": 64, "intermediate_dim": 128, "initializer_range": 0.1}
    return BertTextClassifier(backbone(**sizes, **changes), len(LABELS), compile=False)


def _head(**changes) -> Classification:
    return Classification(_classifier(**changes), BertPreprocessor(BertTokenizer(VOCABULARY), 32), LABELS)


@pytest.fixture(scope="module", name="head")
def _of_module():
    return _head()


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch):
    monkeypatch.setattr(real_text, "_ROUNDS", 1)
    monkeypatch.setattr(int8, "_MOST_BATCHES", 2)


def test_all_products_are_served_as_they_were_measured(head, tmp_path, quick_sessions):
    decision = int8.decide(head, None, 10.0)
    assert len(decision.products) == decision.num_products == 8
    assert decision.cost.num_texts == 32 and 0 < decision.cost.largest < 0.1
    first, second, third = decision.lines()
    assert first.startswith("8 of 8 products in 8 bits")
    assert "measured on paragraphs of docstrings: 32 real texts" in second and "names changed" in second
    assert third.startswith("time relative to float32 on this CPU") and "for 1 text," in third

    directory = save_graph(head, str(tmp_path / "1"), only="serving_default")
    with pytest.raises(InputError, match="bert-export --int8, or leave out --precision=int8"):
        ServedModel(directory, "mood", 1, ServerSettings(precision="int8"))
    write_json(os.path.join(directory, INT8_FILE), decision.content())
    trial = int8.Trial(head)
    (expected,) = trial.answers(trial.encoder(decision.products), [head.token_request(head.encode({"text": _TEXTS}))])
    served, exact = (
        ServedModel(directory, "mood", 1, ServerSettings(precision=precision)) for precision in ("int8", "float32")
    )
    probabilities, right = (
        model.run("serving_default", {"text": _TEXTS})["probabilities"] for model in (served, exact)
    )
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-6)
    assert 1e-6 < np.abs(probabilities - right).max() < 0.1


def test_a_product_that_changes_much_stays_float():
    head = Embeddings(shaken(backbone()), assets())
    layer = head.model.get_layer("transformer_layer_0")
    kernel, bias = (weight.numpy() for weight in layer.intermediate_dense.weights)
    bias[0] = 3e4  # One huge number sets the scale of all.
    layer.intermediate_dense.set_weights([kernel, bias])
    rows, offsets = (weight.numpy() for weight in layer.output_dense.weights)
    rows[0] = 0.0
    layer.output_dense.set_weights([rows, offsets])
    of_all = int8.decide(head, None, 1e6).cost
    decision = int8.decide(head, None, of_all.noise / 4)
    assert "layer_0/output" not in decision.products and len(decision.products) >= 4
    assert decision.cost.noise < of_all.noise / 2


def test_what_costs_too_much_is_refused_and_leaves_nothing(head, tmp_path, monkeypatch):
    model_dir = str(tmp_path / "run" / "model")
    save_model(model_dir, head.model, BertTokenizer(VOCABULARY), _SPEC)
    monkeypatch.setattr(int8, "excess", lambda cost, tolerance: 2.0)
    settings = ExportSettings(model_dir=model_dir, export_dir=str(tmp_path / "served"), int8=True, with_cc="off")
    with pytest.raises(InputError, match="--int8: 8 bits cost more than --int8_tolerance=0.5 allows.*leave out --int8"):
        export(settings)
    assert not (tmp_path / "served").exists()


def test_what_is_allowed():
    cost = real_text.Cost(100, 0.1, 3.0, 100, 1)
    assert int8.excess(cost, 0.5) == 1.0 and int8.excess(cost._replace(num_changed=2), 0.5) == 2.0
    scored = cost._replace(metric="accuracy", points=(90.0, 89.0), num_changed=0)
    assert int8.excess(scored, 0.5) == 2.0 and int8.excess(scored, 2.0) == 0.5
    assert "accuracy 89.00 (float32: 90.00)" in scored.described()
    assert int8.excess(cost._replace(num_named=0, num_changed=0), 0.5) == 3.0  # Vectors have no names.


def test_a_model_that_reads_from_left_to_right_is_refused():
    with pytest.raises(InputError, match="--int8: expected a model that reads in both directions. Leave out"):
        int8.decide(Classification(_classifier(attention="left_to_right"), assets(), LABELS), None, 0.5)


def test_a_tolerance_without_int8_is_refused(tmp_path):
    with pytest.raises(InputError, match="--int8_tolerance=1 is for --int8"):
        export(ExportSettings(model_dir="x", export_dir=str(tmp_path / "served"), int8_tolerance=1.0))


# === The rows that the training held out ===


def _run(root, head, **changes) -> str:
    dev = root / "dev.tsv"
    rows = [(text.decode(), LABELS[number % len(LABELS)]) for number, text in enumerate(_TEXTS)]
    dev.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    settings = ClassifySettings(
        output_dir=str(root), dev_file=str(dev), do_eval=True, text_column="text", label_column="label", preset="x"
    )
    write_json(str(root / "flags.json"), {**dataclasses.asdict(settings), "of_another_version": 1, **changes})
    save_model(str(root / "model"), head.model, BertTokenizer(VOCABULARY), _SPEC)
    return str(root / "model")


def test_the_metric_of_held_out_rows(head, tmp_path):
    rows = held_out.find(_run(tmp_path, head), head.preprocessor.tokenizer)
    assert rows.texts == [(text.decode(),) for text in _TEXTS] and rows.metric == "accuracy"
    labels = head.arrays([text.decode() for text in _TEXTS])["label"]
    right = [LABELS[number % len(LABELS)].encode() for number in range(len(_TEXTS))]
    accuracy = 100 * np.mean([label == expected for label, expected in zip(labels, right, strict=True)])
    assert rows.points(int8.Trial(head).model) == pytest.approx(accuracy)
    decision = int8.decide(head, rows, 100.0)
    assert decision.source == f"3 rows of {tmp_path / 'dev.tsv'}" and decision.cost.num_texts == 3
    assert decision.cost.metric == "accuracy" and decision.cost.points[0] == pytest.approx(accuracy)
    _, source = int8.ask(HEADS["classification of pairs"](), rows)  # Rows of one text are none of its requests.
    assert source == f"{decision.source} and paragraphs of docstrings"


@pytest.mark.parametrize("split", ["dev", "validation"])
def test_rows_that_moved_into_the_held_out_share(head, tmp_path, split):
    """Rows were added to the training file, so that the same share now takes some that the model was trained on."""
    path = tmp_path / "train.csv"
    rows = [f"{_TEXTS[n % 3].decode()} {n},{LABELS[n % len(LABELS)]}\n" for n in range(40)]
    path.write_text("text,label\n" + "".join(rows), encoding="utf-8")
    changes = {"train_file": str(path), "do_train": True, "dev_file": None, f"{split}_share": 0.25}
    directory = _run(tmp_path, head, **changes | {"do_eval": split == "dev"})
    before = held_out.find(directory, head.preprocessor.tokenizer)
    write_json(str(tmp_path / "metrics.json"), {f"{split}_rows_checksum": before.part.rows.checksum()})
    assert held_out.find(directory, head.preprocessor.tokenizer).texts == before.texts
    path.write_text("text,label\n" + "".join([*reversed(rows), *rows[:3]]), encoding="utf-8")
    with pytest.raises(InputError, match="train.csv: has changed since the training, .* Bring its old content back"):
        held_out.find(directory, head.preprocessor.tokenizer)


def test_a_run_without_held_out_rows(head, tmp_path):
    directory = _run(tmp_path, head, do_eval=False, do_predict=True)
    assert held_out.find(directory, head.preprocessor.tokenizer) is None
    os.remove(tmp_path / "flags.json")
    assert held_out.find(directory, head.preprocessor.tokenizer) is None


def test_an_export_says_and_keeps_what_was_measured(head, tmp_path, capsys, monkeypatch):
    (tmp_path / "run").mkdir()
    directory = _run(tmp_path / "run", head)
    os.remove(tmp_path / "run" / "dev.tsv")
    monkeypatch.setattr(saved_model.verify, "fresh_answers", lambda _, probes: [probe.outputs for probe in probes])
    base = str(tmp_path / "served")
    settings = ExportSettings(
        model_dir=directory, export_dir=base, int8=True, int8_tolerance=50.0, onnx=True, with_cc="off"
    )
    lines = export(settings).splitlines()
    assert "docstrings are used" in capsys.readouterr().out
    assert lines[lines.index("int8:") + 1].strip().startswith("8 of 8 products in 8 bits")
    assert len(read_json(os.path.join(base, "1", INT8_FILE))["products"]) == 8
    with open(os.path.join(base, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    assert "`bert-serve --precision=int8` computes products in 8 bits" in readme and "8 of 8 products" in readme
    path = os.path.join(base, "onnx", "1", "model.int8.onnx")
    requests = [head.token_request(head.encode({"text": _TEXTS}))]
    exact, coarse = (
        onnx.run(os.path.join(base, "onnx", "1", name), requests)[0]["probabilities"]
        for name in ("model.onnx", "model.int8.onnx")
    )
    assert os.path.getsize(path) < 0.8 * os.path.getsize(path.replace(".int8", ""))
    assert 1e-6 < np.abs(exact - coarse).max() < 0.1
