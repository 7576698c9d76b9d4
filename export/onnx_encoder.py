"""The encoder of a version in ONNX Runtime: what `export/served_backbone.py` computes, from the same weights.

Shapes: B batch, S sequence, S' longest of the batch, T rows (real tokens), N heads, H hidden.
"""

from collections.abc import Callable, Mapping

import numpy as np
import onnxruntime
from onnx import TensorProto

from export.onnx_nodes import MICROSOFT, OnnxNodes

_MASKED_SCORE = -10000.0  # `keras_bert.packing.MASKED_SCORE`, which brings Keras along.
_ACTIVATIONS = {"gelu": "BiasGelu", "gelu_tanh": "FastGelu"}  # ONNX Runtime's own, which add a bias.
_STANDARD_ACTIVATIONS = {"linear": "Identity", "relu": "Relu", "tanh": "Tanh"}

Read = Callable[[str], np.ndarray]


class OnnxEncoder:
    """An encoder without padding, whose kernels ONNX Runtime packs once, as it is made.

    Args:
        description: of `ServedBackbone.describe`.
        read: name of a weight in the description -> float32 array.
        num_threads: threads of one operation; 0: one a core.
    """

    def __init__(self, description: Mapping, read: Read, num_threads: int = 0):
        self._hidden_dim = description["hidden_dim"]
        self._first_token_only = description["first_token_only"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        graph = _Graph(description, read).encoder()
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(
        self, token_ids: np.ndarray, segment_ids: np.ndarray, padding_mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns `pooled_output` (B, H), and `sequence_output` (B, S, H), or (B, 1, H) if no more of it is read.

        Args:
            token_ids, segment_ids, padding_mask: int32, shape (B, S).
        """
        batch, sequence = padding_mask.shape
        is_real = padding_mask != 0
        is_real[:, :1] = True  # As in the graph, [CLS] has a row in any case.
        examples, positions = np.nonzero(is_real)  # [T]
        if not batch:  # ONNX Runtime's attention refuses it.
            length = 1 if self._first_token_only else sequence
            return np.zeros((0, self._hidden_dim), np.float32), np.zeros((0, length, self._hidden_dim), np.float32)
        longest = int(positions.max()) + 1
        row_of_position = np.zeros((batch, longest), np.int32)  # Padding repeats row 0, to be masked.
        row_of_position[examples, positions] = np.arange(len(positions))
        inputs = {
            "token_ids": token_ids[is_real][np.newaxis],
            "segment_ids": segment_ids[is_real][np.newaxis],
            "positions": positions.astype(np.int32)[np.newaxis],
            "row_of_position": row_of_position,
            "place_of_row": np.stack([examples, positions], axis=1),
            "mask": np.ascontiguousarray(padding_mask[:, :longest]),
        }
        pooled, rows = self._session.run(None, inputs)
        if self._first_token_only:
            return pooled, rows[:, np.newaxis]
        states = np.zeros((batch, sequence, self._hidden_dim), np.float32)
        states[is_real] = rows
        return pooled, states


class _Graph(OnnxNodes):
    """Writes the encoder's graph; `rows` are float [T, H].

    Biases are added by the operators behind the products. Of the last layer only the first row of each sequence is
    computed if no other is read.
    """

    def __init__(self, description: Mapping, read: Read):
        super().__init__()
        self._read, self._description = read, description
        self._hidden_dim = description["hidden_dim"]

    def encoder(self) -> bytes:
        """Returns the serialized model, from indices and masks to `pooled_output` and rows."""
        first_rows = self.node("Gather", "row_of_position", self.constant(np.int64(0)), axis=1)  # [B]
        rows = self._embed()
        *others, last = range(self._description["num_layers"])
        for number in others:
            rows = self._layer(number, rows)
        if self._description["first_token_only"]:
            rows = first = self._layer(last, rows, first_rows)
        else:
            rows = self._layer(last, rows)
            first = self.node("Gather", rows, first_rows)
        product = self.node("Gemm", first, self._weight("pooled_dense/kernel"), self._weight("pooled_dense/bias"))
        self.output("pooled_output", self.node("Tanh", product))
        self.output("rows", rows)
        infos = {name: (TensorProto.INT32, [1, "rows"]) for name in ("token_ids", "segment_ids", "positions")}
        infos |= {name: (TensorProto.INT32, ["batch", "longest"]) for name in ("row_of_position", "mask")}
        infos["place_of_row"] = (TensorProto.INT64, ["rows", 2])
        outputs = {name: (TensorProto.FLOAT, [None, self._hidden_dim]) for name in ("pooled_output", "rows")}
        return self.model("encoder", infos, outputs)

    def _embed(self) -> str:
        tables = [self._weight(f"{name}_embedding") for name in ("token", "position", "segment")]
        norm = (self._weight("embeddings/gamma"), self._weight("embeddings/beta"))
        inputs = ("token_ids", "segment_ids", *tables, *norm, "", "positions")
        epsilon = self._description["layer_norm_epsilon"]
        rows, _ = self._own("EmbedLayerNormalization", *inputs, outputs=2, epsilon=epsilon)  # [1, T, H]
        return self.node("Squeeze", rows, self.integers(0))

    def _layer(self, number: int, rows: str, first_rows: str | None = None) -> str:
        """Computes one encoder layer of all rows; or of those at `first_rows`, [B]: float [T or B, H]."""
        name, hidden = f"layer_{number}", self._hidden_dim
        kernel = self._array(f"{name}/query_key_value/kernel")
        if first_rows is None:
            fused = self.node("Gather", self._product(rows, kernel), "row_of_position")  # [B, S', 3H]
            query, key, value = self.node("Split", fused, outputs=3, axis=-1)
        else:
            fused = self.node("Gather", self._product(rows, kernel[:, hidden:]), "row_of_position")  # [B, S', 2H]
            key, value = self.node("Split", fused, outputs=2, axis=-1)
            rows = self.node("Gather", rows, first_rows)  # [B, H]
            query = self.node("Unsqueeze", self._product(rows, kernel[:, :hidden]), self.integers(1))  # [B, 1, H]
        inputs = (query, key, value, self._weight(f"{name}/query_key_value/bias"), "mask")
        settings = {"num_heads": self._description["num_heads"], "mask_filter_value": _MASKED_SCORE}
        context = self._own("MultiHeadAttention", *inputs, **settings)  # [B, S' or 1, H]
        if first_rows is None:
            context = self.node("GatherND", context, "place_of_row")
        else:
            context = self.node("Squeeze", context, self.integers(1))
        rows = self._add_and_norm(context, rows, f"{name}/attention_output", f"{name}/attention_norm")
        inner = self._product(rows, self._array(f"{name}/intermediate/kernel"))
        inner = self._activate(inner, self._weight(f"{name}/intermediate/bias"))
        return self._add_and_norm(inner, rows, f"{name}/output", f"{name}/output_norm")

    def _add_and_norm(self, inputs: str, rows: str, dense: str, norm: str) -> str:
        """Computes LayerNorm(rows + dense(inputs))."""
        product = self._product(inputs, self._array(f"{dense}/kernel"))
        weights = [self._weight(name) for name in (f"{norm}/gamma", f"{norm}/beta", f"{dense}/bias")]
        epsilon = self._description["layer_norm_epsilon"]
        return self._own("SkipLayerNormalization", product, rows, *weights, epsilon=epsilon)

    def _activate(self, inner: str, bias: str) -> str:
        name = self._description["activation"]
        if name in _ACTIVATIONS:
            return self._own(_ACTIVATIONS[name], inner, bias)
        return self.node(_STANDARD_ACTIVATIONS[name], self.node("Add", inner, bias))

    def _product(self, rows: str, kernel: np.ndarray) -> str:
        return self.node("MatMul", rows, self.constant(kernel))

    def _own(self, kind: str, *inputs: str, **attributes) -> str | list[str]:
        """Adds one of ONNX Runtime's own operators."""
        return self.node(kind, *inputs, domain=MICROSOFT, **attributes)

    def _array(self, name: str) -> np.ndarray:
        return self._read(self._description["weights"][name])

    def _weight(self, name: str) -> str:
        return self.constant(self._array(name))
