"""What the served graph computes: texts, token ids or `tf.Example`s in, labels with scores out.

Shapes: B batch, S sequence, C classes. Only ops that TensorFlow Serving links, and no padded length fixed in the
graph: every batch is as long as its longest example.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from export import signatures
from export.inputs import bound_texts, check_token_ids, find_backbone, text_encoder, trace as _trace  # noqa: F401,I001
from keras_bert.preprocessor import BertPreprocessor

def classifier_functions(
    model: keras.Model, preprocessor: BertPreprocessor, labels: list[str], num_texts: int
) -> dict[str, tf.types.experimental.ConcreteFunction]:
    """Traces the signatures of a classifier.

    Args:
        model: float32, encoder inputs to logits [B, C], with a BertBackbone inside.
        preprocessor: tokenizer and longest sequence.
        labels: the C classes' names, in the order of the logits.
        num_texts: 1 or 2 texts an example.

    Returns:
        Signature name -> traced function, as `signatures.py` describes them.
    """
    names = signatures.TEXT_NAMES[:num_texts]
    encode = text_encoder(preprocessor)
    backbone = find_backbone(model)

    def probabilities_of(encoded):
        return tf.nn.softmax(tf.cast(model(encoded, training=False), tf.float32))  # [B, C]

    def answer(encoded):
        probabilities = probabilities_of(encoded)
        best = tf.argmax(probabilities, axis=-1)
        return {
            "label": tf.gather(tf.constant(labels), best),
            "score": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }

    def from_texts(**texts):
        return answer(encode(*(texts[name] for name in names)))

    def from_token_ids(token_ids, segment_ids, lengths):
        with tf.control_dependencies(check_token_ids(backbone, token_ids, segment_ids, lengths)):
            token_ids, segment_ids, lengths = (tf.identity(ids) for ids in (token_ids, segment_ids, lengths))
        mask = tf.sequence_mask(lengths, tf.shape(token_ids)[1], dtype=tf.int32)
        return answer({"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": mask})

    def from_examples(inputs):
        texts = tf.io.parse_example(inputs, signatures.example_features(num_texts))
        scores = probabilities_of(encode(*(texts[name] for name in names)))
        return {"classes": tf.tile(tf.constant([labels]), [tf.shape(scores)[0], 1]), "scores": scores}

    return {
        signatures.SERVING_DEFAULT: _trace(from_texts, signatures.text_specs(num_texts)),
        signatures.TOKEN_IDS: _trace(from_token_ids, signatures.token_specs()),
        signatures.CLASSIFY: _trace(from_examples, signatures.example_specs()),
    }
