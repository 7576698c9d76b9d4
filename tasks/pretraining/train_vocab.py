"""bert-train-vocab: raw text to a WordPiece vocabulary.

    bert-train-vocab --input_file='text/*.txt' --vocab_file=vocab.txt --vocab_size=30522

Text is UTF-8, gzip-compressed or not, one sentence a line, with a blank line between documents. It is split into words
by google-research/bert's rules; then the pair of pieces that occurs most often is joined, again and again, until the
vocabulary is full. The result depends on the text and the settings alone, not on the number of processes. Cost: about
2.5 s for 48 MB of English (2 cores).
"""

import dataclasses
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, expand_files, write_json
from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH
from keras_bert.tokenization.vocabulary import SPECIAL_TOKENS
from tasks import flags
from tasks.settings import Settings, setting

_WORDS_PER_STRING = 1024  # Occurrences of words that reach the trainer in one string; fewer or more are slower.


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """Settings of bert-train-vocab, which are its flags."""

    input_file: str | list[str] = setting(dataclasses.MISSING, "Text: paths or patterns, separated by commas.")
    vocab_file: str = setting(dataclasses.MISSING, "Vocabulary to write, one WordPiece a line.")
    vocab_size: int = setting(30522, "Maximum number of WordPieces; a small text may give fewer.")
    do_lower_case: bool = setting(True, "Lower the case and strip accents.")
    min_frequency: int = setting(
        2,
        "Times that a character, or a pair of pieces to join, must occur; words with rarer characters are left out.",
        at_least=1,
    )
    # 800,000 words take 0.95 GB. Measured as the peak of a run on random words of 4 to 13 letters: 808 MB with 678,332
    # words, 877 MB with a text that filled the table five times.
    max_distinct_words: int = setting(
        800_000, "Words to keep in memory, about 1.1 KB each; beyond, the rarest are dropped.", at_least=1
    )
    num_workers: int | None = setting(
        None, "Processes that count words; default: one for each core, as far as there is work for them.", at_least=1
    )
    report_file: str | None = setting(None, "JSON file to write the report to, as well.")


def main(settings: VocabularySettings) -> None:
    from tasks.pretraining.vocabulary.report import format_report

    print(format_report(train_vocab(settings)))


console_main = flags.console_main(main, VocabularySettings)


def train_vocab(settings: VocabularySettings) -> dict:
    """Trains a WordPiece vocabulary and writes it, whole or not at all.

    The pieces are, in this order, the special tokens, the characters, then the joined pieces, most useful first. With
    several workers, a script that calls this must do so below `if __name__ == "__main__"`.

    Returns:
        The report: see `tasks.pretraining.vocabulary.report.describe`; and seconds, vocab_file, report_file if given.

    Raises:
        InputError: no text, text that cannot be read or is not UTF-8, a `vocab_size` that cannot hold the characters,
            or a file that cannot be written.
    """
    from tasks.pretraining.vocabulary.report import describe
    from tasks.pretraining.vocabulary.word_counts import count_words

    start = time.monotonic()
    files = expand_files(settings.input_file)
    outputs = {name: path for name in _OUTPUTS if (path := getattr(settings, name))}
    _check_outputs(outputs, files)
    words = count_words(files, settings.do_lower_case, settings.max_distinct_words, settings.num_workers)
    characters, inner = _count_characters(words.counts)
    rare = {character for character, count in characters.items() if count < settings.min_frequency}
    alphabet = sorted({*characters, *(f"##{character}" for character in inner - rare)} - rare)
    minimum = len(SPECIAL_TOKENS) + len(alphabet)
    if settings.vocab_size < minimum:
        raise InputError(
            f"--vocab_size={settings.vocab_size} is too small: the {len(SPECIAL_TOKENS)} special tokens and the "
            f"characters of this text need at least {minimum}. Raise it, or raise --min_frequency to leave rare "
            "characters out."
        )
    pieces = _train(words.counts, alphabet, rare, settings.vocab_size, settings.min_frequency)
    report = describe(pieces, words, characters)
    report |= {"seconds": round(time.monotonic() - start, 1), **outputs}
    with atomic_path(settings.vocab_file) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{piece}\n" for piece in pieces)
        if settings.report_file:
            write_json(settings.report_file, report)
    return report


_OUTPUTS = {"vocab_file": "vocab.txt", "report_file": "report.json"}  # With examples.


def _check_outputs(outputs: dict[str, str], files: list[str]) -> None:
    """Refuses what could not be written at the end, perhaps hours later, or would replace what is read."""
    for name, path in outputs.items():
        if os.path.isdir(path):
            raise InputError(f"{path}: --{name} is a directory. Name a file in it, e.g. {_OUTPUTS[name]}.")
        if os.path.exists(path) and any(os.path.samefile(path, file) for file in files):
            raise InputError(f"{path}: --{name} is one of the files of --input_file. Choose another path.")
        parent = os.path.dirname(os.path.abspath(path))
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent)
        if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
            raise InputError(f"{parent}: no directory that can be written. Choose another path for --{name}.")
    if len({os.path.abspath(path) for path in outputs.values()}) < len(outputs):
        raise InputError(f"{outputs['report_file']}: --report_file is --vocab_file too. Choose another path.")


def _count_characters(counts: dict[str, int]) -> tuple[Counter[str], set[str]]:
    """Returns the occurrences of each character, and the characters that a word does not begin with."""
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
