"""Answers TensorFlow Serving's request messages with a loaded version.

The functions take a version and a request and return the response; warm-up and the gRPC server call them. Response
tensors hold their values in the typed fields (`float_val`, ...), as TensorFlow Serving's do by default, since clients
read them.
"""

import math
from collections.abc import Callable, Iterable

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
from export.server.model_manager import VersionStatus
from export.server.servable import Servable
from export.server.serving_error import CODE_NUMBERS, ServingError, TimeLeft, invalid
from export.signatures import SERVING_DEFAULT

_SIGNATURE_FIELD = "signature_def"
# A message of a few bytes can claim a tensor of any size that repeats a single value, so the unfolded size has a limit.
_MAX_UNFOLDED_BYTES = 1 << 24
_TYPED_FIELDS = {
    "float32": "float_val",
    "float64": "double_val",
    **dict.fromkeys(("int32", "int16", "int8", "uint16", "uint8"), "int_val"),
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
    **dict.fromkeys(("float16", "bfloat16"), "half_val"),
    "complex64": "scomplex_val",
    "complex128": "dcomplex_val",
}
# Types of the values in these fields: bits, or real and imaginary parts in turn.
_PARTS = {"half_val": np.uint16, "scomplex_val": np.float32, "dcomplex_val": np.float64}


# === Requests ===


def spec_of(request: Message) -> model_pb2.ModelSpec:
    """Returns the model that a request names.

    Raises:
        ServingError: (INVALID_ARGUMENT) the request names no model.
    """
    if isinstance(request, inference_pb2.MultiInferenceRequest):
        if not request.tasks:
            raise invalid("Inference request must have at least one task.")
        return request.tasks[0].model_spec
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    return request.model_spec


def predict(servable: Servable, request: predict_pb2.PredictRequest, time_left: TimeLeft, as_content: bool = False):
    """Answers a `PredictRequest`; `as_content` as in `to_tensor`.

    Raises:
        ServingError: see `inference.predict`; or a tensor of the request is malformed.
    """
    arrays = {name: to_array(name, request.inputs[name]) for name in request.inputs}
    spec = _model_spec(servable, request.model_spec.signature_name)
    outputs = inference.predict(servable, spec.signature_name, arrays, time_left, list(request.output_filter))
    tensors = {name: to_tensor(array, as_content) for name, array in outputs.items()}
    return predict_pb2.PredictResponse(model_spec=spec, outputs=tensors)


def classify(servable: Servable, request: classification_pb2.ClassificationRequest, time_left: TimeLeft):
    """Answers a `ClassificationRequest`; raises as `inference.classify`."""
    return _infer(classification_pb2.ClassificationResponse, _classification, servable, request, time_left)


def regress(servable: Servable, request: regression_pb2.RegressionRequest, time_left: TimeLeft):
    """Answers a `RegressionRequest`; raises as `inference.regress`."""
    return _infer(regression_pb2.RegressionResponse, _regression, servable, request, time_left)


def _infer(response_class: Callable, result_of: Callable, servable: Servable, request, time_left: TimeLeft):
    """Answers a request with examples."""
    spec = _model_spec(servable, request.model_spec.signature_name)
    result = result_of(servable, spec.signature_name, _examples(request.input), time_left)
    return response_class(model_spec=spec, result=result)


def multi_inference(servable: Servable, request: inference_pb2.MultiInferenceRequest, time_left: TimeLeft):
    """Answers a `MultiInferenceRequest`, which runs several signatures of one model on the same examples.

    Raises:
        ServingError: two tasks name different models or the same signature, or a method is neither classify nor
            regress; see also `inference.classify` and `inference.regress`.
    """
    specs = [_model_spec(servable, task.model_spec.signature_name) for task in request.tasks]
    names = [spec.signature_name for spec in specs]
    if any(task.model_spec.name != servable.name for task in request.tasks):
        raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
    if len(set(names)) < len(names):
        raise invalid(f"Duplicate evaluation of signature: {sorted(names)}")
    examples = _examples(request.input)
    response = inference_pb2.MultiInferenceResponse()
    for task, spec in zip(request.tasks, specs, strict=True):
        if task.method_name not in _RESULTS:
            raise ServingError("UNIMPLEMENTED", f"Unsupported signature method_name: {task.method_name[:200]}")
        field, result_of = _RESULTS[task.method_name]
        result = result_of(servable, spec.signature_name, examples, time_left)
        response.results.add(model_spec=spec, **{field: result})
    return response


def metadata(servable: Servable, request: get_model_metadata_pb2.GetModelMetadataRequest, _: TimeLeft):
    """Answers a `GetModelMetadataRequest` with the signatures.

    Raises:
        ServingError: (INVALID_ARGUMENT) the request asks for no field, or for another one.
    """
    if not request.metadata_field:
        raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != _SIGNATURE_FIELD:
            raise invalid(f"Metadata field {field[:200]} is not supported")
    response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_model_spec(servable, None))
    response.metadata[_SIGNATURE_FIELD].Pack(signature_map(servable))
    return response


# Method of PredictionService -> (class of its requests, function that answers them).
ANSWERS: dict[str, tuple[type[Message], Callable]] = {
    "Predict": (predict_pb2.PredictRequest, predict),
    "Classify": (classification_pb2.ClassificationRequest, classify),
    "Regress": (regression_pb2.RegressionRequest, regress),
    "MultiInference": (inference_pb2.MultiInferenceRequest, multi_inference),
    "GetModelMetadata": (get_model_metadata_pb2.GetModelMetadataRequest, metadata),
}


def status(versions: Iterable[VersionStatus]) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns versions and their states as a response."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for version in versions:
        error = {"error_code": CODE_NUMBERS["UNKNOWN" if version.error else "OK"], "error_message": version.error}
        response.model_version_status.add(version=version.version, state=version.state, status=error)
    return response


def as_json(proto: Message) -> dict:
    """Returns a message as TensorFlow Serving's REST API writes it."""
    return json_format.MessageToDict(proto, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def signature_map(servable: Servable) -> get_model_metadata_pb2.SignatureDefMap:
    """Returns the model's signatures as TensorFlow Serving packs them."""
    return get_model_metadata_pb2.SignatureDefMap(signature_def=servable.model.signature_defs)


def _model_spec(servable: Servable, signature_name: str | None) -> model_pb2.ModelSpec:
    """Returns the version that answers, and the signature unless it is None; "" is `serving_default`."""
    spec = model_pb2.ModelSpec(name=servable.name)
    spec.version.value = servable.version
    if signature_name is not None:
        spec.signature_name = signature_name or SERVING_DEFAULT
    return spec


def _examples(message: input_pb2.Input) -> list[bytes]:
    # The message holds one of the two lists. To a parser, two concatenated messages are one with the fields of both.
    plain, with_context = message.example_list.examples, message.example_list_with_context
    context = with_context.context.SerializeToString()
    return [context + example.SerializeToString() for example in (*plain, *with_context.examples)]


def _classification(*asked) -> classification_pb2.ClassificationResult:
    labels, scores = inference.classify(*asked)
    result = classification_pb2.ClassificationResult()
    for row in zip(labels.tolist(), scores.tolist(), strict=True):
        entries = result.classifications.add().classes
        for label, score in zip(*row, strict=True):
            # The field is text. TensorFlow Serving's C++ writes any bytes into it, which Python clients cannot read.
            entries.add(label=label.decode("utf-8", errors="replace"), score=score)
    return result


def _regression(*asked) -> regression_pb2.RegressionResult:
    regressions = [regression_pb2.Regression(value=value) for value in inference.regress(*asked).tolist()]
    return regression_pb2.RegressionResult(regressions=regressions)


# Method of a task of MultiInference -> (field of its result, function that computes it).
_RESULTS = {
    "tensorflow/serving/classify": ("classification_result", _classification),
    "tensorflow/serving/regress": ("regression_result", _regression),
}


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
        raise invalid(f"Input {name[:200]!r}: cannot read type {tensor.dtype}.") from None
    shape = [dimension.size for dimension in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or any(size < 0 for size in shape) or len(shape) > 32:
        raise invalid(f"Input {name[:200]!r}: expected a known shape. Received: {shape[:33]}")
    if math.prod(shape) * width > max(_MAX_UNFOLDED_BYTES, 8 * tensor.ByteSize()):
        raise invalid(f"Input {name[:200]!r}: a tensor of shape {shape} is too large.")
    try:
        array = tf.make_ndarray(tensor)
        if dtype == tf.string and not tensor.string_val:
            array[...] = b""  # make_ndarray fills in str.
    except (ValueError, TypeError, IndexError, OverflowError):
        raise invalid(f"Input {name[:200]!r}: its values do not make a tensor of shape {shape}.") from None
    return array


def to_tensor(array: np.ndarray, as_content: bool = False) -> tensor_pb2.TensorProto:
    """Returns an array as a tensor of a response; `as_content` puts its numbers into `tensor_content`."""
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    tensor = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, tensor_shape=tf.TensorShape(array.shape).as_proto())
    if dtype == tf.string:
        tensor.string_val.extend(array.reshape(-1).tolist())
    elif array.dtype.name in _TYPED_FIELDS and not as_content:
        field = _TYPED_FIELDS[array.dtype.name]
        values = np.ascontiguousarray(array).reshape(-1)
        getattr(tensor, field).extend(values.view(_PARTS.get(field, values.dtype)).tolist())
    else:
        tensor.tensor_content = array.tobytes()
    return tensor
