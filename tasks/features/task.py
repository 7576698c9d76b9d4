"""Table 7 of the paper: named-entity recognition by a BiLSTM on frozen features (section 5.3).

Shapes: W words of a file, K chosen layers, H hidden size.
"""

import os

import numpy as np

from tasks.features.settings import FeatureSettings, choose_layers, layer_name
from tasks.fine_tuning.entity_task import EntityTask
from tasks.settings import Values


class FeatureSpec(Values):
    """Description of a trained feature-based tagger.

    Attributes:
        tags: name of each class.
        layers: numbers of the layers, as `tasks.features.settings.resolve_layers` returns them.
        combine: as in `tasks.features.model.build_tagger`.
        max_seq_length: maximum number of tokens of a window, special tokens included.
        document_context: whether windows span whole documents rather than single sentences.
    """

    tags: list[str]
    layers: list[int]
    combine: str
    max_seq_length: int
    document_context: bool

    @property
    def labels(self) -> list[str]:
        return self.tags

    @property
    def sequence_length(self) -> int:
        return self.max_seq_length


class FeatureTagging(EntityTask):
    """Tags words by a BiLSTM on features that the frozen encoder computes once."""

    Settings = FeatureSettings
    Spec = FeatureSpec
    name = "feature_based_tagging"
    command = "bert-features --task_name=ner"
    title = "Named entities from frozen features"

    def __init__(self, settings: FeatureSettings):
        super().__init__(settings)
        self._features_directory = os.path.join(settings.output_dir, "features")
        self._backbone = self._extractor = None

    def for_run(self, settings):
        """Lets all runs of a search share the features of the first."""
        task = super().for_run(settings)
        task._features_directory = self._features_directory
        return task

    def make_spec(self, train):
        settings = self.settings
        return FeatureSpec(
            tags=sorted(set(train.tags)),
            layers=choose_layers(settings, "--do_train")[0],
            combine="concatenate" if settings.combine == "none" else settings.combine,
            max_seq_length=settings.max_seq_length,
            document_context=settings.document_context == "document",
        )

    def num_examples(self, rows):
        return rows.num_sentences

    def describe(self, rows, encoded, spec):
        described = super().describe(rows, encoded, spec)
        del described["train_windows"]  # Unknown if the features were found on disk.
        return described

    def describe_model(self, trained):
        """Returns tags, width, and the learned weights of the layers if there are any."""
        spec, model = trained.spec, trained.model
        described = {"tags": spec.tags, "feature_dim": model.input["features"].shape[-1]}
        if spec.combine == "weighted_sum" and len(spec.layers) > 1:
            weights = np.array(model.get_layer("combine_states").layer_weights()).tolist()
            described["layer_weights"] = dict(zip(map(layer_name, spec.layers), weights, strict=True))
        return described

    # === Model ===

    def model_class(self):
        return None

    def build_training_model(self, origin, settings, spec):
        from tasks.features.model import build_tagger

        sizes = (len(spec.layers), self._backbone.hidden_dim, len(spec.tags))
        options = {name: getattr(settings, name) for name in ("lstm_units", "lstm_layers", "lstm_dropout")}
        return build_tagger(*sizes, spec.combine, **options), self._backbone

    def model_to_save(self, trained):
        from tasks.features.model import join_extractor

        return join_extractor(self._extractor, trained.model)

    def load(self, directory):
        from tasks.features.model import EXTRACTOR, TAGGER  # Registers the model's layers with Keras.

        model, tokenizer = super().load(directory)
        self._extractor = model.get_layer(EXTRACTOR)
        return model.get_layer(TAGGER), tokenizer

    def encode(self, part, trained):
        from tasks.features.model import FeatureExtractor, load_encoder
        from tasks.features.word_features import EncodedFeatures, WordFeatures, load_features

        documents, spec = part.rows, trained.spec
        if self._extractor is None:
            self._backbone, _ = load_encoder(self.settings)
            self._extractor = FeatureExtractor(self._backbone, spec.layers, "concatenate")
            self._extractor.trainable = False
        directory = os.path.join(self._features_directory, part.split)
        vectors, lengths = load_features(
            directory, documents, self._extractor, trained.tokenizer, spec, self.settings.eval_batch_size
        )
        labels = None if documents.tags is None else self.number(documents.tags, spec)
        return EncodedFeatures(None, lengths, source=WordFeatures(vectors, documents.sentence_splits, labels))

    # === Answers ===

    def window_details(self, answers):
        return {"words_of_unknown_tags": int(np.count_nonzero(answers.encoded.source.labels < 0))}

    def notes(self, spec):
        layers, context = ", ".join(map(layer_name, spec.layers)), "document" if spec.document_context else "sentence"
        return [f"Features: {layers} ({spec.combine}). The encoder read each word within its {context}."]
