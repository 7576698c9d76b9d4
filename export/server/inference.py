"""Predicts, classifies and regresses on arrays for both protocols, and checks requests as TensorFlow Serving does.

REST and gRPC parse a request into arrays or serialized examples, call a function of this module, and write its result
in their format.

Shapes: B batch, C classes. Sources: TensorFlow Serving's predict_util.cc, classifier.cc, regressor.cc.
"""

from collections.abc import Sequence

import numpy as np

from export.server.batching import Arrays
from export.server.servable import Servable, Signature
from export.server.serving_error import TimeLeft, invalid

# Verb -> (name of its signatures, their outputs in words, sets of outputs that they may have).
_KINDS = {
    "Classify": ("classification", "outputs 'classes' and 'scores'", ({"classes", "scores"}, {"classes"}, {"scores"})),
    "Regress": ("regression", "the output 'outputs'", ({"outputs"},)),
}


def takes_examples(signature: Signature, api: str) -> bool:
    """Returns whether `api`, `Classify` or `Regress`, can run a signature."""
    return set(signature.inputs) == {"inputs"} and set(signature.outputs) in _KINDS[api][2]


def predict(
    servable: Servable, signature_name: str, arrays: Arrays, time_left: TimeLeft, output_filter: Sequence[str] = ()
) -> Arrays:
    """Runs a signature on named arrays.

    Args:
        servable: the version.
        signature_name: one of its signatures.
        arrays: one for each input; strings are `bytes` objects.
        time_left: see `Servable.run`.
        output_filter: names of the wanted outputs; all if empty.

    Raises:
        ServingError: there is no such signature or output; an input is missing, unknown, of the wrong type or, for a
            model of bert-export, of another shape than declared; there are too many rows; or the graph refuses the
            values.
    """
    signature = servable.signature(signature_name)
    arrays = {**signature.defaults, **arrays}
    _check_inputs(signature, arrays)
    wrong = signature.wrong_shapes(arrays)
    if wrong and servable.model.description is not None:  # Else the graph could answer uncounted rows.
        raise invalid(" ".join(wrong))
    servable.check_rows(_count_rows(signature, arrays))
    for name in output_filter:
        if name not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name[:200]} Outputs expected to be in the set "
                f"{{{','.join(signature.outputs)}}}."
            )
    if len(set(output_filter)) < len(output_filter):
        raise invalid(f"duplicate output tensor alias: {sorted(output_filter)}")
    outputs = servable.run(signature_name, arrays, time_left, "Predict")
    return {name: outputs[name] for name in output_filter or sorted(outputs)}


def classify(
    servable: Servable, signature_name: str, examples: Sequence[bytes], time_left: TimeLeft
) -> tuple[np.ndarray, np.ndarray]:
    """Runs a classification signature on serialized `tf.Example`s; the other arguments are those of `predict`.

    Returns:
        The labels, string [B, C], and the scores, float32 [B, C].

    Raises:
        ServingError: there is no such signature, it does not fit the verb, there are no examples, or the graph refuses
            them.
    """
    outputs = _run_examples(servable, signature_name, examples, time_left, "Classify")
    for name, array in outputs.items():
        if array.ndim != 2 or len(array) != len(examples):
            raise invalid(f"Expected Tensor shape: [batch_size num_classes] for {name!r}. Received: {array.shape}")
    if len({array.shape[1] for array in outputs.values()}) > 1:
        raise invalid("Tensors class and score should match in dim_size(1).")
    # TensorFlow Serving writes "" and 0 for an output that a signature lacks.
    shape = next(iter(outputs.values())).shape
    labels = outputs.get("classes", np.full(shape, b"", object))
    return labels, outputs.get("scores", np.zeros(shape, np.float32))


def regress(servable: Servable, signature_name: str, examples: Sequence[bytes], time_left: TimeLeft) -> np.ndarray:
    """Runs a regression signature on serialized `tf.Example`s; arguments and errors are those of `classify`.

    Returns:
        float32, shape [B].
    """
    values = _run_examples(servable, signature_name, examples, time_left, "Regress")["outputs"]
    if values.shape not in ((len(examples),), (len(examples), 1)):
        raise invalid(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {values.shape}"
        )
    return values.reshape(-1)


def _run_examples(
    servable: Servable, signature_name: str, examples: Sequence[bytes], time_left: TimeLeft, api: str
) -> Arrays:
    signature, (name, outputs, _) = servable.signature(signature_name, api), _KINDS[api]
    if not takes_examples(signature, api):
        raise invalid(
            f"Expected a {name} signature: one input named 'inputs', {outputs}. Received: {signature_name!r} "
            f"with inputs {sorted(signature.inputs)} and outputs {sorted(signature.outputs)}. Name another by "
            "'signature_name'."
        )
    if not examples:
        raise invalid("Input is empty.")
    servable.check_rows(len(examples))
    servable.metrics.examples(servable.name, len(examples))
    return servable.run(signature_name, {"inputs": np.array(examples, dtype=object)}, time_left, api)


def _count_rows(signature: Signature, arrays: Arrays) -> int:
    """Returns the number of rows along the free first dimensions of the inputs."""
    free = [name for name, spec in signature.inputs.items() if spec.shape.rank is None or spec.shape[:1] == [None]]
    return max((len(arrays[name]) for name in free if arrays[name].ndim), default=0)


def _check_inputs(signature: Signature, arrays: Arrays) -> None:
    extra, missing = set(arrays) - set(signature.inputs), set(signature.inputs) - set(arrays)
    if extra or missing:
        raise invalid(
            f"input size does not match signature: {len(arrays)}!={len(signature.inputs)}. Sent extra: "
            f"{{{','.join(sorted(extra))[:200]}}}. Missing but required: {{{','.join(sorted(missing))}}}."
        )
    for name, spec in signature.inputs.items():
        array = arrays[name]
        dtype = "string" if array.dtype == object else array.dtype.name
        if dtype != spec.dtype.name:
            raise invalid(f"Input {name!r}: expected type {spec.dtype.name}. Received: {dtype}")
