"""Runs the tasks of `tasks.text.steps` on Apache Beam, on the workers of any Beam runner.

A step is a pipeline that gives each worker some tasks. Results are kept in files, so that no data passes through the
driver or between workers. All workers must reach the text and the directory of the output, on a network file system or
in a bucket.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator

import apache_beam
from apache_beam.options.pipeline_options import PipelineOptions

from keras_bert.errors import InputError
from keras_bert.files import list_directory, make_directory, read_json, remove_path, write_json

_RUNNERS = {"dask": "apache_beam.runners.dask.dask_runner.DaskRunner", "portable": "PortableRunner"}


class BeamPool:
    """Maps like `tasks.text.parallel.LocalPool`, by one pipeline for each map.

    Args:
        runner: name of a Beam runner; "dask" and "portable" are short names.
        options: Beam's own command-line options.
        directory: a directory that this process and all workers reach.

    Raises:
        InputError: Beam refuses the runner or the options.
    """

    def __init__(self, runner: str, options: list[str], directory: str):
        self._directory = directory
        self._is_dask = runner == "dask"
        self._arguments = [f"--runner={_RUNNERS.get(runner, runner)}", *options]
        try:
            apache_beam.Pipeline(options=PipelineOptions(self._arguments))
        except (ValueError, SystemExit) as error:
            raise InputError(f"--runner={runner} --beam_options={options}: Beam refuses them ({error}).") from error

    def map(self, function: Callable, arguments: Iterable, *shared: object) -> Iterator[None]:
        """Calls `function(*shared, argument)` for each argument, for its effect on files. Yields None for each.

        Raises:
            InputError: raised by `function`.
        """
        elements = list(arguments)
        if not elements:
            return
        errors = os.path.join(self._directory, "errors")
        remove_path(errors)
        make_directory(errors)
        # Fewer partitions would leave workers without a task. A number among the user's options comes later, and wins.
        partitions = [f"--dask_npartitions={len(elements)}"] if self._is_dask else []
        pipeline = apache_beam.Pipeline(options=PipelineOptions([*partitions, *self._arguments]))
        _ = (
            pipeline
            | apache_beam.Create(elements)
            | apache_beam.Reshuffle()
            | apache_beam.Map(_run, function, shared, errors)
        )
        result = pipeline.run()
        result.wait_until_finish()
        if self._is_dask:
            result.client.close()  # The runner makes a client for each pipeline, and leaves it open.
        for name in list_directory(errors):
            raise InputError(read_json(os.path.join(errors, name)))
        yield from (None for _ in elements)


def _run(argument: object, function: Callable, shared: tuple, errors: str) -> None:
    try:
        function(*shared, argument)
    except InputError as error:  # A pipeline would bury it in an error of its own, and try again.
        write_json(os.path.join(errors, secrets.token_hex(8)), str(error))
