"""Holds tokenized examples without padding, and makes their batches for training and evaluation.

Shapes: N examples, K sequences of an example (1, or the choices of a multiple-choice question), R = N * K sequences,
T tokens of all sequences, B examples of a batch, S tokens of its longest sequence. A sequence may be read as several
windows: W windows of all sequences, at most X windows of a sequence in a batch.

Functions import TensorFlow when they are called, so that a wrong file is reported within a second.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tasks.fine_tuning.settings import DEFAULT_EPOCHS, MIN_STEPS

# Examples are sorted by length within pools of this many batches. Share of padding, measured at batch size 32 on SST-2
# and RTE: unsorted 67% and 48%, pools of 10 batches 18% and 8%, of 50 batches 5% and 2%, a whole epoch 0% and 1%.
POOL_BATCHES = 50


class Examples(NamedTuple):
    """Concatenated token ids of all sequences, and labels.

    Attributes:
        token_ids: int32, shape (T,).
        segment_ids: int32, shape (T,).
        row_splits: int64, shape (R + 1,): sequence i spans `[row_splits[i], row_splits[i + 1])`; with windows (W + 1,).
        labels: arrays of shape (N, ...) by name; empty if there are none.
        token_labels: arrays of shape (T, ...) by name; batches pad them with 0.
        rows_per_example: K, for batches of shape (B, K, S); None for one sequence per example, and (B, S).
        vectors: float32, shape (V, D), possibly memory-mapped: the model takes `vectors[token_ids]`, not the ids.
        shares: float, shape (N,): how often each example is drawn in an epoch, on average; None: once.
        window_splits: int64, shape (R + 1,): sequence i is the windows `[window_splits[i], window_splits[i + 1])`, and
            a batch has the shape (B, X, S) or (B, K, X, S); None: sequences are not split into windows.
        pooling: how the outputs of a sequence's windows are combined, one of `POOLED`; None: there are no windows.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    row_splits: np.ndarray
    labels: dict[str, np.ndarray] = {}
    token_labels: dict[str, np.ndarray] = {}
    rows_per_example: int | None = None
    vectors: np.ndarray | None = None
    shares: np.ndarray | None = None
    window_splits: np.ndarray | None = None
    pooling: str | None = None

    @property
    def sequence_splits(self) -> np.ndarray:
        """Offsets of the sequences in the tokens, with all their windows: int64, shape (R + 1,)."""
        return self.row_splits if self.window_splits is None else self.row_splits[self.window_splits]

    @property
    def num_examples(self) -> int:
        return (len(self.sequence_splits) - 1) // (self.rows_per_example or 1)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example's longest sequence, int64, shape (N,)."""
        return np.diff(self.sequence_splits).reshape(-1, self.rows_per_example or 1).max(axis=1)


def join(first: Examples, second: Examples) -> Examples:
    """Concatenates examples. Those of `second` are drawn once per epoch, and labels that they lack become 0."""

    def append(values: dict[str, np.ndarray], more: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
        none = {name: np.zeros((count, *array.shape[1:]), array.dtype) for name, array in values.items()}
        return {name: np.append(array, more.get(name, none[name]), axis=0) for name, array in values.items()}

    windows, shares = first.window_splits, first.shares
    return first._replace(
        token_ids=np.append(first.token_ids, second.token_ids),
        segment_ids=np.append(first.segment_ids, second.segment_ids),
        row_splits=_append_splits(first.row_splits, second.row_splits),
        labels=append(first.labels, second.labels, second.num_examples),
        token_labels=append(first.token_labels, second.token_labels, len(second.token_ids)),
        shares=None if shares is None else np.append(shares, np.ones(second.num_examples)),
        window_splits=None if windows is None else _append_splits(windows, second.window_splits),
    )


def take(examples: Examples, rows: np.ndarray) -> Examples:
    """Returns the examples with these indices, int, shape (M,). Each example must have one sequence."""
    (numbers, windows), of_rows = (rows, None), examples.row_splits
    if examples.window_splits is not None:
        numbers, windows = _take_ranges(examples.window_splits, rows)
    tokens, row_splits = _take_ranges(of_rows, numbers)
    return examples._replace(
        token_ids=examples.token_ids[tokens],
        segment_ids=examples.segment_ids[tokens],
        row_splits=row_splits,
        labels={name: values[rows] for name, values in examples.labels.items()},
        window_splits=windows,
    )


def _take_ranges(splits: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices within the ranges of these rows, and the splits of the taken ranges."""
    starts, ends = splits[rows], splits[rows + 1]
    indices = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    return np.concatenate([np.empty(0, np.int64), *indices]), np.append(0, np.cumsum(ends - starts))


def _append_splits(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.append(first, first[-1] + second[1:])


# === The order of the examples ===


def count_steps(num_examples: int, batch_size: int, num_epochs: float | None) -> int:
    """Returns the number of full batches in `num_epochs` passes (google-research/bert run_classifier.py: main).

    None means `DEFAULT_EPOCHS`, but at least `MIN_STEPS` steps. Without examples there are no steps.
    """
    if num_epochs is None:
        return max(count_steps(num_examples, batch_size, DEFAULT_EPOCHS), MIN_STEPS) if num_examples else 0
    return int(num_examples * num_epochs / batch_size)


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int, shares: np.ndarray | None) -> np.ndarray:
    """Shuffles and batches the examples of one epoch, as a pure function of its arguments.

    As in google-research/bert, every batch is full. Examples left over at the end of an epoch start the next one, so
    that E epochs give `count_steps(N, batch_size, E)` batches, and only the last epoch may leave examples out. To group
    similar lengths, the shuffled examples are sorted by length within pools of `POOL_BATCHES` batches, and then the
    batches are shuffled. With `shares`, as in `Examples`, an epoch draws some examples several times, and others never.

    Returns:
        Indices of examples, int64, shape (batches, batch_size).
    """
    count = len(lengths)
    start, stop = (number * count // batch_size * batch_size for number in (epoch, epoch + 1))
    passes = range(start // count, -(-stop // count))
    stream = [_draw(np.random.default_rng([seed, number, 0]), count, shares) for number in passes]
    order = np.concatenate([np.empty(0, np.int64), *stream])[start % count :][: stop - start]
    pools = np.arange(len(order)) // (POOL_BATCHES * batch_size)
    batches = order[np.lexsort((lengths[order], pools))].reshape(-1, batch_size)
    return np.random.default_rng([seed, epoch, 1]).permutation(batches)


def _draw(generator: np.random.Generator, count: int, shares: np.ndarray | None) -> np.ndarray:
    """Returns `count` example indices in random order, each once or as often as its share, rounded up or down."""
    order = generator.permutation(count)
    if shares is None:
        return order
    ends = np.cumsum(shares[order])
    places = (np.arange(count) + generator.random()) * ends[-1] / count
    return generator.permutation(order[np.searchsorted(ends, places, side="right")])


def standardize(examples: Examples) -> tuple[Examples, tuple[float, float]]:
    """Returns examples whose numbers are standardized, and the mean and standard deviation of the numbers."""
    kind = "labels" if examples.labels else "token_labels"
    labels = getattr(examples, kind)
    known = labels["labels"][labels["weights"] > 0] if "weights" in labels else labels["labels"]
    center, spread = float(known.mean(dtype=np.float64)), float(known.std(dtype=np.float64)) or 1.0
    numbers = ((labels["labels"] - center) / spread).astype(np.float32)
    return examples._replace(**{kind: {**labels, "labels": numbers}}), (center, spread)


def train_batches(
    lengths: np.ndarray, batch_size: int, seed: int, start_step: int, num_steps: int, shares: np.ndarray | None = None
) -> np.ndarray:
    """Returns the example indices of the batches `[start_step, num_steps)`: int64, shape (batches, batch_size)."""
    epochs = range(start_step * batch_size // len(lengths), -(-num_steps * batch_size // len(lengths)))
    batches = [epoch_batches(lengths, batch_size, seed, epoch, shares) for epoch in epochs]
    first = epochs.start * len(lengths) // batch_size
    batches = np.concatenate([np.empty((0, batch_size), np.int64), *batches])
    return batches[start_step - first : max(num_steps - first, 0)]


# === Batches ===


def make_train_dataset(
    examples: Examples, batch_size: int, seed: int, start_step: int, num_steps: int, length: int | None = None
):
    """Makes the training batches `[start_step, num_steps)`.

    Args:
        examples: examples with labels, token labels, or both.
        batch_size: examples per batch, over all devices.
        seed: seed of the order, which depends only on the seed and the epoch.
        start_step: number of batches that were already trained on, which are skipped at no cost.
        num_steps: number of batches of the whole training.
        length: tokens to pad every sequence to (static shapes, for XLA), or None for the longest of the batch.

    Returns:
        `tf.data.Dataset` of dicts (features, labels). The features are `token_ids`, `segment_ids` and `padding_mask`,
        int32 of shape (B, S) or (B, K, S), with windows (B, X, S) or (B, K, X, S). With vectors they are `features`,
        float32 of shape (B, S, D) with arbitrary values at padding, and `padding_mask`. Labels have the shape (B, ...),
        token labels that of the features.
    """
    batches = train_batches(examples.lengths, batch_size, seed, start_step, num_steps, examples.shares)
    limits = np.arange(len(batches) + 1) * batch_size
    return _make_dataset(examples, batches.ravel(), limits, length, batch_size)


def make_eval_dataset(examples: Examples, batch_size: int, *, is_full: bool = False, is_static: bool = False):
    """Makes the batches of one pass over all examples, sorted by length.

    Args:
        examples, batch_size: as in `make_train_dataset`.
        is_full: whether the last batch is filled up with copies of its last example; otherwise it may be smaller.
        is_static: whether every sequence is padded to the longest of all; needs `is_full`.

    Returns:
        A `tf.data.Dataset` as from `make_train_dataset`, or of `(features,)` without labels; and the example indices in
        the order of the batches, int64, shape (N,), or more if `is_full`.
    """
    order = np.argsort(examples.lengths, kind="stable")
    order = np.pad(order, (0, -len(order) % batch_size if is_full else 0), mode="edge")
    limits = np.append(np.arange(0, len(order), batch_size), len(order))
    return _make_dataset(examples, order, limits, int(examples.lengths.max()) if is_static else None, batch_size), order


def _make_dataset(examples: Examples, order: np.ndarray, limits: np.ndarray, length: int | None, batch_size: int):
    """Makes a dataset whose batch i holds the examples `order[limits[i] : limits[i + 1]]`.

    Shapes are static if `length` is given.
    """
    import tensorflow as tf

    choices = examples.rows_per_example or 1
    groups = [] if examples.rows_per_example is None else [choices]
    splits = [examples.row_splits] if examples.window_splits is None else [examples.window_splits, examples.row_splits]
    token_ids = tf.RaggedTensor.from_nested_row_splits(examples.token_ids, splits)
    segment_ids = token_ids.with_flat_values(tf.constant(examples.segment_ids))
    token_labels = {name: token_ids.with_values(tf.constant(array)) for name, array in examples.token_labels.items()}
    labels = {name: tf.constant(array) for name, array in examples.labels.items()}
    order = tf.constant(order)
    static_size, vectors = None if length is None else batch_size, examples.vectors

    def dense(rows):
        inner = rows.flat_values.shape[1:]
        rows = rows.to_tensor(shape=[*[None] * len(splits), length, *inner])  # All padding is 0; the mask hides it.
        sizes = [*[None] * (len(splits) - 1), length, *inner]
        shape = [-1, *groups, *tf.unstack(tf.shape(rows)[1:])]
        return tf.ensure_shape(tf.reshape(rows, shape), [static_size, *groups, *sizes])

    @tf.autograph.experimental.do_not_convert
    def gather(start, limit):
        numbers = tf.ensure_shape(order[start:limit], [static_size])
        rows = tf.reshape(numbers[:, tf.newaxis] * choices + tf.range(choices, dtype=tf.int64), [-1])
        ids = tf.gather(token_ids, rows)
        features = {
            "token_ids": dense(ids),
            "segment_ids": dense(tf.gather(segment_ids, rows)),
            "padding_mask": dense(tf.ones_like(ids)),
        }
        if vectors is not None:
            looked_up = tf.numpy_function(lambda numbers: vectors[numbers], [features["token_ids"]], tf.float32)
            looked_up = tf.ensure_shape(looked_up, [static_size, length, vectors.shape[1]])
            features = {"features": looked_up, "padding_mask": features["padding_mask"]}
        if not labels and not token_labels:
            return (features,)
        dense_labels = {name: dense(tf.gather(array, rows)) for name, array in token_labels.items()}
        return features, {**{name: tf.gather(array, numbers) for name, array in labels.items()}, **dense_labels}

    dataset = tf.data.Dataset.from_tensor_slices((limits[:-1], limits[1:]))
    return dataset.map(gather, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


# === Answers ===


class Predictor:
    """Applies a model on all replicas of the strategy in whose scope it was built. Its graph is traced only once.

    Each of several workers computes all outputs on its own, without waiting for the others.

    Args:
        model: Keras model that maps the features to one tensor, shape (B, ...). If sequences are read in windows, it is
            applied to the windows, and their outputs are pooled.
    """

    def __init__(self, model):
        import tensorflow as tf

        from keras_bert.answers.windows import answer_windows
        from tasks.engine.strategy import needs_static_shapes

        strategy = model.distribute_strategy
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            strategy = tf.distribute.get_strategy()
        self._strategy, self._is_static = strategy, needs_static_shapes(strategy)

        def answer(features, pooling):
            return answer_windows(model, features, pooling) if pooling else model(features, training=False)

        def compute(batches, pooling):
            return strategy.run(lambda features: answer(features, pooling), args=batches.get_next())

        self._compute = tf.function(compute, autograph=False)

    def compute_outputs(self, examples: Examples, batch_size: int, description: str | None = None) -> np.ndarray:
        """Applies the model to every example.

        Args:
            examples: N examples, at least one; labels are ignored.
            batch_size: examples per batch.
            description: title of the progress bar, or None for no bar.

        Returns:
            float32, shape (N, ...), in the order of the examples. If the model answers for each token of an example,
            (B, S, C): shape (T, C), aligned with `examples.token_ids`.
        """
        unlabelled = examples._replace(labels={}, token_labels={})
        outputs, starts, lengths = None, examples.row_splits[:-1], np.diff(examples.row_splits)
        for numbers, batch in self.batches(unlabelled, batch_size, description):
            per_token = batch.ndim == 3 and examples.rows_per_example is None
            if per_token:
                positions = np.arange(batch.shape[1])
                is_real = positions < lengths[numbers, np.newaxis]  # [B, S]
                numbers, batch = (starts[numbers, np.newaxis] + positions)[is_real], batch[is_real]
            if outputs is None:
                count = len(examples.token_ids) if per_token else examples.num_examples
                outputs = np.empty((count, *batch.shape[1:]), np.float32)
            outputs[numbers] = batch
        return outputs

    def batches(
        self, examples: Examples, batch_size: int, description: str | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields example indices and outputs of each batch, as arrays. Arguments are as in `compute_outputs`.

        `examples` have no labels. The last batch may repeat its last example.
        """
        from tqdm import tqdm

        from tasks.engine.strategy import distribute

        strategy, num_replicas = self._strategy, self._strategy.num_replicas_in_sync
        batch_size = -(-batch_size // num_replicas) * num_replicas
        is_full = self._is_static or num_replicas > 1
        dataset, order = make_eval_dataset(examples, batch_size, is_full=is_full, is_static=self._is_static)
        batches, disable = iter(distribute(strategy, dataset)), description is None
        with tqdm(total=len(order), desc=description, unit="example", mininterval=0.5, disable=disable) as progress:
            for start in range(0, len(order), batch_size):
                numbers = order[start : start + batch_size]
                outputs = self._compute(batches, examples.pooling)
                yield numbers, (strategy.gather(outputs, axis=0) if num_replicas > 1 else outputs).numpy()
                progress.update(len(numbers))
