"""Repeated lines and documents: what is left out is what a set in memory finds, whatever the blocks and parts."""

import hashlib
import json
import os
import random

import pytest

from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data import duplicates
from tasks.pretraining.data.duplicates import find_duplicates, without_duplicates
from tasks.pretraining.data.settings import DataSettings
from tasks.text.blocks import split_block, text_blocks
from tasks.text.parallel import LocalPool


def random_text(rng, num_documents, ending="\n"):
    """Documents of a few lines, many of which occur more often than once; some only differ in blanks at their ends."""
    documents = []
    for _ in range(num_documents):
        lines = [f"line {int(rng.paretovariate(0.4)) % 3000}" for _ in range(rng.choice((1, 1, 2, 5)))]
        documents.append("".join(rng.choice(("", " ", "\t")) + line + rng.choice(("", " ")) + ending for line in lines))
    return (ending * rng.choice((1, 2))).join(documents) + 2 * ending


def expected(texts, unit):
    """What is left of files that end with a document, and how many items there are, and were left out."""
    seen, kept, counted = set(), [], 0
    for text in texts:
        for document in text.replace("\r", "").split("\n\n"):
            lines = [line.strip() for line in document.split("\n") if line.strip()]
            items = [[line] for line in lines] if unit == "lines" else [lines] * bool(lines)
            counted += len(items)
            for item in items:
                if tuple(item) not in seen:
                    kept += item
                seen.add(tuple(item))
            kept.append(None)
    return kept, counted, counted - len(seen)


def ends_once(texts):
    """Leaves of several ends of documents, one after another, the last, and none at the beginning."""
    kept = []
    for text in texts:
        if text is not None:
            kept.append(text)
        elif kept and kept[-1] is not None:
            kept.append(None)
    return kept


@pytest.mark.parametrize("unit", ["lines", "documents"])
@pytest.mark.parametrize(("size", "per_part"), [(300, 40), (400, 10**6)])
def test_what_a_set_in_memory_finds(tmp_path, monkeypatch, unit, size, per_part):
    monkeypatch.setattr(duplicates, "_HASHES_PER_PART", per_part)
    rng = random.Random(size)
    texts = [random_text(rng, 150), random_text(rng, 100, "\r\n"), random_text(rng, 3)]
    paths = [str(tmp_path / f"{number}.txt") for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    kept, num_items, num_repeated = expected(texts, unit)
    blocks = text_blocks(paths, size)
    *counts, num_parts = find_duplicates(LocalPool(1), str(tmp_path), blocks, "sentences", unit)
    assert counts == [num_items, num_repeated] and (num_parts > 1) == (per_part == 40)
    unique_texts = []
    for number, block in enumerate(blocks):
        unique_texts += without_duplicates(str(tmp_path), number, num_parts, split_block(block, "sentences"), unit)
    assert len(blocks) > 10 and num_items / 10 < num_repeated < num_items
    assert ends_once(unique_texts) == ends_once(kept)


def test_equal_halves_of_hashes_are_told_apart(tmp_path, monkeypatch):
    """Hashes that agree in their first 64 bits, and in their last ones, and one that does occur twice."""
    first, second = b"A" * 8, b"B" * 8
    digests = {"a": first + first, "b": first + second, "c": second + first, "d": first + second}
    monkeypatch.setattr(duplicates, "_digest", lambda lines: digests[lines[0]])
    (tmp_path / "1.txt").write_text("a\n\n")
    (tmp_path / "2.txt").write_text("b\nc\n\n")
    (tmp_path / "3.txt").write_text("d\na\n")
    blocks = text_blocks([str(tmp_path / f"{number}.txt") for number in (1, 2, 3)], 6)
    assert find_duplicates(LocalPool(1), str(tmp_path), blocks, "sentences", "lines") == (5, 2, 1)
    texts = [split_block(block, "sentences") for block in blocks]
    lines = [without_duplicates(str(tmp_path), n, 1, text, "lines") for n, text in enumerate(texts)]
    assert [[line for line in block if line] for block in lines] == [["a"], ["b", "c"], []]


def test_the_hash_is_that_of_the_text():
    (lines, digest), _ = duplicates._items(iter(["one", "zw\u00f6lf", None]), "documents")
    assert lines == ["one", "zw\u00f6lf"]
    assert digest == hashlib.blake2b("one\nzw\u00f6lf".encode(), digest_size=16).digest()


@pytest.mark.parametrize("unit", ["lines", "documents"])
def test_records_are_those_of_a_text_without_duplicates(tmp_path, unit):
    """A text of one block. The report tells what was left out."""
    text = random_text(random.Random(8), 60)
    kept, num_items, num_repeated = expected([text], unit)
    cleaned = "".join("\n" if line is None else f"{line}\n" for line in kept)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "line", *"0123456789", *(f"##{n}" for n in range(10))]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    written = []
    for name, content, drop in (("raw", text, unit), ("clean", cleaned, "none"), ("all", text, "none")):
        (tmp_path / f"{name}.txt").write_text(content)
        settings = DataSettings(
            input_file=str(tmp_path / f"{name}.txt"),
            output_file=str(tmp_path / f"{name}.tfrecord"),
            vocab_file=str(tmp_path / "vocab.txt"),
            max_seq_length=32,
            dupe_factor=2,
            num_workers=1,
            drop_duplicates=drop,
        )
        report = create_pretraining_data(settings)
        written.append((tmp_path / f"{name}.tfrecord").read_bytes())
        if name == "raw":
            assert report[f"repeated_{unit}"] == num_repeated > 0
            assert report[f"repeated_{unit}_share"] == num_repeated / num_items
            with open(tmp_path / "raw.tfrecord.report.json", encoding="utf-8") as file:
                assert json.load(file)[f"repeated_{unit}"] == num_repeated
        else:
            assert not any(key.startswith("repeated") for key in report)
    assert written[0] == written[1] != written[2]
    assert not [name for name in os.listdir(tmp_path) if "scratch" in name]
