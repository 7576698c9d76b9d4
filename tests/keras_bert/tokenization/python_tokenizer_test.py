"""PythonBertTokenizer: ids and offsets against the reference and Hugging Face's, errors, memory, a process without TF.

tests/keras_bert/tokenization/tokenizer_fuzz_test.py compares it with reference and graph at length.
"""

import doctest
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import unicodedata

import pytest
from repository import ROOT, SHARED, needs_data
from tokenizer_reference import ADVERSARIAL, BROKEN_VOCABULARIES, SPECIALS, read_ids, reference_ids, reference_offsets

from keras_bert.errors import InputError
from keras_bert.tokenization import python_tokenizer
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from keras_bert.vocabulary import read_vocabulary

CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
LONGEST = 5  # No piece of `adversarial_vocabulary` has more characters.


def adversarial_vocabulary():
    chars = {char for text in ADVERSARIAL if isinstance(text, str) for char in text}
    chars |= {part for char in chars for part in unicodedata.normalize("NFD", char.lower())}
    pieces = [*sorted(char for char in chars if char.strip()), "he", "llo", "\u03c3\u03c2", "ab"]
    return [*SPECIALS, *pieces, *(f"##{piece}" for piece in pieces)]


def data_lines(*path):
    with open(SHARED.joinpath(*path), encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")


# === Ids and offsets ===


@CASES
def test_adversarial_texts_equal_reference(lowercase):
    vocabulary = adversarial_vocabulary()
    tokenizer, ids = PythonBertTokenizer(vocabulary, lowercase), read_ids(vocabulary)
    for text in ADVERSARIAL:
        assert tokenizer.tokenize(text) == reference_ids(text, ids, lowercase, LONGEST)
        raw = text if isinstance(text, bytes) else text.encode()
        for given in (text, raw, raw + b"\xff", b"\xce" + raw, raw[1:-1]):
            assert tokenizer.tokenize(given) == reference_ids(given, ids, lowercase, LONGEST)
            assert tokenizer.tokenize_with_offsets(given) == reference_offsets(given, ids, lowercase, LONGEST)


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("ab b", [(0, 1), (1, 2), (3, 4)]),
        ("  a,b ", [(2, 3), (3, 4), (4, 5)]),
        ("\u00e9a", [(0, 1), (1, 2)]),
        ("e\u0301\u200d a", [(0, 3), (4, 5)]),  # Accent and joiner leave nothing: they go along.
        ("\u200da\u200d", [(1, 3)]),  # Nothing before a token goes along.
        ("\ub000b", [(0, 2)]),  # Two jamo of one syllable: one [UNK], as no piece has them.
        ("\u4e2d\u0301a", [(0, 2), (2, 3)]),
        ("zz\u0007z a", [(0, 4), (5, 6)]),
        ("a\u2028b\x0cb\x85", [(0, 1), (2, 4), (4, 6)]),  # A form feed is no blank.
        ("x" * 201 + "\u00ad b", [(0, 202), (203, 204)]),
        (b"\xffa\xfe\x80 b\xe4", [(0, 1), (2, 3)]),
        ("\x7f\x80\u07ff\u0800\ufffe\U00010000 b", [(2, 6), (7, 8)]),
        ("", []),
    ],
)
def test_offsets_by_hand(text, characters):
    tokenizer = PythonBertTokenizer([*SPECIALS, "a", "b", "e", "##a", "##b", ",", "\u4e2d"])
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    assert ids == tokenizer.tokenize(text)
    assert list(zip(starts, ends, strict=True)) == characters


def test_offsets_of_marks_that_change_places():
    """U+1D16D (class 226) goes behind U+1D165 (class 216): its piece is the second and stands first."""
    tokenizer = PythonBertTokenizer([*SPECIALS, "\U0001d165", "##\U0001d16d", "a", "##\U0001d165"])
    assert tokenizer.tokenize_with_offsets("\U0001d16d\U0001d165") == ([5, 6], [1, 0], [2, 1])
    assert tokenizer.tokenize_with_offsets("a\u034f\U0001d165") == ([7, 8], [0, 2], [2, 3])
    joined = PythonBertTokenizer([*SPECIALS, "\U0001d165\U0001d16d"])
    assert joined.tokenize_with_offsets("\U0001d16d\U0001d165") == ([5], [0], [2])
    assert joined.tokenize_with_offsets("\U0001d16d\U0001d165\U0001d165") == ([1], [0], [3])


def test_lone_surrogates_of_a_str_are_characters():
    tokenizer = PythonBertTokenizer([*SPECIALS, "a", "##b"])
    assert tokenizer.tokenize_with_offsets("a \udc80b") == ([5, 1], [0, 2], [1, 4])


@needs_data
def test_known_ids_of_the_uncased_english_vocabulary():
    tokenizer = PythonBertTokenizer(str(SHARED / "vocab" / "uncased_en.txt"))
    assert tokenizer.tokenize("Hello, world!") == [7592, 1010, 2088, 999]
    assert tokenizer.tokenize("unaffable [MASK]")[-3:] == [1031, 7308, 1033]
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id) == (101, 102, 103)
    assert (tokenizer.start_token, tokenizer.end_token_id, tokenizer.vocabulary_size()) == ("[CLS]", 102, 30522)


@needs_data
@pytest.mark.oracle
@pytest.mark.parametrize(("vocabulary", "lowercase"), [("uncased_en", True), ("cased_en", False)])
def test_ids_and_offsets_equal_hugging_face_tokenizers(vocabulary, lowercase):
    """On words of ordinary text, in which no character vanishes (theirs leave accents out of a token's end)."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    path = str(SHARED / "vocab" / f"{vocabulary}.txt")
    theirs = Tokenizer(models.WordPiece(read_ids(path), unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ours = PythonBertTokenizer(path, lowercase)
    lines = [*data_lines("corpus", "wikitext2-valid.txt")[:1500], *data_lines("wnut17", "dev.conll")[:3000]]
    lines = [line.replace("\t", " ") for line in lines]
    lines = [line for line in lines if not any(unicodedata.category(char) in ("Mn", "Cf", "Cc") for char in line)]
    assert len(lines) > 2500
    for line in lines:
        encoding = theirs.encode(line)
        ids, starts, ends = ours.tokenize_with_offsets(line)
        assert (ids, list(zip(starts, ends, strict=True))) == (encoding.ids, encoding.offsets)


# === What is remembered ===


def test_false_blanks_are_all_that_str_split_splits_at_and_the_rules_delete():
    blanks = [chr(cp) for cp in range(0x110000) if chr(cp).isspace()]
    deleted = {char for char in blanks if unicodedata.category(char) == "Cc" and char not in "\t\n\r"}
    assert deleted == set(python_tokenizer._FALSE_BLANKS)
    tokenizer = PythonBertTokenizer([*SPECIALS, "a", "##b"])
    for char in blanks:
        expected = [5, 6] if char in deleted else [5, 1]
        assert tokenizer.tokenize(f"a{char}b") == tokenizer.tokenize_with_offsets(f"a{char}b")[0] == expected


def test_memory_is_bounded_and_changes_no_result():
    vocabulary = [*SPECIALS, *"abc", "##a", "##b"]
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcA. ", k=30)) for _ in range(300)] + ["ab" * 40, "ab" * 40]
    ids = read_ids(vocabulary)
    tokenizer = PythonBertTokenizer(vocabulary, most_remembered=8)
    for text in texts:
        assert tokenizer.tokenize(text) == reference_ids(text, ids, True)
        assert tokenizer.tokenize_with_offsets(text) == reference_offsets(text, ids, True)
        for memory in (tokenizer._ids_of_word, tokenizer._ids_of_chunk, tokenizer._spans_of_chunk):
            assert len(memory) <= 8 and all(len(key) <= 32 for key in memory)


def test_threads_share_a_tokenizer():
    tokenizer = PythonBertTokenizer([*SPECIALS, *"abc", "##a", "##b", "##c"], most_remembered=16)
    text = " ".join("".join(random.Random(i).choices("abc", k=4)) for i in range(3000))
    expected, results = tokenizer.tokenize(text), []
    threads = [threading.Thread(target=lambda: results.append(tokenizer.tokenize(text))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_pickled_for_a_worker_without_its_memory():
    tokenizer = PythonBertTokenizer([*SPECIALS, "a", "A"], lowercase=False)
    assert tokenizer.tokenize("A a") == [6, 5]
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again._ids_of_chunk == {} and not again.lowercase
    assert again.tokenize("A a") == [6, 5] and again.get_vocabulary() == tokenizer.get_vocabulary()


@needs_data
def test_real_text_gives_the_same_ids_at_first_sight_and_again():
    path, lines = str(SHARED / "vocab" / "uncased_en.txt"), data_lines("corpus", "wikitext2-valid.txt")[:1500]
    ids, tokenizer = read_ids(path), PythonBertTokenizer(path)
    expected = [reference_ids(line, ids, True, 20) for line in lines]
    assert [tokenizer.tokenize(line) for line in lines] == expected
    assert [tokenizer.tokenize(line) for line in lines] == expected


# === Arguments, vocabularies ===


@pytest.mark.parametrize("wrong", [None, ["a"], 5])
def test_texts_of_a_wrong_type(wrong):
    tokenizer = PythonBertTokenizer([*SPECIALS, "a"])
    for function in (tokenizer.tokenize, tokenizer.tokenize_with_offsets):
        with pytest.raises(ValueError, match="`text` must be str or bytes. Received:"):
            function(wrong)


def test_vocabulary_look_ups():
    tokenizer = PythonBertTokenizer(["a", *reversed(SPECIALS), "##b"])
    assert tokenizer.get_vocabulary()[-1] == "##b" and tokenizer.vocabulary_size() == 7
    assert tokenizer.id_to_token(6) == "##b" and tokenizer.token_to_id("a") == 0
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.tokenize("ab c")) == (5, 1, [0, 6, 4])
    with pytest.raises(ValueError, match=r"must be in the vocabulary. Received: token='c'"):
        tokenizer.token_to_id("c")


def test_vocabulary_lines_that_strip_to_nothing_keep_their_ids(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(
        "\n".join([*SPECIALS, "\u2028", "##\u2028", "a", "\x02", "##a", "##", "#"]) + "\n", encoding="utf-8"
    )
    tokenizer = PythonBertTokenizer(path)
    assert tokenizer.tokenize("a aa \u2028 \x02 ## #a") == [7, 7, 9, 11, 11, 11, 7]
    assert tokenizer.vocabulary_size() == 12


def test_a_piece_that_only_white_space_tells_apart_counts_where_it_stands_last():
    assert PythonBertTokenizer([*SPECIALS, "a", "a\u2028"]).tokenize("a") == [6]


@pytest.mark.parametrize(("lines", "message"), BROKEN_VOCABULARIES)
def test_broken_vocabularies(tmp_path, lines, message):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(InputError, match=message):
        read_vocabulary(path)
    with pytest.raises(InputError, match=message):
        PythonBertTokenizer(str(path))


def test_missing_vocabulary_file(tmp_path):
    with pytest.raises(InputError, match="vocab.txt: cannot be read"):
        PythonBertTokenizer(pathlib.Path(tmp_path, "vocab.txt"))


@pytest.mark.parametrize(
    ("capitals", "lowercase", "message"),
    [
        (200, True, r"lowercase=True, found a cased one \(many pieces have capitals\). Pass lowercase=False"),
        (0, False, r"lowercase=False, found a lower-cased one \(hardly any piece has a capital\). Pass lowercase=True"),
        (200, False, None),
        (0, True, None),
        (30, True, None),  # Neither many nor hardly any: it may be either.
        (30, False, None),
        (200, None, None),
    ],
)
def test_case_of_the_vocabulary_against_the_flag(tmp_path, capitals, lowercase, message):
    path = tmp_path / "vocab.txt"
    words = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}x" for i in range(676)]
    words = [word.title() if i < capitals else word for i, word in enumerate(words)]
    path.write_text("\n".join([*SPECIALS, *words]))
    if message is None:
        assert read_vocabulary(str(path), lowercase) == [*SPECIALS, *words]
        return
    with pytest.raises(InputError, match=rf"vocab.txt: expected a (lower-)?cased vocabulary, since {message}"):
        PythonBertTokenizer(str(path), lowercase)


# === A process of its own ===


def test_import_needs_neither_tensorflow_nor_numpy():
    program = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer as T\n"
        "took = time.process_time() - start\n"
        "t = T(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', '##b'])\n"
        "assert t.tokenize_with_offsets('A\\u0301b')[0] == [5, 6]\n"
        "heavy = {'tensorflow', 'tensorflow_text', 'keras', 'keras_nlp', 'keras_hub', 'numpy', 'absl'}\n"
        "print(sorted(heavy.intersection(sys.modules)), took)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded, took = done.stdout.rsplit(maxsplit=1)
    assert loaded == "[]"
    assert float(took) < 1.0  # 0.02 s alone on one core.


def test_docstring_examples():
    results = doctest.testmod(python_tokenizer)
    assert results.attempted >= 3 and results.failed == 0
