"""TensorFlow Serving's REST API: maps paths to requests of a model's version.

| path                                                        | answer                                        |
| ----------------------------------------------------------- | --------------------------------------------- |
| `POST /v1/models/NAME[/versions/N or /labels/L]:VERB`       | VERB is predict, classify or regress          |
| `GET /v1/models/NAME[/versions/N or /labels/L]`             | the versions and their states                 |
| `GET /v1/models/NAME[/versions/N or /labels/L]/metadata`    | the signatures                                |
| `GET /metrics`, `GET /monitoring/prometheus/metrics`        | figures in Prometheus's text format           |
| `GET /`, `GET /models.json`                                 | a page to try the models, and what it reads   |
"""

import re
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

from export.server import grpc_messages, inference, page, rest_api
from export.server.model_manager import ModelManager
from export.server.monitoring import CONTENT_TYPE, Metrics
from export.server.servable import Servable
from export.server.serving_error import InvalidArgumentError, ServingError

_VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_VERB_PATH = re.compile(rf"(?i)/v1/models/(?P<name>[^/:]+){_VERSION}:(?P<verb>predict|classify|regress)")
_MODEL_PATH = re.compile(rf"(?i)/v1/models(?:/(?P<name>[^/:]+))?{_VERSION}(?P<metadata>/metadata)?")
_METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")
_HIGHEST_VERSION = 2**63 - 1


class Answer(NamedTuple):
    """An HTTP answer without the protocol's version."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class RestRoutes:
    """Answers REST requests.

    Args:
        manager: holds the models.
        metrics: counts requests; `/metrics` shows them.
    """

    def __init__(self, manager: ModelManager, metrics: Metrics):
        self.manager = manager
        self.metrics = metrics

    def respond(self, method: str, target: str, body: bytes, deadline: float | None = None) -> Answer:
        """Returns the answer to one request, also if it is an error.

        Args:
            method: of HTTP.
            target: the path, and maybe a query, which is ignored.
            body: of a POST request.
            deadline: see `Servable.run`.
        """
        try:
            return self._respond(method, target.partition("?")[0], body, deadline)
        except ServingError as error:
            return error_answer(error)

    def _respond(self, method: str, path: str, body: bytes, deadline: float | None) -> Answer:
        if method == "POST" and (verb := _VERB_PATH.fullmatch(path)):
            return json_answer(self._infer(_Address(verb), verb["verb"].capitalize(), body, deadline))
        if method in ("GET", "HEAD"):
            if asked := _MODEL_PATH.fullmatch(path):
                return self._model(_Address(asked), bool(asked["metadata"]))
            if path in _METRICS_PATHS:
                return Answer(200, CONTENT_TYPE, self.metrics.text())
            if path == "/":
                return Answer(200, "text/html; charset=utf-8", page.html(), page.headers())
            if path == page.MODELS_PATH:
                return json_answer(page.models(self.manager))
        if not path.lower().startswith("/v1/"):
            raise ServingError("NOT_FOUND", "Not found. This server answers under /v1/models/.")
        raise InvalidArgumentError(f"Malformed request: {method} {path[:200]}")

    def _infer(self, address: "_Address", api: str, body: bytes, deadline: float | None) -> dict:
        answer = {"Predict": _predict, "Classify": _classify, "Regress": _regress}[api]
        known = address.name if address.name in self.manager.names() else ""
        with self.metrics.request(known, api, "REST"), self.manager.use(*address.checked()) as servable:
            return answer(servable, rest_api.parse_json(body), deadline)

    def _model(self, address: "_Address", wants_metadata: bool) -> Answer:
        if wants_metadata:
            with self.manager.use(*address.checked()) as servable:
                return json_answer(_metadata(servable))
        return json_answer(grpc_messages.as_json(grpc_messages.status(self.manager.status(*address.checked()))))


class _Address:
    """Model, version and label of a path."""

    def __init__(self, match: re.Match):
        self.name = urllib.parse.unquote(match["name"] or "")
        self._version = match["version"]
        self._label = match["label"] and urllib.parse.unquote(match["label"])

    def checked(self) -> tuple[str, int | None, str | None]:
        """Returns name, version and label for the manager.

        Raises:
            ServingError: (INVALID_ARGUMENT) the name is missing, or the version is no int64.
        """
        if not self.name:
            raise InvalidArgumentError("Missing model name in request.")
        version = self._version
        # int() itself refuses numbers of thousands of digits.
        if version is not None and (len(version) > 4000 or int(version) > _HIGHEST_VERSION):
            raise InvalidArgumentError(f"Failed to convert version: {version[:200]} to numeric.")
        return self.name, None if version is None else int(version), self._label


def _predict(servable: Servable, document: dict, deadline: float | None) -> dict:
    name = rest_api.signature_name_of(document)
    key, values = rest_api.parse_predict(document)
    arrays = rest_api.predict_arrays(key, values, servable.signature(name).inputs)
    return rest_api.predict_response(inference.predict(servable, name, arrays, deadline), by_rows=key == "instances")


def _classify(servable: Servable, document: dict, deadline: float | None) -> dict:
    examples, name = rest_api.parse_examples(document), rest_api.signature_name_of(document)
    return rest_api.classify_response(*inference.classify(servable, name, examples, deadline))


def _regress(servable: Servable, document: dict, deadline: float | None) -> dict:
    examples, name = rest_api.parse_examples(document), rest_api.signature_name_of(document)
    return rest_api.regress_response(inference.regress(servable, name, examples, deadline))


def _metadata(servable: Servable) -> dict:
    return {
        "model_spec": {"name": servable.name, "signature_name": "", "version": str(servable.version)},
        "metadata": {"signature_def": grpc_messages.as_json(grpc_messages.signature_map(servable))},
    }


def json_answer(document: dict, status: int = 200) -> Answer:
    """Returns a document as an answer."""
    return Answer(status, "application/json", rest_api.dump(document))


def error_answer(error: ServingError) -> Answer:
    """Returns an error as TensorFlow Serving writes it."""
    headers = {"Retry-After": "1"} if error.http_status == 503 else {}
    return json_answer({"error": error.message}, error.http_status)._replace(headers=headers)
