"""Named-entity recognition by a BiLSTM on frozen features (the paper, section 5.3 and Table 7).

Shapes: N words of a file.
"""

import os
from typing import Any, NamedTuple

import numpy as np

from tasks.features.settings import DEFAULT_LAYERS, choose_layers, layer_name
from tasks.fine_tuning.task import Encoded, Spec
from tasks.fine_tuning.word_task import make_examples
from tasks.ner.task import Ner, class_names, make_labels


class FrozenSpec(Spec):
    """Spec of a trained tagger on frozen features.

    Attributes:
        sequence_length: maximum tokens of a window, including special tokens.
        labels: name of each class.
        layers: indices of the layers, as `tasks.features.settings.resolve_layers` returns them.
        combine: as in `tasks.ner.bilstm.build_tagger`.
        document_context: whether windows span whole documents rather than single sentences.
    """

    labels: list[str]
    layers: list[int]
    combine: str
    document_context: bool


class FrozenEncoder(NamedTuple):
    """The encoder of a tagger.

    Attributes:
        extractor: `tasks.features.model.FeatureExtractor`.
        backbone: the BertBackbone whose layers the extractor has; None if the tagger was loaded.
    """

    extractor: Any
    backbone: Any = None


class FrozenNer(Ner):
    """Tags words by a BiLSTM on features that the frozen encoder computes once.

    Args:
        features_directory: directory to store the features in.
    """

    features_directory: str

    Spec = FrozenSpec
    name = "feature_based_tagging"
    command = "bert-ner --encoder=frozen"
    title = "Named entities from frozen features"

    def make_spec(self, train):
        settings, labels = self.settings, sorted(set(make_labels(train)) & set(train.tags))
        settings.read_weights(class_names(labels))
        return FrozenSpec(
            sequence_length=settings.max_seq_length,
            labels=labels,
            layers=choose_layers(settings, DEFAULT_LAYERS, "--do_train")[0],
            combine=settings.combine,
            document_context=settings.document_context == "document",
        )

    def describe_model(self, trained):
        """Returns the labels, and the learned weights of the layers if there are any."""
        described, layers = super().describe_model(trained), trained.spec.layers
        if trained.spec.combine == "weighted_sum" and len(layers) > 1:
            weights = np.array(trained.model.get_layer("combine_states").layer_weights()).tolist()
            described["layer_weights"] = dict(zip(map(layer_name, layers), weights, strict=True))
        return described

    def notes(self, spec):
        layers, context = ", ".join(map(layer_name, spec.layers)), "document" if spec.document_context else "sentence"
        return [f"Features: {layers} ({spec.combine}). The encoder read each word within its {context}."]

    # === Model ===

    def model_class(self):
        return None

    def prepare(self, origin, trained):
        from tasks.features.model import FeatureExtractor, load_encoder

        layout = "rectangular" if self.settings.distribution_strategy == "tpu" else "unpadded"
        backbone = load_encoder(origin, self.settings.random_seed, layout)
        extractor = FeatureExtractor(backbone, trained.spec.layers)
        extractor.trainable = False
        return trained._replace(encoder=FrozenEncoder(extractor, backbone))

    def build_training_model(self, origin, trained):
        from tasks.ner.bilstm import build_tagger

        hidden_dim, spec = trained.encoder.backbone.hidden_dim, trained.spec
        return build_tagger(self.settings, len(spec.layers), hidden_dim, len(spec.labels))

    def model_to_save(self, trained):
        from tasks.ner.bilstm import join_extractor

        return join_extractor(trained.encoder.extractor, trained.model)

    def load(self, directory, spec):
        from tasks.ner.bilstm import TAGGER  # Registers the model's layers with Keras.

        joined = super().load(directory, spec)
        encoder = FrozenEncoder(joined.model.get_layer("feature_extractor"))
        return joined._replace(model=joined.model.get_layer(TAGGER), encoder=encoder)

    def encode(self, part, trained):
        from tasks.features.data import encode_words
        from tasks.ner.word_features import load_features

        documents, spec = part.rows, trained.spec
        windows = encode_words(documents, trained.tokenizer, spec.sequence_length, spec.document_context)
        directory = os.path.join(self.features_directory, part.split)
        vectors = load_features(directory, windows, trained.encoder.extractor, self.settings.eval_batch_size)
        labels = None if documents.tags is None else self.number(documents.tags, spec)
        numbers = np.arange(len(documents.tokens), dtype=np.int32)
        # Each word is a token, whose vector the model looks up by its number.
        words = windows._replace(token_ids=numbers, row_splits=documents.sentence_splits, places=numbers)
        examples = make_examples(words, labels)._replace(vectors=vectors)
        return Encoded(examples, windows.sentence_lengths, windows)
