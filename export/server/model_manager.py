"""Loads and unloads the versions of all models, so that a new version follows an old one without a gap.

A new version is loaded and warmed up while the old one keeps answering. Then the new one takes the requests, and the
old one is unloaded once its last request is answered. A version that cannot be loaded changes nothing, and does not
prevent other models from changing.

`apply` and `poll` load and unload, one call at a time; `use` and `close` never wait for them.
"""

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily

from export import base_path
from export.server.config_files import ModelSettings, aspired_versions, in_precision
from export.server.runtime import memory
from export.server.servable import Servable
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError, invalid
from keras_bert.errors import InputError
from keras_bert.files import file_states, is_directory

# States as in TensorFlow Serving's GetModelStatusResponse.
LOADING, AVAILABLE, UNLOADING, END = "LOADING", "AVAILABLE", "UNLOADING", "END"
_LONGEST_JOIN = 0.5
_MAX_ENDED = 16  # Ended versions that status requests still report.


class UnavailableVersionError(InputError):
    """A label names a version that is not loaded."""


class VersionStatus(NamedTuple):
    """The state of one version; `error` is None if there was none."""

    version: int
    state: str
    error: str | None


class _Version:
    """A version that is or was loaded, and the number of requests that use it."""

    def __init__(self, number: int):
        self.number = number
        self.state = LOADING
        self.error: str | None = None
        self.servable: Servable | None = None
        self.users = 0
        self.fingerprint: dict = {}  # Identifies the files that could not be loaded.

    @property
    def status(self) -> VersionStatus:
        return VersionStatus(self.number, self.state, self.error)

    def end(self, error: str | None = None) -> None:
        self.state, self.error, self.servable = END, error, None


class _Model:
    """A model's settings and its versions by number."""

    def __init__(self, settings: ModelSettings, versions: Mapping[int, _Version] = {}):
        self.settings = settings
        self.versions = dict(versions)

    def available(self) -> dict[int, _Version]:
        return {number: version for number, version in sorted(self.versions.items()) if version.state == AVAILABLE}


class ModelManager:
    """Holds the loaded versions of models and lends them to requests.

    Args:
        load: loads and warms up a version: `(directory, model name, version) -> Servable`; raises `InputError`.
        settings: the server's settings: `precision` chooses between base paths, and a flag says whether a new label may
            name a version that is not loaded yet.

    Attributes:
        announce: called with one line whenever a version is loaded.
    """

    def __init__(self, load: Callable[[str, str, int], Servable], settings: ServerSettings):
        self._settings = settings
        self.announce: Callable[[str], None] = lambda line: None
        self._load = load
        self._models: dict[str, _Model] = {}
        self._lock = threading.Lock()  # Guards all of the above; held only briefly.
        self._changing = threading.Lock()  # Held while versions are loaded.
        self._is_closed = False
        self._ended: list[Servable] = []  # To be closed.

    # === Requests ===

    @contextlib.contextmanager
    def use(self, name: str, version: int | None = None, label: str | None = None) -> Iterator[Servable]:
        """Yields a version that stays loaded while the block runs.

        Args:
            name: the model.
            version: one of its versions; None: the highest that is available, or the one of `label`.
            label: a version's label.

        Raises:
            ServingError: (NOT_FOUND) no such model or version is available; (INVALID_ARGUMENT) no such label.
        """
        with self._lock:
            model = self._models.get(name)
            if model and label is not None:
                version = self._version_of(model, label)
            available = model.available() if model else {}
            number = max(available, default=None) if version is None else version
            if number not in available:
                asked = f"Latest({name[:200]})" if version is None else f"Specific({name[:200]}, {version})"
                raise ServingError("NOT_FOUND", f"Servable not found for request: {asked}")
            record = available[number]
            record.users += 1
            servable = record.servable
        try:
            yield servable
        finally:
            del servable
            with self._lock:
                record.users -= 1
                self._end_unused(record)

    def use_each(self) -> Iterator[Servable]:
        """Yields the highest available version of each model; it stays loaded until the next one is asked for."""
        for name in self.names():
            with contextlib.suppress(ServingError), self.use(name) as servable:  # It may just have been unloaded.
                yield servable

    @staticmethod
    def _version_of(model: _Model, label: str) -> int:
        if label not in model.settings.labels:
            raise invalid(f"Unrecognized servable version label: {label[:200]}")
        return model.settings.labels[label]

    def _end_unused(self, record: _Version) -> None:
        if record.state == UNLOADING and not record.users:
            self._ended.append(record.servable)
            record.end()

    def names(self) -> list[str]:
        """Lists the names of the models."""
        return sorted(self._models)

    def labels(self, name: str) -> dict[str, int]:
        """Returns a model's labels with their versions; none if it is not served."""
        model = self._models.get(name)
        return dict(model.settings.labels) if model else {}

    def states(self) -> list[tuple[str, VersionStatus]]:
        """Lists the versions of all models: name of the model, status."""
        with self._lock:
            return [
                (name, record.status)
                for name, model in sorted(self._models.items())
                for _, record in sorted(model.versions.items())
            ]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Reports the versions of all models and their states to Prometheus."""
        labels = ("model_name", "version", "state")
        family = GaugeMetricFamily("bert_serve_model_version", "Versions and their states.", labels=labels)
        for name, status in self.states():
            family.add_metric((name, str(status.version), status.state), 1)
        yield family

    def status(self, name: str, version: int | None = None, label: str | None = None) -> list[VersionStatus]:
        """Lists the states of a model's versions, highest first, or of one of them.

        Raises:
            ServingError: (NOT_FOUND) no such model or version; (INVALID_ARGUMENT) no such label.
        """
        with self._lock:
            model = self._models.get(name)
            if not model:
                raise ServingError("NOT_FOUND", f"Could not find any versions of model {name[:200]}")
            if label is not None:
                version = self._version_of(model, label)
            numbers = [number for number in sorted(model.versions, reverse=True) if version in (None, number)]
            if not numbers:
                raise ServingError("NOT_FOUND", f"Could not find version {version} of model {name[:200]}")
            return [model.versions[number].status for number in numbers]

    # === Changes ===

    def apply(self, models: Sequence[ModelSettings]) -> None:
        """Serves these models and no others from now on; returns once they are loaded.

        As in TensorFlow Serving, the first models are served together or not at all. Later a model that cannot be
        loaded keeps what it serves, and the others change.

        Raises:
            InputError: a model has no version that can be served, or one of the first models cannot be loaded; then
                nothing changes. Or, later, a model serves nothing from its base path; then the others have changed.
            UnavailableVersionError: a label names a version that is not served yet.
        """
        models = in_precision(models, self._settings.precision)
        with self._changing:
            for settings in models:
                self._check_labels(settings)
            added = {settings.name: _Model(settings, self._versions_of(settings)) for settings in models}
            aspired = {name: aspired_versions(model.settings) for name, model in added.items()}
            failed, refusal = set(), None
            for name, model in added.items():
                try:
                    self._load_aspired(model, aspired[name])
                except InputError as error:
                    failed.add(name)
                    refusal = refusal if model.available() else error
                    if not self._models:
                        break
            if refusal and not self._models:
                for model in added.values():
                    self._unload(model, keep=set())
                self.close_ended()
                raise refusal
            for name in failed:
                old = self._models.get(name)
                if old and old.available() and not added[name].available():  # It was served from another base path.
                    added[name] = old
            with self._lock:
                removed, self._models = self._models, added
            for name, model in removed.items():
                self._unload(model, keep=_common(model.versions, added[name].versions if name in added else {}))
            for name in added.keys() - failed:
                self._unload(added[name], keep={number for number, _ in aspired[name]})
            self.close_ended()
            if refusal:
                raise refusal

    def _check_labels(self, settings: ModelSettings) -> None:
        """Refuses labels of versions that are not available before the change, as TensorFlow Serving does."""
        available, labels = _Model(settings, self._versions_of(settings)).available(), self.labels(settings.name)
        for label, version in settings.labels.items():
            is_new = labels.get(label, version) == version
            if version not in available and not (is_new and self._settings.allow_version_labels_for_unavailable_models):
                raise UnavailableVersionError(
                    f"Request to assign label {label!r} to version {version} of model {settings.name}, which is not "
                    "currently available for inference. Let the version be loaded first, and then change the label; "
                    "--allow_version_labels_for_unavailable_models admits only labels that are not in use yet."
                )

    def _versions_of(self, settings: ModelSettings) -> dict[int, _Version]:
        """Returns the loaded versions of a model, if it is served from the same base path."""
        model = self._models.get(settings.name)
        return model.versions if model and model.settings.base_path == settings.base_path else {}

    def poll(self) -> None:
        """Looks for new and removed versions; returns once new ones are loaded and old ones take no more requests."""
        with self._changing:
            for model in list(self._models.values()):
                if not is_directory(model.settings.base_path):
                    continue  # As in TensorFlow Serving, a missing path ends nothing, since it may come back.
                aspired = model.settings.policy.choose(base_path.complete_versions(model.settings.base_path))
                with contextlib.suppress(InputError):  # Status and log report it.
                    self._load_aspired(model, aspired)
                numbers = {number for number, _ in aspired}
                if not numbers or numbers & set(model.available()):
                    self._unload(model, numbers)
                self.close_ended()  # Before the next model loads, which takes seconds under load, and memory for both.

    def close(self) -> None:
        """Stops serving; a version in use is unloaded after its last request, and a loading one is not served."""
        self._is_closed = True
        for model in self._models.values():
            self._unload(model, keep=set())

    @property
    def is_loading(self) -> bool:
        """Whether versions are being loaded, which nothing can interrupt."""
        return self._changing.locked()

    def _load_aspired(self, model: _Model, aspired: list[tuple[int, str]]) -> None:
        """Loads missing versions; raises a failure if none of the versions is available afterwards."""
        failure = None
        for number, directory in reversed(aspired):  # Most requests want the highest, so it comes first.
            if self._is_closed:
                return
            record = model.versions.get(number)
            if record and (record.state == AVAILABLE or record.fingerprint == file_states(directory) != {}):
                failure = failure or (InputError(record.error) if record.error else None)
                continue
            if record and record.state == UNLOADING:
                continue  # It is wanted again while it ends; the next poll loads it.
            try:
                self._load_version(model, number, directory)
            except InputError as error:
                failure = error
        if failure and not set(model.available()) & set(dict(aspired)):
            raise failure

    def _load_version(self, model: _Model, number: int, directory: str) -> None:
        name = model.settings.name
        record = _Version(number)
        fingerprint = file_states(directory)
        with self._lock:
            model.versions[number] = record
        try:
            servable = self._load(directory, name, number)
            memory.return_free_pages()  # Loading takes more memory than serving.
        except Exception as error:
            with self._lock:
                record.end(" ".join(str(error).split()))
            record.fingerprint = fingerprint
            logging.getLogger(__name__).warning("Version %d of %s is not served: %s", number, name, ascii(record.error))
            if not isinstance(error, InputError):
                raise InputError(f"{directory}: cannot be loaded ({record.error}).") from error
            raise
        with self._lock:
            if self._is_closed:
                return
            record.servable, record.state = servable, AVAILABLE
        self.announce(f"Loaded {name} (version {number})")

    def _unload(self, model: _Model, keep: set[int]) -> None:
        with self._lock:
            for number, record in model.available().items():
                if number not in keep:
                    record.state = UNLOADING
                    self._end_unused(record)
            ended = sorted(number for number, record in model.versions.items() if record.state == END)
            for number in ended[:-_MAX_ENDED]:
                del model.versions[number]

    def close_ended(self) -> None:
        """Closes ended versions and frees their memory; their graphs are reference cycles."""
        with self._lock:
            ended, self._ended = self._ended, []
        for servable in ended:
            servable.close()
        if ended:
            del ended, servable
            gc.collect()
            memory.return_free_pages()


def _common(versions: Mapping[int, _Version], others: Mapping[int, _Version]) -> set[int]:
    """Returns the numbers under which both have the same loaded version; other base paths have other versions."""
    return {number for number, record in versions.items() if others.get(number) is record}


@contextlib.contextmanager
def polling(functions: Sequence[tuple[Callable[[], None], float]]) -> Iterator[None]:
    """Calls functions repeatedly while the block runs, each in its own thread.

    Args:
        functions: pairs of a function and the seconds between its calls. An exception is logged, and the calls go on. A
            call that has not returned half a second after the block is abandoned.
    """
    stopped = threading.Event()

    def repeat(function: Callable[[], None], seconds: float) -> None:
        while not stopped.wait(seconds):
            try:
                function()
            except Exception:
                logging.getLogger(__name__).exception("A look for new versions failed.")

    threads = [threading.Thread(target=repeat, args=pair, name="poll", daemon=True) for pair in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join(_LONGEST_JOIN)
