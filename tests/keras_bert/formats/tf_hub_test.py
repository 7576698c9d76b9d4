"""Google's TF-Hub encoders: SavedModels that official's own export wrote, against the outputs of the reloaded graph."""

import os
import re
import shutil

import numpy as np
import official_models as official
import pytest
import tensorflow as tf
from official.legacy.bert import configs
from official.nlp.configs import encoders
from official.nlp.tools import export_tfhub_lib

from keras_bert import formats
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import tf_hub
from keras_bert.models import BertPretrainer
from keras_bert.presets import tokenizers, weights

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Two SavedModels: with the masked-LM head and the next-sentence head's pooler; and of a BertEncoder alone."""
    directory = tmp_path_factory.mktemp("hub")
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(official.VOCABULARY) + "\n")
    encoder = official.build_encoder(1, num_layers=1)
    pretrainer = official.build_pretrainer(encoder)
    prefix = tf.train.Checkpoint(**pretrainer.checkpoint_items).save(str(directory / "pretrainer" / "ckpt"))
    export_tfhub_lib.export_model(
        str(directory / "with_mlm"),
        bert_config=configs.BertConfig.from_dict(official.BERT_CONFIG | {"num_hidden_layers": 1}),
        model_checkpoint_path=prefix,
        with_mlm=True,
        copy_pooler_dense_to_encoder=True,
        vocab_file=str(vocabulary),
        do_lower_case=True,
    )
    prefix = tf.train.Checkpoint(model=encoder, encoder=encoder).save(str(directory / "encoder" / "ckpt"))
    sizes = {name: size for name, size in official.SIZES.items() if not name.startswith(("inner", "max"))}
    sizes |= {"num_layers": 1, "intermediate_size": 32, "max_position_embeddings": 20, "hidden_activation": "relu"}
    export_tfhub_lib.export_model(
        str(directory / "encoder_alone"),
        encoder_config=encoders.EncoderConfig(type="bert", bert=sizes),
        model_checkpoint_path=prefix,
        with_mlm=False,
        vocab_file=str(vocabulary),
        do_lower_case=False,
    )
    return directory


def inputs(*names):
    return {name: tf.constant(value) for name, value in official.batch().items() if name in names}


ENCODER_INPUTS = ("token_ids", "segment_ids", "padding_mask")


@pytest.mark.slow(keep=["with_mlm-gelu_tanh"])
@pytest.mark.parametrize("name, activation", [("with_mlm", "gelu_tanh"), ("encoder_alone", "relu")])
def test_outputs_equal_those_of_the_graph(exported, name, activation):
    directory = str(exported / name)
    assert formats.find_format(directory) is tf_hub
    backbone = BertBackbone.from_preset(directory)
    assert backbone.bert_config == tf_hub.read_config(directory)
    assert (backbone.bert_config.activation, backbone.bert_config.num_heads) == (activation, 2)
    graph = tf.saved_model.load(directory)
    expected = graph(official.their_names(inputs(*ENCODER_INPUTS)))
    outputs = backbone(inputs(*ENCODER_INPUTS))
    real = official.batch()["padding_mask"].astype(bool)
    rows = outputs["sequence_output"].numpy()[real]
    np.testing.assert_allclose(rows, expected["sequence_output"].numpy()[real], atol=2e-5)
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], atol=2e-5)
    assert np.abs(rows).max() > 1
    unpadded = BertBackbone.from_preset(directory, layout="unpadded")(inputs(*ENCODER_INPUTS))
    np.testing.assert_allclose(unpadded["pooled_output"], expected["pooled_output"], atol=2e-5)


def test_the_masked_lm_head_comes_along(exported):
    directory = str(exported / "with_mlm")
    with weights.open_checkpoint(directory) as checkpoint:
        assert checkpoint.heads == ("masked_lm",) and checkpoint.has_pooler
        model = BertPretrainer(BertBackbone(**checkpoint.config.to_dict()), compile=False)
        assert weights.load_weights_of(model, checkpoint) == ["next_sentence/kernel", "next_sentence/bias"]
    graph = tf.saved_model.load(directory)
    expected = graph.mlm(official.their_names(inputs(*ENCODER_INPUTS, "mask_positions")))
    outputs = model(inputs(*ENCODER_INPUTS, "mask_positions"))
    np.testing.assert_allclose(outputs["masked_lm"], expected["mlm_logits"], atol=5e-5)
    with weights.open_checkpoint(str(exported / "encoder_alone")) as checkpoint:
        assert checkpoint.heads == ()


@pytest.mark.parametrize("name, lowercase", [("with_mlm", True), ("encoder_alone", False)])
def test_the_vocabulary_and_its_case(exported, name, lowercase):
    with tokenizers.open_tokenizer(str(exported / name)) as settings:
        assert settings["lowercase"] is lowercase
        with open(settings["vocabulary"], encoding="utf-8") as file:
            assert file.read().splitlines() == official.VOCABULARY


def test_no_graph_is_run_or_parsed(exported, tmp_path):
    """The weights and sizes need the variables alone; the graph may be anything."""
    directory = tmp_path / "copy"
    shutil.copytree(exported / "encoder_alone", directory)
    (directory / "saved_model.pb").write_bytes(b"no graph")
    backbone, other = (BertBackbone.from_preset(str(path)) for path in (directory, exported / "encoder_alone"))
    for ours, theirs in zip(backbone.weights, other.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.fixture()
def copy(exported, tmp_path):
    return shutil.copytree(exported / "encoder_alone", tmp_path / "copy")


def replace_in(file, old, new):
    content = file.read_bytes()
    assert old in content and len(old) == len(new)
    file.write_bytes(content.replace(old, new))


def test_settings_beside_the_graph(copy):
    settings = copy / "keras_metadata.pb"
    assert tf_hub.read_config(str(copy)).activation == "relu"
    replace_in(settings, b'"inner_activation": "relu"', b'"inner_activation": "gelu"')
    assert tf_hub.read_config(str(copy)).activation == "gelu"  # Keras's own, the erf form.
    replace_in(settings, b'"inner_activation": "gelu"', b'"inner_activation": "mish"')
    with pytest.raises(
        InputError, match="keras_metadata.pb: unknown inner_activation 'mish'. Expected one of Text>gelu, gelu"
    ):
        BertBackbone.from_preset(str(copy))
    replace_in(settings, b'"norm_first": false', b'"norm_first": true ')
    with pytest.raises(InputError, match="keras_metadata.pb: expected BERT's LayerNorm after each sum"):
        BertBackbone.from_preset(str(copy))
    settings.rename(copy / "elsewhere")  # TensorFlow 2.4 and before kept them in the graph's file.
    (copy / "saved_model.pb").write_bytes(b'..{"inner_activation": "Text>gelu"}..')
    assert tf_hub.read_config(str(copy)).activation == "gelu_tanh"
    (copy / "saved_model.pb").write_bytes(b"nothing")
    assert tf_hub.read_config(str(copy)).activation == "gelu_tanh"


@pytest.mark.parametrize(
    "name, message",
    [
        ("variables.data-00000-of-00001", "variables.data-00000-of-00001: no such file"),
        ("variables.index", "variables.index: no such file. Expected the variables of the SavedModel"),
    ],
)
def test_missing_files(copy, name, message):
    os.remove(copy / "variables" / name)
    with pytest.raises(InputError, match=message) as raised:
        BertBackbone.from_preset(str(copy))
    assert str(copy) in str(raised.value)


def test_truncated_files(copy):
    data = copy / "variables" / "variables.data-00000-of-00001"
    for size in (data.stat().st_size // 2, 5000):  # In the graph of objects, which is the larger half, and before it.
        os.truncate(data, size)
        with pytest.raises(InputError, match=re.escape(f"{data}: truncated")):
            BertBackbone.from_preset(str(copy))


def test_a_damaged_graph_of_objects(copy):
    data = copy / "variables" / "variables.data-00000-of-00001"
    content = data.read_bytes()
    start = content.index(b"_transformer_layers")
    for damaged in (content[:start] + b"\xff" * 99 + content[start + 99 :], content.replace(b"_layers", b"\xff" * 7)):
        data.write_bytes(damaged)
        with pytest.raises(
            InputError, match=re.escape(f"{data.parent / 'variables'}: its graph of objects is damaged")
        ):
            BertBackbone.from_preset(str(copy))


def test_vocabularies(copy):
    vocabulary = copy / "assets" / "vocab.txt"
    vocabulary.rename(copy / "assets" / "30k-clean.model")  # SentencePiece's.
    assert tf_hub.read_tokenizer(str(copy)) is None
    assert tf_hub.read_tokenizer(str(copy / "variables")) is None


def test_a_saved_model_of_something_else(tmp_path):
    module = tf.Module()
    module.table = tf.Variable(tf.ones([3, 4]))
    tf.saved_model.save(module, str(tmp_path / "other"))
    with pytest.raises(InputError, match="expected one encoder of official.nlp in its graph of objects, found none"):
        BertBackbone.from_preset(str(tmp_path / "other"))
