"""Describes the REST API of the loaded models for tools that read OpenAPI 3.1, such as client generators.

Shapes of values follow from the signatures. Each path may name a version after the model's name, as `/versions/N` or
`/labels/L`; the description is of the version that answers by default.
"""

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from export.server import rest_api, search_api
from export.server.inference import takes_examples
from export.server.model_manager import ModelManager
from export.server.servable import Signature
from export.signatures import SERVING_DEFAULT

PATH = "/openapi.json"
Schema = dict  # https://json-schema.org/draft/2020-12


def _list_of(items: Schema, size: int | None = None, at_least: int | None = None) -> Schema:
    bounds = {"minItems": size or at_least, "maxItems": size}
    return {"type": "array", "items": items} | {name: bound for name, bound in bounds.items() if bound}


def _object(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _any_of(schemas: Sequence[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


_TEXT = _any_of([{"type": "string"}, {"$ref": "#/components/schemas/Bytes"}])
_VALUE = _any_of([_TEXT, {"type": ["number", "boolean"]}])
_SCHEMAS = {
    "Bytes": _object({"b64": {"type": "string", "contentEncoding": "base64"}}),
    "Example": {"type": "object", "additionalProperties": _any_of([_VALUE, _list_of(_VALUE)])},
    "Error": _object({"error": {"type": "string"}}),
}
_EXAMPLE = {"$ref": "#/components/schemas/Example"}
_ERROR, _ANY = {"$ref": "#/components/schemas/Error"}, {"type": "object"}
_STATUS = _object({"model_version_status": _list_of({"type": "object"})})
_METADATA = _object({"model_spec": {"type": "object"}, "metadata": {"type": "object"}})
_RESULTS = {
    "classify": _list_of(_list_of({"type": "array", "prefixItems": [_TEXT, {"type": "number"}]})),
    "regress": _list_of({"type": "number"}),
}


_TEXTS = _list_of({"type": "string"}, at_least=1)
_COUNT, _FLAG = {"type": ["integer", "null"], "minimum": 1}, {"type": ["boolean", "null"]}


def _search_paths(manager: ModelManager) -> dict[str, dict]:
    """Returns those paths of `search_api` for which there are models that can answer."""
    paths = {
        search_api.MODELS: {"get": _operation("OpenAI", "Models", _object({"object": {}, "data": _list_of(_ANY)}))},
        search_api.HEALTH: {"get": _operation("Health", "Whether every model answers", _object({"status": {}}))},
    }
    if names := search_api.able_models(manager, search_api.vectors_of):
        inputs = {"input": _any_of([{"type": "string"}, _TEXTS])}
        inputs |= {"encoding_format": {"enum": ["float", "base64", None]}, "dimensions": _COUNT}
        answer = _object({"object": {}, "data": _list_of(_ANY), "model": {"type": "string"}, "usage": {}})
        asked, error = _search_request(names, inputs, ["input"]), _object({"error": _ANY})
        paths[search_api.EMBEDDINGS] = {"post": _operation("OpenAI", "Embeddings", answer, asked, error)}
    if names := search_api.able_models(manager, search_api.scores_of):
        inputs = {"query": {"type": "string"}, "top_n": _COUNT} | dict.fromkeys(
            ("raw_scores", "return_text", "return_documents"), _FLAG
        )
        lists = {"texts": {"type": "null"}, "documents": {"type": "array", "minItems": 1}}
        teis = _search_request(names, {**inputs, "texts": _TEXTS}, ["query", "texts"])
        asked = _any_of([teis, _search_request(names, inputs | lists, ["query", "documents"])])
        answer = _any_of([_list_of(_ANY), _object({"model": {"type": "string"}, "results": _list_of(_ANY)})])
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            paths[path] = {"post": _operation("Rerank", "Order texts by how well they fit", answer, asked, _ANY)}
    return paths


def _search_request(names: list[str], properties: Mapping[str, Schema], required: list[str]) -> Schema:
    """Returns the schema of a request to one of these models, which may have unknown keys."""
    required = required if len(names) == 1 else ["model", *required]
    return {"type": "object", "properties": {"model": {"enum": names}, **properties}, "required": required}


def document(manager: ModelManager) -> dict:
    """Returns the description, as JSON."""
    paths = _search_paths(manager)
    for servable in manager.use_each():
        paths |= _paths_of(servable.name, servable.model.signatures)
    about = "TensorFlow Serving's REST API, OpenAI's, rerankings."
    info = {"title": "bert-serve", "version": "v1", "description": about}
    components = {"schemas": _SCHEMAS, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    # Not every server asks for a key: hence the empty choice.
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components, "security": [{}, {"key": []}]}


def _paths_of(name: str, signatures: Mapping[str, Signature]) -> dict[str, dict]:
    path = f"/v1/models/{urllib.parse.quote(name, safe='')}"
    paths = {
        path: {"get": _operation(name, "States of the versions", _STATUS)},
        f"{path}/metadata": {"get": _operation(name, "Signatures", _METADATA)},
    }
    forms = {"predict": [form for key, signature in signatures.items() for form in _predict_forms(key, signature)]}
    for verb, results in _RESULTS.items():
        keys = [key for key, signature in signatures.items() if takes_examples(signature, verb.capitalize())]
        request = {"context": _EXAMPLE, "examples": _list_of(_EXAMPLE, at_least=1)}
        forms[verb] = [(_request(key, request, ["context"]), _object({"results": results})) for key in keys]
    for verb, pairs in forms.items():
        if pairs:
            requests, answers = (_any_of(schemas) for schemas in zip(*pairs, strict=True))
            paths[f"{path}:{verb}"] = {"post": _operation(name, verb.capitalize(), answers, requests)}
    return paths


def _operation(tag: str, summary: str, answer: Schema, request: Schema | None = None, error: Schema = _ERROR) -> dict:
    failure = {"description": "Error", "content": _content(error)}
    success = {"description": "OK", "content": _content(answer)}
    operation = {"tags": [tag], "summary": summary, "responses": {"200": success, "default": failure}}
    return operation | ({"requestBody": {"required": True, "content": _content(request)}} if request else {})


def _content(schema: Schema) -> dict:
    return {"application/json": {"schema": schema}}


def _request(signature_name: str, properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """Returns the schema of a request to a signature, whose name may be left out if it is the default."""
    unnamed = ["signature_name"] if signature_name == SERVING_DEFAULT else []
    return _object({"signature_name": {"const": signature_name}, **properties}, [*unnamed, *optional])


def _predict_forms(name: str, signature: Signature) -> Iterator[tuple[Schema, Schema]]:
    """Yields the schemas of request and answer by columns, and by rows if batchable; none if JSON lacks a type."""
    specs = [*signature.inputs.values(), *signature.outputs.values()]
    if not {spec.dtype.name for spec in specs} <= {"string", *rest_api.NUMBERS}:
        return
    for request_key, answer_key, axis in [("inputs", "outputs", 0), ("instances", "predictions", 1)]:
        if axis and not signature.is_batchable:
            continue
        inputs = {key: _tensor(spec, axis) for key, spec in signature.inputs.items()}
        outputs = {key: _tensor(spec, axis) for key, spec in signature.outputs.items()}
        # A single tensor may lose its name in a request, and does so in an answer.
        asked = _any_of([_object(inputs), *(inputs.values() if len(inputs) == 1 else ())])
        answered = next(iter(outputs.values())) if len(outputs) == 1 else _object(outputs)
        if axis:
            asked, answered = _list_of(asked, at_least=1), _list_of(answered)
        yield _request(name, {request_key: asked}), _object({answer_key: answered})


def _tensor(spec: tf.TensorSpec, axis: int) -> Schema:
    """Returns the schema of a tensor's values from an axis on."""
    if spec.shape.rank is None:
        return {}
    dtype = spec.dtype
    if dtype == tf.string:
        schema = _TEXT
    elif dtype.is_bool or dtype.is_floating:
        schema = {"type": "boolean" if dtype.is_bool else "number"}
    else:
        schema = {"type": "integer", "minimum": int(dtype.min), "maximum": int(dtype.max)}
    for size in reversed(spec.shape.as_list()[axis:]):
        schema = _list_of(schema, size)
    return schema
