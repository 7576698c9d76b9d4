"""TensorFlow Serving's rules for the signatures of a model."""

from collections.abc import Iterator

import tensorflow as tf

from export.signatures import CLASSIFY, REGRESS, SERVING_DEFAULT

# Outputs that TensorFlow Serving allows for the two verbs that take examples.
_EXAMPLE_OUTPUTS = {CLASSIFY: {"classes", "scores"}, REGRESS: {"outputs"}}
_NOT_IN_JSON = frozenset({tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum})
_INITIALIZER = "__saved_model_init_op"


def rule_breaches(signature_defs) -> list[str]:
    """Lists what TensorFlow Serving would refuse about a model's signatures.

    Args:
        signature_defs: mapping of name to `SignatureDef`, as in a `MetaGraphDef`.
    """
    breaches = [] if SERVING_DEFAULT in signature_defs else [f"there is no signature {SERVING_DEFAULT!r}"]
    for name, signature in sorted(signature_defs.items()):
        if name == _INITIALIZER:
            continue
        for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
            for tensor, info in sorted(tensors.items()):
                breaches += [f"signature {name!r}, {kind} {tensor!r} {why}" for why in _tensor_breaches(info)]
        if name in _EXAMPLE_OUTPUTS:
            breaches += _example_breaches(name, signature)
    return breaches


def _tensor_breaches(info) -> Iterator[str]:
    if info.dtype in _NOT_IN_JSON:
        yield f"is {tf.as_dtype(info.dtype).name}, which TensorFlow Serving cannot write as JSON"
    if info.tensor_shape.unknown_rank or not info.tensor_shape.dim or info.tensor_shape.dim[0].size != -1:
        yield "does not have the batch as its first dimension, so that requests cannot be batched"


def _example_breaches(name: str, signature) -> Iterator[str]:
    verb, outputs = name.capitalize(), _EXAMPLE_OUTPUTS[name]
    if set(signature.inputs) != {"inputs"}:
        yield f"{verb} takes the input 'inputs' alone, not {sorted(signature.inputs)}"
    if set(signature.outputs) != outputs:
        expected = " and ".join(map(repr, sorted(outputs)))
        yield f"{verb} gives {expected} alone, not {sorted(signature.outputs)}"
