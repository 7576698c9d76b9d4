"""BertTokenizer: text to WordPiece ids inside the graph, exactly as google-research/bert does it.

The common path is two ops of tensorflow-text: FastBertNormalize with our own model (`normalizer.py`), then
FastWordpieceTokenize, which splits and matches in linear time. What they cannot say takes a rare branch, each
behind a test that ordinary text pays little for: capital sigma, marks whose order matters, invalid UTF-8, and
words over 200 characters.
"""

import os

import keras
import numpy as np
import tensorflow as tf
from keras_nlp.tokenizers import Tokenizer

from keras_bert import normalizer
from keras_bert.casing import case_of_name
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_lines, write_json
from keras_bert.weights import open_tokenizer

try:
    import tensorflow_text as tf_text
    from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as wordpiece_builder
except ImportError as error:
    raise ImportError(
        "keras_bert needs tensorflow-text, which has no wheel for Windows and some ARM machines, and must be of "
        "TensorFlow's own minor version. Use Linux x86-64 (WSL, a container), and `pip install tensorflow-text`."
    ) from error

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Attributes of the tokenizer, each with its `..._id`; KerasHub's preprocessors ask for `start_token` and `end_token`.
_TOKEN_OF = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
_TOKEN_OF |= {"start_token": "[CLS]", "end_token": "[SEP]"}
CONFIG_FILE = "tokenizer.json"
VOCABULARY_FILE = "vocabulary.txt"

_MAX_WORD_LENGTH = 200  # In characters: google-research/bert, tokenization.py, `max_input_chars_per_word`.
_MAX_PIECE_BYTES = 256  # tensorflow-text, `kMaxVocabTokenLengthInUTF8Bytes`.
_NOWHERE = "\x01"  # A control character: in no normalized text, and in no piece that the op gets.


# === The graph ===


class _TextNormalizer:
    """Brings texts into the form that FastWordpieceTokenizer splits right."""

    def __init__(self, lowercase: bool):
        self._lowercase = lowercase
        self._plain = f"[{normalizer.plain_class(lowercase)}]*"
        self._op = tf_text.FastBertNormalizer(model_buffer=_as_constant(normalizer.normalizer_model(lowercase)))

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalizes `texts`: string, shape (batch,), any bytes."""
        # One match over the joined batch: half the time of one a text.
        plain = tf.strings.regex_full_match(tf.strings.reduce_join(texts, separator=" "), self._plain)
        texts = tf.cond(plain, lambda: texts, lambda: self._settle_context(texts))
        texts = self._op.normalize(texts)
        short = tf.reduce_all(tf.strings.length(texts) <= _MAX_WORD_LENGTH)
        return tf.cond(short, lambda: texts, lambda: _replace_long_words(texts))

    def _settle_context(self, texts: tf.Tensor) -> tf.Tensor:
        """Drops invalid UTF-8, and does what depends on neighbours; the rest is left to the op."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        if not self._lowercase:
            return texts
        texts = tf.strings.regex_replace(texts, f"[{normalizer.vanishing_class()}]+", "")
        for pattern, rewrite in normalizer.final_sigma_rewrites():
            texts = tf.strings.regex_replace(texts, pattern, rewrite)
        # ICU's NFD, only where needed: of characters newer than the server's ICU it knows nothing.
        in_order = tf.strings.regex_full_match(texts, f"[^{normalizer.unordered_class()}]*")
        return tf.where(in_order, texts, tf_text.normalize_utf8(texts, "NFD"))


def _replace_long_words(texts: tf.Tensor) -> tf.Tensor:
    """Puts `_NOWHERE`, which becomes [UNK], in place of each word of over 200 characters."""
    boundaries = " " + normalizer.range_class((*normalizer.ASCII_PUNCTUATION_RANGES, *normalizer.CJK_RANGES))
    return tf.strings.regex_replace(texts, f"[^{boundaries}]{{{_MAX_WORD_LENGTH}}}[^{boundaries}]+", _NOWHERE)


def _as_constant(buffer: bytes) -> tf.Tensor:
    with tf.init_scope(), tf.device("cpu"):
        return tf.constant(np.frombuffer(buffer, dtype=np.uint8))


def _wordpiece_op(vocabulary: list[str]) -> tf_text.FastWordpieceTokenizer:
    model = wordpiece_builder.build_fast_wordpiece_model(
        _pieces_for_op(vocabulary), 4 * _MAX_WORD_LENGTH, "##", "[UNK]", False, True
    )
    return tf_text.FastWordpieceTokenizer(model_buffer=_as_constant(model), token_out_type=tf.int32)


def _pieces_for_op(vocabulary: list[str]) -> list[str]:
    """Replaces pieces that no text can match by names that differ, as the op's builder needs them."""
    last = {piece: index for index, piece in enumerate(vocabulary)}
    stand_ins = normalizer.substitutes()
    pieces = []
    for index, piece in enumerate(vocabulary):
        empty = piece in ("", "##") or last[piece] != index  # Of equal pieces the reference knows the last.
        holds_control = any(not char.isprintable() and normalizer.vanishes(char) for char in piece)
        pieces.append(f"[{_NOWHERE}{index}]" if empty or holds_control else piece.translate(stand_ins))
    return pieces


# === The layer ===


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenizer(Tokenizer):
    """Splits text into WordPieces and looks up their ids, inside the graph.

    Ids are those of google-research/bert's `FullTokenizer` on every string, invalid UTF-8 included. No special token is
    added, and special tokens inside a text are plain text: `"[MASK]"` gives the pieces of `[`, `mask` and `]`.

    Args:
        vocabulary: path of a file with one piece a line (its number from 0 is the id), or list of the pieces. None
            where `load_assets` follows, as when Keras loads a saved model.
        lowercase: bool, lower the case and strip accents, as an uncased vocabulary needs it.

    Raises:
        InputError: the file cannot be read; the vocabulary is empty, lacks a special token or holds one piece twice.

    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hell", "##o", ","])
    >>> tokenizer.tokenize(["Hello, h\u00e9llo", ""])
    <tf.RaggedTensor [[5, 6, 7, 5, 6], []]>
    """

    def __init__(self, vocabulary: str | list[str] | None = None, lowercase: bool = True, **kwargs):
        super().__init__(**{"dtype": "int32", **kwargs})
        self.lowercase = bool(lowercase)
        self.file_assets = [VOCABULARY_FILE]
        self.vocabulary = None
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    def set_vocabulary(self, vocabulary: str | list[str]) -> None:
        """Takes a vocabulary file or list, and builds what the graph needs."""
        source = "The vocabulary"
        if isinstance(vocabulary, (str, os.PathLike)):
            source = os.fspath(vocabulary)
            vocabulary = [piece for _, piece in read_lines(source)]
        raw = list(vocabulary)
        pieces = [piece.strip() for piece in raw]
        _check_vocabulary(source, raw, pieces)
        self.vocabulary = pieces
        self._ids = {piece: index for index, piece in enumerate(pieces)}
        self._special_token_attrs = []
        for name, token in _TOKEN_OF.items():
            self._add_special_token(token, name)
        self._normalize = _TextNormalizer(self.lowercase)
        self._wordpiece = _wordpiece_op(pieces)
        # A function of its own: eager calls run it as one graph, others inline it.
        signature = [tf.TensorSpec([None], tf.string)]
        self._tokenize_batch = tf.function(self._tokenize_flat, input_signature=signature, autograph=False)

    def _tokenize_flat(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._wordpiece.tokenize(self._normalize(texts))

    def tokenize(self, inputs) -> tf.RaggedTensor:
        """Tokenizes texts.

        Args:
            inputs: string tensor or list of str, shape (batch,); or one text, shape ().

        Returns:
            int32 ragged tensor, shape (batch, None); for one text a tensor, shape (None,).

        Raises:
            ValueError: `inputs` has two or more dimensions.
        """
        self._check_ready()
        texts = tf.convert_to_tensor(inputs, tf.string)
        if texts.shape.rank == 0:
            return self._tokenize_batch(texts[tf.newaxis]).values
        if texts.shape.rank not in (1, None):
            raise ValueError(f"`inputs` must be one text or a batch of texts, rank 0 or 1. Received: {texts.shape}")
        return self._tokenize_batch(texts)

    def detokenize(self, inputs) -> tf.Tensor:
        """Joins ids to text, pieces to words and words by blanks.

        Args:
            inputs: int32 ragged tensor, shape (batch, None), or shape (None,).

        Returns:
            string, shape (batch,) or ().
        """
        self._check_ready()
        if isinstance(inputs, list):
            inputs = tf.ragged.constant(inputs, dtype=tf.int32)
        pieces = tf.gather(tf.constant(self.vocabulary), inputs)
        return tf.strings.regex_replace(tf.strings.reduce_join(pieces, axis=-1, separator=" "), r"(\S) ##", r"\1")

    def compute_output_spec(self, inputs, **kwargs):
        return keras.KerasTensor((*inputs.shape, None), dtype="int32")

    # === Vocabulary ===

    def get_vocabulary(self) -> list[str]:
        """Returns the pieces in the order of their ids."""
        self._check_ready()
        return list(self.vocabulary)

    def vocabulary_size(self) -> int:
        """Returns the number of pieces."""
        self._check_ready()
        return len(self.vocabulary)

    def id_to_token(self, id: int) -> str:
        """Returns the piece of an id; raises ValueError for an id outside the vocabulary."""
        if not 0 <= id < self.vocabulary_size():
            raise ValueError(f"`id` must be in [0, {self.vocabulary_size()}). Received: id={id}")
        return self.vocabulary[id]

    def token_to_id(self, token: str) -> int:
        """Returns the id of a piece; raises ValueError for a piece that the vocabulary lacks."""
        self._check_ready()
        if token not in self._ids:
            raise ValueError(f"`token` must be in the vocabulary. Received: token={token!r}")
        return self._ids[token]

    def _check_ready(self) -> None:
        if self.vocabulary is None:
            raise ValueError("The tokenizer has no vocabulary: pass `vocabulary`, or call `load_assets`.")

    # === Saving and loading ===

    def get_config(self) -> dict:
        return {**super().get_config(), "vocabulary": None, "lowercase": self.lowercase}

    def save_assets(self, dir_path: str) -> None:
        """Writes the vocabulary file; Keras calls it when it saves a model that holds this layer."""
        with atomic_path(os.path.join(dir_path, VOCABULARY_FILE)) as temporary:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{piece}\n" for piece in self.get_vocabulary())

    def load_assets(self, dir_path: str) -> None:
        """Reads what `save_assets` wrote."""
        self.set_vocabulary(os.path.join(dir_path, VOCABULARY_FILE))

    def save_to_preset(self, preset_dir: str) -> None:
        """Writes the tokenizer into a preset directory, in KerasHub's layout; other files there stay."""
        self.save_assets(os.path.join(preset_dir, "assets", "tokenizer"))
        write_json(os.path.join(preset_dir, CONFIG_FILE), keras.saving.serialize_keras_object(self))

    @classmethod
    def from_preset(cls, preset: str, **kwargs) -> "BertTokenizer":
        """Reads the tokenizer of a preset.

        Args:
            preset: directory in KerasHub's layout (`tokenizer.json`, `assets/tokenizer/vocabulary.txt`) or in Hugging
                Face's (`vocab.txt`, `tokenizer_config.json`), or a preset's name.
            **kwargs: arguments of the constructor that replace the preset's.

        Raises:
            InputError: no such preset, or its tokenizer is missing or says what this tokenizer cannot do.
        """
        with open_tokenizer(preset) as settings:
            said = {name: value for name, value in settings.items() if value is not None}
            tokenizer = cls(**{**said, **kwargs})
        lowercase = case_of_name(preset)
        if lowercase is not None and tokenizer.lowercase != lowercase:
            raise InputError(
                f"{preset}: by its name the checkpoint is {'uncased' if lowercase else 'cased'}, but lowercase="
                f"{tokenizer.lowercase} was given, or stands in its tokenizer's settings. Pass lowercase={lowercase}."
            )
        return tokenizer


def _check_vocabulary(source: str, raw: list[str], pieces: list[str]) -> None:
    if not any(pieces):
        raise InputError(f"{source}: the vocabulary is empty. Expected one WordPiece a line.")
    missing = [token for token in SPECIAL_TOKENS if token not in pieces]
    if missing:
        raise InputError(
            f"{source}: the vocabulary lacks {', '.join(missing)}. Expected a BERT vocabulary, one WordPiece a line, "
            f"with {' '.join(SPECIAL_TOKENS)}."
        )
    # Lines of exotic white space (Google's Chinese vocabulary has two) may strip to equal pieces, as in the reference.
    first: dict[str, int] = {}
    for number, piece in enumerate(raw, start=1):
        if piece.strip() and first.setdefault(piece, number) != number:
            raise InputError(f"{source}:{number}: the piece {piece!r} is on line {first[piece]} already. Remove one.")
        if len(piece.removeprefix("##").encode()) > _MAX_PIECE_BYTES:
            raise InputError(f"{source}:{number}: a piece of over {_MAX_PIECE_BYTES} bytes. Split or remove it.")
