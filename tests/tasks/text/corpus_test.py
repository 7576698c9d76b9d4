"""Text into stores: formats, documents, gzip; and stores, of which parts are read."""

import gzip
import importlib.machinery
import sys
import types

import numpy as np
import pytest
from repository import SHARED, needs_data

from keras_bert.errors import InputError
from tasks.pretraining.data.corpus import check_documents, sentence_splitter, tokenize_block
from tasks.pretraining.data.settings import InstanceSettings
from tasks.pretraining.data.token_store import Corpus, join, read_store, token_dtype, write_store
from tasks.pretraining.data.workspace import fill_workspace, open_workspace
from tasks.text import blocks
from tasks.text.blocks import split_block, text_blocks

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "."]


def store(directory, files, size=1 << 20, **settings):
    """The documents of the stores as lists of sentences of letters, and whether each began before its store."""
    vocabulary = "\n".join(VOCABULARY).encode()
    workspace = fill_workspace(str(directory), vocabulary, InstanceSettings(**settings), size, num_shards=1)
    documents, continued = [], []
    for block_number, block in enumerate(text_blocks([str(path) for path in files], size)):
        for number, described in enumerate(tokenize_block(str(directory), (block_number, block))):
            corpus = read_store(workspace.store_path(block_number, number), workspace.dtype)
            *counts, is_continued = described
            assert counts == [len(corpus.token_ids), corpus.num_sentences, corpus.num_documents]
            letters = [VOCABULARY[token] for token in corpus.token_ids]
            for document in range(corpus.num_documents):
                ends = corpus.bounds(document).tolist()
                documents.append(["".join(letters[slice(*ends)]) for ends in zip(ends[:-1], ends[1:], strict=True)])
                continued.append(is_continued and not document)
    open_workspace.cache_clear()
    return documents, continued


def test_blank_lines_end_documents_and_files_do_not(tmp_path):
    (tmp_path / "1").write_bytes(b"\xef\xbb\xbf\n\na\r\nb c\n \t \n\x00\nd\n")
    (tmp_path / "2").write_text("e\n\n\n\x07\n\na")  # "e" belongs to the document of "d"
    documents, _ = store(tmp_path / "store", [tmp_path / "1", tmp_path / "2"])
    assert documents == [["a", "bc"], ["d", "e"], ["a"]]


def test_a_title_begins_a_document_of_wikitext_and_headings_are_left_out(tmp_path):
    (tmp_path / "wiki").write_text(
        " \n = a b = \n \n a . b c . \n \n = = d = = \n \n e \n = = = f = = = \n g = h \n \n = a = \n \n b = \n"
    )
    documents, _ = store(tmp_path / "store", [tmp_path / "wiki"], input_format="wikitext")
    assert documents == [["a.bc.", "e", "g[UNK]h"], ["b[UNK]"]]


def test_each_file_is_a_document(tmp_path):
    for name, text in {"1": "a\n\nb\n", "2": "", "3": "c", "4": "\nd\n"}.items():
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in "1234"]
    documents, _ = store(tmp_path / "store", files, input_format="document_per_file")
    assert documents == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize("input_format", ["sentences", "wikitext", "document_per_file"])
def test_gzip_reads_as_the_text_inside(tmp_path, input_format):
    texts = ["a b\n\n = c = \nd\ne\n", "f\n\ng\n = h = \na\n\nb"]
    files = {"plain": [], "gzip": []}
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(text.encode()))
        files["plain"].append(tmp_path / f"{number}.txt")
        files["gzip"].append(tmp_path / f"{number}.gz")
    expected = {
        "sentences": [["ab"], ["=c=", "d", "e", "f"], ["g", "=h=", "a"], ["b"]],
        "wikitext": [["ab"], ["d", "e", "f", "g"], ["a", "b"]],
        "document_per_file": [["ab", "=c=", "d", "e"], ["f", "g", "=h=", "a", "b"]],
    }[input_format]
    expected = [[sentence.replace("=", "[UNK]") for sentence in document] for document in expected]
    for paths in files.values():
        assert store(tmp_path / "store", paths, input_format=input_format)[0] == expected


def test_long_documents_are_cut_and_said_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_LOOK_AHEAD", 20)
    (tmp_path / "text").write_text("a b c d\n" * 30 + "\ne\n")
    documents, continued = store(tmp_path / "store", [tmp_path / "text"], size=64)
    assert [sentence for document in documents for sentence in document] == ["abcd"] * 30 + ["e"]
    assert len(documents) > 3 and sum(continued) == len(documents) - 2
    # A large gzip file is one block, too, whose stores end behind twice 64 // 4 tokens, or once between documents.
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a b c d\n" * 15 + b"\n" + b"e\n\n" * 20))
    documents, continued = store(tmp_path / "store", [tmp_path / "text.gz"], size=64)
    assert documents == [["abcd"] * 8, ["abcd"] * 7, *[["e"]] * 20]
    assert continued == [False, True, *[False] * 20]
    assert sorted(path.name for path in (tmp_path / "store" / "stores").glob("000000-*"))[-1] == "000000-3"


@pytest.mark.parametrize(
    ("input_format", "cure"),
    [("sentences", "Put a blank line"), ("wikitext", "Expected a title"), ("document_per_file", "Give several files")],
)
def test_one_document_is_refused_with_the_cure_for_its_format(input_format, cure):
    with pytest.raises(InputError, match=f"a, b: only one document, .*{cure}"):
        check_documents(["a", "b"], 1, input_format)


def test_a_splitter_makes_sentences_of_lines(tmp_path, monkeypatch):
    # A stand-in for the library: its own quality is not tested here.
    library = types.ModuleType("sentencex")
    library.__spec__ = importlib.machinery.ModuleSpec("sentencex", None)
    library.segment = lambda language, text: [f"{part}." for part in text.split(".") if part and language == "xx"]
    monkeypatch.setitem(sys.modules, "sentencex", library)
    (tmp_path / "text").write_text("a b. c.\n\nd. e f.\n")
    rules = {"sentence_splitter": "sentencex", "sentence_language": "xx"}
    assert store(tmp_path / "store", [tmp_path / "text"], **rules)[0] == [["ab.", "c."], ["d.", "ef."]]


def test_sentencex_splits_prose():
    pytest.importorskip("sentencex", reason="sentencex is not installed")
    split = sentence_splitter("sentencex", "en")
    sentences = [sentence.strip() for sentence in split("Mr. Smith left the U.S. in May. He paid $3.50. Why?")]
    assert sentences == ["Mr. Smith left the U.S. in May.", "He paid $3.50.", "Why?"]


@needs_data
def test_articles_of_wikitext():
    cut = text_blocks([str(SHARED / "corpus" / "wikitext2-valid.txt")], 100_000)
    texts = [text for block in cut for text in split_block(block, "wikitext")]
    assert texts.count(None) == 60 + len(cut)  # Each block begins with an article, and with its title.
    assert not any(text.startswith("= ") for text in texts if text)


# === The store ===


def test_ids_take_two_bytes_if_they_can():
    assert token_dtype(30522) == token_dtype(1 << 16) == np.uint16
    assert token_dtype((1 << 16) + 1) == np.uint32


def test_slices_of_a_store_hold_every_document_once(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 50, 2_000)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    documents = np.array([*range(0, 2_000, 7), 2_000])
    whole = Corpus(rng.integers(0, 30522, starts[-1]).astype(np.uint16), starts, documents)
    path = str(tmp_path / "store")
    with open(path, "wb") as file:
        write_store(file, whole)
    for num_parts in (1, 2, 16):
        parts = [read_store(path, token_dtype(30522), part, num_parts) for part in range(num_parts)]
        sizes = [part.num_documents for part in parts]
        assert sum(sizes) == 286 and max(sizes) - min(sizes) <= 1
        corpus = join(parts)
        for name in ("token_ids", "sentence_starts", "document_starts"):
            assert np.array_equal(getattr(corpus, name), getattr(whole, name))
        assert corpus.bounds(1).tolist() == np.cumsum(lengths)[6:14].tolist()
    few = read_store(path, token_dtype(30522), 5, 1000)
    assert few.num_documents == 1  # Never none.
