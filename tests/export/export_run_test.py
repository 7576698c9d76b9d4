"""bert-export: what it takes, what it says, which head a directory gets, and which flags are whose."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import toy_choices
import toy_heads
import toy_hugging_face
from repository import ROOT
from toy_classifier import LABELS, SEQUENCE_LENGTH, VOCABULARY, classifier

from export import run as export_run
from export import saved_model
from export import targets as export_targets
from export.heads import loading
from export.heads.classification import Classification
from export.heads.loading import load_head
from export.run import ExportSettings
from export.verification import cc_check, verify
from keras_bert import BertPreprocessor, BertTokenizer
from keras_bert.errors import InputError
from keras_bert.models import BertMultipleChoice, BertSpanLabeler, BertTextClassifier, BertTokenClassifier
from tasks import flags
from tasks.fine_tuning.model_files import save_model


@pytest.fixture(scope="module", name="models")
def _models(tmp_path_factory):
    """Directory by task."""
    root, tokenizer = tmp_path_factory.mktemp("models"), BertTokenizer(VOCABULARY)
    paths = {name: str(root / name) for name in ("classification", "regression", "multiple_choice")}
    task = {"task": "classification", "labels": LABELS, "sequence_length": SEQUENCE_LENGTH, "num_texts": 1}
    save_model(paths["classification"], classifier(), tokenizer, task)
    regressor = toy_heads.HEADS["regression of pairs"]().model
    task |= {"labels": [], "num_texts": 2, "is_regression": True}
    save_model(paths["regression"], regressor, tokenizer, task)
    choices = BertMultipleChoice(toy_heads.backbone(), 4, compile=False)
    task = {"task": "multiple_choice", "sequence_length": SEQUENCE_LENGTH, "num_choices": 4}
    save_model(paths["multiple_choice"], choices, tokenizer, task)
    paths["fill_mask"] = toy_heads.save_preset(root / "fill_mask", toy_heads.pretrainer())
    return paths


@pytest.fixture(name="quick")
def _quick(monkeypatch):
    """No fresh process: what it does is tested elsewhere."""
    monkeypatch.setattr(verify, "fresh_answers", lambda _, probes: [probe.outputs for probe in probes])


@pytest.fixture(name="copy_graph")
def _copy_graph(monkeypatch, saved):
    """A function: exports take the graph of a head's name, which is the same, and need not trace it."""

    def copy_graph(name):
        graph = saved(name).directory

        def copied(_head, _model, directory):
            shutil.copytree(graph, directory, dirs_exist_ok=True)
            return verify.stored_weight_bytes(graph)

        monkeypatch.setattr(saved_model, "write_graph", copied)

    return copy_graph


# === From a directory to its head ===


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [("classification", "labels", LABELS), ("regression", "num_texts", 2), ("multiple_choice", "num_choices", 4)],
)
def test_a_trained_model_names_its_task(models, task, name, value):
    head = load_head(models[task])
    assert type(head) is loading.HEADS[task]
    assert head.preprocessor.sequence_length == SEQUENCE_LENGTH
    assert getattr(head, name) == value


def test_another_sequence_length(models):
    head = load_head(models["classification"], sequence_length=20, top_k=None)
    assert head.preprocessor.sequence_length == 20


def test_a_heads_task_is_the_name_in_task_json():
    assert {name: head.task for name, head in loading.HEADS.items()} == {name: name for name in loading.HEADS}
    assert set(loading.HEADS) == {
        *("classification", "regression", "multiple_choice", "token_classification", "token_regression"),
        *("question_answering", "fill_mask", "embeddings", "sentence_embedding", "search"),
        "multi_label_classification",
    }


def test_a_preset_does_what_it_is_told(models):
    assert load_head(models["fill_mask"], "fill_mask", top_k=7).top_k == 7
    assert load_head(models["fill_mask"], "embeddings", layer=1).model.num_layers == 1
    assert load_head(models["classification"], "embeddings").task == "embeddings"


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("classification", {"top_k": 3}, "--top_k is not for the task classification. Its own flags: --max_tokens. "),
        ("multiple_choice", {"layer": 1}, "--layer is not for the task multiple_choice"),
        ("classification", {"task": "fill_mask"}, "classification"),
        (
            "fill_mask",
            {},
            "holds no trained model. .*any other preset is served with --task=fill_mask or --task=embeddings or",
        ),
        ("fill_mask", {"task": "embeddings", "top_k": 2}, "--top_k is not .* embeddings. Its own flags: --layer. "),
        (
            "classification",
            {"sequence_length": 49},
            "sequence length of 49: the model has positions for 48 .*--max_seq",
        ),
        ("classification", {"sequence_length": 2}, "--max_seq_length=2: `sequence_length` must be at least 3"),
    ],
)
def test_what_a_head_has_not(models, task, settings, message):
    with pytest.raises(InputError, match=message):
        load_head(models[task], **settings)


def test_a_task_without_a_served_form(tmp_path):
    (tmp_path / "task.json").write_text(json.dumps({"task": "feature_tagging"}))
    (tmp_path / "model.keras").touch()
    with pytest.raises(InputError, match="'feature_tagging' has no served form. Expected one of: classification"):
        load_head(str(tmp_path))


def test_a_preset_of_swag_is_served_as_any(tmp_path):
    preset = toy_choices.save_preset(tmp_path / "preset")
    assert load_head(preset, "embeddings").preprocessor.sequence_length == 32


def test_a_model_of_choices_whose_number_is_unknown(tmp_path):
    preset = toy_heads.save_preset(tmp_path, BertMultipleChoice(toy_heads.backbone(), 4, compile=False))
    (tmp_path / "task.json").unlink()
    with pytest.raises(InputError, match="does not say how many choices there are. Pass num_choices to"):
        load_head(preset)


@pytest.mark.parametrize(
    ("model_class", "settings", "task", "given"),
    [
        (BertTextClassifier, {"labels": LABELS}, "classification", {}),
        (BertTextClassifier, {"num_classes": 2}, "classification", {"temperature": 2.0}),
        (BertTextClassifier, {"num_classes": 1}, "regression", {"num_texts": 2}),
        (BertTextClassifier, {"labels": LABELS, "multi_label": True}, "multi_label_classification", {}),
        (BertTokenClassifier, {"labels": ["O", "B-x", "I-x"]}, "token_classification", {"doc_stride": 5}),
        (BertTokenClassifier, {"num_classes": 1}, "token_regression", {}),
        (BertSpanLabeler, {}, "question_answering", {}),
        (BertMultipleChoice, {"num_choices": 3}, "multiple_choice", {}),
    ],
)
def test_what_a_keras_model_saves_has_the_head_of_its_answers(tmp_path, eagerly, model_class, settings, task, given):
    preprocessor = model_class.preprocessor_cls(BertTokenizer(VOCABULARY), SEQUENCE_LENGTH)
    model = model_class(toy_heads.backbone(num_layers=1), **settings, preprocessor=preprocessor, compile=False)
    model.answer_settings = given
    model.save_to_preset(tmp_path / "mine")
    head = load_head(str(tmp_path / "mine"))
    assert head.task == task and head.preprocessor.sequence_length == SEQUENCE_LENGTH
    answers = model._answers(**({"num_texts": 1, **given} if model_class is BertTextClassifier else {}))
    assert vars(head).keys() >= {*given} and all(getattr(head, name) == value for name, value in given.items())
    for name in ("labels", "doc_stride", "max_query_length", "choice", "text_inputs", "num_texts"):
        assert getattr(head, name, None) == getattr(answers, name, None), name
    for own, saved in zip(head.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, saved)


def test_a_checkpoint_of_transformers_has_the_head_of_its_model(tmp_path):
    names = dict(enumerate(["low", "middle", "high"]))
    model = toy_hugging_face.random_model("BertForSequenceClassification", id2label=names, vocab_size=len(VOCABULARY))
    model.save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match="has no tokenizer. Save the model with its preprocessor, or add its vocab.txt"
    ):
        load_head(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    head = load_head(str(tmp_path))
    assert (head.task, head.labels) == ("classification", [*names.values()])


# === The command ===


def _export(model_dir, export_dir: str, **settings) -> str:
    return export_run.export(ExportSettings(model_dir=model_dir, export_dir=export_dir, with_cc="off", **settings))


def test_bert_export_tells_what_it_did_and_how_to_go_on(models, tmp_path, quick, copy_graph):
    copy_graph("classification")
    base = str(tmp_path / "mood")
    text = _export(models["classification"], base)
    for part in (f"exported: {base}/1", "serving_default", "docker run", "bert-serve --model_name=mood", "curl -d"):
        assert part in text
    readme = (tmp_path / "mood" / "README.md").read_text(encoding="utf-8")
    for part in (*LABELS, "/v1/models/mood:predict", f"source={base},target=/models/mood", "not run when"):
        assert part in readme
    assert sorted(os.listdir(base)) == ["1", "README.md"]
    extras = {"verification.json", "model.json", "tf_serving_warmup_requests"}
    assert extras <= set(os.listdir(os.path.join(base, "1", "assets.extra")))
    assert "batching_params.pbtxt" in os.listdir(os.path.join(base, "1"))
    with pytest.raises(InputError, match="this version exists"):
        _export(models["classification"], base, version=1)


def test_bert_export_of_a_preset_to_a_name_that_needs_quoting(models, tmp_path, quick, copy_graph):
    copy_graph("fill_mask")
    text = _export(None, str(tmp_path / "größe#1"), preset=models["fill_mask"], task="fill_mask", top_k=2)
    assert "[MASK]" in text
    assert "http://127.0.0.1:8501/v1/models/gr%C3%B6%C3%9Fe%231:predict" in text


def test_a_preset_with_a_readme_that_is_no_card(models, tmp_path, quick):
    """REVIEW2.md, A9: the command ended in a traceback when the version was published already."""
    preset = shutil.copytree(models["fill_mask"], tmp_path / "preset")
    (preset / "README.md").write_text("---\n# My model\nHello\n")
    words = [f"--preset={preset}", "--task=embeddings", f"--export_dir={tmp_path}/served", "--with_cc=off"]
    export_run.export(flags.parse(ExportSettings, words))
    assert sorted(os.listdir(tmp_path / "served")) == ["1", "README.md"]
    assert "Hello" not in (tmp_path / "served" / "README.md").read_text()


def test_a_readme_that_cannot_be_read_is_refused_before_a_version_is_published(models, tmp_path, quick):
    preset = shutil.copytree(models["fill_mask"], tmp_path / "preset")
    (preset / "README.md").write_bytes(b"---\nname: \xff\n---\n")
    with pytest.raises(InputError, match="README.md:2: not valid UTF-8"):
        _export(None, str(tmp_path / "served"), preset=str(preset), task="embeddings")
    assert not os.path.exists(tmp_path / "served")


def test_a_model_that_keras_trained_is_served_as_it_answers(tmp_path):
    preprocessor = BertPreprocessor(BertTokenizer(VOCABULARY), SEQUENCE_LENGTH)
    model = BertTextClassifier(toy_heads.backbone(num_layers=1), labels=LABELS, preprocessor=preprocessor)
    texts = ["a b c", "", "b " * 100]
    model.run_eagerly = True  # A single step.
    model.fit(texts, [LABELS[0], LABELS[1], LABELS[0]], verbose=0)
    model.save_to_preset(tmp_path / "mine")
    words = [f"--preset={tmp_path}/mine", f"--export_dir={tmp_path}/served", "--with_cc=off"]
    assert "Tells texts apart" in export_run.export(flags.parse(ExportSettings, words))
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"](text=tf.constant(texts))
    for row, right in enumerate(model.answer(texts)):
        assert served["label"][row].numpy().decode() == right["label"]
        np.testing.assert_allclose(served["probabilities"][row], right["probabilities"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "part"), [("multiple_choice", '"choices"'), ("regression", '"text_pair"')])
def test_bert_export_of_other_tasks(models, tmp_path, quick, task, part):
    assert part in _export(models[task], str(tmp_path / "model"), max_seq_length=20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"export_dir": "{}/served", "version": 1}, "served/1: this version exists"),
        ({"export_dir": "{}/served/1/file/new"}, "served/1/file: cannot be created"),
        ({"export_dir": "{}/new", "with_cc": "on"}, "needs Linux and g"),
    ],
)
def test_a_target_is_refused_before_the_model_is_loaded(models, tmp_path, monkeypatch, settings, message):
    """A search embeds its passages as it is loaded."""
    (tmp_path / "served" / "1").mkdir(parents=True)
    (tmp_path / "served" / "1" / "file").touch()
    monkeypatch.setattr(loading, "load_head", None)
    monkeypatch.setattr(cc_check, "find_compiler", lambda: None)
    settings = settings | {"export_dir": settings["export_dir"].format(tmp_path)}
    with pytest.raises(InputError, match=message):
        export_run.export(ExportSettings(model_dir=models["classification"], **settings))
    assert os.listdir(tmp_path) == ["served"]


def test_bfloat16_from_left_to_right_is_refused_before_anything_is_measured(models, tmp_path, monkeypatch):
    model = BertTextClassifier(toy_heads.backbone(attention="left_to_right"), len(LABELS), compile=False)
    head = Classification(model, BertPreprocessor(BertTokenizer(VOCABULARY), SEQUENCE_LENGTH), LABELS)
    monkeypatch.setattr(loading, "load_head", lambda *_, **__: head)
    monkeypatch.setattr(export_run, "_decide", None)
    with pytest.raises(InputError, match="--bfloat16: expected a model that reads in both directions"):
        _export(models["classification"], str(tmp_path / "served"), bfloat16=True)
    assert os.listdir(tmp_path) == []


def test_a_layer_without_onnx_is_refused_before_anything_is_published(tmp_path):
    model = BertTextClassifier(
        toy_heads.backbone(),
        labels=LABELS,
        preprocessor=BertPreprocessor(BertTokenizer(VOCABULARY), SEQUENCE_LENGTH),
        activation="softplus",
        compile=False,
    )
    model.save_to_preset(str(tmp_path / "preset"))
    settings = ExportSettings(preset=str(tmp_path / "preset"), export_dir=str(tmp_path / "served"), onnx=True)
    message = "The layer 'classification' cannot be written as ONNX: .*Received: floats, softplus. Leave out --onnx."
    with pytest.raises(InputError, match=message):
        export_run.export(settings)
    assert os.listdir(tmp_path) == ["preset"]


@pytest.mark.parametrize("name", ["a b", "a:b"])
def test_a_path_that_is_no_name_for_a_model(tmp_path, name):
    with pytest.raises(InputError, match="cannot be a model's name.*--export_dir"):
        _export(str(tmp_path / "nowhere"), str(tmp_path / name))
    assert not os.path.exists(tmp_path / name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_dir": "{}/nowhere"}, "--model_dir=.*/nowhere: no such directory. Expected the folder model in the"),
        ({"model_dir": "{}"}, ": holds no trained model. Expected task.json and model.keras, .*, or a preset.$"),
        ({"model_dir": None, "preset": "{}"}, ": holds no trained model. Expected task.json and model.keras"),
        ({"model_dir": None}, "Name one model: --model_dir, .* or --preset. Received neither."),
        ({"model_dir": "a", "preset": "b"}, "Received both."),
        ({"model_dir": None, "preset": "{}/nowhere"}, "nowhere"),
    ],
)
def test_models_that_are_not_named_rightly(tmp_path, monkeypatch, settings, message):
    settings = {name: value and value.format(tmp_path) for name, value in settings.items()}
    monkeypatch.setattr(loading, "load_head", None)  # TensorFlow, which that needs, takes seconds to import.
    with pytest.raises(InputError, match=message):
        _export(export_dir=str(tmp_path / "base"), **settings)
    assert os.listdir(tmp_path) == []


def test_the_output_directory_in_place_of_its_model_is_named(tmp_path):
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "task.json").write_text('{"task": "classification"}')
    with pytest.raises(InputError, match="/run: holds no trained model. .* Give --model_dir=.*/run/model.$"):
        _export(str(tmp_path / "run"), str(tmp_path / "served"))


def test_a_failed_verification_is_one_line(models, tmp_path, monkeypatch):
    def fails(*_):
        raise verify.VerificationError("verification failed, nothing was published: probe 0 differs")

    monkeypatch.setattr(saved_model, "write_graph", fails)
    with pytest.raises(InputError, match="verification failed, nothing was published"):
        _export(models["classification"], str(tmp_path / "base"))
    assert os.listdir(tmp_path / "base") == []


def test_flags_and_code_name_the_same():
    rules = {field.name: field.metadata["rule"] for field in dataclasses.fields(ExportSettings)}
    assert rules["task"].choices == loading.PRESET_TASKS
    assert rules["with_cc"].choices == verify.WITH_CC
    assert set(export_targets.TARGETS) <= set(rules)
    assert {setting for head in loading.HEADS.values() for setting in head.settings} <= set(rules)


def test_the_flags_bring_no_tensorflow():
    code = "import sys, export.run; print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
