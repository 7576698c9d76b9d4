"""Writes the files of an exported model beside its graph: warm-up requests, batching parameters, description, README.

A version's own files are written before it is published:

- `assets.extra/tf_serving_warmup_requests`: a TFRecord file of `PredictionLog`. TensorFlow Serving runs them as it
  loads the version, and refuses the version if one fails. The first run of a graph takes some hundred milliseconds.
- `batching_params.pbtxt`: used with `--enable_batching --enable_per_model_batching_parameters`.
- `assets.extra/model.json`: the model's inputs, outputs and example, for clients and pages.

`README.md` is directly in the base path, for all versions.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from export import clients, signatures
from export.base_path import DESCRIPTION_FILE, PER_MODEL_FILE, WARMUP_FILE
from export.heads.base import Head
from keras_bert.answers import text_bounds
from keras_bert.files import write_json
from tasks.report import card

# TensorFlow Serving reads at most 1,000, and runs them all before the version answers requests.
_MAX_WARMUP_REQUESTS = 10

# A BatchingParameters message of TensorFlow Serving (session_bundle_config.proto), which no package ships.
_BATCHING_PARAMETERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates", PER_MODEL_FILE)


def write_extras(directory: str, head: Head) -> None:
    """Writes a version's own files.

    Args:
        directory: the unfinished version; holds `saved_model.pb`.
        head: the exported model.
    """
    write_json(os.path.join(directory, DESCRIPTION_FILE), head.description())  # Makes the directory, too.
    with tf.io.TFRecordWriter(os.path.join(directory, WARMUP_FILE)) as writer:
        for signature, inputs in head.warmup()[:_MAX_WARMUP_REQUESTS]:
            writer.write(warmup_record(signature, inputs))
    shutil.copyfile(_BATCHING_PARAMETERS, os.path.join(directory, PER_MODEL_FILE))


def warmup_record(signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Returns a request as TensorFlow Serving replays it: Classify, Regress, or Predict for all other signatures.

    The bytes are those of a `PredictionLog` (tensorflow_serving/apis/prediction_log.proto). Its classes come with
    tensorflow-serving-api, which only servers need.

    Args:
        signature: name of the signature.
        inputs: input name -> array of the batch.
    """
    log = {signatures.CLASSIFY: 2, signatures.REGRESS: 3}.get(signature, 6)  # classify_log, regress_log, predict_log
    request = _field(1, _field(3, signature.encode()))  # model_spec.signature_name
    if log == 6:
        for name, array in inputs.items():
            entry = _field(1, name.encode()) + _field(2, tf.make_tensor_proto(array).SerializeToString())
            request += _field(2, entry)  # inputs
    else:
        examples = b"".join(_field(1, example) for example in inputs["inputs"])
        request += _field(2, _field(1, examples))  # input.example_list
    return _field(log, _field(1, request))


def _field(number: int, payload: bytes) -> bytes:
    """Returns the wire format of a protocol buffer field that holds bytes, a string or a message."""
    size, length = len(payload), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


def write_readme(
    export_dir: str, head: Head, version_directory: str, training: str | None = None, int8: Sequence[str] = ()
) -> None:
    """Writes a model card to `README.md` in the base path: how to serve and query the model, and how it was trained.

    TensorFlow Serving looks only at directories with a number for a name, so a file may be beside the versions.

    Args:
        export_dir: base path of the model.
        head: the exported model.
        version_directory: the version that was written last.
        training: the card of its training, which the README includes, or None.
        int8: lines on the cost of 8-bit products, if some are allowed.
    """
    description = head.description()
    top, body = card.split_card(training) if training else (card.head(description["task"]), "")
    text = clients.readme(
        export_dir,
        description,
        version=os.path.basename(version_directory),
        encoder=text_bounds.find_backbone(head.model).bert_config,
        training=re.sub(r"^#(?=#* )", "##", body.strip(), flags=re.MULTILINE),
        int8=int8,
    )
    card.save(export_dir, top + text)
