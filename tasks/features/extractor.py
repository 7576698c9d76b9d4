"""Loads the frozen encoder of `bert-features` and runs it on sequences, in batches of similar length.

Shapes: R sequences, T tokens of all sequences, B batch, S sequence, D width of a vector.
"""

import keras
import numpy as np

from keras_bert.backbone import BertBackbone
from keras_bert.tokenization.tokenizer import BertTokenizer
from tasks.features.settings import FeatureSettings
from tasks.fine_tuning import start
from tasks.fine_tuning.examples import Examples, compute_outputs, compute_token_outputs


def load_encoder(settings: FeatureSettings) -> tuple[BertBackbone, BertTokenizer]:
    """Loads the encoder, in the layout that skips padding, and its tokenizer.

    Raises:
        InputError: the preset does not exist, is too short for `max_seq_length`, or does not fit its vocabulary.
    """
    origin = start.find_start(settings)
    tokenizer = origin.tokenizer()
    start.check_encoder(origin, settings, settings.max_seq_length, tokenizer.vocabulary_size())
    if not origin.load_weights:
        keras.utils.set_random_seed(settings.random_seed)
    policy = keras.config.dtype_policy()
    return BertBackbone.from_preset(origin.preset, origin.load_weights, policy, layout="unpadded"), tokenizer


class Extractor:
    """Runs a feature extractor on any number of sequences.

    Args:
        model: `FeatureExtractor`.
        batch_size: B, sequences per batch.

    Attributes:
        widths: D of each output, by name.
    """

    def __init__(self, model, batch_size: int):
        self._batch_size = batch_size
        self.widths = {name: tensor.shape[-1] for name, tensor in model.output.items()}
        outputs = list(model(model.input).values())
        self._by_token = len(outputs[0].shape) == 3
        joined = keras.layers.Concatenate(dtype="float32")(outputs) if len(outputs) > 1 else outputs[0]
        self._model = keras.Model(model.input, joined)

    def __call__(self, examples: Examples) -> dict[str, np.ndarray]:
        """Returns float32 arrays by output name, in the order of the sequences: (T, D), or (R, D) if pooled."""
        compute = compute_token_outputs if self._by_token else compute_outputs
        joined = compute(self._model, examples, self._batch_size)
        ends = np.cumsum(list(self.widths.values()))[:-1]
        return dict(zip(self.widths, np.split(joined, ends, axis=-1), strict=True))
