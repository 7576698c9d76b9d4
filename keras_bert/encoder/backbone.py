"""`BertBackbone`: the encoder of BERT as a functional Keras model.

Shapes: B batch, S sequence, T rows (see packing.py), H hidden.
"""

import os

import keras
import keras_nlp
from absl import logging

from keras_bert.config import BertConfig
from keras_bert.encoder.embeddings import BertEmbeddings
from keras_bert.encoder.encoder_layer import BertEncoderLayer, get_activation
from keras_bert.encoder.heads import last_positions, output_head, rows_at
from keras_bert.encoder.layer import arguments_of, keep_arguments, weights_follow
from keras_bert.encoder.packing import TokenLayout, as_layout
from keras_bert.files import keep_copies


@keras.saving.register_keras_serializable(package="keras_bert")
class BertBackbone(keras_nlp.models.Backbone):
    """BERT's encoder (Devlin et al. 2018, section 3), with KerasHub's inputs and outputs.

    Inputs, a dict: `token_ids`, `segment_ids`, `padding_mask` (1 for real tokens), each int32 of shape (B, S). Outputs,
    a dict: `sequence_output`, float of shape (B, S, H), and `pooled_output`, float of shape (B, H), from [CLS], or from
    the last real token if `attention` is `"left_to_right"`.

    KerasHub treats it as one of its own backbones. Once `keras_bert.models` is imported,
    `keras_hub.models.Backbone.from_preset` reads the directories that `save_to_preset` writes, and
    `keras_hub.models.TextClassifier.from_preset` and `MaskedLM.from_preset` build this package's models from them.
    KerasHub's own `BertTextClassifier(backbone, ...)` works too, but not its presets: KerasHub looks tasks up by the
    exact class of their backbone. `enable_lora` adapts the fused query, key and value; saving merges its factors. After
    `quantize("int8")`, save a `.keras` file: KerasHub 0.32's preset reader drops the quantized types, even for its own
    models.

    Args:
        vocabulary_size, num_layers, num_heads, hidden_dim, intermediate_dim, activation, dropout,
        attention_dropout, max_sequence_length, num_segments, layer_norm_epsilon, initializer_range, attention,
        pooler_activation: as in `BertConfig`.
        layout: str, the layout of tokens inside. `"rectangular"` has static shapes. `"unpadded"` computes only real
            tokens and returns zeros at padding: same answers, less work, data-dependent shapes. `"packed"` takes
            several examples in a sequence: `padding_mask` holds 1 at the tokens of the first example, 2 at those of the
            second, and so on, and 0 at padding. Each is encoded as if it were alone. `pooled_output` is then the first
            example's; `sequence_output` has the others' [CLS]. With one example it equals `"rectangular"`.
        dtype: a Keras dtype policy or its name, e.g. `"mixed_bfloat16"`.
        name, trainable: as in `keras.Model`.

    Raises:
        InputError: a size is out of its range.

    >>> backbone = BertBackbone(1000, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=64)
    >>> ids = keras.ops.ones((1, 4), dtype="int32")
    >>> outputs = backbone({"token_ids": ids, "segment_ids": ids * 0, "padding_mask": ids})
    >>> tuple(outputs["sequence_output"].shape)
    (1, 4, 16)
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        activation: str = "gelu_tanh",
        dropout: float = 0.1,
        attention_dropout: float | None = None,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        attention: str = "bidirectional",
        pooler_activation: str = "tanh",
        layout: str = "rectangular",
        dtype=None,
        name: str | None = None,
        trainable: bool = True,
    ):
        arguments = locals()

        def arguments_for(cls: type) -> dict:
            return {name: arguments[name] for name in arguments_of(cls)}

        config = BertConfig(**arguments_for(BertConfig))
        _say_if_onednn_is_off()

        # === Layers ===
        token_layout = TokenLayout(layout, attention, dtype=dtype, name="token_layout")
        embeddings = BertEmbeddings(**arguments_for(BertEmbeddings), dtype=dtype, name="embeddings")
        encoder_layers = [
            BertEncoderLayer(**arguments_for(BertEncoderLayer), dtype=dtype, name=f"transformer_layer_{index}")
            for index in range(num_layers)
        ]
        # The representation of the whole input is tanh(W x + b) on [CLS] (paper, section 3.1).
        pool = get_activation(pooler_activation)
        pooled_dense = output_head(hidden_dim, initializer_range, name="pooled_dense", activation=pool, dtype=dtype)

        # === Functional model ===
        inputs = {
            name: keras.Input(shape=(None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask")
        }
        tokens = token_layout(inputs["padding_mask"])
        rows = embeddings(inputs["token_ids"], segment_ids=inputs["segment_ids"], layout=tokens)  # [T, H]
        for encoder_layer in encoder_layers:
            rows = encoder_layer(rows, layout=tokens)
        sequence_output = RestoreRectangle(dtype=dtype, name="sequence_output")(rows, layout=tokens)
        if attention == "left_to_right":  # Then only the last token has seen the whole text.
            pooled = LastToken(dtype=dtype, name="last_token")(sequence_output, padding_mask=inputs["padding_mask"])
        else:
            pooled = FirstRows(dtype=dtype, name="first_rows")(rows, layout=tokens)
        outputs = {"sequence_output": sequence_output, "pooled_output": pooled_dense(pooled)}
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, name=name)
        self.trainable = trainable  # As an argument above, it would not reach the layers.

        # === Config ===
        # KerasHub's heads and tasks read the backbone's sizes: hidden_dim, vocabulary_size, ...
        keep_arguments(self, config.to_dict())
        self.bert_config = config
        self.layout = layout
        self.token_embedding = embeddings.token_embedding  # Masked-LM heads, KerasHub's too, tie their output to it.

    def get_config(self):
        return {**super().get_config(), **self.bert_config.to_dict(), "layout": self.layout}

    def default_lora_layer_names(self) -> list[str]:
        """Returns the names of the layers that `enable_lora` adapts by default."""
        return ["query_key_value"]

    @classmethod
    @keep_copies()  # Settings and sizes are read from the same copy.
    def from_preset(
        cls, preset: str | os.PathLike, load_weights: bool = True, dtype=None, **overrides
    ) -> "BertBackbone":
        """Builds the backbone of a preset.

        Args:
            preset: short name (`"base"`), Google's name of a checkpoint, `hf://owner/name`, or a directory, zip or
                `.keras` file of any format that this project reads (`keras_bert/formats`), as str or path.
            load_weights: bool; if False, the weights are random, and a short name needs no file.
            dtype: a Keras dtype policy or its name; None: the process's, if one was set, else the preset's.
            **overrides: constructor settings that differ from the preset's, e.g. `dropout=0.0`. If the preset has one
                rate for hidden states and attention, `dropout` sets both. Without overrides, a preset of our own keeps
                the `layout` and `trainable` that it was saved with.

        Raises:
            InputError: the preset is not found, its files are incomplete or do not match, or an override is unknown or
                does not fit the weights.
        """
        from keras_bert.presets import catalog, weights

        preset = catalog.name_of(preset)
        if not load_weights:
            saved = weights.as_saved(weights.read_settings(preset), dtype=dtype, **overrides)
            return cls(**weights.merge_settings(weights.read_bert_config(preset), saved, preset))
        with weights.open_checkpoint(preset) as checkpoint:
            saved = weights.as_saved(checkpoint.settings, dtype=dtype, **overrides)
            # The pooler may be missing from the checkpoint, so it is always initialized.
            with weights_follow():
                backbone = cls(**weights.merge_settings(checkpoint.config, saved, preset))
            weights.load_weights_of(backbone, checkpoint)
        return backbone


@keras.saving.register_keras_serializable(package="keras_bert")
class RestoreRectangle(keras.layers.Layer):
    """Turns rows `[T, H]` back into `[B, S, H]`; the unpadded layout puts zeros at padding."""

    def call(self, rows, layout):
        return as_layout(layout).restore(rows)

    def compute_output_spec(self, rows, layout):
        return keras.KerasTensor((None, None, rows.shape[-1]), dtype=rows.dtype)


@keras.saving.register_keras_serializable(package="keras_bert")
class FirstRows(keras.layers.Layer):
    """Picks each sequence's first row, [CLS]: `[T, H]` to `[B, H]`."""

    def call(self, rows, layout):
        return as_layout(layout).first_rows(rows)

    def compute_output_spec(self, rows, layout):
        return keras.KerasTensor((None, rows.shape[-1]), dtype=rows.dtype)


@keras.saving.register_keras_serializable(package="keras_bert")
class LastToken(keras.layers.Layer):
    """Picks each sequence's last real token, or its first example's if packed: `[B, S, H]` to `[B, H]`."""

    def call(self, sequence_output, padding_mask):
        return rows_at(sequence_output, last_positions(padding_mask, 1))


def _say_if_onednn_is_off() -> None:
    """Warns once if TensorFlow runs on a CPU without oneDNN, which speeds up BERT's matrix products."""
    if keras.backend.backend() != "tensorflow" or os.environ.get("TF_ENABLE_ONEDNN_OPTS"):
        return
    import tensorflow as tf
    from tensorflow.python.util import _pywrap_util_port  # No public API says whether TensorFlow enabled oneDNN.

    if not _pywrap_util_port.IsMklEnabled() and not tf.config.list_physical_devices("GPU"):
        effect = "TF_ENABLE_ONEDNN_OPTS is not set: on many CPUs BERT is then much slower. "
        cure = "Set TF_ENABLE_ONEDNN_OPTS=1 before TensorFlow is imported."
        logging.log_first_n(logging.WARNING, effect + cure, 1)
