"""TensorFlow Serving's gRPC API: PredictionService and ModelService.

Requests arrive as bytes and are parsed here: a malformed one gets INVALID_ARGUMENT, where the generated code would log
a traceback. SessionService, PredictStreamed and TensorFlow Serving's request logging are not offered.
"""

import concurrent.futures
import functools
import time
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2, model_pb2, status_pb2
from tensorflow_serving.config import model_server_config_pb2

from export.server import grpc_messages
from export.server.admission import Admission
from export.server.model_config import settings_of
from export.server.model_manager import ModelManager
from export.server.monitoring import Metrics
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError, as_serving_error, invalid
from keras_bert.errors import InputError

_MAX_MESSAGE = 1024  # Characters of an error's message, TensorFlow Serving's bound.
# The most that a message takes once it is parsed, relative to its bytes: an Example of one feature without values.
_MAX_GROWTH = 32
_SPARE_THREADS = 16  # For requests that are only told that the server is full.

Method = Callable[[Message, float | None], Message]  # (request, deadline) -> response; raises `ServingError`.


class _Services:
    """The methods of both services."""

    def __init__(self, manager: ModelManager, metrics: Metrics, allows_reload: bool):
        self._manager = manager
        self._metrics = metrics
        self._allows_reload = allows_reload

    def handlers(self, admission: Admission) -> list[grpc.GenericRpcHandler]:
        """Returns a handler for each service."""
        prediction = {
            api: (request_class, functools.partial(self._infer, api, answer))
            for api, (request_class, answer) in grpc_messages.ANSWERS.items()
        }
        model = {
            "GetModelStatus": (get_model_status_pb2.GetModelStatusRequest, self._status),
            "HandleReloadConfigRequest": (model_management_pb2.ReloadConfigRequest, self._reload),
        }
        return [
            grpc.method_handlers_generic_handler(
                f"tensorflow.serving.{service}",
                {
                    name: grpc.unary_unary_rpc_method_handler(functools.partial(_handle, *method, admission))
                    for name, method in methods.items()
                },
            )
            for service, methods in (("PredictionService", prediction), ("ModelService", model))
        ]

    def _infer(self, api: str, answer: Callable, request: Message, deadline: float | None) -> Message:
        """Lets a loaded version answer."""
        spec = grpc_messages.spec_of(request)
        known = spec.name if spec.name in self._manager.names() else ""
        with self._metrics.request(known, api, "GRPC"), self._manager.use(*_address(spec)) as servable:
            return answer(servable, request, deadline)

    def _status(self, request: get_model_status_pb2.GetModelStatusRequest, _: float | None) -> Message:
        return grpc_messages.status(self._manager.status(*_address(grpc_messages.spec_of(request))))

    def _reload(self, request: model_management_pb2.ReloadConfigRequest, _: float | None) -> Message:
        """Serves the models that the request names, and no others."""
        if not self._allows_reload:
            raise ServingError("PERMISSION_DENIED", "This server was started without --allow_reload_config.")
        # By way of bytes, since the two packages' message classes may differ.
        config = model_server_config_pb2.ModelServerConfig.FromString(request.config.SerializeToString())
        try:
            self._manager.apply(settings_of(config, "ReloadConfigRequest"))
        except InputError as error:
            raise invalid(str(error)) from error
        return model_management_pb2.ReloadConfigResponse(status=status_pb2.StatusProto())


def _address(spec: model_pb2.ModelSpec) -> tuple[str, int | None, str | None]:
    """Returns name, version and label for the manager."""
    if not spec.name:
        raise invalid("ModelSpec has no name specified.")
    choice = spec.WhichOneof("version_choice")
    version = spec.version.value if choice == "version" else None
    return spec.name, version, spec.version_label if choice == "version_label" else None


def _handle(
    request_class: type[Message], method: Method, admission: Admission, body: bytes, context: grpc.ServicerContext
) -> bytes:
    """Answers a request's bytes. A failure is the client's to see; the log gets only those that are the server's."""
    left = context.time_remaining()
    deadline = None if left is None else time.monotonic() + left
    try:
        with admission.request(), admission.body() as take:
            take(_MAX_GROWTH * len(body))
            return method(_parse(request_class, body), deadline).SerializeToString()
    except Exception as error:
        failure = as_serving_error(error)
    message = failure.message
    shown = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}...TRUNCATED"
    return context.abort(getattr(grpc.StatusCode, failure.code), shown)


def _parse(request_class: type[Message], body: bytes) -> Message:
    try:
        return request_class.FromString(body)
    except (DecodeError, RecursionError):
        raise invalid(f"Expected a {request_class.__name__}.") from None


class GrpcServer:
    """Serves gRPC requests. Its attribute `port` is the port in use, even if the settings say 0.

    Args:
        manager: holds the models.
        metrics: counts requests.
        admission: bounds what is in progress.
        settings: address to bind and limits.

    Raises:
        InputError: the address cannot be bound.
    """

    def __init__(self, manager: ModelManager, metrics: Metrics, admission: Admission, settings: ServerSettings):
        num_threads = admission.max_requests + _SPARE_THREADS
        options = [
            ("grpc.max_receive_message_length", settings.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # Otherwise a second server would quietly take a share of the requests.
        ]
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(num_threads, thread_name_prefix="grpc"),
            handlers=_Services(manager, metrics, settings.allow_reload_config).handlers(admission),
            options=options,
            maximum_concurrent_rpcs=num_threads,
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise InputError(f"Cannot listen on {address}. Choose another --host or --port.") from error

    def start(self) -> None:
        """Starts to answer requests."""
        self._server.start()

    def stop(self, drain_timeout: float = 10.0) -> None:
        """Refuses new requests, and abandons those in progress after `drain_timeout` seconds; does not wait."""
        self._ended = self._server.stop(drain_timeout)

    def wait(self) -> None:
        """Waits, after `stop`, until the last request is answered or abandoned."""
        self._ended.wait()
