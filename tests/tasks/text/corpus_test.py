"""Text into a store: formats, documents, gzip, pieces that are read apart; and what cannot be read."""

import gzip
import os
import shutil
import sys
import threading
import types

import numpy as np
import pytest
from repository import SHARED, needs_data

from keras_bert.errors import InputError
from tasks.pretraining.data import corpus
from tasks.pretraining.data.corpus import create_store
from tasks.pretraining.data.settings import InstanceSettings
from tasks.pretraining.data.token_store import StoreWriter, open_store, token_dtype
from tasks.pretraining.data.workspace import new_workspace
from tasks.text import reading
from tasks.text.parallel import LocalPool
from tasks.text.reading import LINES, split_piece, text_units

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "."]


def cuts(size):
    return LINES._replace(piece_bytes=size, unit_bytes=size)


def store(directory, files, **settings):
    """The documents of a store as lists of sentences of letters."""
    vocab_file = directory.with_suffix(".vocab")
    vocab_file.write_text("\n".join(VOCABULARY))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    with new_workspace(str(directory), str(vocab_file), InstanceSettings(**settings)) as workspace:
        written = create_store(workspace, [str(path) for path in files], LocalPool(1))
        found = workspace.corpus
    assert (found.num_documents, found.num_sentences) == (written.num_documents, written.num_sentences)
    letters = [VOCABULARY[number] for number in found.token_ids]
    bounds = [found.bounds(document).tolist() for document in range(found.num_documents)]
    return [["".join(letters[first:last]) for first, last in zip(ends[:-1], ends[1:], strict=True)] for ends in bounds]


def test_blank_lines_end_documents_and_files_do_not(tmp_path):
    (tmp_path / "1").write_bytes(b"\xef\xbb\xbf\n\na\r\nb c\n \t \n\x00\nd\n")
    (tmp_path / "2").write_text("e\n\n\n\x07\n\na")  # "e" belongs to the document of "d"
    found = store(tmp_path / "store", [tmp_path / "1", tmp_path / "2"])
    assert found == [["a", "bc"], ["d", "e"], ["a"]]


def test_a_title_begins_a_document_of_wikitext_and_headings_are_left_out(tmp_path):
    (tmp_path / "wiki").write_text(
        " \n = a b = \n \n a . b c . \n \n = = d = = \n \n e \n = = = f = = = \n g = h \n \n = a = \n \n b = \n"
    )
    found = store(tmp_path / "store", [tmp_path / "wiki"], input_format="wikitext")
    assert found == [["a.bc.", "e", "g[UNK]h"], ["b[UNK]"]]


def test_each_file_is_a_document(tmp_path):
    for name, text in {"1": "a\n\nb\n", "2": "", "3": "c", "4": "\nd\n"}.items():
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in "1234"]
    assert store(tmp_path / "store", files, input_format="document_per_file") == [["a", "b"], ["c"], ["d"]]


@pytest.fixture
def unit_of(monkeypatch):
    """Sets the size of pieces and units."""
    return lambda size: monkeypatch.setattr(corpus, "LINES", cuts(size))


@pytest.mark.parametrize("input_format", ["sentences", "wikitext", "document_per_file"])
def test_gzip_reads_as_the_text_inside(tmp_path, unit_of, input_format):
    texts = ["a b\n\n = c = \nd\ne\n", "f\n\ng\n = h = \na\n\nb"]
    files = {"plain": [], "gzip": []}
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(text.encode()))
        files["plain"].append(tmp_path / f"{number}.txt")
        files["gzip"].append(tmp_path / f"{number}.gz")
    expected = store(tmp_path / "store", files["plain"], input_format=input_format)
    assert len(expected) >= 2
    for unit_bytes in (1, 3, 1 << 20):
        unit_of(unit_bytes)
        assert store(tmp_path / "store", files["gzip"], input_format=input_format) == expected


@pytest.mark.parametrize("unit_bytes", [1, 2, 3, 5, 8, 1000])
def test_pieces_hold_every_line_once(tmp_path, monkeypatch, unit_bytes):
    lines = ["a", "", "bcd", "\u00e9\u4e2d", "", "", "e" * 30, "f"]
    monkeypatch.setattr(reading, "_STEP", 2)
    for end in ("", "\n"):
        (tmp_path / "text").write_text("\n".join(lines) + end)
        pieces = [piece for unit in text_units([str(tmp_path / "text")], cuts(unit_bytes)) for piece in unit]
        assert [line or "" for piece in pieces for line in split_piece(piece, "sentences")] == lines
        assert sum(piece.num_bytes for piece in pieces) == os.path.getsize(tmp_path / "text")


def test_small_files_share_a_unit(tmp_path):
    for number in range(30):
        (tmp_path / str(number)).write_text("a\n")
    units = list(text_units([str(tmp_path / str(number)) for number in range(30)], LINES))
    assert [len(unit) for unit in units] == [30]


def test_a_pipe_can_be_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("a\n\nb\nc\n"))
    writer.start()
    assert store(tmp_path / "store", [tmp_path / "pipe"]) == [["a"], ["b", "c"]]
    writer.join()


@pytest.mark.parametrize("unit_bytes", [2, 1 << 20])
def test_bad_text_is_named_by_file_and_line(tmp_path, unit_of, unit_bytes):
    unit_of(unit_bytes)
    (tmp_path / "good").write_text("a\n\nb\n")
    (tmp_path / "bad").write_bytes(b"a\nb\nc\xe9d\n")
    with pytest.raises(InputError, match=r"bad:3: not valid UTF-8 at byte 1 of the line \(0xe9\)"):
        store(tmp_path / "store", [tmp_path / "good", tmp_path / "bad"])
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"a\nb\nc\xe9d\n"))
    with pytest.raises(InputError, match=r"bad.gz:3: not valid UTF-8 at byte 1 of the line \(0xe9\)"):
        store(tmp_path / "store", [tmp_path / "bad.gz"])


def test_what_is_no_text_is_refused(tmp_path, unit_of, monkeypatch):
    monkeypatch.setattr(reading, "_LONGEST_CHUNK", 10)
    monkeypatch.setattr(reading, "_STEP", 4)
    unit_of(4)
    (tmp_path / "long").write_text("a\n" + "b" * 20)
    (tmp_path / "long.gz").write_bytes(gzip.compress(b"a\n" + b"b" * 20))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a b\n\n" * 5)[:-9])
    for name, message in {
        "long": "no line feed in .* bytes, from about byte",
        "long.gz": "no line feed in",
        "cut.gz": "damaged gzip data",
        "missing": "cannot be read .No such file",
    }.items():
        with pytest.raises(InputError, match=message):
            store(tmp_path / "store", [tmp_path / name])


@pytest.mark.parametrize(
    ("input_format", "cure"),
    [("sentences", "Put a blank line"), ("wikitext", "Expected a title"), ("document_per_file", "Give several files")],
)
def test_one_document_is_refused_with_the_cure_for_its_format(tmp_path, input_format, cure):
    (tmp_path / "text").write_text("a\nb\n")
    with pytest.raises(InputError, match=f"only one document, .*{cure}"):
        store(tmp_path / "store", [tmp_path / "text"], input_format=input_format)


def test_a_splitter_makes_sentences_of_lines(tmp_path, monkeypatch):
    # A stand-in for the library: its own quality is not tested here.
    library = types.ModuleType("sentencex")
    library.segment = lambda language, text: [f"{part}." for part in text.split(".") if part and language == "xx"]
    monkeypatch.setitem(sys.modules, "sentencex", library)
    reading.sentence_splitter.cache_clear()
    (tmp_path / "text").write_text("a b. c.\n\nd. e f.\n")
    rules = {"sentence_splitter": "sentencex", "sentence_language": "xx"}
    assert store(tmp_path / "store", [tmp_path / "text"], **rules) == [["ab.", "c."], ["d.", "ef."]]
    reading.sentence_splitter.cache_clear()


def test_a_splitter_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    reading.sentence_splitter.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'keras-bert-zoo\[sentences\]'"):
        reading.sentence_splitter("sentencex", "en")


def test_sentencex_splits_prose():
    pytest.importorskip("sentencex", reason="sentencex is not installed")
    split = reading.sentence_splitter("sentencex", "en")
    found = [sentence.strip() for sentence in split("Mr. Smith left the U.S. in May. He paid $3.50. Why?")]
    assert found == ["Mr. Smith left the U.S. in May.", "He paid $3.50.", "Why?"]


@needs_data
def test_articles_of_wikitext():
    units = text_units([str(SHARED / "corpus" / "wikitext2-valid.txt")], LINES)
    texts = [text for unit in units for piece in unit for text in reading.split_piece(piece, "wikitext")]
    assert texts.count(None) == 60
    assert not any(text.startswith("= ") for text in texts if text)


# === The store ===


def test_ids_take_two_bytes_if_they_can():
    assert token_dtype(30522) == token_dtype(1 << 16) == np.uint16
    assert token_dtype((1 << 16) + 1) == np.uint32


def test_released_memory_is_read_again(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 50, 20_000)
    token_ids = rng.integers(0, 30522, lengths.sum())
    with StoreWriter(str(tmp_path), 30522) as writer:
        starts_document = np.arange(20_000) % 7 == 0
        writer.append(token_ids[: lengths[:9000].sum()], lengths[:9000], starts_document[:9000])
        writer.append(token_ids[lengths[:9000].sum() :], lengths[9000:], starts_document[9000:])
    found = open_store(str(tmp_path), 30522)
    for _ in range(2):
        assert np.array_equal(found.token_ids, token_ids)
        assert np.array_equal(np.diff(found.sentence_starts), lengths)
        assert np.array_equal(found.document_starts, [*range(0, 20_000, 7), 20_000])
        found.release()
    assert found.bounds(1).tolist() == np.cumsum(lengths)[6:14].tolist()
