"""export_model: the directory alone answers as the Keras model, on every text; versions appear whole or not at all."""

import os
import platform
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_classifier import LABELS, SEQUENCE_LENGTH, VOCABULARY, assets, classifier
from toy_saved import answers_of

from export import saved_model
from export.heads.classification import Classification, LabelSet
from export.verification import verify
from keras_bert import BertPreprocessor, BertTokenizer
from keras_bert.answers import text_bounds
from keras_bert.errors import InputError
from keras_bert.models import BertTextClassifier


def _listing(directory: str) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.fixture(scope="module")
def head(saved) -> Classification:
    """A head of one text."""
    return saved("classification").head


@pytest.fixture(scope="module")
def exported(saved, tmp_path_factory):
    """A graph of one text; and an export of pairs, moved from where it was written, whose vocabulary's file is gone."""
    root = tmp_path_factory.mktemp("exported")
    vocabulary = root / "vocab.txt"
    vocabulary.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    preprocessor = BertPreprocessor(BertTokenizer(str(vocabulary)), SEQUENCE_LENGTH)
    model = classifier()
    asked = []

    def trusted(_, probes):  # The fresh process is asked the same once it is moved.
        asked.extend(probes)
        return [probe.outputs for probe in probes]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "fresh_answers", trusted)
        written = saved_model.export_model(
            model, preprocessor, str(root / "base"), labels=LABELS, num_texts=2, with_cc="off"
        )
    moved = str(root / "moved")
    shutil.move(written, moved)
    shutil.rmtree(root / "base")
    vocabulary.unlink()
    one_text = saved("classification")
    pairs = Classification(model, preprocessor, LABELS, num_texts=2)
    pairs.probes = lambda _: asked
    return {1: (one_text.head, one_text.directory), 2: (pairs, moved)}


@pytest.fixture(scope="module")
def loaded(exported):
    return {num_texts: tf.saved_model.load(directory) for num_texts, (_, directory) in exported.items()}


def test_a_moved_directory_answers_alike_in_a_fresh_process(exported):
    head, directory = exported[2]
    report = verify.verify(directory, head.probes(head.model), verify.stored_weight_bytes(directory))
    assert report.largest_difference <= 1e-5
    assert report.num_probes == 12


def test_probes_tell_models_apart(exported, loaded, probes, monkeypatch):
    """The comparison has teeth: another model's answers are far from the allowed difference."""
    head, directory = exported[1]
    weight_bytes = verify.stored_weight_bytes(directory)
    answers = answers_of(loaded[1])(directory, probes)
    monkeypatch.setattr(verify, "fresh_answers", lambda *_: answers)
    assert verify.verify(directory, probes, weight_bytes).largest_difference <= 1e-5
    with pytest.raises(verify.VerificationError, match="differs by"):
        verify.verify(directory, head.probes(classifier(seed=2)), weight_bytes)


def test_every_signature_gives_the_same_answer(loaded):
    signatures = loaded[1].signatures
    texts = tf.constant(["the cat sat on the mat", "a long text"])
    answer = signatures["serving_default"](text=texts)
    examples = [
        tf.train.Example(
            features=tf.train.Features(feature={"text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))})
        ).SerializeToString()
        for text in texts.numpy()
    ]
    classified = signatures["classify"](inputs=tf.constant(examples))
    np.testing.assert_allclose(classified["scores"], answer["probabilities"], atol=1e-6)
    assert [name.decode() for name in classified["classes"][1].numpy()] == LABELS
    best = np.argmax(answer["probabilities"], axis=1)
    assert [name.decode() for name in answer["label"].numpy()] == [LABELS[index] for index in best]
    np.testing.assert_array_equal(answer["score"], np.max(answer["probabilities"], axis=1))


def test_token_ids_are_masked_by_their_lengths_alone(loaded, exported):
    tokenizer = exported[1][0].preprocessor.tokenizer
    encoded = BertPreprocessor(tokenizer, SEQUENCE_LENGTH)(["the cat", "the cat sat on a mat"])
    lengths = tf.reduce_sum(encoded["padding_mask"], axis=1)
    ask = loaded[1].signatures["token_ids"]
    right = ask(token_ids=encoded["token_ids"], segment_ids=encoded["segment_ids"], lengths=lengths)
    # TensorFlow Serving's pad_variable_length_inputs fills with the first element, [CLS], instead of 0.
    mask = tf.sequence_mask(lengths, SEQUENCE_LENGTH)
    cls_filled = tf.where(mask, encoded["token_ids"], tokenizer.cls_token_id)
    filled = ask(token_ids=cls_filled, segment_ids=encoded["segment_ids"], lengths=lengths)
    np.testing.assert_allclose(filled["probabilities"], right["probabilities"], atol=1e-6)
    text = loaded[1].signatures["serving_default"](text=tf.constant(["the cat", "the cat sat on a mat"]))
    np.testing.assert_allclose(right["probabilities"], text["probabilities"], atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" \n\t",
        b"\xff\xfe\x80",
        b"\xe4\xb8",
        b"\x00",
        "\ud7ff\U0010ffff".encode(),
        b"word " * 200_000,
        b"x" * 2**20,
    ],
    ids=["empty", "blank", "invalid", "cut character", "nul", "edges", "1 MB of words", "1 MB word"],
)
def test_any_text_gets_a_well_formed_answer(loaded, text):
    for num_texts in (1, 2):
        columns = {"text": tf.constant([text, b"the cat"]), "text_pair": tf.constant([b"a mat", text])}
        names = list(columns)[:num_texts]
        answer = loaded[num_texts].signatures["serving_default"](**{name: columns[name] for name in names})
        assert answer["probabilities"].shape == (2, len(LABELS))
        np.testing.assert_allclose(np.sum(answer["probabilities"], axis=1), 1.0, atol=1e-5)
        assert {label.decode() for label in answer["label"].numpy()} <= set(LABELS)


def test_an_empty_batch_gets_an_empty_answer(loaded):
    nothing = tf.constant([], tf.string)
    answer = loaded[1].signatures["serving_default"](text=nothing)
    assert {name: tuple(value.shape) for name, value in answer.items()} == {
        "label": (0,),
        "score": (0,),
        "probabilities": (0, len(LABELS)),
    }
    assert loaded[2].signatures["serving_default"](text=nothing, text_pair=nothing)["label"].shape == (0,)
    classified = loaded[1].signatures["classify"](inputs=nothing)
    assert classified["classes"].shape == classified["scores"].shape == (0, len(LABELS))


def test_a_batch_answers_as_its_texts_do_one_by_one(loaded):
    ask = loaded[1].signatures["serving_default"]
    texts = ["the cat", "", "a long text " * 50, "sat on the mat"]
    together = ask(text=tf.constant(texts))["probabilities"]
    alone = tf.concat([ask(text=tf.constant([text]))["probabilities"] for text in texts], axis=0)
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_weights_are_stored_once(exported):
    head, directory = exported[2]
    weight_bytes = 4 * head.model.count_params()
    assert verify.stored_weight_bytes(directory) == weight_bytes
    variables = os.path.join(directory, "variables")
    assert sum(os.path.getsize(os.path.join(variables, name)) for name in os.listdir(variables)) < 1.5 * weight_bytes


def test_nothing_padded_and_nothing_foreign_in_the_graph(exported):
    for _, directory in exported.values():
        meta_graph = verify.read_meta_graph(directory)
        assert verify.graph_findings(meta_graph) == []
        assert set(meta_graph.signature_def) >= {"serving_default", "token_ids", "classify"}
    report = saved_model.read_report(directory)
    assert report.signatures == ["classify", "explain", "serving_default", "token_ids"]
    assert report.largest_difference <= 1e-5
    assert report.num_probes == 12


# === The model that is served ===


def test_the_served_backbone_computes_real_tokens_only(head, monkeypatch, tmp_path):
    served = []

    def interrupted(_, model, __):
        served.append(model)
        raise KeyboardInterrupt

    monkeypatch.setattr(saved_model, "write_graph", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved_model.export_head(head, str(tmp_path), with_cc="off")
    assert text_bounds.find_backbone(served[0]).layout == "unpadded"
    assert text_bounds.find_backbone(head.model).layout == "rectangular"


def test_a_backbone_is_found_by_its_class_not_by_its_name(head):
    renamed = keras.Model(
        inner := keras.Input([3]), keras.layers.Dense(2, name="BertBackbone")(inner), name="BertBackbone"
    )
    assert text_bounds.find_backbone(renamed) is None
    with pytest.raises(ValueError, match="must hold a BertBackbone, to be given the layout 'unpadded'"):
        saved_model.rebuild(renamed, layout="unpadded")
    assert saved_model.rebuild(renamed).count_params() == 8
    model = head.model
    nested = keras.Model(model.input, keras.layers.Dense(2)(model(model.input)))
    assert text_bounds.find_backbone(saved_model.rebuild(nested, layout="unpadded")).layout == "unpadded"


# === Versions ===


@pytest.fixture(scope="module")
def probes(head):
    return head.probes(head.model)


@pytest.fixture
def quick(monkeypatch, saved, head, probes):
    """Exports of one graph without the fresh process: these tests are about directories."""
    graph = saved("classification").directory

    def copied(_head, _model, directory):
        shutil.copytree(graph, directory, dirs_exist_ok=True)
        return verify.stored_weight_bytes(graph)

    monkeypatch.setattr(saved_model, "write_graph", copied)
    monkeypatch.setattr(head, "probes", lambda _: probes)
    monkeypatch.setattr(verify, "fresh_answers", lambda _, probes: [probe.outputs for probe in probes])
    return lambda base, **settings: saved_model.export_head(head, str(base), with_cc="off", **settings)


def test_versions_count_up_and_are_never_replaced(tmp_path, quick):
    base = tmp_path / "deep" / "base"
    assert quick(base) == str(base / "1")
    (base / "notes").mkdir()
    assert quick(base, version=7) == str(base / "7")
    assert quick(base) == str(base / "8")
    with pytest.raises(InputError, match="7: this version exists"):
        quick(base, version=7)
    assert _listing(base) == ["1", "7", "8", "notes"]


def test_a_version_taken_meanwhile_is_not_replaced(tmp_path, quick, monkeypatch):
    def other_export_wins(directory, *_):
        os.makedirs(tmp_path / "1" / "theirs")
        return [probe.outputs for probe in _[0]]

    monkeypatch.setattr(verify, "fresh_answers", other_export_wins)
    assert quick(tmp_path) == str(tmp_path / "2")
    assert _listing(tmp_path / "1") == ["theirs"]


def test_leading_zeros_count(tmp_path, quick):
    (tmp_path / "0007").mkdir()
    with pytest.raises(InputError, match="0007: this version exists"):
        quick(tmp_path, version=7)
    assert quick(tmp_path) == str(tmp_path / "8")


def test_no_version_after_the_last(tmp_path, quick):
    (tmp_path / str(2**63 - 1)).mkdir()
    with pytest.raises(InputError, match="is the last version that there can be"):
        quick(tmp_path)
    assert quick(tmp_path, version=5) == str(tmp_path / "5")


def test_what_killed_exports_left_is_removed(tmp_path, quick):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = f".version.partial-{re.sub('[^a-zA-Z0-9_-]', '-', platform.node())}-"
    kept = {f"{here}{os.getppid()}", ".version.partial-another-machine-1", here, f"{here}notes", "notes"}
    for name in (*kept, f"{here}{ended.pid}", f"{here}{2**40}", f"{here}{os.getpid()}"):
        (tmp_path / name / "variables").mkdir(parents=True)
    quick(tmp_path)
    assert _listing(tmp_path) == sorted([*kept, "1"])


def test_a_failing_verification_publishes_nothing(tmp_path, quick, monkeypatch):
    quick(tmp_path)

    def wrong_answers(_, probes):
        return [
            {name: value + 1e-4 if value.dtype.kind == "f" else value for name, value in probe.outputs.items()}
            for probe in probes
        ]

    monkeypatch.setattr(verify, "fresh_answers", wrong_answers)
    with pytest.raises(verify.VerificationError, match=r"nothing was published: probe 0 .*differs by 1\.0"):
        quick(tmp_path)
    assert _listing(tmp_path) == ["1"]


def test_an_interrupted_export_leaves_nothing(tmp_path, quick, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "fresh_answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path)
    assert _listing(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": ["a", "b"]}, "2 labels, 3 outputs"),
        ({"labels": ["a", "b", "a"]}, "at least two different names"),
        ({"num_texts": 3}, "`num_texts` must be 1 or 2. Received: num_texts=3"),
        ({"version": -1}, "must not be negative"),
        ({"task": "translation"}, "`task` must be one of classification, multi_label_classification, regression"),
        ({"version": 2**63}, "must not be negative, and fit an int64"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path, head, settings, message):
    with pytest.raises(ValueError, match=message):
        saved_model.export_model(head.model, assets(), str(tmp_path / "x"), **{"labels": LABELS} | settings)
    assert not os.path.exists(tmp_path / "x")


def test_a_base_path_that_cannot_be_written(tmp_path, quick):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be created"):
        quick(tmp_path / "file")


def test_python_s_export_takes_over_what_the_model_knows(monkeypatch):
    heads, preprocessor = [], assets()
    monkeypatch.setattr(saved_model, "export_head", lambda head, *_: heads.append(head))
    backbone = classifier().backbone
    model = BertTextClassifier(backbone, labels=LABELS)
    model.answer_settings = {"num_texts": 2, "thresholds": [0.9] * len(LABELS), "temperature": 2.0}
    saved_model.export_model(model, preprocessor, "served")
    saved_model.export_model(model, preprocessor, "served", num_texts=1, labels=LABELS[::-1])
    saved_model.export_model(BertTextClassifier(backbone, labels=LABELS, multi_label=True), preprocessor, "served")
    assert [type(head) for head in heads] == [Classification, Classification, LabelSet]
    assert [head.labels for head in heads] == [LABELS, LABELS[::-1], LABELS]
    assert [head.num_texts for head in heads] == [2, 1, 1] and heads[0].temperature == 2.0
    np.testing.assert_allclose(heads[0].thresholds, 0.9)
    with pytest.raises(ValueError, match="`labels` must name the 3 classes"):
        saved_model.export_model(BertTextClassifier(backbone, 3), preprocessor, "served")


def _quantize_a_layer(model):
    # Quantizing the whole model takes 20 s, since Keras collects garbage for each kernel.
    model.backbone.get_layer("pooled_dense").quantize("int8")


@pytest.mark.parametrize("change", [lambda model: model.backbone.enable_lora(2), _quantize_a_layer])
def test_what_save_to_preset_merges_is_not_exported_as_it_is(change, tmp_path):
    model = classifier()
    change(BertTextClassifier(model.backbone, 2))
    with pytest.raises(InputError, match="LoRA's factors or quantized weights .* `save_to_preset`"):
        saved_model.export_head(Classification(model, assets(), labels=LABELS), str(tmp_path))
