"""Chooses answers from the logits of a batch's windows, in the graph, as `tasks.squad.answers.best_answers` does.

Shapes: B questions, W windows, S tokens of the longest window, K candidates of all questions, L answers listed.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.answers.rules import LENGTH_WEIGHT, NO_SPAN_ODDS, NO_SPAN_TEXT, TIE
from keras_bert.answers.tables import Table
from keras_bert.answers.ties import settle_ties
from keras_bert.answers.windows import Layout, Windows, best_cells
from keras_bert.tokenization.exact_normalizer import bisect


class Candidates(NamedTuple):
    """Candidates, question after question, the best first; "no answer" among them.

    Attributes:
        rows: int64 [K], index of each candidate's question.
        begins, ends: int64 [K], characters as `Projection.spans` gives them; -1 for "no answer".
        scores: float64 [K], sums of the logits of start and end.
    """

    rows: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor

    def select(self, indices: tf.Tensor) -> "Candidates":
        """Returns the candidates at int `indices`."""
        return Candidates(*(tf.gather(column, indices) for column in self))


class Listed(NamedTuple):
    """The n-best lists of B questions.

    Attributes:
        texts: string [B, L], padded with "".
        begins, ends: int64 [B, L], as in `Candidates`, padded with -1.
        scores: float64 [B, L], as in `Candidates`, padded with -inf.
    """

    texts: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor


class Choice(NamedTuple):
    """How answers are chosen, as by `tasks.squad.answers.best_answers`. The defaults are run_squad.py's (:85-148)."""

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    @property
    def num_listed(self) -> int:
        """L, the number of answers listed: "no answer" is listed even if it is not among the best."""
        return self.n_best_size + self.version_2_with_negative

    def answer(self, windows: Windows, layout: Layout, logits: tf.Tensor, projection, num_rows: tf.Tensor) -> tuple:
        """Chooses the best answer to each question, or none.

        Args:
            windows: of B questions.
            layout: of the windows.
            logits: float32 [W, S, 2].
            projection: `keras_bert.answers.projection.Projection` of the contexts' tokens.
            num_rows: int64, B.

        Returns:
            `Listed`; the answer's index in the list, int32 [B]; and by how much "no answer" outscores the best answer,
            float64 [B].
        """
        candidates, nulls = self._find_candidates(windows, layout, logits, projection, num_rows)
        listed = self._list(candidates, projection, num_rows)
        return listed, *self._choose(listed, nulls)

    # === Candidates ===

    def _find_candidates(self, windows, layout, logits, projection, num_rows) -> tuple[Candidates, tf.Tensor]:
        """Combines the best starts and ends of each window; the arguments are those of `answer`.

        Returns:
            The candidates, and the questions' null scores, float64 [B], 0.0 for a question without windows.
        """
        cells = self._spans(windows, layout, logits, tf.size(projection.starts, tf.int64))
        flat = tf.reshape(tf.cast(logits, tf.float64), [-1, 2])
        begins, ends = projection.spans(*(tf.gather(tf.reshape(layout.tokens, [-1]), cell) for cell in cells))
        scores = tf.gather(flat[:, 0], cells[0]) + tf.gather(flat[:, 1], cells[1])
        rows = tf.gather(windows.rows, cells[0] // tf.shape(layout.tokens, tf.int64)[1])
        # The sum of [CLS]'s logits in the window where it is lowest.
        sums = tf.reduce_sum(tf.cast(logits[:, 0], tf.float64), axis=1)  # [W]
        counts = tf.math.unsorted_segment_sum(tf.ones_like(windows.rows), windows.rows, num_rows)
        lowest = tf.math.unsorted_segment_min(sums, windows.rows, num_rows)
        nulls = tf.where(counts > 0, lowest, tf.zeros_like(lowest))
        if self.version_2_with_negative:
            null_rows, null_scores = tf.range(num_rows), nulls
        else:  # A question without any possible span still gets an answer.
            counts = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, num_rows)
            null_rows = tf.squeeze(tf.where(counts == 0), 1)
            null_scores = tf.zeros([tf.size(null_rows)], tf.float64)
        none = tf.fill([tf.size(null_rows)], tf.constant(-1, tf.int64))
        spans, no_answers = (rows, begins, ends, scores), (null_rows, none, none, null_scores)
        candidates = Candidates(*(tf.concat(pair, axis=0) for pair in zip(spans, no_answers, strict=True)))
        order = tf.argsort(candidates.scores, direction="DESCENDING", stable=True)
        order = tf.gather(order, tf.argsort(tf.gather(candidates.rows, order), stable=True))
        # Among equals the earlier window, start and end come first, "no answer" last.
        settled = settle_ties(tf.gather(candidates.scores, order), order, TIE, tf.gather(candidates.rows, order))
        return candidates.select(tf.gather(order, settled)), nulls

    def _spans(self, windows, layout, logits, num_tokens) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the starts and ends of possible spans, window by window: indices of the W * S cells, int64 [K] each."""
        shape = tf.shape(layout.tokens, tf.int64)
        # Query and special tokens may be among the best, padding may not.
        lowest = tf.constant(-np.inf, tf.float32)
        scores = tf.where(layout.inputs["padding_mask"][:, :, tf.newaxis] == 1, tf.cast(logits, tf.float32), lowest)
        count = tf.minimum(self.n_best_size, tf.cast(shape[1], tf.int32))
        # `tf.math.top_k` puts the first of equal scores first.
        indices = tf.sort(tf.math.top_k(tf.transpose(scores, [0, 2, 1]), count).indices)  # [W, 2, count]
        indices = tf.cast(indices, tf.int64)
        cells = indices + (tf.range(shape[0]) * shape[1])[:, tf.newaxis, tf.newaxis]
        tokens = tf.gather(tf.reshape(layout.tokens, [-1]), cells)
        best = tf.concat([best_cells(windows, layout, num_tokens, LENGTH_WEIGHT), [-1]], axis=0)
        is_start = tf.gather(best, tf.where(tokens[:, 0] >= 0, tokens[:, 0], num_tokens)) == cells[:, 0]
        is_end = tokens[:, 1] >= 0
        lengths = cells[:, 1, tf.newaxis, :] - cells[:, 0, :, tf.newaxis] + 1  # [W, starts, ends]
        is_span = (lengths >= 1) & (lengths <= self.max_answer_length)
        spans = tf.where(is_span & is_start[:, :, tf.newaxis] & is_end[:, tf.newaxis, :])  # [K, 3]
        return tuple(tf.gather_nd(cells[:, side], tf.gather(spans, [0, 1 + side], axis=1)) for side in (0, 1))

    # === The lists ===

    def _list(self, candidates: Candidates, projection, num_rows: tf.Tensor) -> Listed:
        """Lists the best candidate of each different text, at least one for each question."""
        # Each place in the context is cut once. "No answer" differs from every place, and between questions.
        size = tf.size(projection.places, tf.int64) + 1
        place = tf.where(candidates.begins >= 0, candidates.begins * size + candidates.ends, -1 - candidates.rows)
        candidates = candidates.select(_firsts(place))
        is_null = candidates.begins < 0
        spans = tf.squeeze(tf.where(~is_null), 1)
        of_spans = projection.cut(tf.gather(candidates.begins, spans), tf.gather(candidates.ends, spans))
        none = tf.fill([tf.size(is_null)], "" if self.version_2_with_negative else NO_SPAN_TEXT)
        texts = tf.tensor_scatter_nd_update(none, spans[:, tf.newaxis], of_spans)
        _, text = tf.unique(texts)
        firsts = _firsts(candidates.rows * (tf.size(texts, tf.int64) + 1) + tf.cast(text, tf.int64))
        candidates, texts = candidates.select(firsts), tf.gather(texts, firsts)
        rank = tf.range(tf.size(firsts, tf.int64)) - bisect(candidates.rows, candidates.rows)
        kept = tf.squeeze(tf.where((rank < self.n_best_size) | (candidates.begins < 0)), 1)
        candidates, texts = candidates.select(kept), tf.gather(texts, kept)
        table = Table(candidates.rows, num_rows, self.num_listed)
        begins, ends = table(candidates.begins, -1), table(candidates.ends, -1)
        return Listed(table(texts, ""), begins, ends, table(candidates.scores, -np.inf))

    def _choose(self, listed: Listed, nulls: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Chooses the best listed answer, or none, by the null scores, float64 [B]."""
        is_span = listed.begins >= 0
        best = tf.argmax(is_span, axis=1, output_type=tf.int32)
        has_span = tf.reduce_any(is_span, axis=1)
        score = tf.gather(listed.scores, best, batch_dims=1)
        odds = tf.where(has_span, nulls - score, tf.constant(NO_SPAN_ODDS, tf.float64))
        if not self.version_2_with_negative:
            return tf.zeros_like(best), odds
        null = tf.argmax(~is_span, axis=1, output_type=tf.int32)
        gives_none = ~has_span | (odds > tf.constant(self.null_score_diff_threshold, tf.float64))
        return tf.where(gives_none, null, best), odds


def _firsts(keys: tf.Tensor) -> tf.Tensor:
    """Returns the place of each key's first occurrence, ascending: int32."""
    distinct, which = tf.unique(keys)
    return tf.math.unsorted_segment_min(tf.range(tf.size(which)), which, tf.size(distinct))
