"""Predicts, classifies and regresses on arrays, with TensorFlow Serving's checks of requests, for both protocols.

Shapes: B batch, C classes. Sources: TensorFlow Serving's predict_util.cc, classifier.cc, regressor.cc.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from export.server.servable import Servable, Signature
from export.server.serving_error import InvalidArgumentError

DEFAULT_SIGNATURE = "serving_default"
CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"


class _Kind(NamedTuple):
    """What a verb demands of a signature: the outputs it must have and may have."""

    name: str
    outputs: str
    least: frozenset[str]
    most: frozenset[str]


_CLASSES, _VALUES = frozenset({"classes", "scores"}), frozenset({"outputs"})
_KINDS = {
    "Classify": _Kind("classification", "outputs 'classes' and 'scores'", frozenset(), _CLASSES),
    "Regress": _Kind("regression", "the output 'outputs'", _VALUES, _VALUES),
}


class Classes(NamedTuple):
    """The result of a classification: `labels` string [B, C] and `scores` float32 [B, C]."""

    labels: np.ndarray
    scores: np.ndarray


def predict(
    servable: Servable,
    signature_name: str,
    arrays: Mapping[str, np.ndarray],
    deadline: float | None,
    output_filter: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Runs a signature on named arrays.

    Args:
        servable: the version that answers.
        signature_name: "" is `serving_default`.
        arrays: one for each input; strings as objects (`bytes`).
        deadline: see `Servable.run`.
        output_filter: names of the wanted outputs; empty: all.

    Raises:
        ServingError: no such signature or output; an input is missing, unknown, or of the wrong type or shape; the
            graph refuses the values.
    """
    signature_name = signature_name or DEFAULT_SIGNATURE
    signature = servable.signature(signature_name)
    _check_inputs(signature, arrays)
    for name in output_filter:
        if name not in signature.outputs:
            raise InvalidArgumentError(
                f"output tensor alias not found in signature: {name[:200]} Outputs expected to be in the set "
                f"{{{','.join(signature.outputs)}}}."
            )
    if len(set(output_filter)) < len(output_filter):
        raise InvalidArgumentError(f"duplicate output tensor alias: {sorted(output_filter)}")
    outputs = servable.run(signature_name, arrays, deadline, "Predict")
    return {name: outputs[name] for name in output_filter or sorted(outputs)}


def _check_inputs(signature: Signature, arrays: Mapping[str, np.ndarray]) -> None:
    if set(arrays) != set(signature.inputs):
        extra, missing = set(arrays) - set(signature.inputs), set(signature.inputs) - set(arrays)
        raise InvalidArgumentError(
            f"input size does not match signature: {len(arrays)}!={len(signature.inputs)}. Sent extra: "
            f"{{{','.join(sorted(extra))[:200]}}}. Missing but required: {{{','.join(sorted(missing))}}}."
        )
    for name, spec in signature.inputs.items():
        array = arrays[name]
        dtype = "string" if array.dtype == object else array.dtype.name
        if dtype != spec.dtype.name:
            raise InvalidArgumentError(f"Input {name!r}: expected type {spec.dtype.name}. Received: {dtype}")
        if not spec.shape.is_compatible_with(array.shape):
            raise InvalidArgumentError(f"Input {name!r}: expected shape {spec.shape}. Received: {array.shape}")


def classify(servable: Servable, signature_name: str, examples: Sequence[bytes], deadline: float | None) -> Classes:
    """Runs a classification signature on serialized `tf.Example`s.

    Raises:
        ServingError: there is no such signature or it does not fit the verb, there are no examples, or the graph
            refuses them.
    """
    outputs = _run_examples(servable, signature_name, examples, deadline, "Classify")
    for name, array in outputs.items():
        if array.ndim != 2 or len(array) != len(examples):
            raise InvalidArgumentError(
                f"Expected Tensor shape: [batch_size num_classes] for {name!r}. Received: {array.shape}"
            )
    if len({array.shape[1] for array in outputs.values()}) > 1:
        raise InvalidArgumentError("Tensors class and score should match in dim_size(1).")
    # TensorFlow Serving writes "" and 0 for what a signature lacks.
    shape = next(iter(outputs.values())).shape
    labels = outputs.get("classes", np.full(shape, b"", object))
    return Classes(labels, outputs.get("scores", np.zeros(shape, np.float32)))


def regress(servable: Servable, signature_name: str, examples: Sequence[bytes], deadline: float | None) -> np.ndarray:
    """Runs a regression signature on serialized `tf.Example`s.

    Returns:
        float32, shape [B].

    Raises:
        ServingError: as `classify`.
    """
    values = _run_examples(servable, signature_name, examples, deadline, "Regress")["outputs"]
    if values.shape not in ((len(examples),), (len(examples), 1)):
        raise InvalidArgumentError(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {values.shape}"
        )
    return values.reshape(-1)


def _run_examples(
    servable: Servable, signature_name: str, examples: Sequence[bytes], deadline: float | None, api: str
) -> dict[str, np.ndarray]:
    signature_name = signature_name or DEFAULT_SIGNATURE
    signature, kind = servable.signature(signature_name), _KINDS[api]
    if set(signature.inputs) != {"inputs"} or not kind.least <= set(signature.outputs) <= kind.most:
        raise InvalidArgumentError(
            f"Expected a {kind.name} signature: one input named 'inputs', {kind.outputs}. Received: {signature_name!r} "
            f"with inputs {sorted(signature.inputs)} and outputs {sorted(signature.outputs)}. Name another by "
            "'signature_name'."
        )
    if not examples:
        raise InvalidArgumentError("Input is empty.")
    servable.metrics.examples(servable.name, len(examples))
    array = np.empty(len(examples), dtype=object)
    array[:] = examples
    return servable.run(signature_name, {"inputs": array}, deadline, api)
