"""What a server is started with. No TensorFlow and no flag here."""

from typing import NamedTuple


class Settings(NamedTuple):
    """Everything that a server is started with; the meaning of each is that of the flag of its name."""

    host: str = "127.0.0.1"
    rest_api_port: int = 8501
    port: int = 8500
    rest_api_timeout_in_ms: int = 30_000
    file_system_poll_wait_seconds: float = 1.0
    model_config_file: str | None = None
    model_config_file_poll_wait_seconds: float = 0.0
    enable_model_warmup: bool = True
    enable_batching: bool = False
    batching_parameters_file: str | None = None
    enable_per_model_batching_parameters: bool = False
    allow_reload_config: bool = False
    max_request_megabytes: int = 16
    max_concurrent_requests: int = 256
    max_connections: int = 1024
