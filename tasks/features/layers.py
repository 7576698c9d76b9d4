"""Checks names of encoder layers and ways to combine them, without TensorFlow.

With L encoder layers, number 0 is the embeddings' output, and 1 to L are the encoder layers from the bottom.
"""

import math
import re
from collections.abc import Sequence

from keras_bert.errors import InputError

EMBEDDINGS = "embeddings"
ALL = "all"
COMBINES = ("none", "concatenate", "sum", "mean", "weighted_sum")
POOLINGS = ("none", "cls", "mean", "pooler")


def resolve_layers(names: Sequence[str | int], num_layers: int) -> list[int]:
    """Returns the numbers of the named layers, in the order given.

    Unlike google-research/bert's extract_features.py, which counts encoder layers from 0 and has no name for the
    embeddings, 0 is the embeddings' output, as in transformers' `hidden_states`. Negative numbers agree.

    Args:
        names: each `1` to `L`, `-1` (the last) to `-L`, `0` or `embeddings`, or `all` for 1 to L.
        num_layers: L.

    Raises:
        InputError: a name is none of these, a layer is named twice, or no layer is named.

    >>> resolve_layers(["-1", "embeddings"], 12)
    [12, 0]
    """
    given = f"--layers={','.join(map(str, names))}"
    expected = f"1 to {num_layers}, -1 (the last) to -{num_layers}, 0 or {EMBEDDINGS}, or {ALL} for every encoder layer"
    numbers = []
    for name in names:
        text = str(name).strip()
        if text == ALL:
            numbers.extend(range(1, num_layers + 1))
            continue
        number = 0 if text == EMBEDDINGS else int(text) if re.fullmatch(r"-?\d+", text) else None
        if number is None or not -num_layers <= number <= num_layers:
            raise InputError(f"{given}: there is no layer {text!r} in an encoder of {num_layers}. Expected {expected}.")
        numbers.append(number + num_layers + 1 if number < 0 else number)
    if not numbers:
        raise InputError(f"{given} names no layer. Expected {expected}.")
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise InputError(f"{given}: {layer_name(twice[0])} is named twice. Name each layer once.")
    return numbers


def layer_name(number: int) -> str:
    """Returns the name of a layer's output: `embeddings`, `layer_1`, ..."""
    return EMBEDDINGS if number == 0 else f"layer_{number}"


def check_layer_weights(layer_weights: Sequence[str | float] | None, combine: str, num_chosen: int) -> list[float]:
    """Checks `--layer_weights` against the chosen layers.

    Args:
        layer_weights: one number per chosen layer, or None.
        combine: one of `COMBINES`.
        num_chosen: number of chosen layers.

    Returns:
        The weights; an empty list unless `combine` is weighted_sum.

    Raises:
        InputError: the weights are missing or not wanted, are not finite numbers, or do not match the layers in number.
    """
    if combine != "weighted_sum" and layer_weights:
        raise InputError(f"--layer_weights is for --combine=weighted_sum, not for --combine={combine}. Leave it out.")
    if combine != "weighted_sum":
        return []
    given = ",".join(map(str, layer_weights or []))
    try:
        weights = [float(weight) for weight in layer_weights or []]
    except ValueError as error:
        raise InputError(f"--layer_weights={given}: expected numbers with commas between.") from error
    if not all(math.isfinite(weight) for weight in weights):
        raise InputError(f"--layer_weights={given}: expected finite numbers.")
    if len(weights) != num_chosen:
        raise InputError(
            f"--layer_weights={given}: {len(weights)} weights for {num_chosen} layers. Give --combine=weighted_sum one "
            "weight for each layer of --layers, in the same order."
        )
    return weights
