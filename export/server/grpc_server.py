"""TensorFlow Serving's gRPC API: PredictionService and ModelService.

Requests arrive as bytes and are parsed here: a malformed one gets INVALID_ARGUMENT, whereas the generated code would
log a traceback. SessionService, PredictStreamed and TensorFlow Serving's request logging are not offered.
"""

import concurrent.futures
import contextlib
import functools
import re
import threading
from collections.abc import Callable, Mapping

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from tensorflow_serving.apis import get_model_status_pb2, model_management_pb2, model_pb2, status_pb2

from export.server import grpc_messages, monitoring
from export.server.admission import Admission, Keys
from export.server.config_files import declared_message, read_text_message, settings_of
from export.server.model_manager import ModelManager, UnavailableVersionError
from export.server.monitoring import Metrics
from export.server.server_settings import DRAIN_SECONDS, ServerSettings
from export.server.serving_error import GONE, MOST_SECONDS, ServingError, TimeLeft, as_serving_error, invalid
from keras_bert.errors import InputError

_MAX_MESSAGE = 1024  # Characters of an error's message, TensorFlow Serving's limit.
# Largest memory of a parsed message, relative to its size: an Example with one feature without values takes that much.
_MAX_GROWTH = 32
_SPARE_THREADS = 16  # For requests that are refused because the server is full.
_MAX_REFLECTIONS = 4

Method = Callable[[Message, TimeLeft], Message]  # (request, time left) -> response; raises `ServingError`.


def _services(manager: ModelManager, metrics: Metrics, settings: ServerSettings) -> dict[str, dict[str, tuple]]:
    """Returns the methods of both services: for each the class of its requests, and a `Method`."""

    def infer(api: str, answer: Callable, request: Message, time_left: TimeLeft) -> Message:
        spec = grpc_messages.spec_of(request)
        known = spec.name if spec.name in manager.names() else ""
        with metrics.request(known, api, "GRPC"), manager.use(*_address(spec)) as servable:
            return answer(servable, request, time_left)

    def status(request: get_model_status_pb2.GetModelStatusRequest, _: TimeLeft) -> Message:
        return grpc_messages.status(manager.status(*_address(grpc_messages.spec_of(request))))

    def reload(request: model_management_pb2.ReloadConfigRequest, _: TimeLeft) -> Message:
        """Serves the models that the request names, and no others."""
        if not settings.allow_reload_config:
            raise ServingError("PERMISSION_DENIED", "This server was started without --allow_reload_config.")
        try:
            manager.apply(settings_of(request.config, "ReloadConfigRequest"))
        except UnavailableVersionError as error:
            raise ServingError("FAILED_PRECONDITION", str(error)) from error
        except InputError as error:
            raise invalid(str(error)) from error
        return model_management_pb2.ReloadConfigResponse(status=status_pb2.StatusProto())

    answers = dict(grpc_messages.ANSWERS)
    if settings.enable_serialization_as_tensor_content:
        request_class, predict = answers["Predict"]
        answers["Predict"] = (request_class, functools.partial(predict, as_content=True))
    return {
        "tensorflow.serving.PredictionService": {
            api: (request_class, functools.partial(infer, api, answer))
            for api, (request_class, answer) in answers.items()
        },
        "tensorflow.serving.ModelService": {
            "GetModelStatus": (get_model_status_pb2.GetModelStatusRequest, status),
            "HandleReloadConfigRequest": (model_management_pb2.ReloadConfigRequest, reload),
        },
    }


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
    """Answers a request's bytes. The client gets every error; the log gets only the server's own."""

    def time_left() -> float:
        seconds = min(context.time_remaining(), MOST_SECONDS)
        return seconds if context.is_active() or seconds <= 0.0 else GONE

    try:
        carrier = dict(context.invocation_metadata())
        with admission.request(), admission.body() as take, monitoring.collected(carrier):
            take(_MAX_GROWTH * len(body))
            return method(_parse(request_class, body), time_left).SerializeToString()
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


class _Reflection(reflection.ReflectionServicer):
    """Lists the services for clients; a stream holds a thread, so only a few may be open."""

    def __init__(self, services: list[str]):
        super().__init__(services)
        self._free = threading.Semaphore(_MAX_REFLECTIONS)

    def ServerReflectionInfo(self, request_iterator, context):  # noqa: N802  (gRPC's naming)
        """Answers a stream of questions."""
        if not self._free.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many clients ask for reflection. Try again.")
        try:
            yield from super().ServerReflectionInfo(request_iterator, context)
        finally:
            self._free.release()


class GrpcServer:
    """Serves gRPC requests. Its attribute `port` is the port in use, even if the settings say 0; None if there is none.

    Args:
        manager: holds the models.
        metrics: counts requests.
        admission: limits the requests in progress.
        settings: addresses to bind and limits.

    Raises:
        InputError: an address cannot be bound, or a file of keys or certificates or a channel argument is wrong.
    """

    def __init__(self, manager: ModelManager, metrics: Metrics, admission: Admission, settings: ServerSettings):
        num_threads = admission.max_requests + _SPARE_THREADS
        options = {
            "grpc.max_receive_message_length": min(settings.max_request_bytes, 2**31 - 1),  # An int32.
            "grpc.max_send_message_length": -1,
            "grpc.so_reuseport": 0,  # Otherwise a second server would quietly take a share of the requests.
            **_channel_arguments(settings.grpc_channel_arguments),
        }
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(num_threads, thread_name_prefix="grpc"),
            options=list(options.items()),
            interceptors=[Keys(settings.api_key)],
            maximum_concurrent_rpcs=num_threads,
        )
        services = _services(manager, metrics, settings)
        for service, methods in services.items():
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(functools.partial(_handle, *method, admission))
                for name, method in methods.items()
            }
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        _describe(services)
        reflected = _Reflection([*services, reflection.SERVICE_NAME])
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, self._server)
        if settings.enable_grpc_healthcheck_service:
            servicer = health.HealthServicer()
            for service in ("PredictionService", "ModelService"):  # TensorFlow Serving's names.
                servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
            health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        self.port = None
        if settings.port >= 0:
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            credentials = _credentials(settings.ssl_config_file)
            self.port = self._bind(f"{host}:{settings.port}", "--host or --port", credentials)
        if settings.grpc_socket_path:
            self._bind(f"unix:{settings.grpc_socket_path}", "--grpc_socket_path")

    def _bind(self, address: str, flags: str, credentials: grpc.ServerCredentials | None = None) -> int:
        try:
            if credentials:
                return self._server.add_secure_port(address, credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            cure = " Or check whether key and certificates of --ssl_config_file fit." if credentials else ""
            raise InputError(f"Cannot listen on {address}. Choose another {flags}.{cure}") from error

    def start(self) -> None:
        """Starts answering requests."""
        self._server.start()

    def stop(self) -> None:
        """Refuses new requests, and abandons those in progress after `DRAIN_SECONDS`; does not wait."""
        self._server.stop(DRAIN_SECONDS)

    def wait(self) -> None:
        """Stops unless `stop` has begun that, and waits until the last request is answered or abandoned."""
        self._server.stop(DRAIN_SECONDS).wait()


def _describe(services: Mapping[str, Mapping[str, tuple]]) -> None:
    """Adds services to the descriptor pool unless it has them.

    The package's own service files cannot be imported, since they were generated for an older protobuf.
    """
    pool = descriptor_pool.Default()
    for service, methods in services.items():
        with contextlib.suppress(KeyError):
            pool.FindServiceByName(service)
            continue
        package, _, name = service.rpartition(".")
        file = descriptor_pb2.FileDescriptorProto(name=f"bert_serve/{name}.proto", package=package)
        requests = {method: request_class.DESCRIPTOR for method, (request_class, _) in methods.items()}
        file.dependency.extend({request.file.name for request in requests.values()})
        described = file.service.add(name=name)
        for method, request in requests.items():
            response = f".{request.full_name.removesuffix('Request')}Response"
            described.method.add(name=method, input_type=f".{request.full_name}", output_type=response)
        pool.Add(file)


def _channel_arguments(pairs: list[str]) -> dict[str, int | str]:
    arguments = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not (name and mark):
            raise InputError(f"--grpc_channel_arguments: expected name=value, with commas between. Received: {pair!r}")
        arguments[name] = int(value) if re.fullmatch(r"-?[0-9]{1,9}", value) else value
    return arguments


def _credentials(path: str | None) -> grpc.ServerCredentials | None:
    """Reads TensorFlow Serving's file of certificates."""
    if path is None:
        return None
    expected = "TensorFlow Serving's SSLConfig: server_key, server_cert, custom_ca, client_verify"
    config = read_text_message(path, declared_message("SSLConfig"), expected)
    needed = [config.server_key, config.server_cert, *([config.custom_ca] if config.client_verify else [])]
    if not all("-----BEGIN " in text for text in needed):
        raise InputError(
            f"{path}: expected server_key, server_cert and, with client_verify, custom_ca to hold the text of PEM "
            "files, '-----BEGIN ...', not their names."
        )
    pair = (config.server_key.encode(), config.server_cert.encode())
    return grpc.ssl_server_credentials([pair], config.custom_ca.encode() or None, config.client_verify)
