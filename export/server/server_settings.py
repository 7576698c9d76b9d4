"""Settings of the server. Imports neither TensorFlow nor flags."""

import ipaddress
import sys

from keras_bert.errors import InputError
from tasks.settings import Settings, setting

DRAIN_SECONDS = 10.0  # Time for requests in progress when the server ends, before they are abandoned.
# Ignoring the first would leave the traffic unencrypted; the second replaces TensorFlow.
_NOT_TO_BE_LEFT_OUT = ("use_alts_credentials", "platform_config_file")


class ServerSettings(Settings):
    """Settings of bert-serve, which are its flags; TensorFlow Serving's names and defaults where it has them."""

    extra = "serve"

    model_base_path: str | None = setting(None, "Directory with the numbered versions that bert-export wrote.")
    model_name: str = setting("default", "The model's name in requests.")
    model_config_file: str | None = setting(None, "File of a ModelServerConfig: models, versions, labels.")
    host: str = setting("127.0.0.1", "Address to listen on. The default is reachable from this machine only.")
    rest_api_port: int = setting(8501, "Port of REST and of the page; 0: any free port.", at_least=0, at_most=65535)
    port: int = setting(8500, "Port of gRPC; 0: any free port, -1: no gRPC.", at_least=-1, at_most=65535)
    runtime: str = setting(
        "auto",
        "Runtime of the encoders. auto: ONNX Runtime (extra: onnx), and TensorFlow for models that ONNX Runtime cannot "
        "compute.",
        choices=("auto", "tensorflow", "onnxruntime"),
        needs={"onnxruntime": "onnx"}.get,
    )
    precision: str = setting(
        "auto",
        "Type of the encoders' matrix products. int8: in ONNX Runtime, for versions of bert-export --int8; bfloat16: "
        "for versions of bert-export --bfloat16; auto: as exported.",
        choices=("auto", "float32", "bfloat16", "int8"),
        needs={"int8": "onnx"}.get,
    )
    enable_batching: bool = setting(False, "Join requests that wait at the same time into batches.")
    model_config_file_poll_wait_seconds: float = setting(
        0.0, "Seconds between checks of --model_config_file for changes; 0: never.", at_least=0.0, subject="models"
    )
    file_system_poll_wait_seconds: float = setting(1.0, "Seconds between checks for versions; 0: never.", at_least=0.0)
    allow_version_labels_for_unavailable_models: bool = setting(
        False, "Allow labels of versions that are not loaded yet, such as those of the first configuration."
    )
    saved_model_tags: list[str] = setting(["serve"], "Tags of the graph to load from a SavedModel.")
    enable_model_warmup: bool = setting(True, "Replay the warm-up requests of a version before it serves.")
    num_request_iterations_for_warmup: int = setting(1, "Number of times to replay each warm-up request.", at_least=1)
    allow_reload_config: bool = setting(False, "Let gRPC clients change which directories are served.")
    allowed_hosts: list[str] = setting(
        [],
        "Further host names that requests may use if the server listens on this machine only; * allows all.",
        subject="access",
    )
    api_key: str | None = setting(
        None,
        "File with a key in each line, or env:NAME for an environment variable with the keys. Clients must send one "
        "as 'Authorization: Bearer KEY'.",
    )
    grpc_socket_path: str | None = setting(None, "Unix socket to serve gRPC on, in addition to --port.")
    grpc_channel_arguments: list[str] = setting(
        [], "Arguments of the gRPC server, such as grpc.max_connection_age_ms=2000."
    )
    ssl_config_file: str | None = setting(None, "File of an SSLConfig: key and certificates for gRPC.")
    enable_grpc_healthcheck_service: bool = setting(False, "Serve gRPC's health checks.")
    enable_serialization_as_tensor_content: bool = setting(
        False, "Write gRPC answers into tensor_content instead of typed fields, which is faster."
    )
    rest_api_enable_cors_support: bool = setting(False, "Let web pages of any origin read the answers.")
    monitoring_config_file: str | None = setting(
        None, "File of a MonitoringConfig: whether and where to serve metrics. Default: at /metrics, too."
    )
    rest_api_timeout_in_ms: int = setting(
        30_000,
        "Milliseconds for a REST request to arrive, to be computed, to be answered, and for a connection to idle.",
        at_least=1,
        subject="limits",
    )
    max_request_megabytes: int = setting(16, "Largest request body in MB; larger ones are refused.", at_least=1)
    max_request_rows: int = setting(1000, "Most rows (instances, examples) of a request.", at_least=1)
    max_concurrent_requests: int = setting(256, "Most requests in progress; further ones are refused.", at_least=1)
    max_connections: int = setting(1024, "Most open REST connections; further ones are refused.", at_least=1)
    tensorflow_session_parallelism: int = setting(0, "Sets both op parallelism flags.", at_least=0, subject="devices")
    tensorflow_intra_op_parallelism: int = setting(0, "Threads of one operation; 0: one per core.", at_least=0)
    tensorflow_inter_op_parallelism: int = setting(
        0,
        "Operations that run at once; 0: one per core, but one after the other, in the request's thread, for models of "
        "bert-export except search.",
        at_least=0,
    )
    batching_parameters_file: str | None = setting(None, "File of BatchingParameters for --enable_batching.")
    enable_per_model_batching_parameters: bool = setting(
        False, "Batch with the batching_params.pbtxt of each version; versions without one are not batched."
    )

    def __post_init__(self):
        super().__post_init__()
        if self.precision == "int8" and self.runtime == "tensorflow":
            raise InputError("--precision=int8 computes by ONNX Runtime. Leave out --runtime=tensorflow.")
        if self.precision == "bfloat16" and self.runtime == "onnxruntime":
            raise InputError("--precision=bfloat16 computes by TensorFlow. Leave out --runtime=onnxruntime.")
        if self.ssl_config_file and self.port < 0 and not self.grpc_socket_path:
            raise InputError("--ssl_config_file is for gRPC, which --port=-1 turns off. Leave out one of them.")

    @classmethod
    def pass_over(cls, arguments: list[str]) -> None:
        """Prints unknown arguments and ignores them, as TensorFlow Serving does.

        Raises:
            InputError: an argument asks for something that a server must not ignore.
        """
        for argument in arguments:
            if argument.lstrip("-").partition("=")[0] in _NOT_TO_BE_LEFT_OUT:
                raise InputError(
                    f"{argument}: bert-serve does not offer this. Leave it out, or use TensorFlow Serving."
                )
        print(f"bert-serve: ignoring unknown flags: {' '.join(arguments)}", file=sys.stderr)

    @property
    def max_request_bytes(self) -> int:
        """`max_request_megabytes` in bytes."""
        return self.max_request_megabytes * 2**20

    def answers_to(self, name: str) -> bool:
        """Returns whether a request's Host header may name this server; `name` is lower-cased, "" if there is none."""
        if not _is_loopback(self.host) or name in ("", self.host.lower()) or _is_loopback(name):
            return True
        return any(allowed in ("*", name) for allowed in map(str.lower, self.allowed_hosts))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
