"""Muon on the encoder's matrices against Keras's over separate matrices and against torch's; AdamW elsewhere."""

import keras
import numpy as np
import pytest
import toy_pretraining
from toy_optimizer import build_toy, draw, run_steps

from tasks.engine.optimization import BertAdamW, BertMuon
from tasks.engine.schedules import WarmupLinearDecay

LAYER = "transformer_layer_0"
FUSED = f"{LAYER}/query_key_value/kernel"
WIDE, TALL = f"{LAYER}/intermediate_dense/kernel", f"{LAYER}/output_dense/kernel"
MATRICES = {FUSED: (6, 18), WIDE: (6, 9), TALL: (9, 6), f"{LAYER}/attention/output_dense/kernel": (6, 6)}
OTHERS = {f"{LAYER}/output_dense/bias": (6,), "token_embedding/embeddings": (7, 6), "pooled_dense/kernel": (6, 6)}
SCHEDULE = WarmupLinearDecay(0.1, 8, 2)


def split(values: dict) -> dict:
    """Query, key and value as three variables."""
    qkv = {f"{LAYER}/{name}/kernel": kernel for name, kernel in zip("qkv", np.split(values[FUSED], 3, 1), strict=True)}
    return {**{path: value for path, value in values.items() if path in MATRICES and path != FUSED}, **qkv}


def test_matrices_follow_kerass_and_the_rest_adamw():
    start, gradients = draw({**MATRICES, **OTHERS}, steps=4)
    optimizer = BertMuon(SCHEDULE, adam_lr_ratio=0.25)
    got = run_steps(optimizer, start, gradients)
    oracle = keras.optimizers.Muon(SCHEDULE, weight_decay=0.01)
    expected = run_steps(oracle, split(start), [split(step) for step in gradients])
    for path, value in split(got).items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-4, atol=1e-5)
    expected = run_steps(BertAdamW(WarmupLinearDecay(0.025, 8, 2)), start, gradients)
    for path in OTHERS:
        np.testing.assert_allclose(got[path], expected[path], rtol=1e-5, atol=1e-6)
    assert len(optimizer.variables) == 1 + len(MATRICES) + 2 * len(OTHERS)  # A matrix has one moment.


@pytest.mark.oracle
def test_matrices_follow_torchs():
    torch = pytest.importorskip("torch")
    start, gradients = draw(MATRICES, seed=1, steps=3)
    got = split(run_steps(BertMuon(0.1, weight_decay=0.05), start, gradients))
    tensors = {path: torch.nn.Parameter(torch.tensor(value)) for path, value in split(start).items()}
    oracle = torch.optim.Muon(tensors.values(), lr=0.1, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for step in gradients:
        for path, gradient in split(step).items():
            tensors[path].grad = torch.tensor(gradient)
        oracle.step()
    for path, tensor in tensors.items():
        moved, expected = got[path] - split(start)[path], tensor.detach().numpy() - split(start)[path]
        # torch iterates in bfloat16.
        assert np.linalg.norm(moved - expected) < 0.05 * np.linalg.norm(expected), path


def test_an_update_is_about_orthogonal_and_as_large_as_adams():
    [(path, shape)] = [(TALL, (32, 8))]
    start, gradients = draw({path: shape}, steps=1)
    moved = run_steps(BertMuon(1.0, weight_decay=0.0), start, gradients)[path] - start[path]
    singular = np.linalg.svd(moved / (0.2 * 32**0.5), compute_uv=False)
    assert 0.6 < singular.min() and singular.max() < 1.3
    assert np.sqrt(np.mean(moved**2)) == pytest.approx(0.2, rel=0.2)


def test_it_takes_the_matrices_of_the_layers():
    model = build_toy(1)
    optimizer = BertMuon(0.1, adam_lr_ratio=0.3)
    optimizer.build(model.trainable_variables)
    orthogonal = {rule.path.removeprefix("transformer_layer_0/") for rule in optimizer.rules if rule.is_orthogonal}
    assert orthogonal == {
        "self_attention/query_key_value/kernel",
        "self_attention/output_dense/kernel",
        "intermediate_dense/kernel",
        "output_dense/kernel",
    }


def fit(directory, **options) -> np.ndarray:
    """Returns the weights after six steps, with a checkpoint after three."""
    sizes = {"num_layers": 1, "num_steps": 6}
    trainer = toy_pretraining.build_trainer(directory, optimizer="muon", **sizes, **options)
    trainer.fit(toy_pretraining.batches, 6, save_checkpoints_steps=3)
    return np.concatenate([variable.numpy().ravel() for variable in trainer.model.weights])


@pytest.mark.slow
def test_resumed_steps_are_the_same_bit_by_bit(tmp_path):
    whole = fit(tmp_path)
    for path in (tmp_path / "checkpoints").glob("ckpt-6.*"):
        path.unlink()
    np.testing.assert_array_equal(fit(tmp_path), whole)


@pytest.mark.slow
def test_accumulated_steps_are_the_same(tmp_path):
    weights = fit(tmp_path / "parts", gradient_accumulation_steps=4)
    np.testing.assert_allclose(weights, fit(tmp_path / "whole"), rtol=1e-4, atol=1e-4)
