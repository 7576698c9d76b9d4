"""TensorFlow Serving's tests of JSON to tensors and back, on the REST routes over a model that answers as told."""

import json
import os
import types

from cpp_tests import NotOursError, Status, Variable, compare_json, compare_json_texts, plain, run_tests
from oracle import Case
from stub_model import StubModel

NAME = "json_tensor_test.cc"
FOLDER = "serving"
EXPLAINED = {"JsontensorTest.DeeplyNestedWellFormed 1": "bert-serve refuses JSON of 1,000 levels (docs/serving.md)."}
_FORMATS = types.SimpleNamespace(kRow="predictions", kColumnar="outputs")


def run(folder: str) -> list[Case]:
    """Runs all tests of the file."""
    import collections
    import functools

    from tensorflow.core.framework import tensor_pb2
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow_serving.apis import classification_pb2, regression_pb2

    class TensorMap(collections.defaultdict):
        """A map of C++."""

        def size(self) -> int:
            """The map's."""
            return len(self)

    class Request:
        """A request as it reached the model, or as it is expected."""

        def __init__(self, kind=None):
            self.expected = kind and kind()
            self.verb = "classify" if kind is classification_pb2.ClassificationRequest else "regress"
            self.asked: dict = {}

        def Clear(self) -> None:  # noqa: N802  (its name in C++)
            """Forgets what was asked."""
            self.asked = {}

        def inputs(self) -> TensorMap:
            """Arrays by name."""
            return TensorMap(None, self.asked["arrays"])

        def model_spec(self):
            """The signature that was asked for."""
            return types.SimpleNamespace(signature_name=lambda: self.asked["signature_name"])

        def DebugString(self) -> str:  # noqa: N802
            """Shown by failures."""
            return str(self.asked)

    results = {
        "ClassificationResult": classification_pb2.ClassificationResult,
        "RegressionResult": regression_pb2.RegressionResult,
    }
    variables = {
        "TensorInfoMap": lambda: TensorMap(meta_graph_pb2.TensorInfo),
        "TensorMap": lambda: TensorMap(tensor_pb2.TensorProto),
        "PredictRequest": Request,
        "ClassificationRequest": functools.partial(Request, classification_pb2.ClassificationRequest),
        "RegressionRequest": functools.partial(Request, regression_pb2.RegressionRequest),
        "DefaultFieldComparator": lambda: types.SimpleNamespace(
            set_float_comparison=lambda _: None, set_treat_nan_as_equal=lambda _: None
        ),
        "MessageDifferencer": lambda: types.SimpleNamespace(
            set_field_comparator=lambda _: None, Compare=_are_same_examples
        ),
        **results,
    }
    names = {
        "TextFormat": types.SimpleNamespace(ParseFromString=_parse),
        "JsonPredictRequestFormat": _FORMATS,
        "DefaultFieldComparator": types.SimpleNamespace(APPROXIMATE=None),
        "MessageDifferencer": types.SimpleNamespace(ApproximatelyEquals=_are_same_examples),
        "EqualsProto": lambda text: lambda array: _difference(array, text),
        "CompareJson": compare_json,
        "CompareJsonAllValuesAsStrings": compare_json_texts,
        "getmap": lambda infomap: infomap,
        **results,
    }
    calls = {
        "FillPredictRequestFromJson": _predict,
        "this.FillRequest": _ask_with_examples,
        "MakeJsonFromTensors": _predict_response,
        "MakeJsonFromClassificationResult": _classify_response,
        "MakeJsonFromRegressionResult": _regress_response,
        "MakeJsonFromStatus": _error_response,
    }
    path = os.path.join(folder, "tensorflow_serving", "util", "json_tensor_test.cc")
    return run_tests(path, names, variables, calls)


# === Requests ===


def _predict(text, infomap, request, format_) -> Status:
    import numpy as np
    import tensorflow as tf

    specs = {name: tf.TensorSpec(None, info.dtype) for name, info in infomap.items()}
    model = StubModel(specs, {"y": np.zeros([1])})
    status, answer = model.respond("POST", "/v1/models/stub:predict", plain(text))
    request.asked = model.asked
    format_.set(next(iter(json.loads(answer))))
    return status


def _ask_with_examples(text, request) -> Status:
    import numpy as np
    import tensorflow as tf

    output, columns = ("scores", 1) if request.verb == "classify" else ("outputs", 1)
    outputs = {output: lambda arrays: np.zeros([len(arrays["inputs"]), columns], np.float32)}
    model = StubModel({"inputs": tf.TensorSpec([None], tf.string)}, outputs)
    status, _ = model.respond("POST", f"/v1/models/stub:{request.verb}", plain(text))
    request.asked = model.asked
    return status


def _parse(text, target) -> bool:
    from google.protobuf import text_format

    message = getattr(target, "expected", target)
    message.Clear()
    text_format.Parse(text, message)
    return True


def _difference(array, text: str) -> str:
    import numpy as np
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    expected = tf.make_ndarray(text_format_parsed(text, tensor_pb2.TensorProto()))
    same = array.dtype == expected.dtype and array.shape == expected.shape
    if same and array.dtype != object:
        same = np.array_equal(array, expected, equal_nan=True) and np.array_equal(
            np.signbit(array), np.signbit(expected)
        )
    elif same:
        same = array.tolist() == expected.tolist()
    return "" if same else f"expected {expected!r}, found {array!r}"


def text_format_parsed(text: str, message):
    """Returns the message after it has taken the text's fields."""
    _parse(text, message)
    return message


def _are_same_examples(request, expected) -> bool:
    """Compares the examples that reached the model with those of a request, which get its context's features."""
    from tensorflow.core.example import example_pb2

    wanted = expected.expected
    held = wanted.input.example_list_with_context
    examples = []
    for example in [*wanted.input.example_list.examples, *held.examples]:
        whole = example_pb2.Example()
        whole.CopyFrom(held.context)
        whole.MergeFrom(example)
        examples.append(whole)
    model_examples = [example_pb2.Example.FromString(serialized) for serialized in request.asked["arrays"]["inputs"]]
    name = wanted.model_spec.signature_name or "serving_default"
    # As text, in which NaN equals NaN.
    return request.asked["signature_name"] == name and list(map(_sorted_text, model_examples)) == list(
        map(_sorted_text, examples)
    )


def _sorted_text(example) -> list[tuple[str, str]]:
    return sorted((name, str(feature)) for name, feature in example.features.feature.items())


# === Answers ===


def _predict_response(tensors, format_, text: Variable) -> Status:
    import tensorflow as tf

    outputs = {name: tf.make_ndarray(tensor) for name, tensor in tensors.items()}
    model = StubModel({"x": tf.TensorSpec(None, tf.float32)}, outputs)
    key = {"predictions": "instances", "outputs": "inputs"}[format_]
    return _answer(text, model.respond("POST", "/v1/models/stub:predict", json.dumps({key: [0]})))


def _classify_response(result, text: Variable) -> Status:
    import numpy as np

    rows = [row.classes for row in result.classifications]
    shape = (len(rows), len(rows[0]) if rows else 0)
    labels = np.array([entry.label.encode() for row in rows for entry in row], object).reshape(shape)
    scores = np.array([entry.score for row in rows for entry in row], np.float32).reshape(shape)
    return _examples_response("classify", {"classes": labels, "scores": scores}, text)


def _regress_response(result, text: Variable) -> Status:
    import numpy as np

    values = np.array([regression.value for regression in result.regressions], np.float32)
    return _examples_response("regress", {"outputs": values}, text)


def _examples_response(verb: str, outputs: dict, text: Variable) -> Status:
    import tensorflow as tf

    model = StubModel({"inputs": tf.TensorSpec([None], tf.string)}, outputs)
    count = max(len(next(iter(outputs.values()))), 1)
    body = json.dumps({"examples": count * [{}]})
    return _answer(text, model.respond("POST", f"/v1/models/stub:{verb}", body))


def _answer(text: Variable, answered: tuple[Status, str]) -> Status:
    text.set(answered[1])
    return answered[0]


def _error_response(status: Status, text: Variable) -> None:
    from export.server.rest_routes import error_answer
    from export.server.serving_error import ServingError

    if status.code == "OK":
        raise NotOursError("A status that is not an error has no answer.")
    text.set(error_answer(ServingError(status.code, status.text)).body.decode())
