"""Answers TensorFlow Serving's request messages by a loaded version.

The functions take a version and a request and return the response; warm-up and the gRPC server call them. Response
tensors hold their values in the typed fields (`float_val`, ...), as TensorFlow Serving's do by default, since clients
read them.
"""

import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from google.protobuf.message import Message
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    input_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

from export.server import inference
from export.server.inference import DEFAULT_SIGNATURE
from export.server.model_manager import VersionStatus
from export.server.servable import Servable
from export.server.serving_error import CODE_NUMBERS, InvalidArgumentError, ServingError

_SIGNATURE_FIELD = "signature_def"
# A message of a few bytes can claim a tensor of any size that repeats its one value. Its unfolded size is bounded like
# a request's own size.
_MAX_UNFOLDED_BYTES = 1 << 24
_TYPED_FIELDS = {
    "float32": "float_val",
    "float64": "double_val",
    **dict.fromkeys(("int32", "int16", "int8", "uint16", "uint8"), "int_val"),
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
}


# === Requests ===


def predict(servable: Servable, request: predict_pb2.PredictRequest, deadline: float | None):
    """Turns a `PredictRequest` into a `PredictResponse`.

    Raises:
        ServingError: see `inference.predict`; or a tensor of the request is malformed.
    """
    arrays = {name: to_array(name, request.inputs[name]) for name in request.inputs}
    signature_name = request.model_spec.signature_name
    outputs = inference.predict(servable, signature_name, arrays, deadline, list(request.output_filter))
    response = predict_pb2.PredictResponse(model_spec=_model_spec(servable, signature_name))
    for name, array in outputs.items():
        response.outputs[name].CopyFrom(to_tensor(array))
    return response


def classify(servable: Servable, request: classification_pb2.ClassificationRequest, deadline: float | None):
    """Turns a `ClassificationRequest` into a `ClassificationResponse`; raises as `inference.classify`."""
    signature_name = request.model_spec.signature_name
    result = _classification(inference.classify(servable, signature_name, _examples(request.input), deadline))
    return classification_pb2.ClassificationResponse(result=result, model_spec=_model_spec(servable, signature_name))


def regress(servable: Servable, request: regression_pb2.RegressionRequest, deadline: float | None):
    """Turns a `RegressionRequest` into a `RegressionResponse`; raises as `inference.regress`."""
    signature_name = request.model_spec.signature_name
    result = _regression(inference.regress(servable, signature_name, _examples(request.input), deadline))
    return regression_pb2.RegressionResponse(result=result, model_spec=_model_spec(servable, signature_name))


def multi_inference(servable: Servable, request: inference_pb2.MultiInferenceRequest, deadline: float | None):
    """Turns a `MultiInferenceRequest` into its response: several signatures of one model on the same examples.

    Raises:
        ServingError: two tasks name different models or the same signature, or a method is neither classify nor
            regress; see also `inference.classify` and `inference.regress`.
    """
    names = [task.model_spec.signature_name or DEFAULT_SIGNATURE for task in request.tasks]
    if any(task.model_spec.name != servable.name for task in request.tasks):
        raise InvalidArgumentError("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"Duplicate evaluation of signature: {sorted(names)}")
    examples = _examples(request.input)
    response = inference_pb2.MultiInferenceResponse()
    for task, name in zip(request.tasks, names, strict=True):
        result = response.results.add(model_spec=_model_spec(servable, name))
        if task.method_name == inference.CLASSIFY_METHOD:
            classes = inference.classify(servable, name, examples, deadline)
            result.classification_result.CopyFrom(_classification(classes))
        elif task.method_name == inference.REGRESS_METHOD:
            result.regression_result.CopyFrom(_regression(inference.regress(servable, name, examples, deadline)))
        else:
            raise ServingError("UNIMPLEMENTED", f"Unsupported signature method_name: {task.method_name[:200]}")
    return response


def metadata(
    servable: Servable, request: get_model_metadata_pb2.GetModelMetadataRequest, deadline: float | None = None
):
    """Turns a `GetModelMetadataRequest` into its response, which holds the signatures.

    Raises:
        ServingError: (INVALID_ARGUMENT) the request asks for no field, or for another one.
    """
    del deadline
    if not request.metadata_field:
        raise InvalidArgumentError("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != _SIGNATURE_FIELD:
            raise InvalidArgumentError(f"Metadata field {field[:200]} is not supported")
    response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_model_spec(servable, None))
    response.metadata[_SIGNATURE_FIELD].Pack(signature_map(servable))
    return response


def status(versions: Iterable[VersionStatus]) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns versions and their states as a response."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for version in versions:
        entry = response.model_version_status.add(version=version.version)
        entry.state = get_model_status_pb2.ModelVersionStatus.State.Value(version.state)
        entry.status.error_code = CODE_NUMBERS["UNKNOWN" if version.error else "OK"]
        entry.status.error_message = version.error or ""
    return response


def as_json(message: Message) -> dict:
    """Returns a message as TensorFlow Serving's REST API writes it."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def signature_map(servable: Servable) -> get_model_metadata_pb2.SignatureDefMap:
    """Returns the model's signatures as TensorFlow Serving packs them."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in servable.model.signature_defs.items():
        signatures.signature_def[name].CopyFrom(signature)
    return signatures


def _model_spec(servable: Servable, signature_name: str | None) -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=servable.name)
    spec.version.value = servable.version
    if signature_name is not None:
        spec.signature_name = signature_name or DEFAULT_SIGNATURE
    return spec


def _examples(message: input_pb2.Input) -> list[bytes]:
    if message.WhichOneof("kind") == "example_list_with_context":
        # To a parser, two messages in a row are one message with the fields of both.
        context = message.example_list_with_context.context.SerializeToString()
        return [context + example.SerializeToString() for example in message.example_list_with_context.examples]
    return [example.SerializeToString() for example in message.example_list.examples]


def _classification(classes: inference.Classes) -> classification_pb2.ClassificationResult:
    result = classification_pb2.ClassificationResult()
    for labels, scores in zip(classes.labels.tolist(), classes.scores.tolist(), strict=True):
        entries = result.classifications.add().classes
        for label, score in zip(labels, scores, strict=True):
            # The field is text. TensorFlow Serving's C++ writes any bytes into it, which Python clients cannot read.
            entries.add(label=label.decode("utf-8", errors="replace"), score=score)
    return result


def _regression(values: np.ndarray) -> regression_pb2.RegressionResult:
    regressions = [regression_pb2.Regression(value=value) for value in values.tolist()]
    return regression_pb2.RegressionResult(regressions=regressions)


# === Tensors ===


def to_array(name: str, tensor: tensor_pb2.TensorProto) -> np.ndarray:
    """Returns a tensor of a request as an array; strings as objects.

    Raises:
        ServingError: (INVALID_ARGUMENT) its type is unknown, or its values do not fill its shape.
    """
    try:
        dtype = tf.as_dtype(tensor.dtype)
        width = 8 if dtype == tf.string else np.dtype(dtype.as_numpy_dtype).itemsize
    except (TypeError, KeyError):  # No type, or one without arrays, such as a resource.
        raise InvalidArgumentError(f"Input {name[:200]!r}: cannot read type {tensor.dtype}.") from None
    shape = [dimension.size for dimension in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or any(size < 0 for size in shape) or len(shape) > 32:
        raise InvalidArgumentError(f"Input {name[:200]!r}: expected a known shape. Received: {shape[:33]}")
    if math.prod(shape) * width > max(_MAX_UNFOLDED_BYTES, 8 * tensor.ByteSize()):
        raise InvalidArgumentError(f"Input {name[:200]!r}: a tensor of shape {shape} is too large.")
    try:
        array = tf.make_ndarray(tensor)
        if dtype == tf.string and not tensor.string_val:
            array[...] = b""  # make_ndarray fills in str.
    except (ValueError, TypeError, IndexError):
        raise InvalidArgumentError(f"Input {name[:200]!r}: its values do not make a tensor of shape {shape}.") from None
    if list(array.shape) != shape:
        raise InvalidArgumentError(f"Input {name[:200]!r}: its values do not fill shape {shape}.")
    return array


def to_tensor(array: np.ndarray) -> tensor_pb2.TensorProto:
    """Returns an array as a tensor of a response."""
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    tensor = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, tensor_shape=tf.TensorShape(array.shape).as_proto())
    if dtype == tf.string:
        tensor.string_val.extend(array.reshape(-1).tolist())
    elif array.dtype.name in _TYPED_FIELDS:
        getattr(tensor, _TYPED_FIELDS[array.dtype.name]).extend(array.reshape(-1).tolist())
    else:
        tensor.tensor_content = array.tobytes()
    return tensor
