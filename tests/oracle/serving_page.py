"""The examples of TensorFlow Serving's page on its REST API: requests and answers as the page prints them."""

import base64
import json
import os
import re
import shlex
import struct
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from cpp_tests import compare_json
from oracle import Case, check
from served import ask, serving

NAME = "api_rest.md"
FOLDER = "serving"
_PARSER = "TensorFlow Serving's parser refuses it as well; mended, it is answered."
_RESULTS = 'TensorFlow Serving writes "results", as the example at the end of the page does.'
EXPLAINED = {
    "Specifying input tensors in row format.: 3 as printed": f"The page has a bracket too many. {_PARSER}",
    "JSON conformance: 1 as printed": f"The page writes Nan for NaN, and example for examples. {_PARSER}",
    "Response format: classify": _RESULTS,
    "Response format: regress": _RESULTS,
}

# What the page asks of which model; `page` has a signature for each kind of example.
_CONFIG = """
model_config_list {{
  config {{ name: "saved_model_half_plus_three" base_path: {half} model_platform: "tensorflow" }}
  config {{
    name: "page" base_path: {page} model_platform: "tensorflow" version_labels {{ key: "stable" value: 1 }}
  }}
}}
"""
_SIGNATURES = {'"tag"': "named", '"sensor_readings"': "readings", '"foo"': "strings", "[[1, 2]]": "pairs"}
_MENDINGS = [(r'("\w+": \[[^\[\]]*\])\]', r"\1"), (r"\bNan\b", "NaN"), (r'"example"', '"examples"')]


class _Block(NamedTuple):
    """A block of code.

    Attributes:
        heading: the nearest above it.
        prose: between that and the block.
        text: the block's lines, comments left out.
    """

    heading: str
    prose: str
    text: str


def run(folder: str) -> list[Case]:
    """Asks bert-serve what the page asks."""
    root = os.path.join(folder, "tensorflow_serving")
    with open(os.path.join(root, "g3doc", "api_rest.md"), encoding="utf-8") as file:
        page = file.read()
    half = os.path.join(root, "servables", "tensorflow", "testdata", "saved_model_half_plus_three")
    with tempfile.TemporaryDirectory() as scratch:
        _save(os.path.join(scratch, "1"), sorted(set(re.findall(r"DT_\w+", page))))
        with serving(_CONFIG.format(half=json.dumps(half), page=json.dumps(scratch))) as port:
            return [check(name, function, port, *arguments) for name, function, *arguments in _examples(page)]


def _save(directory: str, types: list[str]) -> None:
    import tensorflow as tf

    def echo(**specs):
        return tf.function(lambda **values: {name: tf.identity(value) for name, value in values.items()}), specs

    def objects(inputs):
        parsed = tf.io.parse_example(inputs, {name: tf.io.FixedLenFeature([], tf.string) for name in objects.features})
        lengths = [tf.strings.length(parsed[name]) for name in objects.features]
        return {
            "classes": tf.stack([parsed[name] for name in objects.features], axis=1),
            "scores": tf.cast(tf.stack(lengths, axis=1), tf.float32),
        }

    def readings(inputs):
        return {"scores": tf.io.parse_example(inputs, features)["sensor_readings"]}

    def first_reading(inputs):
        return {"outputs": tf.io.parse_example(inputs, features)["sensor_readings"][:, 0]}

    objects.features = ("image", "caption")
    features = {"sensor_readings": tf.io.FixedLenFeature([4], tf.float32)}
    strings, examples = tf.TensorSpec([None], tf.string), {"inputs": tf.TensorSpec([None], tf.string)}
    signal, sensor = tf.TensorSpec([None, 5], tf.int32), tf.TensorSpec([None, 2, 2], tf.int32)
    signatures = {
        "serving_default": echo(x=tf.TensorSpec([None], tf.float32)),
        "strings": echo(x=strings),
        "bytes": echo(image_bytes=strings),
        "pairs": echo(x=tf.TensorSpec([None, 1, 2], tf.int32)),
        "named": echo(tag=strings, signal=signal, sensor=sensor),
        "classify_objects": (tf.function(objects), examples),
        "readings": (tf.function(readings), examples),
        "first_reading": (tf.function(first_reading), examples),
    }
    signatures |= {name: echo(x=tf.TensorSpec([None], tf.as_dtype(name[3:].lower()))) for name in types}
    traced = {
        name: function.get_concrete_function(**{key: tf.TensorSpec(s.shape, s.dtype, key) for key, s in specs.items()})
        for name, (function, specs) in signatures.items()
    }
    tf.saved_model.save(tf.Module(), directory, signatures=traced)


# === The page ===


def _examples(page: str) -> Iterator[tuple]:
    """Yields a name, a function and its arguments behind the port, for each example."""
    places: dict[str, int] = {}
    for block in _blocks(page):
        if "$ curl" in block.text:
            yield from _curl_examples(block.text)
        elif re.match(r"GET|POST", block.text):
            yield from _addresses(block.text.strip())
        elif "<" in block.text:
            yield from _templates(block)
        elif block.text.startswith("{"):
            for body in re.split(r"(?<=\})\n\s*\n(?=\{)", block.text.strip()):
                number = places[block.heading] = places.get(block.heading, 0) + 1
                yield from _bodies(f"{block.heading}: {number}", body)
        elif "$ " not in block.text:  # What is left sets a machine up.
            raise ValueError(f"Not parsed: {block.text}")
    yield from _table(page)
    sent, taken = re.search(r'\{"x": (\d+)\}.*?converted.*?`(\d+)`', page, re.DOTALL).groups()
    yield "Floating Point Precision", _precision, sent, float(taken)


def _blocks(page: str) -> Iterator[_Block]:
    pieces = re.split(r"^```\w*\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    heading = above = ""
    for prose, text in zip(pieces[::2], pieces[1::2], strict=False):
        *_, title, last = ["", *re.split(r"^#+ (.+)$", prose, flags=re.MULTILINE)]
        heading, above = (title, last) if title else (heading, above + prose)
        yield _Block(heading, above, re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE))


def _table(page: str) -> Iterator[tuple]:
    for types, examples in re.findall(r"^(DT_[^|]+)\|[^|]+\|\s*\*(.+?)\*\s*\|", page, re.MULTILINE):
        values = json.loads(f"[{examples.replace('`', '')}]")
        for name in re.findall(r"DT_\w+", types):
            # The examples of numbers are one list for signed types and others.
            own = [value for value in values if not (name.startswith("DT_UINT") and value < 0)]
            yield f"JSON mapping: {name}", _predict, name, {"x": own}, own


def _curl_examples(text: str) -> Iterator[tuple]:
    for command, answer in re.findall(
        r"^\$ (curl(?:[^\n]*\\\n)*[^\n]*)\n(.*?)(?=^\$|\Z)", text, re.MULTILINE | re.DOTALL
    ):
        yield command.replace("\\\n", " ")[:100], _curl, shlex.split(command.replace("\\\n", " "))[1:], answer


def _addresses(template: str) -> Iterator[tuple]:
    method, address = template.split()
    stem, _, rest = address.partition("[")
    path = stem.removeprefix("http://host:port").replace("${MODEL_NAME}", "page")
    choices, _, end = rest.partition("]")
    for choice in ("", *choices.split("|")):
        for verb in re.fullmatch(r":?\(?(.*?)\)?", end)[1].split("|"):
            place = choice.replace("${VERSION}", "1").replace("${LABEL}", "stable")
            target = f"{path}{place}" + (f":{verb}" if method == "POST" else verb)
            yield f"{method} {target}", _address, method, target


def _templates(block: _Block) -> Iterator[tuple]:
    keys = re.findall(r'^(?:\{| {2}|)\s?"(\w+)":', block.text, re.MULTILINE)
    if keys == ["result"]:
        verb = re.findall(r"`(classify|regress)` request", block.prose)[-1]
        yield f"Response format: {verb}", _answer_keys, verb, keys
    elif keys in (["predictions"], ["outputs"]):
        yield (
            f"Response format: {keys[0]}",
            _answer_keys,
            {"predictions": "instances", "outputs": "inputs"}[keys[0]],
            keys,
        )
    elif keys == ["error"]:
        yield "Errors", _answer_keys, "error", keys
    elif keys == ["b64"]:
        yield "Encoding binary values: bytes", _binary
    elif keys == ["signature_name", "context", "examples"]:
        for verb in ("classify", "regress"):
            yield f"Request format: {verb}", _answer_keys, verb, ["results"]
    elif keys == ["signature_name", "instances", "inputs"]:
        for key in keys[1:]:
            yield f"Request format: {key}", _answer_keys, key, [{"instances": "predictions", "inputs": "outputs"}[key]]
        yield "Request format: not both", _answer_keys, "both", ["error"]
    else:
        raise ValueError(f"Not parsed: {block.text}")


def _bodies(name: str, body: str) -> Iterator[tuple]:
    mended = body
    for pattern, replacement in _MENDINGS:
        mended = re.sub(pattern, replacement, mended)
    if mended == body:
        yield name, _body, body, body
    else:
        yield f"{name} as printed", _body, body, mended
        yield f"{name} mended", _body, mended, mended


# === What is asked ===


def _expect(is_met: bool, message: object) -> None:
    if not is_met:
        raise AssertionError(str(message)[:500])


def _curl(port: int, arguments: list[str], expected: str) -> None:
    options = dict(zip(arguments, arguments[1:], strict=False))
    (url,) = (argument for argument in arguments if argument.startswith("http://"))
    body = options.get("-d", "")
    path = url.removeprefix("http://localhost:8501")
    response, text = ask(port, options.get("-X", "POST" if body else "GET"), path, body)
    status = 200
    if head := re.match(r"HTTP/1.1 (\d+) (.*)\n((?:.+\n)*)\n", expected):
        status, expected = int(head[1]), expected[head.end() :]
        _expect(response.reason == head[2], response.reason)
        kind = re.search(r"^Content-Type: (.*)$", head[3], re.MULTILINE)[1]
        _expect(response.headers["Content-Type"] == kind, response.headers)
    _expect(response.status == status, f"{response.status} {text}")
    _expect(compare_json(text, expected).code == "OK", f"expected {expected}, found {text}")


def _address(port: int, method: str, target: str) -> None:
    bodies = {"classify": _EXAMPLES["classify"], "regress": _EXAMPLES["regress"], "predict": _EXAMPLES["instances"]}
    body = json.dumps(bodies[target.rpartition(":")[2]]) if method == "POST" else ""
    response, text = ask(port, method, target, body)
    keys = {"metadata": {"model_spec", "metadata"}, "predict": {"predictions"}, "page": {"model_version_status"}}
    wanted = keys.get(re.split("[:/]", target)[-1], {"results"} if method == "POST" else {"model_version_status"})
    _expect(response.status == 200 and set(json.loads(text)) == wanted, f"{response.status} {text}")


_READING = {"sensor_readings": [1.0, 2.0, 3.0, 4.0]}
_EXAMPLES = {
    "classify": {"signature_name": "readings", "context": _READING, "examples": [{}, {}]},
    "regress": {"signature_name": "first_reading", "context": _READING, "examples": [{}, {}]},
    "instances": {"signature_name": "serving_default", "instances": [1.0]},
    "inputs": {"signature_name": "serving_default", "inputs": [1.0]},
    "both": {"instances": [1.0], "inputs": [1.0]},
    "error": {},
}


def _answer_keys(port: int, kind: str, keys: list[str]) -> None:
    verb = kind if kind in ("classify", "regress") else "predict"
    response, text = ask(port, "POST", f"/v1/models/page:{verb}", json.dumps(_EXAMPLES[kind]))
    is_error = keys == ["error"]
    _expect(response.status == (400 if is_error else 200), f"{response.status} {text}")
    answer = json.loads(text)
    _expect(list(answer) == keys, f"expected the keys {keys}, found {text}")
    _expect(not is_error or isinstance(answer["error"], str), text)


def _predict(port: int, signature: str, inputs: dict, expected: list) -> None:
    for body, key in (({"inputs": inputs}, "outputs"), ({"instances": inputs["x"]}, "predictions")):
        body = json.dumps({"signature_name": signature, **body})
        response, text = ask(port, "POST", "/v1/models/page:predict", body)
        same = response.status == 200 and compare_json(text, json.dumps({key: expected})).code == "OK"
        _expect(same, f"{response.status} {text}")


def _precision(port: int, sent: str, taken: float) -> None:
    body = f'{{"signature_name": "serving_default", "instances": [{{"x": {sent}}}]}}'
    response, text = ask(port, "POST", "/v1/models/page:predict", body)
    # Servers write as many digits as tell a float32 from its neighbours.
    (prediction,) = struct.unpack("f", struct.pack("f", json.loads(text)["predictions"][0]))
    _expect(response.status == 200 and prediction == taken, f"{response.status} {text}")


def _binary(port: int) -> None:
    value = {"b64": base64.b64encode(bytes(range(256))).decode()}
    body = json.dumps({"signature_name": "bytes", "instances": [value]})
    response, text = ask(port, "POST", "/v1/models/page:predict", body)
    _expect(json.loads(text) == {"predictions": [value]}, f"{response.status} {text}")


def _body(port: int, body: str, mended: str) -> None:
    """Sends a body; the signatures answer what they are sent, or the lengths of strings."""
    document = json.loads(mended)
    if "signature_name" not in document:
        signature = next(name for key, name in _SIGNATURES.items() if key in body)
        body = body.replace("{", f'{{"signature_name": "{signature}",', 1)
    verb = "classify" if "examples" in document else "predict"
    response, text = ask(port, "POST", f"/v1/models/page:{verb}", body)
    _expect(response.status == 200, f"{response.status} {text}")
    if "examples" in document:
        expected = {"results": [_classes(example) for example in document["examples"]]}
    elif "instances" in document:
        expected = {"predictions": document["instances"]}
    else:
        expected = {"outputs": document["inputs"]}
    _expect(compare_json(text, json.dumps(expected)).code == "OK", f"expected {expected}, found {text}")


def _classes(example: dict) -> list[list]:
    if "sensor_readings" in example:
        return [["", value] for value in example["sensor_readings"]]
    image = base64.b64decode(example["image"]["b64"]).decode()
    return [[value, float(len(value))] for value in (image, example["caption"])]
