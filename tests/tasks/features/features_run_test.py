"""`bert-features` from texts to files of embeddings, and what it refuses, in words that name the cure."""

import json
import os
import sys

import keras
import numpy as np
import processes
import pytest
import toy_features
from run_tasks import extract_features

from keras_bert import BertBackbone, BertPreprocessor
from keras_bert.errors import InputError
from tasks.features import extraction

TEXTS = "anna saw rome\nthe man left ||| unseen\n" + "ben met anna , the man left rome\nmets\n" * 4
COLUMNS = "anna O\nunseen O\n\nrome O\nleft O\nunseen O\nrome O\nrome O\nunseen O\n\nben O\n"


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_features.save_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    (directory / "texts.txt").write_text(TEXTS)
    (directory / "words.conll").write_text(COLUMNS)
    (directory / "gap.txt").write_text("anna\n\nben\n")
    return directory


def extracted(path, **settings):
    results = extract_features(output_file=str(path), max_seq_length=16, **settings)
    with np.load(path) as archive:
        return results, dict(archive)


@pytest.fixture(scope="module", name="tokens")
def _tokens(preset, files):
    """The vectors of each token of `texts.txt`: (results, arrays)."""
    settings = {"preset": preset, "input_file": str(files / "texts.txt"), "layers": ["-1", "embeddings"]}
    return extracted(files / "tokens.npz", **settings)


def test_tokens_of_texts_in_their_order(preset, tokens):
    results, arrays = tokens
    assert results["rows"] == 10 and results["tokens"] == len(arrays["token_ids"]) and results["cut_rows"] == 0
    assert results["vectors"] == {"layer_2": 16, "embeddings": 16}
    splits = arrays["row_splits"]
    preprocessor = BertPreprocessor.from_preset(preset, 16, pad_to_longest=True)
    backbone = BertBackbone.from_preset(preset)
    for row, texts in ((0, ["anna saw rome"]), (1, ["the man left", "unseen"]), (9, ["mets"])):
        outputs = backbone(preprocessor(tuple([text] for text in texts)), training=False)
        expected = keras.ops.convert_to_numpy(outputs["sequence_output"])[0]
        np.testing.assert_allclose(arrays["layer_2"][splits[row] : splits[row + 1]], expected, atol=1e-5)
    assert arrays["tokens"][splits[9] :].tolist() == ["[CLS]", "met", "##s", "[SEP]"]


def test_the_last_four_layers_of_two_are_both(preset, files, tmp_path):
    results, _ = extracted(tmp_path / "both.npz", preset=preset, input_file=str(files / "texts.txt"))
    assert list(results["vectors"]) == ["layer_2", "layer_1"]


def test_google_flags_name_the_encoder_and_batches_change_nothing(preset, files, tokens, tmp_path, monkeypatch):
    """google-research/bert's extract_features.py takes --init_checkpoint and --vocab_file in place of a preset."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(toy_features.VOCABULARY) + "\n")
    monkeypatch.setattr(extraction, "BLOCK_BYTES", 1)  # A batch a block.
    _, again = extracted(
        tmp_path / "b.npz",
        init_checkpoint=preset,
        vocab_file=str(vocabulary),
        input_file=str(files / "texts.txt"),
        layers=["-1", "embeddings"],
        eval_batch_size=3,
    )
    assert again.keys() == tokens[1].keys()
    for name, array in tokens[1].items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(again[name], array, atol=1e-5)
        else:
            np.testing.assert_array_equal(again[name], array)


def test_pooled_vectors_are_means_of_the_tokens(preset, files, tokens, tmp_path):
    settings = {"preset": preset, "input_file": str(files / "texts.txt")}
    results, pooled = extracted(tmp_path / "b.npz", pooling="mean", normalize=True, **settings)
    assert sorted(pooled) == ["indices", "layer_2"] and results["vectors"] == {"layer_2": 16}
    arrays = tokens[1]
    means = np.add.reduceat(arrays["layer_2"], arrays["row_splits"][:-1])
    np.testing.assert_allclose(pooled["layer_2"], means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-5)


def test_words_keep_their_alignment_in_windows(preset, files, tmp_path):
    extract_features(
        preset=preset,
        input_file=str(files / "words.conll"),
        input_format="conll",
        output_file=str(tmp_path / "a.npz"),
        layers=["0"],
        max_seq_length=7,
    )
    with np.load(tmp_path / "a.npz") as archive:
        arrays = dict(archive)
    sentences = [["anna", "un", "##seen"], "rome left un ##seen rome rome un ##seen".split(), ["ben"]]
    # The second needs two windows, and its vectors stand in a row as those of the others.
    assert arrays["tokens"].tolist() == [piece for pieces in sentences for piece in ("[CLS]", *pieces, "[SEP]")]
    assert arrays["row_splits"].tolist() == [0, 5, 15, 18] and arrays["embeddings"].shape == (18, 16)
    firsts = np.repeat(arrays["row_splits"][:-1], np.diff(arrays["word_splits"])) + arrays["word_starts"]
    words = [line.split()[0] for line in COLUMNS.splitlines() if line]
    assert arrays["tokens"][firsts].tolist() == [{"unseen": "un"}.get(word, word) for word in words]


@pytest.mark.parametrize("combine", ["concatenate", "sum", "mean"])
def test_layers_are_combined_in_the_order_given(preset, files, tokens, tmp_path, combine):
    settings = {"preset": preset, "input_file": str(files / "texts.txt"), "layers": ["-1", "embeddings"]}
    results, arrays = extracted(tmp_path / "a.npz", combine=combine, **settings)
    both = [tokens[1]["layer_2"], tokens[1]["embeddings"]]
    expected = {"concatenate": np.concatenate(both, -1), "sum": both[0] + both[1], "mean": (both[0] + both[1]) / 2}
    assert results["vectors"] == {"features": expected[combine].shape[-1]}
    np.testing.assert_allclose(arrays["features"], expected[combine], atol=1e-5)


def test_a_sentence_too_long_for_one_vector_is_cut_like_a_text(preset, files, tmp_path):
    settings = {"preset": preset, "pooling": "mean", "max_seq_length": 7, "output_dir": str(tmp_path)}
    arrays = []
    (tmp_path / "lines.txt").write_text("anna unseen\nrome left unseen rome rome unseen\nben\n")
    for path, kind in ((files / "words.conll", "conll"), (tmp_path / "lines.txt", "text")):
        results = extract_features(input_file=str(path), input_format=kind, **settings)
        assert (results["rows"], results["cut_rows"], results["skipped_rows"]) == (3, 1, 0)
        assert json.loads((tmp_path / "metrics.json").read_text()) == results
        with np.load(tmp_path / "features.npz") as archive:
            arrays.append(dict(archive))
    for name, array in arrays[0].items():
        np.testing.assert_allclose(arrays[1][name], array, atol=1e-6)


def test_a_checkpoint_without_pooler_has_no_pooled_output(preset, files, tmp_path, monkeypatch):
    import contextlib
    import types

    @contextlib.contextmanager
    def without_pooler(_):
        yield types.SimpleNamespace(tensors={})

    monkeypatch.setattr(extraction, "open_checkpoint", without_pooler)
    with pytest.raises(InputError, match="has no pooler"):
        extract_features(
            preset=preset,
            input_file=str(files / "texts.txt"),
            output_file=str(tmp_path / "a.npz"),
            pooling="pooler",
            max_seq_length=16,
        )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"layers": ["3"]}, ["--layers=3", "1 to 2"]),
        ({"output_file": "a.csv"}, ["a.csv", ".npz", ".parquet"]),
        ({"output_file": None}, ["--output_file", "--output_dir"]),
        ({"output_dir": "texts.txt"}, ["texts.txt: cannot be created"]),
        ({"preset": None}, ["--preset"]),
        ({"preset": "no/such/preset"}, ["no/such/preset"]),
        ({"input_file": None}, ["--input_file"]),
        ({"input_file": "no_such.txt"}, ["no_such.txt"]),
        ({"input_file": "gap.txt"}, ["gap.txt:2", "empty"]),
        ({"max_seq_length": 25}, ["--max_seq_length=25", "24"]),
        ({"normalize": True}, ["--normalize", "--pooling"]),
        ({"pooling": "pooler", "layers": ["1"]}, ["--pooling=pooler", "last layer"]),
    ],
)
def test_wrong_settings_are_refused(preset, files, tmp_path, monkeypatch, changes, words):
    monkeypatch.chdir(files)
    settings = {
        "preset": preset,
        "input_file": "texts.txt",
        "output_file": str(tmp_path / "a.npz"),
        "layers": ["-1"],
        "max_seq_length": 16,
        **changes,
    }
    with pytest.raises(InputError) as refused:
        extract_features(**settings)
    assert all(word in str(refused.value) for word in words), refused.value
    assert not os.listdir(tmp_path)


def test_the_texts_are_not_replaced(preset, tmp_path):
    (tmp_path / "a.jsonl").write_text("w1 w2\n")
    settings = {"preset": preset, "layers": ["-1"], "max_seq_length": 16}
    settings |= {"input_file": f"{tmp_path}/*", "output_file": f"{tmp_path}/a.jsonl"}
    with pytest.raises(InputError, match="a.jsonl: is given both as --output_file and as --input_file. Choose another"):
        extract_features(**settings)
    assert (tmp_path / "a.jsonl").read_text() == "w1 w2\n"


# === The command ===


def command(*flags):
    done = processes.run([sys.executable, "-m", "tasks.features.run", *flags], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_command_writes_google_lines_and_its_flags(preset, files, tmp_path):
    output = str(tmp_path / "a.jsonl")
    status, out, error = command(
        f"--preset={preset}",
        f"--input_file={files}/texts.txt",
        f"--output_file={output}",
        "--layers=-1,-2",
        f"--output_dir={tmp_path}/out",
        "--max_seq_length=8",
    )
    assert status == 0, error
    assert "10 rows" in out and "4 of 10 texts were cut" in out
    with open(output, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert [line["linex_index"] for line in lines] == list(range(10))
    assert [layer["index"] for layer in lines[0]["features"][0]["layers"]] == [-1, -2]
    flags = json.loads((tmp_path / "out" / "flags.json").read_text())
    assert flags["layers"] == ["-1", "-2"] and flags["preset"] == preset


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--do_train"], ["do_train"]),
        (["--pooling=max"], ["pooling", "max"]),
    ],
)
def test_wrong_flags_are_refused_in_one_line(flags, words):
    status, _, error = command(*flags)
    assert status == 2 and len(error.splitlines()) == 1
    assert all(word in error for word in words), error
