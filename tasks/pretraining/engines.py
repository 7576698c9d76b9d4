"""Chooses where the steps of long text processing run: in processes of this machine, or on a cluster."""

import contextlib

from keras_bert.errors import InputError
from tasks.settings import Settings, changeable
from tasks.text.parallel import LocalPool, workers_for


class EngineSettings(Settings):
    """Settings of where work runs. Results do not depend on them.

    Raises:
        InputError: values contradict each other.
    """

    num_workers: int | None = changeable(None, "Number of processes; default: one per core.", at_least=1)
    runner: str | None = changeable(
        None,
        "Cluster to use in place of local processes: dask, portable, or the name of an Apache Beam runner, such as "
        "DataflowRunner. Needs apache-beam: pip install 'keras-bert-zoo[cluster]'.",
        subject="devices",
        needs=lambda _: "cluster",
    )
    beam_options: list[str] = changeable(
        [],
        "An option of Beam, such as --beam_options=--dask_client_address=tcp://host:8786; repeat the flag for several.",
        repeats=True,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.beam_options and not self.runner:
            raise InputError("--beam_options needs --runner, such as --runner=DirectRunner.")

    def open_pool(self, files: list[str], directory: str, passes: int = 1):
        """Returns a context manager of the pool that runs the tasks of `tasks.text.steps`: see `LocalPool.map`.

        Args:
            files: paths of the text.
            directory: a directory that all workers reach.
            passes: number of times that each byte is processed.
        """
        if self.runner is None:
            return LocalPool(workers_for(files, self.num_workers, passes))
        from tasks.pretraining.data.beam import BeamPool

        return contextlib.nullcontext(BeamPool(self.runner, self.beam_options, directory))
