"""Packing plans and packed batches against NumPy, and packed training against unpacked on the same instances."""

import dataclasses
import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_examples import serialize_instance
from toy_instances import draw_tokens, mask, masking_rules, write_records

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from tasks.engine.optimization import build_optimizer
from tasks.engine.training import Trainer
from tasks.pretraining.data import shard_index
from tasks.pretraining.data.shard_index import read_records
from tasks.pretraining.train import packed_data
from tasks.pretraining.train.batches import TrainBatches, make_eval_dataset
from tasks.pretraining.train.losses import PretrainingObjective
from tasks.pretraining.train.packed_data import pack_window, plan_packing

N, S, P, V = 101, 32, 5, 60
LENGTHS = {"max_seq_length": S, "max_predictions_per_seq": P}
TINY = {
    "vocabulary_size": V,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 64,
    "dropout": 0.0,
    "initializer_range": 0.1,
    "max_sequence_length": S,
}
RULES = masking_rules(V, P)


@pytest.fixture(scope="module")
def source():
    return draw_tokens(N, S, V)


@pytest.fixture(scope="module")
def files(source, tmp_path_factory):
    token_ids, lengths, first_lengths = source
    batch = mask(token_ids, lengths, RULES)
    return write_records(tmp_path_factory.mktemp("records"), batch, lengths, first_lengths, num_files=3)


def plan_of(files, **changes):
    return plan_packing(read_records(files, V, **LENGTHS), **changes)


def evaluated(files, plan, batch_size):
    return make_eval_dataset(read_records(files, V, **LENGTHS), batch_size=batch_size, packing=plan)


@pytest.fixture(scope="module")
def plan(files):
    return plan_of(files)


# === Planning ===


def best_fit(lengths, masked, max_length, max_masked):
    """The rows' loads, by looking at every row for every record."""
    rows = []
    for record in sorted(range(len(lengths)), key=lambda record: -lengths[record]):
        rooms = [
            (max_length - sum(lengths[other] for other in row) - lengths[record], -number)
            for number, row in enumerate(rows)
            if sum(masked[other] for other in row) + masked[record] <= max_masked
        ]
        fitting = [-number for room, number in rooms if room >= 0 and room == min(r for r, _ in rooms if r >= 0)]
        if fitting:
            rows[fitting[0]].append(record)
        else:
            rows.append([record])
    return rows


@pytest.mark.parametrize("max_masked", [4, 7, 100])
def test_a_window_is_packed_as_well_as_by_brute_force(max_masked):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 33, 300)
    masked = np.minimum(np.maximum(1, lengths // 6), 4)
    rows = pack_window(lengths, masked, 32, max_masked)
    assert np.bincount(rows, lengths).max() <= 32
    assert np.bincount(rows, masked).max() <= max_masked
    assert set(rows) == set(range(rows.max() + 1))
    assert abs(int(rows.max()) + 1 - len(best_fit(lengths, masked, 32, max_masked))) <= 1
    firsts = [np.flatnonzero(rows == row)[0] for row in range(rows.max() + 1)]
    assert firsts == sorted(firsts)
    np.testing.assert_array_equal(rows, pack_window(lengths, masked, 32, max_masked))


def test_rows_of_a_window_by_hand():
    # 7 + 3, 6 + 4 and 5 + 2 + 1; the masked positions of the last are too many for one row.
    lengths, masked = np.array([4, 7, 1, 6, 3, 5, 2]), np.ones(7, int)
    assert pack_window(lengths, masked, 10, 9).tolist() == [0, 1, 2, 0, 1, 2, 2]
    assert pack_window(lengths, masked, 10, 2).tolist() == [0, 1, 2, 0, 1, 3, 3]


def test_the_plan_says_what_packing_gains(source, plan):
    real = int(source[1].sum())
    assert len(plan.row_of_record) == N and len(plan.rows_per_window) == 3
    assert real / (N * S) < 0.45 < 0.9 < real / (plan.num_rows * S)
    assert P <= plan.predictions_per_row < 2 * P
    assert plan.examples_per_row > 2


def test_a_plan_for_dynamic_masks_has_room_for_whichever_masks_more(files, plan):
    few, many = masking_rules(V, 1), dataclasses.replace(RULES, masked_lm_prob=0.4)
    assert plan_of(files, masking=few).predictions_per_row == plan.predictions_per_row
    assert plan_of(files, masking=many).predictions_per_row > plan.predictions_per_row


def test_progress_counts_records(files, capfd):
    plan_of(files)
    assert re.search(rf"plan rows: 100%.* {N}/{N} ", capfd.readouterr().err)


def test_a_mask_with_a_hole_is_refused_and_an_empty_file_is_not(files, tmp_path):
    path = str(tmp_path / "hole.tfrecord")
    example = tf.train.Example.FromString(next(tf.data.TFRecordDataset(files[0]).as_numpy_iterator()))
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example.SerializeToString())
        example.features.feature["input_mask"].int64_list.value[1] = 0
        writer.write(example.SerializeToString())
    with pytest.raises(InputError, match=r"hole.tfrecord: record 2: input_mask must be ones, then zeros"):
        plan_of([path])
    empty = str(tmp_path / "empty.tfrecord")
    tf.io.TFRecordWriter(empty).close()
    assert plan_of([empty, *files]).num_rows == plan_of(files).num_rows


# === Batches ===


def rows_of(dataset, count=None):
    """Features and labels of each row, as NumPy arrays."""
    for features, labels in itertools.islice(dataset, count):
        batch = {name: value.numpy() for name, value in {**features, **labels}.items()}
        for row in range(len(batch["token_ids"])):
            yield {name: value[row] for name, value in batch.items()}


def instances_of(row):
    """The unpadded instances of a row: (tokens, segments, masked positions, answers, next-sentence label)."""
    for slot in range(int(row["next_sentence_weights"].sum())):
        place = np.flatnonzero(row["padding_mask"] == slot + 1)
        assert place[0] == row["first_positions"][slot]
        assert (np.diff(place) == 1).all()
        used = (row["mask_weights"] > 0) & np.isin(row["mask_positions"], place)
        yield (
            tuple(row["token_ids"][place]),
            tuple(row["segment_ids"][place]),
            tuple(row["mask_positions"][used] - place[0]),
            tuple(row["mask_ids"][used]),
            int(row["next_sentence_labels"][slot]),
        )


def expected_instances(source):
    """The same from the arrays that the records were written of."""
    token_ids, lengths, first_lengths = source
    batch = mask(token_ids, lengths, RULES)
    for number, length in enumerate(lengths):
        used = slice(int(batch.num_masked[number]))
        yield (
            tuple(batch.token_ids[number, :length]),
            tuple((np.arange(length) >= first_lengths[number]).astype(int)),
            tuple(batch.mask_positions[number, used]),
            tuple(batch.mask_ids[number, used]),
            number % 2,
        )


def make(files, plan, **changes):
    settings = {"batch_size": 4, "random_seed": 5, "packing": plan, **changes}
    return TrainBatches(read_records(files, V, **LENGTHS), **settings)


@pytest.fixture(scope="module")
def stream(files, plan):
    """The rows of two epochs of training batches."""
    batches = make(files, plan, batch_size=plan.num_rows)(0)
    return list(rows_of(batches, 2))


def test_an_epoch_of_rows_holds_every_instance_once(source, files, plan, stream):
    expected = sorted(expected_instances(source))
    evaluation = evaluated(files, plan, 4)
    rows = list(rows_of(evaluation))
    assert len(rows) == plan.num_rows
    assert int(evaluation.cardinality()) == -(-plan.num_rows // 4)
    assert sorted(itertools.chain(*map(instances_of, rows))) == expected
    epochs = [stream[start : start + plan.num_rows] for start in range(0, len(stream), plan.num_rows)]
    assert len(epochs) == 2
    for epoch in epochs:
        assert sorted(itertools.chain(*map(instances_of, epoch))) == expected
    assert len({tuple(row["token_ids"][1] for row in epoch) for epoch in epochs}) == 2


def test_unused_places_are_zeros(stream):
    for row in stream:
        assert not row["token_ids"][row["padding_mask"] == 0].any()
        assert not row["mask_positions"][row["mask_weights"] == 0].any()
        assert not row["next_sentence_labels"][row["next_sentence_weights"] == 0].any()
        assert row["padding_mask"].max() == row["next_sentence_weights"].sum()


def test_shapes_are_static_for_training(files, plan):
    features, labels = make(files, plan)(0).element_spec
    examples, predictions = plan.examples_per_row, plan.predictions_per_row
    assert {name: tuple(spec.shape) for name, spec in features.items()} == {
        "token_ids": (4, S),
        "segment_ids": (4, S),
        "padding_mask": (4, S),
        "mask_positions": (4, predictions),
        "first_positions": (4, examples),
    }
    assert {name: tuple(spec.shape) for name, spec in labels.items()} == {
        "mask_ids": (4, predictions),
        "mask_weights": (4, predictions),
        "next_sentence_labels": (4, examples),
        "next_sentence_weights": (4, examples),
    }


@pytest.mark.slow(keep=["None"])
@pytest.mark.parametrize("masking", [None, RULES])
def test_a_start_step_continues_exactly(files, monkeypatch, masking):
    """Across the end of the second epoch."""
    monkeypatch.setattr(shard_index, "GROUP", 8)
    monkeypatch.setattr(packed_data, "WINDOW", 16)
    plan = plan_of(files, masking=masking)
    assert 9 * 4 < plan.num_rows < 12 * 4 and len(plan.rows_per_window) == 9
    whole = list(rows_of(make(files, plan, masking=masking)(0), 25))
    again = list(rows_of(make(files, plan, masking=masking)(17), 8))
    assert len(again) == 32
    for expected, row in zip(whole[4 * 17 :], again, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(row[name], value, err_msg=name)


def test_windows_do_not_mix(source, files, monkeypatch):
    monkeypatch.setattr(shard_index, "GROUP", 4)
    monkeypatch.setattr(packed_data, "WINDOW", 8)
    small = plan_of(files)
    rows = list(rows_of(evaluated(files, small, 4)))
    assert sorted(itertools.chain(*map(instances_of, rows))) == sorted(expected_instances(source))
    assert small.num_rows > plan_of(files[:1]).num_rows * 3


# === Training ===


def objective_of(outputs, labels, objective):
    sums, weights = objective.sums(outputs, labels), objective.weights({}, labels)
    return tf.add_n([sums[name] / (weights[name] + objective.epsilon) for name in sums])


@pytest.fixture(scope="module")
def same_instances(files, plan):
    """All records as one packed and as one unpacked batch."""
    return [next(iter(evaluated(files, packing, N))) for packing in (plan, None)]


@pytest.mark.slow(keep=["bidirectional-True"])
@pytest.mark.parametrize("use_next_sentence", [True, False])
@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_loss_and_gradients_equal_the_unpacked_ones(same_instances, attention, use_next_sentence):
    models = [
        BertPretrainer(BertBackbone(**TINY, attention=attention, layout=layout), use_next_sentence=use_next_sentence)
        for layout in ("packed", "rectangular")
    ]
    models[1].set_weights(models[0].get_weights())
    objective = PretrainingObjective(use_next_sentence)
    results = []
    for model, (features, labels) in zip(models, same_instances, strict=True):

        @tf.function
        def step(model=model, features=features, labels=labels):
            with tf.GradientTape() as tape:
                loss = objective_of(model(features, training=True), labels, objective)
            gradients = tape.gradient(loss, model.trainable_variables)
            return loss, [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]

        results.append(step())
    (loss, gradients), (expected_loss, expected) = results
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    by_variable = zip(models[0].trainable_variables, gradients, expected, strict=True)
    untouched = set()
    for variable, ours, theirs in by_variable:
        if theirs is None:
            assert ours is None
            untouched.add(variable.path.split("/")[0])
            continue
        difference = np.linalg.norm(ours.numpy() - theirs.numpy())
        # A key's bias shifts all scores of a query: its true gradient is 0, and so its own norm is no measure.
        assert difference <= 1e-5 * max(np.linalg.norm(theirs), 1e-2), variable.path
    assert untouched == (set() if use_next_sentence else {"pooled_dense"})


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile, accumulation", [(False, 1), (False, 2), (True, 2)])
def test_a_training_step_equals_the_unpacked_one(same_instances, tmp_path, jit_compile, accumulation):
    features, labels = same_instances[0]
    # Micro-batches need an even number of rows: one without an instance changes nothing.
    packed = tf.nest.map_structure(
        lambda value: tf.pad(value, [[0, value.shape[0] % 2], *[[0, 0]] * (value.shape.rank - 1)]), (features, labels)
    )
    figures, weights = [], []
    start = None
    for layout, batch, accumulation_steps in (("packed", packed, accumulation), ("rectangular", same_instances[1], 1)):
        model = BertPretrainer(BertBackbone(**TINY, layout=layout), compile=False)
        start = start or model.get_weights()
        model.set_weights(start)
        trainer = Trainer(
            model,
            build_optimizer("adamw", 1e-3, num_train_steps=2, num_warmup_steps=0),
            PretrainingObjective(),
            output_dir=str(tmp_path / layout),
            gradient_accumulation_steps=accumulation_steps,
            jit_compile=jit_compile,
        )
        figures.append({name: float(value) for name, value in trainer.train_step(*batch).items()})
        weights.append(model.get_weights())
    for name in ("loss", "masked_lm_loss", "next_sentence_loss", "gradient_norm", "real_tokens"):
        assert figures[0][name] == pytest.approx(figures[1][name], rel=1e-5), name
    assert figures[0]["examples"] < figures[1]["examples"] == N
    before = np.concatenate([value.ravel() for value in start])
    ours, theirs = (np.concatenate([value.ravel() for value in side]) for side in weights)
    # Adam divides by the gradient's size, so that rounding shows where a gradient is near 0.
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs - before)


@pytest.mark.slow
def test_evaluation_packed_equals_unpacked(files, plan, tmp_path):
    figures, start = [], None
    for layout, packing in (("packed", plan), ("rectangular", None)):
        model = BertPretrainer(BertBackbone(**TINY, layout=layout), compile=False)
        start = start or model.get_weights()
        model.set_weights(start)
        trainer = Trainer(model, keras.optimizers.SGD(0.1), PretrainingObjective(), output_dir=str(tmp_path))
        figures.append(trainer.evaluate(evaluated(files, packing, 8)))
    assert set(figures[0]) == set(figures[1]) >= {"masked_lm_accuracy", "next_sentence_accuracy", "masked_lm_loss"}
    for name, value in figures[1].items():
        assert figures[0][name] == pytest.approx(value, rel=1e-5), name


def test_an_instance_as_long_as_the_row_has_it_alone(tmp_path):
    path = str(tmp_path / "full.tfrecord")
    tokens, positions = np.arange(5, 5 + S, dtype=np.int32), np.array([2], np.int32)
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(3):
            writer.write(serialize_instance(tokens, 9, positions, tokens[positions], False, **LENGTHS))
    full = plan_of([path])
    assert (full.num_rows, full.examples_per_row, full.predictions_per_row) == (3, 1, 1)
    (row, *_) = rows_of(make([path], full)(0), 1)
    np.testing.assert_array_equal(row["token_ids"], tokens)
