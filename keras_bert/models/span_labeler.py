"""`BertSpanLabeler`: finds the answer to a question in a context (paper, section 4.2).

Shapes: B batch, S sequence.
"""

import keras
import keras_nlp
import tensorflow as tf

from keras_bert.answers.question_answering import SpanAnswers
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import output_head
from keras_bert.encoder.layer import keep_arguments
from keras_bert.models.task import BertTask
from keras_bert.tokenization.preprocessor import BertPreprocessor, after

_LONGEST_QUERY = 64  # google-research/bert run_squad.py, --max_query_length


@keras.saving.register_keras_serializable(package="keras_bert")
class BertSpanLabelerPreprocessor(BertPreprocessor):
    """Encodes `[CLS] question [SEP] context [SEP]`, and finds the tokens of the answer.

    A context that does not fit is cut off at its end; an answer that is cut off counts as missing. `bert-squad` instead
    slides a window over long contexts.

    Args:
        tokenizer, sequence_length, pad_to_longest: as in `BertPreprocessor`.
        max_query_length: int, largest number of tokens of a question that are read.

    Call arguments:
        x: tuple of questions and contexts, string, shape (B,) each.
        y: one of
            - string, shape (B,): the answers, each at its first occurrence in the context; "" where there is none.
            - tuple of int and string, shape (B,) each: the character at which the answer starts, and its text, as in
              SQuAD's files; -1 or "" where there is none.
            - tuple of int and int: the character at which it starts, and the one after its last.
            An answer that is not found there raises tf.errors.InvalidArgumentError.
        sample_weight: float, shape (B,), or None.

    Returns:
        The features; with `y`, a tuple of features, labels (and weights, if given). The labels, int32 of shape (B, 3),
        are the positions of the answer's first and last token, 0 and 0 where there is none, and the number of tokens
        of the sequence.
    """

    def __init__(self, tokenizer, sequence_length=512, pad_to_longest=False, max_query_length=_LONGEST_QUERY, **kwargs):
        super().__init__(tokenizer, sequence_length, pad_to_longest, **kwargs)
        self.max_query_length = max_query_length

    @tf.autograph.experimental.do_not_convert  # As in `encode`.
    def call(self, x, y=None, sample_weight=None):
        if tf.is_tensor(x):
            raise ValueError(f"`x` must be a tuple of questions and contexts. Received: {x}")
        questions, contexts = x
        query = self.tokenizer.tokenize(questions)
        tokens, starts, ends = self.tokenizer.tokenize_with_offsets(contexts)
        room = min(self.max_query_length, self.sequence_length - 4)  # [CLS] [SEP] [SEP], and a token of the context
        num_query = tf.minimum(tf.cast(query.row_lengths(), tf.int32), room)
        num_context = tf.minimum(tf.cast(tokens.row_lengths(), tf.int32), self.sequence_length - 3 - num_query)
        features = self._pack([query, tokens], [num_query, num_context])
        if y is None:
            return features
        start, end = _answer_characters(tf.convert_to_tensor(contexts), y)
        first = _count(ends, lambda ends, start: ends <= start, start)
        last = _count(starts, lambda starts, end: starts < end, end) - 1
        is_there = (start >= 0) & (start < end) & (first <= last) & (last < num_context)
        first, last = (tf.where(is_there, place + num_query + 2, 0) for place in (first, last))
        labels = tf.stack([first, last, num_query + num_context + 3], axis=1)
        return keras.utils.pack_x_y_sample_weight(features, labels, sample_weight)


def _answer_characters(contexts: tf.Tensor, y) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where each answer starts and ends in its context, in characters: int32, shape (B,) each."""
    starts, answers = map(tf.convert_to_tensor, y) if isinstance(y, tuple) else (None, tf.convert_to_tensor(y))
    if answers.dtype != tf.string:
        starts, ends = tf.cast(starts, tf.int32), tf.cast(answers, tf.int32)
        is_there = (starts < 0) | ((starts <= ends) & (ends <= tf.strings.length(contexts, unit="UTF8_CHAR")))
        message = "Each answer of `y` must end after its start, and in its context. Received these starts and ends:"
        wrong = tf.boolean_mask(tf.stack([starts, ends], 1), ~is_there)
        check = tf.debugging.Assert(tf.reduce_all(is_there), [message, wrong], summarize=16)
        return after(check, starts), ends
    lengths = tf.strings.length(answers, unit="UTF8_CHAR")
    if starts is None:
        starts = tf.map_fn(_find_text, (contexts, answers), fn_output_signature=tf.int32)
        is_there, place = starts >= 0, "in its context"
    else:
        starts = tf.cast(starts, tf.int32)
        inside = tf.clip_by_value(starts, 0, tf.strings.length(contexts, unit="UTF8_CHAR"))
        texts = tf.strings.substr(contexts, inside, lengths, unit="UTF8_CHAR")
        is_there, place = (starts < 0) | (texts == answers), "at its start in its context"
    missing = tf.boolean_mask(answers, ~is_there & (answers != ""))
    message = f"Each answer of `y` must stand {place}. Received these that do not:"
    check = tf.debugging.Assert(tf.size(missing) == 0, [message, missing], summarize=16)
    return after(check, starts), starts + lengths


def _find_text(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    context, answer = pair
    substrings = tf.strings.split(context, answer, maxsplit=1)  # "" would split at white space.
    before = tf.strings.length(tf.concat([substrings, [""]], axis=0)[0], unit="UTF8_CHAR")
    return tf.where((tf.size(substrings) > 1) & (answer != ""), before, -1)


def _count(offsets: tf.RaggedTensor, is_counted, limits: tf.Tensor) -> tf.Tensor:
    """Counts the tokens of each row whose offset passes a test: int32, shape (B,)."""
    passes = is_counted(tf.cast(offsets.values, tf.int32), tf.gather(limits, offsets.value_rowids()))
    return tf.reduce_sum(offsets.with_values(tf.cast(passes, tf.int32)), axis=1)


@keras.saving.register_keras_serializable(package="keras_bert")
class BertSpanLabeler(BertTask, keras_nlp.models.Task):
    """Backbone and a linear layer that scores every token as the answer's first and as its last.

    There is no dropout before the head (google-research/bert run_squad.py: create_model). `fit` takes questions and
    contexts, with answers: see `BertSpanLabelerPreprocessor`. The loss is `SpanLoss`.

    `answer` takes questions and contexts of any length, read in windows, or one of each. It returns the `answer`, the
    characters where it starts and ends (exclusive) as `start` and `end`, its probability as `score`, the
    `nbest_answers` with theirs, and `null_score`: how much higher "no answer" scores than the best answer. Settings are
    `doc_stride`, 128 tokens from one window to the next, `max_tokens` as in `BertTokenClassifier`, and those of
    `bert-squad`: `max_query_length`, `n_best_size`, `max_answer_length`, `version_2_with_negative` and
    `null_score_diff_threshold`.

    Inputs: the backbone's. Output: float32 logits of shape (B, S, 2), for the answer's first token and for its last.
    The logits of padding are meaningless.

    Args:
        backbone: BertBackbone.
        preprocessor: BertSpanLabelerPreprocessor, or None.
        **kwargs: as in `BertTextClassifier`.
    """

    preprocessor_cls = BertSpanLabelerPreprocessor
    trained_settings = SpanAnswers.trained_settings
    heads = ("question_answering",)
    uses_pooler = False

    def __init__(self, backbone: BertBackbone, preprocessor: BertSpanLabelerPreprocessor | None = None, **kwargs):
        keep_arguments(self, locals())

        # === Layers ===
        head = output_head(2, backbone.initializer_range, self.heads[0])

        # === Functional model ===
        tokens = backbone(backbone.input)["sequence_output"]  # [B, S, H]
        super().__init__(inputs=backbone.input, outputs=head(tokens), **kwargs)

    def _make_answers(self, preprocessor, **settings):
        # Like the preprocessor's `call`, this leaves room for the context, however short the sequences are.
        longest = min(preprocessor.max_query_length, preprocessor.sequence_length - 4)
        return SpanAnswers(self, preprocessor, **{"max_query_length": longest, **settings})

    def default_loss(self):
        return SpanLoss()

    def default_metrics(self):
        return [keras.metrics.MeanMetricWrapper(span_accuracy, name="span_accuracy")]


@keras.saving.register_keras_serializable(package="keras_bert")
class SpanLoss(keras.losses.Loss):
    """Mean over a batch of (cross entropy of the first token + cross entropy of the last) / 2.

    Each is a softmax over the sequence's tokens (paper, section 4.2; google-research/bert run_squad.py: compute_loss).
    Padding is masked, so that the loss does not depend on its length.

    Call arguments:
        y_true: int32, shape (B, 3): first position, last position, number of tokens.
        y_pred: float32 logits, shape (B, S, 2).
    """

    def __init__(self, reduction="mean_with_sample_weight", name="span_loss", dtype=None):
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true, y_pred):
        y_true = keras.ops.cast(y_true, "int32")
        logits = _by_side(y_true, y_pred)  # [B, 2, S]
        losses = keras.ops.sparse_categorical_crossentropy(y_true[:, :2], logits, from_logits=True)
        return keras.ops.mean(losses, axis=1)


@keras.saving.register_keras_serializable(package="keras_bert")
def span_accuracy(y_true, y_pred):
    """Returns 1.0 where both ends of the answer are right, else 0.0: float32, shape (B,); arguments of `SpanLoss`."""
    y_true = keras.ops.cast(y_true, "int32")
    best = keras.ops.cast(keras.ops.argmax(_by_side(y_true, y_pred), axis=-1), "int32")
    return keras.ops.cast(keras.ops.all(best == y_true[:, :2], axis=1), "float32")


def _by_side(y_true, y_pred):
    """Returns the logits as (B, 2, S), with padding at about the lowest float."""
    positions = keras.ops.arange(keras.ops.shape(y_pred)[1], dtype="int32")
    is_real = positions[None, None, :] < y_true[:, 2:, None]  # [B, 1, S]
    return keras.ops.where(is_real, keras.ops.transpose(y_pred, (0, 2, 1)), -3.0e38)
