"""Assembles a server: models, batches, metrics and both protocols.

Needs tensorflow, tensorflow_text, grpcio, prometheus_client and tensorflow-serving-api; the project's model code is not
loaded.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from export.base_path import PER_MODEL_FILE
from export.server.admission import Admission, Turns
from export.server.batching import Batcher, BatchScheduler
from export.server.config_files import BatchingParameters, ModelSettings, read_batching_parameters, read_model_config
from export.server.grpc_server import GrpcServer
from export.server.model_manager import ModelManager, polling
from export.server.monitoring import Metrics, read_metrics_paths
from export.server.rest_routes import RestRoutes
from export.server.rest_server import RestServer, running
from export.server.servable import Servable, ServedModel
from export.server.server_settings import ServerSettings
from export.server.warmup import warm_up
from keras_bert.errors import InputError
from keras_bert.files import file_states, is_file

# Bytes of bodies held at once, in units of the largest body: once parsed, a body takes up to about 50 times its size.
_LONGEST_BODIES = 64
_CLOSING_SECONDS = 1.0  # Between looks for ended versions to close, without --file_system_poll_wait_seconds.


class RunningServer(NamedTuple):
    """A running server.

    Attributes:
        manager: its models.
        rest: its REST side.
        grpc: its gRPC side, or None.
    """

    manager: ModelManager
    rest: RestServer
    grpc: GrpcServer | None

    def served(self) -> list[tuple[str, int]]:
        """Lists the names of the models, each with the version that answers by default."""
        return [(servable.name, servable.version) for servable in self.manager.use_each()]


def _loader(
    metrics: Metrics, scheduler: BatchScheduler | None, common: BatchingParameters | None, settings: ServerSettings
) -> Callable[[str, str, int], Servable]:
    """Returns the function that loads a version and warms it up, for `ModelManager`."""
    turns = Turns()

    def load(directory: str, name: str, version: int) -> Servable:
        model = ServedModel(directory, name, version, settings, turns)
        parameters = common
        if scheduler and settings.enable_per_model_batching_parameters:
            path = os.path.join(directory, PER_MODEL_FILE)
            parameters = read_batching_parameters(path) if is_file(path) else None
        batcher = Batcher(model, parameters, scheduler, metrics) if parameters else None
        servable = Servable(model, metrics, batcher, settings.max_request_rows)
        if settings.enable_model_warmup:
            warm_up(servable, settings.num_request_iterations_for_warmup)
        return servable

    return load


def _config_follower(manager: ModelManager, path: str, models: Sequence[ModelSettings]) -> Callable[[], None]:
    """Returns a function that applies the configuration file if it has changed, and logs each new error."""
    current, refused, complaint = list(models), None, ""

    def follow() -> None:
        nonlocal current, refused, complaint
        try:
            wanted = read_model_config(path)
            if wanted != current:
                # If none of this has changed, a retry would only load the valid models again.
                state = (wanted, manager.states(), [file_states(model.base_path) for model in wanted])
                if state != refused:
                    refused = state
                    manager.apply(wanted)
                    current = wanted
            complaint = ""
        except InputError as error:
            if str(error) != complaint:
                complaint = str(error)
                logging.getLogger(__name__).warning("The configuration is not wholly followed: %s", ascii(complaint))

    return follow


@contextlib.contextmanager
def running_server(
    models: Sequence[ModelSettings], settings: ServerSettings, batching_parameters: BatchingParameters | None = None
) -> Iterator[RunningServer]:
    """Serves while the block runs, then refuses new requests, answers the last ones, and ends.

    Args:
        models: the models to serve.
        settings: see `ServerSettings`.
        batching_parameters: for `--enable_batching`; None: every request runs by itself.

    Raises:
        InputError: no version of a model can be served, or an address cannot be bound.
    """
    metrics = Metrics()
    with contextlib.ExitStack() as stack:
        scheduler = BatchScheduler(batching_parameters.num_batch_threads) if batching_parameters else None
        if scheduler:
            stack.callback(scheduler.close)
        load = _loader(metrics, scheduler, batching_parameters, settings)
        manager = ModelManager(load, settings)
        metrics.registry.register(manager)
        max_bytes = _LONGEST_BODIES * settings.max_request_bytes
        admission = Admission(settings.max_concurrent_requests, max_bytes, metrics)
        routes = RestRoutes(manager, metrics, read_metrics_paths(settings.monitoring_config_file))
        rest = RestServer(routes, admission, settings)
        stack.callback(rest.server_close)
        has_grpc = settings.port >= 0 or settings.grpc_socket_path
        grpc = GrpcServer(manager, metrics, admission, settings) if has_grpc else None
        manager.apply(models)
        stack.callback(manager.close)
        # The command itself prints a line for each version that it starts with, once they answer.
        manager.announce = functools.partial(print, flush=True)
        if grpc:
            grpc.start()
            stack.callback(grpc.wait)
        stack.enter_context(running(rest))
        if grpc:
            stack.callback(grpc.stop)  # Starts before REST ends, so that both stop taking requests together.
        if scheduler:
            stack.callback(scheduler.hurry)
        seconds = settings.file_system_poll_wait_seconds
        # A reload ends versions without any poll; requests may use them for a while.
        polls = [(manager.poll, seconds) if seconds else (manager.close_ended, _CLOSING_SECONDS)]
        if settings.model_config_file:
            follow = _config_follower(manager, settings.model_config_file, models)
            polls.append((follow, settings.model_config_file_poll_wait_seconds))
        stack.enter_context(polling([(function, seconds) for function, seconds in polls if seconds]))
        yield RunningServer(manager, rest, grpc)
