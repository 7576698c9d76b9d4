"""bert-train-vocab: raw text to a WordPiece vocabulary.

    bert-train-vocab --input_file='text/*.txt' --vocab_file=vocab.txt --vocab_size=30522

Text: UTF-8, one sentence a line, a blank line between documents. It is split into words by google-research/bert's
rules; then the pair of pieces that occurs most often is joined, again and again, until the vocabulary is full. The
file depends on the text and on the flags alone. Cost: about 2 s for 12 MB of English (2 cores).
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, expand_files, read_lines
from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", None, "Text: paths or patterns, commas between.", allow_override=True)
flags.DEFINE_string("vocab_file", None, "Vocabulary to write, one WordPiece a line.", allow_override=True)
flags.DEFINE_integer("vocab_size", 30522, "Most pieces that the vocabulary may hold.", allow_override=True)
flags.DEFINE_boolean("do_lower_case", True, "Lower the case and drop accents.", allow_override=True)
flags.DEFINE_integer("min_frequency", 2, "Times a character or a pair must occur.", lower_bound=1, allow_override=True)
flags.mark_flags_as_required(["input_file", "vocab_file"])

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # Their ids are 0 to 4.
_MAX_WORD_LENGTH = 200  # Longer words are [UNK] to the tokenizer.
_REPEATS = 4096  # Occurrences of a word that reach the trainer in one string.


def main(argv: list[str]) -> None:
    del argv
    report = train_vocab(
        input_file=FLAGS.input_file,
        vocab_file=FLAGS.vocab_file,
        vocab_size=FLAGS.vocab_size,
        do_lower_case=FLAGS.do_lower_case,
        min_frequency=FLAGS.min_frequency,
    )
    print(format_report(report))


def console_main() -> None:
    task_flags.run(main)


def train_vocab(
    *,
    input_file: str | list[str],
    vocab_file: str,
    vocab_size: int = 30522,
    do_lower_case: bool = True,
    min_frequency: int = 2,
) -> dict:
    """Trains a WordPiece vocabulary and writes it, whole or not at all.

    Order of the pieces: the special tokens, the characters, then the joined pieces, most useful first. Characters that
    occur less than `min_frequency` times are left out, and so are the words that hold them.

    Args:
        input_file: paths or patterns of UTF-8 text, one sentence a line, a blank line between documents.
        vocab_file: path of the file to write.
        vocab_size: most pieces that the vocabulary may hold; a small text may give fewer.
        do_lower_case: lower the case and strip accents.
        min_frequency: times that a character, or a pair of pieces to join, must occur.

    Returns:
        The report: documents, sentences, words, distinct_words, vocabulary_size, tokens_per_word (of known words),
        unknown_share (of words that become [UNK]), seconds, vocab_file.

    Raises:
        InputError: no text, a line that is not UTF-8, or a `vocab_size` that cannot hold the characters.
    """
    start = time.monotonic()
    if os.path.isdir(vocab_file):
        raise InputError(f"{vocab_file}: --vocab_file is a directory. Name a file in it, e.g. vocab.txt.")
    files = expand_files(input_file)
    counts, report = count_words(files, do_lower_case)
    if not counts:
        raise InputError(f"{', '.join(files)}: no text. Expected one sentence a line, a blank line between documents.")
    alphabet = _alphabet(counts, min_frequency)
    minimum = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < minimum:
        raise InputError(
            f"--vocab_size={vocab_size} is too small: the {len(SPECIAL_TOKENS)} special tokens and the characters of "
            f"this text need at least {minimum}. Raise it, or raise --min_frequency to leave rare characters out."
        )
    pieces = _train(counts, alphabet, vocab_size, min_frequency)
    with atomic_path(vocab_file) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{piece}\n" for piece in pieces)
    report |= {"vocabulary_size": len(pieces), **_coverage(pieces, counts)}
    return {**report, "seconds": round(time.monotonic() - start, 1), "vocab_file": vocab_file}


def count_words(files: list[str], do_lower_case: bool) -> tuple[Counter, dict]:
    """Counts the words of `files` line by line; returns the counts, and documents, sentences and words in total."""
    from tqdm import tqdm

    from keras_bert.normalizer import split_words

    counts: Counter = Counter()
    documents = sentences = 0
    in_document = False
    size = sum(os.path.getsize(path) for path in files)
    with tqdm(total=size, desc="count words", unit="B", unit_scale=True, mininterval=0.5) as progress:
        for path in files:
            for _, line in read_lines(path):
                progress.update(len(line.encode()) + 1)
                words = split_words(line, do_lower_case)
                counts.update(words)
                # A document runs on into the next file, as in google-research/bert.
                documents += bool(words) and not in_document
                in_document = bool(line.strip()) and (in_document or bool(words))
                sentences += bool(words)
    report = {"documents": documents, "sentences": sentences, "words": counts.total(), "distinct_words": len(counts)}
    return counts, report


def _alphabet(counts: Counter, min_frequency: int) -> list[str]:
    """The pieces of one character, sorted: `c` for every character, `##c` for those that occur within a word."""
    char_counts: Counter = Counter()
    pieces = set()
    for word, count in counts.items():
        if len(word) <= _MAX_WORD_LENGTH:
            pieces.update(word, _characters(word))
            for char in word:
                char_counts[char] += count
    return sorted(piece for piece in pieces if char_counts[piece[-1]] >= min_frequency)


def _characters(word: str) -> list[str]:
    return [word[0], *(f"##{char}" for char in word[1:])]


def _train(counts: Counter, alphabet: list[str], vocab_size: int, min_frequency: int) -> list[str]:
    """Joins pairs of pieces up to `vocab_size` pieces; returns all pieces in the order of their ids.

    The trainer numbers pieces as it meets them in a hash table, and breaks ties by number: two runs on one text differ
    unless it is told all pieces of one character beforehand, in a fixed order, as if they were special tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    known = set(alphabet)
    joinable = {
        word: count
        for word, count in counts.items()
        if 1 < len(word) <= _MAX_WORD_LENGTH and known.issuperset(_characters(word))
    }
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix="##",
        # Its bars are for a terminal; elsewhere they would leave empty lines in the standard output.
        show_progress=sys.stderr.isatty() and sys.stdout.isatty(),
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    print(f"join pieces: {len(joinable):,} distinct words, up to {vocab_size:,} pieces", file=sys.stderr)
    tokenizer.train_from_iterator(_repeat(joinable), trainer, length=sum(map(_count_strings, joinable.values())))
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.get)


def _repeat(counts: dict[str, int]) -> Iterator[str]:
    """Yields strings in which each word occurs as often as its count says; the trainer takes no counts."""
    for word, count in counts.items():
        for _ in range(_count_strings(count) - 1):
            yield f"{word} " * _REPEATS
        yield f"{word} " * (count % _REPEATS)


def _count_strings(count: int) -> int:
    return count // _REPEATS + 1


def _coverage(pieces: list[str], counts: Counter) -> dict[str, float]:
    """Tokenizes each distinct word once: pieces a known word, and the share of words that are [UNK]."""
    from tokenizers import models

    ids = {piece: index for index, piece in enumerate(pieces)}
    model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=_MAX_WORD_LENGTH)
    unknown = num_pieces = 0
    for word, count in counts.items():
        tokens = model.tokenize(word)
        if tokens[0].value == "[UNK]":
            unknown += count
        else:
            num_pieces += count * len(tokens)
    words = counts.total()
    return {"tokens_per_word": num_pieces / max(1, words - unknown), "unknown_share": unknown / words}


def format_report(report: dict) -> str:
    """Renders the report of `train_vocab` as lines of name and figure."""
    lines = []
    for name, value in report.items():
        label = name.replace("_", " ")
        if name.endswith("_share"):
            lines.append(f"{label:20}{value:12.2%}")
        elif isinstance(value, (int, float)):
            lines.append(f"{label:20}{value:12,.2f}" if isinstance(value, float) else f"{label:20}{value:12,}")
    return "\n".join([*lines, report["vocab_file"]])


if __name__ == "__main__":
    console_main()
