"""The REST API against TensorFlow Serving's: each verb, both formats, every error, over real sockets."""

import base64
import json
import math
import reprlib
import tracemalloc
import types
import unittest.mock
import warnings

import numpy as np
import pytest
import toy_server

from export.server import rest_api
from export.server.serving_error import ServingError


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with toy_server.running(toy_server.saved(tmp_path_factory.mktemp("models"))) as running:
        yield running


def test_the_highest_version_is_served(server):
    status, answer = toy_server.ask(server, "GET", "/v1/models/toy")
    available = {"version": "10", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert (status, answer) == (200, {"model_version_status": [available]})
    assert toy_server.ask(server, "GET", "/v1/models/toy/versions/10")[1] == answer


def test_metadata_lists_the_signatures(server):
    status, answer = toy_server.ask(server, "GET", "/v1/models/toy/versions/10/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "toy", "signature_name": "", "version": "10"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["scale"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    numbers = signature["inputs"]["numbers"]
    assert numbers["dtype"] == "DT_INT32"
    assert numbers["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}],
        "unknown_rank": False,
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Row format, several outputs: objects. One output: a bare list. The same by name.
        ({"instances": ["ab", ""]}, {"predictions": [{"label": "AB", "score": 0.2}, {"label": "", "score": 0.0}]}),
        ({"instances": [{"text": "ab"}]}, {"predictions": [{"label": "AB", "score": 0.2}]}),
        ({"instances": ["é", ""], "signature_name": "echo"}, {"predictions": ["é", ""]}),
        ({"instances": [{"b64": "YWI="}], "signature_name": "echo"}, {"predictions": ["ab"]}),
        ({"instances": [{"text": {"b64": "YWI="}}], "signature_name": "echo"}, {"predictions": ["ab"]}),
        # Column format.
        ({"inputs": ["ab", "xyz"]}, {"outputs": {"label": ["AB", "XYZ"], "score": [0.2, 0.3]}}),
        ({"inputs": {"text": ["ab"]}, "signature_name": "echo"}, {"outputs": ["ab"]}),
        ({"inputs": {"text": [{"b64": "YWI="}]}, "signature_name": "echo"}, {"outputs": ["ab"]}),
        ({"inputs": [], "signature_name": "echo"}, {"outputs": []}),
        ({"inputs": ["a", "b"], "signature_name": "total"}, {"outputs": 2}),
        ({"inputs": {}, "signature_name": "constant"}, {"outputs": [1.0, 2.0]}),
        # Bytes that are not text leave as base64; an output named *_bytes always does.
        ({"instances": [{"b64": "//4="}], "signature_name": "echo"}, {"predictions": [{"b64": "//4="}]}),
        ({"instances": ["ab"], "signature_name": "echo_bytes"}, {"predictions": [{"b64": "YWI="}]}),
        # Several inputs, other types.
        (
            {"instances": [{"numbers": [1, 2], "factor": 0.1}], "signature_name": "scale"},
            {"predictions": [[0.1, 0.2]]},
        ),
        (
            {"inputs": {"numbers": [[1, 2], [3, 4]], "factor": [1, 10]}, "signature_name": "scale"},
            {"outputs": [[1.0, 2.0], [30.0, 40.0]]},
        ),
    ],
)
def test_predict(server, body, expected):
    assert toy_server.predict(server, body) == (200, expected)
    assert toy_server.ask(server, "POST", "/v1/models/toy/versions/10:predict", body) == (200, expected)


def test_infinity_is_written_as_tensorflow_serving_does(server):
    status, answer = toy_server.predict(server, {"instances": [0.0, -0.0], "signature_name": "ratio"})
    assert (status, answer["predictions"]) == (200, [math.inf, -math.inf])


def test_nan_and_infinity_are_numbers_as_for_tensorflow_serving(server):
    body = b'{"instances": [Infinity, -Infinity, NaN], "signature_name": "ratio"}'
    status, answer = toy_server.predict(server, body)
    assert (status, answer["predictions"][:2]) == (200, [0.0, -0.0])
    assert math.isnan(answer["predictions"][2])


def test_the_bounds_of_a_type_are_looked_up_once():
    dtype = unittest.mock.Mock(is_floating=False, as_numpy_dtype=np.int32)
    dtype.name, lookups = "int32", unittest.mock.PropertyMock(return_value=2**31 - 1)
    type(dtype).max, type(dtype).min = lookups, -(2**31)
    arrays = rest_api.predict_arrays({"instances": [[1, 2], [3, 4]]}, {"x": types.SimpleNamespace(dtype=dtype)})
    assert arrays["x"].tolist() == [[1, 2], [3, 4]] and lookups.call_count == 1


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + 400 * "0"])
def test_a_number_beyond_a_double_is_refused(server, number):
    status, answer = toy_server.predict(server, b'{"instances": [%s], "signature_name": "ratio"}' % number.encode())
    assert (status, "too large" in answer["error"]) == (400, True)


@pytest.mark.parametrize(
    ("number", "taken"), [("1e39", 0.0), ("-3.5e38", -0.0), ("16777217", 1 / 16777216), (f"{2**70}", 2.0**-70)]
)
def test_a_number_that_float32_lacks_is_rounded_without_a_warning(server, number, taken):
    body = b'{"instances": [%s], "signature_name": "ratio"}' % number.encode()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = server.rest.routes.respond("POST", "/v1/models/toy:predict", body)
    assert (answer.status, json.loads(answer.body)) == (200, {"predictions": [pytest.approx(taken, rel=1e-6)]})


def test_the_largest_float32_is_taken(server):
    assert toy_server.predict(server, b'{"instances": [3.4028234e38], "signature_name": "ratio"}')[0] == 200


def test_classify_takes_examples_with_a_common_context(server):
    body = {
        "signature_name": "classify",
        "context": {"weight": 2.5},
        "examples": [{"text": "abc"}, {"text": [{"b64": "YQ=="}], "weight": [0.5]}],
    }
    expected = {"results": [[["weight", 2.5], ["length", 3.0]], [["weight", 0.5], ["length", 1.0]]]}
    assert toy_server.ask(server, "POST", "/v1/models/toy:classify", body) == (200, expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"examples": [{"text": "abc"}]}, "Expected a classification signature"),
        ({"signature_name": "classify", "examples": []}, "non-empty list under the key 'examples'"),
        ({"signature_name": "classify"}, "non-empty list under the key 'examples'"),
        ({"signature_name": "classify", "examples": ["abc"]}, "examples[0]: expected an object"),
        ({"signature_name": "classify", "examples": [{"text": ["a", 1]}]}, "['text']: expected strings only"),
        ({"signature_name": "classify", "examples": [{"text": 2**70}]}, "examples[0]['text']"),
        (
            {"signature_name": "classify", "examples": [{"weight": 1.0}]},
            "Feature: text (data type: string) is",
        ),
        ({"signature_name": "classify", "context": 1, "examples": [{"text": "a"}]}, "context: expected an object"),
    ],
)
def test_classify_errors(server, body, message):
    status, answer = toy_server.ask(server, "POST", "/v1/models/toy:classify", body)
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request body is empty"),
        (b"{", "JSON parse error"),
        (b"\xff\xfe", "JSON parse error"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"instances": ' + b"[" * 500 + b"]" * 500 + b"}", "nested more than 32 deep"),
        (b'{"instances": ["a"], "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"instances": ["a"]} more', "JSON parse error"),
        (b'{"instances": "' + b'\\"' * 400_000, "Unterminated string"),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "JSON parse error"),
        ([1], "JSON object at the top"),
        ({}, "exactly one of the keys"),
        ({"instances": ["a"], "inputs": ["a"]}, "exactly one of the keys"),
        ({"instances": []}, "No values in the 'instances' list"),
        ({"instances": "a"}, "'instances' to be a list"),
        ({"instances": ["a"], "signature_name": 3}, "'signature_name' to be a string"),
        ({"instances": ["a"], "signature_name": "nope"}, '"nope" not found in signature def'),
        ({"instances": [{"texts": "a"}]}, "instances[0]: expected exactly the keys ['text']"),
        ({"instances": [{"text": "a", "more": 1}]}, "instances[0]: expected exactly the keys ['text']"),
        ({"instances": [{"text": "a"}, "a"]}, "instances[1]: the list mixes"),
        ({"instances": ["a", {"text": "a"}]}, "instances[1]: the list mixes"),
        ({"instances": ["a", 3]}, "instances[1]: expected a string"),
        ({"instances": ["a", None]}, "instances[1]: expected a string"),
        ({"instances": ["a", ["b"]]}, "instances[1]: lists of different depth"),
        ({"instances": [{"b64": "%%"}]}, "instances[0]: not valid base64"),
        (b'{"instances": ["\\ud800"]}', "half a surrogate pair"),
        ({"inputs": {"txt": ["a"]}}, "Missing ['text'] in 'inputs'"),
        ({"inputs": ["a", 1]}, "inputs['text'][1]: expected a string"),
        ({"inputs": ["a"], "signature_name": "scale"}, "'inputs' to be an object with the keys ['factor', 'numbers']"),
        ({"instances": [1], "signature_name": "scale"}, "each instance to be an object"),
        (
            {"instances": [{"numbers": [1, 2], "factor": 1}, {"numbers": [1], "factor": 1}], "signature_name": "scale"},
            "instances[1]['numbers']: lists of different length. Expected 2. Received: 1",
        ),
        (
            {"instances": [{"numbers": [1, 2.5], "factor": 1}], "signature_name": "scale"},
            "instances[0]['numbers'][1]: expected an integer of type int32",
        ),
        (
            {"instances": [{"numbers": [1, 2**31], "factor": 1}], "signature_name": "scale"},
            "instances[0]['numbers'][1]: expected an integer of type int32",
        ),
        (
            {"instances": [{"numbers": [1, True], "factor": 1}], "signature_name": "scale"},
            "instances[0]['numbers'][1]: expected an integer of type int32",
        ),
        (
            {"instances": [{"numbers": [1, 2], "factor": 10**400}], "signature_name": "scale"},
            "instances[0]['factor']: the number is too large",
        ),
        ({"instances": [{"numbers": [1, 100], "factor": 1}], "signature_name": "scale"}, "number too large"),
        ({"instances": ["a"], "signature_name": "total"}, "no common batch dimension"),
        ({"instances": [1.0], "signature_name": "constant"}, "each instance to be an object with the keys []"),
        ({"inputs": [1.0], "signature_name": "constant"}, "'inputs' to be an object with the keys []"),
    ],
    ids=reprlib.repr,
)
def test_predict_errors(server, body, message):
    status, answer = toy_server.predict(server, body)
    assert status == 400
    assert list(answer) == ["error"]
    assert message in answer["error"]
    assert "Traceback" not in answer["error"]
    assert len(answer["error"]) < 1000


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/v1/models/nope:predict", 404, "Servable not found for request: Latest(nope)"),
        ("POST", "/v1/models/toy/versions/2:predict", 404, "Specific(toy, 2)"),
        ("POST", "/v1/models/toy/versions/" + "1" * 5000 + ":predict", 400, "Failed to convert version: 111"),
        ("POST", f"/v1/models/toy/versions/{2**63}:predict", 400, "to numeric"),
        ("GET", "/v1/models/nope", 404, "Could not find any versions of model nope"),
        ("GET", "/v1/models/nope/metadata", 404, "Latest(nope)"),
        ("GET", "/v1/models/toy/versions/2", 404, "Could not find version 2 of model toy"),
        ("GET", "/v1/models/toy/labels/stable", 400, "Unrecognized servable version label: stable"),
        ("POST", "/v1/models/toy/labels/stable:predict", 400, "Unrecognized servable version label: stable"),
        ("GET", "/v1/models/versions/1", 400, "Missing model name in request."),
        ("POST", "/v1/models/toy:guess", 400, "Malformed request: POST /v1/models/toy:guess"),
        ("GET", "/v1/models/toy:predict", 400, "Malformed request: GET"),
        ("GET", "/v1/models/toy?verbose=1", 404, "Could not find any versions of model toy?verbose=1"),
        ("POST", "/v1/models/toy:predict?verbose=1", 400, "Malformed request: POST /v1/models/toy:predict?verbose=1"),
        ("DELETE", "/v1/models/toy", 400, "Malformed request: DELETE"),
        ("OPTIONS", "/v1/models/toy", 400, "Origin header is missing in CORS preflight"),
        ("GET", "/v2", 404, "/v1/models/"),
        ("POST", "/", 404, "/v1/models/"),
        ("PUT", "/v1/models/toy:predict", 400, "Malformed request: PUT /v1/models/toy:predict"),
    ],
)
def test_wrong_addresses(server, method, path, status, message):
    answer = toy_server.ask(server, method, path, {"instances": ["a"]} if method == "POST" else None)
    assert answer[0] == status
    assert message in answer[1]["error"]


def test_float32_values_are_written_short_and_exact():
    values = np.array([[0.2, 1e-30], [16777216.0, 0.1]], dtype=np.float32)
    written = json.loads(rest_api.dump(rest_api.to_json(values)))
    assert written[0][0] == 0.2
    np.testing.assert_array_equal(np.array(written, dtype=np.float32), values)


def test_an_output_without_a_form_in_json_is_the_requests_fault():
    with pytest.raises(ServingError, match="'z' of type complex64 cannot be written as JSON") as refused:
        rest_api.to_json(np.ones(1, np.complex64), "z")
    assert refused.value.http_status == 400


def test_base64_round_trip_of_all_bytes(server):
    every_byte = base64.b64encode(bytes(range(256))).decode()
    body = {"instances": [{"b64": every_byte}], "signature_name": "echo_bytes"}
    assert toy_server.predict(server, body) == (200, {"predictions": [{"b64": every_byte}]})


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 50_000,
        [{}] * 50_000,
        ["é\U0001f600" + "a" * 1000] * 50,
        [{"b64": "YQ"}] * 20_000,
        list(range(50_000)),
        [[["ab"]]] * 20_000,
        [{f"k{number}": 1.5} for number in range(20_000)],
        ["abc"] * 50_000,
        [[1.5] * 3] * 20_000,
    ],
    ids=["lists", "objects", "wide text", "base64", "numbers", "nested", "keys", "texts", "rows"],
)
def test_the_size_of_parsed_json_is_not_underestimated(value):
    body = json.dumps({"instances": value}, ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        parsed = rest_api.parse_json(body)
        assert tracemalloc.get_traced_memory()[1] <= rest_api.parsed_size(body) <= 60 * len(body)
    finally:
        tracemalloc.stop()
    assert len(parsed["instances"]) == len(value)
