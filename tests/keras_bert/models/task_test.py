"""`from_preset`, `save_to_preset` and `.keras` files of the task models, in every format that can be written."""

import dataclasses
import functools
import logging

import keras
import keras_nlp
import numpy as np
import pytest
import toy_tasks
from toy_checkpoints import checkpoint_of

import keras_bert
from keras_bert import formats
from keras_bert.errors import InputError
from keras_bert.formats import hugging_face
from keras_bert.presets import weights

INPUTS = {
    "token_ids": np.array([[2, 7, 9, 3], [2, 8, 3, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 1, 1], [0, 0, 0, 0]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], "int32"),
}
CHOICES = {name: np.stack([value] * 3, axis=1) for name, value in INPUTS.items()}
MASKED = {**INPUTS, "mask_positions": np.array([[1, 2], [1, 0]], "int32")}
LABELS = ["no", "maybe", "yes"]
# Class, arguments, inputs.
TASKS = {
    "classifier": (keras_bert.BertTextClassifier, {"labels": LABELS, "dropout": 0.4}, INPUTS),
    "regressor": (keras_bert.BertTextClassifier, {"num_classes": 1}, INPUTS),
    "tagger": (keras_bert.BertTokenClassifier, {"labels": LABELS}, INPUTS),
    "answerer": (keras_bert.BertSpanLabeler, {}, INPUTS),
    "chooser": (keras_bert.BertMultipleChoice, {"num_choices": 3}, CHOICES),
    "embedder": (keras_bert.BertTextEmbedder, {"pooling": "max", "embedding_dim": 5, "normalize": False}, INPUTS),
    "masked_lm": (keras_bert.BertMaskedLM, {"masked_lm_activation": "relu"}, MASKED),
    "pretrainer": (keras_bert.BertPretrainer, {"use_next_sentence": False}, MASKED),
}


@functools.cache
def make(kind):
    """The model of a kind, inputs for it, and what it makes of them."""
    cls, arguments, inputs = TASKS[kind]
    preprocessor = cls.preprocessor_cls(toy_tasks.tokenizer(), sequence_length=9)
    model = cls(toy_tasks.backbone(), **arguments, preprocessor=preprocessor, compile=False)
    return toy_tasks.shaken(model), inputs, model(inputs)


def check(model, inputs, outputs):
    for ours, theirs in zip(keras.tree.flatten(model(inputs)), keras.tree.flatten(outputs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.slow(keep=["classifier", "chooser", "pretrainer"])
@pytest.mark.parametrize("kind", TASKS)
def test_every_model_comes_back_from_its_files(tmp_path, kind, caplog):
    model, inputs, outputs = make(kind)
    cls, arguments, _ = TASKS[kind]
    model.save(tmp_path / "m.keras")
    model.save_to_preset(str(tmp_path / "p"))
    with caplog.at_level(logging.WARNING, logger="absl"):
        again = (
            keras.saving.load_model(tmp_path / "m.keras"),
            cls.from_preset(tmp_path / "m.keras"),
            cls.from_preset(tmp_path / "p"),
            keras_nlp.models.Task.from_preset.__func__(cls, str(tmp_path / "p")),
        )
    assert caplog.text == ""
    for other in again:
        assert type(other) is cls
        check(other, inputs, outputs)
        assert {name: getattr(other, name) for name in arguments} == arguments
        assert type(other.preprocessor) is cls.preprocessor_cls and other.preprocessor.sequence_length == 9
        assert other.preprocessor.tokenizer.get_vocabulary() == toy_tasks.VOCABULARY
    assert [other.compiled for other in again] == [False, True, True, False]


KINDS = ("classifier", "regressor", "answerer", "masked_lm", "tagger", "chooser")


@pytest.mark.slow(
    keep=[
        "keras_preset-answerer",
        "keras_preset-masked_lm",
        *(f"hugging_face-{kind}" for kind in KINDS if kind != "regressor"),
        "google-classifier",
        "google-masked_lm",
        "keras_hub-classifier",
    ]
)
@pytest.mark.parametrize(
    "name, kind",
    [
        *(("keras_preset", kind) for kind in KINDS),
        *(("hugging_face", kind) for kind in KINDS),
        *(("google", kind) for kind in KINDS[:4]),  # It has no place for the others.
        ("keras_hub", "classifier"),
    ],
)
def test_heads_of_every_format_are_found(tmp_path, name, kind):
    model, inputs, outputs = make(kind)
    cls = TASKS[kind][0]
    if kind == "masked_lm":  # Other formats have no place for an activation of its own.
        model = toy_tasks.shaken(cls(toy_tasks.backbone(), compile=False))
        outputs = model(inputs)
    vocabulary = {"vocabulary": toy_tasks.VOCABULARY, "lowercase": True}
    labels = LABELS if kind in ("classifier", "tagger") else None
    formats.modules()[name].write(str(tmp_path / "p"), checkpoint_of(model, labels=labels), vocabulary)
    again = cls.from_preset(str(tmp_path / "p"), **({"num_choices": 3} if kind == "chooser" else {}))
    check(again, inputs, outputs)
    # KerasHub's classifier has a place for the length; other formats of others have none.
    length = 9 if (name, kind) == ("keras_hub", "classifier") else 24
    assert again.preprocessor.sequence_length == length
    assert again.labels == (labels if name in ("keras_preset", "hugging_face") else None)


def test_a_classifier_of_several_labels_is_one_without_its_weights_too(tmp_path):
    model, *_ = make("classifier")
    checkpoint = dataclasses.replace(checkpoint_of(model, labels=LABELS), settings={"task": {"multi_label": True}})
    hugging_face.write(str(tmp_path / "p"), checkpoint, None)
    for settings in ({}, {"load_weights": False, "labels": LABELS}):
        assert keras_bert.BertTextClassifier.from_preset(str(tmp_path / "p"), **settings).multi_label


# === Arguments of from_preset ===


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    """A fine-tuned classifier."""
    directory = str(tmp_path_factory.mktemp("preset"))
    make("classifier")[0].save_to_preset(directory)
    return directory


def test_settings_of_the_backbone_and_of_the_preprocessor_are_taken(preset):
    model = keras_bert.BertTextClassifier.from_preset(
        preset,
        dtype="mixed_bfloat16",
        sequence_length=5,
        lowercase=False,
        layout="unpadded",
        dropout=0.2,
        compile=False,
    )
    assert not model.preprocessor.tokenizer.lowercase  # The cure that a contradictory preset is given.
    assert (model.backbone.layout, model.backbone.dropout, model.preprocessor.sequence_length) == ("unpadded", 0.2, 5)
    assert model.get_layer("classifier_dropout").rate == 0.2 and not model.compiled
    assert model.backbone.dtype_policy.name == "mixed_bfloat16" and model.output.dtype == "float32"
    frozen = keras_bert.BertTextClassifier.from_preset(preset, preprocessor=None, trainable=False)
    assert frozen.preprocessor is None and len(frozen.trainable_variables) == 2  # those of the head
    with pytest.raises(InputError, match="has positions for 24 tokens. Received: sequence_length=25"):
        keras_bert.BertTextClassifier.from_preset(preset, sequence_length=25)
    with pytest.raises(InputError, match="unknown setting num_classe. Expected some of"):
        keras_bert.BertTextClassifier.from_preset(preset, num_classe=2)


def test_a_preset_keeps_the_settings_of_its_preprocessor(tmp_path):
    settings = {"pad_to_longest": True, "mask_selection_rate": 0.5, "random_token_rate": 0.0}
    preprocessor = keras_bert.BertMaskedLMPreprocessor(toy_tasks.tokenizer(), 12, **settings)
    keras_bert.BertMaskedLM(toy_tasks.backbone(), preprocessor).save_to_preset(tmp_path)
    for again in (
        keras_bert.BertMaskedLM.from_preset(tmp_path, sequence_length=8),
        keras_bert.BertMaskedLM.from_preset(tmp_path),
    ):
        assert {name: getattr(again.preprocessor, name) for name in settings} == settings
    assert again.preprocessor.sequence_length == 12
    assert not keras_bert.BertSpanLabeler.from_preset(tmp_path).preprocessor.pad_to_longest  # Another class saved it.


def test_the_architecture_alone(preset):
    model = keras_bert.BertTextClassifier.from_preset(preset, load_weights=False)
    assert (model.labels, model.dropout) == (LABELS, 0.4)
    trained = keras_bert.BertTextClassifier.from_preset(preset)
    kernels = [classifier.get_layer("classification").kernel.numpy() for classifier in (model, trained)]
    assert np.abs(kernels[0]).max() < 1.0 and np.abs(kernels[0] - kernels[1]).max() > 0.1


@pytest.mark.parametrize(
    ("positions", "given", "expected"), [(6, None, 6), (40, None, 9), (40, 30, 30)], ids=["fewer", "saved", "more"]
)
def test_the_preprocessor_of_the_architecture_alone_has_its_positions(preset, positions, given, expected):
    """The preset was saved with 24 positions and sequences of 9 tokens."""
    model = keras_bert.BertTextClassifier.from_preset(
        preset, load_weights=False, max_sequence_length=positions, sequence_length=given
    )
    assert (model.backbone.max_sequence_length, model.preprocessor.sequence_length) == (positions, expected)


def test_other_classes_start_a_new_head(preset, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        model = keras_bert.BertTextClassifier.from_preset(preset, labels=["one", "other"])
    assert model.num_classes == 2 and model.output_shape == (None, 2)
    assert "shapes of its classification head are [(16, 3), (3,)], those of this task [(16, 2), (2,)]." in caplog.text
    check(model.backbone, INPUTS, keras_bert.BertBackbone.from_preset(preset)(INPUTS))


@pytest.mark.parametrize("load_weights", [True, False])
def test_the_activation_of_the_saved_classes_is_only_theirs(preset, tmp_path, load_weights):
    """Softmax over one class would be 1.0 for every text."""
    labels = ["no", "maybe", "yes"]
    backbone = keras_bert.BertTextClassifier.from_preset(preset).backbone
    keras_bert.BertTextClassifier(backbone, labels=labels, activation="softmax").save_to_preset(str(tmp_path))
    for given, activation in (
        ({"num_classes": 1}, None),
        ({"labels": ["one", "other"]}, None),
        ({"num_classes": 1, "activation": "sigmoid"}, "sigmoid"),
        ({"labels": ["a", "b", "c"]}, "softmax"),
        ({"num_classes": 3}, "softmax"),
        ({}, "softmax"),
    ):
        model = keras_bert.BertTextClassifier.from_preset(tmp_path, load_weights=load_weights, **given)
        assert model.activation == activation, given


@pytest.mark.parametrize("load_weights", [True, False])
def test_wrong_arguments_of_the_call_are_not_blamed_on_the_file(preset, load_weights):
    for wrong, message in (
        ({"labels": ["a", "b"], "num_classes": 3}, r"^`labels` must be distinct str, one per class. Received: num_cl"),
        ({"pooling": "sum"}, r"^`pooling` must be one of mean, cls, max. Received: pooling='sum'"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_bert.BertTextClassifier.from_preset(preset, load_weights=load_weights, **wrong)


def test_a_loaded_model_may_be_named(preset):
    model = keras_bert.BertTextClassifier.from_preset(preset, name="mood")
    assert model.name == "mood" and model.backbone.name != "mood"


def test_doubts_of_another_head_are_forgotten(preset, tmp_path):
    model = keras_bert.BertTextClassifier.from_preset(preset)
    model.answer_settings = {"temperature": 2.0, "thresholds": [0.9] * 3, "num_texts": 1}
    model.save_to_preset(str(tmp_path))
    for labels, kept in ((["a", "b", "c"], model.answer_settings), (["one", "other"], {"num_texts": 1})):
        assert keras_bert.BertTextClassifier.from_preset(tmp_path, labels=labels).answer_settings == kept


def test_a_head_that_is_not_there_is_new_or_refused(preset, caplog):
    with pytest.raises(InputError, match="expected a fine-tuned token_classification head, found none. Pass `num_cl"):
        keras_bert.BertTokenClassifier.from_preset(preset)
    with caplog.at_level(logging.WARNING, logger="absl"):
        model = keras_bert.BertSpanLabeler.from_preset(preset)
    assert "has no question_answering head; it starts from random weights" in caplog.text
    check(model.backbone, INPUTS, keras_bert.BertBackbone.from_preset(preset)(INPUTS))


def test_a_trainer_s_way_in_says_nothing_of_new_heads(preset, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"), weights.open_checkpoint(preset) as checkpoint:
        model = keras_bert.BertMultipleChoice.from_checkpoint(checkpoint, num_choices=4, compile=False)
    assert caplog.text == "" and model.preprocessor is None and not model.compiled


# === Subclasses of users ===


class Stretched(keras_bert.BertTextEmbedder):
    """A subclass that passes on what it does not know."""

    def __init__(self, backbone, factor=2.0, **kwargs):
        super().__init__(backbone, **kwargs)
        self.factor = factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def test_a_subclass_takes_the_arguments_and_the_presets_of_its_parent(tmp_path):
    make("embedder")[0].save_to_preset(tmp_path / "parent")
    model = Stretched.from_preset(tmp_path / "parent", factor=3.0, prompts={"query": "q: "})
    model.save_to_preset(tmp_path / "own")
    model.save(tmp_path / "own.keras")
    for path in ("own", "own.keras"):
        for cls in (Stretched, keras_bert.BertTextEmbedder):
            again = cls.from_preset(tmp_path / path)
            assert (again.pooling, again.prompts, again.normalize) == ("max", {"query": "q: "}, False)
            assert again.preprocessor.sequence_length == 9 and getattr(again, "factor", 3.0) == 3.0
            check(again, INPUTS, make("embedder")[2])


def test_a_preset_of_an_own_class_keeps_its_labels(preset, tmp_path):
    class Own(keras_bert.BertTextClassifier):
        pass

    model = Own.from_preset(preset, labels=["a", "b"], multi_label=True)
    model.save_to_preset(tmp_path / "own")
    for cls in (Own, keras_bert.BertTextClassifier):
        again = cls.from_preset(tmp_path / "own")
        assert again.labels == ["a", "b"] and again.multi_label and again.preprocessor.sequence_length == 9


# === Files of before ===


def test_what_the_class_of_before_saved_is_loaded(tmp_path):
    """`keras_bert>BertTextClassifier` was KerasHub's class around our backbone."""
    preprocessor = keras_nlp.models.BertTextClassifierPreprocessor(toy_tasks.tokenizer(), sequence_length=8)
    before = keras_nlp.models.BertTextClassifier(toy_tasks.backbone(), 3, preprocessor, activation="softmax")
    toy_tasks.shaken(before)
    before.save(tmp_path / "old.keras")
    before.save_to_preset(str(tmp_path / "old"))
    names = ("keras_hub>BertTextClassifier", "keras_bert>BertTextClassifier")
    file = toy_tasks.rename(tmp_path / "old.keras", tmp_path / "new.keras", *names)
    directory = toy_tasks.rename(tmp_path / "old", tmp_path / "new", *names)
    logits, expected = before(INPUTS), before(before.preprocessor(["a cat"]))
    kinds = {}  # One of each kind of preprocessor.
    for again in (
        keras.saving.load_model(file),
        keras_nlp.models.TextClassifier.from_preset(str(directory)),
        keras_bert.BertTextClassifier.from_preset(directory),
        keras_bert.BertTextClassifier.from_preset(file),
    ):
        assert type(again) is keras_bert.BertTextClassifier and again.dropout == 0.1
        check(again, INPUTS, logits)
        kinds.setdefault(type(again.preprocessor), again)
    assert len(kinds) == 2
    for again in kinds.values():
        np.testing.assert_allclose(again(again.preprocessor(["a cat"])), expected, atol=1e-6)


def test_functional_models_of_before_are_loaded(tmp_path):
    """The commands saved plain functional models of registered layers."""
    model, inputs, outputs = make("chooser")
    functional = keras.Model(model.input, model.output)
    functional.save(tmp_path / "model.keras")
    config = keras.saving.load_model(tmp_path / "model.keras")
    assert type(config).__name__ == "Functional"
    check(config, inputs, outputs)
