"""Embeddings of texts: the pooled vectors of a chosen encoder layer, or those of an embedder trained by `bert-embed`.

Shapes: B batch, S sequence, H hidden, D embedding.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About
from export.heads.sequence import SequenceHead
from keras_bert.answers.base import TokenOutput
from keras_bert.answers.sequence import EmbeddingAnswers
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.layer import weights_follow
from keras_bert.errors import InputError
from keras_bert.models import BertTextEmbedder
from keras_bert.presets import weights
from keras_bert.tokenization.preprocessor import BertPreprocessor
from tasks.fine_tuning.model_files import read_task


class CountedHead(SequenceHead):
    """A head with the signature `count_tokens`: OpenAI's API reports the tokens that were read beside the vectors."""

    def functions(self, model):
        counted = signatures.trace(self.count_tokens, self.text_inputs, tf.string)
        return {**super().functions(model), signatures.COUNT_TOKENS: counted}

    def count_tokens(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the graph from texts, string (B,), to `num_tokens`, int32 (B,), summed over the windows of a text."""
        is_whole = self.long_texts is None
        encoded, rows = (self.encode_in_graph({"text": text}), None) if is_whole else self.read_windows(text)
        counts = tf.math.count_nonzero(encoded["padding_mask"], -1, dtype=tf.int32)
        return {"num_tokens": counts if is_whole else tf.math.unsorted_segment_sum(counts, rows, tf.size(text))}

    def requests(self, texts, encoded):
        return {**super().requests(texts, encoded), signatures.COUNT_TOKENS: dict(texts)}

    def expected(self, model, texts, encoded):
        counts, num_texts = np.count_nonzero(encoded["padding_mask"], axis=-1).astype(np.int32), len(texts["text"])
        if "rows" in encoded:
            counts = np.bincount(encoded["rows"], counts, num_texts).astype(np.int32)
        return {**super().expected(model, texts, encoded), signatures.COUNT_TOKENS: ({"num_tokens": counts}, None)}

    def described(self, about):
        outputs = {"num_tokens": "int32: how many tokens are read, [CLS] and [SEP] included"}
        return {**super().described(about), signatures.COUNT_TOKENS: (about.inputs, outputs, {})}


class Embeddings(CountedHead):
    """An encoder that ends at the chosen layer, of any preset or trained model.

    The lower layers of a BERT are a BERT of fewer layers, since each layer ends with its LayerNorm: to choose a layer,
    a backbone is built with that layer on top. Nothing above it is stored or computed.

    Args:
        model: BertBackbone.
        preprocessor: gives the tokenizer and the longest sequence.
        has_pooler: bool, whether the pooler was trained on top of this layer.
    """

    task = "embeddings"
    settings = ("layer",)

    def __init__(self, model: BertBackbone, preprocessor: BertPreprocessor, has_pooler: bool = True):
        super().__init__(model, preprocessor)
        pools = ("mean", "cls")
        self.token_outputs = {pool: TokenOutput(("hidden",), "sequence_output", pool=pool) for pool in pools}
        if has_pooler:
            self.token_outputs["pooled"] = TokenOutput(("hidden",), "pooled_output")

    @classmethod
    def load_preset(cls, directory: str, source: str, sequence_length: int | None = None, layer: int = -1):
        """Builds the head of a preset, or of the encoder in a trained model.

        Args:
            directory: has the tokenizer; a preset as in `BertBackbone.from_preset`, or a trained model.
            source: has the weights: the preset, or the trained model's file.
            sequence_length: int; None: as many tokens as the encoder has positions for.
            layer: 1 (the lowest) to the number of layers, or -1 (the last) downwards, counted as `bert-features` does.
        """
        with weights.open_checkpoint(source) as checkpoint:
            config = checkpoint.config
            if layer == 0 or abs(layer) > config.num_layers:
                expected = f"1 to {config.num_layers}, or -1 (the last) to -{config.num_layers}"
                raise InputError(f"--layer={layer}: expected {expected}.")
            number = layer + config.num_layers + 1 if layer < 0 else layer
            with weights_follow():
                backbone = BertBackbone(**config.replace(num_layers=number).to_dict())
            left = weights.load_weights_of(backbone, checkpoint)
        preprocessor = BertPreprocessor.from_preset(directory, sequence_length)
        if sequence_length is None:
            preprocessor = BertPreprocessor(preprocessor.tokenizer, config.max_sequence_length)
        return cls(backbone, preprocessor, has_pooler=number == config.num_layers and not left)

    def about(self):
        width, number = self.model.hidden_dim, self.model.num_layers
        outputs = {
            "mean": f"float ({width}): mean of the vectors of all its tokens, [CLS] and [SEP] included",
            "cls": f"float ({width}): vector of [CLS]",
            "pooled": f"float ({width}): the pooler's output, {self.model.pooler_activation}(W [CLS] + b)",
        }
        return About(
            "Embeddings",
            f"Turns each text into vectors of {width} numbers, by encoder layer {number}. "
            "Not normalized: divide by the Euclidean norm for cosine similarity.",
            self.instances("A man is playing a guitar.", "Someone plays an instrument."),
            self.inputs,
            {name: outputs[name] for name in self.token_outputs},
            more={"layer": number},
        )


class SentenceEmbedding(EmbeddingAnswers, CountedHead):
    """An embedder, as `bert-embed` trains them; its model returns an embedding for each text, [B, D].

    `serving_default` uses the model's default prompt. For each prompt there is a signature with its name.
    """

    task = "sentence_embedding"
    settings, later_settings = ("max_tokens",), ("long_text",)

    def __init__(self, model, preprocessor: BertPreprocessor, prompt: str | None = None, **settings):
        super().__init__(model, preprocessor, prompt, **settings)
        self._settings = settings

    def with_prompt(self, prompt: str) -> "SentenceEmbedding":
        """Returns a head that puts another of the model's prompts before each text."""
        return SentenceEmbedding(self.model, self.preprocessor, prompt, **self._settings)

    def heads_of_prompts(self) -> dict[str, "SentenceEmbedding"]:
        """Returns the heads of the further signatures, by the names of their prompts.

        Raises:
            InputError: a prompt has the name of another signature.
        """
        prompts = self.model.prompts or {}
        taken = {signatures.SERVING_DEFAULT, signatures.TOKEN_IDS, signatures.COUNT_TOKENS} & prompts.keys()
        if taken:
            raise InputError(f"A prompt is named {taken.pop()!r}, as a signature is. Expected another name.")
        return {name: self.with_prompt(name) for name, text in prompts.items() if text}

    @classmethod
    def load_preset(cls, directory: str, source: str, sequence_length: int | None = None, **settings):
        """Builds the head of an embedder, such as a directory of sentence-transformers.

        Args:
            directory, source, sequence_length: as in `Embeddings.load_preset`.
            **settings: arguments of the head's class.
        """
        model = BertTextEmbedder.from_preset(source, preprocessor=None, compile=False)
        if source == directory:
            preprocessor = BertTextEmbedder.preprocessor_of(directory, sequence_length)
        else:
            trained = read_task(directory)
            settings = {**{name: trained[name] for name in cls.later_settings if name in trained}, **settings}
            preprocessor = BertPreprocessor.from_preset(directory, sequence_length or trained["sequence_length"])
        return cls(model, preprocessor, **settings)

    def functions(self, model):
        traced = super().functions(model)
        for name, head in self.heads_of_prompts().items():
            traced[name] = signatures.trace(head.answering(model), self.text_inputs, tf.string)
        return traced

    def encoding(self):
        encoding = super().encoding()
        return encoding and {**encoding, "prompt": self.prompt, "num_left_out": self.num_left_out}

    def answering(self, model) -> Callable[..., dict[str, tf.Tensor]]:
        """Returns the function from `text`, string [B], to its `embedding`."""
        return lambda text: EmbeddingAnswers.answer_texts(self, model, {"text": text})

    def requests(self, texts, encoded):
        return {**super().requests(texts, encoded), **{name: dict(texts) for name in self.heads_of_prompts()}}

    def expected(self, model, texts, encoded):
        right = super().expected(model, texts, encoded)
        if np.max(encoded["padding_mask"], initial=0) > 1:  # Token ids do not show which tokens are the prompt's.
            unmarked = {**encoded, "padding_mask": np.minimum(encoded["padding_mask"], 1)}
            right[signatures.TOKEN_IDS] = super().expected(model, texts, unmarked)[signatures.TOKEN_IDS]
        for name, head in self.heads_of_prompts().items():
            right[name] = SequenceHead.expected(head, model, texts, head.encode(texts))[signatures.SERVING_DEFAULT]
        return right

    def described(self, about):
        prompts = {name: (head.inputs, about.outputs, {}) for name, head in self.heads_of_prompts().items()}
        return {**super().described(about), **prompts}

    @property
    def inputs(self):
        behind = f" behind {self.prompt!r}" if self.prompt else ""
        return {name: text + behind for name, text in super().inputs.items()}

    def about(self):
        width = self.model.output_shape[-1]
        length = "Its length is 1, so products are cosines." if self.model.normalize else "It is not normalized."
        return About(
            "Sentence embeddings",
            f"Turns each text into a vector of {width} numbers. {length}",
            self.instances("A man is playing a guitar.", "Someone plays an instrument."),
            self.inputs,
            {"embedding": f"float ({width}): the vector"},
        )
