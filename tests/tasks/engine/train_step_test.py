"""The whole training step as one XLA program, as a TPU needs it: the same losses, static shapes, no strings."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
import toy_pretraining
from toy_pretraining import BATCH, batches, draw

from tasks.engine.strategy import set_mixed_precision

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
        assert (trainer.train_step.compiled is not None) == jit_compile
        rows[jit_compile] = trainer.fit(batches, 10).training
    for plain, compiled in zip(rows[False], rows[True], strict=True):
        assert compiled == pytest.approx(plain, rel=1e-4)


@pytest.mark.slow(keep=["bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_step_has_static_shapes_and_no_strings(tmp_path, dtype):
    """StableHLO is what a TPU's compiler gets; `?` stands for a size that is not known before it runs."""
    set_mixed_precision(dtype)
    try:
        trainer = build_trainer(tmp_path, jit_compile=True, dropout=0.1, gradient_accumulation_steps=2)
        features, labels = tf.nest.map_structure(tf.convert_to_tensor, draw(BATCH))
        text = trainer.train_step.compiled.experimental_get_compiler_ir(features, labels)(stage="stablehlo")
    finally:
        set_mixed_precision("float32")
    shapes = re.findall(r"tensor<([^>]*)>", text)
    assert len(shapes) > 250
    assert not [shape for shape in shapes if "?" in shape]
    assert not [shape for shape in shapes if "string" in shape] and "custom_call" not in text
    assert ("bf16" in text) == (dtype == "bfloat16")


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
