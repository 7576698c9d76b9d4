"""Figures of pre-training beyond what the training loop sums up."""

import math

import numpy as np


def unigram_accuracy(train_answer_counts: np.ndarray, eval_answer_counts: np.ndarray) -> float:
    """Masked-LM accuracy of always answering the WordPiece that is the most frequent answer in training.

    Args:
        train_answer_counts, eval_answer_counts: int, shape (V,), how often each WordPiece is the answer at a masked
            position (`tasks.records.RecordStatistics.answer_counts`).

    Returns:
        Share of the held-out masked positions with that answer; 0.0 if there are none.
    """
    total = int(eval_answer_counts.sum())
    return float(eval_answer_counts[np.argmax(train_answer_counts)]) / total if total else 0.0


def perplexity(masked_lm_loss: float) -> float:
    """exp(mean cross-entropy in nats), as in the paper's table 6; infinite where that overflows."""
    return math.exp(masked_lm_loss) if masked_lm_loss < 700 else math.inf
