"""Hugging Face directories in: every form of their weights and every head, against the model that wrote them."""

import json
import os

import h5py
import numpy as np
import pytest
from absl import logging
from toy_hugging_face import (
    SAFETENSORS,
    SIZES,
    TENSORFLOW,
    TORCH,
    copied,
    numpy_state,
    random_model,
    read_all,
    save_tensorflow,
    tensorflow_arrays,
    torch,
)

from keras_bert import formats
from keras_bert.errors import InputError
from keras_bert.formats import hugging_face
from keras_bert.presets import weights

pytestmark = pytest.mark.oracle


@pytest.fixture
def said(monkeypatch):
    """What is logged as a warning."""
    lines = []
    monkeypatch.setattr(logging, "warning", lambda *arguments: lines.append(arguments[0] % arguments[1:]))
    return lines


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for path in ours:
        np.testing.assert_array_equal(ours[path], theirs[path], err_msg=path)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The directory of a pre-training model, and the model; only to be read."""
    directory = tmp_path_factory.mktemp("pretrained")
    model = random_model()
    model.save_pretrained(directory)
    return directory, model


# === Numbers ===


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_pretraining_logits_equal_transformers(tmp_path, hidden_act):
    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertPretrainer

    theirs = random_model(hidden_act=hidden_act)
    theirs.save_pretrained(tmp_path)
    ours = BertPretrainer(BertBackbone.from_preset(str(tmp_path)), compile=False)
    with weights.open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.heads == ("masked_lm", "next_sentence") and checkpoint.has_pooler
        assert weights.load_weights_of(ours, checkpoint) == []
    rng = np.random.default_rng(0)
    ids, segments = rng.integers(0, 100, (4, 12)), rng.integers(0, 3, (4, 12))
    mask = (np.arange(12)[None] < np.array([12, 7, 3, 1])[:, None]).astype("int32")
    with torch.no_grad():
        expected = theirs(torch.tensor(ids), torch.tensor(mask), torch.tensor(segments))
    outputs = ours(
        {
            "token_ids": ids,
            "segment_ids": segments,
            "padding_mask": mask,
            "mask_positions": np.tile(np.arange(12), (4, 1)),
        }
    )
    np.testing.assert_allclose(outputs["masked_lm"], expected.prediction_logits.numpy(), atol=5e-5)
    np.testing.assert_allclose(outputs["next_sentence"], expected.seq_relationship_logits.numpy(), atol=5e-5)
    assert np.abs(expected.prediction_logits.numpy()).max() > 1


def test_every_tensor_is_the_models_own(pretrained):
    directory, model = pretrained
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tensors = read_all(directory)
    assert len(tensors) == 5 + 2 * 12 + 2 + 5 + 2
    attention = "bert.encoder.layer.1.attention.self."
    joined = [state[f"{attention}{part}.weight"].T for part in ("query", "key", "value")]
    expected = {
        "embeddings/segment_embedding/embeddings": state["bert.embeddings.token_type_embeddings.weight"],
        "transformer_layer_1/self_attention/query_key_value/kernel": np.concatenate(joined, axis=1),
        "pooled_dense/kernel": state["bert.pooler.dense.weight"].T,
        "masked_lm/transform_dense/kernel": state["cls.predictions.transform.dense.weight"].T,
        "masked_lm/transform_dense/bias": state["cls.predictions.transform.dense.bias"],
        "masked_lm/transform_layer_norm/gamma": state["cls.predictions.transform.LayerNorm.weight"],
        "masked_lm/transform_layer_norm/beta": state["cls.predictions.transform.LayerNorm.bias"],
        "masked_lm/output_bias": state["cls.predictions.decoder.bias"],
        "next_sentence/kernel": state["cls.seq_relationship.weight"].T,
        "next_sentence/bias": state["cls.seq_relationship.bias"],
    }
    for path, value in expected.items():
        assert value.any()
        np.testing.assert_array_equal(tensors[path], value, err_msg=path)


@pytest.mark.parametrize(
    ("cls", "head", "stored"),
    [
        ("BertForSequenceClassification", "classification", "classifier"),
        ("BertForTokenClassification", "token_classification", "classifier"),
        ("BertForMultipleChoice", "multiple_choice", "classifier"),
        ("BertForQuestionAnswering", "question_answering", "qa_outputs"),
        ("BertForNextSentencePrediction", "next_sentence", "cls.seq_relationship"),
        ("BertForMaskedLM", "masked_lm", "cls.predictions.transform.dense"),
    ],
)
def test_heads_of_other_classes(tmp_path, cls, head, stored):
    model = random_model(cls)
    model.save_pretrained(tmp_path)
    whole = read_all(tmp_path)
    os.remove(tmp_path / SAFETENSORS)
    save_tensorflow(numpy_state(model), tmp_path, f"tf_{cls}")
    assert_same(read_all(tmp_path), whole)
    with weights.open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.heads == (head,) and checkpoint.labels is None
        has_pooler = cls in ("BertForSequenceClassification", "BertForMultipleChoice", "BertForNextSentencePrediction")
        assert checkpoint.has_pooler == has_pooler
        kernel = "masked_lm/transform_dense/kernel" if head == "masked_lm" else f"{head}/kernel"
        values = checkpoint.tensors[kernel].read()
    np.testing.assert_array_equal(values, model.state_dict()[f"{stored}.weight"].numpy().T)


def test_labels_come_in_the_order_of_their_numbers(tmp_path, said):
    from keras_bert.models import BertBackbone, BertTextClassifier

    names = [f"class-{chr(122 - index)}" for index in range(11)]  # 10 sorts before 2 as text
    random_model("BertForSequenceClassification", id2label=dict(enumerate(names))).save_pretrained(tmp_path)
    with weights.open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.labels == names
        assert checkpoint.tensors["classification/kernel"].read().shape == (16, 11)
    different = "config.json: expected id2label to name 11 different classes, found"
    cases = [
        ({"id2label": {"0": "a", "2": "b"}}, "config.json: expected id2label to name the classes 0, 1"),
        ({"id2label": {**dict(enumerate(names)), 10: names[0]}}, different),
        ({"id2label": {"0": "a", "1": "b"}}, different),
        ({"problem_type": "regression"}, "config.json: expected classes, or one number to predict, found a regression"),
    ]
    for number, (config, reason) in enumerate(cases):  # Then only the encoder can be read.
        path = str(copied(tmp_path, tmp_path / f"{number}", config=config))
        said.clear()
        BertBackbone.from_preset(path)
        assert len(said) == 1 and "its classification head is not read." in said[0] and reason in said[0]
        with pytest.raises(InputError, match="a fine-tuned classification head, found none. Pass `num_classes` or `la"):
            BertTextClassifier.from_preset(path)
        assert BertTextClassifier.from_preset(path, labels=["a", "b"]).labels == ["a", "b"]


def test_an_unnamed_classifier_is_one_of_sequences(tmp_path):
    random_model("BertForTokenClassification").save_pretrained(tmp_path)
    directory = copied(tmp_path, tmp_path / "more", config={"architectures": None})
    with weights.open_checkpoint(str(directory)) as checkpoint:
        assert checkpoint.heads == ("classification",)


# === Forms of the weights ===


def _old_names(tensors):
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }


def _with_copies(tensors):
    return {
        **tensors,
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        "bert.embeddings.position_ids": np.arange(24)[None],
    }


def _bias_of_the_decoder_alone(tensors):
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    return tensors


@pytest.mark.parametrize(
    "change",
    [
        _old_names,
        _with_copies,
        _bias_of_the_decoder_alone,
        lambda tensors: {name.removeprefix("bert."): value for name, value in tensors.items()},
    ],
)
def test_names_of_other_years(pretrained, tmp_path, change, said):
    directory = copied(pretrained[0], tmp_path, tensors=change)
    assert_same(read_all(directory), read_all(pretrained[0]))
    assert said == []


def _save_shards(model, directory):
    model.save_pretrained(directory, max_shard_size="4KB")
    assert os.path.isfile(directory / f"{SAFETENSORS}.index.json") and len(os.listdir(directory)) > 4


def _save_torch(model, directory, **options):
    model.config.save_pretrained(directory)
    torch.save(model.state_dict(), directory / TORCH, **options)


def _save_torch_shards(model, directory):
    model.config.save_pretrained(directory)
    shard_of = {}
    for index, name in enumerate(model.state_dict()):
        shard_of[name] = f"pytorch_model-{index % 3}.bin"
    for shard in set(shard_of.values()):
        torch.save(
            {name: model.state_dict()[name].clone() for name in shard_of if shard_of[name] == shard}, directory / shard
        )
    (directory / f"{TORCH}.index.json").write_text(json.dumps({"weight_map": shard_of}))


def _save_tensorflow(model, directory, **layout):
    model.config.save_pretrained(directory)
    save_tensorflow(numpy_state(model), directory, "tf_bert_for_pre_training", **layout)


def _save_tensorflow_shards(model, directory):
    model.config.save_pretrained(directory)
    weight_map = {}
    for index, (place, value) in enumerate(tensorflow_arrays(numpy_state(model)).items()):
        shard = weight_map[f"tf_bert_for_pre_training/{place}"] = f"tf_model-{index % 3}.h5"
        with h5py.File(directory / shard, "a") as file:
            file[place] = value
    (directory / f"{TENSORFLOW}.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "save",
    [
        _save_shards,
        _save_torch,
        lambda model, directory: _save_torch(model, directory, _use_new_zipfile_serialization=False),
        _save_torch_shards,
        _save_tensorflow,
        lambda model, directory: _save_tensorflow(model, directory, num_heads=2),
        _save_tensorflow_shards,
    ],
    ids=[
        *("shards", "torch", "torch before 1.6", "torch shards"),
        *("tensorflow", "tensorflow of 4.2", "tensorflow shards"),
    ],
)
def test_other_files_hold_the_same(pretrained, tmp_path, save, said):
    save(pretrained[1], tmp_path)
    assert not os.path.exists(tmp_path / SAFETENSORS)
    assert_same(read_all(tmp_path), read_all(pretrained[0]))
    assert said == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "save", [lambda model, directory: model.save_pretrained(directory), _save_torch], ids=["safetensors", "torch"]
)
def test_floats_stay_as_they_are_stored(tmp_path, dtype, save):
    model = random_model("BertModel").to(getattr(torch, dtype))
    save(model, tmp_path)
    table = read_all(tmp_path)["embeddings/token_embedding/embeddings"]
    assert table.dtype.name == dtype
    np.testing.assert_array_equal(table.astype("float64"), model.embeddings.word_embeddings.weight.detach().double())


def test_a_model_takes_bfloat16_weights(tmp_path):
    from keras_bert.encoder.backbone import BertBackbone

    model = random_model("BertModel").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    kernel = BertBackbone.from_preset(str(tmp_path)).get_layer("pooled_dense").kernel.numpy()
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, model.pooler.dense.weight.detach().float().numpy().T)


def test_safetensors_go_first(pretrained, tmp_path):
    directory = copied(pretrained[0], tmp_path)
    (directory / TORCH).write_bytes(b"never opened")
    (directory / f"{SAFETENSORS}.index.json").write_text("never opened")
    assert_same(read_all(directory), read_all(pretrained[0]))


# === What a directory is ===


def test_directories_are_told_by_content(pretrained, tmp_path):
    for name, files in {
        "sizes": {"config.json": json.dumps(SIZES)},
        "weights": {SAFETENSORS: ""},
        "keras": {"config.json": '{"module": "keras_hub", "registered_name": "keras_hub>BertBackbone"}'},
        "other": {"config.json": '{"dim": 3}'},
        "list": {"config.json": "[]"},
        "empty": {},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
    directories = {name for name in os.listdir(tmp_path) if hugging_face.matches(str(tmp_path / name))}
    assert directories == {"sizes", "weights"}
    assert formats.find_format(str(tmp_path / "sizes")) is hugging_face
    assert hugging_face.matches(str(pretrained[0])) and not hugging_face.matches(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="weights/config.json: cannot be read"):
        read_all(tmp_path / "weights")
    with pytest.raises(InputError, match="sizes: no weights beside config.json. Expected model.safetensors, "):
        read_all(tmp_path / "sizes")


def test_gelu_is_the_erf_form_even_without_a_model_type(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "hidden_act": "gelu"}))
    assert weights.read_bert_config(str(tmp_path)).activation == "gelu"


def test_opening_reads_no_tensor(pretrained, tmp_path):
    """Bytes behind the header that belong to no tensor."""
    directory = copied(pretrained[0], tmp_path)
    with open(directory / SAFETENSORS, "r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        file.seek(start)
        file.write(b"\xff" * (os.path.getsize(directory / SAFETENSORS) - start))
    with weights.open_checkpoint(str(directory)) as checkpoint:
        assert checkpoint.heads == ("masked_lm", "next_sentence")
        assert np.isnan(checkpoint.tensors["pooled_dense/kernel"].read()).all()


def test_other_tensors_are_named_once_and_known_buffers_not(pretrained, tmp_path, said):
    adapter = {f"bert.encoder.layer.0.adapter_{index}.weight": np.zeros(3, "float32") for index in range(5)}
    directory = copied(pretrained[0], tmp_path, tensors=lambda tensors: {**_with_copies(tensors), **adapter})
    assert_same(read_all(directory), read_all(pretrained[0]))
    assert len(said) == 1 and "5 tensors belong to no part of BERT" in said[0] and said[0].count("adapter_") == 4
    assert "position_ids" not in said[0] and "decoder" not in said[0]


# === BERT by another name ===

FAMILIES = {"DistilBert": "relu", "Electra": "gelu"}  # With the activations of their poolers.
HEADS = {
    "Model": None,
    "ForMaskedLM": "BertMaskedLM",
    "ForSequenceClassification": "BertTextClassifier",
    "ForTokenClassification": "BertTokenClassifier",
    "ForQuestionAnswering": "BertSpanLabeler",
    "ForMultipleChoice": "BertMultipleChoice",
}
LENGTHS = np.array([12, 7, 3, 1])
IDS = np.random.default_rng(0).integers(0, 100, (4, 12)).astype("int32")
MASK = (np.arange(12) < LENGTHS[:, None]).astype("int32")
SEGMENTS = MASK * (np.arange(12) >= LENGTHS[:, None] // 2)


def their_logits(model, shape):
    """What a transformers model gives for the batch in this shape: its states, or its logits."""
    inputs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": SEGMENTS}
    if not hasattr(model.config, "type_vocab_size"):
        del inputs["token_type_ids"]
    with torch.no_grad():
        outputs = model(**{name: torch.tensor(value.reshape(shape)).long() for name, value in inputs.items()})
    if "start_logits" in outputs:
        return torch.stack([outputs["start_logits"], outputs["end_logits"]], -1).numpy()
    return outputs["logits" if "logits" in outputs else "last_hidden_state"].numpy()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ending", HEADS)
def test_distilbert_and_electra_compute_as_in_transformers(tmp_path, family, ending, said):
    import keras_bert

    changes = {"activation": "relu"} if family == "DistilBert" else {"hidden_act": "relu"}
    theirs = random_model(family + ending, **changes)
    theirs.save_pretrained(tmp_path)
    shape = (2, 2, 12) if ending == "ForMultipleChoice" else (4, 12)
    inputs = {"token_ids": IDS, "segment_ids": SEGMENTS, "padding_mask": MASK}
    inputs = {name: value.reshape(shape) for name, value in inputs.items()}
    if ending == "Model":
        outputs = keras_bert.BertBackbone.from_preset(str(tmp_path))(inputs)["sequence_output"]
        assert len(said) == 1 and "has no pooled_dense/kernel, pooled_dense/bias; random weights" in said.pop()
    else:
        given = {"num_choices": 2} if ending == "ForMultipleChoice" else {}
        model = getattr(keras_bert, HEADS[ending]).from_preset(str(tmp_path), **given)
        if ending == "ForMaskedLM":
            inputs["mask_positions"] = np.tile(np.arange(12, dtype="int32"), (4, 1))
        outputs = model(inputs)
        assert model.backbone.pooler_activation == FAMILIES[family]
    outputs, expected = np.asarray(outputs), their_logits(theirs, shape)
    if outputs.ndim == 3:  # What stands at padding means nothing.
        outputs, expected = outputs[MASK > 0], expected[MASK > 0]
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    assert said == [] and np.abs(expected).max() > 0.5
