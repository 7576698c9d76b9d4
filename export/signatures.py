"""Names, types and shapes of the served signatures, and the rules that TensorFlow Serving has for them.

Shapes: B batch, S sequence, C classes. Whoever sends a request writes these names: they are an interface.

| signature         | inputs                                                       | outputs                           |
| ----------------- | ------------------------------------------------------------ | --------------------------------- |
| `serving_default` | `text`, and `text_pair` for a model of pairs: string [B]     | `label` string [B], `score` [B],  |
| `token_ids`       | `token_ids`, `segment_ids` int32 [B, S], `lengths` int32 [B] | `probabilities` [B, C]            |
| `classify`        | `inputs`: string [B], serialized `tf.Example`s of the texts  | `classes` string, `scores` [B, C] |

Texts may be any bytes. `token_ids` refuses what the model has no weights for (`serving.check_token_ids`).
"""

import tensorflow as tf

SERVING_DEFAULT = "serving_default"
TOKEN_IDS = "token_ids"
CLASSIFY = "classify"

TEXT_NAMES = ("text", "text_pair")

_NOT_IN_JSON = frozenset({tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum})
_INITIALIZER = "__saved_model_init_op"


def text_specs(num_texts: int) -> dict[str, tf.TensorSpec]:
    """The inputs of `serving_default`: one string per example and text."""
    return {name: tf.TensorSpec([None], tf.string, name=name) for name in TEXT_NAMES[:num_texts]}


def token_specs() -> dict[str, tf.TensorSpec]:
    """The inputs of `token_ids`; the padding mask follows from `lengths`, never from the ids.

    TensorFlow Serving's own padding (`pad_variable_length_inputs`) fills with the tensor's first element, which is
    the id of [CLS]: a mask guessed from the ids would take that for text.
    """
    shapes = {"token_ids": [None, None], "segment_ids": [None, None], "lengths": [None]}
    return {name: tf.TensorSpec(shape, tf.int32, name=name) for name, shape in shapes.items()}


def example_specs() -> dict[str, tf.TensorSpec]:
    """The one input that TensorFlow Serving's Classify allows, by the one name that it allows."""
    return {"inputs": tf.TensorSpec([None], tf.string, name="inputs")}


def example_features(num_texts: int) -> dict[str, tf.io.FixedLenFeature]:
    """What an example must hold: exactly one string for each text."""
    return {name: tf.io.FixedLenFeature([], tf.string) for name in TEXT_NAMES[:num_texts]}


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
        if name == CLASSIFY:
            breaches += _classify_breaches(signature)
    return breaches


def _tensor_breaches(info) -> list[str]:
    breaches = []
    if info.dtype in _NOT_IN_JSON:
        breaches.append(f"is {tf.as_dtype(info.dtype).name}, which TensorFlow Serving cannot write as JSON")
    if info.tensor_shape.unknown_rank or not info.tensor_shape.dim or info.tensor_shape.dim[0].size != -1:
        breaches.append("does not have the batch as its first dimension, so that requests cannot be batched")
    return breaches


def _classify_breaches(signature) -> list[str]:
    breaches = []
    if set(signature.inputs) != {"inputs"}:
        breaches.append(f"Classify takes the input 'inputs' alone, not {sorted(signature.inputs)}")
    if set(signature.outputs) != {"classes", "scores"}:
        breaches.append(f"Classify gives 'classes' and 'scores' alone, not {sorted(signature.outputs)}")
    return breaches
