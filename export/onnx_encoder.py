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
        # Long enough for threads to find the next operator, and no longer: by default they go on spinning after a run,
        # on cores that other requests need (docs/benchmarks.md). Older runtimes ignore it.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "50")
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
        if not batch:  # ONNX Runtime's attention refuses it.
            length = 1 if self._first_token_only else sequence
            return np.zeros((0, self._hidden_dim), np.float32), np.zeros((0, length, self._hidden_dim), np.float32)
        is_real = padding_mask != 0
        is_real[:, :1] = True  # As in the graph, [CLS] has a row in any case.
        is_single = batch == 1 and is_real.all()
        places = _places_of_one(sequence) if is_single else _places(is_real)
        longest = places["row_of_position"].shape[1]
        if not is_single:
            token_ids, segment_ids = token_ids[is_real][np.newaxis], segment_ids[is_real][np.newaxis]
        mask = np.ascontiguousarray(padding_mask[:, :longest])
        inputs = {"token_ids": token_ids, "segment_ids": segment_ids, "mask": mask, **places}
        pooled, rows = self._session.run(None, inputs)
        if self._first_token_only:
            return pooled, rows[:, np.newaxis]
        if is_single:
            return pooled, rows[np.newaxis]
        states = np.zeros((batch, sequence, self._hidden_dim), np.float32)
        states[is_real] = rows
        return pooled, states


def _places(is_real: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the graph's inputs that say which rows belong together.

    Args:
        is_real: bool, shape (B, S).
    """
    place_of_row = np.argwhere(is_real)  # [T, 2]
    positions = place_of_row[:, 1].astype(np.int32)
    longest = int(positions.max()) + 1
    row_of_position = np.zeros((len(is_real), longest), np.int32)  # Padding repeats row 0, to be masked.
    row_of_position[is_real[:, :longest]] = np.arange(len(positions))
    return {"positions": positions[np.newaxis], "row_of_position": row_of_position, "place_of_row": place_of_row}


def _places_of_one(sequence: int) -> dict[str, np.ndarray]:
    """Returns the same for one sequence without padding, in fewer calls: 0.1 ms of a request that finds cold caches."""
    positions = np.arange(sequence, dtype=np.int32)[np.newaxis]
    place_of_row = np.zeros((sequence, 2), np.int64)
    place_of_row[:, 1] = positions
    return {"positions": positions, "row_of_position": positions, "place_of_row": place_of_row}


class _Graph(OnnxNodes):
    """Writes the encoder's graph; `rows` are float [T, H].

    Biases are added by the operators behind the products. Of the last layer only the first row of each sequence is
    computed if no other is read (`_last_layer`).
    """

    def __init__(self, description: Mapping, read: Read):
        super().__init__()
        self._read, self._description = read, description
        self._hidden_dim = description["hidden_dim"]
        # Where query, key and value of each position are, [B, S']. To gather each takes no copy that splits them.
        query = self.node("Mul", "row_of_position", self.constant(np.int32(3)))
        self._places = [query, *(self.node("Add", query, self.constant(np.int32(part))) for part in (1, 2))]

    def encoder(self) -> bytes:
        """Returns the serialized model, from indices and masks to `pooled_output` and rows."""
        first_rows = self.node("Gather", "row_of_position", self.constant(np.int64(0)), axis=1)  # [B]
        rows = self._embed()
        *others, last = range(self._description["num_layers"])
        for number in others:
            rows = self._layer(number, rows)
        if self._description["first_token_only"]:
            rows = first = self._last_layer(last, rows, first_rows)
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

    def _layer(self, number: int, rows: str) -> str:
        """Computes one encoder layer."""
        name = f"layer_{number}/query_key_value"
        product = self._product(rows, self._array(f"{name}/kernel"))
        pieces = self.node("Reshape", product, self.integers(-1, self._hidden_dim))  # [3T, H]
        parts = (self.node("Gather", pieces, places) for places in self._places)  # [B, S', H]
        inputs = (*parts, self._weight(f"{name}/bias"), "mask")
        settings = {"num_heads": self._description["num_heads"], "mask_filter_value": _MASKED_SCORE}
        context = self._own("MultiHeadAttention", *inputs, **settings)  # [B, S', H]
        return self._after_attention(number, self.node("GatherND", context, "place_of_row"), rows)

    def _last_layer(self, number: int, rows: str, first_rows: str) -> str:
        """Computes the layer of the rows at `first_rows`, [B]: float [T, H] to [B, H].

        With one query in a sequence, key and value of the others need not be computed. Of a head, with rows x:

            q (x Wk)^T = (q Wk^T) x^T        p (x Wv + bv) = (p x) Wv + bv

        where the probabilities p add up to 1. The keys' bias adds the same to all scores, which softmax ignores. So
        products of T rows become some of B, 3% of the arithmetic of six layers.
        """
        name, hidden, heads = f"layer_{number}/query_key_value", self._hidden_dim, self._description["num_heads"]
        kernels = np.split(self._array(f"{name}/kernel"), 3, axis=-1)
        query, key, value = (kernel.reshape(hidden, heads, -1).transpose(1, 0, 2) for kernel in kernels)  # [N, H, D]
        query_bias, _, value_bias = (bias.reshape(heads, 1, -1) for bias in np.split(self._array(f"{name}/bias"), 3))
        scale = np.float32(query.shape[-1] ** -0.5)
        sequences = self.node("Gather", rows, "row_of_position")  # [B, S', H]
        rows = self.node("Gather", rows, first_rows)  # [B, H]
        queries = self.node("Add", self._product(rows, query * scale), self.constant(query_bias * scale))  # [N, B, D]
        queries = self._turned(self._product(queries, key.transpose(0, 2, 1)))  # [B, N, H]
        scores = self._own("FusedMatMul", queries, sequences, transB=1)  # [B, N, S']
        masked = self.node("Equal", "mask", self.constant(np.int32(0)))
        bias = self.node("Where", masked, self.constant(np.float32(_MASKED_SCORE)), self.constant(np.float32(0)))
        bias = self.node("Unsqueeze", bias, self.integers(1))  # [B, 1, S']
        probabilities = self.node("Softmax", self.node("Add", scores, bias), axis=-1)
        context = self._product(self._turned(self.node("MatMul", probabilities, sequences)), value)  # [N, B, D]
        context = self._turned(self.node("Add", context, self.constant(value_bias)))
        return self._after_attention(number, self.node("Reshape", context, self.integers(-1, hidden)), rows)

    def _turned(self, array: str) -> str:
        """Exchanges the first two dimensions of three."""
        return self.node("Transpose", array, perm=[1, 0, 2])

    def _after_attention(self, number: int, context: str, rows: str) -> str:
        name = f"layer_{number}"
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
