"""Distribution strategies: one device, several devices of one machine, several machines, or a TPU."""

import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_bert.errors import InputError, first_line
from tasks.engine.settings import POLICIES
from tasks.engine.workers import is_reachable

_TF_CONFIG_EXAMPLE = (
    """TF_CONFIG='{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'"""
)
# Seconds to wait; TensorFlow itself would wait for an hour.
_WORKERS_TIMEOUT = 600.0
_POLL_SECONDS = 0.1


def build_strategy(
    distribution_strategy: str = "one_device", num_gpus: int | None = None, tpu: str | None = None
) -> tf.distribute.Strategy:
    """Builds the strategy in whose `scope()` model and optimizer must be created.

    Args:
        distribution_strategy: `"one_device"`: the first GPU, or the CPU if there is none. `"mirrored"`: one replica on
            each GPU, with every batch split among them; without GPUs, one on each logical CPU device (a single one
            unless `tf.config.set_logical_device_configuration` made several). `"multi_worker_mirrored"`: the same on
            every machine in the environment variable TF_CONFIG, each of which runs the same command; must be built
            before the first TensorFlow op. `"tpu"`: all cores of a TPU.
        num_gpus: number of GPUs to use; None for all visible ones (one for `"one_device"`), 0 for the CPU.
        tpu: the TPU's address (`grpc://...`) or name, or `local` on the TPU's own machine.

    Raises:
        InputError: `num_gpus` exceeds the GPUs found; TF_CONFIG is missing or wrong; the TPU cannot be reached.
    """
    if distribution_strategy == "tpu":
        return _tpu_strategy(tpu)
    available = len(tf.config.list_physical_devices("GPU"))
    if num_gpus is not None and num_gpus > available:
        raise InputError(
            f"--num_gpus={num_gpus}: TensorFlow finds {available} on this machine. Ask for fewer, or set "
            "TF_CPP_MIN_LOG_LEVEL=0 to read why a GPU was not found."
        )
    if distribution_strategy == "multi_worker_mirrored":
        addresses, own = check_cluster(os.environ.get("TF_CONFIG"))
        return _multi_worker_strategy(num_gpus, tuple(addresses), own)
    gpus = tf.config.list_logical_devices("GPU")
    names = [device.name for device in gpus[:num_gpus] or tf.config.list_logical_devices("CPU")]
    if distribution_strategy == "mirrored":
        return _mirrored_strategy(tuple(names))
    return tf.distribute.OneDeviceStrategy(names[0])


# Reductions of two strategies in one process would mix up their values.
_mirrored_strategy = functools.cache(tf.distribute.MirroredStrategy)


@functools.cache  # A process joins a cluster once; a second start would lose the first strategy's variables.
def _multi_worker_strategy(num_gpus: int | None, addresses: tuple[str, ...], own: str) -> tf.distribute.Strategy:
    if num_gpus is not None:  # This strategy uses every visible GPU.
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:num_gpus], "GPU")
    meet(addresses, own)
    return tf.distribute.MultiWorkerMirroredStrategy()


def check_cluster(tf_config: str | None) -> tuple[list[str], str]:
    """Checks the environment variable TF_CONFIG; returns the addresses of all workers, and this one's.

    Raises:
        InputError: it is missing, is not JSON, or does not list the workers and this one's place among them.
    """
    if not tf_config:
        raise InputError(
            "--distribution_strategy=multi_worker_mirrored needs the environment variable TF_CONFIG on every worker, "
            f"each with its own index. Expected e.g. {_TF_CONFIG_EXAMPLE}"
        )
    try:
        config = json.loads(tf_config)
        cluster, task = dict(config["cluster"]), (config["task"]["type"], int(config["task"]["index"]))
        addresses = {(kind, index): name for kind, names in cluster.items() for index, name in enumerate(names)}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"TF_CONFIG: cannot be understood ({type(error).__name__}: {error}). Expected e.g. {_TF_CONFIG_EXAMPLE}"
        ) from error
    if kinds := sorted(set(cluster) - {"chief", "worker"}):
        raise InputError(f"TF_CONFIG: its cluster may have `chief` and `worker` only. Received: {', '.join(kinds)}")
    if task not in addresses:
        known = ", ".join(f"{kind} {index}" for kind, index in addresses)
        raise InputError(f"TF_CONFIG: its task must be one of its cluster's: {known}. Received: {task[0]} {task[1]}")
    wrong = [name for name in addresses.values() if not str(name).rpartition(":")[2].isdigit() or ":" not in str(name)]
    if wrong or len(set(addresses.values())) < len(addresses):
        raise InputError(
            "TF_CONFIG: every worker needs an address of its own, host:port. "
            f"Received: {', '.join(map(str, wrong or addresses.values()))}"
        )
    return list(addresses.values()), addresses[task]


def meet(addresses: Sequence[str], own: str, timeout: float = _WORKERS_TIMEOUT) -> None:
    """Waits until a process listens at every worker's address, and meanwhile listens at this one's.

    Raises:
        InputError: a worker does not listen within `timeout` seconds, or another process uses this one's port.
    """
    end = time.monotonic() + timeout
    dual = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
    missing, listener = [address for address in addresses if address != own], None
    with contextlib.ExitStack() as stack:
        while missing or not listener:
            if not listener:
                with contextlib.suppress(OSError):  # An earlier process of this worker may still be ending.
                    server = socket.create_server(("", int(own.rpartition(":")[2])), backlog=len(addresses), **dual)
                    listener = stack.enter_context(server)
            missing = [address for address in missing if not is_reachable(address)]
            if time.monotonic() > end and (missing or not listener):
                fault = f"another process is using the port of {own}"
                if missing:
                    fault = f"{', '.join(missing)} has not started after {timeout:g} seconds"
                raise InputError(
                    f"TF_CONFIG: {fault}. Start the same command on all {len(addresses)} machines within "
                    f"{timeout:g} seconds, each with its own index."
                )
            time.sleep(_POLL_SECONDS)


@functools.cache  # Initializing a TPU a second time would lose the variables on it.
def _tpu_strategy(tpu: str) -> tf.distribute.TPUStrategy:
    unreachable = "Give --tpu=local on the TPU's own machine (with the package tensorflow-tpu), or its name or address."
    if tpu.startswith("grpc://") and not is_reachable(tpu.removeprefix("grpc://")):  # TensorFlow would wait forever.
        raise InputError(f"--tpu={tpu}: cannot be reached (nothing listens there). {unreachable}")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError) as error:
        raise InputError(f"--tpu={tpu}: no TPU found ({first_line(error)}). {unreachable}") from error
    return tf.distribute.TPUStrategy(resolver)


def needs_static_shapes(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether each new shape of a batch costs a compilation, of training, evaluation and prediction."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset):
    """Splits each batch among the replicas; each of several workers reads all batches and keeps its own part."""
    options = tf.data.Options()
    # The default would shard by files, which gives different batches from those of one device.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return strategy.experimental_distribute_dataset(dataset.with_options(options))


def set_mixed_precision(mixed_precision: str) -> None:
    """Sets Keras's global dtype policy: layers built afterwards compute in this type, with float32 variables.

    Args:
        mixed_precision: `"float32"`, `"bfloat16"` or `"float16"`; the last needs `wrap_loss_scale`.
    """
    keras.config.set_dtype_policy(POLICIES[mixed_precision])


def wrap_loss_scale(optimizer: keras.optimizers.Optimizer, mixed_precision: str) -> keras.optimizers.Optimizer:
    """Adds a dynamic loss scale to an optimizer if the model computes in float16, where gradients underflow below 6e-8.

    The scale starts at 2^15, doubles after 2000 finite steps and halves whenever a gradient is not finite.
    """
    return keras.optimizers.LossScaleOptimizer(optimizer) if mixed_precision == "float16" else optimizer
