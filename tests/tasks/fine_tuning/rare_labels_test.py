"""Rare labels: weights beside scikit-learn's and torch's, smoothed labels beside Keras's, rows drawn more often."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from tasks.fine_tuning.examples import Examples, train_batches
from tasks.fine_tuning.objectives import CrossEntropy, SigmoidCrossEntropy
from tasks.fine_tuning.rare_labels import RareLabelSettings, balance, class_weights

NAMES = ["a", "b", "c"]
ROWS = np.repeat(np.arange(3, dtype=np.int32), (160, 32, 8))
NAMES_OF_TAGS = ["O", "place", "place", "person", "person"]


def of_rows(labels=ROWS) -> Examples:
    splits = np.arange(len(labels) + 1) * 2
    return Examples(np.ones(splits[-1], np.int32), np.zeros(splits[-1], np.int32), splits, {"labels": labels})


def of_tags() -> Examples:
    """Sentences of three tokens, of which the last starts no word: nine of O, two with a place, one with both."""
    tags = [*[[0, 0, 4]] * 9, [0, 1, 0], [1, 2, 0], [3, 1, 0]]
    labels, weights = np.array(tags, np.int32).ravel(), np.tile(np.float32([1, 1, 0]), 12)
    splits = np.arange(13) * 3
    return Examples(labels, labels, splits, token_labels={"labels": labels, "weights": weights})


# === Weights ===


def test_balanced_weights_are_scikit_learn_s():
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    expected = sklearn.compute_class_weight("balanced", classes=np.arange(3), y=ROWS)
    settings = RareLabelSettings(class_weights="balanced")
    assert list(class_weights(of_rows(), settings, NAMES).values()) == pytest.approx(expected.tolist())
    weighted = balance(of_rows(), settings, NAMES)
    np.testing.assert_allclose(weighted.labels["weights"], expected[ROWS], rtol=1e-6)
    assert weighted.labels["weights"].dtype == np.float32 and weighted.shares is None
    # A label that --labels names and no row has.
    assert class_weights(of_rows(), settings, ["d", *NAMES][1:] + ["d"])["d"] == 0.0


def test_tags_are_weighted_by_their_type_and_words_alone_count():
    settings = RareLabelSettings(class_weights="balanced")
    weights = class_weights(of_tags(), settings, NAMES_OF_TAGS)
    assert weights == pytest.approx({"O": 24 / (3 * 19), "place": 24 / (3 * 4), "person": 24 / 3})
    balanced = balance(of_tags(), settings, NAMES_OF_TAGS).token_labels
    expected = np.array([weights[name] for name in NAMES_OF_TAGS])[of_tags().token_labels["labels"]]
    np.testing.assert_allclose(balanced["weights"], expected * of_tags().token_labels["weights"], rtol=1e-6)


def test_labels_of_which_a_row_has_several_are_weighted_where_it_has_them():
    labels = np.array([[1, 0, 0]] * 12 + [[1, 1, 0]] * 3 + [[0, 0, 0]] * 5, np.float32)
    settings = RareLabelSettings(class_weights="balanced")
    assert class_weights(of_rows(labels), settings, NAMES) == pytest.approx({"a": 5 / 15, "b": 17 / 3, "c": 0.0})
    weights = balance(of_rows(labels), settings, NAMES).labels["weights"]
    assert weights.dtype == np.float32 and weights[[0, 12, 15]] == pytest.approx(
        np.array([[5 / 15, 1, 1], [5 / 15, 17 / 3, 1], [1, 1, 1]])
    )
    shares = balance(of_rows(labels), RareLabelSettings(resample=0.0), NAMES).shares
    np.testing.assert_allclose(shares[[12, 15]] / shares[0], [15 / 3, 15 / 20])


@pytest.mark.parametrize(("name", "text"), [("w.json", '{"a": 0.5, "c": 4}'), ("w.tsv", "a\t0.5\n\nc\t4\n")])
def test_a_file_names_weights_and_its_content_identifies_the_run(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    settings = RareLabelSettings(class_weights=str(path))
    np.testing.assert_array_equal(
        balance(of_rows(), settings, NAMES).labels["weights"], np.float32([0.5, 1.0, 4.0])[ROWS]
    )
    assert settings.identity()["class_weights"] == {"a": 0.5, "c": 4.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "d": 2}', "w.json: unknown label 'd'. Expected 'a', 'b', 'c'. Correct it."),
        ('{"a": -1}', "w.json: label 'a': expected a number from 0 on, found -1. Correct it."),
        ('{"a": "many"}', "w.json: label 'a': expected a number from 0 on, found 'many'. Correct it."),
        ('{"a": 0, "b": 0, "c": 0}', "w.json: gives no label a weight. Expected"),
        ("{}", "w.json: gives no label a weight. Expected"),
        ("[1]", "w.json: expected a JSON object, found list."),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, told):
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(InputError) as error:
        RareLabelSettings(class_weights=f"{tmp_path}/w.json").read_weights(NAMES)
    assert told in str(error.value)


# === Losses ===


def _parts(objective, logits, labels, weights, sizes) -> float:
    """The loss of a batch in parts, as micro-batches and replicas add it up."""
    total = weight = 0.0
    for part in np.split(np.arange(len(labels)), np.cumsum(sizes)):
        of_part = {"labels": tf.constant(labels[part]), "weights": tf.constant(weights[part])}
        weight += float(objective.weights({}, of_part)["loss"])
        total += float(objective.sums(tf.constant(logits[part]), of_part)["loss"])
    return total / weight


@pytest.mark.parametrize("sizes", [(), (3,), (1, 0, 5)])
def test_the_weighted_loss_is_torch_s(sizes):
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(9, 3)).astype(np.float32)
    labels, of_class = generator.integers(0, 3, 9).astype(np.int32), np.float32([0.3, 1.0, 7.0])
    expected = torch.nn.CrossEntropyLoss(weight=torch.tensor(of_class))(
        torch.tensor(logits), torch.tensor(labels).long()
    )
    assert _parts(CrossEntropy(), logits, labels, of_class[labels], sizes) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("sizes", [(), (3,), (1, 0, 5)])
def test_the_loss_of_several_labels_has_torch_s_positive_weights(sizes):
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(9, 3)).astype(np.float32)
    labels, of_class = generator.integers(0, 2, (9, 3)).astype(np.float32), np.float32([0.3, 1.0, 7.0])
    weights = np.where(labels > 0, of_class, np.float32(1.0))
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(of_class), reduction="sum")
    expected = float(loss(torch.tensor(logits), torch.tensor(labels))) / weights.sum()
    assert _parts(SigmoidCrossEntropy(), logits, labels, weights, sizes) == pytest.approx(expected, rel=1e-5)


# === Draws ===


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_labels_are_drawn_in_proportion_to_a_power_of_their_rows(power):
    examples = balance(of_rows(), RareLabelSettings(resample=power), NAMES)
    drawn = train_batches(examples.lengths, 8, 5, 0, 2500, examples.shares).ravel()
    expected = np.array([160, 32, 8]) ** power
    np.testing.assert_allclose(np.bincount(ROWS[drawn]) / len(drawn), expected / expected.sum(), atol=0.005)
    of_each = np.bincount(drawn, minlength=200) / 100
    np.testing.assert_allclose(of_each, examples.shares, atol=0.25)  # No row of a label is left behind.
    first = np.bincount(train_batches(examples.lengths, 8, 5, 0, 25, examples.shares).ravel(), minlength=200)
    assert np.abs(first - examples.shares).max() < 1 and first.sum() == 200


def test_draws_resume_at_any_step():
    examples = balance(of_rows(), RareLabelSettings(resample=0.5), NAMES)
    whole = train_batches(examples.lengths, 7, 5, 0, 90, examples.shares)
    for step in (1, 28, 29, 60):
        np.testing.assert_array_equal(train_batches(examples.lengths, 7, 5, step, 90, examples.shares), whole[step:])
    assert (whole != train_batches(examples.lengths, 7, 6, 0, 90, examples.shares)).any()


def test_a_sentence_is_drawn_as_its_rarest_type_asks_for():
    shares = balance(of_tags(), RareLabelSettings(resample=0.0), NAMES_OF_TAGS).shares
    np.testing.assert_allclose(shares / shares[0], [*[1] * 9, 10 / 3, 10 / 3, 10])  # O is in ten.
    assert shares.mean() == pytest.approx(1.0)


def test_rows_that_are_drawn_equally_often_need_no_weights():
    settings = RareLabelSettings(class_weights="balanced", resample=0.0)
    np.testing.assert_allclose(balance(of_rows(), settings, NAMES).labels["weights"], 1.0, rtol=1e-6)


def test_defaults_change_nothing():
    examples = of_rows()
    assert balance(examples, RareLabelSettings(), NAMES) is examples
    json.dumps(RareLabelSettings(class_weights="balanced").identity())
