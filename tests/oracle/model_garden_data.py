"""Model Garden's tests of its data for pre-training, on our masking."""

import importlib.metadata
import sys

import oracle

NAME = "model-garden-pretraining-data"
PACKAGE = "tf-models-official"
_NGRAMS = "Neither the paper nor google-research/bert masks n-grams of words, and bert-pretrain does not either."
EXPLAINED = {
    "CreatePretrainingDataTest.test_window": _NGRAMS,
    "CreatePretrainingDataTest.test_create_masked_lm_predictions_ngram": _NGRAMS,
}


def run(folder: None) -> list[oracle.Case]:
    """Runs the suite's file, with this module as pytest's plugin."""
    folder = str(importlib.metadata.distribution(PACKAGE).locate_file("official/nlp/data"))
    arguments = ("-p", __name__, "--noconftest", "--import-mode=importlib", "create_pretraining_data_test.py")
    cases = oracle.pytest_cases(*arguments, folder=folder)
    return [case for case in cases if not case.name.endswith(".test_session")]


def pytest_configure() -> None:
    """Puts this module where the suite imports Model Garden's from, in pytest's own process."""
    sys.modules["official.nlp.data.create_pretraining_data"] = sys.modules[__name__]


# === Model Garden's names ===


def create_masked_lm_predictions(
    tokens, masked_lm_prob, max_predictions_per_seq, vocab_words, rng, do_whole_word_mask, max_ngram_size=None
):
    """Masks one sequence; returns its tokens, the masked places and the tokens there."""
    import numpy as np

    from tasks.pretraining.data.masking import MaskingRules, mask_batch

    if max_ngram_size is not None:
        raise NotImplementedError(_NGRAMS)
    pieces = list(dict.fromkeys([*vocab_words, "[CLS]", "[SEP]", "[MASK]", *tokens]))
    rules = MaskingRules(
        *map(pieces.index, ("[CLS]", "[SEP]", "[MASK]")),
        vocabulary_size=len(vocab_words),
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        continues_word=np.array([piece.startswith("##") for piece in pieces]) if do_whole_word_mask else None,
    )
    ids = np.array([[pieces.index(token) for token in tokens]], np.int32)
    seeds = np.array([rng.getrandbits(64)], np.uint64)
    masked = mask_batch(ids, np.array([len(tokens)]), rules, seeds)
    used = int(masked.num_masked[0])
    places, labels = (column[0, :used].tolist() for column in (masked.mask_positions, masked.mask_ids))
    return [pieces[number] for number in masked.token_ids[0]], places, [pieces[number] for number in labels]


def _tokens_to_grams(tokens):
    """Finds the words: the tokens that are masked together, however many may be masked."""
    import random

    rng, draws = random.Random(1), []
    for budget in range(1, len(tokens) + 1):
        for _ in range(20):
            draws.append(create_masked_lm_predictions(tokens, 1.0, budget, ["word"], rng, True)[1])
    words: dict[tuple, list[int]] = {}
    for place in range(len(tokens)):
        words.setdefault(tuple(place in draw for draw in draws), []).append(place)
    return [(places[0], places[-1] + 1) for draws, places in words.items() if any(draws)]
