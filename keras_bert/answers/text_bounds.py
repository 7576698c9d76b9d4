"""Bounds the cost of tokenizing texts, and checks token ids: the beginning of every head's served graph.

The graph uses only ops that TensorFlow Serving links, and no fixed length: a batch is as long as its longest row.

Shapes: B batch, S sequence.
"""

import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_bert.encoder.backbone import BertBackbone

# English takes 5 to 6 bytes per token, white space included, so one look is enough for nearly every long text.
_BYTES_PER_TOKEN = 8
_GROWTH = 4
# Limits on the bytes of a text that are read; a text of spaces, or of one endless word, may need all of them.
MOST_BYTES, MOST_BYTES_PER_TOKEN = 65536, 256

# White space, the ASCII punctuation that Unicode does not call case-ignorable, and the eight CJK blocks of
# google-research/bert's tokenization.py.
_AFTER_LAST_PLACE = (
    r"[^ \t\n\r!\"#$%&()*+,\-/;<=>?@\[\\\]_{|}~"
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}"
    r"\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{2F800}-\x{2FA1F}]+\z"
)


def bound_texts(texts: tf.Tensor, tokenizer, num_tokens: int) -> tf.Tensor:
    """Cuts long texts so that tokenizing them costs about as much as `num_tokens` tokens, and keeps these tokens.

    Only the first `most_bytes(num_tokens)` bytes of a text count, 64 KiB at least. A cut after a fixed number of bytes
    would not be safe: all of them may belong to one token (blanks, deleted control characters, one endless word), and
    the next word may still count.

    A place is safe to cut if the tokens before it do not depend on what follows. That holds after white space, after
    a CJK character (the tokenizer isolates it first of all), and after most ASCII punctuation: words never reach
    across these. One rule of the tokenizer looks ahead: lower-casing a capital sigma looks past case-ignorable
    characters (Unicode, Final_Sigma). So apostrophe, full stop, colon, circumflex and grave accent are not safe.

    The algorithm takes the longest prefix within some bytes that ends at a safe place. If the prefix has `num_tokens`
    tokens, the rest of the text would be truncated anyway; if not, it looks at 4 times as many bytes. Ordinary text
    ends in the first round. The worst text (no place to cut, or too few tokens) costs about 4/3 of tokenizing it.

    Args:
        texts: string, shape (B,); need not be valid UTF-8.
        tokenizer: BertTokenizer.
        num_tokens: int, number of leading tokens of each text that may be used.

    Returns:
        string, shape (B,): the texts or prefixes of them, whose first `num_tokens` tokens are those of the texts, or of
        their first `most_bytes(num_tokens)` bytes.
    """
    bound = functools.partial(_bound_long_texts, tokenizer=tokenizer, num_tokens=num_tokens)
    bound = as_one_op(bound, tf.TensorSpec([None], tf.string))
    is_long = tf.strings.length(texts) > _BYTES_PER_TOKEN * num_tokens
    return tf.cond(tf.reduce_any(is_long), lambda: bound(texts), lambda: texts)


def _bound_long_texts(texts: tf.Tensor, tokenizer, num_tokens: int) -> tf.Tensor:
    lengths, most = tf.strings.length(texts), most_bytes(num_tokens)
    num_wanted = num_tokens + tokenizer.special_tokens_in_strings  # The last may be the "[" of a cut "[MASK]".

    def look(limit, bounded, open_rows):
        rows = tf.where(open_rows)
        originals = tf.strings.substr(tf.gather_nd(texts, rows), 0, most)
        prefixes = tf.strings.substr(originals, 0, limit)
        # Drops a character that the limit has cut in two, and other bytes that the tokenizer would drop as invalid.
        prefixes = tf.strings.unicode_transcode(prefixes, "UTF-8", "UTF-8", errors="ignore")
        prefixes = tf.strings.regex_replace(prefixes, _AFTER_LAST_PLACE, "")
        enough = tokenizer.tokenize(prefixes).row_lengths() >= num_wanted
        bounded = tf.tensor_scatter_nd_update(bounded, rows, tf.where(enough, prefixes, originals))
        limit = limit * _GROWTH
        still_open = ~enough & (tf.gather_nd(lengths, rows) > limit) & (limit < most)
        return limit, bounded, tf.tensor_scatter_nd_update(open_rows, rows, still_open)

    limit = tf.constant(_BYTES_PER_TOKEN * num_tokens)
    state = (limit, texts, lengths > limit)
    shapes = (limit.shape, tf.TensorShape([None]), tf.TensorShape([None]))
    return tf.while_loop(lambda limit, bounded, open_rows: tf.reduce_any(open_rows), look, state, shapes)[1]


def as_one_op(function: Callable, *signature) -> tf.types.experimental.PolymorphicFunction:
    """Returns a function that is not inlined: an inlined loop's ops would cost time even if it is not entered."""
    return tf.function(function, signature, autograph=False, experimental_attributes={"_noinline": True})


def most_bytes(num_tokens: int) -> int:
    """Returns the number of bytes of a text that count if `num_tokens` tokens are used."""
    return max(MOST_BYTES, MOST_BYTES_PER_TOKEN * num_tokens)


def find_backbone(model: keras.Model) -> BertBackbone | None:
    """Returns the encoder inside a functional model, at any depth, or None."""
    if isinstance(model, BertBackbone):
        return model
    inner = (find_backbone(layer) for layer in getattr(model, "layers", ()))
    return next((backbone for backbone in inner if backbone is not None), None)


def check_token_ids(
    backbone: BertBackbone, token_ids: tf.Tensor, segment_ids: tf.Tensor, lengths: tf.Tensor
) -> list[tf.Operation]:
    """Returns ops that fail, with a message for the client, on ids for which the embeddings have no row.

    Without them an answer could be silently wrong: a negative id counts from the table's end, and an id beyond the end
    is an error on a CPU but a row of zeros on a GPU. An empty batch passes, since the minimum of no numbers is the
    largest int32 and their maximum is the least.

    Args:
        backbone: gives the sizes.
        token_ids: int32, shape (B, S), or with further axes between.
        segment_ids: int32, of the same shape.
        lengths: int32, of that shape without the last axis.
    """
    shape = tf.shape(token_ids)
    longest = backbone.max_sequence_length

    def same_shape(name, values, expected):
        message = f"`{name}` must fit the shape of `token_ids`, (batch, length). Received shapes:"
        return tf.debugging.Assert(tf.reduce_all(tf.shape(values) == expected), [message, tf.shape(values), shape])

    def within(name, values, least, largest, bounds):
        low, high = tf.reduce_min(values), tf.reduce_max(values)
        message = f"`{name}` must be {bounds}. Received least and largest:"
        return tf.debugging.Assert((low >= least) & (high <= largest), [message, low, high])

    def below(name, values, size):
        return within(name, values, 0, size - 1, f"from 0 to {size - 1}")

    return [
        within("token_ids", shape[-1], 1, longest, f"1 to {longest} long"),
        same_shape("segment_ids", segment_ids, shape),
        same_shape("lengths", lengths, shape[:-1]),
        below("token_ids", token_ids, backbone.vocabulary_size),
        below("segment_ids", segment_ids, backbone.num_segments),
        within("lengths", lengths, 1, shape[-1], "from 1 to the length of `token_ids`"),
    ]
