"""Where a model is trained: on one device, or mirrored on several of one machine."""

import keras
import tensorflow as tf

from keras_bert.errors import InputError


def build_strategy(distribution_strategy: str = "one_device", num_gpus: int | None = None) -> tf.distribute.Strategy:
    """Builds the strategy in whose `scope()` model and optimizer are created.

    Args:
        distribution_strategy: `"one_device"`: the first GPU if there is one, else the CPU. `"mirrored"`: a copy of
            the model on each GPU, every batch split among them; on a machine without GPU the logical CPU devices
            (one, unless `tf.config.set_logical_device_configuration` made several).
        num_gpus: how many GPUs to use; None: all that are visible (`"one_device"`: one); 0: the CPU.

    Raises:
        InputError: more GPUs asked for than there are, or more than one for one device.
        ValueError: an unknown name.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if num_gpus is not None and num_gpus > len(gpus):
        raise InputError(
            f"--num_gpus={num_gpus}: TensorFlow finds {len(gpus)} on this machine. Ask for fewer, or set "
            "TF_CPP_MIN_LOG_LEVEL=0 to read why a GPU was not found."
        )
    names = [device.name for device in gpus[:num_gpus] or tf.config.list_logical_devices("CPU")]
    if distribution_strategy == "mirrored":
        return tf.distribute.MirroredStrategy(names)
    if distribution_strategy != "one_device":
        raise ValueError(
            f"`distribution_strategy` must be 'one_device' or 'mirrored'. Received: {distribution_strategy!r}"
        )
    if num_gpus is not None and num_gpus > 1:
        raise InputError(f"--num_gpus={num_gpus} needs --distribution_strategy=mirrored, not one_device.")
    return tf.distribute.OneDeviceStrategy(names[0])


def set_mixed_precision(mixed_precision: str) -> None:
    """Makes Keras layers built from here on compute in `mixed_precision`; their variables stay float32.

    Args:
        mixed_precision: `"float32"` or `"bfloat16"`. (float16 would need a loss scale: not offered.)

    Raises:
        ValueError: an unknown name.
    """
    policies = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
    if mixed_precision not in policies:
        raise ValueError(f"`mixed_precision` must be 'float32' or 'bfloat16'. Received: {mixed_precision!r}")
    keras.config.set_dtype_policy(policies[mixed_precision])
