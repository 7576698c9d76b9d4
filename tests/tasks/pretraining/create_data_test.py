"""bert-create-pretraining-data: from text files to records, and what it refuses."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from repository import ROOT, SHARED, needs_data

from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.pretraining import create_data
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data import driver, shard_index
from tasks.pretraining.data.records import parse_records
from tasks.pretraining.data.settings import DataSettings
from tasks.text import blocks

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP, MASK = 2, 3, 4
S, P = 32, 5
SETTINGS = {
    "max_seq_length": S,
    "max_predictions_per_seq": P,
    "masked_lm_prob": 0.15,
    "short_seq_prob": 0.1,
    "dupe_factor": 3,
    "random_seed": 1,
    "do_whole_word_mask": False,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """20 documents of up to 12 sentences in two files; every word occurs once: its id gives its place."""
    directory = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    documents, number = [], 0
    for _ in range(20):
        document = []
        for _ in range(rng.integers(1, 13)):
            length = int(rng.integers(1, 15))
            document.append([f"w{number + offset}" for offset in range(length)])
            number += length
        documents.append(document)
    words = [f"w{n}" for n in range(number)]
    (directory / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n")
    rendered = ["\n".join(" ".join(sentence) for sentence in document) for document in documents]
    (directory / "a.txt").write_text("\n\n".join(rendered[:10]) + "\n \t\n\n")
    (directory / "b.txt").write_text("\n\n".join(rendered[10:]))
    document_of = {
        len(SPECIAL) + int(word[1:]): index
        for index, document in enumerate(documents)
        for sentence in document
        for word in sentence
    }
    return directory, documents, document_of


def create(text, output_file, **changes):
    directory = text[0]
    arguments = {
        "input_file": f"{directory}/[ab].txt",
        "output_file": output_file,
        "vocab_file": f"{directory}/vocab.txt",
        **SETTINGS,
        **changes,
    }
    return create_pretraining_data(DataSettings(**arguments))


def read(paths):
    serialized = [record for path in paths for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    lengths = {"max_seq_length": S, "max_predictions_per_seq": P}
    features, labels = parse_records(tf.constant(serialized), **lengths)
    return {name: value.numpy() for name, value in {**features, **labels}.items()}


def test_records_restore_to_runs_of_one_document_each(text, tmp_path):
    paths = [tmp_path / "out" / "0", tmp_path / "out" / "1", tmp_path / "out" / "2"]
    report = create(text, ",".join(map(str, paths)))
    records = read(paths)
    _, documents, document_of = text
    sentence_ends = set(np.cumsum([len(s) for document in documents for s in document]) + len(SPECIAL))
    uncut = 0
    for row in range(report["instances"]):
        length = int(records["padding_mask"][row].sum())
        ids = records["token_ids"][row].copy()
        weighted = records["mask_weights"][row] > 0
        assert weighted.sum() == min(P, max(1, round(length * 0.15)))
        ids[records["mask_positions"][row][weighted]] = records["mask_ids"][row][weighted]
        assert not ids[length:].any() and not records["segment_ids"][row][length:].any()
        assert (records["padding_mask"][row] == (np.arange(S) < length)).all()
        first, second = np.flatnonzero(ids == SEP)
        assert ids[0] == CLS and second == length - 1 and (ids == CLS).sum() == 1
        assert (records["segment_ids"][row][:length] == (np.arange(length) > first)).all()
        a, b = ids[1:first], ids[first + 1 : second]
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()  # runs of the source text
        (document_a,), (document_b,) = ({document_of[int(id_)] for id_ in part} for part in (a, b))
        assert records["next_sentence_labels"][row] == (document_a != document_b)
        if length < S and document_a == document_b:
            assert b[0] == a[-1] + 1 and b[0] in sentence_ends  # the actual next sentence
            uncut += 1
        assert not records["mask_ids"][row][~weighted].any() and not records["mask_positions"][row][~weighted].any()
    assert uncut > 10


def test_report_counts_what_the_files_hold(text, tmp_path):
    paths = [tmp_path / "0", tmp_path / "1"]
    report = create(text, [str(path) for path in paths])
    records = read(paths)
    _, documents, _ = text
    weighted = records["mask_weights"] > 0
    shown = np.take_along_axis(records["token_ids"], records["mask_positions"], axis=1)[weighted]
    answers = records["mask_ids"][weighted]
    assert report["documents"] == 20
    assert report["sentences"] == sum(map(len, documents))
    assert report["instances"] == len(records["token_ids"])
    assert report["real_tokens"] == records["padding_mask"].sum()
    assert report["padding_share"] == pytest.approx(1 - records["padding_mask"].mean())
    assert report["masked_share"] == pytest.approx(weighted.sum() / records["padding_mask"].sum())
    assert report["mask_share"] == pytest.approx((shown == MASK).mean())
    assert report["kept_share"] == pytest.approx((shown == answers).mean())
    assert report["mask_share"] + report["kept_share"] + report["random_share"] == pytest.approx(1)
    assert report["random_next_share"] == pytest.approx(records["next_sentence_labels"].mean())
    assert json.loads((tmp_path / "0.report.json").read_text()) == report
    lengths = records["padding_mask"].sum(axis=1)
    assert [bar["instances"] for bar in report["length_histogram"]] == np.bincount(lengths, minlength=S + 1)[
        1:
    ].tolist()
    indexes = [".0.index.npz", ".1.index.npz"]
    assert sorted(os.listdir(tmp_path)) == [*indexes, "0", "0.report.json", "1"]
    counts = [len(read([path])["token_ids"]) for path in paths]
    assert abs(counts[0] - counts[1]) <= 1


def test_each_file_has_its_index(text, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_MEBIBYTE", 400)  # Several blocks, whose figures are joined.
    paths = create(text, [str(tmp_path / name) for name in "012"], dupe_factor=30)["output_files"]
    lengths = {"max_seq_length": S, "max_predictions_per_seq": P}
    with monkeypatch.context() as patch:
        patch.setattr(shard_index, "_scan", None)
        written = shard_index.read_indexes(paths, **lengths)
    for path in paths:
        os.remove(shard_index.index_path(path))
    for index, expected in zip(written, shard_index.read_indexes(paths, **lengths), strict=True):
        assert index.vocabulary == written[0].vocabulary > 0 and expected.vocabulary == -1  # The records do not say it.
        expected = expected._replace(vocabulary=index.vocabulary)
        assert len(index.lengths) > 2 * shard_index.GROUP and len(index.offsets) > 2
        for name in expected._fields:
            np.testing.assert_array_equal(getattr(index, name), getattr(expected, name), strict=True)


def test_data_are_created_without_tensorflow(text, tmp_path):
    directory = text[0]
    code = f"""
import sys
sys.modules["tensorflow"] = None
from tasks.pretraining import create_data
from tasks.pretraining.data.settings import DataSettings
files = dict(input_file="{directory}/a.txt", output_file="{tmp_path}/out", vocab_file="{directory}/vocab.txt")
create_data.create_pretraining_data(DataSettings(**files, num_workers=1))
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "out").exists() and (tmp_path / ".out.index.npz").exists()


def test_text_output_and_scratch_may_be_remote(text, tmp_path, monkeypatch):
    local = create(text, str(tmp_path / "out"), num_shards=2)
    for name in ("a.txt", "b.txt", "vocab.txt"):
        tf.io.gfile.copy(f"{text[0]}/{name}", f"ram://text/{name}", overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "join_shard", None)
        with pytest.raises(TypeError):
            create(("ram://text",), "ram://data/out", num_shards=2, num_workers=1)
    assert tf.io.gfile.listdir("ram://data") == [".out.scratch"]
    remote = create(("ram://text",), "ram://data/out", num_shards=2, num_workers=1)
    assert not tf.io.gfile.exists("ram://data/.out.scratch")
    for here, there in zip(local["output_files"], remote["output_files"], strict=True):
        for path, url in ((here, there), (shard_index.index_path(here), shard_index.index_path(there))):
            with open(path, "rb") as file, tf.io.gfile.GFile(url, "rb") as remote_file:
                assert remote_file.read() == file.read()
    assert read_json("ram://data/out.report.json")["instances"] == local["instances"]
    tf.io.gfile.rmtree("ram://data")


def test_bytes_depend_on_the_seed_alone(text, tmp_path):
    contents = []
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        create(text, str(tmp_path / name), random_seed=seed)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_shards_hold_what_files_by_name_hold(text, tmp_path):
    report = create(text, str(tmp_path / "train"), num_shards=3)
    names = [f"train-0000{shard}-of-00003" for shard in range(3)]
    assert report["output_files"] == [str(tmp_path / name) for name in names]
    create(text, [str(tmp_path / str(shard)) for shard in range(3)])
    for shard, name in enumerate(names):
        assert (tmp_path / name).read_bytes() == (tmp_path / str(shard)).read_bytes()
    # A pattern of shards matches no report.
    assert sorted(path.name for path in tmp_path.glob("train-*")) == names
    assert json.loads((tmp_path / "train.report.json").read_text()) == report


def test_more_shards_than_instances_leave_empty_files(text, tmp_path):
    report = create(text, str(tmp_path / "train"), num_shards=100, dupe_factor=1)
    sizes = [os.path.getsize(path) for path in report["output_files"]]
    assert report["instances"] < 100 and sum(size > 0 for size in sizes) == report["instances"]


def test_duplicates_draw_other_masks_and_pairs(text, tmp_path):
    report = create(text, str(tmp_path / "data"), dupe_factor=8)
    rows = {tuple(row) for row in read([tmp_path / "data"])["token_ids"].tolist()}
    assert len(rows) > 0.97 * report["instances"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no text. Expected one sentence a line"),
        (b"\n \n\x07\n", "no text. Expected one sentence a line"),
        (b"w1 w2\nw3\n", "only one document, .* Put a blank line between documents"),
        (b"w1\n\nw2\nw\xff3\n", r"bad.txt:4: not valid UTF-8 at byte 1"),
        (b"\x1f\x8b\x08\x00broken", "bad.txt: damaged gzip data"),
    ],
)
def test_text_that_cannot_be_used_is_refused_and_leaves_nothing(text, tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        create(text, str(tmp_path / "out"), input_file=str(path))
    assert os.listdir(tmp_path) == ["bad.txt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 4}, "--max_seq_length=4: must be at least 5"),
        ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq=0: must be at least 1"),
        ({"dupe_factor": 0}, "--dupe_factor=0: must be at least 1"),
        ({"random_seed": -1}, "--random_seed=-1: must be at least 0"),
        ({"masked_lm_prob": float("nan")}, "--masked_lm_prob=nan: must be a finite number"),
        ({"short_seq_prob": 1.5}, "--short_seq_prob=1.5: must be at most 1.0"),
        ({"input_file": "missing.txt"}, "missing.txt: no such file"),
        ({"output_file": "x,x"}, "--output_file must name one file or several different ones. Received: 'x,x'"),
        ({"output_file": "."}, "is a directory"),
        ({"output_file": "x,y", "num_shards": 2}, "--num_shards=2 numbers one --output_file. Received: 'x,y'"),
        (
            {"input_format": "xml"},
            "--input_format=xml: must be one of sentences, wikitext, document_per_file",
        ),
        ({"sentence_splitter": "magic"}, "--sentence_splitter=magic: must be one of none, sentencex"),
        ({"beam_options": ["--a=b"]}, "--beam_options needs --runner, such as --runner=DirectRunner"),
    ],
)
def test_settings_out_of_range_are_refused(text, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        create(text, **{"output_file": str(tmp_path / "out"), **changes})


def test_an_output_path_with_a_comma_is_refused(text, tmp_path):
    (tmp_path / "a,b").mkdir()
    with pytest.raises(InputError, match="a comma separates files here, but .*/a,b is one directory"):
        create(text, f"{tmp_path}/a,b/train.tfrecord")
    assert os.listdir(tmp_path) == ["a,b"]


def test_a_vocabulary_without_mask_is_refused(text, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nw1\n")
    with pytest.raises(InputError, match=r"vocab.txt.*\[MASK\]"):
        create(text, str(tmp_path / "out"), vocab_file=str(tmp_path / "vocab.txt"))


@needs_data
def test_whole_words_of_real_text(tmp_path):
    vocab_file = str(SHARED / "vocab" / "uncased_en.txt")
    path = str(tmp_path / "real")
    report = create_pretraining_data(
        DataSettings(
            input_file=str(SHARED / "corpus" / "google-bert-sample_text.txt"),
            output_file=path,
            vocab_file=vocab_file,
            **{**SETTINGS, "dupe_factor": 40, "do_whole_word_mask": True},
        )
    )
    records = read([path])
    tokenizer = PythonBertTokenizer(vocab_file)
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    continues = np.array([token.startswith("##") for token in tokenizer.get_vocabulary()])
    whole_words = 0
    for row in range(report["instances"]):
        weighted = records["mask_weights"][row] > 0
        positions = set(records["mask_positions"][row][weighted].tolist())
        ids = records["token_ids"][row].copy()
        ids[records["mask_positions"][row][weighted]] = records["mask_ids"][row][weighted]
        for position in range(2, int(records["padding_mask"][row].sum())):
            if continues[ids[position]] and ids[position - 1] not in special:
                assert (position in positions) == (position - 1 in positions)
                whole_words += position in positions
    assert whole_words > 100


def test_the_report_does_not_depend_on_workers(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tasks.text.blocks._MEBIBYTE", 300)
    serial, parallel = (create(text, str(tmp_path / "train"), num_shards=9, num_workers=number) for number in (1, 2))
    assert {**serial, "seconds": 0} == {**parallel, "seconds": 0}
    monkeypatch.setattr(create_data, "create_pretraining_data", lambda _: serial)
    create_data.main(None)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-4:] == [*serial["output_files"][:2], "... 9 files", serial["output_files"][-1]]
    assert sum(bar["instances"] for bar in serial["length_histogram"]) == serial["instances"]


def test_long_sequences_are_counted_in_ranges(text, tmp_path):
    report = create(text, str(tmp_path / "train"), max_seq_length=100)
    bars = report["length_histogram"]
    assert [(bar["from"], bar["to"]) for bar in bars[:2] + bars[-1:]] == [(1, 4), (5, 8), (97, 100)]
    assert sum(bar["instances"] for bar in bars) == report["instances"]


@pytest.mark.parametrize("name", ["input_file", "vocab_file"])
def test_a_file_that_is_read_is_not_replaced(tmp_path, name):
    paths = {"input_file": tmp_path / "text.txt", "vocab_file": tmp_path / "vocab.txt"}
    paths["input_file"].write_text("a b c\n")
    paths["vocab_file"].write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]) + "\n")
    before = paths[name].read_bytes()
    with pytest.raises(InputError, match=f"{paths[name].name}: is given both as --output_file and as --{name}"):
        create_pretraining_data(
            DataSettings(
                input_file=str(paths["input_file"]), vocab_file=str(paths["vocab_file"]), output_file=str(paths[name])
            )
        )
    assert paths[name].read_bytes() == before
