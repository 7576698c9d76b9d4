"""Sentence embeddings, as `bert-embed` trains them: one vector for each text.

Shapes: B batch, D embedding.
"""

import tensorflow as tf

from export.heads.base import About, TokenOutput
from export.heads.sequence import SequenceHead
from keras_bert.models import BertTextEmbedder
from keras_bert.tokenization.preprocessor import BertPreprocessor
from tasks.fine_tuning.model_files import read_task


class SentenceEmbedding(SequenceHead):
    """An embedder; its model gives embeddings [B, D]."""

    task = "sentence_embedding"
    token_outputs = {"embedding": TokenOutput(("components",))}

    @classmethod
    def load_preset(cls, directory: str, source: str, sequence_length: int | None = None, **settings):
        """Builds the head of an embedder, such as a directory of sentence-transformers.

        Args:
            directory, source, sequence_length: as in `Embeddings.load_preset`.
            **settings: of the head's class.
        """
        model = BertTextEmbedder.from_preset(source, preprocessor=None, compile=False)
        if source == directory:
            preprocessor = BertTextEmbedder.preprocessor_of(directory, sequence_length)
        else:
            length = sequence_length or read_task(directory)["sequence_length"]
            preprocessor = BertPreprocessor.from_preset(directory, length)
        return cls(model, preprocessor, **settings)

    def answer(self, outputs, encoded):
        return {"embedding": tf.cast(outputs, tf.float32)}

    def expected_answer(self, outputs, encoded):
        return {"embedding": outputs}, None

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
