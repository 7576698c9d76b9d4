"""The examples of docs/models.md, run one after another on a small random encoder that is called "tiny"."""

import ast
import re
import string

import keras
import pytest
from repository import ROOT

from keras_bert import BertBackbone, BertTokenizer

PAGE = ROOT / "docs" / "models.md"


def form(value):
    """The keys of an answer in their order, and its types."""
    if isinstance(value, dict):
        return [(name, form(item)) for name, item in value.items()]
    return list if isinstance(value, list) else type(value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_the_page_s_examples_run(tmp_path, monkeypatch):
    preset = tmp_path / "home" / "tiny"
    pieces = [*string.ascii_lowercase, *string.digits, ".", "?"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer([*special, *pieces, *(f"##{piece}" for piece in pieces)])
    tokenizer.save_to_preset(str(preset))
    BertBackbone(tokenizer.vocabulary_size(), 1, 2, 8, 16).save_to_preset(str(preset))
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keras.Model, "run_eagerly", True)  # Tracing each of eight models takes seconds.
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) == 14
    names = {}
    for block, output in blocks:
        tree = ast.parse(block)
        last = ast.Expression(tree.body.pop().value) if output else None
        exec(compile(tree, str(PAGE), "exec"), names)  # noqa: S102
        if output:  # Random weights give other values.
            printed = ast.literal_eval(output)
            assert form(eval(compile(last, str(PAGE), "eval"), names)) == form(printed)  # noqa: S307
    assert names["logits"].shape == (1, 2) and names["again"].num_classes == 2
    assert names["similarity"].shape == (3, 3)
    assert names["predicted"].shape[0] == 2 and names["spans"].shape == (2, 2) and names["best"].shape == (2,)
