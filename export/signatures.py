"""Names, types and shapes of the served signatures.

Importing this module registers the ops of tensorflow-text that served graphs contain, or raises an InputError.

Clients write these names, so they are an interface. Each head's `description` (`export/heads`) lists the inputs and
outputs of its signatures. Heads share

- `serving_default`: texts, string [B], in answers out;
- `token_ids`: `token_ids`, `segment_ids` int32 [B, S], `lengths` int32 [B];
- `explain`, only of classifiers and regressors: texts in, the share of each word in the answer out;
- `count_tokens`, only of embedders: texts in, the number of tokens that the model reads of each out;
- `classify`, `regress`: `inputs`, string [B], serialized `tf.Example`s.

Texts may be any bytes. `token_ids` refuses ids that the model has no weights for.

Shapes: B batch, S sequence.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

from keras_bert.errors import InputError, first_line

try:
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
except (ImportError, tf.errors.NotFoundError) as error:  # No wheel here, or one for another TensorFlow.
    raise InputError(
        f"A served graph needs tensorflow-text, which cannot be imported here ({first_line(error)}). Install the "
        f"version of TensorFlow's own minor version ({tf.__version__}), or use a system that it has wheels for: "
        "docs/quickstart.md."
    ) from error

SERVING_DEFAULT = "serving_default"
TOKEN_IDS = "token_ids"
CLASSIFY = "classify"
REGRESS = "regress"
EXPLAIN = "explain"
COUNT_TOKENS = "count_tokens"

TEXT_INPUTS = {"text": "string: the text, any bytes", "text_pair": "string: the second text of the pair"}
# Dimensions after the batch's of the inputs that every `token_ids` has.
TOKEN_AXES = {"token_ids": ("sequence",), "segment_ids": ("sequence",), "lengths": ()}
_TOKEN_INPUTS = {
    "token_ids": "ids of the tokens, [CLS] and [SEP] included",
    "segment_ids": "0 for the first text, 1 for the second",
    "lengths": "how many of the ids are real; the others are padding",
}


def trace(function: Callable, axes: Mapping[str, tuple], dtype: tf.DType) -> tf.types.experimental.ConcreteFunction:
    """Traces a signature, a function of named tensors that returns a dict of them.

    The padding mask of token ids follows from `lengths`, never from the ids. TensorFlow Serving's own padding
    (`pad_variable_length_inputs`) fills with the tensor's first element, the id of [CLS], which a mask guessed from
    the ids would take for text.

    Args:
        function: takes each input by its name.
        axes: the inputs: name -> dimensions after the batch's, each a size or the name of a free dimension.
        dtype: the type of all inputs.
    """
    sizes = {name: [axis if isinstance(axis, int) else None for axis in own] for name, own in axes.items()}
    specs = {name: tf.TensorSpec([None, *shape], dtype, name=name) for name, shape in sizes.items()}
    # No jit_compile: TensorFlow Serving runs without XLA and refuses a function that requires it.
    return tf.function(function, autograph=False).get_concrete_function(**specs)


def describe_tokens(axes: Mapping[str, tuple], more: Mapping[str, str]) -> dict[str, str]:
    """Describes each input of `token_ids`; `more` has the texts for inputs that not every head has."""
    sizes = {name: f" ({', '.join(map(str, own))})" if own else "" for name, own in axes.items()}
    texts = {**_TOKEN_INPUTS, **more}
    return {name: f"int32{size}: {texts[name]}" for name, size in sizes.items()}


def describe_examples(axes: Mapping[str, tuple]) -> dict[str, str]:
    """Describes the one input of Classify and Regress; `axes` are those of the texts in the examples."""
    counts = {name: f"{own[0]} strings" if own else "a string" for name, own in axes.items()}
    names = " and ".join(f"`{name}` ({count})" for name, count in counts.items())
    return {"inputs": f"string: a serialized `tf.Example` with {names}"}
