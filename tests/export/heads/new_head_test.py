"""A new head is one class and one line of a table: everything else asks it what it needs."""

import pathlib

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from repository import ROOT
from toy_classifier import VOCABULARY
from toy_heads import backbone, shaken

from export import run as export_run
from export import saved_model
from export.heads import loading
from export.heads.base import About
from export.heads.windowed import EXAMPLE, WordHead
from export.run import ExportSettings
from keras_bert import BertTokenizer
from keras_bert.answers.base import TokenOutput
from keras_bert.encoder.heads import output_head
from keras_bert.files import read_json
from tasks.fine_tuning.model_files import save_model


class NumberOfWords(WordHead):
    """A number for each word."""

    task = "number_of_words"
    trained_settings = ("doc_stride",)
    listed = "words"
    columns = {"numbers": 0.0}
    token_outputs = {"numbers": TokenOutput(("sequence",), column=0, padding=0.0)}

    def answer_words(self, words, logits):
        return words, {"numbers": logits[:, 0]}

    def about(self):
        return About(
            "Numbers of words",
            "Gives each word a number.",
            [EXAMPLE],
            {"text": f"string: any bytes; {self.read_part}"},
            {
                "words": "string (words): the words",
                "starts": "int32 (words): where each starts",
                "ends": "int32 (words): where each ends",
                "numbers": "float (words): their numbers",
                "num_words": "int32: how many there are",
                "truncated": "bool: whether some of the text was not read",
            },
            token_outputs={"numbers": "float (sequence): of each token"},
        )


@pytest.fixture(scope="module", name="served")
def _served(tmp_path_factory):
    """The model, what `bert-export --onnx` says, and the base path."""
    root = tmp_path_factory.mktemp("new_head")
    encoder = backbone()
    numbers = output_head(1, encoder.initializer_range, name="numbers")(encoder(encoder.input)["sequence_output"])
    model = shaken(keras.Model(encoder.input, numbers))
    task = {"task": NumberOfWords.task, "sequence_length": 16, "doc_stride": 5}
    save_model(str(root / "model"), model, BertTokenizer(VOCABULARY), task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(loading.HEADS, NumberOfWords.task, NumberOfWords)
        settings = ExportSettings(
            model_dir=str(root / "model"), export_dir=str(root / "served"), with_cc="off", onnx=True, max_tokens=40
        )
        text = export_run.export(settings)
    return model, text, root / "served"


def test_it_is_exported_verified_and_written_for_another_runtime(served):
    _, text, base = served
    report = saved_model.read_report(str(base / "1"))
    assert (report.signatures, report.num_probes) == (["serving_default", "token_ids"], 6)
    assert report.largest_difference <= 1e-5
    assert "40 real texts in batches of 1, 7, 32: largest difference from the SavedModel" in text
    graph = onnx.load(str(base / "onnx" / "1" / "model.onnx")).graph
    assert [value.name for value in graph.output] == ["numbers"]
    assert [[dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in graph.output] == [
        ["batch", "sequence"]
    ]


def test_its_answers_are_the_models(served):
    model, _, base = served
    signatures = tf.saved_model.load(str(base / "1")).signatures
    answer = signatures["serving_default"](text=tf.constant(["the cat, sat", ""]))
    assert answer["words"].numpy().tolist() == [[b"the", b"cat", b",", b"sat"], [b"", b"", b"", b""]]
    assert answer["starts"].numpy().tolist() == [[0, 4, 7, 9], [-1] * 4]
    ids = [2, *(VOCABULARY.index(piece) for piece in ("the", "cat", ",", "sat")), 3]
    inputs = {"token_ids": [ids], "segment_ids": [[0] * 6], "padding_mask": [[1] * 6]}
    right = model({name: tf.constant(value) for name, value in inputs.items()})[0, 1:-1, 0]
    np.testing.assert_allclose(answer["numbers"][0], right, atol=1e-5)
    assert answer["numbers"][1].numpy().tolist() == [0.0] * 4


def test_its_description_is_for_clients_and_readers(served):
    _, text, base = served
    description = read_json(str(base / "1" / "assets.extra" / "model.json"))
    assert (description["task"], description["labels"]) == (NumberOfWords.task, [])
    readme = (base / "README.md").read_text(encoding="utf-8")
    for part in (EXAMPLE, "| output | `numbers` | float (words): their numbers |", "at most 40 tokens"):
        assert part in readme
    assert EXAMPLE in text


def test_nothing_but_heads_names_a_task():
    """What exports, verifies, documents or serves a model would have to change with each new head."""
    room = pathlib.Path(ROOT) / "export"
    files = [
        room / name
        for name in (
            "companion_files.py",
            "clients.py",
            "verification/verify.py",
            "../keras_bert/answers/text_bounds.py",
            "signatures.py",
        )
    ]
    for path in (*files, *(room / "targets").glob("*.py"), *(room / "server" / "page_files").glob("*.js")):
        text = path.read_text(encoding="utf-8")
        assert not [task for task in loading.HEADS if f'"{task}"' in text or f"{task}(" in text], path
