"""From a preset to a trainer: weights and heads of any checkpoint, frozen layers, LoRA, and what is refused."""

import keras
import numpy as np
import pytest
from toy_hugging_face import random_model

from keras_bert import BertBackbone, BertTokenizer
from keras_bert.errors import InputError
from keras_bert.heads import output_head
from tasks.examples import Examples, compute_outputs
from tasks.fine_tuning import FineTuningSettings, fit, load_fine_tuned, start
from tasks.model_files import load_model, save_model
from tasks.train_step import Objective

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(15))]


class Mean(Objective):
    """Mean squared distance from labels of the same shape."""

    def weights(self, features, labels):
        return {"square": keras.ops.cast(keras.ops.shape(labels["target"])[0], "float32")}

    def sums(self, outputs, labels):
        return {"square": keras.ops.sum((outputs - labels["target"]) ** 2)}


def classify_with(num_outputs: int):
    def build_head(backbone):
        pooled = backbone(backbone.input)["pooled_output"]
        return keras.Model(backbone.input, output_head(num_outputs, 0.02, name="classification")(pooled))

    return build_head


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("preset")
    keras.utils.set_random_seed(7)
    backbone = BertBackbone(
        20, num_layers=3, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=24, dropout=0.0
    )
    backbone.save_to_preset(str(directory))
    BertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)


@pytest.fixture(scope="module", name="hugging_face")
def _hugging_face(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hugging_face")
    names = {"id2label": {0: "x", 1: "y", 2: "z"}, "label2id": {"x": 0, "y": 1, "z": 2}}
    model = random_model("BertForSequenceClassification", num_labels=3, vocab_size=20, type_vocab_size=2, **names)
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY))
    return str(directory), model


def examples(count: int = 12, width: int = 2) -> Examples:
    rng = np.random.default_rng(1)
    ids = rng.integers(5, 20, count * 6).astype(np.int32)
    return Examples(
        ids,
        np.zeros_like(ids),
        np.arange(count + 1, dtype=np.int64) * 6,
        labels={"target": rng.normal(size=(count, width)).astype(np.float32)},
    )


def begin(preset: str, directory, outputs: int = 2, **settings):
    settings = FineTuningSettings(
        **{"preset": preset, "train_batch_size": 4, "max_seq_length": 24, "learning_rate": 1e-3, **settings}
    )
    return settings, start(settings, classify_with(outputs), Mean(), output_dir=str(directory), num_steps=6)


def train(preset: str, directory, evaluate=None, **settings):
    settings, tuner = begin(preset, directory, **settings)
    before = {variable.path: variable.numpy() for variable in tuner.trainer.model.weights}
    seconds = fit(tuner, examples(), 6, settings, output_dir=str(directory), identity={"labels": ["a", "b"]},
                  metric="loss", higher_is_better=False, evaluate=evaluate)  # fmt: skip
    after = {variable.path: variable.numpy() for variable in tuner.trainer.model.weights}
    return tuner, seconds, {path for path in before if (before[path] != after[path]).any()}


def test_all_is_trained_from_the_presets_weights(preset, tmp_path):
    original = BertBackbone.from_preset(preset)
    _, tuner = begin(preset, tmp_path)
    for ours, expected in zip(tuner.backbone.get_weights(), original.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, expected)
    tuner, seconds, changed = train(preset, tmp_path / "run")
    assert seconds > 0 and changed >= {variable.path for variable in tuner.trainer.model.trainable_variables} - {
        "embeddings/position_embedding/embeddings"
    }
    _, again, changed = train(preset, tmp_path / "run")
    assert again is None and changed == set(variable.path for variable in tuner.trainer.model.weights) & changed


def test_random_weights(preset, tmp_path):
    original = BertBackbone.from_preset(preset)
    _, tuner = begin(preset, tmp_path, load_weights=False)
    table = original.token_embedding.embeddings.numpy()
    assert np.abs(tuner.backbone.token_embedding.embeddings.numpy() - table).max() > 0.01
    assert tuner.identity["weights_checksum"] is None


def test_frozen_layers_stay(preset, tmp_path):
    _, _, changed = train(preset, tmp_path, num_frozen_layers=2)
    assert changed and all(
        path.startswith(("transformer_layer_2/", "pooled_dense/", "classification/")) for path in changed
    )
    assert any(path.startswith("transformer_layer_2/") for path in changed)


def test_lora_trains_its_factors_and_the_head(preset, tmp_path):
    tuner, _, changed = train(preset, tmp_path / "run", lora_rank=2)
    others = {path for path in changed if "lora" not in path}  # Keras trains an adapted layer's bias too.
    biases = {f"transformer_layer_{index}/self_attention/query_key_value/bias" for index in range(3)}
    assert others == {"classification/kernel", "classification/bias", *biases}
    assert sum("lora" in path for path in changed) == 2 * 3
    model = tuner.trainer.model
    expected = compute_outputs(model, examples(), 4, "before")
    save_model(str(tmp_path / "model"), model, tuner.tokenizer, {"task": "toy"})
    again, tokenizer, task = load_model(str(tmp_path / "model"), "toy", "bert-toy")
    np.testing.assert_allclose(compute_outputs(again, examples(), 4, "after"), expected, atol=1e-5)
    assert tokenizer.get_vocabulary() == VOCABULARY and task == {"task": "toy"}


def test_early_stopping_needs_an_evaluation(preset, tmp_path):
    with pytest.raises(InputError, match="--early_stopping_patience needs an evaluation"):
        train(preset, tmp_path, early_stopping_patience=1)
    losses = iter([0.5, 0.9])
    tuner, _, _ = train(preset, tmp_path, evaluate=lambda: {"loss": next(losses)}, early_stopping_patience=1)
    assert int(tuner.trainer.step.numpy()) == 3  # An epoch has three steps; the second was no better.


def test_other_settings_cannot_continue(preset, tmp_path):
    train(preset, tmp_path)
    with pytest.raises(InputError, match="lora_rank=0. It cannot continue with 1"):
        train(preset, tmp_path, lora_rank=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 25}, "--max_seq_length=25: .* has positions for 24 tokens"),
        ({"num_frozen_layers": 4}, "--num_frozen_layers=4: .* has 3 layers"),
        ({"num_frozen_layers": 1, "lora_rank": 1}, "give it without --num_frozen_layers"),
    ],
)
def test_settings_that_do_not_fit(preset, tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        begin(preset, tmp_path, **settings)


# === Heads of other checkpoints ===


@pytest.mark.oracle
def test_a_head_of_the_same_shape_comes_along(hugging_face, tmp_path):
    directory, theirs = hugging_face
    _, tuner = begin(directory, tmp_path / "same", outputs=3)
    kernel = theirs.classifier.weight.detach().numpy().T
    np.testing.assert_array_equal(tuner.trainer.model.get_layer("classification").kernel.numpy(), kernel)
    _, tuner = begin(directory, tmp_path / "other", outputs=2)
    assert tuner.trainer.model.get_layer("classification").kernel.shape == (16, 2)


@pytest.mark.oracle
def test_a_model_fine_tuned_elsewhere_answers_the_same(hugging_face, preset):
    import torch

    directory, theirs = hugging_face
    model, tokenizer, labels = load_fine_tuned(
        directory, "classification", lambda backbone, count: classify_with(count)(backbone)
    )
    assert labels == ["x", "y", "z"] and tokenizer.get_vocabulary() == VOCABULARY
    batch = examples()
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(batch.token_ids.reshape(12, 6)).long()).logits.numpy()
    np.testing.assert_allclose(compute_outputs(model, batch, 5, "apply"), expected, atol=2e-5)
    with pytest.raises(InputError, match="expected a fine-tuned classification head, found none. Train it first"):
        load_fine_tuned(preset, "classification", lambda backbone, count: classify_with(count)(backbone))


# === Files ===


def test_directories_of_models_that_are_none(preset, tmp_path):
    with pytest.raises(InputError, match="task.json: no such file. Expected the model directory that bert-toy wrote"):
        load_model(preset, "toy", "bert-toy")
    _, tuner = begin(preset, tmp_path / "run")
    directory = tmp_path / "model"
    save_model(str(directory), tuner.trainer.model, tuner.tokenizer, {"task": "other"})
    with pytest.raises(InputError, match="expected the task 'toy', as bert-toy writes it, found 'other'"):
        load_model(str(directory), "toy", "bert-toy")
    (directory / "task.json").write_text('{"task": 3}')
    with pytest.raises(InputError, match="expected an object with the task's name"):
        load_model(str(directory), "toy", "bert-toy")
    (directory / "task.json").write_text('{"task": "toy"}')
    (directory / "model.keras").write_bytes(b"no zip")
    with pytest.raises(InputError, match="model.keras: cannot be loaded .* Train it again"):
        load_model(str(directory), "toy", "bert-toy")
