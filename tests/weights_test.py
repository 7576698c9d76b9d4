"""From models to checkpoints and back: adapted and quantized models, heads of their own kind, names of presets."""

import keras_nlp
import numpy as np
import pytest

from keras_bert import weights
from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import google, hugging_face, keras_preset
from keras_bert.tokenizer import BertTokenizer
from tasks.pretraining.model import BertPretrainer

TINY = {"vocabulary_size": 30, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def read(checkpoint):
    return {path: stored.read() for path, stored in checkpoint.tensors.items()}


def test_an_adapted_model_is_shown_with_its_factors_added():
    backbone = BertBackbone(**TINY)
    plain = read(weights.checkpoint_of(backbone))
    backbone.enable_lora(2)
    layer = backbone.get_layer("transformer_layer_0").self_attention.query_key_value
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    shown = read(weights.checkpoint_of(backbone))
    assert shown.keys() == plain.keys()
    kernel = "transformer_layer_0/self_attention/query_key_value/kernel"
    added = np.asarray(layer.lora_kernel_a) @ np.ones(layer.lora_kernel_b.shape) * layer.lora_alpha / layer.lora_rank
    np.testing.assert_allclose(shown.pop(kernel), plain.pop(kernel) + added, atol=1e-6)
    assert all((shown[path] == plain[path]).all() for path in plain)


def test_a_quantized_model_is_refused():
    backbone = BertBackbone(**TINY)
    backbone.quantize("int8")
    with pytest.raises(InputError, match="the model: .* is quantized. Expected the model as it was before"):
        weights.checkpoint_of(backbone)


@pytest.mark.parametrize("module", [google, hugging_face])
def test_a_head_that_computes_otherwise_is_kept_by_ours_and_refused_by_others(tmp_path, module):
    model = BertPretrainer(BertBackbone(**TINY), masked_lm_activation="gelu", masked_lm_layer_norm_epsilon=1e-5)
    checkpoint = weights.checkpoint_of(model)
    keras_preset.write(str(tmp_path / "ours"), checkpoint, None)
    again = BertPretrainer.from_preset(str(tmp_path / "ours"))
    assert (again.masked_lm_activation, again.masked_lm_layer_norm_epsilon) == ("gelu", 1e-5)
    with pytest.raises(InputError, match="its masked_lm head has activation='gelu', its encoder 'gelu_tanh'"):
        module.write(str(tmp_path / "theirs"), checkpoint, None)
    assert not (tmp_path / "theirs").exists()


def test_a_name_means_googles_gelu_whatever_the_copy_says(tmp_path, monkeypatch):
    sizes = {**TINY, "vocabulary_size": 50}
    copy = tmp_path / "tiny"
    hugging_face.write(str(copy), weights.checkpoint_of(BertBackbone(**sizes, activation="gelu")), None)
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    assert BertBackbone.from_preset("tiny").activation == "gelu_tanh"
    assert BertBackbone.from_preset(str(copy)).activation == "gelu"


def test_what_a_checkpoint_lacks_is_named(tmp_path):
    hugging_face.write(str(tmp_path / "encoder"), weights.checkpoint_of(BertBackbone(**TINY)), None)
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
        assert weights.read_tokenizer(name) == {"vocabulary": pieces, "lowercase": True}
    monkeypatch.setattr(weights.presets, "resolve_preset", lambda preset, purpose: str(copy))
    assert BertTokenizer.from_preset("hf://google-bert/bert-base-chinese").lowercase
    with pytest.raises(InputError, match="Pass lowercase=True"):
        BertTokenizer.from_preset("bert_base_zh", lowercase=False)


def test_keras_hubs_reader_finds_our_tokenizer(tmp_path):
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    BertBackbone(**TINY).save_to_preset(str(tmp_path))
    tokenizer.save_to_preset(str(tmp_path))
    found = keras_nlp.tokenizers.Tokenizer.from_preset(str(tmp_path))
    assert type(found) is BertTokenizer and found.get_vocabulary() == tokenizer.get_vocabulary()
