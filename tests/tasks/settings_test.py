"""A setting said once: its default, help and bounds reach the flag and the Python entry alike."""

import dataclasses
import re

import pytest
from absl import flags as absl_flags

from keras_bert.errors import InputError
from tasks import flags
from tasks.engine.settings import TrainingSettings
from tasks.fine_tuning.settings import FineTuningSettings
from tasks.settings import Settings, replaced, setting


class Example(TrainingSettings):
    source: str = setting(dataclasses.MISSING, "Where from.", flag="from", identifies=False)
    learning_rate: float = replaced(TrainingSettings, "learning_rate", 1e-3, several=True, above=0.0)
    labels: list[str] | None = setting(None, "Class names.")
    sizes: list[int] = setting([], "Sizes to train.", at_least=1)
    stride: int | None = setting(None, "Tokens between windows.", at_least=1)


def test_flags_carry_name_type_and_default():
    settings = flags.parse(Example, ["--from=a", "--labels=x,y", "--stride=4", "--nojit_compile"])
    assert settings == Example(source="a", labels=["x", "y"], stride=4)
    assert (settings.learning_rate, settings.train_batch_size, settings.jit_compile) == (1e-3, 32, False)


def test_a_subject_holds_for_the_settings_below_it_and_orders_the_help():
    class Shared(Settings):
        limit: int = setting(1, "Limit.")
        zone: str = setting("a", "Zone.", subject="devices")
        alias: str = setting("a", "Alias.")

    class Own(Shared):
        alias: str = replaced(Shared, "alias", "b")
        limit: int = setting(2, "Another limit.")
        rows: int = setting(1, "Rows.", subject="data")

    subjects = {field.name: field.metadata["rule"].subject for field in dataclasses.fields(Own)}
    assert subjects == {"limit": "common", "zone": "devices", "alias": "devices", "rows": "data"}
    lines = flags.list_flags(flags.make_flags(Own)).splitlines()
    order = ["Most used:", "  --limit:", "Data:", "  --rows:", "Devices and speed:", "  --alias:", "  --zone:"]
    assert [line[: line.index(":") + 1] for line in lines if re.match(r"\w|  --", line)] == order


def test_one_value_or_several():
    assert flags.parse(Example, ["--from=a", "--learning_rate=5e-5,3e-5"]).learning_rate == [5e-5, 3e-5]
    assert flags.parse(Example, ["--from=a", "--learning_rate=5e-5"]).learning_rate == 5e-5


@pytest.mark.parametrize(("text", "sizes"), [("8,4", [8, 4]), ("8", [8]), ("", [])])
def test_a_list_holds_values_of_its_type(text, sizes):
    assert flags.parse(Example, ["--from=a", f"--sizes={text}"]).sizes == sizes
    assert flags.parse(Example, ["--from=a"]).sizes == Example(source="a").sizes == []
    assert "a comma separated list, each a positive integer" in flags.make_flags(Example).get_help()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--from must have a value"),
        (["--from=a", "--nope=1"], "Unknown command line flag 'nope'"),
        (["--from=a", "--layer_decay=0"], "must be greater than 0"),
        (["--from=a", "--layer_decay=1.5"], "--layer_decay=1.5"),
        (["--from=a", "--learning_rate=nan"], "must be a finite number"),
        (["--from=a", "--optimizer=sgd"], "must be one of bert-2018, adamw, lamb"),
        (["--from=a", "--learning_rate=0,1"], "must be greater than 0"),
        (["--from=a", "--stride=0"], "must be at least 1"),
        (["--from=a", "--sizes=8,0"], "--sizes=8,0: must be at least 1"),
        (["--from=a", "--sizes=8,many"], "--sizes=8,many"),
    ],
)
def test_a_wrong_flag_is_refused(arguments, message):
    with pytest.raises(absl_flags.Error) as error:
        flags.parse(Example, arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layer_decay": 0.0}, "--layer_decay=0.0: must be greater than 0"),
        ({"train_batch_size": 0}, "--train_batch_size=0: must be at least 1"),
        ({"optimizer": "sgd"}, "--optimizer=sgd: must be one of bert-2018, adamw, lamb"),
        ({"learning_rate": [1e-3, float("nan")]}, "--learning_rate=nan: must be a finite number"),
        ({"learning_rate": []}, "--learning_rate: expected at least one value, found none"),
        ({"sizes": [8, 0]}, "--sizes=0: must be at least 1"),
    ],
)
def test_python_callers_meet_the_same_bounds(given, message):
    with pytest.raises(InputError) as error:
        Example(source="a", **given)
    assert message in str(error.value)


def test_two_commands_in_one_process_keep_their_own_defaults():
    class Other(Settings):
        learning_rate: float = setting(2.0, "Another command's.")

    assert flags.parse(Other, []).learning_rate == 2.0
    assert flags.parse(Example, ["--from=a"]).learning_rate == 1e-3


def test_identity_leaves_out_paths_devices_and_speed():
    kept = Example(source="a").identity()
    assert {"learning_rate", "random_seed", "labels"} <= kept.keys()
    assert not {"source", "eval_batch_size", "num_gpus", "tpu", "jit_compile"} & kept.keys()


def test_every_setting_of_a_training_has_a_help_text():
    for field in dataclasses.fields(TrainingSettings):
        assert field.metadata["rule"].help.endswith("."), field.name


def test_workers_share_all_flags_but_paths():
    given = {"output_dir": "a", "preset": "b"}
    shared = FineTuningSettings(**given).of_all_workers()
    assert shared == FineTuningSettings(output_dir="c", preset="d").of_all_workers()
    assert shared["--preset"] is False and shared["--vocab_file"] is True  # Whether it is left out.
    for changed in ({"do_eval": True}, {"save_checkpoints_steps": 7}, {"vocab_file": "v"}, {"learning_rate": 1.0}):
        other = FineTuningSettings(**given, **changed).of_all_workers()
        assert {name for name in shared if other[name] != shared[name]} == {f"--{name}" for name in changed}


@pytest.mark.parametrize(
    "changed", [{"early_stopping_patience": 1}, {"num_restarts": 2}, {"learning_rate": [1.0, 2.0]}], ids=str
)
def test_what_several_workers_cannot_do_is_refused(changed):
    with pytest.raises(InputError, match="A search over rates.*, and --early_stopping_patience, run on one machine"):
        FineTuningSettings(output_dir="a", distribution_strategy="multi_worker_mirrored", **changed)
