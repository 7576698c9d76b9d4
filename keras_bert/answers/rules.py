"""Constants and rules that decoding in Python (`tasks`) and decoding in the graph share.

This module does not import TensorFlow.
"""

from collections.abc import Mapping

import numpy as np

from keras_bert.errors import InputError

# === Windows ===

SPECIAL_TOKENS = 2  # [CLS] and [SEP].
# Weight of a window's length when the window of maximum context is chosen (google-research/bert run_squad.py:542).
LENGTH_WEIGHT = 0.01


def check_stride(max_seq_length: int, doc_stride: int | None) -> int:
    """Returns the stride between the windows of a long sentence: `doc_stride`, by default half of a window's pieces.

    Raises:
        InputError: the stride exceeds a window, so that pieces between two windows would be lost.
    """
    room = max_seq_length - SPECIAL_TOKENS
    if doc_stride is None:
        return max(1, room // 2)
    if doc_stride > room:
        raise InputError(
            f"doc_stride={doc_stride}: a sequence of {max_seq_length} tokens holds {room} sub-tokens. Those between "
            f"two windows would be lost. Give at most {room}."
        )
    return doc_stride


# === Texts of any length ===

# How a text longer than a sequence is read: without its end; without its middle; or in windows, whose outputs are
# pooled by the mean or the maximum of each component.
LONG_TEXTS = ("truncate", "head_tail", "mean", "max")
POOLED = LONG_TEXTS[2:]
MOST_TOKENS = 8192  # Number of tokens of a text that are read by default.

# === Embeddings ===

QUERY_PROMPT = "query"
PASSAGE_PROMPTS = ("document", "passage", "corpus")  # As sentence-transformers looks for them.


def search_prompts(prompts: Mapping[str, str]) -> tuple[str, str]:
    """Returns the names of an embedder's prompts for queries and for passages, "" where there is none."""
    passage = next((name for name in PASSAGE_PROMPTS if prompts.get(name)), "")
    return QUERY_PROMPT if prompts.get(QUERY_PROMPT) else "", passage


def unit(vectors: np.ndarray) -> np.ndarray:
    """Divides vectors, float (..., D), by their lengths."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


# === Labels ===

NO_LABEL = "none"  # The answer if no label reaches its threshold.

# === Answers to questions ===

# google-research/bert's answer to a question that must have one, if no span is possible (run_squad.py:877).
NO_SPAN_TEXT = "empty"
# The null odds if no span is possible. google-research/bert, which fails in that case, starts from this null score
# (run_squad.py:769).
NO_SPAN_ODDS = 1e6
# Scores that differ by at most this count as equal, so that rounding, which differs between processors and runtimes,
# does not decide the order of answers. It is ten times the difference that served scores may have.
TIE = 1e-4

# === Entity tags ===

OUTSIDE = "O"


def split_tag(tag: str) -> tuple[str, str]:
    """Splits a tag into prefix and type: "B-creative-work" is ("B", "creative-work"), "O" is ("O", "").

    Raises:
        ValueError: the string is not a tag of any scheme.
    """
    prefix, dash, entity_type = tag.partition("-")
    is_outside = tag == OUTSIDE
    if not is_outside and (prefix not in ("B", "I", "L", "U", "E", "S") or bool(dash) != bool(entity_type)):
        raise ValueError(f"`tag` must be O, or B- or I- (L-, U-) and a type. Received: tag={tag!r}")
    return prefix, entity_type


def join_tag(prefix: str, entity_type: str) -> str:
    """Joins a prefix and a type to a tag; the inverse of `split_tag`."""
    return f"{prefix}-{entity_type}" if entity_type else prefix
