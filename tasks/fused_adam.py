"""Adam's step by TensorFlow's own kernel, and one graph of it for all encoder layers that are alike.

TensorFlow is imported where it is first needed: the optimizers work on Keras's other backends without it.
"""

import functools
import re
from collections import defaultdict

_LAYER = re.compile(r"transformer_layer_\d+")
# A decay of fewer weights is not compiled: XLA takes 20 ms for each shape, and saves less than that in a hundred steps.
_FEWEST_COMPILED = 2**20


def fused_adam(
    handles: list, gradient, rate, epsilon, decay, beta_1: float, beta_2: float, compiles: bool = False
) -> None:
    """Updates a variable and its moments in place.

        w <- w - decay w;  m <- beta_1 m + (1 - beta_1) g;  v <- beta_2 v + (1 - beta_2) g^2
        w <- w - rate m / (sqrt(v) + epsilon)

    The kernel's bias correction vanishes where both powers are said to be 0: it is part of rate and epsilon.

    Args:
        handles: resources of w, m and v.
        gradient: dense, of w's shape.
        rate, epsilon, decay: scalars of w's dtype; decay None: none.
        compiles: whether XLA does the decay, on a CPU: one pass over memory instead of two, half the time.
    """
    import tensorflow as tf

    variable, first, second = handles
    if decay is not None:
        size = gradient.shape.num_elements()  # None: not known before it runs
        pays = size is None or size >= _FEWEST_COMPILED
        (_compiled_decay() if compiles and pays else _decay)(variable, decay)
    zero = tf.zeros((), gradient.dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable,
        m=first,
        v=second,
        beta1_power=zero,
        beta2_power=zero,
        lr=rate,
        beta1=tf.constant(beta_1, gradient.dtype),
        beta2=tf.constant(beta_2, gradient.dtype),
        epsilon=epsilon,
        grad=gradient,
    )


def _decay(variable, decay) -> None:
    """w <- w - decay w. Not w (1 - decay): near 1 float32 has steps of 6e-8, a tenth of a decay at rate 5e-5."""
    import tensorflow as tf

    value = tf.raw_ops.ReadVariableOp(resource=variable, dtype=decay.dtype)
    tf.raw_ops.AssignSubVariableOp(resource=variable, value=value * decay)


@functools.cache
def _compiled_decay():
    """Made once: XLA then compiles once for each shape."""
    import tensorflow as tf

    return tf.function(_decay, autograph=False, jit_compile=True)


def update_alike(optimizer, pairs: list[tuple], learning_rate) -> list[tuple]:
    """Updates the variables of encoder layers that differ in nothing but numbers, by one function for all of them.

    Base's twelve layers are traced and optimized as one: 0.5 s of the first step (2 cores).

    Args:
        optimizer: `tasks.optimization.BertAdam`, built.
        pairs: gradients, tensors, and variables.
        learning_rate: scalar.

    Returns:
        The pairs that are in no such layer, not updated yet.
    """
    import tensorflow as tf

    layers, left = defaultdict(list), []
    for gradient, variable in pairs:
        index = optimizer._get_variable_index(variable)
        found = _LAYER.search(optimizer.rules[index].path)
        if found:
            layers[found[0]].append(optimizer.fused_arguments(index, gradient, variable, learning_rate))
        else:
            left.append((gradient, variable))
    alike = defaultdict(list)
    for arguments in layers.values():
        kinds = [(tuple(gradient.shape), gradient.dtype, decay is None) for _, gradient, _, _, decay in arguments]
        alike[tuple(kinds)].append(arguments)

    def update(arguments):
        for argument in arguments:
            fused_adam(*argument, optimizer.beta_1, optimizer.beta_2, optimizer.compiles_decay)

    for group in alike.values():
        function = tf.function(update, autograph=False, experimental_attributes={"_noinline": True})
        for arguments in group:
            function(arguments)
    return left
