"""Blocks of text: every line once, documents whole, wherever the cuts fall; and what cannot be read."""

import gzip
import os
import random
import threading

import pytest

from keras_bert.errors import InputError
from tasks.text import blocks
from tasks.text.blocks import block_bytes, count_bytes, read_block, split_block, spool_pipes, text_blocks


def split(block, input_format="sentences"):
    """The documents of a block, as lists of lines, and whether it begins with one."""
    items = list(split_block(block, input_format))
    documents = [[]]
    for item in items:
        if item is None:
            documents.append([])
        else:
            documents[-1].append(item)
    return list(filter(None, documents)), items[:1] == [None]


@pytest.mark.parametrize("size", [20, 33, 70, 200, 10**6])
@pytest.mark.parametrize("input_format", ["sentences", "wikitext"])
def test_documents_stay_whole_wherever_the_cuts_fall(tmp_path, size, input_format):
    rng = random.Random(size)
    documents = [[f"d{n} s{m} \u00e9\u4e2d" for m in range(rng.randint(1, 6))] for n in range(60)]
    begin = {"sentences": "", "wikitext": " = Title = \n"}[input_format]
    texts = ["\n".join(begin + "\n".join(document) + "\n" for document in part) for part in (documents[:40], documents)]
    paths = [str(tmp_path / name) for name in "ab"]
    for path, text in zip(paths, texts, strict=True):
        with open(path, "w") as file:
            file.write(text + "\n")
    cut = text_blocks(paths, size)
    assert sum(map(count_bytes, cut)) == sum(map(os.path.getsize, paths))
    assert len(cut) > 20 or size > 70
    splits = [split(block, input_format) for block in cut]
    assert [document for block, _ in splits for document in block] == documents[:40] + documents
    assert all(begins for _, begins in splits)
    assert cut == text_blocks(paths, size)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
def test_blocks_hold_every_line_once_also_of_long_documents(tmp_path, monkeypatch, size):
    monkeypatch.setattr(blocks, "_LOOK_AHEAD", 7)
    monkeypatch.setattr(blocks, "_CHUNK", 4)
    lines = ["a", "", "bcd", "\u00e9\u4e2d", "", "", "e" * 30, "f"]
    for end in ("", "\n"):
        (tmp_path / "text").write_text("\n".join(lines) + end)
        cut = text_blocks([str(tmp_path / "text")], size)
        read = b"".join(data for block in cut for _, data, _ in read_block(block))
        assert read.decode() == "\n".join(lines) + end
        assert [line for block in cut for document in split(block)[0] for line in document] == list(filter(None, lines))


def test_a_line_without_end_is_cut_at_blanks(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_LOOK_AHEAD", 10)
    monkeypatch.setattr(blocks, "_CHUNK", 16)
    text = " ".join(f"word{number}" for number in range(50))
    (tmp_path / "text").write_text(text)
    for size in (10, 100, 1000):
        cut = text_blocks([str(tmp_path / "text")], size)
        chunks = [chunk for block in cut for chunk in read_block(block)]
        starts, contents, texts = zip(*chunks, strict=True)
        assert "".join(texts) == text and len(chunks) > 10
        assert all(chunk.endswith(" ") for chunk in texts[:-1])
        assert starts[:2] == (0, len(contents[0]))


def test_small_files_come_together_and_gzip_files_stay_whole(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}").write_text(f"{number}\n")
    small = sorted(str(path) for path in tmp_path.glob("??"))
    (tmp_path / "large.gz").write_bytes(gzip.compress(random.Random(0).randbytes(500).hex().encode() + b"\n\nb\n"))
    cut = text_blocks([*small, str(tmp_path / "large.gz")], 60)
    assert [len(block) for block in cut] == [14, 10, 6 + 1]  # A block is full from 30 bytes on.
    assert split(cut[-1])[0][-1] == ["b"] and cut[-1][-1].is_gzip
    assert split(cut[0])[0] == [[str(number) for number in range(len(cut[0]))]]  # A document runs on.
    assert split(cut[0], "document_per_file")[0] == [[str(number)] for number in range(len(cut[0]))]


def test_a_byte_order_mark_is_left_out(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa\n\nb\n")
    assert split(text_blocks([str(tmp_path / "text")], 100)[0]) == ([["a"], ["b"]], True)


def test_the_size_of_blocks_depends_on_text_and_passes():
    sizes = [block_bytes(size) >> 20 for size in (0, 10**6, 10**8, 10**9, 10**12)]
    assert sizes == [1, 1, 1, 14, 16]
    assert [block_bytes(10**12, passes) >> 20 for passes in (2, 10, 40)] == [8, 1, 1]


@pytest.mark.parametrize("directory", ["", "ram://spooled"])
def test_a_pipe_is_copied(tmp_path, directory):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("c\n")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("a\n\nb\n"))
    writer.start()
    paths = spool_pipes([str(tmp_path / "pipe"), str(tmp_path / "text")], directory or str(tmp_path))
    writer.join()
    assert split(text_blocks(paths, 100)[0])[0] == [["a"], ["b", "c"]]
    assert paths[1] == str(tmp_path / "text")


@pytest.mark.parametrize("size", [2, 1 << 20])
def test_bad_text_is_named_by_file_and_line(tmp_path, size):
    (tmp_path / "bad").write_bytes(b"a\nb\nc\xe9d\n")
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"a\nb\nc\xe9d\n"))
    for name in ("bad", "bad.gz"):
        with pytest.raises(InputError, match=rf"{name}:3: not valid UTF-8 at byte 1 of the line \(0xe9\)"):
            for block in text_blocks([str(tmp_path / name)], size):
                split(block)


def test_what_is_no_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_LONGEST_RUN", 10)
    monkeypatch.setattr(blocks, "_CHUNK", 4)
    monkeypatch.setattr(blocks, "_LOOK_AHEAD", 4)
    (tmp_path / "long").write_text("a\n" + "b" * 20)
    (tmp_path / "long.gz").write_bytes(gzip.compress(b"a\n" + b"b" * 20))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a b\n\n" * 5)[:-9])
    for name, size, message in [
        ("long", 100, "no white space in .* bytes after about byte 2\\."),
        ("long", 6, "no white space in .* bytes after about byte"),
        ("long.gz", 100, "no white space in"),
        ("cut.gz", 100, "damaged gzip data"),
        ("missing", 100, "cannot be read .No such file"),
    ]:
        with pytest.raises(InputError, match=f"{name}: {message}"):
            for block in text_blocks([str(tmp_path / name)], size):
                split(block)
