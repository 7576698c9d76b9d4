"""A toy pre-training model and optimizer steps on drawn gradients, for the tests of the optimizers."""

import contextlib

import keras
import numpy as np


def build_toy(num_layers: int = 2):
    """Returns a `BertPretrainer`."""
    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertPretrainer

    sizes = {"vocabulary_size": 30, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 6}
    return BertPretrainer(BertBackbone(num_layers=num_layers, num_heads=2, **sizes), compile=False)


def draw(shapes: dict[str, tuple], seed: int = 0, steps: int = 6) -> tuple[dict, list[dict]]:
    """Returns start values, and the gradients of each step, by variable name."""
    rng = np.random.default_rng(seed)
    draws = [
        {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()} for _ in range(steps + 1)
    ]
    return draws[0], draws[1:]


def run_steps(optimizer, start: dict[str, np.ndarray], gradients: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the variables after the steps. A name is a path: "query_key_value/kernel"."""
    variables = {}
    for path, value in start.items():
        *scopes, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            variables[path] = keras.Variable(value, name=name)
    optimizer.build(list(variables.values()))
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(step[path]) for path in variables])
    return {path: variable.numpy() for path, variable in variables.items()}
