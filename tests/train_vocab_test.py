"""bert-train-vocab: what it writes, that it writes the same twice, and what it refuses."""

import hashlib
import os
import subprocess
import sys

import pytest

from keras_bert.errors import InputError
from tasks.pretraining.train_vocab import SPECIAL_TOKENS, count_words, format_report, train_vocab

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = "The low lower lowest, the new newer newest.\nWide wider widest!\n\nThe newest low widest thing: the lowest.\n"
TEXT *= 30


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def train(corpus, tmp_path, **settings):
    vocab_file = str(tmp_path / "out" / "vocab.txt")
    report = train_vocab(input_file=corpus, vocab_file=vocab_file, **settings)
    with open(vocab_file, encoding="utf-8") as file:
        return report, file.read().splitlines()


def test_vocabulary_and_report(corpus, tmp_path, capfd):
    report, pieces = train(corpus, tmp_path, vocab_size=50)
    shown = capfd.readouterr()
    assert "count words: 100%" in shown.err and "join pieces: 11 distinct words, up to 50 pieces\n" in shown.err
    assert shown.out == ""
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] == list(SPECIAL_TOKENS)
    assert len(set(pieces)) == len(pieces) == report["vocabulary_size"] == 50
    assert {",", ".", "!", ":", "t", "##e", "the"} < set(pieces) and "##," not in pieces
    # Documents begin after blank lines: the first two sentences, then three at a time, then the last one.
    assert (report["documents"], report["sentences"], report["words"]) == (31, 90, 30 * (10 + 4 + 9))
    assert report["unknown_share"] == 0.0
    assert "unknown share              0.00%" in format_report(report)
    assert os.listdir(tmp_path / "out") == ["vocab.txt"]


def test_joins_the_most_frequent_pair_first(tmp_path):
    """By hand: `ab` 9 times, `cd` 5 times: first the characters, then ab, then cd; with room for one, only ab."""
    path = tmp_path / "text.txt"
    path.write_text("ab cd ab\n" * 4 + "ab cd e e\n")
    pieces = train(str(path), tmp_path, vocab_size=14)[1]
    assert pieces == [*SPECIAL_TOKENS, "##b", "##d", "a", "b", "c", "d", "e", "ab", "cd"]
    assert train(str(path), tmp_path, vocab_size=13)[1] == pieces[:-1]
    assert train(str(path), tmp_path, vocab_size=14, min_frequency=6)[1] == [*SPECIAL_TOKENS, "##b", "a", "b", "ab"]


def test_tokens_per_word_and_unknown_share(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab ab ab z\n" + "x" * 201 + "\n")
    report, pieces = train(str(path), tmp_path, vocab_size=8)
    assert pieces == [*SPECIAL_TOKENS, "##b", "a", "b"]
    assert report["tokens_per_word"] == 2.0 and report["unknown_share"] == 2 / 5


def test_cased_keeps_case_and_accents(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\u00c9a \u00c9a Ea ea\n" * 3, encoding="utf-8")
    assert {"\u00c9", "E", "e"} < set(train(str(path), tmp_path, do_lower_case=False)[1])
    assert train(str(path), tmp_path, do_lower_case=True)[1] == [*SPECIAL_TOKENS, "##a", "a", "e", "ea"]


def test_documents_run_on_across_files(tmp_path):
    for name, text in (("a", "one\ntwo"), ("b", "three\n\n \nfour\n")):
        (tmp_path / name).write_text(text)
    _, report = count_words([str(tmp_path / "a"), str(tmp_path / "b")], True)
    assert (report["documents"], report["sentences"]) == (2, 4)


def test_two_fresh_processes_write_the_same_file(tmp_path):
    """Many ties, and other hash seeds and numbers of threads."""
    words = [f"{a}{b}{c}{d}" for a in "abcde" for b in "fghij" for c in "klmno" for d in "pqr"]
    (tmp_path / "text.txt").write_text("\n".join(words * 3) + "\n")
    digests = set()
    for seed, threads in (("1", "1"), ("2", "2"), ("3", "4")):
        vocab_file = tmp_path / f"{seed}.txt"
        arguments = [f"--input_file={tmp_path}/text.txt", f"--vocab_file={vocab_file}", "--vocab_size=200"]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        environment.pop("TOKENIZERS_PARALLELISM", None)
        command = [sys.executable, "-m", "tasks.pretraining.train_vocab", *arguments]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, timeout=120)
        digests.add(hashlib.sha256(vocab_file.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_tokenizer_takes_the_vocabulary(corpus, tmp_path):
    from keras_bert.tokenizer import BertTokenizer

    report, pieces = train(corpus, tmp_path, vocab_size=50)
    tokenizer = BertTokenizer(str(tmp_path / "out" / "vocab.txt"))
    ids = tokenizer.tokenize(TEXT.splitlines())
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)
    assert tokenizer.unk_token_id not in ids.values.numpy()
    assert ids.values.shape[0] / report["words"] == pytest.approx(report["tokens_per_word"])


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"", {}, "text.txt: no text. Expected one sentence a line"),
        (b" \n\x00\n", {}, "text.txt: no text"),
        (b"fine\ncaf\xe9\n", {}, r"text.txt:2: not valid UTF-8"),
        (b"abc abc\n", {"vocab_size": 9}, r"--vocab_size=9 is too small.*need at least 10"),
    ],
)
def test_refusals(tmp_path, content, settings, message):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        train_vocab(input_file=str(tmp_path / "text.txt"), vocab_file=str(tmp_path / "vocab.txt"), **settings)
    assert os.listdir(tmp_path) == ["text.txt"]


def test_the_stated_minimum_is_enough(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"abc abc\n")
    assert train(str(tmp_path / "text.txt"), tmp_path, vocab_size=10)[0]["vocabulary_size"] == 10


def test_output_that_is_a_directory(corpus, tmp_path):
    with pytest.raises(InputError, match="--vocab_file is a directory"):
        train_vocab(input_file=corpus, vocab_file=str(tmp_path))
