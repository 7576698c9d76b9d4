"""BertPreprocessor: turns texts or pairs of texts into the encoder's inputs, in core TensorFlow ops.

Letters: B batch, S sequence, n ids of text that fit into S.
"""

import numbers
import os

import keras
import keras_nlp
import tensorflow as tf

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.layer import arguments_of, keep_arguments
from keras_bert.errors import InputError, shown
from keras_bert.files import keep_copies
from keras_bert.presets import catalog, weights
from keras_bert.tokenization.tokenizer import BertTokenizer
from keras_bert.vocabulary import check_rows

_MIN_SEQUENCE_LENGTH = 3  # [CLS] [SEP] [SEP], a pair whose texts are cut off.
_DEFAULT_LENGTH = 512  # Rows of the position table of every published BERT.
_EXPECTED = "`texts` must be strings, shape (batch,) or (), and pairs a tuple of two such batches."
_MIN_PADDED_LENGTH = 2  # [CLS] [SEP]. An empty batch has it too, since a width of 0 breaks slicing in models.


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPreprocessor(keras_nlp.models.Preprocessor):
    """Tokenizes, truncates, adds [CLS] and [SEP], and pads; works eagerly, in tf.data and in an exported graph.

    One text becomes `[CLS] a [SEP]`, a pair `[CLS] a [SEP] b [SEP]`. Texts that do not fit are cut off at the end. In a
    pair the longer text loses its last id first, or b if both are equally long (google-research/bert,
    run_classifier.py, `_truncate_seq_pair`).

    Args:
        tokenizer: BertTokenizer.
        sequence_length: int, S, at least 3.
        pad_to_longest: bool, whether to pad to the longest sequence of the batch instead, at most `sequence_length`.

    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "so", "what"])
    >>> BertPreprocessor(tokenizer, sequence_length=6)((["so"], ["what"]))["token_ids"].numpy().tolist()
    [[2, 5, 3, 6, 3, 0]]
    """

    backbone_cls = BertBackbone
    tokenizer_cls = BertTokenizer

    def __init__(
        self, tokenizer: BertTokenizer, sequence_length: int = _DEFAULT_LENGTH, pad_to_longest: bool = False, **kwargs
    ):
        super().__init__(**{"_allow_python_workflow": True, **kwargs})  # As in the tokenizer.
        _check_length(sequence_length)
        keep_arguments(self, locals())

    @classmethod
    @keep_copies()  # Sizes and vocabulary are read from the same copy.
    def from_preset(
        cls, preset: str | os.PathLike, sequence_length: int | None = None, pad_to_longest: bool = False, **kwargs
    ) -> "BertPreprocessor":
        """Builds the preprocessor on a preset's tokenizer (`BertTokenizer.from_preset`).

        Args:
            preset: as in `BertTokenizer.from_preset`.
            sequence_length: int; None: as many tokens as the preset's encoder has positions for.
            pad_to_longest, **kwargs: as in the constructor; or `lowercase`, as in `BertTokenizer.from_preset`; or
                `max_sequence_length`, the encoder's number of positions if it differs from the preset's.

        Raises:
            InputError: no such preset; its encoder has fewer positions than `sequence_length`, or fewer rows in its
                token table than the vocabulary has pieces.
            ValueError: `sequence_length` is not an integer of at least 3.
        """
        if sequence_length is not None:
            _check_length(sequence_length)
        preset = catalog.name_of(preset)
        config = weights.read_bert_config(preset) if weights.has_config(preset) else None
        positions = _DEFAULT_LENGTH if config is None else config.max_sequence_length
        positions = kwargs.pop("max_sequence_length", None) or positions
        if sequence_length is not None and sequence_length > positions:
            raise InputError(f"{preset}: has positions for {positions} tokens. Received: {sequence_length=}")
        tokenizer = BertTokenizer.from_preset(preset, lowercase=kwargs.pop("lowercase", None))
        if config is not None:
            check_rows(preset, tokenizer.vocabulary_size(), config.vocabulary_size)
        return cls(tokenizer, positions if sequence_length is None else sequence_length, pad_to_longest, **kwargs)

    @classmethod
    def _add_missing_kwargs(cls, loader, kwargs):
        # KerasHub calls this for a preset that was saved without this preprocessor.
        length = loader.config.get("config", {}).get("max_sequence_length", _DEFAULT_LENGTH)
        return super()._add_missing_kwargs(loader, {"sequence_length": length, **kwargs})

    def get_config(self):
        own = {name: getattr(self, name) for name in arguments_of(type(self), "tokenizer")}
        return {**super().get_config(), **own}

    def __call__(self, x, y=None, sample_weight=None):
        """Turns texts into features; labels and weights pass through.

        Args:
            x: as `texts` of `encode`.
            y: labels, or None.
            sample_weight: weights of the examples, or None.

        Returns:
            The features; with `y`, a tuple of features, labels and, if given, weights, as `keras.Model.fit` takes it.
        """
        # Keras's own `__call__` would convert the texts, and treat a pair as features with labels.
        return self.call(x, y, sample_weight)

    def call(self, x, y=None, sample_weight=None):
        return keras.utils.pack_x_y_sample_weight(self.encode(x), y, sample_weight)

    @tf.autograph.experimental.do_not_convert  # Converting takes a second, and finds nothing to convert.
    def encode(self, texts) -> dict[str, tf.Tensor]:
        """Turns texts into the encoder's inputs.

        Args:
            texts: string tensor or list of str, shape (B,); or a tuple of two, the first and second texts of pairs. For
                a single example, shape ().

        Returns:
            Dict of `token_ids`, `segment_ids` (1 from b on) and `padding_mask` (1 where there is a token): int32,
            shape (B, S), or (S,) for a single example. With `pad_to_longest`, S is the length of the longest sequence,
            at least 2.

        Raises:
            ValueError: `texts` holds other values, has two or more dimensions, or is a tuple of more than two, or the
                batches of a pair differ in size. If their sizes are known only at run time, TensorFlow raises
                InvalidArgumentError.
        """
        batches = texts if isinstance(texts, tuple) else (texts,)
        if len(batches) not in (1, 2):
            raise ValueError(f"`texts` must be a batch or a tuple of two batches. Received: a tuple of {len(batches)}")
        try:
            batches = [tf.convert_to_tensor(batch, tf.string) for batch in batches]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_EXPECTED} Received: {shown(texts)}") from error
        ranks = {batch.shape.rank for batch in batches}
        if not (ranks == {0} or ranks <= {1, None}):
            shapes = " and ".join(str(batch.shape) for batch in batches)
            raise ValueError(f"{_EXPECTED} Received: shape {shapes}")
        if ranks == {0}:
            features = self.encode(tuple(batch[tf.newaxis] for batch in batches))
            return {name: tf.squeeze(feature, 0) for name, feature in features.items()}
        rows = [self.tokenizer.tokenize(batch) for batch in batches]
        if len(rows) == 2:
            rows = _check_sizes(*rows)
        lengths = [tf.cast(row.row_lengths(), tf.int32) for row in rows]
        if len(rows) == 1:
            kept = [tf.minimum(lengths[0], self.sequence_length - 2)]
        else:
            kept = _trim_pair(*lengths, self.sequence_length - 3)
        return self._pack(rows, kept)

    def _pack(self, rows: list[tf.RaggedTensor], kept: list[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Lays out the rows; `kept`, int32, shape (B,) each, says how many ids of each row to keep."""
        texts = [(row.values, row.row_starts(), length) for row, length in zip(rows, kept, strict=True)]
        return lay_out(self.tokenizer, texts, None if self.pad_to_longest else self.sequence_length)


def lay_out(
    tokenizer, texts: list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]], width: int | None = None
) -> dict[str, tf.Tensor]:
    """Lays out sequences `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`.

    It takes one gather: [PAD], [CLS] and [SEP], followed by all ids, are one vector, into which every cell of (B, S)
    gets an index. The number of ops matters: in a served graph each op costs a short request some microseconds.

    Args:
        tokenizer: has the special tokens.
        texts: a, or a and b, each a tuple of its ids, int32, shape (n,); the index of each sequence's first id among
            them, int, shape (B,); and the number of its ids, int32, shape (B,).
        width: int, S; None: the length of the longest sequence, at least 2.

    Returns:
        The same as `BertPreprocessor.encode`.
    """
    specials = [tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id]
    pool = tf.concat([specials, *(ids for ids, _, _ in texts)], axis=0)
    pad, cls, sep = range(len(specials))
    starts, ends = [], [0]  # Where a and b begin, and their [SEP]: int32 (B, 1); [CLS] is at 0.
    for _, _, length in texts:
        starts.append(ends[-1] + 1)
        ends.append(starts[-1] + tf.expand_dims(length, 1))
    if width is None:
        width = tf.maximum(tf.reduce_max(ends[-1]) + 1, _MIN_PADDED_LENGTH)
    position = tf.expand_dims(tf.range(width), 0)
    padding_mask = tf.cast(position <= ends[-1], tf.int32)
    segment_ids = tf.zeros_like(padding_mask)
    if len(texts) == 2:
        segment_ids = tf.where(position >= starts[1], padding_mask, 0)
    index, pool_starts = pad, [len(specials)]
    for ids, _, _ in texts[:-1]:
        pool_starts.append(pool_starts[-1] + tf.size(ids))
    # The cells of each text are filled up to its [SEP]; those of an earlier text are filled later.
    for (_, firsts, _), start, end, pool_start in reversed([*zip(texts, starts, ends[1:], pool_starts, strict=True)]):
        first = tf.expand_dims(tf.cast(firsts, tf.int32), 1) + (pool_start - start)
        index = tf.where(position < end, first + position, tf.where(position == end, sep, index))
    token_ids = tf.gather(pool, tf.where(position == 0, cls, index))
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}


def after(check: tf.Operation | None, value: tf.Tensor) -> tf.Tensor:
    """Returns `value`, which is computed only after the op `check`; None stands for a check that has passed eagerly."""
    with tf.control_dependencies([check]):
        return tf.identity(value)


def _check_length(sequence_length: int) -> None:
    is_int = isinstance(sequence_length, numbers.Integral) and not isinstance(sequence_length, bool)
    if not is_int or sequence_length < _MIN_SEQUENCE_LENGTH:
        expected = f"must be {'at least' if is_int else 'an integer of at least'} {_MIN_SEQUENCE_LENGTH}"
        raise ValueError(f"`sequence_length` {expected}. Received: {sequence_length=}")


def _check_sizes(first: tf.RaggedTensor, second: tf.RaggedTensor) -> list[tf.RaggedTensor]:
    """Returns the rows of a pair after checking their numbers: a single text would be broadcast to all others."""
    message = "`texts` must be two batches of one size"
    sizes = (first.shape[0], second.shape[0])
    if None not in sizes:
        if sizes[0] != sizes[1]:
            raise ValueError(f"{message}. Received: {sizes[0]} first and {sizes[1]} second texts")
        return [first, second]
    check = tf.debugging.assert_equal(first.nrows(), second.nrows(), message=message)
    return [first.with_values(after(check, first.values)), second]


def _trim_pair(lengths_a: tf.Tensor, lengths_b: tf.Tensor, limit: int) -> list[tf.Tensor]:
    """Returns how many ids of each text to keep, shape (B,) each: `_truncate_seq_pair` to `limit`, in closed form."""
    kept_a = tf.minimum(lengths_a, tf.maximum(-(-limit // 2), limit - lengths_b))
    return [kept_a, tf.minimum(lengths_b, limit - kept_a)]
