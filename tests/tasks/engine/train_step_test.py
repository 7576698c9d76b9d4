"""The training step, evaluation and prediction as XLA programs, as a TPU needs them: static shapes, no strings."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
import toy_pretraining
import toy_training
from toy_pretraining import BATCH, batches, draw

from keras_bert import BertBackbone, BertMultipleChoice, BertSpanLabeler, BertTextClassifier, BertTokenClassifier
from tasks.engine.strategy import build_strategy, set_mixed_precision
from tasks.fine_tuning.examples import Examples, Predictor, make_eval_dataset
from tasks.pretraining.train.batches import fill_batch

# XLA takes as long for each layer.
build_trainer = functools.partial(toy_pretraining.build_trainer, num_layers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 4}, {"optimizer": "lamb"}],
    ids=["plain", "accumulated", "lamb"],
)
def test_compiled_steps_have_the_losses_of_the_others(tmp_path, options):
    rows = {}
    for jit_compile in (False, True):
        trainer = build_trainer(tmp_path / str(jit_compile), jit_compile=jit_compile, **options)
        assert isinstance(trainer.train_step._run, tf.types.experimental.PolymorphicFunction) == jit_compile
        rows[jit_compile] = trainer.fit(batches, 10).training
    for plain, compiled in zip(rows[False], rows[True], strict=True):
        assert compiled == pytest.approx(plain, rel=1e-3)


def test_a_mirrored_strategy_of_one_device_is_compiled(tmp_path):
    """Its replica synchronizes with none, and XLA could not compile that either."""
    rows = []
    for name in ("one_device", "mirrored"):
        strategy = build_strategy(name, num_gpus=0)
        trainer = toy_training.build_trainer(tmp_path / name, strategy, jit_compile=True)
        rows.append(trainer.fit(toy_training.repeated, 3).training)
    for one_device, mirrored in zip(*rows, strict=True):
        assert mirrored == pytest.approx(one_device, rel=1e-4)


@pytest.mark.slow(keep=["bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_step_has_static_shapes_and_no_strings(tmp_path, dtype):
    """StableHLO is what a TPU's compiler gets; `?` stands for a size that is not known before it runs."""
    set_mixed_precision(dtype)
    try:
        trainer = build_trainer(tmp_path, jit_compile=True, dropout=0.1, gradient_accumulation_steps=2)
        features, labels = tf.nest.map_structure(tf.convert_to_tensor, draw(BATCH))
        text = trainer.train_step._run.experimental_get_compiler_ir(features, labels)(stage="stablehlo")
    finally:
        set_mixed_precision("float32")
    assert check_program(text) > 250
    assert ("bf16" in text) == (dtype == "bfloat16")


def check_program(text: str) -> int:
    """Returns how many shapes StableHLO has; all must be static, and no op of another program's."""
    shapes = re.findall(r"tensor<([^>]*)>", text)
    assert not [shape for shape in shapes if "?" in shape]
    assert not [shape for shape in shapes if "string" in shape] and "custom_call" not in text
    return len(shapes)


@pytest.mark.slow(keep=["packed"])
@pytest.mark.parametrize("layout", ["rectangular", "packed"])
def test_evaluation_has_static_shapes_and_no_strings(tmp_path, layout):
    trainer = build_trainer(tmp_path, layout=layout)
    records = tf.data.Dataset.from_tensor_slices(draw(BATCH + 3)).batch(BATCH)
    if layout == "packed":
        records = records.map(as_packed)
    evaluate = tf.function(trainer._replica_evaluate, jit_compile=True, autograph=False)
    for features, labels in records.map(lambda *batch: fill_batch(*batch, BATCH)):
        text = evaluate.experimental_get_compiler_ir(features, labels)(stage="stablehlo")
        assert check_program(text) > 100
    assert evaluate.experimental_get_tracing_count() == 1


def as_packed(features, labels):
    """Rows of one instance each."""
    first_positions = tf.zeros_like(features["token_ids"][:, :1])
    answers = tf.expand_dims(labels["next_sentence_labels"], 1)
    weights = {"next_sentence_labels": answers, "next_sentence_weights": tf.ones_like(answers, tf.float32)}
    return {**features, "first_positions": first_positions}, {**labels, **weights}


PREDICTORS = {
    "classifier": lambda backbone: BertTextClassifier(backbone, 2, preprocessor=None, compile=False),
    "tagger": lambda backbone: BertTokenClassifier(backbone, 2, preprocessor=None, compile=False),
    "span labeler": lambda backbone: BertSpanLabeler(backbone, preprocessor=None, compile=False),
    "choices": lambda backbone: BertMultipleChoice(backbone, 3, compile=False),
}


@pytest.mark.slow(keep=["tagger"])
@pytest.mark.parametrize("kind", PREDICTORS)
def test_prediction_has_static_shapes_and_the_same_answers(kind, monkeypatch):
    """As a TPU predicts: each batch full, all as long as the longest example."""
    backbone = BertBackbone(40, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32, initializer_range=0.3)
    model, per_example = PREDICTORS[kind](backbone), 3 if kind == "choices" else None
    lengths = np.random.default_rng(0).integers(3, 12, 7 * (per_example or 1))
    ids = np.random.default_rng(1).integers(5, 40, lengths.sum()).astype(np.int32)
    examples = Examples(ids, ids * 0, np.cumsum([0, *lengths]), {}, {}, per_example)
    expected = Predictor(model).compute_outputs(examples, 4)
    monkeypatch.setattr("tasks.engine.strategy.needs_static_shapes", lambda strategy: True)
    outputs = Predictor(model).compute_outputs(examples, 4)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    dataset, order = make_eval_dataset(examples, 4, is_full=True, is_static=True)
    assert len(order) == 8 and sorted(set(order)) == list(range(7))
    [features] = dataset.element_spec
    shape = (4, 3, lengths.max()) if kind == "choices" else (4, lengths.max())
    assert {tuple(spec.shape) for spec in features.values()} == {shape}
    predict = tf.function(lambda features: model(features, training=False), jit_compile=True, autograph=False)
    [(batch,)] = dataset.take(1)
    assert check_program(predict.experimental_get_compiler_ir(batch)(stage="stablehlo")) > 50


def test_a_string_in_the_step_is_found(tmp_path):
    """The check above would see it: XLA refuses the op."""

    def measured(features, labels):
        return features["token_ids"] + tf.strings.length(tf.strings.as_string(features["token_ids"]))

    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations"):
        tf.function(measured, jit_compile=True)(*tf.nest.map_structure(tf.convert_to_tensor, draw(2)))


@pytest.mark.slow
def test_dropout_differs_between_compiled_steps(tmp_path):
    trainer = build_trainer(tmp_path / "a", jit_compile=True, dropout=0.5)
    same_batch = lambda start: batches(0).take(1).repeat()  # noqa: E731
    losses = [row["loss"] for row in trainer.fit(same_batch, 3).training]
    again = build_trainer(tmp_path / "b", jit_compile=True, dropout=0.5)
    assert [row["loss"] for row in again.fit(same_batch, 3).training] == losses
    other = build_trainer(tmp_path / "c", jit_compile=True, dropout=0.5, random_seed=1)
    assert other.fit(same_batch, 3).training[0]["loss"] != losses[0]
    assert np.std(losses[:2]) > 0  # The first step's learning rate is 0: the same weights, other masks.
