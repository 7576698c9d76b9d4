"""Settings of the server. Imports neither TensorFlow nor flags."""

import dataclasses
import ipaddress

from tasks.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSettings(Settings):
    """Settings of bert-serve, which are its flags; TensorFlow Serving's names and defaults where it has them."""

    model_base_path: str | None = setting(None, "Directory with the numbered versions that bert-export wrote.")
    model_name: str | None = setting(None, "The model's name in requests. Default: the base path's last component.")
    model_config_file: str | None = setting(None, "TensorFlow Serving's ModelServerConfig: models, versions, labels.")
    model_config_file_poll_wait_seconds: float = setting(
        0.0, "How often to look for changes in --model_config_file; 0: never.", at_least=0.0
    )
    file_system_poll_wait_seconds: float = setting(1.0, "How often to look for new versions; 0: never.", at_least=0.0)
    host: str = setting("127.0.0.1", "Address to listen on. The default is reachable from this machine only.")
    allowed_hosts: list[str] = setting(
        [], "Further names by which clients may call a server that listens on this machine only; * allows all."
    )
    rest_api_port: int = setting(8501, "Port of REST and the page; 0 takes a free one.", at_least=0, at_most=65535)
    port: int = setting(8500, "Port of gRPC; 0 takes a free one, -1 switches gRPC off.", at_least=-1, at_most=65535)
    rest_api_timeout_in_ms: int = setting(
        30_000,
        "Time for a REST request to arrive, to be computed, to be read, and for a connection to idle.",
        at_least=1,
    )
    enable_model_warmup: bool = setting(True, "Replay the warm-up requests that a version brings along.")
    enable_batching: bool = setting(False, "Join requests that wait at the same time into batches.")
    batching_parameters_file: str | None = setting(None, "TensorFlow Serving's parameters for --enable_batching.")
    enable_per_model_batching_parameters: bool = setting(
        False, "Use each version's own batching_params.pbtxt instead; versions without one are not batched."
    )
    allow_reload_config: bool = setting(False, "Let gRPC clients change which directories are served.")
    max_request_megabytes: int = setting(16, "Longest request body; longer ones are refused.", at_least=1)
    max_request_rows: int = setting(1000, "Most rows (instances, examples) of a request.", at_least=1)
    max_concurrent_requests: int = setting(256, "Requests in progress; further ones are refused.", at_least=1)
    max_connections: int = setting(1024, "Open REST connections; further ones are refused.", at_least=1)

    @property
    def max_request_bytes(self) -> int:
        """`max_request_megabytes` in bytes."""
        return self.max_request_megabytes * 2**20

    def answers_to(self, name: str) -> bool:
        """Tells whether `name`, of a request's Host header, lower-cased, may stand for this server; "" is none."""
        if not _is_loopback(self.host) or name in ("", self.host.lower()) or _is_loopback(name):
            return True
        return any(allowed in ("*", name) for allowed in map(str.lower, self.allowed_hosts))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
