"""From a preset to a trainer: weights and heads of any checkpoint, frozen layers, LoRA, and what is refused."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np
import pytest
from toy_hugging_face import random_model

from keras_bert import BertBackbone, BertTextClassifier, BertTokenizer
from keras_bert.errors import InputError
from tasks import flags
from tasks.engine.train_step import Objective
from tasks.fine_tuning.examples import Examples, Predictor
from tasks.fine_tuning.inputs import Inputs, check_training, read_spec
from tasks.fine_tuning.model_files import load_model, save_model
from tasks.fine_tuning.session import Session, plan_steps
from tasks.fine_tuning.settings import FineTuningSettings
from tasks.fine_tuning.start import build_model, find_start, load_fine_tuned
from tasks.fine_tuning.task import Encoded, Evaluation, Part, Spec, Task, Trained
from tasks.text.bad_rows import BadRows

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(15))]

FEATURES = {name: np.ones([1, 5], "int32") for name in ("token_ids", "segment_ids", "padding_mask")}


class Mean(Objective):
    """Mean squared distance from labels of the same shape."""

    def weights(self, features, labels):
        return {"square": keras.ops.cast(keras.ops.shape(labels["target"])[0], "float32")}

    def sums(self, outputs, labels):
        return {"square": keras.ops.sum((outputs - labels["target"]) ** 2)}


class Rows(NamedTuple):
    path: str = "rows"

    def checksum(self) -> int:
        return 1


class ToySpec(Spec):
    outputs: int = 2


class Toy(Task):
    """Moves a linear head towards random targets.

    Args:
        losses: losses to report.
        backbones: gets the encoder of each built model.
        before: gets the weights that the model starts from.
    """

    losses: Iterator[float] = iter(())
    backbones: list = dataclasses.field(default_factory=list)
    before: dict = dataclasses.field(default_factory=dict)

    Settings, Spec = FineTuningSettings, ToySpec
    name, command = "toy", "bert-toy"
    metric = "loss"

    def read(self, split, bad_rows):
        return [Part(split, Rows())]

    def make_spec(self, train):
        return ToySpec(sequence_length=self.settings.max_seq_length)

    def model_class(self):
        return BertTextClassifier

    def model_arguments(self, spec):
        return {"num_classes": spec.outputs}

    def build_training_model(self, origin, trained):
        model = super().build_training_model(origin, trained)
        self.backbones.append(model.backbone)
        self.before.update({variable.path: variable.numpy() for variable in model.weights})
        return model

    def objective(self, spec):
        return Mean()

    def encode(self, part, trained):
        batch = examples(width=trained.spec.outputs)
        return Encoded(batch, batch.lengths)

    def evaluate(self, answers, results):
        return Evaluation({"loss": next(self.losses)})

    def write_predictions(self, answers, output_dir):
        return [], {}


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("preset")
    keras.utils.set_random_seed(7)
    backbone = BertBackbone(
        20, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=24, dropout=0.1
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


def train(preset: str, directory, losses=(), **changes):
    """Trains 6 steps; returns the task, the session, and the paths of the weights that it has changed."""
    settings = FineTuningSettings(
        output_dir=str(directory),
        **{"preset": preset, "train_batch_size": 4, "num_train_epochs": 2, "max_seq_length": 24, **changes},
        learning_rate=1e-3,
    )
    task = Toy(settings, iter(losses))
    parts = [Part(split, Rows()) for split in (["train", "dev"] if losses else ["train"])]
    spec = ToySpec(sequence_length=settings.max_seq_length)
    session = Session(task, Inputs(parts, spec, None, BadRows()))
    session.train()
    after = {variable.path: variable.numpy() for variable in session.trained.model.weights}
    return task, session, {path for path in after if (task.before[path] != after[path]).any()}


@pytest.fixture(scope="module", name="whole")
def _whole(preset, tmp_path_factory):
    """A training of all weights: its directory, and what `train` returned."""
    directory = tmp_path_factory.mktemp("whole")
    return directory, *train(preset, directory)


def assert_same_weights(session: Session, other: Session) -> None:
    pairs = zip(session.trained.model.get_weights(), other.trained.model.get_weights(), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours, theirs)


def test_all_is_trained_from_the_presets_weights(preset, whole, tmp_path):
    directory, task, session, changed = whole
    original = BertBackbone.from_preset(preset)
    for variable, expected in zip(task.backbones[0].weights, original.get_weights(), strict=True):
        np.testing.assert_array_equal(task.before[variable.path], expected)
    assert changed >= {variable.path for variable in session.trained.model.trainable_variables} - {
        "embeddings/position_embedding/embeddings"
    }
    seconds = session.results["train_seconds"]
    assert seconds > 0 and session.results["train_steps"] == 6
    moved = shutil.copytree(preset, tmp_path / "moved")
    _, again, _ = train(str(moved), directory)  # Nothing is left to do, wherever the preset lies now.
    assert again.results["train_seconds"] == seconds
    assert_same_weights(again, session)


def test_the_top_layers_and_the_pooler_start_anew(preset):
    original = {variable.path: variable.numpy() for variable in BertBackbone.from_preset(preset).weights}
    starts = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        settings = flags.parse(FineTuningSettings, ["--output_dir=x", f"--preset={preset}", "--reinit_layers=1"])
        with find_start(settings) as origin:
            backbone = build_model(origin, settings, BertTextClassifier, {"num_classes": 2}).backbone
        starts.append({variable.path: variable.numpy() for variable in backbone.weights})
    changed = {path for path, value in starts[0].items() if (value != original[path]).any()}
    assert {path.split("/")[0] for path in changed} == {"transformer_layer_1", "pooled_dense"}
    kernels = [path for path in changed if path.endswith("kernel")]
    assert len(kernels) == 5 and all(0.01 < starts[0][path].std() < 0.03 for path in kernels)  # 0.02, truncated.
    for path in kernels:
        assert (starts[0][path] == starts[1][path]).all() and (starts[0][path] != starts[2][path]).any()


def stop():
    raise KeyboardInterrupt
    yield


@pytest.mark.slow
def test_a_stopped_training_continues_as_if_it_had_not_been_stopped(preset, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(preset, tmp_path, losses=stop(), save_checkpoints_steps=3)  # At the first epoch's evaluation.
    assert not (tmp_path / "model").exists() and not (tmp_path / "metrics.json").exists()
    _, session, _ = train(preset, tmp_path, losses=[0.5, 0.5], save_checkpoints_steps=3)
    assert_same_weights(session, whole[2])
    evaluations = json.loads((tmp_path / "history.json").read_text())["evaluations"]
    assert [row["step"] for row in evaluations] == [3, 6]


def test_a_training_stopped_at_its_last_evaluation_is_described_as_its_own(preset, tmp_path):
    (tmp_path / "metrics.json").write_text('{"train_few_labels": "frozen", "test_predictions": ["predictions.tsv"]}')
    (tmp_path / "predictions.tsv").write_text("of an earlier training")
    with pytest.raises(KeyboardInterrupt):
        train(preset, tmp_path, losses=stop())
    _, session, _ = train(preset, tmp_path, losses=[0.5])
    assert session.results["train_command"].startswith("bert-toy ") and "train_few_labels" not in session.results
    assert json.loads((tmp_path / "metrics.json").read_text()) == session.results
    assert not (tmp_path / "predictions.tsv").exists()


def test_lora_trains_its_factors_and_the_head_of_random_weights(preset, tmp_path):
    original = BertBackbone.from_preset(preset)
    task, session, changed = train(preset, tmp_path, lora_rank=2, load_weights=False, num_train_epochs=1)
    table = original.token_embedding.embeddings
    assert np.abs(task.before[table.path] - table.numpy()).max() > 0.01
    assert json.loads((tmp_path / "training.json").read_text())["weights_checksum"] is None
    others = {path for path in changed if "lora" not in path}  # Keras trains an adapted layer's bias too.
    biases = {f"transformer_layer_{index}/self_attention/query_key_value/bias" for index in range(2)}
    assert others == {"classification/kernel", "classification/bias", *biases}
    assert sum("lora" in path for path in changed) == 2 * 2
    expected = Predictor(session.trained.model).compute_outputs(examples(), 4, "before")
    again, tokenizer, task = load_model(str(tmp_path / "model"), "toy", "bert-toy")
    np.testing.assert_allclose(Predictor(again).compute_outputs(examples(), 4, "after"), expected, atol=1e-5)
    assert tokenizer.get_vocabulary() == VOCABULARY
    assert task == {"task": "toy", "sequence_length": 24, "outputs": 2}


def count_answers(monkeypatch) -> list[str]:
    """Returns a list that gets a word for each application of a model to a file."""
    counted, compute = [], Predictor.compute_outputs

    def counts(*arguments):
        counted.append("answered")
        return compute(*arguments)

    monkeypatch.setattr(Predictor, "compute_outputs", counts)
    return counted


def test_the_last_evaluation_is_the_final_one_too_and_a_layer_decay_goes_with_a_frozen_encoder(
    preset, tmp_path, monkeypatch
):
    counted, settings = count_answers(monkeypatch), {"num_frozen_layers": 2, "layer_decay": 0.9}
    # One evaluation takes a third of two epochs' time.
    _, session, changed = train(preset, tmp_path, losses=[0.5, 0.25], **settings)
    assert changed and all(path.startswith(("pooled_dense/", "classification/")) for path in changed)
    session.evaluate()
    assert session.results["loss"] == 0.25 and len(counted) == 1
    evaluations = json.loads((tmp_path / "history.json").read_text())["evaluations"]
    assert evaluations == [{"step": 6, "loss": 0.5}]


@pytest.mark.parametrize(
    ("typed", "dev_rows", "interval"),
    [
        ([], None, 50),
        ([], 1000, 50),
        ([], 1600, 67),  # 200 steps cost as much as evaluating 200 * 32 * 3 rows; a fourth of it is three times 1600.
        ([], 10_000, 200),
        (["--num_train_epochs=60"], 1600, 150),
        (["--num_train_epochs=60"], 7000, 300),
        (["--save_checkpoints_steps=7"], 1600, 7),
        (["--save_checkpoints_steps=1000"], 1600, 1000),
        (["--early_stopping_patience=2"], 10_000, 50),
    ],
)
def test_evaluations_take_a_fifth_of_the_time(typed, dev_rows, interval):
    settings = flags.parse(FineTuningSettings, ["--output_dir=x", "--train_batch_size=32", *typed])
    dev = None if dev_rows is None else examples(dev_rows)
    assert plan_steps(settings, examples(1600), dev, "train.csv")[2] == interval


def test_examples_must_fill_a_batch():
    settings = FineTuningSettings(output_dir="", train_batch_size=15)
    assert plan_steps(settings, examples(1), None, "train.csv")[0] == 200
    settings = dataclasses.replace(settings, num_train_epochs=3.0)
    assert plan_steps(settings, examples(5), None, "train.csv")[0] == 1
    settings = dataclasses.replace(settings, train_batch_size=16)
    message = "train.csv: 5 examples and --num_train_epochs=3 do not fill one batch of 16. Lower --train_batch_size"
    with pytest.raises(InputError, match=message):
        plan_steps(settings, examples(5), None, "train.csv")


def test_frozen_layers_stay_and_early_stopping_keeps_the_best_after_a_stop_too(preset, tmp_path, monkeypatch):
    settings = {"early_stopping_patience": 1, "num_frozen_layers": 1, "num_train_epochs": 3}
    with pytest.raises(KeyboardInterrupt):
        train(preset, tmp_path, losses=stop(), **settings)  # At the evaluation after the first epoch's checkpoint.
    assert not (tmp_path / "model").exists() and not (tmp_path / "metrics.json").exists()
    counted = count_answers(monkeypatch)
    _, session, changed = train(preset, tmp_path, losses=[0.5, 0.9, 0.5], **settings)
    evaluations = json.loads((tmp_path / "history.json").read_text())["evaluations"]
    assert [row["step"] for row in evaluations] == [3, 6]
    # An epoch has three steps; the second was no better, and there is no figure for a third.
    assert session.results["best_step"] == 3
    trained = ("transformer_layer_1/", "pooled_dense/", "classification/")
    assert changed and all(path.startswith(trained) for path in changed)
    assert any(path.startswith("transformer_layer_1/") for path in changed)
    session.evaluate()
    assert session.results["loss"] == 0.5 and len(counted) == 3  # The best weights are not the last.


def test_early_stopping_needs_an_evaluation():
    settings = FineTuningSettings(output_dir="", preset="x", early_stopping_patience=1)
    with pytest.raises(InputError, match="--early_stopping_patience needs an evaluation"):
        check_training(Toy(settings), [Part("train", Rows())])


@pytest.mark.parametrize("name", ["lora_rank", "reinit_layers"])
def test_other_settings_cannot_continue(preset, whole, name):
    listed = whole[0] / "doubtful_labels.tsv"
    listed.write_text("place\n")
    with pytest.raises(InputError, match=f"{name}=0. It cannot continue with 1"):
        train(preset, whole[0], **{name: 1})
    assert listed.exists()  # It belongs to the training that stays.


def test_another_preset_cannot_continue(preset, whole, tmp_path):
    other = str(shutil.copytree(preset, tmp_path / "other"))
    BertTokenizer([*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]]).save_to_preset(other)
    with pytest.raises(InputError, match="holds a training with vocabulary_checksum="):
        train(other, whole[0])
    BertTokenizer(VOCABULARY).save_to_preset(other)
    backbone = BertBackbone.from_preset(other)
    weights = backbone.get_weights()
    backbone.set_weights([*weights[:-1], weights[-1] + 0.1])
    backbone.save_to_preset(other)
    with pytest.raises(InputError, match="holds a training with weights_checksum="):
        train(other, whole[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 25}, "--max_seq_length=25: .* has positions for 24 tokens"),
        ({"num_frozen_layers": 4}, "--num_frozen_layers=4: .* has 2 layers"),
        ({"reinit_layers": 3}, "--reinit_layers=3: .* has 2 layers"),
        ({"num_frozen_layers": 1, "reinit_layers": 2}, "--num_frozen_layers=1 --reinit_layers=2: .* has 2 layers"),
    ],
)
def test_settings_that_do_not_fit(preset, tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        train(preset, tmp_path, **settings)


# === Heads of other checkpoints ===


@pytest.mark.oracle
def test_a_head_of_the_same_shape_comes_along(hugging_face):
    directory, theirs = hugging_face
    settings = FineTuningSettings(output_dir="", preset=directory, max_seq_length=24)
    task = Toy(settings)
    for outputs in (2, 3):
        spec = ToySpec(sequence_length=24, outputs=outputs)
        with find_start(settings) as origin:
            task.build_training_model(origin, Trained(None, None, spec))
        assert task.before["classification/kernel"].shape == (16, outputs)
    kernel = theirs.classifier.weight.detach().numpy().T
    np.testing.assert_array_equal(task.before["classification/kernel"], kernel)


@pytest.mark.oracle
def test_a_model_fine_tuned_elsewhere_answers_the_same(hugging_face, preset):
    import torch

    class Learned(Toy):
        def foreign_spec(self, source, labels, num_outputs, parts):
            assert (source, labels, parts) == (directory, ["x", "y", "z"], [])
            return ToySpec(sequence_length=self.settings.max_seq_length, outputs=num_outputs)

    directory, theirs = hugging_face
    positions = theirs.config.max_position_embeddings
    model, spec = load_fine_tuned(directory, Learned(FineTuningSettings(output_dir="", max_seq_length=positions)), [])
    assert spec == ToySpec(sequence_length=positions, outputs=3)
    batch = examples()
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(batch.token_ids.reshape(12, 6)).long()).logits.numpy()
    np.testing.assert_allclose(Predictor(model).compute_outputs(batch, 5, "apply"), expected, atol=2e-5)
    with pytest.raises(InputError, match="expected a fine-tuned classification head, found none. Train it first"):
        load_fine_tuned(preset, Toy(FineTuningSettings(output_dir="")), [])
    with pytest.raises(InputError, match=f"={positions + 1}: .* has positions for {positions} tokens. Give no more"):
        load_fine_tuned(directory, Learned(FineTuningSettings(output_dir="", max_seq_length=positions + 1)), [])


# === Files ===


def test_directories_of_models_that_are_none(preset, tmp_path):
    with pytest.raises(InputError, match="task.json: no such file. Expected the model directory that bert-toy wrote"):
        load_model(preset, "toy", "bert-toy")
    directory = tmp_path / "model"
    backbone = BertBackbone.from_preset(preset)
    save_model(str(directory), backbone, BertTokenizer.from_preset(preset), {"task": "other"})
    with pytest.raises(InputError, match="expected the task 'toy', as bert-toy writes it, found 'other'"):
        load_model(str(directory), "toy", "bert-toy")
    (directory / "task.json").write_text('{"task": 3}')
    with pytest.raises(InputError, match="expected an object with the task's name"):
        load_model(str(directory), "toy", "bert-toy")
    (directory / "task.json").write_text('{"task": "toy"}')
    (directory / "model.keras").write_bytes(b"no zip")
    with pytest.raises(InputError, match="model.keras: cannot be loaded .* Train it again"):
        load_model(str(directory), "toy", "bert-toy")


@pytest.mark.parametrize("folder", ["", "model"])
def test_an_archive_of_a_trained_model_is_a_preset_like_its_directory(preset, tmp_path, folder):
    model = BertTextClassifier(BertBackbone.from_preset(preset), labels=["no", "yes"], compile=False)
    task = {"task": "classification", "labels": ["no", "yes"], "sequence_length": 9}
    answers = {"num_texts": 1, "long_text": "truncate", "temperature": 2.0, "thresholds": [0.1, 0.9]}
    directory = tmp_path / "run" / "model"
    save_model(str(directory), model, BertTokenizer.from_preset(preset), task | answers)
    right = model(FEATURES)
    for kind in ("zip", "gztar"):
        root = directory.parent if folder else directory
        archive = shutil.make_archive(str(tmp_path / f"of_{kind}"), kind, root, folder or None)
        again = BertTextClassifier.from_preset(archive)
        assert (again.labels, again.preprocessor.sequence_length, again.answer_settings) == (["no", "yes"], 9, answers)
        np.testing.assert_array_equal(again(FEATURES), right)
        backbone = BertBackbone.from_preset(archive)
        np.testing.assert_array_equal(backbone(FEATURES)["pooled_output"], model.backbone(FEATURES)["pooled_output"])


def test_specs_that_are_none_are_named(preset, tmp_path):
    toy, backbone = Toy(FineTuningSettings(output_dir="")), BertBackbone.from_preset(preset)
    tokenizer = BertTokenizer.from_preset(preset)
    directory = str(tmp_path / "model")
    save_model(directory, backbone, tokenizer, {"task": "toy", "sequence_length": 9})
    assert read_spec(toy, directory) == ToySpec(sequence_length=9)
    (tmp_path / "model" / "task.json").write_text('{"task": "toy"}')
    with pytest.raises(InputError, match="task.json: lacks sequence_length. Expected the model that bert-toy wrote"):
        read_spec(toy, directory)
    (tmp_path / "model" / "task.json").write_text('{"task": "classification", "sequence_length": 9}')
    with pytest.raises(InputError, match="expected the task 'toy', as bert-toy writes it, found 'classification'"):
        read_spec(toy, directory)


def test_a_model_of_another_size_than_its_spec_is_refused(preset, tmp_path):
    model = BertTextClassifier(BertBackbone.from_preset(preset), 3, compile=False)
    directory = str(tmp_path / "model")
    save_model(directory, model, BertTokenizer.from_preset(preset), {"task": "toy", "sequence_length": 9, "outputs": 2})
    task = Toy(FineTuningSettings(output_dir=str(tmp_path)))
    session = Session(task, Inputs([], read_spec(task, directory), directory, BadRows()))
    with pytest.raises(InputError, match="task.json declares 2 outputs, but the model has 3. The two files come from"):
        session.load()
