"""Strategies by name, and what is refused before TensorFlow waits for what never comes."""

import concurrent.futures
import json
import re
import socket

import keras
import pytest
import tensorflow as tf
from toy_workers import free_ports

from keras_bert.errors import InputError
from tasks.engine.strategy import build_strategy, check_cluster, meet, set_mixed_precision, wrap_loss_scale


def test_strategies_by_name():
    assert build_strategy("one_device").num_replicas_in_sync == 1
    assert isinstance(build_strategy("one_device"), tf.distribute.OneDeviceStrategy)
    assert isinstance(build_strategy("mirrored", num_gpus=0), tf.distribute.MirroredStrategy)
    # Those of two such strategies in a process, as in a search, would take each other's gradients.
    assert build_strategy("mirrored", num_gpus=0) is build_strategy("mirrored")
    if not tf.config.list_logical_devices("GPU"):
        with pytest.raises(InputError, match="--num_gpus=1: TensorFlow finds 0"):
            build_strategy("mirrored", num_gpus=1)


def cluster(workers=("a:1", "b:2"), task=("worker", 0), **others):
    return json.dumps({"cluster": {"worker": workers, **others}, "task": {"type": task[0], "index": task[1]}})


def test_clusters_that_are_fine():
    assert check_cluster(cluster()) == (["a:1", "b:2"], "a:1")
    for index in (1, "1"):  # TensorFlow takes both.
        assert check_cluster(cluster(task=("worker", index))) == (["a:1", "b:2"], "b:2")
    check_cluster(cluster(("10.0.0.2:1", "[::1]:2"), ("chief", 0), chief=["10.0.0.1:1"]))


@pytest.mark.parametrize(
    ("tf_config", "message"),
    [
        (None, "needs the environment variable TF_CONFIG on every worker"),
        ("", "needs the environment variable TF_CONFIG"),
        ("{cluster", "TF_CONFIG: cannot be understood (JSONDecodeError"),
        ("[]", "TF_CONFIG: cannot be understood (TypeError"),
        ('{"cluster": {"worker": ["a:1"]}}', "TF_CONFIG: cannot be understood (KeyError: 'task')"),
        (cluster(task=("worker", 2)), "one of its cluster's: worker 0, worker 1. Received: worker 2"),
        (cluster(task=("worker", "first")), "TF_CONFIG: cannot be understood (ValueError: invalid literal for int()"),
        (cluster(task=("chief", 0)), "Received: chief 0"),
        (cluster(ps=["c:3"]), "`chief` and `worker` only. Received: ps"),
        (cluster(("a:1", "a:1")), "an address of its own, host:port. Received: a:1, a:1"),
        (cluster(("a:1", "b")), "host:port. Received: b"),
        (cluster(("a:1", "b:x")), "host:port. Received: b:x"),
    ],
)
def test_clusters_that_are_refused(monkeypatch, tf_config, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check_cluster(tf_config)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if tf_config is not None:
        monkeypatch.setenv("TF_CONFIG", tf_config)
    with pytest.raises(InputError, match="TF_CONFIG"):
        build_strategy("multi_worker_mirrored")


def local(*ports: int) -> list[str]:
    return [f"localhost:{port}" for port in ports]


def test_workers_that_come_at_different_times_meet():
    addresses = local(*free_ports(3))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        early = [pool.submit(meet, addresses, own, 30.0) for own in addresses[:2]]
        assert concurrent.futures.wait(early, 0.5).not_done == set(early)
        server = tf.distribute.Server({"worker": addresses[2:]}, protocol="grpc")  # As TensorFlow listens afterwards.
        assert [future.result() for future in early] == [None, None]
        del server


def test_a_worker_that_never_comes_is_named():
    here, absent = local(*free_ports(2))
    with pytest.raises(InputError, match=f"{absent} has not started after 0.2 seconds. Start the same command on all"):
        meet([here, absent], here, 0.2)


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as other:
        own = local(other.getsockname()[1])[0]
        with pytest.raises(InputError, match=f"another process is using the port of {own}"):
            meet([own], own, 0.2)


def test_tpus_that_cannot_be_reached():
    for address in ("grpc://127.0.0.1:1", "grpc://127.0.0.1:port", "grpc://nowhere.invalid:8470"):
        with pytest.raises(InputError, match=f"--tpu={address}: cannot be reached .*Give --tpu=local"):
            build_strategy("tpu", tpu=address)


def test_number_types():
    try:
        for name, policy in (("bfloat16", "mixed_bfloat16"), ("float16", "mixed_float16"), ("float32", "float32")):
            set_mixed_precision(name)
            assert keras.config.dtype_policy().name == policy
    finally:
        set_mixed_precision("float32")
    optimizer = keras.optimizers.SGD(0.1)
    assert wrap_loss_scale(optimizer, "bfloat16") is wrap_loss_scale(optimizer, "float32") is optimizer
    assert wrap_loss_scale(optimizer, "float16").inner_optimizer is optimizer
