"""`BertTextClassifier`: predicts a class, or a score, for each text or pair of texts (paper, section 4.1).

Shapes: B batch, S sequence, C classes.
"""

import keras
import keras_nlp

from keras_bert.backbone import BertBackbone
from keras_bert.heads import output_head
from keras_bert.models.task import LabeledTask, count_classes
from keras_bert.tokenization.preprocessor import BertPreprocessor


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTextClassifier(LabeledTask, keras_nlp.models.TextClassifier):
    """Backbone, dropout, and a linear layer on the pooled output; with one output, a regressor.

    `fit` takes texts, or pairs of texts as a tuple of two batches, with labels: int of shape (B,), str if `labels` are
    given, or float scores for a regressor. The loss is cross entropy, for a regressor the mean squared error.

    Inputs: the backbone's. Output: float32 logits of shape (B, C), scores of shape (B, 1) for a regressor.

    Args:
        backbone: BertBackbone.
        num_classes: int; 1 makes a regressor. None: the number of `labels`.
        preprocessor: BertPreprocessor, or None.
        activation: str, of the output; `"softmax"` gives probabilities.
        dropout: float, on the pooled output; None: the backbone's (google-research/bert run_classifier.py:604: 0.1).
        labels: list of str, the classes in the order of the outputs, or None.
        **kwargs: `name`; `compile=False` leaves out the default `compile()`.

    >>> from keras_bert import BertTokenizer
    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
    >>> backbone = BertBackbone(7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=8)
    >>> model = BertTextClassifier(backbone, labels=["no", "yes"], preprocessor=preprocessor)
    >>> model.predict(["good", "bad bad"], verbose=0).shape
    (2, 2)
    """

    heads = ("classification",)

    def __init__(
        self,
        backbone: BertBackbone,
        num_classes: int | None = None,
        preprocessor: BertPreprocessor | None = None,
        activation: str | None = None,
        dropout: float | None = None,
        labels: list[str] | None = None,
        **kwargs,
    ):
        num_classes = count_classes(num_classes, labels, least=1)

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        rate = backbone.dropout if dropout is None else dropout
        output_dropout = keras.layers.Dropout(rate, dtype=backbone.dtype_policy, name="classifier_dropout")
        head = output_head(num_classes, backbone.initializer_range, self.heads[0], activation)

        # === Functional model ===
        pooled = backbone(backbone.input)["pooled_output"]
        super().__init__(inputs=backbone.input, outputs=head(output_dropout(pooled)), **kwargs)

        # === Config ===
        self.num_classes = num_classes
        self.activation = activation
        self.dropout = dropout
        self.labels = labels

    def default_loss(self):
        head = self.get_layer(self.heads[0])
        if head.units == 1:
            return super().default_loss()
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=head.activation != keras.activations.softmax, reduction="mean_with_sample_weight"
        )
