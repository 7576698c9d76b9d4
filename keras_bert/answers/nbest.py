"""Chooses answers from the logits of a batch's windows, in the graph: `tasks.squad.answers.best_answers`.

Shapes: B questions, W windows, S tokens of the longest window, K candidates of all questions, L answers listed.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.answers.rules import LENGTH_WEIGHT, NO_SPAN_ODDS, NO_SPAN_TEXT, TIE
from keras_bert.answers.ties import settle_ties
from keras_bert.answers.windows import Layout, Windows, best_cells
from keras_bert.tokenization.exact_normalizer import bisect, select

if TYPE_CHECKING:  # It needs tensorflow-text, which may be missing where models are only loaded and trained.
    from keras_bert.answers.projection import Projection

# Candidates of a question that are turned into text, for each answer listed; more only if too many texts are equal.
_FIRST_LOOK, _GROWTH = 2, 8


class Settings(NamedTuple):
    """The settings of `tasks.squad.answers.best_answers`. The defaults are run_squad.py's (:85-148)."""

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    @property
    def num_listed(self) -> int:
        """L: "no answer" is listed even if it is not among the best."""
        return self.n_best_size + self.version_2_with_negative


class Candidates(NamedTuple):
    """Candidates, question after question, the best first; "no answer" among them.

    Attributes:
        rows: int64 [K], questions.
        begins, ends: int64 [K], characters as `Projection.spans` gives them; -1 for "no answer".
        start_logits, end_logits: float64 [K].
    """

    rows: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    start_logits: tf.Tensor
    end_logits: tf.Tensor

    def select(self, indices: tf.Tensor) -> "Candidates":
        """Returns the candidates at `indices`, int."""
        return Candidates(*(tf.gather(column, indices) for column in self))


# === Candidates ===


def find_candidates(
    windows: Windows,
    layout: Layout,
    logits: tf.Tensor,
    projection: "Projection",
    num_rows: tf.Tensor,
    settings: Settings,
) -> tuple[Candidates, tf.Tensor]:
    """Combines the best starts and ends of each window.

    Args:
        windows: of B questions.
        layout: of the windows.
        logits: float32 [W, S, 2].
        projection: of the contexts' tokens.
        num_rows: int64, B.
        settings: gives the n-best size, the longest answer, and if a question may have no answer.

    Returns:
        (candidates; the questions' null scores, float64 [B, 2], zeros for a question without windows).
    """
    cells = _spans(windows, layout, logits, projection, settings)
    flat = tf.reshape(tf.cast(logits, tf.float64), [-1, 2])
    begins, ends = projection.spans(*(tf.gather(tf.reshape(layout.tokens, [-1]), cell) for cell in cells))
    start_logits, end_logits = (tf.gather(flat[:, side], cell) for side, cell in enumerate(cells))
    rows = tf.gather(windows.rows, cells[0] // tf.shape(layout.tokens, tf.int64)[1])
    nulls = _null_logits(windows, logits, num_rows)
    if settings.version_2_with_negative:
        null_rows, null_logits = tf.range(num_rows), nulls
    else:  # A question without any possible span still gets an answer.
        counts = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, num_rows)
        null_rows = tf.squeeze(tf.where(counts == 0), 1)
        null_logits = tf.zeros([tf.size(null_rows), 2], tf.float64)
    none = tf.fill([tf.size(null_rows)], tf.constant(-1, tf.int64))
    spans = (rows, begins, ends, start_logits, end_logits)
    no_answers = (null_rows, none, none, null_logits[:, 0], null_logits[:, 1])
    candidates = Candidates(*(tf.concat(pair, axis=0) for pair in zip(spans, no_answers, strict=True)))
    scores = candidates.start_logits + candidates.end_logits
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(candidates.rows, order), stable=True))
    # Among equals the earlier window, start and end come first, "no answer" last.
    settled = settle_ties(tf.gather(scores, order), order, TIE, tf.gather(candidates.rows, order))
    return candidates.select(tf.gather(order, settled)), nulls


def _spans(
    windows: Windows, layout: Layout, logits: tf.Tensor, projection: "Projection", settings: Settings
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds starts and ends that may be an answer: cells of the W * S, int64 [K] each, in the windows' order."""
    shape = tf.shape(layout.tokens, tf.int64)
    # Query and special tokens may be among the best, padding may not.
    lowest = tf.constant(-np.inf, tf.float32)
    scores = tf.where(layout.inputs["padding_mask"][:, :, tf.newaxis] == 1, tf.cast(logits, tf.float32), lowest)
    count = tf.minimum(settings.n_best_size, tf.cast(shape[1], tf.int32))
    # `tf.math.top_k` promises the first of equals.
    indices = tf.sort(tf.math.top_k(tf.transpose(scores, [0, 2, 1]), count).indices)  # [W, 2, count]
    indices = tf.cast(indices, tf.int64)
    cells = indices + (tf.range(shape[0]) * shape[1])[:, tf.newaxis, tf.newaxis]
    tokens = tf.gather(tf.reshape(layout.tokens, [-1]), cells)
    best = best_cells(windows, layout, tf.size(projection.starts, tf.int64), LENGTH_WEIGHT)
    best = tf.concat([best, [-1]], axis=0)
    is_start = tf.gather(best, tf.where(tokens[:, 0] >= 0, tokens[:, 0], tf.size(best, tf.int64) - 1)) == cells[:, 0]
    is_end = tokens[:, 1] >= 0
    lengths = cells[:, 1, tf.newaxis, :] - cells[:, 0, :, tf.newaxis] + 1  # [W, starts, ends]
    is_span = (lengths >= 1) & (lengths <= settings.max_answer_length)
    spans = tf.where(is_span & is_start[:, :, tf.newaxis] & is_end[:, tf.newaxis, :])  # [K, 3]
    return tuple(tf.gather_nd(cells[:, side], tf.gather(spans, [0, 1 + side], axis=1)) for side in (0, 1))


def _null_logits(windows: Windows, logits: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
    """Returns the logits of [CLS] in the window where their sum is lowest: float64 [B, 2]; 0.0 without a window."""
    of_cls = tf.cast(logits[:, 0], tf.float64)  # [W, 2]
    sums = of_cls[:, 0] + of_cls[:, 1]
    lowest = tf.math.unsorted_segment_min(sums, windows.rows, num_rows)
    count = tf.size(windows.rows, tf.int64)
    number = tf.where(sums == tf.gather(lowest, windows.rows), tf.range(count), count)
    first = tf.minimum(tf.math.unsorted_segment_min(number, windows.rows, num_rows), count)
    return tf.gather(tf.concat([of_cls, tf.zeros([1, 2], tf.float64)], axis=0), first)


# === The lists ===


class Listed:
    """The n-best lists, padded with "", -1 and 0.0.

    Args:
        candidates: the answers to list, of B questions.
        answers: string, their texts.
        num_rows: int64, B.
        settings: gives L.

    Attributes:
        texts: string [B, L].
        begins, ends: int64 [B, L], as in `Candidates`.
        probabilities: float64 [B, L].
        start_logits, end_logits: float64 [B, L].
    """

    def __init__(self, candidates: Candidates, answers: tf.Tensor, num_rows: tf.Tensor, settings: Settings):
        counts = tf.math.unsorted_segment_sum(tf.ones_like(candidates.rows), candidates.rows, num_rows)
        splits = tf.pad(tf.cumsum(counts), [[1, 0]])

        def table(values, default):
            ragged = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            return ragged.to_tensor(default, shape=[None, settings.num_listed])

        self.texts = table(answers, "")
        self.begins, self.ends = table(candidates.begins, -1), table(candidates.ends, -1)
        self.start_logits, self.end_logits = table(candidates.start_logits, 0.0), table(candidates.end_logits, 0.0)
        scores = table(candidates.start_logits + candidates.end_logits, -np.inf)
        powers = tf.exp(scores - tf.reduce_max(scores, axis=1, keepdims=True))
        self.probabilities = powers / tf.reduce_sum(powers, axis=1, keepdims=True)


def list_answers(candidates: Candidates, projection: "Projection", num_rows: tf.Tensor, settings: Settings) -> Listed:
    """Chooses the answers with different texts.

    Each place in the context counts once. If the best places give too few texts, 8 times as many are looked at, until
    there are enough texts or no more candidates.

    Args:
        candidates: of B questions, each with one at least.
        projection: cuts their texts.
        num_rows: int64, B.
        settings: n-best size.
    """
    # "No answer" differs from every place in the context, and between questions.
    size = tf.size(projection.places, tf.int64) + 1
    key = tf.where(candidates.begins >= 0, candidates.begins * size + candidates.ends, -1 - candidates.rows)
    candidates = candidates.select(_firsts(key))
    rank = tf.range(tf.size(candidates.rows, tf.int64)) - bisect(candidates.rows, candidates.rows)
    is_null = candidates.begins < 0

    def look(limit, _texts, _indices, _is_open):
        (indices,) = select((rank < limit) | is_null, tf.range(tf.size(rank, tf.int64)))
        chosen = candidates.select(indices)
        texts = _texts_of(chosen, projection, settings)
        _, text = tf.unique(texts)
        firsts = _firsts(chosen.rows * (tf.size(texts, tf.int64) + 1) + tf.cast(text, tf.int64))
        indices, texts = tf.gather(indices, firsts), tf.gather(texts, firsts)
        (rows,) = select(tf.gather(rank, indices) < limit, tf.gather(candidates.rows, indices))
        enough = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, num_rows) >= settings.n_best_size
        more = tf.math.unsorted_segment_max(rank, candidates.rows, num_rows) >= limit
        return limit * _GROWTH, texts, indices, tf.reduce_any(more & ~enough)

    limit = tf.constant(_FIRST_LOOK * settings.n_best_size, tf.int64)
    state = (limit, tf.constant([], tf.string), tf.constant([], tf.int64), tf.constant(True))
    shapes = (tf.TensorShape([]), *[tf.TensorShape([None])] * 2, tf.TensorShape([]))
    _, texts, indices, _ = tf.while_loop(lambda *state: state[-1], look, state, shapes)
    chosen = candidates.select(indices)
    rank = tf.range(tf.size(indices, tf.int64)) - bisect(chosen.rows, chosen.rows)
    (kept,) = select((rank < settings.n_best_size) | (chosen.begins < 0), tf.range(tf.size(indices, tf.int64)))
    return Listed(chosen.select(kept), tf.gather(texts, kept), num_rows, settings)


def _firsts(keys: tf.Tensor) -> tf.Tensor:
    """Returns the place of each key's first occurrence, ascending: int32."""
    distinct, which = tf.unique(keys)
    return tf.math.unsorted_segment_min(tf.range(tf.size(which)), which, tf.size(distinct))


def _texts_of(candidates: Candidates, projection: "Projection", settings: Settings) -> tf.Tensor:
    is_null = candidates.begins < 0
    spans = tf.squeeze(tf.where(~is_null), 1)
    texts = projection.cut(tf.gather(candidates.begins, spans), tf.gather(candidates.ends, spans))
    none = tf.fill([tf.size(is_null)], "" if settings.version_2_with_negative else NO_SPAN_TEXT)
    return tf.tensor_scatter_nd_update(none, spans[:, tf.newaxis], texts)


def choose(listed: Listed, nulls: tf.Tensor, settings: Settings) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the best listed answer, or none.

    Args:
        listed: of B questions.
        nulls: float64 [B, 2], null scores.
        settings: says if a question may have no answer, and above which odds it has none.

    Returns:
        (int32 [B], index of the answer in the list; float64 [B], by how much "no answer" outscores the best answer).
    """
    is_span = listed.begins >= 0
    best = tf.argmax(is_span, axis=1, output_type=tf.int32)
    has_span = tf.reduce_any(is_span, axis=1)
    start, end = (tf.gather(column, best, batch_dims=1) for column in (listed.start_logits, listed.end_logits))
    odds = tf.where(has_span, nulls[:, 0] + nulls[:, 1] - start - end, tf.constant(NO_SPAN_ODDS, tf.float64))
    if not settings.version_2_with_negative:
        return tf.zeros_like(best), odds
    null = tf.argmax(~is_span, axis=1, output_type=tf.int32)
    gives_none = ~has_span | (odds > tf.constant(settings.null_score_diff_threshold, tf.float64))
    return tf.where(gives_none, null, best), odds
