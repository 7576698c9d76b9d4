"""Exports the graph in bfloat16, at half the size, and measures the cost.

The encoder's products are computed in bfloat16, which is faster on processors with AVX512_BF16 or AMX
(`export/graph/served_backbone.py`). Attention, LayerNorm, softmax and heads stay float32.
"""

import numpy as np

from export import saved_model, signatures
from export.graph.model_copies import rebuild_for_serving
from export.heads.base import Head
from export.targets import real_text
from export.verification import verify
from keras_bert.answers.text_bounds import find_backbone
from keras_bert.errors import InputError

# Allowed difference of a bfloat16 answer, times the largest number of its array. Each rounding to bfloat16 is off by
# 2^-9 of a number at most. A layer has about eight, of activations and products; those of 12 layers add up, as a random
# walk, to 0.02 of a number, a third of what is allowed. A graph that computes something else is off by 1.
TOLERANCE = 2.0**-4
_COMPARED_BATCHES = (*real_text.BATCH_SIZES, *(32,) * 5)


def check_attention(head: Head) -> None:
    """Raises InputError if the model reads from left to right, which is computed only by Keras in float32."""
    attention = find_backbone(head.model).bert_config.attention
    if attention != "bidirectional":
        raise InputError(
            f"--bfloat16: expected a model that reads in both directions. Received: attention={attention!r}. Leave out "
            "the flag."
        )


def write_bfloat16(head: Head, directory: str, with_cc: str = "off") -> verify.Report:
    """Writes the version in bfloat16 and verifies its numbers against the Keras model in float32.

    Names in an answer (labels, tokens, tags) may depend on the rounding, so `measure` counts their changes. The numbers
    of `token_ids` do not, and the graph from them to the other answers is that of the float32 version.

    Args:
        head: the head as exported in float32.
        directory: must not exist.
        with_cc: one of `verify.WITH_CC`, whether to run the C++ program as well.

    Raises:
        InputError: as `check_attention`.
        VerificationError: a number is off by more than `TOLERANCE` allows.
    """
    check_attention(head)
    probes = []
    for probe in head.probes(saved_model.rebuild(head.model)):
        # The number of one row may be near zero by chance, and says nothing about the scale.
        if probe.signature == signatures.TOKEN_IDS and len(probe.inputs["token_ids"]) != 1:
            undecided = np.ones(len(probe.inputs["token_ids"]), bool)
            probes.append(probe._replace(undecided=undecided, scale=0.0, tolerance=TOLERANCE))
    served = rebuild_for_serving(head.model, bfloat16=True)
    return saved_model.write_verified(head, served, probes, directory, with_cc)


def measure(head: Head, float_directory: str, directory: str) -> list[str]:
    """Compares a version with the one in float32 on the same requests; returns lines for the user."""
    runners = [real_text.saved_model_runner(path) for path in (float_directory, directory)]
    asked = real_text.requests(head, _COMPARED_BATCHES)
    cost = real_text.cost_of(*(run(asked) for run in runners))
    times = real_text.relative_times(head, *runners)
    verdict = "faster on this CPU" if max(times.values()) < 1.0 else "not faster on this CPU; it only saves space"
    return [
        f"accuracy: {cost.described()}",
        f"speed: time relative to float32 {real_text.shown_times(times)}: {verdict}",
    ]
