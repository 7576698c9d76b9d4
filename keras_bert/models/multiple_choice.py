"""`BertMultipleChoice`: finds which of several choices fits a context (paper, section 4.4).

Shapes: B batch, K choices, S sequence, H hidden.
"""

import keras
import keras_nlp
import tensorflow as tf
from keras import ops

from keras_bert.answers.sequence import ChoiceAnswers
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import output_head
from keras_bert.encoder.layer import keep_arguments
from keras_bert.models.task import BertTask
from keras_bert.tokenization.preprocessor import BertPreprocessor


@keras.saving.register_keras_serializable(package="keras_bert")
class BertMultipleChoicePreprocessor(BertPreprocessor):
    """Encodes each choice as a sequence, `[CLS] context [SEP] choice [SEP]`.

    Args:
        tokenizer, sequence_length, pad_to_longest: as in `BertPreprocessor`.

    Call arguments:
        x: tuple of contexts, string, shape (B,), and choices, string, shape (B, K).
        y: int, shape (B,), the index of the right choice, or None.
        sample_weight: float, shape (B,), or None.

    Returns:
        The features, int32, shape (B, K, S); with `y`, a tuple of features, `y` (and weights, if given).
    """

    def encode(self, texts):
        if tf.is_tensor(texts):
            raise ValueError(f"`x` must be a tuple of contexts and choices. Received: {texts}")
        contexts, choices = (tf.convert_to_tensor(part, tf.string) for part in texts)
        num_choices = tf.shape(choices)[1] if choices.shape[1] is None else choices.shape[1]
        features = super().encode((tf.repeat(contexts, num_choices), tf.reshape(choices, [-1])))
        return {
            name: tf.reshape(value, [-1, num_choices, value.shape[1] or tf.shape(value)[1]])
            for name, value in features.items()
        }


@keras.saving.register_keras_serializable(package="keras_bert")
class FlattenChoices(keras.layers.Layer):
    """Turns `[B, K, S]` into `[B * K, S]`, since each choice is a sequence of its own for the encoder."""

    def call(self, inputs):
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((None, inputs.shape[-1]), dtype=inputs.dtype)


@keras.saving.register_keras_serializable(package="keras_bert")
class BertMultipleChoice(BertTask, keras_nlp.models.Task):
    """Backbone, dropout, and one vector that scores every choice.

        logits[b, k] = v . pooled_output[b, k] + c

    The paper has only v. The bias c, which transformers' `BertForMultipleChoice` has too, adds the same number to all
    logits of a row, so neither the softmax over choices nor the loss depends on it.

    `fit` takes contexts and choices, with the index of the right choice: see `BertMultipleChoicePreprocessor`. The
    loss is the cross entropy of the softmax over the choices.

    `answer` takes contexts and their choices, or a single context with its choices. It returns the index of the best
    choice as `choice`, its text as `choice_text`, its probability as `score`, and the `probabilities` of all choices.

    Inputs: the backbone's, with an axis of choices: int32, shape (B, K, S). Output: float32 logits of shape (B, K).

    Args:
        backbone: BertBackbone.
        num_choices: int, K, at least 2.
        preprocessor: BertMultipleChoicePreprocessor, or None.
        dropout: float, on the pooled output; None: the backbone's (0.1 in google-research/bert run_classifier.py:604,
            the origin of this head).
        **kwargs: as in `BertTextClassifier`.
    """

    preprocessor_cls = BertMultipleChoicePreprocessor
    answers_cls = ChoiceAnswers
    heads = ("multiple_choice",)

    def __init__(
        self,
        backbone: BertBackbone,
        num_choices: int,
        preprocessor: BertMultipleChoicePreprocessor | None = None,
        dropout: float | None = None,
        **kwargs,
    ):
        if num_choices < 2:
            raise ValueError(f"`num_choices` must be at least 2. Received: num_choices={num_choices}")
        keep_arguments(self, locals())

        # === Layers ===
        flatten = {name: FlattenChoices(name=f"flatten_{name}") for name in backbone.input}
        rate = backbone.dropout if dropout is None else dropout
        output_dropout = keras.layers.Dropout(rate, dtype=backbone.dtype_policy, name="multiple_choice_dropout")
        head = output_head(1, backbone.initializer_range, self.heads[0])

        # === Functional model ===
        inputs = {name: keras.Input((num_choices, None), dtype="int32", name=name) for name in backbone.input}
        pooled = backbone({name: flatten[name](value) for name, value in inputs.items()})["pooled_output"]  # [B * K, H]
        scores = head(output_dropout(pooled))  # [B * K, 1]
        super().__init__(inputs=inputs, outputs=ops.reshape(scores, (-1, num_choices)), **kwargs)

    def preprocess_samples(self, x, y=None, sample_weight=None):
        count = getattr(x[1], "shape", (None,))[-1] if isinstance(x, tuple) else None
        if count not in (None, self.num_choices):  # `fit` would fail only as it reshapes the scores.
            raise ValueError(f"`x` must have {self.num_choices} choices for each context. Received: {count}")
        return super().preprocess_samples(x, y, sample_weight)
