"""bert-train-vocab: raw text to a WordPiece vocabulary.

    bert-train-vocab --input_file='text/*.txt' --vocab_file=vocab.txt --vocab_size=30522

Text: UTF-8, gzip-compressed or not, one sentence a line, a blank line between documents. It is split into words by
google-research/bert's rules; then the pair of pieces that occurs most often is joined, again and again, until the
vocabulary is full. The file depends on the text and on the flags alone, not on the number of processes. Cost: about
2.5 s for 48 MB of English (2 cores).
"""

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, expand_files, write_json
from keras_bert.vocabulary import SPECIAL_TOKENS
from tasks import flags as task_flags

FLAGS = flags.FLAGS

# Words in memory at most: training takes about 1.1 KB for each, 0.95 GB in all. Measured as the peak of a run on
# random words of 4 to 13 letters: 808 MB with 678,332 words, 877 MB with a text that filled the table five times.
MAX_DISTINCT_WORDS = 800_000

flags.DEFINE_string("input_file", None, "Text: paths or patterns, commas between.", allow_override=True)
flags.DEFINE_string("vocab_file", None, "Vocabulary to write, one WordPiece a line.", allow_override=True)
flags.DEFINE_integer("vocab_size", 30522, "Most pieces that the vocabulary may hold.", allow_override=True)
flags.DEFINE_boolean("do_lower_case", True, "Lower the case and drop accents.", allow_override=True)
flags.DEFINE_integer("min_frequency", 2, "Times a character or a pair must occur.", lower_bound=1, allow_override=True)
flags.DEFINE_integer(
    "max_distinct_words",
    MAX_DISTINCT_WORDS,
    "Words to keep in memory, about 1.1 KB each; beyond, the rarest are dropped.",
    lower_bound=1,
    allow_override=True,
)
flags.DEFINE_integer(
    "num_workers", None, "Processes that count words; default: one for each core.", lower_bound=1, allow_override=True
)
flags.DEFINE_string("report_file", None, "JSON file to write the report to, as well.", allow_override=True)
flags.mark_flags_as_required(["input_file", "vocab_file"])

_WORDS_PER_STRING = 1024  # Occurrences of words that reach the trainer in one string; fewer or more are slower.


def main(argv: list[str]) -> None:
    from tasks.pretraining.vocabulary_report import format_report

    del argv
    report = train_vocab(
        input_file=FLAGS.input_file,
        vocab_file=FLAGS.vocab_file,
        vocab_size=FLAGS.vocab_size,
        do_lower_case=FLAGS.do_lower_case,
        min_frequency=FLAGS.min_frequency,
        max_distinct_words=FLAGS.max_distinct_words,
        num_workers=FLAGS.num_workers,
        report_file=FLAGS.report_file,
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
    max_distinct_words: int = MAX_DISTINCT_WORDS,
    num_workers: int | None = 1,
    report_file: str | None = None,
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
        max_distinct_words: most words to keep in memory, beyond which the rarest are dropped.
        num_workers: processes that count words; None: one for each core. With more than one, a script that calls this
            must do so below `if __name__ == "__main__"`.
        report_file: path of a JSON file for the report; None: no such file.

    Returns:
        The report: see `tasks.pretraining.vocabulary_report.describe`; and seconds, vocab_file, report_file if given.

    Raises:
        InputError: no text, text that cannot be read or is not UTF-8, a `vocab_size` that cannot hold the characters,
            or a file that cannot be written.
    """
    from tasks.pretraining.vocabulary_report import describe
    from tasks.pretraining.word_counts import count_words

    start = time.monotonic()
    files = expand_files(input_file)
    outputs = {"vocab_file": vocab_file} | ({"report_file": report_file} if report_file else {})
    _check_outputs(outputs, files)
    words = count_words(files, do_lower_case, max_distinct_words=max_distinct_words, num_workers=num_workers)
    characters, inner = _count_characters(words.counts)
    rare = {character for character, count in characters.items() if count < min_frequency}
    alphabet = sorted({*characters, *(f"##{character}" for character in inner - rare)} - rare)
    minimum = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < minimum:
        raise InputError(
            f"--vocab_size={vocab_size} is too small: the {len(SPECIAL_TOKENS)} special tokens and the characters of "
            f"this text need at least {minimum}. Raise it, or raise --min_frequency to leave rare characters out."
        )
    pieces = _train(words.counts, alphabet, rare, vocab_size, min_frequency)
    report = describe(pieces, words, characters)
    report |= {"seconds": round(time.monotonic() - start, 1), **outputs}
    _write(pieces, vocab_file, report, report_file)
    return report


def _check_outputs(outputs: dict[str, str], files: list[str]) -> None:
    """Refuses what could not be written at the end, perhaps hours later, or would replace what is read."""
    for name, path in outputs.items():
        if os.path.isdir(path):
            raise InputError(f"{path}: --{name} is a directory. Name a file in it, e.g. {_EXAMPLES[name]}.")
        if os.path.exists(path) and any(os.path.samefile(path, file) for file in files):
            raise InputError(f"{path}: --{name} is one of the files of --input_file. Choose another path.")
        parent = os.path.dirname(os.path.abspath(path))
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent)
        if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
            raise InputError(f"{parent}: no directory that can be written. Choose another path for --{name}.")
    if len({os.path.abspath(path) for path in outputs.values()}) < len(outputs):
        raise InputError(f"{outputs['report_file']}: --report_file is --vocab_file too. Choose another path.")


_EXAMPLES = {"vocab_file": "vocab.txt", "report_file": "report.json"}


def _write(pieces: list[str], vocab_file: str, report: dict, report_file: str | None) -> None:
    with atomic_path(vocab_file) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{piece}\n" for piece in pieces)
        if report_file:
            write_json(report_file, report)


def _count_characters(counts: dict[str, int]) -> tuple[Counter[str], set[str]]:
    """Returns the occurrences of each character, and the characters that a word does not begin with."""
    from tasks.pretraining.word_counts import MAX_WORD_LENGTH

    words_of_count = defaultdict(list)
    inner: set[str] = set()
    for word, count in counts.items():
        if len(word) <= MAX_WORD_LENGTH:
            words_of_count[count].append(word)
            inner.update(word[1:])
    characters: Counter[str] = Counter()
    for count, words in words_of_count.items():
        for character, times in Counter("".join(words)).items():
            characters[character] += count * times
    return characters, inner


def _train(
    counts: dict[str, int], alphabet: list[str], rare: set[str], vocab_size: int, min_frequency: int
) -> list[str]:
    """Joins pairs of pieces up to `vocab_size` pieces; returns all pieces in the order of their ids.

    The trainer numbers pieces as it meets them in a hash table, and breaks ties by number: two runs on one text differ
    unless it is told all pieces of one character beforehand, in a fixed order, as if they were special tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from tasks.pretraining.word_counts import MAX_WORD_LENGTH

    joinable = [word for word in counts if 1 < len(word) <= MAX_WORD_LENGTH and rare.isdisjoint(word)]
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
    num_strings = sum(counts[word] for word in joinable) // _WORDS_PER_STRING + 1
    tokenizer.train_from_iterator(_repeat(joinable, counts), trainer, length=num_strings)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.get)


def _repeat(words: list[str], counts: dict[str, int]) -> Iterator[str]:
    """Yields strings that hold each word as often as its count says; the trainer takes no counts."""
    parts, free = [], _WORDS_PER_STRING
    for word in words:
        count = counts[word]
        while count >= free:
            parts.append(f"{word} " * free)
            yield "".join(parts)
            count -= free
            parts, free = [], _WORDS_PER_STRING
        parts.append(f"{word} " * count)
        free -= count
    yield "".join(parts)


if __name__ == "__main__":
    console_main()
