"""BertTokenizer where tensorflow-text cannot be imported: the same ids, by Python."""

import json
import sys

import processes
import pytest
from repository import ROOT
from tokenizer_reference import ADVERSARIAL
from tokenizer_texts import alphabet_vocabulary, fuzzed_texts

from keras_bert.tokenization.tokenizer import BertTokenizer

CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])

PROGRAM = """
import json, sys
sys.modules["tensorflow_text"] = None
import tensorflow as tf
from keras_bert.tokenization.tokenizer import BertTokenizer

vocabulary, texts, lowercase = json.load(open(sys.argv[1]))
tokenizer = BertTokenizer(vocabulary, lowercase=lowercase)
BertTokenizer(vocabulary, lowercase=lowercase)
dataset = tf.data.Dataset.from_tensors(texts)
rows = lambda columns: [column.to_list() for column in columns]
found = {
    "in_graph": tokenizer.in_graph,
    "eager": tokenizer.tokenize(texts).to_list(),
    "dataset": next(iter(dataset.map(tokenizer.tokenize))).to_list(),
    "function": tf.function(tokenizer.tokenize)(tf.constant(texts)).to_list(),
    "layer": [list(map(int, row)) for row in tokenizer(texts)],
    "one": tokenizer.tokenize(texts[3]).numpy().tolist(),
    "empty": tokenizer.tokenize([]).to_list(),
    "offsets": rows(next(iter(dataset.map(tokenizer.tokenize_with_offsets)))),
    "text": tokenizer.detokenize([[2, 3], []]).numpy()[0].decode(),
}
from keras_bert.tokenization.preprocessor import BertPreprocessor
found["packed"] = BertPreprocessor(tokenizer, sequence_length=8)(texts)["token_ids"].numpy().tolist()
json.dump(found, open(sys.argv[2], "w"))
"""


@pytest.mark.slow(keep=["uncased"])
@CASES
def test_ids_and_offsets_are_the_graphs(tmp_path, lowercase):
    vocabulary = alphabet_vocabulary()
    texts = [text for text in ADVERSARIAL if isinstance(text, str)] + fuzzed_texts(200, seed=21)
    (tmp_path / "input.json").write_text(json.dumps([vocabulary, texts, lowercase]))
    paths = [str(tmp_path / name) for name in ("input.json", "found.json")]
    run = processes.run([sys.executable, "-c", PROGRAM, *paths], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("tensorflow-text cannot be imported") == 1  # Said once for two tokenizers.
    results = json.loads((tmp_path / "found.json").read_text())
    tokenizer = BertTokenizer(vocabulary, lowercase=lowercase)
    expected = tokenizer.tokenize(texts).to_list()
    assert results["eager"] == results["dataset"] == results["function"] == results["layer"] == expected
    assert results["one"] == expected[3] and results["empty"] == []
    assert results["offsets"] == [column.to_list() for column in tokenizer.tokenize_with_offsets(texts)]
    assert results["text"] == "[CLS] [SEP]" and not results["in_graph"]
    assert [row[:2] for row in results["packed"]][3] == [2, expected[3][0]]


def test_with_tensorflow_text_all_is_in_the_graph():
    assert BertTokenizer(alphabet_vocabulary()).in_graph


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("export.run", ["--preset=all_minilm_l6_v2_en", "--task=embeddings", "--export_dir=served"]),
        ("export.local_server", ["--model_base_path=served"]),
    ],
)
def test_a_served_graph_needs_it(tmp_path, command, arguments):
    (tmp_path / "served" / "1").mkdir(parents=True)
    (tmp_path / "served" / "1" / "saved_model.pb").write_bytes(b"")
    program = f"import sys; sys.modules['tensorflow_text'] = None; from {command} import console_main; console_main()"
    command = [sys.executable, "-c", program, *arguments]
    run = processes.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    said = [line for line in run.stderr.splitlines() if "served graph" in line]
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert len(said) == 1 and "A served graph needs tensorflow-text, which cannot be imported here" in said[0]
