"""A whole server put together: models, batches, figures, and both protocols.

Needs tensorflow, tensorflow_text, grpcio and tensorflow-serving-api; the project's model code is not loaded.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from export.server.admission import Admission
from export.server.batching import BatchScheduler
from export.server.batching_parameters import BatchingParameters
from export.server.grpc_server import GrpcLimits, GrpcServer
from export.server.model_config import ModelSettings, read_model_config
from export.server.model_manager import ModelManager, Poller
from export.server.monitoring import Metrics
from export.server.rest_routes import RestRoutes
from export.server.rest_server import RestLimits, RestServer, open_server, running
from export.server.servable import Batching, Servable
from export.server.served_model import ServedModel
from export.server.server_settings import Settings
from export.server.warmup import warm_up
from keras_bert.errors import InputError

# Bodies that may be held at once, in units of the longest one: JSON of n bytes takes about ten times that once parsed.
_LONGEST_BODIES = 16


class Served(NamedTuple):
    """One model that is served, and its version that answers by default."""

    name: str
    version: int


class RunningServer(NamedTuple):
    """A server in operation.

    Attributes:
        manager: its models.
        metrics: its figures.
        rest: its REST side.
        grpc: its gRPC side; None without.
        admission: what is in progress.
    """

    manager: ModelManager
    metrics: Metrics
    rest: RestServer
    grpc: GrpcServer | None
    admission: Admission

    def served(self) -> list[Served]:
        """The models, by name."""
        listed = []
        for name in self.manager.names():
            with self.manager.use(name) as servable:
                listed.append(Served(name, servable.version))
        return listed


def _loader(metrics: Metrics, batching: Batching | None, warms_up: bool) -> Callable[[str, str, int], Servable]:
    def load(directory: str, name: str, version: int) -> Servable:
        servable = Servable(ServedModel(directory, name, version), metrics, batching)
        if warms_up:
            warm_up(servable)
        return servable

    return load


def _add_model_gauge(metrics: Metrics, manager: ModelManager) -> None:
    def look_up() -> dict[tuple[str, str, str], int]:
        return {(name, str(status.version), status.state): 1 for name, status in manager.states()}

    metrics.add_gauge("bert_serve_model_version", ("model_name", "version", "state"), look_up)


def _config_follower(manager: ModelManager, path: str, models: Sequence[ModelSettings]) -> Callable[[], None]:
    """A function that serves what the file says whenever that has changed; what is wrong it says once."""
    current, complaint = list(models), ""

    def follow() -> None:
        nonlocal current, complaint
        try:
            wanted = read_model_config(path)
            if wanted != current:
                manager.apply(wanted)
                current = wanted
            complaint = ""
        except InputError as error:
            if str(error) != complaint:
                complaint = str(error)
                logging.getLogger(__name__).warning("The configuration is not followed: %s", ascii(complaint))

    return follow


@contextlib.contextmanager
def running_server(
    models: Sequence[ModelSettings], settings: Settings, batching_parameters: BatchingParameters | None = None
) -> Iterator[RunningServer]:
    """Serves while the block runs; then takes no more requests, answers the last ones, and ends.

    Args:
        models: what to serve.
        settings: see `Settings`.
        batching_parameters: for `--enable_batching`; None: every request runs by itself.

    Raises:
        InputError: no version of a model can be served, or an address cannot be bound.
    """
    metrics = Metrics()
    with contextlib.ExitStack() as stack:
        batching = None
        if batching_parameters:
            scheduler = BatchScheduler(batching_parameters.num_batch_threads)
            stack.callback(scheduler.close)
            batching = Batching(scheduler, batching_parameters, settings.enable_per_model_batching_parameters)
        announce = _Announcer()
        manager = ModelManager(_loader(metrics, batching, settings.enable_model_warmup), announce)
        _add_model_gauge(metrics, manager)
        max_bytes = settings.max_request_megabytes * 2**20
        admission = Admission(settings.max_concurrent_requests, _LONGEST_BODIES * max_bytes, metrics)
        limits = RestLimits(max_bytes, settings.max_connections, settings.rest_api_timeout_in_ms / 1000)
        rest = open_server(RestRoutes(manager, metrics), admission, settings.host, settings.rest_api_port, limits)
        stack.callback(rest.server_close)
        grpc = None
        if settings.port >= 0:
            limits = GrpcLimits(max_bytes, settings.allow_reload_config)
            grpc = GrpcServer(manager, metrics, admission, settings.host, settings.port, limits)
        manager.apply(models)
        stack.callback(manager.close)
        announce.is_on = True
        if grpc:
            grpc.start()
            stack.callback(grpc.wait)
        stack.enter_context(running(rest))
        if grpc:
            stack.callback(grpc.stop)  # begins to end, before REST ends, so that both take no more at the same time
        if batching:
            stack.callback(batching.scheduler.hurry)
        stack.enter_context(Poller(_polls(manager, models, settings)))
        yield RunningServer(manager, metrics, rest, grpc, admission)


class _Announcer:
    """Prints what is loaded, but for the versions that a server begins with: their line comes when they answer."""

    def __init__(self):
        self.is_on = False

    def __call__(self, line: str) -> None:
        if self.is_on:
            print(line, flush=True)


def _polls(manager: ModelManager, models: Sequence[ModelSettings], settings: Settings) -> list:
    polls = []
    if settings.file_system_poll_wait_seconds:
        polls.append((manager.poll, settings.file_system_poll_wait_seconds))
    if settings.model_config_file and settings.model_config_file_poll_wait_seconds:
        follow = _config_follower(manager, settings.model_config_file, models)
        polls.append((follow, settings.model_config_file_poll_wait_seconds))
    return polls
