"""The rows that a task's `fit` takes, their order, and what it warns of."""

import warnings

import keras_nlp
import numpy as np
import pytest
import tensorflow as tf
import toy_tasks
from toy_tasks import ANIMALS, LENGTH

from keras_bert import BertPreprocessor, BertPretrainer, BertTextClassifier, BertTokenClassifier
from keras_bert.models.rows import make_batches, read_rows, split_rows

COUNT = 100
TEXTS, LABELS = [f"row {number}" for number in range(COUNT)], list(range(COUNT))


def test_rows_of_pandas_are_texts():
    pd = pytest.importorskip("pandas")
    column = pd.Series(["a", "b"], index=[7, 3])
    assert read_rows("x", column).numpy().tolist() == [b"a", b"b"]
    assert read_rows("x", {"text": column})["text"].dtype == "string"
    # What `validation_split` can cut, and tf.data take.
    for rows in ([1, 0], pd.Series([1, 0], dtype=object), pd.Series([[1], [0]]), [[1], [0]]):
        assert read_rows("y", rows).numpy().ravel().tolist() == [1, 0]
    assert read_rows("x", column.to_frame()).numpy().tolist() == [b"a", b"b"]
    frame = pd.DataFrame({"first": [1.0], "second": [0.0]})
    assert read_rows("x", frame) is frame
    with pytest.raises(ValueError, match="`x` must have at least one row"):
        read_rows("x", np.array([], "U1"))
    with pytest.raises(ValueError, match="`x` must have a value in each row. Received: <NA> in row 1"):
        read_rows("x", pd.Series(["a", None], dtype="string"))


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_a_row_of_pandas_may_be_a_list_of_any_kind(kind):
    pd = pytest.importorskip("pandas")
    for rows in ([["a", "b"], ["c"]], [["a", "b"], ["c", "d"]]):
        words = read_rows("x", pd.Series([kind(row) for row in rows]))
        assert list(map(list, words.numpy())) == [[word.encode() for word in row] for row in rows]
    scores = read_rows("y", pd.Series([kind([0.5, 1.0]), kind([2.0])]))
    assert scores.to_list() == [[0.5, 1.0], [2.0]] and scores.dtype.is_floating


def test_rows_that_cannot_be_read_are_named():
    with pytest.raises(ValueError, match=r"`x` must have a value in each row. Received: \['a', None\] in row 1"):
        read_rows("x", [["a"], ["a", None]])
    with pytest.raises(ValueError, match="`x` must be rows or a tf.data.Dataset .*an `output_signature`.*: <generator"):
        read_rows("x", ((["a"], [1]) for _ in range(2)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_score_that_is_no_number_is_refused(dtype):
    scores = np.array([1.0, 0.5, np.nan], dtype)
    with pytest.raises(ValueError, match="`y` must have a value in each row. Received: .*nan.* in row 2"):
        read_rows("y", scores)
    with pytest.raises(ValueError, match="`y` must have a value in each row. Received: .*inf.* in row 0"):
        read_rows("y", np.array([np.inf, 1.0], dtype))
    read = read_rows("y", scores[:2])
    assert read.dtype == dtype and read.numpy().tolist() == [1.0, 0.5]
    assert read_rows("y", scores[np.newaxis]).shape == (1, 3)  # A word may have no score.


def rows_of(batches: tf.data.Dataset) -> list[tuple]:
    """Returns an epoch's rows, each a tuple of the values of its columns."""
    return [row for batch in batches for row in zip(*(column.numpy().tolist() for column in batch), strict=True)]


def as_rows(*columns) -> list[tuple]:
    return [(text.encode(), *others) for text, *others in zip(TEXTS, *columns, strict=True)]


def test_each_epoch_has_all_rows_in_an_order_of_its_own():
    weights = np.arange(COUNT) / 8
    columns = read_rows("x", TEXTS), LABELS, weights
    expected = as_rows(LABELS, weights)
    assert rows_of(make_batches(read_rows("x", columns), 8)) == expected
    batches = make_batches(read_rows("x", columns), 8, shuffle=True)
    epochs = [rows_of(batches) for _ in range(2)]
    assert epochs[0] != epochs[1] != expected != epochs[0]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(expected)
    assert [len(batch[0]) for batch in batches] == [8] * 12 + [4] and len(batches) == 13
    assert len(next(iter(make_batches((np.array(LABELS),))))[0]) == 32


def test_columns_may_be_nested_and_rows_of_different_lengths():
    words = read_rows("x", [["a", "b"], ["c"], ["d", "e", "f"]])
    [(pair, labels, none)] = make_batches(
        ({"words": words, "more": np.eye(3)}, np.array([5, 6, 7]), None), shuffle=True
    )
    order = labels.numpy() - 5
    assert pair["words"].to_list() == [words.to_list()[number] for number in order]
    np.testing.assert_array_equal(pair["more"], np.eye(3)[order])
    assert none is None


def test_a_share_of_the_rows_is_held_out_as_keras_does():
    first, last = split_rows(((np.array(TEXTS), tf.constant(LABELS)), None), 0.25)
    assert first[0][1].numpy().tolist() == LABELS[:75] and last[0][0].tolist() == TEXTS[75:] and last[1] is None
    for share in (0.999, 1.0):
        with pytest.raises(ValueError, match=f"must leave rows on both sides. Received: {share} of 3 rows"):
            split_rows((np.arange(3),), share)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("held_out", ["split", "data", "dataset", None])
def test_fit_shuffles_rows_for_training_alone(monkeypatch, shuffle, held_out):
    calls = []
    monkeypatch.setattr(keras_nlp.models.Task, "fit", lambda self, *args, **kwargs: calls.append((args, kwargs)))
    model = BertTextClassifier(toy_tasks.backbone(), 2)
    given = {
        "split": {"validation_split": 0.2},
        "data": {"validation_data": (TEXTS, LABELS)},
        "dataset": {"validation_data": tf.data.Dataset.from_tensors(0)},
        None: {},
    }[held_out]
    model.fit(TEXTS, LABELS, batch_size=16, shuffle=shuffle, epochs=3, **given)
    [((x, y, batch_size, weights, validation), kwargs)] = calls
    assert y is batch_size is weights is None
    assert kwargs == {"class_weight": None, "shuffle": False, "epochs": 3}
    count = 80 if held_out == "split" else COUNT
    assert sorted(rows_of(x)) == sorted(as_rows(LABELS)[:count]) and (rows_of(x) == as_rows(LABELS)[:count]) != shuffle
    if held_out in ("split", "data"):
        assert rows_of(validation) == as_rows(LABELS)[-20 if held_out == "split" else 0 :]
        assert max(len(batch[0]) for batch in validation) == 16
    else:
        assert validation is given.get("validation_data")


def test_a_dataset_is_taken_as_it_is(monkeypatch):
    calls = []
    monkeypatch.setattr(keras_nlp.models.Task, "fit", lambda self, *args, **kwargs: calls.append(args))
    dataset = tf.data.Dataset.from_tensors((TEXTS, LABELS))
    BertTextClassifier(toy_tasks.backbone(), 2).fit(dataset, validation_data=dataset)
    assert calls == [(dataset, None, None, None, dataset)]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("kind", ["pooled", "tagger", "pretrainer"])
def test_no_warning_is_of_what_a_task_does_not_train(kind):
    """Keras warns of a pooler without gradients, and of `shuffle` with KerasHub's datasets."""
    tokenizer, texts = toy_tasks.tokenizer(), ["the cat", "a dog sat"]
    cls, arguments, rows = {
        "pooled": (BertTextClassifier, {"labels": ANIMALS, "pooling": "mean"}, (texts, ["cat", "dog"])),
        "tagger": (BertTokenClassifier, {"labels": ["O", "B"]}, ([["the", "cat"], ["a"]], [["O", "B"], ["O"]])),
        "pretrainer": (BertPretrainer, {"use_next_sentence": False}, (texts,)),
    }[kind]
    preprocessor = (BertPreprocessor if kind == "pooled" else cls.preprocessor_cls)(tokenizer, LENGTH)
    model = cls(toy_tasks.backbone(), preprocessor=preprocessor, **arguments)
    before = [layer.get_weights() for layer in model.backbone.layers]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*rows, verbose=0)
    assert not [warning for warning in caught if "tf.data functions" not in str(warning.message)]
    changed = [
        layer.name
        for layer, weights in zip(model.backbone.layers, before, strict=True)
        if any(np.any(new != old) for new, old in zip(layer.get_weights(), weights, strict=True))
    ]
    assert changed and "pooled_dense" not in changed


def test_what_fit_and_evaluate_would_leave_out_is_refused(monkeypatch):
    model = BertTextClassifier(toy_tasks.backbone(), 2)
    batches = tf.data.Dataset.from_tensors((TEXTS, LABELS))
    with pytest.raises(ValueError, match="`validation_split` needs rows"):
        model.fit(batches, validation_split=0.5)
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="`sample_weight` weights labels. Received: no `y`"):
            call(TEXTS, sample_weight=[0.0] * COUNT)
        with pytest.raises(ValueError, match="`sample_weight` must have a value in each row. Received: nan in row 1"):
            call(TEXTS, LABELS, sample_weight=[1.0, np.nan])
        with pytest.raises(ValueError, match=r"as many rows in each column. Received: \[100, 100, 2\] rows"):
            call(TEXTS, LABELS, sample_weight=[1.0, 0.0])
    rows = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="`x` must be batches of rows. Call `batch` of the dataset"):
            call(rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be whole numbers"):
        model.preprocess_samples(TEXTS, [0.6, 1.4] * (COUNT // 2))
