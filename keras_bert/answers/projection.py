"""Projects token spans onto the context's own text, in the graph, as `tasks.squad.text.project` does for one span.

A prediction is the normalized text from its first token to its last. Its original is the text's own words, from the
word of the first token to that of the last. If both have the same number of characters, not counting white space, they
are aligned one to one, from the first place in the original where the normalized prediction occurs. Otherwise, or if a
token of the prediction is [UNK] or another special token, the answer is the whole original.

Shapes: C characters, T tokens, G characters other than white space, V normalized words, N their characters, P spans,
U spans' different first tokens, M places that a search still looks at. All count the whole batch.
"""

from typing import NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text

from keras_bert.answers.source_text import SourceText, cut_texts
from keras_bert.tokenization.exact_normalizer import ExactNormalizer, bisect, row_ids
from keras_bert.tokenization.graph_tokenizer import NO_PIECE, as_constant, wordpiece_model, wordpiece_op
from keras_bert.tokenization.normalizer_model import MARKER, normalizer_model

# As in `tasks.squad.text`: the narrow no-break space counts, other Unicode white space does not.
_BLANKS = tuple(map(ord, " \t\r\n\u202f"))
_BLANK_BIT = 1 << 21  # Above every code point.
_NO_LIMIT = 2**31 - 1
_HOLDS_MARKER = f"(?s).*{MARKER}.*"


class NormalizedWords(NamedTuple):
    """Words in the order of the texts.

    Attributes:
        codes: int32 [N], the characters; a stand-in may replace punctuation that Unicode added later.
        starts: int64 [V + 1], the first character of each word, and N.
        row_splits: int64 [B + 1], of words.
    """

    codes: tf.Tensor
    starts: tf.Tensor
    row_splits: tf.Tensor


def split_words(texts: tf.Tensor, lowercase: bool) -> NormalizedWords:
    """Splits texts, string [B], into words, punctuation characters and ideographs, normalized, as the tokenizer does.

    It is `keras_bert.tokenization.normalizer.split_words` in the graph. B texts have V words of N characters.
    """
    normalizer = tf_text.FastBertNormalizer(model_buffer=as_constant(normalizer_model(lowercase)))
    exact = ExactNormalizer(lowercase, normalizer.normalize, replaces_long_words=False)
    normalized = normalizer.normalize(texts)
    is_doubtful = tf.strings.regex_full_match(normalized, _HOLDS_MARKER)

    def exactly():
        rows = tf.where(is_doubtful)
        return tf.tensor_scatter_nd_update(normalized, rows, exact(tf.gather_nd(texts, rows))[0])

    normalized = tf.cond(tf.reduce_any(is_doubtful), exactly, lambda: normalized)
    # A word that no piece matches becomes one token. (The op requires at least one piece.)
    splitter = wordpiece_op(as_constant(wordpiece_model([MARKER, NO_PIECE], _NO_LIMIT)))
    _, starts, _ = splitter.tokenize_with_offsets(normalized)
    codes, offsets = tf.strings.unicode_decode_with_offsets(normalized, "UTF-8")
    is_inside = codes.values != ord(" ")
    bases = tf.cumsum(tf.cast(tf.strings.length(normalized), tf.int64), exclusive=True)
    offsets = tf.boolean_mask(offsets.values + tf.gather(bases, row_ids(offsets.row_splits)), is_inside)
    first_offsets = starts.values + tf.gather(bases, row_ids(starts.row_splits))
    word_starts = tf.concat([bisect(offsets, first_offsets), [tf.size(offsets, tf.int64)]], axis=0)
    return NormalizedWords(tf.boolean_mask(codes.values, is_inside), word_starts, starts.row_splits)


def _place_tokens(source: SourceText, tokenizer, words: NormalizedWords) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns where each token starts and ends (exclusive) among the N normalized characters, int64 [T] each.

    The third result is bool [T], True for special tokens, [UNK] among them.
    """
    # A special token that is written out in the text: no other token has brackets at both ends.
    firsts, lasts = (tf.gather(source.codes, at) for at in (source.token_starts, source.token_ends - 1))
    is_special = (firsts == ord("[")) & (lasts == ord("]"))
    is_unknown = (source.token_ids == tokenizer.unk_token_id) & ~is_special
    pieces, unknown = tokenizer.get_vocabulary(), tokenizer.unk_token
    begins = tf.constant([not piece.startswith("##") or piece == unknown for piece in pieces])
    lengths = tf.constant([len(piece.removeprefix("##")) for piece in pieces], tf.int64)
    begins = tf.cast(tf.gather(begins, source.token_ids), tf.int64)
    begins = tf.where(is_special, tf.constant(3, tf.int64), begins)  # Two brackets and a name.
    # Words are counted text by text, since some words of a cut text have no token.
    number = tf.pad(tf.cumsum(begins), [[1, 0]])
    row_starts = tf.gather(source.token_splits, source.token_rows)
    word = tf.gather(words.row_splits, source.token_rows) + number[1:] - 1 - tf.gather(number, row_starts)
    word_lengths = tf.gather(words.starts, word + 1) - tf.gather(words.starts, word)
    lengths = tf.where(is_unknown, word_lengths, tf.gather(lengths, source.token_ids))
    # Tokens follow each other without gaps.
    sums = tf.pad(tf.cumsum(lengths), [[1, 0]])
    first = tf.gather(words.starts, tf.gather(words.row_splits, source.token_rows))
    starts = first + sums[:-1] - tf.gather(sums, row_starts)
    return starts, starts + lengths, is_unknown | is_special


class Projection:
    """Precomputed indices for projecting the token spans of a batch of texts.

    Args:
        source: the texts.
        tokenizer: BertTokenizer that read them.

    Attributes:
        starts, ends: int64 [T], where each token starts and ends (exclusive) among the N normalized characters.
        places: int64 [G], index among the C characters of each that is not white space.
    """

    def __init__(self, source: SourceText, tokenizer):
        words = split_words(source.texts, tokenizer.lowercase)
        self.starts, self.ends, is_unknown = _place_tokens(source, tokenizer, words)
        self._num_unknown = tf.pad(tf.cumsum(tf.cast(is_unknown, tf.int64)), [[1, 0]])  # [T + 1], before each token
        # The N normalized characters; those that begin a word are marked.
        first_codes = tf.cast(words.starts[:-1], tf.int32)[:, tf.newaxis]
        marks = tf.scatter_nd(first_codes, tf.fill([tf.size(first_codes)], _BLANK_BIT), [tf.size(words.codes)])
        self._codes = words.codes + marks
        # The G characters; a word begins after white space.
        limits = tf.gather(source.limits, row_ids(source.row_splits))
        is_blank = tf.reduce_any(source.codes[:, tf.newaxis] == tf.constant(_BLANKS), axis=1)
        is_inside = ~is_blank & (tf.range(tf.size(source.codes, tf.int64)) < limits)
        is_start = is_inside & ~tf.concat([[False], is_inside[:-1]], axis=0)
        self.places = tf.squeeze(tf.where(is_inside), 1)
        begins = tf.gather(is_start, self.places)  # [G]
        word_of = tf.cumsum(tf.cast(begins, tf.int64))  # From 1.
        # The texts with one blank before each word, and the index of each of the G in them.
        size = tf.size(self.places, tf.int64)
        self._text_places = tf.range(size) + word_of
        blanks = tf.fill([size + tf.reduce_sum(tf.cast(begins, tf.int64))], ord(" "))
        codes = tf.gather(source.codes, self.places)
        self._text = tf.tensor_scatter_nd_update(blanks, self._text_places[:, tf.newaxis], codes)
        # The range of each token's word among the G and among the N, int64 [T] each; ends are exclusive.
        word_firsts = tf.concat([tf.squeeze(tf.where(begins), 1), [size]], axis=0)
        word = tf.gather(word_of, bisect(self.places, source.token_starts)) - 1
        self._firsts, self._limits = tf.gather(word_firsts, word), tf.gather(word_firsts, word + 1)
        self._word_starts = tf.gather(self.starts, bisect(word, word))
        self._word_ends = tf.gather(self.ends, bisect(word, word, "right") - 1)

    def spans(self, firsts: tf.Tensor, lasts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Projects the spans from token `firsts` to token `lasts` (inclusive), int64 [P].

        Returns:
            Where the answers start and end (exclusive) among the G characters, int64 [P] each.
        """
        originals = tf.gather(self._firsts, firsts), tf.gather(self._limits, lasts)
        normalized = tf.gather(self._word_starts, firsts), tf.gather(self._word_ends, lasts)
        is_known = tf.gather(self._num_unknown, lasts + 1) == tf.gather(self._num_unknown, firsts)
        is_aligned = is_known & (originals[1] - originals[0] == normalized[1] - normalized[0])
        lengths = tf.gather(self.ends, lasts) - tf.gather(self.starts, firsts)
        aligned = tf.squeeze(tf.where(is_aligned), 1)
        begins = self._find(tf.gather(firsts, aligned), tf.gather(lengths, aligned))
        shifts = originals[0] - normalized[0]
        begin = tf.tensor_scatter_nd_update(originals[0], aligned[:, tf.newaxis], begins + tf.gather(shifts, aligned))
        return begin, tf.where(is_aligned, begin + lengths, originals[1])

    def _find(self, tokens: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Finds the first place where a prediction occurs, from its first word's start on.

        Args:
            tokens: int64 [P], first tokens.
            lengths: int64 [P], characters of the predictions.

        Returns:
            int64 [P], index among the N characters.
        """
        distinct, which = tf.unique(tokens)
        own = tf.gather(self.starts, distinct)  # [U]
        longest = tf.math.unsorted_segment_max(lengths, which, tf.size(distinct))
        earlier = tf.ragged.range(tf.gather(self._word_starts, distinct), own)

        def compare(size, owners, starts, begins):
            """Keeps the starts [M] from which `size + 1` characters are equal; an owner's first one is its result."""
            here, there = (tf.gather(self._codes, at + size) for at in (starts, tf.gather(own, owners)))
            # The first character's mark does not matter, since a prediction does not start with a blank.
            differ = tf.bitwise.bitwise_xor(here, there)
            is_equal = tf.where(size == 0, differ & (_BLANK_BIT - 1), differ) == 0
            owners, starts = tf.boolean_mask(owners, is_equal), tf.boolean_mask(starts, is_equal)
            first = tf.minimum(own, tf.math.unsorted_segment_min(starts, owners, tf.size(own)))
            begins = tf.where(lengths == size + 1, tf.gather(first, which), begins)
            is_open = tf.gather(longest, owners) > size + 1
            return size + 1, tf.boolean_mask(owners, is_open), tf.boolean_mask(starts, is_open), begins

        state = (tf.constant(0, tf.int64), row_ids(earlier.row_splits), earlier.values, tf.gather(own, which))
        shapes = (tf.TensorShape([]), *[tf.TensorShape([None])] * 3)
        return tf.while_loop(lambda size, owners, *_: tf.size(owners) > 0, compare, state, shapes)[-1]

    def cut(self, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Cuts the answers from one of the G characters to another (exclusive), joined by single blanks: string [P]."""
        return cut_texts(self._text, tf.gather(self._text_places, begins), tf.gather(self._text_places, ends - 1) + 1)

    def characters(self, begins: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns where answers start and end (exclusive) among the C characters; the arguments are those of `cut`.

        They may have any shape. The result for a negative `begins` is meaningless.
        """
        indices = tf.concat([self.places, [0]], axis=0)  # So that there is at least one.
        return tf.gather(indices, tf.maximum(begins, 0)), tf.gather(indices, tf.maximum(ends - 1, 0)) + 1
