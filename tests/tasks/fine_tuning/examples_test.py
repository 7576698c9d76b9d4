"""Batches of tokenized examples: every example once an epoch, like lengths together, labels beside their tokens."""

import keras
import numpy as np
import pytest

from keras_bert import BertBackbone, BertMultipleChoice, BertTextClassifier
from tasks.fine_tuning.examples import (
    Examples,
    Predictor,
    count_steps,
    epoch_batches,
    make_eval_dataset,
    make_train_dataset,
    standardize,
)
from tasks.fine_tuning.start import standardized_head


def make_examples(count: int = 23, choices: int | None = None, seed: int = 0) -> Examples:
    """Sequences of 2 to 12 tokens; token ids count up from 1, so that each tells where it came from."""
    lengths = np.random.default_rng(seed).integers(2, 13, count * (choices or 1))
    ids = np.arange(1, lengths.sum() + 1, dtype=np.int32)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Examples(
        ids,
        (ids % 2).astype(np.int32),
        splits,
        labels={"number": np.arange(count, dtype=np.int32)},
        token_labels={"tag": ids * 10},
        rows_per_example=choices,
    )


@pytest.mark.parametrize("kind", ["labels", "token_labels"])
def test_numbers_are_standardized(kind):
    labels = {"labels": np.array([3, 5, 99], np.float32), "weights": np.array([1, 1, 0], np.float32)}
    examples, scale = standardize(make_examples()._replace(**{"labels": {}, "token_labels": {}, kind: labels}))
    assert scale == (4.0, 1.0) and getattr(examples, kind)["labels"].tolist() == [-1.0, 1.0, 95.0]
    constant = make_examples()._replace(labels={"labels": np.full(4, 1e9, np.float32)})
    examples, scale = standardize(constant)
    assert scale == (1e9, 1.0) and not examples.labels["labels"].any()


def test_a_head_answers_in_standard_deviations_for_a_while():
    backbone = BertBackbone(9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4, max_sequence_length=4)
    model = BertTextClassifier(backbone, 1)
    inputs = {"token_ids": [[2, 5, 3]], "segment_ids": [[0] * 3], "padding_mask": [[1] * 3]}
    inputs = {name: np.array(value) for name, value in inputs.items()}
    new = float(model(inputs)[0, 0])
    with standardized_head(model, "classification", 500.0, 20.0):
        assert float(model(inputs)[0, 0]) == new  # A new head is one of standard deviations.
    trained = float(model(inputs)[0, 0])
    assert trained == pytest.approx(500 + 20 * new, rel=1e-5)
    with standardized_head(model, "classification", 400.0, 50.0):
        assert float(model(inputs)[0, 0]) == pytest.approx((trained - 400) / 50, rel=1e-4)
    assert float(model(inputs)[0, 0]) == pytest.approx(trained, rel=1e-5)


def row(examples: Examples, index: int) -> np.ndarray:
    return examples.token_ids[examples.row_splits[index] : examples.row_splits[index + 1]]


@pytest.mark.parametrize("batch_size", [1, 4, 7, 23, 50])
def test_epochs_hold_every_example_once_and_join_without_a_gap(batch_size):
    lengths = make_examples().lengths
    drawn = np.concatenate([epoch_batches(lengths, batch_size, 5, epoch, None).ravel() for epoch in range(50)])
    assert len(drawn) == 50 * 23 // batch_size * batch_size
    counts = np.bincount(drawn, minlength=23)
    assert counts.min() >= len(drawn) // 23 - (batch_size > 1) and counts.max() <= len(drawn) // 23 + 1
    again = epoch_batches(lengths, batch_size, 5, 3, None)
    np.testing.assert_array_equal(again, epoch_batches(lengths, batch_size, 5, 3, None))
    if batch_size == 4:
        assert (again != epoch_batches(lengths, batch_size, 6, 3, None)).any()


def test_like_lengths_come_together():
    lengths = np.random.default_rng(1).integers(3, 128, 3200)
    batches = lengths[epoch_batches(lengths, 32, 0, 0, None)]
    padded = batches.max(axis=1).sum() * 32
    assert batches.sum() / padded > 0.9
    longest = batches.max(axis=1)
    assert 20 < np.argmax(longest) or 20 < np.argmin(longest)  # Shuffled again: not from short to long.


def test_steps():
    assert count_steps(10, 4, 3.0) == 7 and count_steps(3, 4, 1.0) == 0
    assert [count_steps(number, 4, None) for number in (0, 1, 266, 268)] == [0, 200, 200, 201]


@pytest.mark.parametrize("length", [None, 12])
def test_vectors_take_the_place_of_the_ids(tmp_path, length):
    """The array is mapped from disk, as features of a frozen encoder are."""
    examples = make_examples()
    vectors = np.random.default_rng(2).normal(size=(examples.token_ids[-1] + 1, 3)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = examples._replace(vectors=np.load(tmp_path / "vectors.npy", mmap_mode="r"))
    plain = make_train_dataset(examples, 4, 7, 0, 5, length=length)
    dataset = make_train_dataset(mapped, 4, 7, 0, 5, length=length)
    assert dataset.element_spec[0]["features"].shape.as_list() == [4 if length else None, length, 3]
    pairs = list(zip(plain.as_numpy_iterator(), dataset.as_numpy_iterator(), strict=True))
    assert len(pairs) == 5
    for (ids, labels), (features, same) in pairs:
        mask = ids["padding_mask"].astype(bool)
        assert features.keys() == {"features", "padding_mask"}
        np.testing.assert_array_equal(features["padding_mask"], mask)
        np.testing.assert_array_equal(features["features"][mask], vectors[ids["token_ids"][mask]])
        np.testing.assert_array_equal(same["tag"], labels["tag"])


@pytest.mark.parametrize("groups", [(), (1,), (3,)])
def test_training_batches_and_resuming(groups):
    examples, choices = make_examples(choices=next(iter(groups), None)), sum(groups) or 1
    whole = list(make_train_dataset(examples, 4, 7, 0, 12).as_numpy_iterator())
    assert len(whole) == 12
    for features, labels in whole:
        shape = features["token_ids"].shape
        assert shape[:-1] == (4, *groups)
        assert shape[-1] == max(examples.lengths[labels["number"]])
        flat_ids, flat_mask = (
            features["token_ids"].reshape(-1, shape[-1]),
            features["padding_mask"].reshape(-1, shape[-1]),
        )
        for place, number in enumerate(np.repeat(labels["number"] * choices, choices)):
            expected = row(examples, number + place % choices)
            np.testing.assert_array_equal(flat_ids[place][: len(expected)], expected)
            assert flat_ids[place][len(expected) :].tolist() == [0] * (shape[-1] - len(expected))
            assert flat_mask[place].sum() == len(expected)
        np.testing.assert_array_equal(labels["tag"], features["token_ids"] * 10)
        np.testing.assert_array_equal(features["segment_ids"], features["token_ids"] % 2 * features["padding_mask"])
    resumed = list(make_train_dataset(examples, 4, 7, 5, 12).as_numpy_iterator())
    for (features, labels), (others, other_labels) in zip(whole[5:], resumed, strict=True):
        for name in features:
            np.testing.assert_array_equal(features[name], others[name])
        for name in labels:
            np.testing.assert_array_equal(labels[name], other_labels[name])


@pytest.mark.parametrize(("choices", "shape"), [(None, (4, 16)), (3, (4, 3, 16))])
def test_static_shapes(choices, shape):
    dataset = make_train_dataset(make_examples(choices=choices), 4, 7, 0, 3, length=16)
    features, labels = dataset.element_spec
    assert features["token_ids"].shape == labels["tag"].shape == shape and labels["number"].shape == shape[:1]
    for features, _ in dataset.as_numpy_iterator():
        assert features["padding_mask"].shape == shape


def test_evaluation_takes_every_example_once_sorted():
    examples = make_examples()
    dataset, order = make_eval_dataset(examples, 8)
    batches = list(dataset.as_numpy_iterator())
    assert [len(labels["number"]) for _, labels in batches] == [8, 8, 7]
    np.testing.assert_array_equal(np.concatenate([labels["number"] for _, labels in batches]), order)
    assert sorted(order) == list(range(23)) and (np.diff(examples.lengths[order]) >= 0).all()
    unlabelled, _ = make_eval_dataset(examples._replace(labels={}, token_labels={}), 8)
    assert len(unlabelled.element_spec) == 1


def features_model(answer) -> keras.Model:
    inputs = {
        name: keras.Input([None], dtype="int32", name=name) for name in ("token_ids", "segment_ids", "padding_mask")
    }
    return keras.Model(inputs, answer(keras.ops.cast(inputs["token_ids"], "float32")))


def test_outputs_stand_in_the_order_of_the_examples():
    examples = make_examples()
    model = features_model(lambda ids: keras.ops.stack([keras.ops.sum(ids, -1), keras.ops.max(ids, -1)], -1))
    outputs = Predictor(model).compute_outputs(examples, 8, "apply")
    expected = [[row(examples, index).sum(), row(examples, index).max()] for index in range(23)]
    np.testing.assert_array_equal(outputs, expected)


def test_token_outputs_are_aligned_with_the_tokens():
    examples = make_examples()
    model = features_model(lambda ids: keras.ops.stack([ids * 2, -ids], -1))
    outputs = Predictor(model).compute_outputs(examples, 8, "apply")
    np.testing.assert_array_equal(outputs, np.stack([examples.token_ids * 2, -examples.token_ids], -1))


def test_batches_of_choices_give_each_row_its_own_logits():
    """`compute_outputs` sorts, pads and groups: the answer of a row is that without padding."""
    generator = np.random.default_rng(3)
    rows = [generator.integers(5, 60, generator.integers(3, 12)).astype(np.int32) for _ in range(7 * 3)]
    splits = np.cumsum([0, *map(len, rows)])
    ids = np.concatenate(rows)
    backbone = BertBackbone(
        60, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=24, initializer_range=0.3
    )
    model = BertMultipleChoice(backbone, 3, compile=False)
    logits = Predictor(model).compute_outputs(Examples(ids, ids * 0, splits, {}, {}, 3), 2, "test")
    lengths = np.array(list(map(len, rows)))
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        batch = np.stack([np.tile(rows[number], (3, 1)) for number in same])
        alone = model({"token_ids": batch, "segment_ids": batch * 0, "padding_mask": batch * 0 + 1}, training=False)
        np.testing.assert_allclose(logits.ravel()[same], alone[:, 0], atol=1e-5)
