"""TensorFlow Serving's gRPC API: PredictionService and ModelService.

Requests arrive as bytes and are parsed here: a malformed one gets INVALID_ARGUMENT, where the generated code would log
a traceback. SessionService, PredictStreamed and TensorFlow Serving's request logging are not offered.
"""

import concurrent.futures
import time
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
    status_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from export.server import grpc_messages
from export.server.admission import Admission
from export.server.model_config import settings_of
from export.server.model_manager import ModelManager
from export.server.monitoring import Metrics
from export.server.server_settings import ServerSettings
from export.server.serving_error import InvalidArgumentError, ServingError, log_failure
from keras_bert.errors import InputError

_MAX_MESSAGE = 1024  # Characters of an error's message, TensorFlow Serving's bound.
_SPARE_THREADS = 16  # For requests that are only told that the server is full.


class _Services:
    """The methods of both services: `(request, deadline) -> response`; they raise `ServingError`."""

    def __init__(self, manager: ModelManager, metrics: Metrics, allows_reload: bool):
        self._manager = manager
        self._metrics = metrics
        self._allows_reload = allows_reload

    def infer(self, api: str, answer: Callable) -> Callable[[Message, float | None], Message]:
        """Returns a method that lets a loaded version answer."""

        def method(request: Message, deadline: float | None) -> Message:
            spec = _spec_of(request)
            known = spec.name if spec.name in self._manager.names() else ""
            with self._metrics.request(known, api, "GRPC"), self._manager.use(*_address(spec)) as servable:
                return answer(servable, request, deadline)

        return method

    def status(self, request: get_model_status_pb2.GetModelStatusRequest, deadline: float | None) -> Message:
        """GetModelStatus."""
        del deadline
        if not request.HasField("model_spec"):
            raise InvalidArgumentError("Missing ModelSpec")
        return grpc_messages.status(self._manager.status(*_address(request.model_spec)))

    def reload(self, request: model_management_pb2.ReloadConfigRequest, deadline: float | None) -> Message:
        """HandleReloadConfigRequest: serves the models that it names, and no others."""
        del deadline
        if not self._allows_reload:
            raise ServingError("PERMISSION_DENIED", "This server was started without --allow_reload_config.")
        # By way of bytes, since the two packages' message classes may differ.
        config = model_server_config_pb2.ModelServerConfig.FromString(request.config.SerializeToString())
        try:
            self._manager.apply(settings_of(config, "ReloadConfigRequest"))
        except InputError as error:
            raise InvalidArgumentError(str(error)) from error
        return model_management_pb2.ReloadConfigResponse(status=status_pb2.StatusProto())


def _spec_of(request: Message) -> model_pb2.ModelSpec:
    if isinstance(request, inference_pb2.MultiInferenceRequest):
        if not request.tasks:
            raise InvalidArgumentError("Inference request must have at least one task.")
        return request.tasks[0].model_spec
    if not request.HasField("model_spec"):
        raise InvalidArgumentError("Missing ModelSpec")
    return request.model_spec


def _address(spec: model_pb2.ModelSpec) -> tuple[str, int | None, str | None]:
    if not spec.name:
        raise InvalidArgumentError("ModelSpec has no name specified.")
    choice = spec.WhichOneof("version_choice")
    version = spec.version.value if choice == "version" else None
    return spec.name, version, spec.version_label if choice == "version_label" else None


def _handlers(services: _Services, admission: Admission) -> list[grpc.GenericRpcHandler]:
    infer = services.infer
    prediction = {
        "Predict": (predict_pb2.PredictRequest, infer("Predict", grpc_messages.predict)),
        "Classify": (classification_pb2.ClassificationRequest, infer("Classify", grpc_messages.classify)),
        "Regress": (regression_pb2.RegressionRequest, infer("Regress", grpc_messages.regress)),
        "MultiInference": (
            inference_pb2.MultiInferenceRequest,
            infer("MultiInference", grpc_messages.multi_inference),
        ),
        "GetModelMetadata": (
            get_model_metadata_pb2.GetModelMetadataRequest,
            infer("GetModelMetadata", grpc_messages.metadata),
        ),
    }
    model = {
        "GetModelStatus": (get_model_status_pb2.GetModelStatusRequest, services.status),
        "HandleReloadConfigRequest": (model_management_pb2.ReloadConfigRequest, services.reload),
    }
    return [
        grpc.method_handlers_generic_handler(
            f"tensorflow.serving.{service}",
            {
                name: grpc.unary_unary_rpc_method_handler(_guarded(request_class, method, admission))
                for name, (request_class, method) in methods.items()
            },
        )
        for service, methods in (("PredictionService", prediction), ("ModelService", model))
    ]


def _guarded(request_class: type[Message], method: Callable, admission: Admission) -> Callable:
    """Wraps a method as one from bytes to bytes that reports failures to the client, and its own to the log."""

    def handle(body: bytes, context: grpc.ServicerContext) -> bytes:
        left = context.time_remaining()
        deadline = None if left is None else time.monotonic() + left
        try:
            with admission.request():
                return method(_parse(request_class, body), deadline).SerializeToString()
        except ServingError as error:
            failure = error
        except Exception:
            log_failure("A request failed.")
            failure = ServingError("INTERNAL", "Internal error; the server's log has the details.")
        message = failure.message
        shown = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}...TRUNCATED"
        return context.abort(getattr(grpc.StatusCode, failure.code), shown)

    return handle


def _parse(request_class: type[Message], body: bytes) -> Message:
    try:
        return request_class.FromString(body)
    except (DecodeError, RecursionError):
        raise InvalidArgumentError(f"Expected a {request_class.__name__}.") from None


class GrpcServer:
    """Serves gRPC requests; the attribute `port` is the one in use, also where the settings say 0.

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
        options = {
            "grpc.max_receive_message_length": settings.max_request_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.so_reuseport": 0,  # Otherwise a second server would quietly take a share of the requests.
        }
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(num_threads, thread_name_prefix="grpc"),
            handlers=_handlers(_Services(manager, metrics, settings.allow_reload_config), admission),
            options=list(options.items()),
            maximum_concurrent_rpcs=num_threads,
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise InputError(f"Cannot listen on {address}. Choose another --host or --port.") from error

    def start(self) -> None:
        """Answers requests from now on."""
        self._server.start()

    def stop(self, drain_timeout: float = 10.0) -> None:
        """Takes no more requests, and abandons those in progress after `drain_timeout` seconds; does not wait."""
        self._ended = self._server.stop(drain_timeout)

    def wait(self) -> None:
        """Waits, after `stop`, until the last requests are answered or abandoned."""
        self._ended.wait()
