"""Decides which products of an encoder may be computed in 8 bits, by what that changes on real text.

ONNX Runtime computes them in `bert-serve --precision=int8`, with a scale for each column of a kernel, and one for all
rows of a request. Embeddings, attention, LayerNorm and heads stay float32. What is measured is what is served: the same
session computes the encoder, and the head is the model's own. Integers in TensorFlow's graph would not pay: its integer
products took 2.7 times as long as float32 (MiniLM on a processor with AVX512-VNNI).
"""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from export.graph.model_copies import rebuild_for_serving
from export.graph.onnx_encoder import dense_products
from export.graph.onnx_session import OnnxEncoder
from export.graph.served_backbone import named_weights
from export.heads.base import Head
from export.targets import real_text
from export.targets.real_text import Cost, cost_of
from export.verification.probes import as_bytes
from keras_bert.answers.text_bounds import find_backbone
from keras_bert.errors import InputError
from tasks.held_out import HeldOut

LABELS_PER_POINT = 2.0  # Percent of the names that may change for each point of the metric that may be lost.
_BATCH_SIZE, _MOST_BATCHES = 32, 16
_SAMPLE = 2  # Batches on which single products are compared.
_STEPS = 8  # An eighth of the products is left out at a time, up to half of them in all.


def excess(cost: Cost, tolerance: float) -> float:
    """Returns the cost relative to what is allowed; above 1 it is too much.

    If the answers contain no names and there is no metric, the noise, in percent of the numbers' variance, counts like
    the percentage of changed names.
    """
    share = 100 * cost.num_changed / cost.num_named if cost.num_named else 0.0
    lost = cost.points[0] - cost.points[1]
    noise = 0.0 if cost.num_named or cost.metric else cost.noise
    return max(lost, max(share, noise) / LABELS_PER_POINT) / max(tolerance, 1e-9)


class Decision(NamedTuple):
    """The products to compute in 8 bits, and what that costs.

    Attributes:
        products: some of `dense_products`.
        num_products: number of all products.
        cost: the cost of `products` in 8 bits.
        source: the texts on which it was measured.
        times: rows of a request -> its time relative to float32 in ONNX Runtime.
    """

    products: list[str]
    num_products: int
    cost: Cost
    source: str
    times: dict[int, float]

    def lines(self) -> list[str]:
        """Returns the decision for the user."""
        return [
            f"{len(self.products)} of {self.num_products} products in 8 bits, for bert-serve --precision=int8",
            f"measured on {self.source}: {self.cost.described()}",
            f"time relative to float32 on this CPU: {real_text.shown_times(self.times)}",
        ]

    def content(self) -> dict:
        """Returns the decision as JSON."""
        return {**self._asdict(), "cost": self.cost._asdict()}


class Trial:
    """A served model whose encoder can be exchanged.

    Args:
        head: the head of the model.

    Attributes:
        encode: computes the encoder: `token_ids`, `segment_ids`, `padding_mask` to `pooled_output`, `sequence_output`.
        products: the products that can be computed in 8 bits.
        description: the encoder's `ServedBackbone.describe`.
        weights: name of a weight in the description -> array.

    Raises:
        InputError: ONNX Runtime cannot compute the encoder, since it reads from left to right.
    """

    def __init__(self, head: Head):
        self.model = rebuild_for_serving(head.model)
        backbone = find_backbone(self.model)
        if not backbone.is_described:
            raise InputError("--int8: expected a model that reads in both directions. Leave out the flag.")
        weights = named_weights(backbone)
        self.description = backbone.describe({id(weight.value): name for name, weight in weights.items()})
        self.weights = {name: weight.numpy() for name, weight in weights.items()}
        self.products = dense_products(backbone.num_layers)
        backbone.encode_by(self._encode_in_graph)
        self._answer = head.function_of_token_ids(self.model)
        self.encode = self.encoder()

    def _encode_in_graph(self, *ids: tf.Tensor) -> dict[str, tf.Tensor]:
        pooled, states = tf.numpy_function(lambda *arrays: self.encode(*arrays), ids, [tf.float32] * 2, stateful=False)
        width = self.description["hidden_dim"]
        pooled, states = tf.ensure_shape(pooled, [None, width]), tf.ensure_shape(states, [None, None, width])
        return {"sequence_output": states, "pooled_output": pooled}

    def encoder(self, int8: Collection[str] = ()) -> OnnxEncoder:
        """Makes an encoder with these products in integers."""
        return OnnxEncoder(self.description, self.weights.__getitem__, int8=int8)

    def answers(self, encode: OnnxEncoder, requests: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """Answers requests to `token_ids` with an encoder, which the model then keeps."""
        self.encode = encode
        return real_text.ask(self._answer, requests)


def decide(head: Head, held_out: HeldOut | None, tolerance: float) -> Decision:
    """Chooses the products to compute in 8 bits: all, or all but those that change the answers most.

    Args:
        head: the head of the model.
        held_out: labelled rows; None: paragraphs of docstrings are used.
        tolerance: points of the metric that may be lost; `LABELS_PER_POINT` times as many percent of the names may
            change.

    Raises:
        InputError: integers cost more than `tolerance`, even with half of the products in float32; or as `Trial`.
    """
    trial = Trial(head)
    requests, source = ask(head, held_out)
    right, points = trial.answers(trial.encode, requests), held_out and held_out.points(trial.model)

    def measure(products: Collection[str]) -> Cost:
        cost = cost_of(right, trial.answers(trial.encoder(products), requests))
        if held_out is None:
            return cost
        return cost._replace(metric=held_out.metric, points=(points, held_out.points(trial.model)))

    order = list(trial.products)
    cost, step = measure(order), math.ceil(len(order) / _STEPS)
    while excess(cost, tolerance) > 1.0 and 2 * (len(order) - step) >= len(trial.products):
        if len(order) == len(trial.products):
            noises = {}
            for product in trial.products:
                answers = trial.answers(trial.encoder([product]), requests[:_SAMPLE])
                noises[product] = cost_of(right[:_SAMPLE], answers).noise
            order.sort(key=noises.get)
        order = order[:-step]
        cost = measure(order)
    if excess(cost, tolerance) > 1.0:
        raise InputError(
            f"--int8: 8 bits cost more than --int8_tolerance={tolerance:g} allows, even in {len(order)} of "
            f"{len(trial.products)} products. Measured on {source}: {cost.described()}. Nothing was exported: "
            "leave out --int8, or allow more."
        )
    runners = (functools.partial(trial.answers, trial.encoder(products)) for products in ((), order))
    times = real_text.relative_times(head, *runners)
    return Decision(sorted(order, key=trial.products.index), len(trial.products), cost, source, times)


def ask(head: Head, held_out: HeldOut | None) -> tuple[list[dict[str, np.ndarray]], str]:
    """Returns requests to `token_ids` and their source: held-out rows if their texts fit the model, else docstrings."""
    texts = held_out.texts if held_out else []
    is_flat = all(axes == () for axes in head.text_inputs.values())
    if not texts or not is_flat or len(texts[0]) != len(head.text_inputs):
        source = "paragraphs of docstrings"
        requests = real_text.requests(head, [_BATCH_SIZE] * (_MOST_BATCHES // 2))
        return requests, f"{held_out.source} and {source}" if held_out else source
    asked = []
    for start in range(0, min(len(texts), _BATCH_SIZE * _MOST_BATCHES), _BATCH_SIZE):
        columns = map(as_bytes, zip(*texts[start : start + _BATCH_SIZE], strict=True))
        asked.append(head.token_request(head.encode(dict(zip(head.text_inputs, columns, strict=True)))))
    return asked, held_out.source
