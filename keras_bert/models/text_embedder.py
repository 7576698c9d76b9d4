"""`BertTextEmbedder`: one vector for each text, for search and similarity (Reimers and Gurevych, arXiv:1908.10084).

Shapes: B batch, S sequence, H hidden, D embedding.
"""

import reprlib

import keras
import keras_nlp
import numpy as np
import tensorflow as tf

from keras_bert.answers.base import plain_values
from keras_bert.answers.nearest import find_nearest
from keras_bert.answers.rules import search_prompts, unit
from keras_bert.answers.sequence import EmbeddingAnswers
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
    them. `fit` takes texts with another model's vectors for them, float32 of shape (B, D): the loss is the mean squared
    error (distillation, Reimers and Gurevych, arXiv:2004.09813).

    Inputs: the backbone's. Output: float32 embeddings of shape (B, D); D is H without a dense layer.

    Args:
        backbone: BertBackbone.
        preprocessor: BertPreprocessor, or None.
        pooling: `"mean"` over all real tokens, [CLS] and [SEP] included; `"cls"`, the first token; or `"max"` of each
            component over the real tokens.
        embedding_dim: int, D, outputs of a dense layer on the pooled vector; None: no dense layer.
        embedding_activation: str, activation of the dense layer; None: linear.
        normalize: bool, whether embeddings have length 1, so that their dot product is the cosine similarity.
        prompts: dict of str, texts to put before each text, by name: `{"query": "query: "}`; None: no prompts.
        default_prompt: str, name of the prompt to use if none is chosen; None: no prompt.
        include_prompt: bool, whether a prompt's tokens, [CLS] among them, are pooled too; must be True for `"cls"`.
        **kwargs: as in `BertTextClassifier`.

    >>> from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
    >>> backbone = BertBackbone(7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> model = BertTextEmbedder(backbone, BertPreprocessor(tokenizer, sequence_length=8))
    >>> model.predict(["good", "bad bad"], verbose=0).shape
    (2, 8)
    >>> model.search("good", ["bad bad", "good", "bad"], top_k=1)["passages"]
    ['good']
    """

    answers_cls = EmbeddingAnswers
    heads = ("embedding",)
    uses_pooler = False
    trained_settings = ("long_text",)

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertPreprocessor | None = None,
        pooling: str = "mean",
        embedding_dim: int | None = None,
        embedding_activation: str | None = None,
        normalize: bool = True,
        prompts: dict[str, str] | None = None,
        default_prompt: str | None = None,
        include_prompt: bool = True,
        **kwargs,
    ):
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {', '.join(POOLINGS)}. Received: pooling={pooling!r}")
        if default_prompt is not None and default_prompt not in (prompts or {}):
            raise ValueError(f"`default_prompt` must be a name of `prompts`. Received: {prompts=}, {default_prompt=}")
        if pooling == "cls" and not include_prompt:
            raise InputError(f"`include_prompt` must be True where [CLS] is pooled. Received: {include_prompt=}")
        keep_arguments(self, locals())

        # === Layers ===
        pool = PoolTokens(pooling, name="pool_tokens", dtype="float32")

        # === Functional model ===
        embeddings = pool(backbone(backbone.input)["sequence_output"], backbone.input["padding_mask"])
        if embedding_dim is not None:
            head = output_head(embedding_dim, backbone.initializer_range, self.heads[0], embedding_activation)
            embeddings = head(embeddings)
        if normalize:
            embeddings = keras.layers.UnitNormalization(dtype="float32", name="normalize")(embeddings)
        super().__init__(inputs=backbone.input, outputs=embeddings, **kwargs)

    def encode(self, texts, prompt: str | None = None, **settings) -> np.ndarray:
        """Embeds texts: returns float32 of shape (N, D) for N texts, or (D,) for a single str.

        Args:
            texts: list of str, or str.
            prompt: name of one of `prompts`, whose text is put before each; "": none; None: `default_prompt`.
            **settings: `long_text` and `max_tokens`, as in `answer`; see docs/models.md.

        Raises:
            ValueError: the model has no preprocessor or no such prompt, `texts` has another shape, or a setting is out
                of bounds.
        """
        return self._answers(prompt=prompt, **settings).arrays(texts)["embedding"]

    def similarity(self, first, second) -> np.ndarray:
        """Returns the cosines of N and M texts: float32 of shape (N, M); a single str has no axis.

        Args:
            first, second: `texts` as in `encode`, or the vectors that it returned for them, as an array or lists.

        Raises:
            ValueError: as `encode`, or vectors have another size.
        """
        return self._directions(first) @ self._directions(second).T

    def search(self, queries, passages, top_k: int = 10, vectors=None) -> list[dict] | dict:
        """Finds the passages nearest to each query by exact search, as an export of the task `search` does.

        Queries get the prompt `"query"`, passages the first of the prompts `"document"`, `"passage"` and `"corpus"`, if
        the model has them.

        Args:
            queries: list of str, or str.
            passages: list of str, or an array or pandas Series of them.
            top_k: int, number of passages to list; all, if there are fewer.
            vectors: the vectors that `encode` returned for the passages with their prompt, as an array or lists; None:
                the passages are encoded.

        Returns:
            A list with a dict for each query, or one dict for a single query: `passages`, the nearest first; `scores`,
            their cosines; `indices`, their indices in the argument. The earlier of equal passages comes first.

        Raises:
            ValueError: there are no passages, or not as many vectors of their size, or `top_k` is below 1.
        """
        of_query, of_passage = search_prompts(self.prompts or {})
        passages = np.array(passages, object).tolist()  # Indexing a pandas Series would look up labels.
        is_given = vectors is not None
        vectors = unit(np.asarray(vectors, np.float32)) if is_given else self._directions(passages, of_passage)
        is_count = isinstance(top_k, int | np.integer) and top_k >= 1
        if vectors.shape != (len(passages), self.output_shape[-1]) or not passages or not is_count:
            sizes = f"{len(passages)} passages, vectors of the shape {vectors.shape}, {top_k=}"
            raise ValueError(
                "`passages`, as many `vectors`, and a whole `top_k` must be at least 1. Received: "
                f"{sizes}. Expected vectors of {self.output_shape[-1]} numbers"
            )
        questions = np.atleast_2d(self._directions(queries, of_query))
        nearest = find_nearest(questions, tf.constant(vectors), tf.ones(len(vectors)), min(top_k, len(vectors)))
        rows = [
            {"passages": [passages[index] for index in indices], "scores": scores, "indices": indices}
            for scores, indices in zip(*(plain_values(column.numpy()) for column in nearest), strict=True)
        ]
        return rows[0] if isinstance(queries, str) else rows

    def _directions(self, texts, prompt: str | None = None) -> np.ndarray:
        """Returns unit vectors for texts or for vectors."""
        has_rows = isinstance(texts, list | tuple) or getattr(texts, "shape", ()) != ()
        first = np.asarray(texts[:1] if has_rows else "")
        if first.dtype.kind not in "fiu" or first.shape == (0,):
            return unit(self.encode(texts, prompt))
        dim = self.output_shape[-1]
        try:
            vectors = np.asarray(texts, np.float32)
        except (TypeError, ValueError):  # Their lengths differ, or some are not numbers.
            vectors = np.zeros([0])
        if vectors.ndim > 2 or vectors.shape[-1] != dim:
            raise ValueError(f"Expected texts, or vectors of {dim} numbers each. Received: {reprlib.repr(texts)}")
        return unit(vectors)

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
        is_embedder = checkpoint.is_embedder or "prompts" in task
        own = {name: task[name] for name in cls._settings() if name in task} if is_embedder else {}
        head = checkpoint.tensors.get("embedding/kernel")
        return own if head is None else {**own, "embedding_dim": head.shape[-1]}
