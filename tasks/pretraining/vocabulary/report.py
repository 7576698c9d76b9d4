"""The report of a vocabulary: how well it fits the text that it was trained on."""

from collections import Counter

from tasks.pretraining.figures import figure_lines
from tasks.pretraining.vocabulary.word_counts import MAX_WORD_LENGTH, WordCounts


def describe(pieces: list[str], words: WordCounts, characters: Counter[str]) -> dict:
    """Describes a vocabulary; tokenizes each distinct word once.

    Args:
        pieces: the vocabulary.
        words: what it was trained on.
        characters: character -> occurrences in words that are not too long.

    Returns:
        What `words` says but for `counts`; distinct_words; vocabulary_size; single_characters (of the vocabulary),
        known_character_share (of the occurrences of `characters`); tokens_per_word (of known words), unknown_share
        (of the occurrences of words: those that become [UNK]), longest_piece (without `##`; the first of them). Dropped
        words count in `words` alone.
    """
    known = {piece for piece in pieces if len(piece) == 1}
    num_known = sum(count for character, count in characters.items() if character in known)
    return {
        **{name: value for name, value in vars(words).items() if name != "counts"},
        "distinct_words": len(words.counts),
        "vocabulary_size": len(pieces),
        "single_characters": len(known),
        "known_character_share": num_known / max(1, characters.total()),
        **_coverage(pieces, words.counts),
        "longest_piece": max((piece.removeprefix("##") for piece in pieces if piece[0] != "["), key=len, default=""),
    }


def _coverage(pieces: list[str], counts: dict[str, int]) -> dict[str, float]:
    from tokenizers import models

    ids = {piece: index for index, piece in enumerate(pieces)}
    model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH)
    total = unknown = num_pieces = 0
    for word, count in counts.items():
        total += count
        tokens = model.tokenize(word)
        if tokens[0].value == "[UNK]":
            unknown += count
        else:
            num_pieces += count * len(tokens)
    return {"tokens_per_word": num_pieces / max(1, total - unknown), "unknown_share": unknown / total}


def format_report(report: dict) -> str:
    """Renders a report as lines of name and figure, the paths of files last."""
    figures = {name: value for name, value in report.items() if not name.endswith("_file")}
    paths = [value for name, value in report.items() if name not in figures]
    return "\n".join([*figure_lines(figures), *paths])
