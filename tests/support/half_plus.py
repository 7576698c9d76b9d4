"""Toy models as in TensorFlow Serving's documentation: half_plus_three and what its REST page asks of others."""

import os

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2


class _Weights(tf.Module):
    def __init__(self, added: float):
        super().__init__()
        self.added = tf.Variable(added)


def save(base_path: str, version: int, added: float = 3.0) -> str:
    """Writes a version that gives `x / 2 + added`; returns its directory.

    Signatures: `serving_default` x -> y, TensorFlow Serving's own `tensorflow/serving/regress` and `classify_x_to_y`
    over examples, `several` with the three inputs of the REST page, `classify_objects` with its binary feature,
    `double` [B, L] -> [B, L], which refuses negative numbers, and `scalar`, whose output has no batch dimension.
    """
    weights = _Weights(added)

    def examples(inputs):
        parsed = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([], tf.float32)})
        return parsed["x"] / 2.0 + weights.added

    def double(numbers):
        with tf.control_dependencies([tf.debugging.assert_non_negative(numbers, message="a number is negative")]):
            return {"doubled": 2 * numbers, "sum": tf.reduce_sum(numbers, axis=1)}

    def several(tag, signal, sensor):
        return {"tag": tf.strings.upper(tag), "sum": tf.reduce_sum(signal, 1) + tf.reduce_sum(sensor, [1, 2])}

    def objects(inputs):
        features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("image", "caption")}
        parsed = tf.io.parse_example(inputs, features)
        scores = tf.stack([tf.strings.length(parsed[name]) for name in features], axis=1)
        return {"classes": tf.stack([parsed[name] for name in features], axis=1), "scores": tf.cast(scores, tf.float32)}

    vector, strings = tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.string)
    signatures = {
        "serving_default": (lambda x: {"y": x / 2.0 + weights.added}, {"x": vector}),
        "tensorflow/serving/regress": (lambda inputs: {"outputs": examples(inputs)}, {"inputs": strings}),
        "classify_x_to_y": (lambda inputs: {"scores": examples(inputs)[:, None]}, {"inputs": strings}),
        "classify_objects": (objects, {"inputs": strings}),
        "double": (double, {"numbers": tf.TensorSpec([None, None], tf.int32)}),
        "several": (
            several,
            {
                "tag": strings,
                "signal": tf.TensorSpec([None, 5], tf.int32),
                "sensor": tf.TensorSpec([None, 2, 2], tf.int32),
            },
        ),
        "scalar": (lambda x: {"sum": tf.reduce_sum(x)}, {"x": vector}),
    }
    directory = os.path.join(base_path, str(version))
    traced = {
        name: tf.function(function, autograph=False).get_concrete_function(
            **{key: tf.TensorSpec(spec.shape, spec.dtype, key) for key, spec in specs.items()}
        )
        for name, (function, specs) in signatures.items()
    }
    temporary = os.path.join(base_path, f"making-{version}")
    tf.saved_model.save(weights, temporary, signatures=traced)
    os.rename(temporary, directory)
    return directory


def write_warmup(directory: str, *requests: predict_pb2.PredictRequest) -> None:
    """Gives a version warm-up requests."""
    os.makedirs(os.path.join(directory, "assets.extra"), exist_ok=True)
    with tf.io.TFRecordWriter(os.path.join(directory, "assets.extra", "tf_serving_warmup_requests")) as writer:
        for request in requests:
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())


def request(values, name: str = "half", signature_name: str = "", key: str = "x") -> predict_pb2.PredictRequest:
    """A request for Predict."""
    message = predict_pb2.PredictRequest()
    message.model_spec.name = name
    message.model_spec.signature_name = signature_name
    array = np.asarray(values, np.int32 if key == "numbers" else np.float32)
    message.inputs[key].CopyFrom(tf.make_tensor_proto(array))
    return message
