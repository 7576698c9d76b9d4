"""bert-train-vocab: trains a WordPiece vocabulary on raw text.

    bert-train-vocab --input_file='text/*.txt' --vocab_file=vocab.txt --vocab_size=30522

Text is UTF-8, optionally gzip-compressed, one sentence per line with a blank line between documents. It is split into
words by google-research/bert's rules. Then the most frequent pair of neighboring pieces is joined, repeatedly, until
the vocabulary is full. The result depends only on the text and the settings, not on the number of processes. Words may
also be counted in parts, on other machines:

    bert-train-vocab --input_file='text/a*.txt' --word_counts_file=a.counts
    bert-train-vocab --input_file='*.counts' --vocab_file=vocab.txt

Cost: about 2.5 s for 48 MB of English (2 cores).
"""

import heapq
import itertools
import os
import shutil
import sys
import time
from collections import Counter, defaultdict
from dataclasses import MISSING

from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH
from keras_bert.vocabulary import MAX_PIECE_BYTES, SPECIAL_TOKENS
from tasks import flags
from tasks.pretraining.engines import EngineSettings
from tasks.pretraining.figures import format_figures
from tasks.pretraining.word_counts import count_words, merge_counts, read_counts, read_num_words
from tasks.settings import setting
from tasks.text.blocks import spool_pipes
from tasks.text.parallel import progress_bar
from tasks.text.steps import check_outputs, scratch_directory, work_identity


class VocabularySettings(EngineSettings):
    """Settings of bert-train-vocab, which are its flags."""

    input_file: str | list[str] = setting(MISSING, "Text or word counts: paths or patterns, separated by commas.")
    vocab_file: str | None = setting(None, "Vocabulary file to write, one WordPiece per line.")
    word_counts_file: str | None = setting(
        None, "File to write the counts of all words to; --input_file takes these files, too."
    )
    vocab_size: int = setting(30522, "Maximum number of WordPieces; a small text may give fewer.")
    do_lower_case: bool = setting(True, "Lowercase and strip accents.")
    min_frequency: int = setting(
        2,
        "Minimum count of a character, or of a pair of pieces to join; words with rarer characters are left out.",
        at_least=1,
    )
    # 800,000 words take 1.1 GB. Measured as the peak of a run on random words of 4 to 13 letters: 928 MB with 694,804
    # words.
    max_distinct_words: int = setting(
        800_000, "Number of most frequent words to train on; each takes about 1.3 KB of memory.", at_least=1
    )
    report_file: str | None = setting(None, "JSON file to write the report to.")

    def __post_init__(self):
        super().__post_init__()
        if not (self.vocab_file or self.word_counts_file):
            raise InputError("Give --vocab_file, --word_counts_file or both: where to write the result.")


def main(settings: VocabularySettings) -> None:
    print(format_figures(train_vocab(settings)))


console_main = flags.console_main(main, VocabularySettings)


@files.keep_copies()
def train_vocab(settings: VocabularySettings) -> dict:
    """Counts words, trains a WordPiece vocabulary and writes the file atomically.

    The pieces are, in this order, the special tokens, the characters, then the joined pieces in the order in which they
    were joined. Counts are kept beside the output, in `.<output file>.scratch`, until the run is finished; a stopped
    run continues from there. With several workers, a script must call this function below
    `if __name__ == "__main__"`.

    Returns:
        The report: the figures of `read_counts` and `_describe`, `seconds`, and the paths that were written. Without a
        `vocab_file`, only `words` and `distinct_words` of these figures.

    Raises:
        InputError: there is no text, the text cannot be read or is not UTF-8, `vocab_size` cannot hold the characters,
            or a file cannot be written.
    """
    start = time.monotonic()
    do_lower_case = settings.do_lower_case
    paths = [files.absolute(path) for path in files.expand_files(settings.input_file)]
    names = ("vocab_file", "word_counts_file", "report_file")
    outputs = {name: path for name in names if (path := getattr(settings, name))}
    check_outputs(outputs.items(), [("input_file", path) for path in paths])
    parent, name = os.path.split(files.absolute(next(iter(outputs.values()))))
    with scratch_directory(os.path.join(parent, f".{name}.scratch"), work_identity(paths, do_lower_case)) as directory:
        paths = spool_pipes(paths, directory)
        with settings.open_pool(paths, directory) as pool:
            counted = count_words(paths, do_lower_case, directory, pool)
        if settings.word_counts_file:
            with files.atomic_path(settings.word_counts_file) as temporary:
                shutil.copyfile(files.local_copy(counted), temporary)
        if settings.vocab_file:
            counts, figures = read_counts(counted, do_lower_case, settings.max_distinct_words)
            report = figures | _write_vocabulary(counts, settings)
        else:
            distinct_words = sum(1 for _ in merge_counts([counted]))
            report = {"words": read_num_words(counted, do_lower_case), "distinct_words": distinct_words}
        report |= {"seconds": round(time.monotonic() - start, 1), **outputs}
        if settings.report_file:
            files.write_json(settings.report_file, report)
    return report


def _write_vocabulary(counts: dict[str, int], settings: VocabularySettings) -> dict:
    characters, inner = _count_characters(counts)
    rare = {character for character, count in characters.items() if count < settings.min_frequency}
    alphabet = sorted({*characters, *(f"##{character}" for character in inner - rare)} - rare)
    minimum = len(SPECIAL_TOKENS) + len(alphabet)
    if settings.vocab_size < minimum:
        raise InputError(
            f"--vocab_size={settings.vocab_size} is too small: the {len(SPECIAL_TOKENS)} special tokens and the "
            f"characters of this text need at least {minimum}. Raise it, or raise --min_frequency to leave rare "
            "characters out."
        )
    pieces = _train(counts, alphabet, rare, settings.vocab_size, settings.min_frequency)
    files.write_lines(settings.vocab_file, pieces)
    return _describe(pieces, counts, characters)


_Pair = tuple[int, int]  # Ids of two pieces.


def _count_characters(counts: dict[str, int]) -> tuple[Counter[str], set[str]]:
    """Returns the occurrences of each character, and the characters that occur inside a word, not at its start."""
    characters: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in counts.items():
        if len(word) <= MAX_WORD_LENGTH:
            inner.update(word[1:])
            for character in word:
                characters[character] += count
    return characters, inner


def _train(
    counts: dict[str, int], alphabet: list[str], rare: set[str], vocab_size: int, min_frequency: int
) -> list[str]:
    """Joins pairs of pieces until there are `vocab_size` pieces; returns all pieces in the order of their ids.

    This is byte-pair encoding (Sennrich et al., 2016, algorithm 1) on distinct words with their counts. Python's
    integers do not overflow, unlike the int32 counts of the tokenizers library. Ties go to the pair of smaller ids.
    """
    pieces = [*SPECIAL_TOKENS, *alphabet]
    ids = {piece: number for number, piece in enumerate(pieces)}
    words, times = [], []
    for word, count in counts.items():
        if 1 < len(word) <= MAX_WORD_LENGTH and rare.isdisjoint(word):
            words.append([ids[word[0]], *(ids[f"##{character}"] for character in word[1:])])
            times.append(count)
    frequencies: dict[_Pair, int] = defaultdict(int)
    words_of_pair: dict[_Pair, list[int]] = defaultdict(list)
    for number, word in enumerate(words):
        for pair in itertools.pairwise(word):
            frequencies[pair] += times[number]
            words_of_pair[pair].append(number)
    # The queue is lazy: an entry whose frequency has changed is pushed again when it is popped. Its list of words is
    # complete, since later joins create only new pairs.
    queue = [(-frequencies[pair], pair, numbers) for pair, numbers in words_of_pair.items()]
    heapq.heapify(queue)
    print(f"join pieces: {len(words):,} distinct words, up to {vocab_size:,} pieces", file=sys.stderr)
    with progress_bar("join pieces", "piece", vocab_size) as progress:
        while queue and len(pieces) < vocab_size:
            frequency, pair, numbers = heapq.heappop(queue)
            if -frequency != frequencies[pair]:
                heapq.heappush(queue, (-frequencies[pair], pair, numbers))
                continue
            if -frequency < min_frequency:
                break
            joined = pieces[pair[0]] + pieces[pair[1]].removeprefix("##")
            if len(joined.removeprefix("##").encode()) > MAX_PIECE_BYTES:  # No tokenizer takes it.
                continue
            if joined not in ids:
                ids[joined] = len(pieces)
                pieces.append(joined)
                progress.update()
            for new_pair, new_numbers in _join(pair, ids[joined], set(numbers), words, times, frequencies).items():
                heapq.heappush(queue, (-frequencies[new_pair], new_pair, new_numbers))
    return pieces


def _join(
    pair: _Pair, joined: int, numbers: set[int], words: list[list[int]], times: list[int], frequencies: dict[_Pair, int]
) -> dict[_Pair, list[int]]:
    """Joins a pair in the words `numbers`, and updates `frequencies`; returns the words that hold each new pair."""
    first, second = pair
    words_of_pair = defaultdict(list)
    for number in numbers:
        word, count, index = words[number], times[number], 0
        while index < len(word) - 1:
            if word[index] == first and word[index + 1] == second:
                if index:
                    before = word[index - 1]
                    frequencies[before, first] -= count
                    frequencies[before, joined] += count
                    words_of_pair[before, joined].append(number)
                word[index : index + 2] = (joined,)
                if index + 1 < len(word):
                    after = word[index + 1]
                    frequencies[second, after] -= count
                    frequencies[joined, after] += count
                    words_of_pair[joined, after].append(number)
            index += 1
    return words_of_pair


# === The report ===


def _describe(pieces: list[str], counts: dict[str, int], characters: Counter[str]) -> dict:
    """Describes a vocabulary. Tokenizes each distinct word once.

    Args:
        pieces: the vocabulary.
        counts: word -> occurrences in the training text.
        characters: character -> occurrences in words of at most `MAX_WORD_LENGTH` characters.

    Returns:
        - `distinct_words`, `vocabulary_size`;
        - `single_characters`: number of pieces of one character;
        - `known_character_share`: share of the occurrences of `characters` that the vocabulary contains;
        - `tokens_per_word`: mean over the occurrences of known words;
        - `unknown_share`: share of the occurrences of words that become [UNK];
        - `longest_piece`: the first of the longest pieces, without `##`.
    """
    from tokenizers import models

    ids = {piece: index for index, piece in enumerate(pieces)}
    model = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH)
    num_words = num_unknown = num_pieces = 0
    for word, count in counts.items():
        tokens = model.tokenize(word)
        is_unknown = tokens[0].value == "[UNK]"
        num_words += count
        num_unknown += count * is_unknown
        num_pieces += 0 if is_unknown else count * len(tokens)
    num_known = sum(count for character, count in characters.items() if character in ids)
    return {
        "distinct_words": len(counts),
        "vocabulary_size": len(pieces),
        "single_characters": sum(1 for piece in pieces if len(piece) == 1),
        "known_character_share": num_known / max(1, characters.total()),
        "tokens_per_word": num_pieces / max(1, num_words - num_unknown),
        "unknown_share": num_unknown / num_words,
        "longest_piece": max((piece.removeprefix("##") for piece in pieces if piece[0] != "["), key=len, default=""),
    }


if __name__ == "__main__":
    console_main()
