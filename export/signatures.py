"""Names, types and shapes of the served signatures, and the rules that TensorFlow Serving has for them.

Shapes: B batch, S sequence. Whoever sends a request writes these names: they are an interface. What each head's
signatures take and give stands in its `description` (`export/heads`); common to them are

- `serving_default`: texts, string [B], in answers out;
- `token_ids`: `token_ids`, `segment_ids` int32 [B, S], `lengths` int32 [B];
- `classify`, `regress`: `inputs`, string [B], serialized `tf.Example`s.

Texts may be any bytes. `token_ids` refuses what the model has no weights for (`export.serving.check_token_ids`).
"""

import tensorflow as tf

SERVING_DEFAULT = "serving_default"
TOKEN_IDS = "token_ids"
CLASSIFY = "classify"
REGRESS = "regress"

TEXT_NAMES = ("text", "text_pair")
TEXT_INPUTS = {"text": "string: the text, any bytes", "text_pair": "string: the second text of the pair"}
TOKEN_INPUTS = {
    "token_ids": "int32 (length): ids of the tokens, [CLS] and [SEP] included",
    "segment_ids": "int32 (length): 0 for the first text, 1 for the second",
    "lengths": "int32: how many of the ids are real; the others are padding",
}

# What TensorFlow Serving allows the two verbs that take examples: outputs by name.
_EXAMPLE_OUTPUTS = {CLASSIFY: {"classes", "scores"}, REGRESS: {"outputs"}}
_NOT_IN_JSON = frozenset({tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum})
_INITIALIZER = "__saved_model_init_op"


def text_specs(*names: str) -> dict[str, tf.TensorSpec]:
    """Inputs that are one string per example each."""
    return {name: tf.TensorSpec([None], tf.string, name=name) for name in names}


def token_specs(*axes: int | None) -> dict[str, tf.TensorSpec]:
    """The inputs of `token_ids`; the padding mask follows from `lengths`, never from the ids.

    TensorFlow Serving's own padding (`pad_variable_length_inputs`) fills with the tensor's first element, which is
    the id of [CLS]: a mask guessed from the ids would take that for text.

    Args:
        *axes: sizes of further dimensions between batch and sequence.
    """
    shapes = {"token_ids": [None, *axes, None], "segment_ids": [None, *axes, None], "lengths": [None, *axes]}
    return {name: tf.TensorSpec(shape, tf.int32, name=name) for name, shape in shapes.items()}


def example_specs() -> dict[str, tf.TensorSpec]:
    """The one input that TensorFlow Serving's Classify and Regress allow, by the one name that they allow."""
    return {"inputs": tf.TensorSpec([None], tf.string, name="inputs")}


def rule_breaches(signature_defs) -> list[str]:
    """What TensorFlow Serving would refuse about a model's signatures: one sentence each, none for a good model.

    Args:
        signature_defs: mapping of name to `SignatureDef`, as in a `MetaGraphDef`.
    """
    breaches = [] if SERVING_DEFAULT in signature_defs else [f"there is no signature {SERVING_DEFAULT!r}"]
    for name, signature in sorted(signature_defs.items()):
        if name == _INITIALIZER:
            continue
        tensors = [("input", *item) for item in signature.inputs.items()]
        tensors += [("output", *item) for item in signature.outputs.items()]
        for kind, tensor_name, info in sorted(tensors, key=lambda item: item[:2]):
            breaches += [f"signature {name!r}, {kind} {tensor_name!r} {why}" for why in _tensor_breaches(info)]
        if name in _EXAMPLE_OUTPUTS:
            breaches += _example_breaches(name, signature)
    return breaches


def _tensor_breaches(info) -> list[str]:
    breaches = []
    if info.dtype in _NOT_IN_JSON:
        breaches.append(f"is {tf.as_dtype(info.dtype).name}, which TensorFlow Serving cannot write as JSON")
    if info.tensor_shape.unknown_rank or not info.tensor_shape.dim or info.tensor_shape.dim[0].size != -1:
        breaches.append("does not have the batch as its first dimension, so that requests cannot be batched")
    return breaches


def _example_breaches(name: str, signature) -> list[str]:
    verb, outputs = name.capitalize(), _EXAMPLE_OUTPUTS[name]
    breaches = []
    if set(signature.inputs) != {"inputs"}:
        breaches.append(f"{verb} takes the input 'inputs' alone, not {sorted(signature.inputs)}")
    if set(signature.outputs) != outputs:
        breaches.append(
            f"{verb} gives {' and '.join(map(repr, sorted(outputs)))} alone, not {sorted(signature.outputs)}"
        )
    return breaches
