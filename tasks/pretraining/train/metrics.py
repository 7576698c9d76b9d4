"""Metrics of pre-training beyond those that the trainer sums up."""

import math

import numpy as np


def most_frequent_accuracy(train_counts: np.ndarray, eval_counts: np.ndarray) -> float:
    """Returns the accuracy of always giving the most frequent answer of training, which a model has to beat.

    Args:
        train_counts, eval_counts: int, shape (answers,), how often each is the right one: WordPieces at masked
            positions, or the two labels of next-sentence prediction
            (`tasks.pretraining.data.records.RecordStatistics`).

    Returns:
        Share of the held-out questions with that answer; 0.0 if there are none.
    """
    total = int(eval_counts.sum())
    return float(eval_counts[np.argmax(train_counts)]) / total if total else 0.0


def perplexity(masked_lm_loss: float) -> float:
    """Returns exp(mean cross-entropy in nats), as in the paper's table 6; infinite where that overflows."""
    return math.exp(masked_lm_loss) if masked_lm_loss < 700 else math.inf
