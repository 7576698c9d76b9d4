"""A version that is ready to answer: the loaded model, its batches if there are any, and its replayed warm-up.

Needs tensorflow; the project's model code is not loaded.
"""

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from export.server.batching import Batcher, BatchScheduler
from export.server.batching_parameters import PER_MODEL_FILE, BatchingParameters, read_batching_parameters
from export.server.monitoring import Metrics
from export.server.served_model import ServedModel, Signature
from export.server.serving_error import ServingError


class Batching(NamedTuple):
    """How a server batches.

    Attributes:
        scheduler: the threads, shared by all models.
        parameters: for models without parameters of their own; None: those are not batched.
        is_per_model: whether a version's `batching_params.pbtxt` counts, and only that.
    """

    scheduler: BatchScheduler
    parameters: BatchingParameters | None
    is_per_model: bool = False

    def parameters_of(self, directory: str) -> BatchingParameters | None:
        """The parameters for one version; None: its requests are not batched.

        Raises:
            InputError: its file is wrong.
        """
        if not self.is_per_model:
            return self.parameters
        path = os.path.join(directory, PER_MODEL_FILE)
        return read_batching_parameters(path) if os.path.isfile(path) else None


class Servable:
    """One version that answers requests, several at a time.

    Args:
        model: the loaded version.
        metrics: where run times are counted.
        batching: how requests are batched; None: each runs by itself.

    Raises:
        InputError: the version's batching parameters are wrong.
    """

    def __init__(self, model: ServedModel, metrics: Metrics, batching: Batching | None = None):
        self.model = model
        self.name = model.name
        self.version = model.version
        self.metrics = metrics
        self._batcher = None
        parameters = batching and batching.parameters_of(model.directory)
        if parameters:
            self._batcher = Batcher(model.run, parameters, batching.scheduler, model.name, metrics)

    def signature(self, name: str) -> Signature:
        """One signature of the model.

        Raises:
            ServingError: (FAILED_PRECONDITION) the model has no such signature.
        """
        if name not in self.model.signatures:
            raise ServingError(
                "FAILED_PRECONDITION",
                f'Serving signature name: "{name[:200]}" not found in signature def. '
                f"Expected one of {sorted(self.model.signatures)}.",
            )
        return self.model.signatures[name]

    def run(
        self, signature_name: str, arrays: Mapping[str, np.ndarray], deadline: float | None, api: str
    ) -> dict[str, np.ndarray]:
        """Runs a signature on arrays that fit it, within a batch where that is possible.

        Args:
            deadline: time of `time.monotonic` at which the answer is no longer wanted; None: never. A run that has
                begun is not broken off.
            api: `Predict`, `Classify` or `Regress`, for the figures.

        Raises:
            ServingError: the graph refuses the values or fails, the deadline passed, or too many requests wait.
        """
        if deadline is not None and time.monotonic() > deadline:
            raise ServingError("DEADLINE_EXCEEDED", "The request's deadline passed before it was answered.")
        start = time.perf_counter()
        if self._batcher and self.signature(signature_name).is_batchable:
            outputs = self._batcher.run(signature_name, arrays, deadline)
        else:
            outputs = self.model.run(signature_name, arrays)
        self.metrics.runtime_latency.record((time.perf_counter() - start) * 1e6, (self.name, api, "TF2"))
        return outputs
