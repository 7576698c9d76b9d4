"""Replays a version's warm-up requests before it serves, as TensorFlow Serving does."""

import os
import time

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from export.base_path import WARMUP_FILE
from export.server import grpc_messages
from export.server.servable import Servable
from export.server.serving_error import ServingError, unlimited
from keras_bert.errors import InputError
from keras_bert.files import is_file

_MAX_RECORDS = 1000  # TensorFlow Serving's limit.

_ANSWERS = {
    "predict_log": grpc_messages.predict,
    "classify_log": grpc_messages.classify,
    "regress_log": grpc_messages.regress,
    "multi_inference_log": grpc_messages.multi_inference,
}


def warm_up(servable: Servable, repetitions: int) -> None:
    """Replays a version's warm-up requests, if it has any.

    Args:
        servable: the version.
        repetitions: number of times to replay each request.

    Raises:
        InputError: the file is damaged or a request fails, so the version must not be served.
    """
    path = os.path.join(servable.model.directory, WARMUP_FILE)
    if not is_file(path):
        return
    start, count, status = time.perf_counter(), 0, "FAILED"
    try:
        for count, record in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator(), 1):
            if count > _MAX_RECORDS:
                raise InputError(f"{path}: expected at most {_MAX_RECORDS} warm-up requests. Received: more")
            for _ in range(repetitions):
                _replay(servable, record, f"{path}: record {count}")
        status = "OK"
    except tf.errors.OpError as error:
        raise InputError(f"{path}: not a whole TFRecord file. Export the version again.") from error
    finally:
        labels = (servable.model.directory, status)
        servable.metrics.warmup_latency.labels(*labels).observe((time.perf_counter() - start) * 1e6)
        servable.metrics.warmup_records.labels(*labels).inc(count)


def _replay(servable: Servable, record: bytes, where: str) -> None:
    try:
        log = prediction_log_pb2.PredictionLog.FromString(record)
    except DecodeError as error:
        raise InputError(f"{where}: not a PredictionLog. Export the version again.") from error
    kind = log.WhichOneof("log_type")
    if kind not in _ANSWERS:
        raise InputError(f"{where}: expected one of {sorted(_ANSWERS)}. Received: {kind}")
    try:
        _ANSWERS[kind](servable, getattr(log, kind).request, unlimited)
    except ServingError as error:
        raise InputError(f"{where}: the model does not answer its warm-up request: {error.message}") from error
