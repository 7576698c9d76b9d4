"""TensorFlow Serving's REST formats: turns JSON into arrays and arrays into JSON.

Sources: TensorFlow Serving's REST API page and its `json_tensor.cc`. Where they differ, this follows the server: the
page calls the key of a classification `result`, the server writes `results`.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping

import numpy as np
from tensorflow.core.example import example_pb2, feature_pb2

from export.server.serving_error import ServingError, invalid
from export.signatures import SERVING_DEFAULT
from keras_bert.errors import shown

# Types other than strings that TensorFlow Serving reads from JSON and writes to it.
NUMBERS = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "uint32", "uint64", "bool")
_DEEPEST_LIST = 32  # TensorFlow allows 254 dimensions; no signature comes near this many.


def parse_json(body: bytes) -> dict:
    """Reads a request body.

    Raises:
        ServingError: (INVALID_ARGUMENT) not UTF-8, not JSON, nested more than about 1,000 deep, or not a JSON object.
    """
    if not body:
        raise invalid("JSON parse error: the request body is empty.")
    try:
        document = json.loads(body.decode("utf-8"), parse_float=_finite)
    except RecursionError:
        raise invalid("JSON parse error: the document is nested too deeply.") from None
    except ValueError as error:
        raise invalid(f"JSON parse error: {error}.") from None
    if not isinstance(document, dict):
        raise invalid(f"Expected a JSON object at the top. Received: {shown(document)}")
    return document


def _finite(text: str) -> float:
    # As in TensorFlow Serving, NaN and Infinity are values, but a number too large for a double is an error.
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {shown(text)} is too large")
    return value


def parsed_size(body: bytes) -> int:
    """Returns an upper bound on the bytes that a piece of JSON takes, as part of the body and once parsed.

    A list takes 56 bytes, an object 64 and about 250 for each key. A value takes 8 in its list, and 32 as a number or
    49 as a string, whose characters take up to four bytes each if one of them is not ASCII.
    """
    characters = len(body) if body.isascii() else 8 * len(body)
    weights = {b"[": 120, b"{": 80, b",": 60, b":": 300}
    return len(body) + characters + sum(weight * body.count(mark) for mark, weight in weights.items())


def signature_name_of(document: dict) -> str:
    """Returns the signature that a request asks for, `serving_default` if it names none."""
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(f"Expected 'signature_name' to be a string. Received: {shown(name)}")
    return name or SERVING_DEFAULT


def predict_arrays(document: dict, specs: Mapping) -> dict[str, np.ndarray]:
    """Returns the arrays that a `:predict` request has for a signature's inputs.

    Args:
        document: has rows under the key "instances", or columns under "inputs".
        specs: input name -> tensor specification (`dtype`, `shape`) of the signature.

    Raises:
        ServingError: (INVALID_ARGUMENT) both keys or neither, no list of rows or an empty one, a missing or unknown
            input, a wrong type, ragged lists, broken base64.
    """
    if ("instances" in document) == ("inputs" in document):
        raise invalid("Expected exactly one of the keys 'instances' (rows) and 'inputs' (columns).")
    if "inputs" in document:
        columns = _columns(document["inputs"], specs)
        return {name: to_array(columns[name], spec, _column_locator(name)) for name, spec in specs.items()}
    columns = _columns_of_rows(document["instances"], specs)
    return {name: to_array(columns[name], spec, _row_locator(name, len(specs))) for name, spec in specs.items()}


def _columns_of_rows(rows, specs: Mapping) -> dict[str, list]:
    if not isinstance(rows, list):
        raise invalid(f"Expected 'instances' to be a list. Received: {shown(rows)}")
    if not rows:
        raise invalid("No values in the 'instances' list: expected at least one.")
    bare, names = not _is_named(rows[0]), sorted(specs)
    if bare and len(specs) != 1:
        raise invalid(f"Expected each instance to be an object with the keys {names}. Received: {shown(rows[0])}")
    for number, row in enumerate(rows):
        if _is_named(row) == bare:
            raise invalid(f"instances[{number}]: the list mixes objects and plain values.")
        if not bare and set(row) != set(specs):
            raise invalid(f"instances[{number}]: expected exactly the keys {names}. Received: {shown(sorted(row))}")
    return {name: rows if bare else [row[name] for row in rows] for name in specs}


def _columns(values, specs: Mapping) -> dict:
    names = sorted(specs)
    if not _is_named(values):
        if len(specs) != 1:
            raise invalid(f"Expected 'inputs' to be an object with the keys {names}. Received: {shown(values)}")
        return {next(iter(specs)): values}
    missing = sorted(set(specs) - set(values))
    if missing:  # Like TensorFlow Serving, ignores unknown names in columns, but not in rows.
        raise invalid(f"Missing {missing} in 'inputs'. Expected the keys {names}. Received: {shown(sorted(values))}")
    return values


def _is_named(value) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _row_locator(name: str, num_inputs: int) -> Callable[[tuple], str]:
    field = f"[{name!r}]" if num_inputs > 1 else ""
    return lambda path: f"instances[{path[0]}]{field}" + indices(path[1:]) if path else f"instances, input {name!r}"


def _column_locator(name: str) -> Callable[[tuple], str]:
    return lambda path: f"inputs[{name!r}]" + indices(path)


def indices(path: tuple) -> str:
    """Returns a place in nested lists as text, such as `[0][2]`."""
    return "".join(f"[{index}]" for index in path)


def to_array(value, spec, locate: Callable[[tuple], str]) -> np.ndarray:
    """Returns nested lists of JSON values as an array of a tensor specification's type; strings as bytes objects.

    Args:
        value: a JSON value, or nested lists of them.
        spec: a tensor specification, of which only `dtype` counts.
        locate: returns what errors call the place with these indices.

    Raises:
        ServingError: (INVALID_ARGUMENT) a value of another type, ragged lists, broken base64.
    """
    shape = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if len(shape) > _DEEPEST_LIST:
            raise invalid(f"{locate(())}: lists are nested more than {_DEEPEST_LIST} deep.")
        first = first[0] if first else None
    leaves: list = []
    _collect(value, shape, (), _leaf_reader(spec.dtype), leaves, locate)
    numpy_dtype = object if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype
    with np.errstate(over="ignore"):  # As in TensorFlow Serving, a double beyond float32 becomes Infinity.
        return np.array(leaves, dtype=numpy_dtype).reshape(shape)


def _collect(value, shape: list[int], path: tuple, read: Callable, leaves: list, locate: Callable) -> None:
    """Appends the leaves of nested lists in order; all lists of a level must have the same length."""
    level = len(path)
    if isinstance(value, list) != (level < len(shape)):
        raise invalid(f"{locate(path)}: lists of different depth. Expected {len(shape)} levels everywhere.")
    if not isinstance(value, list):
        try:
            leaves.append(read(value))
        except ValueError as error:
            raise invalid(f"{locate(path)}: {error}. Received: {shown(value)}") from None
        return
    if len(value) != shape[level]:
        raise invalid(f"{locate(path)}: lists of different length. Expected {shape[level]}. Received: {len(value)}")
    for index, item in enumerate(value):
        _collect(item, shape, (*path, index), read, leaves, locate)


def _leaf_reader(dtype) -> Callable:
    if dtype.name == "string":
        return _read_bytes
    if dtype.name not in NUMBERS:
        raise ServingError("UNIMPLEMENTED", f"Inputs of type {dtype.name} cannot be given as JSON.")
    if dtype.name == "bool":
        return _read_bool
    if dtype.is_floating:
        return _read_float
    lowest, highest, name = dtype.min, dtype.max, dtype.name  # Looked up once, since they cost more than the checks.
    return lambda value: _read_integer(value, lowest, highest, name)


def _read_bytes(value) -> bytes:
    """Returns a JSON string or `{"b64": ...}` as bytes; raises `ValueError` for anything else."""
    if _is_base64(value):
        try:
            # As in TensorFlow Serving, line breaks and missing padding are no error.
            digits = "".join(value["b64"].split()).rstrip("=")
            return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
        except ValueError:
            raise ValueError("not valid base64") from None
    if not isinstance(value, str):
        raise ValueError("expected a string or {'b64': ...}")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("the string holds half a surrogate pair") from None


def _read_bool(value) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _read_integer(value, lowest: int, highest: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"expected an integer of type {name}")
    return value


def _read_float(value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("the number is too large") from None


def parse_examples(document: dict) -> list[bytes]:
    """Returns the serialized `tf.Example`s of a `:classify` request, with the `context` features added to each.

    Raises:
        ServingError: (INVALID_ARGUMENT) no non-empty list `examples`, or a feature that mixes types or has none.
    """
    examples = document.get("examples")
    if not isinstance(examples, list) or not examples:
        raise invalid(f"Expected a non-empty list under the key 'examples'. Received: {shown(examples)}")
    context = document.get("context", {})
    serialized = []
    for place, features in [("context", context), *((f"examples[{i}]", value) for i, value in enumerate(examples))]:
        if not isinstance(features, dict):
            raise invalid(f"{place}: expected an object of features. Received: {shown(features)}")
        message = example_pb2.Example()
        for name, value in (context | features).items():
            message.features.feature[name].CopyFrom(_feature(value, f"{place}[{name!r}]"))
        serialized.append(message.SerializeToString())
    return serialized[1:]


def _feature(value, place: str) -> feature_pb2.Feature:
    values = value if isinstance(value, list) else [value]
    try:
        if not values:
            return feature_pb2.Feature()
        if all(isinstance(item, str) or _is_base64(item) for item in values):
            return feature_pb2.Feature(bytes_list=feature_pb2.BytesList(value=map(_read_bytes, values)))
        if all(isinstance(item, int) for item in values):  # true and false count as 1 and 0
            return feature_pb2.Feature(int64_list=feature_pb2.Int64List(value=map(int, values)))
        if all(isinstance(item, float) for item in values):
            with np.errstate(over="ignore"):
                return feature_pb2.Feature(float_list=feature_pb2.FloatList(value=np.float32(values)))
    except ValueError as error:
        raise invalid(f"{place}: {error}. Received: {shown(value)}") from None
    raise invalid(f"{place}: expected strings only, whole or decimal numbers only. Received: {shown(value)}")


def predict_response(outputs: Mapping[str, np.ndarray], by_rows: bool) -> dict:
    """Returns the answer to `:predict`: `predictions` for rows, `outputs` for columns; a single output loses its name.

    Raises:
        ServingError: (INVALID_ARGUMENT) rows were asked for, but the outputs have no common first dimension.
    """
    values = {name: to_json(array, name) for name, array in sorted(outputs.items())}
    if not by_rows:
        return {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    sizes = {array.shape[0] if array.ndim else None for array in outputs.values()}
    if len(sizes) != 1 or None in sizes:
        raise invalid("The outputs have no common batch dimension; ask with 'inputs' instead of 'instances'.")
    if len(values) == 1:
        return {"predictions": next(iter(values.values()))}
    rows = zip(*values.values(), strict=True)
    return {"predictions": [dict(zip(values, row, strict=True)) for row in rows]}


def to_json(array: np.ndarray, name: str = ""):
    """Returns an array as nested lists; bytes as text, or as `{"b64": ...}` if the output's name ends in `_bytes`.

    Raises:
        ServingError: (INVALID_ARGUMENT) JSON has no form for the type.
    """
    if array.dtype.kind == "O":
        leaves = np.empty(array.size, dtype=object)
        leaves[:] = [_bytes_to_json(value, name.endswith("_bytes")) for value in array.reshape(-1)]
        return leaves.reshape(array.shape).tolist()
    if array.dtype.name not in NUMBERS:
        raise invalid(f"Output {name!r} of type {array.dtype.name} cannot be written as JSON.")
    if array.dtype == np.float32:
        # The shortest decimal that is this float32: 0.2, not 0.20000000298023224.
        shortest = [float(str(value)) for value in array.reshape(-1)]
        return np.array(shortest, dtype=np.float64).reshape(array.shape).tolist()
    return array.tolist()


def _bytes_to_json(value: bytes, binary: bool):
    if not binary:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            pass  # JSON has no other form than base64 for text that is not UTF-8.
    return {"b64": base64.b64encode(value).decode("ascii")}


def dump(payload) -> bytes:
    """Returns JSON as bytes, with NaN and infinities as TensorFlow Serving writes them."""
    # A lone surrogate (from a client's own string in an error message) becomes its JSON escape.
    return json.dumps(payload, ensure_ascii=False).encode("utf-8", errors="backslashreplace")
