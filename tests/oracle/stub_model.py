"""The REST routes over a model that answers what it is told to, and remembers what it was asked."""

import contextlib
import json
import types
from collections.abc import Mapping

from cpp_tests import Status


class StubModel:
    """A manager of one model, its only version, and its metrics.

    Args:
        inputs: name -> tf.TensorSpec, of every signature.
        outputs: name -> array, or a function that makes one of the arrays asked with; the answer of every signature.

    Attributes:
        asked: what was asked of the model: name, version, label, method, subresource, signature_name, arrays.
    """

    def __init__(self, inputs: Mapping, outputs: Mapping):
        self._inputs, self._outputs = dict(inputs), dict(outputs)
        self.asked: dict = {}
        self.name, self.version = "stub", 1
        self.metrics, self.model = self, types.SimpleNamespace(signature_defs={})

    def respond(self, method: str, path: str, body: str = "") -> tuple[Status, str]:
        """Sends a request; returns the error that came of it, and the answer."""
        from export.server.rest_routes import RestRoutes

        answer = RestRoutes(self, self).respond(method, path, body.encode())
        text = answer.body.decode()
        if answer.status == 200:
            return Status(), text
        codes = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}
        return Status(codes.get(answer.status, str(answer.status)), json.loads(text)["error"]), text

    # === What the routes ask a manager of models ===

    def names(self) -> list[str]:
        """The models'."""
        return [self.name]

    @contextlib.contextmanager
    def use(self, name, version=None, label=None):
        """Lends the version."""
        self.asked |= {"name": name, "version": version, "label": label, "subresource": "metadata"}
        yield self

    def status(self, name, version=None, label=None) -> list:
        """No version's."""
        self.asked |= {"name": name, "version": version, "label": label, "subresource": ""}
        return []

    # === What they ask a version ===

    def signature(self, name: str, *_):
        """The only one."""
        from export.server.servable import Signature

        self.asked["signature_name"] = name
        return Signature(self._inputs, {name: types.SimpleNamespace() for name in self._outputs})

    def check_rows(self, rows: int) -> None:
        """Allows any number."""

    def run(self, _, arrays: Mapping, *__) -> dict:
        """Remembers the arrays, and answers."""
        self.asked["arrays"] = dict(arrays)
        return {name: value(arrays) if callable(value) else value for name, value in self._outputs.items()}

    # === Metrics ===

    @contextlib.contextmanager
    def request(self, _, method: str, *__):
        """Remembers the verb."""
        self.asked["method"] = method.lower()
        yield

    def examples(self, *_) -> None:
        """Counts nothing."""
