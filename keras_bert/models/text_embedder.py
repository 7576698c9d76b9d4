"""`BertTextEmbedder`: one vector for each text, for search and similarity (Reimers and Gurevych, arXiv:1908.10084).

Shapes: B batch, S sequence, H hidden, D embedding.
"""

import keras
import keras_nlp

from keras_bert.config import POOLINGS
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import PoolTokens, output_head
from keras_bert.encoder.layer import keep_arguments
from keras_bert.errors import InputError
from keras_bert.models.task import BertTask
from keras_bert.tokenization.preprocessor import BertPreprocessor


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTextEmbedder(BertTask, keras_nlp.models.Task):
    """Backbone, pooling over the real tokens, an optional dense layer, and division by the Euclidean norm.

    `from_preset` reads the directories of sentence-transformers too, and `bert-convert --to_format=hugging_face` writes
    them. `fit` takes texts with the vectors that another model has for them, float32 of shape (B, D): the loss is the
    mean squared error (distillation, Reimers and Gurevych, arXiv:2004.09813).

    Inputs: the backbone's. Output: float32 embeddings of shape (B, D); D is H without a dense layer.

    Args:
        backbone: BertBackbone.
        preprocessor: BertPreprocessor, or None.
        pooling: `"mean"` over all real tokens, [CLS] and [SEP] included; `"cls"`, the first token; or `"max"` of each
            component over the real tokens.
        embedding_dim: int, D, outputs of a dense layer on the pooled vector; None: there is no such layer.
        embedding_activation: str, of the dense layer; None: it is linear.
        normalize: bool, whether embeddings have length 1, so that their product is the cosine similarity.
        **kwargs: as in `BertTextClassifier`.

    >>> from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
    >>> backbone = BertBackbone(7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> model = BertTextEmbedder(backbone, BertPreprocessor(tokenizer, sequence_length=8))
    >>> model.predict(["good", "bad bad"], verbose=0).shape
    (2, 8)
    """

    heads = ("embedding",)
    uses_pooler = False

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertPreprocessor | None = None,
        pooling: str = "mean",
        embedding_dim: int | None = None,
        embedding_activation: str | None = None,
        normalize: bool = True,
        **kwargs,
    ):
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {', '.join(POOLINGS)}. Received: pooling={pooling!r}")
        keep_arguments(self, locals())

        # === Layers ===
        layers = [PoolTokens(pooling, name="pool_tokens", dtype="float32")]
        if embedding_dim is not None:
            activation, range_ = embedding_activation, backbone.initializer_range
            layers.append(output_head(embedding_dim, range_, self.heads[0], activation))
        if normalize:
            layers.append(keras.layers.UnitNormalization(dtype="float32", name="normalize"))

        # === Functional model ===
        pool, *following = layers
        embeddings = pool(backbone(backbone.input)["sequence_output"], backbone.input["padding_mask"])
        for layer in following:
            embeddings = layer(embeddings)
        super().__init__(inputs=backbone.input, outputs=embeddings, **kwargs)

    def default_loss(self):
        return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")

    def default_metrics(self):
        return [keras.metrics.CosineSimilarity()]

    @classmethod
    def has_head(cls, checkpoint):
        return True  # Pooling has no weights.

    @classmethod
    def _settings_of(cls, checkpoint):
        task = checkpoint.settings.get("task", {})
        if "refusal" in task:
            raise InputError(task["refusal"])
        own = {name: task[name] for name in cls._settings() if name in task} if checkpoint.is_embedder else {}
        head = checkpoint.tensors.get("embedding/kernel")
        return own if head is None else {**own, "embedding_dim": head.shape[-1]}
