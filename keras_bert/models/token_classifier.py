"""`BertTokenClassifier`: predicts a class for each word (paper, sections 4.1 and 5.3; no CRF).

Shapes: B batch, S sequence, W words of a sentence, C classes.
"""

import keras
import keras_nlp
import tensorflow as tf

from keras_bert.answers.windowed import EntityAnswers, WordScoreAnswers
from keras_bert.models.task import LabeledTask
from keras_bert.tokenization.preprocessor import BertPreprocessor, after


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenClassifierPreprocessor(BertPreprocessor):
    """Tokenizes sentences word by word, and puts each word's label at its first sub-token.

    Words beyond `sequence_length`, and words without tokens, are left out.

    Args:
        tokenizer, sequence_length, pad_to_longest: as in `BertPreprocessor`.

    Call arguments:
        x: string ragged tensor, shape (B, None), the words; or a dense one, shape (B, W), with "" after the last word.
        y: of the same shape, the words' classes, int, of which negative ones are ignored; or their scores, float, of
            which NaN are ignored; or None.
        sample_weight: float, shape (B,), the sentences' weights, or None.

    Returns:
        The features; with `y`, a tuple of features, labels, int32 of shape (B, S) or float32 of shape (B, S, 1), and
        weights, float32 of shape (B, S). The weights are 0 except at each labelled word's first sub-token.
    """

    @tf.autograph.experimental.do_not_convert  # As in `encode`.
    def call(self, x, y=None, sample_weight=None):
        words, y = ragged_words(x), _ragged_labels(y, x)
        features, positions = self._encode_words(words)
        if y is None:
            return features
        position = positions.flat_values
        counts = (tf.cast(rows.row_lengths(), tf.int64) for rows in (words, y))
        labels = after(_check_counts(*counts), y.flat_values)
        is_score = labels.dtype.is_floating
        labels = tf.cast(labels, tf.float32 if is_score else tf.int32)
        is_labelled = (position >= 0) & (tf.math.is_finite(labels) if is_score else labels >= 0)
        cells = tf.boolean_mask(tf.stack([tf.cast(words.value_rowids(), tf.int32), position], axis=1), is_labelled)
        shape = tf.shape(features["token_ids"])
        labels = tf.scatter_nd(cells, tf.boolean_mask(labels, is_labelled), shape)
        if is_score:
            labels = labels[..., tf.newaxis]  # Otherwise Keras would average over a sentence before weighting words.
        weights = tf.scatter_nd(cells, tf.ones(tf.shape(cells)[:1]), shape)
        if sample_weight is not None:
            weights *= tf.cast(sample_weight, tf.float32)[:, tf.newaxis]
        return features, labels, weights

    def word_positions(self, x) -> tf.RaggedTensor:
        """Returns the position of each word's first sub-token in the sequence: int32, shape (B, None).

        Args:
            x: as in a call. A word that is left out has the position -1.
        """
        return self._encode_words(ragged_words(x))[1]

    def _encode_words(self, words: tf.RaggedTensor) -> tuple[dict[str, tf.Tensor], tf.RaggedTensor]:
        """Returns the features, and what `word_positions` does."""
        pieces = self.tokenizer.tokenize(words.values)
        tokens, sentence = words.with_values(pieces).merge_dims(1, 2), words.value_rowids()
        kept = tf.minimum(tf.cast(tokens.row_lengths(), tf.int32), self.sequence_length - 2)
        before, of_sentence = (tf.cast(rows.row_starts(), tf.int32) for rows in (pieces, tokens))  # in all rows
        position = before - tf.gather(of_sentence, sentence) + 1  # after [CLS]
        is_there = (pieces.row_lengths() > 0) & (position <= tf.gather(kept, sentence))
        return self._pack([tokens], [kept]), words.with_values(tf.where(is_there, position, -1))


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenClassifier(LabeledTask, keras_nlp.models.Task):
    """Backbone, dropout, and a linear layer on every token; with one output, a number for each word.

    `fit` takes sentences as words, with a label for each word: see `BertTokenClassifierPreprocessor`. The labels are
    int, or str if `labels` are given, or scores for one output. The loss is the cross entropy of the words' first
    sub-tokens, for scores the mean squared error, averaged over the words of a batch.

    `answer` takes raw texts of any length, read in windows. It lists their `entities` with `types`, mean probabilities
    as `scores`, and the characters where they start and end (exclusive), `starts` and `ends`. It needs `labels` that
    are tags: O, or B- or I- and a type. With one output it lists all `words` with their `scores`. Settings are
    `doc_stride`, int, tokens from one window's start to the next one's (by default half a window), and `max_tokens`,
    int, tokens of a text that are read (by default 8 times the longest sequence); `truncated` says whether a text has
    more.

    Inputs: the backbone's. Output: float32 logits of shape (B, S, C).

    Args:
        backbone: BertBackbone.
        num_classes: int; 1 gives a score for each word. None: the number of `labels`.
        preprocessor: BertTokenClassifierPreprocessor, or None.
        activation: str, activation of the output; `"softmax"` gives probabilities.
        dropout: float, on every token's representation (as in transformers' `BertForTokenClassification`); None: the
            backbone's.
        labels: list of str, the classes in the order of the outputs, or None.
        **kwargs: as in `BertTextClassifier`.
    """

    preprocessor_cls = BertTokenClassifierPreprocessor
    trained_settings = ("doc_stride",)
    heads = ("token_classification",)
    uses_pooler = False
    dropout_name = "tagger_dropout"

    def _make_answers(self, preprocessor, **settings):
        if self.output_shape[-1] == 1:
            return WordScoreAnswers(self, preprocessor, **settings)
        return EntityAnswers(self, preprocessor, self.labels or [], **settings)

    def preprocess_samples(self, x, y=None, sample_weight=None):
        if self.preprocessor is not None:
            x, y = ragged_words(x), _ragged_labels(y, x)
            count = self.output_shape[-1]
            if y is not None and y.dtype.is_integer and count == 1:  # Scores, not classes.
                y = tf.cast(y, tf.float32)
            elif y is not None and y.dtype.is_integer:  # On a GPU, the loss of another number is NaN.
                tf.debugging.assert_less(y.flat_values, tf.cast(count, y.dtype), f"Labels must be below {count}.")
        return super().preprocess_samples(x, y, sample_weight)


def _check_counts(words: tf.Tensor, labels: tf.Tensor) -> tf.Operation | None:
    """Returns an op that fails unless each row has one label for each word; None in eager mode, where it fails now."""
    message = "`y` must have a label for each word. Received these numbers of words and of labels in the rows:"
    return tf.debugging.assert_equal(words, labels, message, summarize=16)


def ragged_words(words) -> tf.RaggedTensor:
    """Returns words as a ragged tensor, without the padding of a dense batch, trailing ""."""
    words = words if isinstance(words, tf.RaggedTensor) else tf.convert_to_tensor(words)
    if words.dtype != tf.string or words.shape.rank not in (2, None):
        raise ValueError(f"`x` must be sentences as lists of words; `answer` takes raw texts. Received: {words}")
    return words if isinstance(words, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(words, padding="")


def _ragged_labels(labels, words) -> tf.RaggedTensor | None:
    """Returns labels as a ragged tensor, with one for each word; fails if dense words have another width."""
    if labels is None or isinstance(labels, tf.RaggedTensor):
        return labels
    if not isinstance(words, tf.RaggedTensor):
        labels = after(_check_counts(tf.shape(words)[1], tf.shape(labels)[1]), labels)
    return tf.RaggedTensor.from_tensor(labels, lengths=ragged_words(words).row_lengths())
