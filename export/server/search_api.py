"""The APIs of search stacks: OpenAI's embeddings, and rerankings in the forms of TEI, Cohere and Jina.

| path                                       | answer                                                              |
| ------------------------------------------ | ------------------------------------------------------------------- |
| `POST /v1/embeddings`                      | vectors of texts                                                    |
| `GET /v1/models`                           | the models, as OpenAI lists them                                    |
| `POST /rerank`, `/v1/rerank`, `/v2/rerank` | how well texts fit a query: `texts` (TEI), `documents` (Cohere, Jina) |

Sources: OpenAI's API reference; `router/src/http` of Hugging Face's text-embeddings-inference (TEI); Cohere's API
reference. `model` may be left out if only one model can answer.

Shapes: B texts.
"""

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.server import rest_api
from export.server.inference import predict
from export.server.model_manager import ModelManager
from export.server.servable import Servable, Signature
from export.server.serving_error import ServingError, TimeLeft, invalid
from export.signatures import COUNT_TOKENS, SERVING_DEFAULT
from keras_bert.errors import shown

EMBEDDINGS, MODELS, HEALTH = "/v1/embeddings", "/v1/models", "/health"
RERANK = re.compile(r"(?:/v[12])?/rerank")
_TEI_RERANK = "/rerank"
# The signature and the output that hold an embedder's vector; the first pair that a model has counts.
_VECTORS = (("embed", "embedding"), (SERVING_DEFAULT, "embedding"), (SERVING_DEFAULT, "mean"))
_PAIR = {"text", "text_pair"}
_STRINGS = tf.TensorSpec([None], tf.string)

Signatures = Mapping[str, Signature]


# === Models ===


def vectors_of(signatures: Signatures) -> tuple[str, str] | None:
    """Returns the signature that takes a text and its output that is the text's vector; None if there is none."""
    for name, output in _VECTORS:
        signature = signatures.get(name)
        if signature and set(signature.inputs) == {"text"} and output in signature.outputs:
            return name, output
    return None


def scores_of(signatures: Signatures) -> str | None:
    """Returns the output of `serving_default` that scores how well two texts fit, or None.

    It is the probabilities of two classes, or one number.
    """
    signature = signatures.get(SERVING_DEFAULT)
    # Probabilities of label sets do not exclude each other.
    if signature is None or set(signature.inputs) != _PAIR or "labels" in signature.outputs:
        return None
    if "probabilities" in signature.outputs:
        return "probabilities" if signature.outputs["probabilities"].shape[1:] == [2] else None
    return "score" if "score" in signature.outputs else None


def model_name(manager: ModelManager, document: Mapping, find: Callable[[Signatures], Any]) -> str:
    """Returns the model that a request names, or the only one in which `find` finds something.

    Raises:
        ServingError: (INVALID_ARGUMENT) the request names no model and there are several such models or none, or its
            `model` is not a name.
    """
    name = document.get("model")
    if name and isinstance(name, str):
        return name
    able = able_models(manager, find)
    if len(able) != 1 or name is not None:
        raise invalid(f"Expected 'model' to name a model. Received: {shown(name)}. Models that can answer: {able}")
    return able[0]


def able_models(manager: ModelManager, find: Callable[[Signatures], Any]) -> list[str]:
    """Lists the models in which `find` finds something."""
    return [servable.name for servable in manager.use_each() if find(servable.model.signatures) is not None]


def list_models(manager: ModelManager) -> dict:
    """Returns the models in OpenAI's format; `created` is the time at which a version was loaded."""
    models = [
        {"id": servable.name, "object": "model", "created": int(servable.loaded_at), "owned_by": "bert-serve"}
        for servable in manager.use_each()
    ]
    return {"object": "list", "data": models}


def health(manager: ModelManager) -> dict:
    """Reports that every model answers; raises ServingError (NOT_FOUND) if one has no version that does.

    A model none of whose versions could be loaded is ignored: it must not end a server that answers for others.
    """
    for name in manager.names():
        if not all(status.error for status in manager.status(name)):
            with manager.use(name):
                pass
    return {"status": "ok"}


# === Embeddings ===


def embed(servable: Servable, document: Mapping, time_left: TimeLeft) -> bytes:
    """Returns the JSON of OpenAI's answer to a request for embeddings."""
    vectors = vectors_of(servable.model.signatures)
    if vectors is None:
        raise invalid(f"The model {servable.name!r} gives no embeddings of texts.")
    write = _base64_of if _field(document, "encoding_format", _ENCODINGS, "float") == "base64" else _numbers_of
    signature_name, output = vectors
    width = servable.model.signatures[signature_name].outputs[output].shape[-1] or math.inf
    dimensions = _field(document, "dimensions", (f"from 1 to {width}", lambda n: _is_count(n) and n <= width))
    given = _field(document, "input", _INPUT, 0)
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts[0], int | list):
        raise invalid(
            "Expected 'input' to be a text or a list of texts. Received: token ids, whose meaning depends on the "
            "vocabulary. LangChain's OpenAIEmbeddings sends texts with check_embedding_ctx_length=False."
        )
    servable.check_rows(len(texts))
    arrays, usage = {"text": _texts(texts, "input")}, None
    if COUNT_TOKENS in servable.model.signatures:
        counts = predict(servable, COUNT_TOKENS, arrays, time_left)
        usage = dict.fromkeys(("prompt_tokens", "total_tokens"), int(counts["num_tokens"].sum()))
    rows = predict(servable, signature_name, arrays, time_left, [output])[output][:, :dimensions]
    if dimensions is not None:
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    data = ",".join(
        f'{{"object": "embedding", "index": {number}, "embedding": {write(row)}}}' for number, row in enumerate(rows)
    )
    rest = rest_api.dump({"model": servable.name, "usage": usage})
    return f'{{"object": "list", "data": [{data}], '.encode() + rest[1:]


def _texts(values: Sequence, name: str) -> np.ndarray:
    """Returns texts as an array of bytes objects, shape (B,)."""
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise invalid(f"{name}[{number}]: expected a text. Received: {shown(value)}")
    return rest_api.to_array(values, _STRINGS, lambda path: name + rest_api.indices(path))


def _base64_of(row: np.ndarray) -> str:
    return f'"{base64.b64encode(row.astype("<f4").tobytes()).decode()}"'


def _numbers_of(row: np.ndarray) -> str:
    """Writes float32 with 9 digits, which distinguish any two numbers; six times as fast as the shortest form."""
    if not np.isfinite(row).all():  # NaN and infinities have other names in JSON.
        return rest_api.dump(rest_api.to_json(row)).decode()
    return "[" + ",".join(["%.9g"] * len(row)) % tuple(row.tolist()) + "]"


# === Rerankings ===


def rerank(servable: Servable, document: Mapping, time_left: TimeLeft) -> bytes:
    """Returns the JSON of a reranking, the best text first: TEI's list for `texts`, Cohere's object for `documents`."""
    output = scores_of(servable.model.signatures)
    if output is None:
        raise invalid(f"The model {servable.name!r} does not score pairs of texts by one number or two classes.")
    key = "documents" if document.get("texts") is None else "texts"
    query, top_n = _field(document, "query", _TEXT, 0), _field(document, "top_n", _COUNT)
    texts, is_raw = _field(document, key, _TEXTS, ()), _field(document, "raw_scores", _FLAG)
    is_tei = key == "texts"
    score_name, text_name = ("score", "return_text") if is_tei else ("relevance_score", "return_documents")
    with_text = _field(document, text_name, _FLAG)
    servable.check_rows(len(texts))
    if key == "documents":
        texts = [text.get("text") if isinstance(text, dict) else text for text in texts]
    column = _texts(texts, key)
    arrays = {"text": np.repeat(_texts([query], "query"), len(column)), "text_pair": column}
    logits = _logits(predict(servable, SERVING_DEFAULT, arrays, time_left, [output])[output])
    scores = logits if is_raw else (1.0 + np.tanh(logits / 2)) / 2
    order = np.argsort(-scores, kind="stable").tolist()
    results = [{"index": index, score_name: float(scores[index])} for index in order[:top_n]]
    if with_text:
        for result in results:
            text = texts[result["index"]]
            result |= {"text": text} if is_tei else {"document": {"text": text}}
    return rest_api.dump(results if is_tei else {"model": servable.name, "results": results})


def _logits(outputs: np.ndarray) -> np.ndarray:
    """Returns the log-odds of the second of two classes, (B, 2), or unchanged numbers, (B,): float64 (B,)."""
    outputs = outputs.astype(np.float64)
    if outputs.ndim == 1:
        return outputs
    logs = np.log(np.maximum(outputs, np.finfo(np.float32).tiny))
    return logs[:, 1] - logs[:, 0]


# === Requests and errors ===


def _is_count(value) -> bool:
    return type(value) is int and value >= 1


# The forms of fields, in words and as a function.
_INPUT = ("a text or a list of texts", lambda value: isinstance(value, str | list) and value != [])
_TEXT = ("a text", lambda value: isinstance(value, str))
_TEXTS = ("a list of texts", lambda value: isinstance(value, list) and value != [])
_FLAG = ("true or false", lambda value: isinstance(value, bool))
_COUNT = ("a whole number of at least 1", _is_count)
_ENCODINGS = ("'float' or 'base64'", lambda value: value in ("float", "base64"))


def _field(document: Mapping, name: str, form: tuple[str, Callable[[Any], bool]], default=None):
    """Returns the value of a field, or the default if it is missing or null.

    Raises:
        ServingError: (INVALID_ARGUMENT) the value does not have the form.
    """
    value = default if document.get(name) is None else document[name]
    words, fits = form
    if value is not None and not fits(value):
        raise invalid(f"Expected {name!r} to be {words}. Received: {shown(document.get(name))}")
    return value


_OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found"}
_TEI_TYPES = {"INVALID_ARGUMENT": "Validation", "RESOURCE_EXHAUSTED": "Overloaded", "UNAVAILABLE": "Unhealthy"}


def error_document(error: ServingError, path: str) -> dict:
    """Returns an error in the form that clients of a path expect, by default TensorFlow Serving's."""
    path = path.partition("?")[0]
    if path == EMBEDDINGS:
        kind = "invalid_request_error" if error.http_status < 500 else "server_error"
        code = _OPENAI_CODES.get(error.http_status)
        return {"error": {"message": error.message, "type": kind, "param": None, "code": code}}
    if path == _TEI_RERANK:
        return {"error": error.message, "error_type": _TEI_TYPES.get(error.code, "Backend")}
    return {"message" if RERANK.fullmatch(path) else "error": error.message}
