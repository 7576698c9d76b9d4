"""BertTokenizer: turns text into WordPiece ids inside the graph, exactly as google-research/bert does.

`graph_tokenizer.py` builds the graph. `python_tokenizer.py` does the same in Python on platforms without
tensorflow-text.
"""

import os

import keras
import tensorflow as tf
from absl import logging
from keras_nlp.tokenizers import Tokenizer

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.files import write_lines
from keras_bert.presets.catalog import name_of
from keras_bert.presets.tokenizers import decide_case, open_tokenizer
from keras_bert.tokenization.special_tokens import SpecialTokens
from keras_bert.vocabulary import SPECIAL_TOKENS, TOKEN_OF, VocabularyLookup, read_vocabulary

try:
    import tensorflow_text  # noqa: F401  (registers the ops)
except (ImportError, tf.errors.NotFoundError) as error:  # No wheel here, or one for another TensorFlow.
    _TEXT_ERROR = f"{type(error).__name__}: {error}".splitlines()[0]
    from keras_bert.tokenization.host_tokenizer import HostTokenizer as _Engine
else:
    _TEXT_ERROR = None
    from keras_bert.tokenization.graph_tokenizer import GraphTokenizer as _Engine

VOCABULARY_FILE = "vocabulary.txt"


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenizer(VocabularyLookup, Tokenizer):
    """Splits text into WordPieces and looks up their ids, inside the graph.

    Ids are those of google-research/bert's `FullTokenizer` on every string, invalid UTF-8 included. No special token is
    added, and special tokens inside a text are plain text: `"[MASK]"` gives the pieces of `[`, `mask` and `]`, unless
    `special_tokens_in_strings` is True.

    Args:
        vocabulary: path of a file with one piece per line (the line number, from 0, is the id), or list of the pieces.
            None if `load_assets` follows, as when Keras loads a saved model.
        lowercase: bool, whether to lower the case and strip accents, for an uncased vocabulary. None: False for a cased
            vocabulary, else True; a vocabulary of under 500 pieces with Latin letters counts as cased if at least half
            of these have capitals.
        special_tokens_in_strings: bool, whether `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]` inside a text, in
            capitals, become their ids. Leave it off for untrusted texts.

    Raises:
        InputError: the file cannot be read; the vocabulary is empty, lacks a special token, holds one piece twice or
            one too long, or is cased where `lowercase` is True (uncased where it is False).

    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hell", "##o", ","])
    >>> tokenizer.tokenize(["Hello, h\u00e9llo", ""])
    <tf.RaggedTensor [[5, 6, 7, 5, 6], []]>
    """

    backbone_cls = BertBackbone  # KerasHub looks tokenizers up by this attribute.

    def __init__(
        self,
        vocabulary: str | list[str] | None = None,
        lowercase: bool | None = None,
        special_tokens_in_strings: bool = False,
        **kwargs,
    ):
        # KerasHub up to 0.31 requires tensorflow-text, unless a layer says that it can work in Python.
        super().__init__(**{"dtype": "int32", "_allow_python_workflow": True, **kwargs})
        self.lowercase = lowercase
        self.special_tokens_in_strings = special_tokens_in_strings
        self.file_assets = [VOCABULARY_FILE]
        self.vocabulary = None
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    def set_vocabulary(self, vocabulary: str | list[str]) -> None:
        """Reads a vocabulary from a file or list, and prepares the graph."""
        self.set_pieces(read_vocabulary(vocabulary, self.lowercase), self.lowercase)
        self._special_token_attrs = []
        for name, token in TOKEN_OF.items():
            self._add_special_token(token, name)
        if not self.in_graph:
            logging.log_first_n(
                logging.WARNING,
                "tensorflow-text cannot be imported (%s): texts are tokenized in Python, to the same ids, but slower, "
                "and no model can be exported with its tokenizer.",
                1,
                _TEXT_ERROR,
            )
        self._engine = _Engine(self.vocabulary, self.lowercase)
        if self.special_tokens_in_strings:
            self._engine = SpecialTokens(self._engine, {token: self._ids[token] for token in SPECIAL_TOKENS})

    @property
    def in_graph(self) -> bool:
        """Whether tokenizing uses graph ops only, as an exported model needs it."""
        return _TEXT_ERROR is None

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, (list, tuple)) and not inputs:  # Keras would convert it to a float tensor.
            inputs = tf.constant([], tf.string)
        return super().__call__(inputs, *args, **kwargs)

    def tokenize(self, inputs) -> tf.RaggedTensor:
        """Tokenizes texts.

        Args:
            inputs: string tensor or list of str, shape (batch,); or one text, shape ().

        Returns:
            int32 ragged tensor, shape (batch, None); for one text a tensor, shape (None,).

        Raises:
            ValueError: `inputs` has two or more dimensions.
        """
        texts, is_single = self._check_texts(inputs)
        ids = self._engine.tokenize(texts)
        return ids.values if is_single else ids

    def tokenize_with_offsets(self, inputs) -> tuple[tf.RaggedTensor, ...]:
        """Tokenizes texts, and finds each token's place in its text.

        A token covers the characters it stems from, and those directly after them that vanish: control characters and
        stripped accents. [UNK] covers its whole word. A character that becomes two tokens is covered by both.

        Args:
            inputs: as for `tokenize`.

        Returns:
            Token ids, starts, and ends (exclusive), each of type and shape as `tokenize` returns. Places count
            characters as Python does, without invalid bytes.

        Raises:
            ValueError: `inputs` has two or more dimensions.

        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hell", "##o", ","])
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets(["H\u00e9llo, you"])
        >>> starts, ends
        (<tf.RaggedTensor [[0, 4, 5, 7]]>, <tf.RaggedTensor [[4, 5, 6, 10]]>)
        """
        texts, is_single = self._check_texts(inputs)
        columns = self._engine.tokenize_with_offsets(texts)
        return tuple(column.values for column in columns) if is_single else columns

    def detokenize(self, inputs) -> tf.Tensor:
        """Joins ids into text: pieces into words, and words with blanks. Special tokens stay.

        If the ids come from a text and include no [UNK] or special token, tokenizing the result returns the same ids.

        Args:
            inputs: int tensor, ragged tensor, nested lists, or list of tensors, shape (..., None).

        Returns:
            string, shape (...).

        Raises:
            ValueError: `inputs` is a single id, or holds anything other than ids.
            tf.errors.InvalidArgumentError: an id is outside the vocabulary.

        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hell", "##o", ","])
        >>> tokenizer.detokenize([[2, 5, 6, 7, 5, 3], []]).numpy().tolist()
        [b'[CLS] hello , hell [SEP]', b'']
        """
        self._check_ready()
        pieces = tf.gather(tf.constant(self.vocabulary), _as_ids(inputs))
        return tf.strings.regex_replace(tf.strings.reduce_join(pieces, axis=-1, separator=" "), r"(\S) ##", r"\1")

    def compute_output_spec(self, inputs, **kwargs):
        return keras.KerasTensor((*inputs.shape, None), dtype="int32")

    # === Checks ===

    def _check_texts(self, inputs) -> tuple[tf.Tensor, bool]:
        """Returns the texts as a batch, and whether `inputs` is one text."""
        self._check_ready()
        texts = tf.convert_to_tensor(inputs, tf.string)
        if texts.shape.rank == 0:
            return texts[tf.newaxis], True
        if texts.shape.rank not in (1, None):
            raise ValueError(f"`inputs` must be one text or a batch of texts, rank 0 or 1. Received: {texts.shape}")
        return texts, False

    # === Saving and loading ===

    def get_config(self) -> dict:
        own = {"lowercase": self.lowercase, "special_tokens_in_strings": self.special_tokens_in_strings}
        return {**super().get_config(), "vocabulary": None, **own}

    def save_assets(self, dir_path: str) -> None:
        """Writes the vocabulary file; Keras calls this when it saves a model with this layer."""
        write_lines(os.path.join(dir_path, VOCABULARY_FILE), self.get_vocabulary())

    def load_assets(self, dir_path: str) -> None:
        """Reads what `save_assets` wrote."""
        self.set_vocabulary(os.path.join(dir_path, VOCABULARY_FILE))

    @classmethod
    def from_preset(cls, preset: str | os.PathLike, **kwargs) -> "BertTokenizer":
        """Reads the tokenizer of a preset.

        Args:
            preset: directory in KerasHub's layout (`tokenizer.json`, `assets/tokenizer/vocabulary.txt`) or in Hugging
                Face's (`vocab.txt`, `tokenizer_config.json`), or a preset's name.
            **kwargs: arguments of the constructor that replace the preset's. If neither they nor the preset say whether
                texts are lower-cased, the case of the vocabulary decides, then the preset's name
                (`keras_bert.presets.tokenizers.decide_case`); the default is True.

        Raises:
            InputError: there is no such preset; its tokenizer is missing or needs rules that this one lacks; or
                `lowercase` contradicts the vocabulary, or the preset's settings contradict its name.
        """
        preset = name_of(preset)
        with open_tokenizer(preset) as settings:
            own = ("vocabulary", "special_tokens_in_strings")
            given = {**{name: settings[name] for name in own if name in settings}, **kwargs}
            case = decide_case(preset, {**settings, "vocabulary": given["vocabulary"]}, given.get("lowercase"))
            return cls(**{**given, "lowercase": case is not False})


def _as_ids(inputs) -> tf.Tensor | tf.RaggedTensor:
    """Returns `inputs` as a tensor of ids; raises ValueError for anything else, and for a single id."""
    try:
        if isinstance(inputs, (list, tuple)) and any(tf.is_tensor(row) for row in inputs):
            stack = tf.ragged.stack if tf.convert_to_tensor(inputs[0]).shape.rank else tf.stack
            inputs = stack([tf.cast(row, tf.int32) for row in inputs])
        elif isinstance(inputs, (list, tuple)):
            inputs = tf.ragged.constant(inputs, dtype=tf.int32)
        elif not tf.is_tensor(inputs):
            inputs = tf.convert_to_tensor(inputs)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(f"`inputs` must hold ids, in lists of one depth. Received: {inputs!r} ({reason})") from None
    if inputs.shape.rank == 0:
        raise ValueError(f"`inputs` must be a list of ids or a batch of such, rank 1 or more. Received: {inputs}")
    if not inputs.dtype.is_integer:
        raise ValueError(f"`inputs` must hold ids, integers. Received: {inputs.dtype.name}")
    return inputs
