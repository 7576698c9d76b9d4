"""BertConfig: foreign JSON, ranges, and that it needs no TensorFlow."""

import importlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from keras_bert.config import ACTIVATIONS, BertConfig, is_foreign
from keras_bert.errors import InputError

GOOGLE = {  # google-research/bert's README, uncased_L-12_H-768_A-12/bert_config.json
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


def _write(tmp_path, values):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_gelu_is_tanh_at_google_and_erf_at_hugging_face(tmp_path):
    assert BertConfig.from_json_file(_write(tmp_path, GOOGLE)).activation == "gelu_tanh"
    assert BertConfig.from_json_file(_write(tmp_path, {**GOOGLE, "model_type": "bert"})).activation == "gelu"
    new = {**GOOGLE, "model_type": "bert", "hidden_act": "gelu_new"}
    assert BertConfig.from_json_file(_write(tmp_path, new)).activation == "gelu_tanh"


def test_who_knows_the_place_of_a_file_says_whose_gelu_it_means(tmp_path):
    path = _write(tmp_path, GOOGLE)
    assert BertConfig.from_json_file(path, at_hugging_face=True).activation == "gelu"
    path = _write(tmp_path, {**GOOGLE, "model_type": "bert"})
    assert BertConfig.from_json_file(path, at_hugging_face=False).activation == "gelu_tanh"


def test_a_foreign_configuration_is_told_by_its_keys():
    assert is_foreign(GOOGLE) and is_foreign({"model_type": "bert"}) and is_foreign({"architectures": None})
    assert not is_foreign({"module": "keras_bert", "registered_name": "keras_bert>BertBackbone"})
    assert not is_foreign([]) and not is_foreign("vocab_size") and not is_foreign(None)


def test_what_hugging_face_leaves_at_null_is_as_if_not_there(tmp_path):
    values = {**GOOGLE, "position_embedding_type": None, "is_decoder": None, "architectures": None}
    assert BertConfig.from_json_file(_write(tmp_path, values)).activation == "gelu"


def test_every_google_field_arrives(tmp_path):
    values = {**GOOGLE, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "type_vocab_size": 16}
    config = BertConfig.from_json_file(_write(tmp_path, values))
    expected = BertConfig(30522, 12, 12, 768, 3072, dropout=0.2, attention_dropout=0.3, num_segments=16)
    assert config == expected


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_written_file_reads_back(tmp_path, activation):
    config = BertConfig(100, 2, 2, 16, 64, activation=activation, dropout=0.2, initializer_range=0.05)
    config.to_json_file(str(tmp_path / "bert_config.json"))
    again = BertConfig.from_json_file(str(tmp_path / "bert_config.json"))
    assert again == config.replace(attention_dropout=0.2)


@pytest.mark.oracle
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_transformers_reads_the_same_sizes(activation):
    transformers = pytest.importorskip("transformers")
    config = BertConfig(
        vocabulary_size=100,
        num_layers=3,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=48,
        activation=activation,
        dropout=0.2,
        max_sequence_length=40,
        num_segments=3,
        layer_norm_epsilon=1e-5,
        initializer_range=0.05,
    )
    theirs = transformers.BertConfig.from_dict(config.to_hugging_face())
    assert (
        theirs.to_diff_dict().items()
        >= {
            "vocab_size": 100,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "hidden_size": 16,
            "type_vocab_size": 3,
            "intermediate_size": 48,
            "hidden_dropout_prob": 0.2,
            "attention_probs_dropout_prob": 0.2,
            "max_position_embeddings": 40,
            "layer_norm_eps": 1e-5,
            "initializer_range": 0.05,
        }.items()
    )
    x = np.linspace(-4.0, 4.0, 33)
    expected = {
        "gelu": [0.5 * v * (1 + math.erf(v / 2**0.5)) for v in x],
        "gelu_tanh": 0.5 * x * (1 + np.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "relu": np.maximum(x, 0),
        "tanh": np.tanh(x),
        "linear": x,
    }[activation]
    activations = importlib.import_module("transformers.activations")
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(activations.ACT2FN[theirs.hidden_act](torch.tensor(x)).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_attention_heads": 5}, "`num_heads` must divide `hidden_dim`. Received: num_heads=5, hidden_dim=768"),
        ({"hidden_act": "swish"}, "unknown hidden_act 'swish'"),
        ({"vocab_size": 0}, "`vocabulary_size` must be a positive integer"),
        ({"hidden_dropout_prob": 1.0}, "`dropout` must lie in"),
        ({"hidden_dropout_prob": "0.1"}, "`dropout` must lie in"),
        ({"hidden_dropout_prob": None}, "`dropout` must lie in"),
        ({"hidden_act": ["gelu"]}, r"unknown hidden_act \['gelu'\]"),
        ({"initializer_range": "small"}, "`initializer_range` must be positive"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'absolute', found 'relative_key'"),
        ({"is_decoder": True}, "expected is_decoder False, found True. This is no BERT encoder"),
        ({"add_cross_attention": True}, "expected add_cross_attention False, found True"),
        ({"model_type": "gpt2"}, "expected one of bert, distilbert, electra as model_type, found 'gpt2'"),
        ({"model_type": ["bert"]}, r"as model_type, found \['bert'\]"),
        ({"model_type": "distilbert"}, "not a BERT configuration, it lacks n_layers, n_heads, dim, hidden_dim"),
        ({"model_type": "electra"}, "whose embedding_size is its hidden_size, found 128 and 768, as generators and"),
        ({"model_type": "electra", "embedding_size": 256}, "found 256 and 768"),
        (
            {"model_type": "electra", "embedding_size": 768, "summary_type": "mean"},
            "summary_type 'first', found 'mean'",
        ),
    ],
)
def test_bad_values_name_file_and_value(tmp_path, change, message):
    with pytest.raises(InputError, match=message) as caught:
        BertConfig.from_json_file(_write(tmp_path, {**GOOGLE, **change}))
    assert "bert_config.json" in str(caught.value)


def test_a_missing_key_is_named(tmp_path):
    values = {name: value for name, value in GOOGLE.items() if name != "hidden_size"}
    with pytest.raises(InputError, match="it lacks hidden_size"):
        BertConfig.from_json_file(_write(tmp_path, values))


def test_an_unknown_override_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden_size'"):
        BertConfig(10, 1, 1, 8, 32).replace(hidden_size=16)


def test_config_and_presets_need_no_tensorflow():
    script = (
        "import sys, keras_bert; keras_bert.BertConfig(10, 1, 1, 8, 32); print(keras_bert.list_presets());"
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "uncased_L-12_H-768_A-12" in done.stdout
