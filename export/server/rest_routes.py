"""TensorFlow Serving's REST API: maps paths to requests of a model's version.

| path                                                        | answer                                        |
| ----------------------------------------------------------- | --------------------------------------------- |
| `POST /v1/models/NAME[/versions/N or /labels/L]:VERB`       | VERB is predict, classify or regress          |
| `GET /v1/models/NAME[/versions/N or /labels/L]`             | the versions and their states                 |
| `GET /v1/models/NAME[/versions/N or /labels/L]/metadata`    | the signatures                                |
| `GET /metrics`, `GET /monitoring/prometheus/metrics`        | metrics in Prometheus's text format           |
| `GET /health`                                               | whether every model has a version that answers |
| `GET /openapi.json`                                         | this API with the models' types and shapes    |
| `GET /`, `GET /models.json`                                 | a page to try the models, and its data        |

`search_api` has the routes of OpenAI's API and of rerankers.
"""

import re
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from export.base_path import MAX_VERSION
from export.server import grpc_messages, inference, monitoring, openapi, page, rest_api, search_api
from export.server.model_manager import ModelManager
from export.server.monitoring import CONTENT_TYPE, METRICS_PATHS, Metrics
from export.server.servable import Servable
from export.server.serving_error import ServingError, TimeLeft, invalid, unlimited

_VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_VERB_PATH = re.compile(rf"(?i)/v1/models/(?P<name>[^/:]+){_VERSION}:(?P<verb>predict|classify|regress)")
_MODEL_PATH = re.compile(rf"(?i)/v1/models(?:/(?P<name>[^/:]+))?{_VERSION}(?P<metadata>/metadata)?")
_DOCUMENTS = {search_api.HEALTH: search_api.health, page.MODELS_PATH: page.models, openapi.PATH: openapi.document}


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class RestRoutes:
    """Answers REST requests.

    Args:
        manager: holds the models.
        metrics: counts requests.
        metrics_paths: paths that show the metrics.
    """

    def __init__(self, manager: ModelManager, metrics: Metrics, metrics_paths: Sequence[str] = METRICS_PATHS):
        self.metrics_paths = metrics_paths
        self.manager = manager
        self.metrics = metrics

    def respond(
        self, method: str, target: str, body: bytes, time_left: TimeLeft = unlimited, headers: Mapping[str, str] = {}
    ) -> Answer:
        """Returns the answer to one request, even if that is an error.

        Args:
            method: the HTTP method.
            target: the path and the query; TensorFlow Serving's paths take no query.
            body: the body of a POST request.
            time_left: see `serving_error.TimeLeft`.
            headers: the request's headers.
        """
        start = time.perf_counter()
        with monitoring.collected(headers) as spent:
            try:
                answer = self._respond(method, target, body, time_left)
            except ServingError as error:
                answer = error_answer(error, target)
        if method != "POST":
            return answer
        spent[monitoring.TOTAL] = time.perf_counter() - start
        return answer._replace(headers={**answer.headers, "Server-Timing": monitoring.as_header(spent)})

    def _respond(self, method: str, path: str, body: bytes, time_left: TimeLeft) -> Answer:
        page_path = path.partition("?")[0]
        if method == "POST" and (asked := _VERB_PATH.fullmatch(path)):
            return json_answer(self._infer(asked, body, time_left))
        if method == "POST" and page_path == search_api.EMBEDDINGS:
            return self._search("embeddings", search_api.vectors_of, search_api.embed, body, time_left)
        if method == "POST" and search_api.RERANK.fullmatch(page_path):
            return self._search("rerank", search_api.scores_of, search_api.rerank, body, time_left)
        if method == "GET" and page_path == search_api.MODELS:
            return json_answer(search_api.list_models(self.manager))
        if method == "GET" and (asked := _MODEL_PATH.fullmatch(path)):
            if asked["metadata"]:
                return json_answer(self._metadata(asked))
            return json_answer(grpc_messages.as_json(grpc_messages.status(self.manager.status(*_address(asked)))))
        if method in ("GET", "HEAD"):
            if page_path in _DOCUMENTS:
                return json_answer(_DOCUMENTS[page_path](self.manager))
            if page_path in self.metrics_paths:
                return Answer(200, CONTENT_TYPE, self.metrics.text())
            if page_path == "/":
                return Answer(200, "text/html; charset=utf-8", page.HTML, page.HEADERS)
        if not path.lower().startswith("/v1/"):
            raise ServingError("NOT_FOUND", "Not found. This server answers under /v1/models/.")
        raise invalid(f"Malformed request: {method} {path[:200]}")

    def _infer(self, asked: re.Match, body: bytes, time_left: TimeLeft) -> dict:
        name, api = _name(asked), asked["verb"].capitalize()
        known = name if name in self.manager.names() else ""
        with self.metrics.request(known, api.lower(), "REST"), self.manager.use(*_address(asked)) as servable:
            document = rest_api.parse_json(body)
            signature_name = rest_api.signature_name_of(document)
            rows = document.get("instances" if api == "Predict" else "examples")
            servable.check_rows(len(rows) if isinstance(rows, list) else 0)  # Before they become arrays.
            return _ANSWERS[api](servable, signature_name, document, time_left)

    def _search(self, api: str, find: Callable, answer: Callable, body: bytes, time_left: TimeLeft) -> Answer:
        try:
            document = rest_api.parse_json(body)
            name = search_api.model_name(self.manager, document, find)
        except ServingError:
            with self.metrics.request("", api, "REST"):
                raise
        known = name if name in self.manager.names() else ""
        with self.metrics.request(known, api, "REST"), self.manager.use(name) as servable:
            return Answer(200, "application/json", answer(servable, document, time_left))

    def _metadata(self, asked: re.Match) -> dict:
        with self.manager.use(*_address(asked)) as servable:
            return {
                "model_spec": {"name": servable.name, "signature_name": "", "version": str(servable.version)},
                "metadata": {"signature_def": grpc_messages.as_json(grpc_messages.signature_map(servable))},
            }


def _address(match: re.Match) -> tuple[str, int | None, str | None]:
    """Returns name, version and label of a path, for the manager.

    Raises:
        ServingError: (INVALID_ARGUMENT) the name is missing, or the version does not fit an int64.
    """
    name, version, label = _name(match), match["version"], match["label"]
    if not name:
        raise invalid("Missing model name in request.")
    # int() itself refuses numbers of thousands of digits.
    if version is not None and (len(version) > 4000 or int(version) > MAX_VERSION):
        raise invalid(f"Failed to convert version: {version[:200]} to numeric.")
    return name, None if version is None else int(version), label and urllib.parse.unquote(label)


def _name(match: re.Match) -> str:
    return urllib.parse.unquote(match["name"] or "")


def _predict(servable: Servable, signature_name: str, document: dict, time_left: TimeLeft) -> dict:
    arrays = rest_api.predict_arrays(document, servable.signature(signature_name).inputs)
    outputs = inference.predict(servable, signature_name, arrays, time_left)
    return rest_api.predict_response(outputs, by_rows="instances" in document)


def _classify(servable: Servable, signature_name: str, document: dict, time_left: TimeLeft) -> dict:
    classified = inference.classify(servable, signature_name, rest_api.parse_examples(document), time_left)
    labels, scores = map(rest_api.to_json, classified)
    return {"results": [[list(pair) for pair in zip(*row, strict=True)] for row in zip(labels, scores, strict=True)]}


def _regress(servable: Servable, signature_name: str, document: dict, time_left: TimeLeft) -> dict:
    values = inference.regress(servable, signature_name, rest_api.parse_examples(document), time_left)
    return {"results": rest_api.to_json(values)}


_ANSWERS = {"Predict": _predict, "Classify": _classify, "Regress": _regress}


def json_answer(document: dict, status: int = 200) -> Answer:
    """Returns a document as a JSON answer."""
    return Answer(status, "application/json", rest_api.dump(document))


_ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}


def error_answer(error: ServingError, path: str = "") -> Answer:
    """Returns an error as clients of a path expect it."""
    headers = _ERROR_HEADERS.get(error.http_status, {})
    return json_answer(search_api.error_document(error, path), error.http_status)._replace(headers=headers)
