"""Versions: which is served, how one follows another, and what happens when one cannot be loaded."""

import concurrent.futures
import os
import shutil
import threading
import time

import pytest
import toy_server

from export.server import model_manager, search_api
from export.server.config_files import ModelSettings, VersionPolicy, aspired_versions
from export.server.model_manager import ModelManager, UnavailableVersionError, polling
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError
from keras_bert import files
from keras_bert.errors import InputError

pytestmark = pytest.mark.usefixtures("small_heap")


class Loader:
    """Stands for loading: notes what was loaded, fails for what a test has broken, waits while it is told to."""

    def __init__(self):
        self.loaded: list[tuple[str, int]] = []
        self.broken: set[int] = set()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, directory, name, version):
        assert self.go_on.wait(30)
        if version in self.broken:
            raise InputError(f"{directory}: is broken.")
        self.loaded.append((name, version))
        return toy_server.SlowServable(version)


def add(base_path, *versions):
    for version in versions:
        os.makedirs(os.path.join(base_path, str(version)), exist_ok=True)
        with open(os.path.join(base_path, str(version), "saved_model.pb"), "wb") as file:
            file.write(b"x")


@pytest.fixture(name="base_path")
def _base_path(tmp_path):
    add(tmp_path / "m", 1)
    return str(tmp_path / "m")


@pytest.fixture(name="load")
def _load():
    return Loader()


@pytest.fixture(name="manager")
def _manager(load, base_path):
    manager = ModelManager(load, ServerSettings())
    manager.apply([ModelSettings("m", base_path)])
    return manager


def states(manager, **address):
    return [(status.version, status.state) for status in manager.status("m", **address)]


def served(manager, **address):
    with manager.use("m", **address) as servable:
        return servable.version


# === One version after the other ===


def test_a_new_version_takes_the_place_of_the_old_one(manager, base_path):
    add(base_path, 2)
    manager.poll()
    assert served(manager) == 2
    assert states(manager) == [(2, "AVAILABLE"), (1, "END")]
    with pytest.raises(ServingError, match=r"Servable not found for request: Specific\(m, 1\)"):
        served(manager, version=1)


def test_the_old_version_answers_until_the_new_one_is_loaded(manager, load, base_path):
    add(base_path, 2)
    load.go_on.clear()
    thread = threading.Thread(target=manager.poll)
    thread.start()
    toy_server.until(lambda: (2, "LOADING") in states(manager))
    assert served(manager) == 1
    load.go_on.set()
    thread.join(30)
    assert served(manager) == 2


def test_a_request_keeps_its_version_to_its_end(manager, base_path):
    with manager.use("m") as old:
        add(base_path, 2)
        manager.poll()
        assert states(manager) == [(2, "AVAILABLE"), (1, "UNLOADING")]
        assert old.version == 1 and served(manager) == 2
    assert states(manager) == [(2, "AVAILABLE"), (1, "END")]


def test_a_version_that_cannot_be_loaded_changes_nothing_and_is_told(manager, load, base_path, caplog):
    add(base_path, 2)
    load.broken = {2}
    manager.poll()
    assert served(manager) == 1
    (broken, fine) = manager.status("m")
    assert (broken.version, broken.state, fine.state) == (2, "END", "AVAILABLE")
    assert "is broken" in broken.error and fine.error is None
    assert "Version 2 of m is not served" in caplog.text
    caplog.clear()
    load.broken = set()
    manager.poll()  # nothing of it has changed, so that nothing is tried
    assert served(manager) == 1 and caplog.text == ""
    with open(os.path.join(base_path, "2", "saved_model.pb"), "ab") as file:
        file.write(b"the rest")
    manager.poll()
    assert served(manager) == 2


def test_any_failure_of_a_load_is_one_of_the_version(load, base_path):
    def fail(*_):
        raise MemoryError("all gone")

    with pytest.raises(InputError, match=r"1: cannot be loaded \(all gone\)"):
        ModelManager(fail, ServerSettings()).apply([ModelSettings("m", base_path)])


def test_a_half_copied_version_does_not_count(manager, base_path):
    os.makedirs(os.path.join(base_path, "2", "variables"))
    manager.poll()
    assert served(manager) == 1


def test_going_back_by_removing_the_newest_version(manager, base_path):
    add(base_path, 2)
    manager.poll()
    shutil.rmtree(os.path.join(base_path, "2"))
    manager.poll()
    assert served(manager) == 1


def test_a_base_path_that_is_gone_for_a_moment_ends_nothing(manager, base_path):
    os.rename(base_path, base_path + "-away")
    manager.poll()
    assert served(manager) == 1


def test_no_version_left_as_for_tensorflow_serving(manager, base_path):
    shutil.rmtree(os.path.join(base_path, "1"))
    manager.poll()
    assert states(manager) == [(1, "END")]
    with pytest.raises(ServingError, match=r"Latest\(m\)"):
        served(manager)


def test_ended_versions_are_forgotten_after_a_while(manager, base_path, monkeypatch):
    monkeypatch.setattr(model_manager, "_MAX_ENDED", 2)
    for version in range(2, 6):
        add(base_path, version)
        manager.poll()
    assert [version for version, _ in states(manager)] == [5, 4, 3]


# === Policies and labels ===


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (VersionPolicy(), [12]),
        (VersionPolicy(latest=2), [5, 12]),
        (VersionPolicy(latest=9), [1, 5, 12]),
        (VersionPolicy(latest=None), [1, 5, 12]),
        (VersionPolicy(None, (5,)), [5]),
        (VersionPolicy(None, (1, 12, 99)), [1, 12]),
    ],
)
def test_policies(load, base_path, policy, expected):
    add(base_path, 5, 12)
    settings = ModelSettings("m", base_path, policy)
    assert [number for number, _ in aspired_versions(settings)] == expected
    manager = ModelManager(load, ServerSettings())
    manager.apply([settings])
    assert sorted(version for version, _ in states(manager)) == expected
    assert served(manager) == expected[-1]
    assert served(manager, version=expected[0]) == expected[0]


def test_labels_name_versions(load, base_path):
    add(base_path, 2)
    manager = ModelManager(load, ServerSettings())
    settings = ModelSettings("m", base_path, VersionPolicy(latest=2), {"stable": 1, "canary": 2})
    with pytest.raises(UnavailableVersionError, match="--allow_version_labels_for_unavailable_models"):
        manager.apply([settings])
    assert not load.loaded
    manager.apply([settings._replace(labels={})])
    manager.apply([settings])
    assert (served(manager, label="stable"), served(manager, label="canary")) == (1, 2)
    assert states(manager, label="stable") == [(1, "AVAILABLE")]
    with pytest.raises(ServingError, match="Unrecognized servable version label: no"):
        served(manager, label="no")
    with pytest.raises(InputError, match="label 'stable' to version 3 of model m, which is not currently available"):
        manager.apply([settings._replace(labels={"stable": 3})])
    assert served(manager, label="stable") == 1


def test_labels_name_versions_to_come_where_that_is_allowed(load, base_path):
    """As in TensorFlow Serving, that goes for labels that are not in use."""
    manager = ModelManager(load, ServerSettings(allow_version_labels_for_unavailable_models=True))
    settings = ModelSettings("m", base_path, VersionPolicy(latest=2), {"stable": 1, "next": 2})
    manager.apply([settings])
    assert served(manager, label="stable") == 1
    with pytest.raises(ServingError, match=r"Specific\(m, 2\)"):
        served(manager, label="next")
    with pytest.raises(UnavailableVersionError, match="version 2.*and then change the label; .* not in use yet"):
        manager.apply([settings._replace(labels={"stable": 2})])
    add(base_path, 2)
    manager.poll()
    assert served(manager, label="next") == 2


def test_a_configuration_replaces_another(manager, load, base_path, tmp_path):
    add(tmp_path / "other", 7)
    other = ModelSettings("other", str(tmp_path / "other"))
    manager.apply([ModelSettings("m", base_path), other])
    assert manager.names() == ["m", "other"]
    assert load.loaded == [("m", 1), ("other", 7)]  # what is loaded already stays
    manager.apply([other])
    assert manager.names() == ["other"]
    with pytest.raises(ServingError, match=r"Latest\(m\)"):
        served(manager)
    with pytest.raises(InputError, match="nowhere: no such directory"):
        manager.apply([ModelSettings("m", str(tmp_path / "nowhere"))])
    assert manager.names() == ["other"]


def test_another_base_path_is_another_model(manager, load, tmp_path):
    add(tmp_path / "moved", 1)
    manager.apply([ModelSettings("m", str(tmp_path / "moved"))])
    assert load.loaded == [("m", 1), ("m", 1)]
    assert states(manager) == [(1, "AVAILABLE")]


def test_a_closed_manager_serves_nothing(manager):
    manager.close()
    with pytest.raises(ServingError):
        served(manager)


def test_the_poller_goes_on_after_a_failure(caplog):
    calls = []

    def look():
        calls.append(1)
        raise OSError("the disk is away")

    with polling([(look, 0.01)]):
        toy_server.until(lambda: len(calls) > 2)
    count = len(calls)
    assert "A look for new versions failed." in caplog.text
    assert len(calls) == count


# === Changes that fail, and the end ===


def test_the_first_models_are_served_together_or_not_at_all(load, base_path, tmp_path):
    add(tmp_path / "other", 7)
    load.broken = {7}
    manager = ModelManager(load, ServerSettings())
    with pytest.raises(InputError, match="is broken"):
        manager.apply([ModelSettings("m", base_path), ModelSettings("other", str(tmp_path / "other"))])
    assert manager.names() == []


def test_requests_see_a_new_configuration_once_it_is_loaded(manager, load, base_path):
    add(base_path, 2)
    load.go_on.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        change = pool.submit(manager.apply, [ModelSettings("m", base_path, VersionPolicy(latest=2))])
        toy_server.until(lambda: manager.is_loading)
        assert served(manager) == 1
        load.go_on.set()
        change.result(30)
    assert served(manager) == 2 and states(manager) == [(2, "AVAILABLE"), (1, "AVAILABLE")]


def test_a_broken_new_version_of_one_model_keeps_no_other_from_changing(manager, load, base_path, tmp_path):
    add(base_path, 2)
    add(tmp_path / "other", 7)
    load.broken = {2}
    manager.poll()
    manager.apply([ModelSettings("m", base_path), ModelSettings("other", str(tmp_path / "other"))])
    assert manager.names() == ["m", "other"] and load.loaded == [("m", 1), ("other", 7)]
    assert served(manager) == 1 and states(manager) == [(2, "END"), (1, "AVAILABLE")]
    assert "is broken" in manager.status("m", 2)[0].error


def test_a_new_model_that_cannot_be_loaded_is_told_and_the_others_change(manager, load, base_path, tmp_path):
    add(base_path, 2)
    add(tmp_path / "other", 7)
    load.broken = {7}
    models = [ModelSettings("other", str(tmp_path / "other")), ModelSettings("m", base_path)]
    for _ in range(2):
        with pytest.raises(InputError, match="is broken"):
            manager.apply(models)
        assert served(manager) == 2 and search_api.health(manager) == {"status": "ok"}
        (status,) = manager.status("other")
        assert (status.version, status.state) == (7, "END") and "is broken" in status.error
    load.broken = set()
    (tmp_path / "other" / "7" / "saved_model.pb").write_bytes(b"the whole")
    manager.poll()
    with manager.use("other") as servable:
        assert servable.version == 7


def test_a_model_whose_new_base_path_cannot_be_loaded_is_served_from_the_old_one(manager, load, base_path, tmp_path):
    add(tmp_path / "moved", 7)
    load.broken = {7}
    with pytest.raises(InputError, match="is broken"):
        manager.apply([ModelSettings("m", str(tmp_path / "moved"))])
    assert served(manager) == 1 and states(manager) == [(1, "AVAILABLE")]
    add(base_path, 2)
    manager.poll()
    assert served(manager) == 2


def test_the_server_ends_while_a_version_loads(manager, load, base_path):
    add(base_path, 2)
    load.go_on.clear()
    begun = time.monotonic()
    with polling([(manager.poll, 0.01)]):
        toy_server.until(lambda: manager.is_loading)
    manager.close()
    assert time.monotonic() - begun < 10 and manager.is_loading
    load.go_on.set()
    toy_server.until(lambda: not manager.is_loading)
    assert states(manager)[1] == (1, "END") and (2, "AVAILABLE") not in states(manager)


def test_an_ended_version_is_closed_after_its_last_request(load, base_path, monkeypatch):
    closed = []
    monkeypatch.setattr(toy_server.SlowServable, "close", lambda servable: closed.append(servable.version))
    manager = ModelManager(load, ServerSettings())
    manager.apply([ModelSettings("m", base_path)])
    add(base_path, 2)
    with manager.use("m"):
        manager.poll()
        assert closed == []
    manager.poll()
    assert closed == [1]


def test_an_old_version_is_closed_before_the_next_model_loads(load, base_path, tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(toy_server.SlowServable, "close", lambda servable: events.append(("closed", servable.version)))
    other = tmp_path / "n"
    add(other, 1)
    manager = ModelManager(
        lambda *version: (events.append(("loads", *version[1:])), load(*version))[1], ServerSettings()
    )
    manager.apply([ModelSettings("m", base_path), ModelSettings("n", str(other))])
    for path in (base_path, other):
        add(path, 2)
    events.clear()
    manager.poll()
    assert events == [("loads", "m", 2), ("closed", 1), ("loads", "n", 2), ("closed", 1)]


def test_a_base_path_in_a_bucket_is_watched(load):
    base_path = "ram://watched"
    files.write_lines(f"{base_path}/1/saved_model.pb", ["x"])
    manager = ModelManager(load, ServerSettings())
    manager.apply([ModelSettings("m", base_path)])
    files.write_lines(f"{base_path}/2/variables/variables.index", ["An upload that goes on; the graph comes last."])
    manager.poll()
    assert load.loaded == [("m", 1)]
    files.write_lines(f"{base_path}/2/saved_model.pb", ["x"])
    manager.poll()
    assert load.loaded == [("m", 1), ("m", 2)]
    assert served(manager) == 2
