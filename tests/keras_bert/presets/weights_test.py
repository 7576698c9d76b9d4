"""From models to checkpoints and back: heads of their own kind, names of presets."""

import dataclasses

import keras
import keras_nlp
import numpy as np
import pytest
from toy_checkpoints import checkpoint_of

from keras_bert.config import BertConfig
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import google, hugging_face, keras_preset
from keras_bert.formats.checkpoint import StoredTensor, assign
from keras_bert.models import BertPretrainer
from keras_bert.presets import catalog, tokenizers, weights
from keras_bert.tokenization.tokenizer import BertTokenizer

TINY = {"vocabulary_size": 30, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


@pytest.mark.parametrize("module", [google, hugging_face])
def test_a_head_that_computes_otherwise_is_kept_by_ours_and_refused_by_others(tmp_path, module):
    model = BertPretrainer(BertBackbone(**TINY), masked_lm_activation="gelu", masked_lm_layer_norm_epsilon=1e-5)
    checkpoint = checkpoint_of(model)
    keras_preset.write(str(tmp_path / "ours"), checkpoint, None)
    again = BertPretrainer.from_preset(str(tmp_path / "ours"))
    assert (again.masked_lm_activation, again.masked_lm_layer_norm_epsilon) == ("gelu", 1e-5)
    with pytest.raises(InputError, match="its masked_lm head has activation='gelu', its encoder 'gelu_tanh'"):
        module.write(str(tmp_path / "theirs"), checkpoint, None)
    assert not (tmp_path / "theirs").exists()


def test_a_name_means_googles_gelu_whatever_the_copy_says(tmp_path, monkeypatch):
    sizes = {**TINY, "vocabulary_size": 50}
    copy = tmp_path / "tiny"
    hugging_face.write(str(copy), checkpoint_of(BertBackbone(**sizes, activation="gelu")), None)
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    assert BertBackbone.from_preset("tiny").activation == "gelu_tanh"
    assert BertBackbone.from_preset(str(copy)).activation == "gelu"


def test_what_a_checkpoint_lacks_is_named(tmp_path):
    hugging_face.write(str(tmp_path / "encoder"), checkpoint_of(BertBackbone(**TINY)), None)
    with weights.open_checkpoint(str(tmp_path / "encoder")) as checkpoint:
        left = weights.load_weights_of(BertPretrainer(BertBackbone(**TINY)), checkpoint)
    heads = [
        "transform_dense/kernel",
        "transform_dense/bias",
        "transform_layer_norm/gamma",
        "transform_layer_norm/beta",
    ]
    expected = {"masked_lm/output_bias", *(f"masked_lm/{name}" for name in heads), "next_sentence/kernel"}
    assert set(left) == expected | {"next_sentence/bias"}
    wider = BertBackbone(**{**TINY, "num_layers": 2})
    with weights.open_checkpoint(str(tmp_path / "encoder")) as checkpoint:
        with pytest.raises(InputError, match="lacks transformer_layer_1/"):
            weights.load_weights_of(wider, checkpoint)


def test_a_published_checkpoint_has_its_publishers_case_whatever_the_copy_says(tmp_path, monkeypatch):
    copy = tmp_path / "chinese_L-12_H-768_A-12"
    copy.mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (copy / "vocab.txt").write_text("\n".join(pieces))
    (copy / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    for name in ("chinese_L-12_H-768_A-12", "bert_base_zh"):
        assert BertTokenizer.from_preset(name).lowercase
        assert tokenizers.read_tokenizer(name) == {"vocabulary": pieces, "lowercase": True}
    monkeypatch.setattr(catalog, "resolve_preset", lambda preset, purpose: str(copy))
    assert BertTokenizer.from_preset("hf://google-bert/bert-base-chinese").lowercase
    with pytest.raises(InputError, match="Pass lowercase=True"):
        BertTokenizer.from_preset("bert_base_zh", lowercase=False)


def test_keras_hubs_reader_finds_our_tokenizer(tmp_path):
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    BertBackbone(**TINY).save_to_preset(str(tmp_path))
    tokenizer.save_to_preset(str(tmp_path))
    loaded = keras_nlp.tokenizers.Tokenizer.from_preset(str(tmp_path))
    assert type(loaded) is BertTokenizer and loaded.get_vocabulary() == tokenizer.get_vocabulary()


# === Our own presets ===


def kinds(backbone):
    # Models around it ask each variable.
    return backbone.layout, backbone.dtype_policy.name, any(variable.trainable for variable in backbone.weights)


def test_a_preset_comes_back_as_it_was_saved(tmp_path):
    directory = str(tmp_path / "ours")
    backbone = BertBackbone(**TINY, layout="unpadded", dtype="mixed_bfloat16", trainable=False)
    BertPretrainer(backbone, use_next_sentence=False).save_to_preset(directory)
    for load_weights in (True, False):
        assert kinds(BertBackbone.from_preset(directory, load_weights)) == ("unpadded", "mixed_bfloat16", False)
        model = BertPretrainer.from_preset(directory, load_weights)
        assert (*kinds(model.backbone), model.use_next_sentence) == ("unpadded", "mixed_bfloat16", False, False)
        other = BertPretrainer.from_preset(
            directory, load_weights, layout="packed", dtype="float32", trainable=True, use_next_sentence=True
        )
        assert (*kinds(other.backbone), other.use_next_sentence) == ("packed", "float32", True, True)
    with weights.open_checkpoint(directory) as checkpoint:  # For who brings settings of their own.
        assert kinds(BertPretrainer.from_checkpoint(checkpoint).backbone) == ("rectangular", "float32", True)


def test_a_policy_of_the_process_goes_before_that_of_a_preset(tmp_path):
    BertBackbone(**TINY, dtype="mixed_bfloat16").save_to_preset(str(tmp_path))
    keras.config.set_dtype_policy("mixed_float16")
    try:
        assert BertBackbone.from_preset(str(tmp_path)).dtype_policy.name == "mixed_float16"
    finally:
        keras.config.set_dtype_policy("float32")


def test_presets_of_other_formats_have_the_defaults(tmp_path):
    backbone = BertBackbone(**TINY, layout="unpadded", dtype="mixed_bfloat16")
    hugging_face.write(str(tmp_path / "theirs"), checkpoint_of(backbone), None)
    assert weights.read_settings(str(tmp_path / "theirs")) == weights.read_settings("base") == {}
    assert kinds(BertBackbone.from_preset(str(tmp_path / "theirs"))) == ("rectangular", "float32", True)


@pytest.mark.parametrize(
    ("of_file", "changes", "expected"),
    [
        (None, {"dropout": 0.0}, None),  # As a preset by name has it: as `dropout`.
        (0.1, {"dropout": 0.0}, None),  # Hugging Face's and Google's files spell it out.
        (0.1, {}, 0.1),
        (0.1, {"dropout": 0.0, "attention_dropout": 0.2}, 0.2),
        (0.3, {"dropout": 0.0}, 0.3),
    ],
)
def test_dropout_is_that_of_the_attention_too_unless_it_has_its_own(of_file, changes, expected):
    merged = weights.merge_settings(BertConfig(**TINY, attention_dropout=of_file), changes, "preset")
    assert (merged["dropout"], merged["attention_dropout"]) == (changes.get("dropout", 0.1), expected)


@pytest.mark.parametrize("load_weights", [True, False])
def test_an_unknown_setting_is_refused_whatever_is_built(tmp_path, load_weights):
    BertPretrainer(BertBackbone(**TINY)).save_to_preset(str(tmp_path))
    for cls in (BertBackbone, BertPretrainer):
        with pytest.raises(
            InputError, match=r"unknown setting num_head. Expected some of: vocabulary_size, .*, layout"
        ):
            cls.from_preset(str(tmp_path), load_weights, num_head=2)
        with pytest.raises(InputError, match=f"{tmp_path}: .*num_heads=3"):
            cls.from_preset(str(tmp_path), load_weights, num_heads=3)


def test_a_pooler_is_missed_where_it_is_used(tmp_path, monkeypatch):
    checkpoint = checkpoint_of(BertBackbone(**TINY))
    tensors = {path: tensor for path, tensor in checkpoint.tensors.items() if not path.startswith("pooled_dense")}
    checkpoint, warnings = dataclasses.replace(checkpoint, tensors=tensors), []
    monkeypatch.setattr(weights.logging, "warning", lambda *message: warnings.append(message))
    pooler = ["pooled_dense/kernel", "pooled_dense/bias"]
    assert weights.load_weights_of(BertBackbone(**TINY), checkpoint, uses_pooler=False) == pooler
    assert warnings == []
    assert weights.load_weights_of(BertBackbone(**TINY), checkpoint) == pooler
    assert warnings[0][-1] == ", ".join(pooler)


def test_tensors_are_read_one_at_a_time_and_in_order():
    read = []

    class Variable:
        def __init__(self, path):
            self.path, self.shape = path, (1,)

        def assign(self, value):
            assert value[0] == int(self.path) and read[-1] == int(self.path)
            self.value = value

    def reader(number):
        def read_it():
            read.append(number)
            if number == 7:
                raise InputError("file: tensor 7 is cut.")
            return np.array([number])

        return read_it

    tensors = {str(number): StoredTensor(f"file: {number}", (1,), reader(number)) for number in range(8)}
    variables = [Variable(str(number)) for number in (0, 1, 2, 9, 3)]
    assert assign(variables, tensors) == ["9"]
    assert read == [0, 1, 2, 3] and variables[4].value[0] == 3
    with pytest.raises(InputError, match="tensor 7"):
        assign([Variable("7")], tensors)
    assert assign([], tensors) == []
