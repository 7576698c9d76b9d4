"""The question answerer's head, files and loss, against NumPy and transformers' `BertForQuestionAnswering`."""

import numpy as np
import pytest
import tensorflow as tf
from bfloat16 import needs_bfloat16
from toy_hugging_face import SIZES, random_model

from keras_bert import BertBackbone, BertSpanLabeler
from tasks.fine_tuning.examples import Examples, Predictor
from tasks.squad.metrics import score_windows
from tasks.squad.objective import SpanObjective
from tasks.squad.windows import POSITIONS

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(95))]
LENGTHS = (9, 24, 13)


@pytest.fixture(scope="module", name="examples")
def _examples():
    """Three windows of different lengths; the second holds no answer."""
    generator = np.random.default_rng(3)
    token_ids = np.concatenate([[2, *generator.integers(5, 100, length - 2), 3] for length in LENGTHS]).astype(np.int32)
    segment_ids = np.concatenate([[0] * 4 + [1] * (length - 4) for length in LENGTHS]).astype(np.int32)
    labels = {"start_positions": [4, 0, 7], "end_positions": [6, 0, 7], "lengths": LENGTHS}
    labels = {name: np.array(values, np.int32) for name, values in labels.items()}
    return Examples(token_ids, segment_ids, np.cumsum([0, *LENGTHS]), labels)


@pytest.fixture(scope="module", name="foreign")
def _foreign(tmp_path_factory):
    """A transformers model with random weights, and its directory."""
    directory = tmp_path_factory.mktemp("foreign")
    model = random_model("BertForQuestionAnswering")
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return model, str(directory)


@pytest.fixture(scope="module", name="model")
def _model(foreign):
    return BertSpanLabeler.from_preset(foreign[1], preprocessor=None)


def rows_of(examples):
    return [
        (examples.token_ids[a:b], examples.segment_ids[a:b])
        for a, b in zip(examples.row_splits[:-1], examples.row_splits[1:], strict=True)
    ]


def batch_of(examples):
    width = int(examples.lengths.max())
    pad = lambda row: np.pad(row, (0, width - len(row)))  # noqa: E731
    rows = rows_of(examples)
    features = {
        "token_ids": np.stack([pad(ids) for ids, _ in rows]),
        "segment_ids": np.stack([pad(segments) for _, segments in rows]),
        "padding_mask": np.stack([pad(np.ones_like(ids)) for ids, _ in rows]),
    }
    return features, examples.labels


def objective_loss(outputs, features, labels):
    objective = SpanObjective()
    (total,) = objective.sums(tf.constant(outputs), labels).values()
    (weight,) = objective.weights(features, labels).values()
    return float(total / weight)


def numpy_loss(logits, start, end):
    """Logits (S, 2) of one window without padding."""
    probabilities = np.exp(logits - logits.max(axis=0)) / np.exp(logits - logits.max(axis=0)).sum(axis=0)
    return -(np.log(probabilities[start, 0]) + np.log(probabilities[end, 1])) / 2


# === Head ===


@pytest.mark.oracle
def test_logits_are_transformers_own(model, foreign, examples):
    import torch

    outputs = Predictor(model).compute_outputs(examples, 2, "test")
    for index, (ids, segments) in enumerate(rows_of(examples)):
        with torch.no_grad():
            theirs = foreign[0](torch.tensor(ids[None]).long(), token_type_ids=torch.tensor(segments[None]).long())
        ours = outputs[examples.row_splits[index] : examples.row_splits[index + 1]]
        expected = np.stack([theirs.start_logits[0].numpy(), theirs.end_logits[0].numpy()], axis=-1)
        assert np.abs(expected).max() > 1.0
        np.testing.assert_allclose(ours, expected, atol=2e-5)


def test_the_head_has_the_paper_s_weights_and_no_dropout():
    backbone = BertBackbone(50, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=8)
    model = BertSpanLabeler(backbone, compile=False)
    head = model.get_layer("question_answering")
    assert [tuple(weight.shape) for weight in head.weights] == [(16, 2), (2,)]
    assert model.output_shape == (None, None, 2) and model.output.dtype == "float32"
    assert model.count_params() == backbone.count_params() + 16 * 2 + 2
    assert [type(layer).__name__ for layer in model.layers if layer is not backbone].count("Dropout") == 0


@needs_bfloat16
def test_float16_activations_give_float32_logits():
    backbone = BertBackbone(
        50, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=8, dtype="mixed_bfloat16"
    )
    ones = np.ones((1, 5), "int32")
    outputs = BertSpanLabeler(backbone, compile=False)(
        {"token_ids": ones, "segment_ids": ones * 0, "padding_mask": ones}
    )
    assert outputs.dtype == tf.float32


# === Loss ===


def test_the_loss_is_the_mean_over_windows_of_both_cross_entropies(model, examples):
    features, labels = batch_of(examples)
    outputs = model(features, training=False).numpy()
    by_hand = [
        numpy_loss(outputs[row, :length], labels["start_positions"][row], labels["end_positions"][row])
        for row, length in enumerate(LENGTHS)
    ]
    assert objective_loss(outputs, features, labels) == pytest.approx(np.mean(by_hand), rel=1e-5)
    logits = Predictor(model).compute_outputs(examples, 3, "test")
    np.testing.assert_allclose(score_windows(logits, examples)[0], by_hand, rtol=1e-4)


@pytest.mark.oracle
def test_the_loss_is_transformers_own_where_nothing_is_padded(model, foreign, examples):
    """A batch of one window has no padding; with padding theirs, like Google's, depends on how much there is."""
    import torch

    theirs = []
    for row, (ids, segments) in enumerate(rows_of(examples)):
        labels = {name: torch.tensor(examples.labels[name][row : row + 1]).long() for name in POSITIONS}
        with torch.no_grad():
            outputs = foreign[0](
                torch.tensor(ids[None]).long(), token_type_ids=torch.tensor(segments[None]).long(), **labels
            )
        theirs.append(float(outputs.loss))
    features, labels = batch_of(examples)
    assert objective_loss(model(features), features, labels) == pytest.approx(np.mean(theirs), rel=1e-5)


def test_the_loss_of_a_full_softmax_is_google_s_formula():
    """compute_loss of run_squad.py: -mean(sum(one_hot * log_softmax(logits))), start and end, halved; no padding."""
    generator = np.random.default_rng(0)
    outputs = generator.normal(size=(4, 7, 2)).astype("float32")
    starts, ends = np.array([0, 3, 6, 2], np.int32), np.array([0, 5, 6, 4], np.int32)
    labels = {"start_positions": starts, "end_positions": ends, "lengths": np.full(4, 7, np.int32)}
    losses = [
        -np.mean(np.sum(np.eye(7)[positions] * tf.nn.log_softmax(outputs[..., side], axis=-1).numpy(), axis=-1))
        for side, positions in enumerate((starts, ends))
    ]
    assert objective_loss(outputs, {}, labels) == pytest.approx(sum(losses) / 2.0, rel=1e-6)


def test_padding_changes_neither_loss_nor_gradient():
    generator = np.random.default_rng(1)
    outputs = generator.normal(size=(2, 6, 2)).astype("float32")
    labels = {
        "start_positions": np.array([1, 0], np.int32),
        "end_positions": np.array([3, 0], np.int32),
        "lengths": np.array([4, 6], np.int32),
    }
    padded = np.pad(outputs, ((0, 0), (0, 5), (0, 0)), constant_values=50.0)
    padded[0, 4:] = 1e4
    variable = tf.Variable(padded)
    with tf.GradientTape() as tape:
        (total,) = SpanObjective().sums(variable, labels).values()
    expected = [numpy_loss(outputs[0, :4], 1, 3), numpy_loss(outputs[1], 0, 0)]
    assert float(total) == pytest.approx(sum(expected), rel=1e-5)
    gradient = tape.gradient(total, variable).numpy()
    assert not gradient[0, 4:].any() and not gradient[1, 6:].any() and np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient.sum(axis=1), 0.0, atol=1e-6)


def test_span_accuracy_counts_windows_with_both_ends_right():
    outputs = np.zeros((3, 4, 2), "float32")
    for row, (start, end) in enumerate([(1, 2), (1, 3), (3, 3)]):
        outputs[row, start, 0] = outputs[row, end, 1] = 5.0
    labels = {
        "start_positions": np.array([1, 1, 0], np.int32),
        "end_positions": np.array([2, 2, 2], np.int32),
        "lengths": np.array([4, 4, 3], np.int32),  # The third window's last token is padding: (0, 0) is its best.
    }
    rows = [row[:length] for row, length in zip(outputs, labels["lengths"], strict=True)]
    examples = Examples(None, None, np.array([0, 4, 8, 11]), labels)
    assert score_windows(np.concatenate(rows), examples)[1].tolist() == [True, False, False]


def test_an_empty_batch_weighs_nothing():
    none = np.zeros(0, np.int32)
    labels = {"start_positions": none, "end_positions": none, "lengths": none}
    objective = SpanObjective()
    (total,) = objective.sums(tf.zeros((0, 5, 2)), labels).values()
    (weight,) = objective.weights({}, labels).values()
    assert float(total) == float(weight) == 0.0


def test_the_toy_vocabulary_fills_the_toy_table():
    assert len(WORDS) == SIZES["vocab_size"]
