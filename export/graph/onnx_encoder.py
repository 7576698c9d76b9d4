"""The encoder as an ONNX graph: what `BertBackbone` computes, from the same weights.

Shapes: B batch, S sequence, S' longest of the batch, T rows (real tokens), N heads, D size per head, H hidden.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from onnx import TensorProto

from export.graph.onnx_nodes import OnnxNodes

_MASKED_SCORE = -10000.0  # A copy of `keras_bert.encoder.packing.MASKED_SCORE`, whose module imports Keras.

Read = Callable[[str], np.ndarray]


def dense_products(num_layers: int) -> list[str]:
    """Returns the names of the layers' products that can be computed with integers, from the first layer on."""
    products = ("query_key_value", "attention_output", "intermediate", "output")
    return [f"layer_{number}/{product}" for number in range(num_layers) for product in products]


class EncoderGraph(OnnxNodes):
    """Writes an encoder in standard operators, in the order in which ONNX Runtime fuses them.

    Args:
        settings: `num_layers`, `num_heads`, `hidden_dim`, `activation`, `layer_norm_epsilon`, `first_token_only` (the
            last layer computes only the first token, which needs `unpadded`), and optionally `attention` and
            `pooler_activation`, by default "bidirectional" and "tanh".
        read: maps the name of a weight, as in `served_backbone.named_weights`, to a float32 array or variable.
        unpadded: bool, whether to compute only real tokens, with data-dependent shapes; False computes padding as well.
        int8: the `dense_products` to compute with integers, by an operator of ONNX Runtime's own.
    """

    def __init__(self, settings: Mapping, read: Read, unpadded: bool, int8: Collection[str] = ()):
        super().__init__()
        self._settings, self._read, self._unpadded, self._int8 = settings, read, unpadded, frozenset(int8)
        self._num_heads = settings["num_heads"]
        self._head_size = settings["hidden_dim"] // self._num_heads

    def encode(self, token_ids: str, segment_ids: str, is_real: str) -> dict[str, str]:
        """Adds the encoder.

        Args:
            token_ids, segment_ids: int32, shape (B, S).
            is_real: bool, shape (B, S).

        Returns:
            `sequence_output` (B, S, H), or (B, 1, H) with `first_token_only`; and `pooled_output` (B, H).
        """
        positions = self.range(self.size(token_ids, 1))
        if self._unpadded:
            is_real, positions = self._lay_out(is_real, positions)
            token_ids, segment_ids = (self.node("GatherND", ids, self._indices) for ids in (token_ids, segment_ids))
        else:
            self._bias = self._mask(is_real, positions)
        rows = self._embed(token_ids, segment_ids, positions)  # [T, H], or [B, S, H]
        *lower, last = range(self._settings["num_layers"])
        for number in lower:
            rows = self._layer(number, rows)
        rows = self._layer(last, rows, self._settings["first_token_only"])
        if self._settings["first_token_only"]:
            states, pooled = self.node("Unsqueeze", rows, self.integers(1)), rows
        else:
            states, pooled = self._restore(rows, is_real), self._first_rows(rows)
        if self._settings.get("attention") == "left_to_right":
            positions = self.node("Where", is_real, self.range(self.size(is_real, 1)), self.integer(0))
            pooled = self.node("GatherND", states, self.node("ReduceMax", positions, axes=[1]), batch_dims=1)
        pooled = self.activate(self._dense(pooled, "pooled_dense"), self._settings.get("pooler_activation", "tanh"))
        return {"sequence_output": states, "pooled_output": pooled}

    # === Rows ===

    def _lay_out(self, is_real: str, positions: str) -> tuple[str, str]:
        """Finds the rows of each sequence, and the pieces of D numbers that attention reads.

        Returns:
            `is_real`, always true at the first position ([CLS]), and the rows' positions, [T].
        """
        is_real = self.node("Or", is_real, self.node("Equal", positions, self.integer(0)))
        self._indices = self.node("Transpose", self.node("NonZero", is_real))  # [T, 2], sequence and position
        flat = self.node("Cast", self.node("Reshape", is_real, self.integers(-1)), to=TensorProto.INT64)
        row = self.node("Sub", self.node("CumSum", flat, self.integer(0)), self.integer(1))
        # Padding repeats another row, which is masked.
        self._row_of_position = self.node("Reshape", row, self.node("Shape", is_real))
        sequence, position = self.node("Split", self._indices, outputs=2, axis=1)  # [T, 1] each
        positions = self.node("Squeeze", position, self.integers(1))
        last = self.node("ReduceMax", self.node("Concat", self.integers(0), positions, axis=0))  # 0 for an empty batch
        longest = self.node("Add", last, self.integers(1))
        trim = self.integers(0), longest, self.integers(1)
        self._trimmed = self.node("Slice", self._row_of_position, *trim)  # [B, S']
        self._bias = self._mask(self.node("Slice", is_real, *trim), positions)
        heads = np.arange(self._num_heads)
        rows = self.node("Mul", self.node("Unsqueeze", self._trimmed, self.integers(1)), self.integer(3 * len(heads)))
        # Q, K and V, [B, N, S'] each, out of T * 3 * N; and the context's, [T, N], out of B * N * S'.
        pieces = np.arange(3 * len(heads)).reshape(3, -1, 1)
        self._pieces = [self.node("Add", rows, self.constant(offsets)) for offsets in pieces]
        head = self.node("Add", self.node("Mul", sequence, self.integer(len(heads))), self.constant(heads))
        self._back = self.node("Add", self.node("Mul", head, longest), position)
        return is_real, positions

    def _mask(self, is_real: str, positions: str) -> str:
        """Returns the bias of the attention scores, [B, 1, 1, S'] or [B, 1, S', S']."""
        is_key = self.node("Unsqueeze", is_real, self.integers(1, 2))
        if self._settings.get("attention") == "left_to_right":
            queries = self.node("Unsqueeze", positions, self.integers(1))
            is_key = self.node("And", is_key, self.node("LessOrEqual", positions, queries))
        return self.node("Where", is_key, self.number(0.0), self.number(_MASKED_SCORE))

    def _first_rows(self, rows: str) -> str:
        """Takes the first row of each sequence, [B, H]."""
        return self.node("Gather", rows, self.first(self._trimmed)) if self._unpadded else self.first(rows)

    def _restore(self, rows: str, is_real: str) -> str:
        """Turns rows into [B, S, H], with zeros at padding."""
        if not self._unpadded:
            return rows
        states = self.node("Gather", rows, self._row_of_position)
        return self.node("Where", self.node("Unsqueeze", is_real, self.integers(2)), states, self.number(0.0))

    # === Layers ===

    def _embed(self, token_ids: str, segment_ids: str, positions: str) -> str:
        ids = {"token_embedding": token_ids, "segment_embedding": segment_ids, "position_embedding": positions}
        token, segment, position = (self.node("Gather", self.constant(self._read(name)), ids[name]) for name in ids)
        return self._norm(self.node("Add", self.node("Add", token, segment), position), "embeddings")

    def _layer(self, number: int, rows: str, first_only: bool = False) -> str:
        """Computes an encoder layer for all rows, or only for the first row of each sequence, [B, H]."""
        name = f"layer_{number}"
        query, key, value = self._heads(self._dense(rows, f"{name}/query_key_value"), first_only)
        scores = self.node("Mul", self.node("MatMul", query, key), self.number(self._head_size**-0.5))
        probabilities = self.node("Softmax", self.node("Add", scores, self._bias), axis=-1)  # [B, N, S' or 1, S']
        context = self._merge(self.node("MatMul", probabilities, value), first_only)
        if first_only:
            rows = self._first_rows(rows)
        rows = self._add_and_norm(rows, context, f"{name}/attention_output", f"{name}/attention_norm")
        inner = self.activate(self._dense(rows, f"{name}/intermediate"), self._settings["activation"])
        return self._add_and_norm(rows, inner, f"{name}/output", f"{name}/output_norm")

    def _heads(self, product: str, first_only: bool) -> tuple[str, str, str]:
        """Returns queries [B, N, S' or 1, D], transposed keys [B, N, D, S'] and values [B, N, S', D]."""
        if self._unpadded:
            pieces = self.node("Reshape", product, self.integers(-1, self._head_size))  # [T * 3 * N, D]
            query, key, value = (self.node("Gather", pieces, indices) for indices in self._pieces)
            if first_only:
                query = self.node("Gather", query, self.integers(0), axis=2)
            return query, self.node("Transpose", key, perm=[0, 1, 3, 2]), value
        query, key, value = self.node("Split", product, outputs=3, axis=-1)
        shape = self.integers(0, 0, self._num_heads, self._head_size)
        return tuple(
            self.node("Transpose", self.node("Reshape", array, shape), perm=order)
            for array, order in ((query, [0, 2, 1, 3]), (key, [0, 2, 3, 1]), (value, [0, 2, 1, 3]))
        )

    def _merge(self, context: str, first_only: bool) -> str:
        """Returns the context, [B, N, S' or 1, D], as rows."""
        hidden_dim = self._num_heads * self._head_size
        if first_only:
            return self.node("Reshape", context, self.integers(0, hidden_dim))  # [B, H]
        if self._unpadded:
            pieces = self.node("Reshape", context, self.integers(-1, self._head_size))  # [B * N * S', D]
            return self.node("Reshape", self.node("Gather", pieces, self._back), self.integers(-1, hidden_dim))
        return self.node("Reshape", self.node("Transpose", context, perm=[0, 2, 1, 3]), self.integers(0, 0, hidden_dim))

    def _add_and_norm(self, rows: str, inner: str, dense: str, norm: str) -> str:
        """Computes LayerNorm(rows + dense(inner))."""
        return self._norm(self.node("Add", rows, self._dense(inner, dense)), norm)

    def _dense(self, rows: str, name: str) -> str:
        add = self.dense_int8 if name in self._int8 else self.dense
        return add(rows, self._read(f"{name}/kernel"), self._read(f"{name}/bias"))

    def _norm(self, rows: str, name: str) -> str:
        scale, offset = self._read(f"{name}/gamma"), self._read(f"{name}/beta")
        return self.layer_norm(rows, scale, offset, self._settings["layer_norm_epsilon"])
