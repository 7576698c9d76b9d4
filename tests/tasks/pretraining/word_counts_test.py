"""Counting words in pieces and processes: equal to line after line, whatever the cuts."""

import glob
import gzip
import os
import random
import tempfile
import types
from collections import Counter

import fuzzing
import pytest
from repository import SHARED, needs_data

from keras_bert.errors import InputError
from keras_bert.files import read_lines
from keras_bert.tokenization.normalizer import split_words
from tasks import settings
from tasks.pretraining import word_counts
from tasks.pretraining.word_counts import count_words, read_counts
from tasks.settings import available_cores
from tasks.text import parallel
from tasks.text.parallel import LocalPool, workers_for

REAL = ["corpus/*.txt", "corpus/inaugural/*", "waimai/dev.csv", "squad2/dev.json", "wnut17/dev.conll"]
# What the rules treat differently, and what Python takes for white space: letters, final sigmas, marks, controls,
# blanks of every kind, line separators, zero-width characters, ideographs, punctuation, characters over U+FFFF.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ALPHABET = "aB1.,'\u03a3\u03a3\u00c9e\u0301\u0345\u05bc\u00ad\u200b\ufeff\0\ufffd\x0b\x0c\x1c\x1f\x7f\x85\u00a0\u3000"
ALPHABET += "\u2028\u2029\u1680\u4e2d\u3002\uac00\u1100\u1161\U0001f600\U00020000\u0130\u01c5\u302a \t\r\n" + "  \n\n"


def one_by_one(files, do_lower_case):
    """Words as google-research/bert reads them: line after line, file after file."""
    counts = Counter()
    for path in files:
        for _, line in read_lines(path):
            counts.update(split_words(line, do_lower_case))
    return counts


def count(files, do_lower_case=True, max_distinct_words=10**9, num_workers=1):
    with tempfile.TemporaryDirectory() as directory, LocalPool(num_workers) as pool:
        path = count_words([str(file) for file in files], do_lower_case, directory, pool)
        counts, figures = read_counts(path, do_lower_case, max_distinct_words)
        return types.SimpleNamespace(counts=counts, **figures)


def check(files, do_lower_case=True):
    words = count(files, do_lower_case)
    assert words.counts == one_by_one(files, do_lower_case)
    assert (words.words, words.dropped_words) == (sum(words.counts.values()), 0)


@pytest.fixture
def blocks(monkeypatch):
    """Sets the size of the blocks that text is cut into."""
    monkeypatch.setattr(word_counts, "_SMALLEST_BLOCK", 1)
    return lambda size: monkeypatch.setattr(word_counts, "block_bytes", lambda num_bytes: size)


@pytest.fixture
def text_file(tmp_path):
    def write(content, name="text.txt"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return write


# === The same as line after line ===


@needs_data
@pytest.mark.parametrize(("do_lower_case", "size"), [(True, 1 << 22), (True, 300_000), (False, 1 << 19)])
def test_real_text(blocks, do_lower_case, size):
    files = [path for pattern in REAL for path in sorted(glob.glob(os.path.join(SHARED, pattern)))]
    blocks(size)
    check(files, do_lower_case)


def test_fuzzed_text(blocks, tmp_path, text_file):
    rng = random.Random(7)
    for attempt in range(60):
        files = []
        for number in range(rng.randrange(1, 4)):
            text = "".join(rng.choices(ALPHABET, k=rng.choice((0, 1, 3, 30, 300))))
            raw = rng.choice((b"", b"", BYTE_ORDER_MARK)) + text.encode()
            raw = b"" if raw == BYTE_ORDER_MARK else raw  # `read_lines` finds a line in it.
            files.append(str(tmp_path / f"{attempt}-{number}"))
            with open(files[-1], "wb") as file:
                file.write(raw)
        blocks(rng.choice((20, 100, 1 << 20)))
        files.append(text_file("end", "end.txt"))  # A text without any word is refused.
        check(files, rng.random() < 0.5)


@pytest.mark.slow(keep=["True"])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_character(text_file, do_lower_case):
    """Each within a word, between blanks, and alone in its line; planes 4 to 13 hold none.

    By default one in 16 of the ideographs, the Hangul and the rare scripts, which are long rows of the same kind.
    """
    step = 1 if fuzzing.FULL else 16
    common = [*range(0x3400), *range(0x3400, 0xD800, step), *range(0xE000, 0x12000)]
    code_points = [*common, *range(0x12000, 0x33480, step), *range(0xE0000, 0xE0200)]
    check([text_file("".join(f"a{chr(cp)}B {chr(cp)} \u03a3\n{chr(cp)}\n" for cp in code_points))], do_lower_case)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one\n\u200b\ntwo \u2028\r\n", {"one": 1, "two": 1}),
        ("one\n\x0c\ntw\x0bo\x0c", {"one": 1, "two": 1}),  # Deleted by the rules, although `bytes.split` splits there.
        ("\ufeff\none", {"one": 1}),
        ("word " * 50 + "\n\n" + "\u0301 " * 50 + "a", {"word": 50, "a": 1}),  # Lines much longer than a block.
    ],
)
@pytest.mark.parametrize("size", [4, 1 << 20])
def test_words_by_hand(blocks, text_file, content, expected, size):
    blocks(size)
    words = count([text_file(content)])
    assert words.counts == expected and words.words == sum(expected.values())


def test_long_words_are_cut_and_counted(text_file):
    words = count([text_file("a" * 200 + " " + "b" * 201 + " " + "b" * 999 + " c\n")])
    assert words.counts == {"a" * 200: 1, "b" * 201: 2, "c": 1}


def test_a_chunk_of_many_blocks(blocks, text_file):
    blocks(1000)
    words = count([text_file("a,b" * 100_000 + " c\nd")])
    assert words.counts == {"a": 1, ",": 100_000, "ba": 99_999, "b": 1, "c": 1, "d": 1}


# === Processes, memory ===


def zipf_text(seed, num_lines):
    rng = random.Random(seed)
    return "".join(
        " ".join(f"w{int(rng.paretovariate(0.6)) % 5000}" for _ in range(9)) + "\n" * rng.choice((1, 1, 2))
        for _ in range(num_lines)
    )


def test_processes_and_parts_change_nothing(blocks, text_file, tmp_path, monkeypatch):
    """Even where words are left out, and whatever the number of files that are merged at once."""
    text = zipf_text(3, 1000) + "\n" + zipf_text(4, 1000)
    files = [text_file(text), text_file("the end.\n", "end.txt")]
    for cap, workers, size in ((10**9, 2, 20_000), (300, 1, 9_000)):
        whole = count(files, max_distinct_words=cap)
        blocks(size)
        monkeypatch.setattr(word_counts, "_MERGED_AT_ONCE", 3)
        merged = count(files, max_distinct_words=cap, num_workers=workers)
        assert whole == merged and list(whole.counts.items()) == list(merged.counts.items())
        assert bool(whole.dropped_words) == (cap == 300)
        middle = text.index("\n", len(text) // 3) + 1
        partial_counts = [
            count_words([part], True, str(tmp_path / f"{size}-{number}"), LocalPool(1))
            for number, part in enumerate((text_file(text[:middle], "a"), text_file(text[middle:], "b"), files[1]))
        ]
        with open(partial_counts[0], "rb") as file:
            partial_counts[0] = text_file(gzip.compress(file.read()), "a.counts.gz")
        assert count(partial_counts, max_distinct_words=cap) == whole


def test_what_is_left_out_occurs_least(blocks, text_file):
    exact = Counter(zipf_text(5, 1000).split())
    path = text_file(zipf_text(5, 1000))
    blocks(9000)
    for cap in (50, 100, 200):
        words = count([path], max_distinct_words=cap)
        left_out = {word: times for word, times in exact.items() if word not in words.counts}
        assert 0 < len(words.counts) <= cap and words.counts == {w: exact[w] for w in words.counts}
        assert min(words.counts.values()) > max(left_out.values()) == words.largest_dropped_count
        assert (words.dropped_words, words.dropped_occurrences) == (len(left_out), sum(left_out.values()))
        # No word more would fit: the next count's words have no room.
        assert len(words.counts) + Counter(exact.values())[words.largest_dropped_count] > cap


def test_leaving_out_by_hand(text_file):
    words = count([text_file("a a a b b c d e\nc c c f\n")], max_distinct_words=4)
    assert words.counts == {"a": 3, "b": 2, "c": 4}  # Room for four, but three words occur once.
    assert (words.dropped_words, words.dropped_occurrences, words.largest_dropped_count) == (3, 3, 1)
    assert words.words == 12


def test_a_killed_run_counts_only_what_is_missing(blocks, text_file, tmp_path, monkeypatch):
    blocks(1000)
    path, directory = text_file(zipf_text(1, 100)), str(tmp_path / "scratch")
    whole = count_words([path], True, directory, LocalPool(1))
    before = {file: file.read_bytes() for file in tmp_path.glob("scratch/**/*") if file.is_file()}
    results = sorted(file for file in before if file.suffix == ".json")
    for file in results[1::2]:
        file.unlink()
    made = []
    write = word_counts.write_counts
    monkeypatch.setattr(word_counts, "write_counts", lambda path, *rest: (made.append(path), write(path, *rest)))
    assert count_words([path], True, directory, LocalPool(1)) == whole
    assert 1 < len(made) == len(results[1::2]) < len(results)
    assert {file: file.read_bytes() for file in before} == before


def test_damaged_counts(text_file, tmp_path):
    good = count_words([text_file("a b b\nc\n")], True, str(tmp_path), LocalPool(1))
    with open(good, "rb") as file:
        content = file.read()
    assert content.endswith(b"a\t1\nb\t2\nc\t1\n")
    for damaged, message in (
        (content[:-4], "damaged.counts: expected counts of 4 words, found 3. Copy it again"),
        (content[:-2], r"damaged.counts:4: not a whole line of a count file"),
        (content.replace(b"b\t2", b"b2"), r"damaged.counts:3: not a whole line of a count file"),
        (content.replace(b"b\t2", b"a\t2"), r"damaged.counts:3: expected words in order, each with its count"),
        (content.replace(b"b\t2", b"b\t0"), r"damaged.counts:3: expected words in order, each with its count"),
        (content.replace(b"b\t2", b"\xe9\t2"), r"damaged.counts:3: not a whole line of a count file"),
        (content[:30], "damaged.counts: not a whole count file"),
    ):
        with pytest.raises(InputError, match=message):
            count([text_file(damaged, "damaged.counts")])
    with pytest.raises(
        InputError, match="was counted with --do_lower_case=True, but this command has --do_lower_case=F"
    ):
        count([good], do_lower_case=False)


def test_no_room_for_any_word(text_file):
    with pytest.raises(InputError, match="--max_distinct_words=2 is too small: more words"):
        count([text_file("a b c\n")], max_distinct_words=2)


def test_small_texts_start_no_process(text_file, monkeypatch):
    """Unless the user names a number."""
    path = text_file("a b\n")
    assert (workers_for([path], None), workers_for([path], 16)) == (1, 16)
    monkeypatch.setattr(parallel, "file_size", lambda _: 1 << 23)
    assert workers_for([path], None, passes=10**6) == available_cores()
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none.
    assert available_cores() == os.cpu_count()


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("20000 100000", 1), ("1600000 100000", 8), ("", 8)]
)
def test_a_container_s_limit_counts(tmp_path, monkeypatch, quota, cores):
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(settings, "_QUOTA_FILE", str(tmp_path / "cpu.max"))
    assert available_cores() == cores


# === Other files than plain ones ===

TEXT = "".join(f"Sentence {n} of the café.\n" + "\n" * (n % 7 == 0) for n in range(2000)).encode()


@pytest.mark.parametrize("size", [9999, 1 << 20])
def test_gzip(blocks, text_file, size):
    """Recognized by its content; members may follow one another, as `cat a.gz b.gz` makes them."""
    plain = count([text_file(TEXT)])
    half = TEXT.index(b"\n", len(TEXT) // 2) - 3
    path = text_file(gzip.compress(TEXT[:half]) + gzip.compress(TEXT[half:]), "text.bin")
    blocks(size)
    assert count([path]) == plain == count([path, text_file("")], num_workers=2)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: raw[:2000] + b"xx" + raw[2002:], lambda raw: raw[:5]]
)
def test_damaged_gzip(text_file, damage):
    with pytest.raises(InputError, match=r"text.gz: damaged gzip data \(.+\). Get or compress the file again"):
        count([text_file(damage(gzip.compress(TEXT)), "text.gz")])


# === Refusals ===


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_not_utf8_says_where(blocks, text_file, size):
    """Line and byte as `read_lines` gives them, wherever the blocks were cut."""
    rng = random.Random(size)
    blocks(size)
    for _ in range(10):
        raw = bytearray("".join(rng.choices("ab é中 \n", k=300)).encode())
        raw[rng.randrange(len(raw))] = 0xFF
        path = text_file(bytes(raw))
        with pytest.raises(InputError) as expected:
            list(read_lines(path))
        for name in (path, text_file(gzip.compress(raw), "text.gz")):
            with pytest.raises(InputError) as error:
                count([name])
            assert str(error.value) == str(expected.value).replace("text.txt", os.path.basename(name))


def test_the_first_error_is_told(blocks, text_file):
    blocks(50)
    path = text_file(b"fine line\n" * 500 + b"caf\xe9\n" + b"fine line\n" * 500 + b"caf\xe9\n")
    with pytest.raises(InputError, match=r"text.txt:501: not valid UTF-8 at byte 3 of the line \(0xe9\)"):
        count([text_file("a\n" * 70, "a.txt"), path], num_workers=3)


def test_no_text(text_file):
    for content in ("", " \n\0\n\u0301\n"):
        with pytest.raises(InputError, match="text.txt: no text. Expected one sentence a line"):
            count([text_file(content)])


def test_unreadable(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\). Check the path"):
        count([tmp_path])
