"""Model Garden's checkpoints, written by tf-models-official, against the outputs of the models that wrote them."""

import json
import os

import keras
import numpy as np
import official_models as official
import pytest
import tensorflow as tf
from official.core import config_definitions
from official.modeling import hyperparams, tf_utils
from official.nlp.configs import bert, encoders
from official.nlp.modeling import models, networks

from keras_bert import formats
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import model_garden
from keras_bert.models import BertPretrainer
from keras_bert.presets import tokenizers, weights

pytestmark = pytest.mark.oracle


def ours(directory, **settings):
    inputs = official.batch()
    inputs.pop("mask_positions")
    return BertBackbone.from_preset(str(directory), **settings)(inputs)


def assert_equal_outputs(outputs, expected, atol=2e-5):
    """Compares where tokens are; an encoder's outputs at padding are nobody's."""
    real = official.batch()["padding_mask"].astype(bool)
    expected = {name: expected[name].numpy() for name in ("sequence_output", "pooled_output")}
    np.testing.assert_allclose(outputs["sequence_output"].numpy()[real], expected["sequence_output"][real], atol=atol)
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], atol=atol)
    assert np.abs(expected["sequence_output"]).max() > 1  # No comparison of zeros.


def call(model):
    return model({name: tf.constant(value) for name, value in official.their_names(official.batch()).items()})


@pytest.fixture(scope="module")
def encoder():
    return official.build_encoder(2)


@pytest.mark.slow(keep=["encoder-0", "model-1", "encoder-2"])
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("item", ["encoder", "model"])
def test_encoders_of_every_generation(tmp_path, version, item):
    encoder = official.build_encoder(version)
    tf.train.Checkpoint(**{item: encoder}).save(str(tmp_path / "bert_model.ckpt"))
    names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
    assert any("layer_with_weights-4" in name for name in names) == (version < 2)
    assert any("_attention_output_dense" in name for name in names) == (version == 0)
    assert formats.find_format(str(tmp_path)) is model_garden
    assert_equal_outputs(ours(tmp_path), call(encoder))
    assert_equal_outputs(ours(tmp_path, layout="unpadded"), call(encoder))


def test_an_encoder_that_is_the_root_of_its_checkpoint(tmp_path, encoder):
    prefix = tf.train.Checkpoint(encoder).save(str(tmp_path / "ckpt"))
    assert_equal_outputs(ours(prefix), call(encoder))


@pytest.mark.slow(keep=["items-1", "both-2"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("saved", ["items", "model", "both"])
def test_pre_trainers_bring_their_heads_and_the_pooler_that_was_trained(tmp_path, version, saved):
    pretrainer = official.build_pretrainer(official.build_encoder(version))
    items = {} if saved == "model" else pretrainer.checkpoint_items
    if saved != "items":
        items = {**items, "model": pretrainer, "optimizer": tf.train.Checkpoint(step=tf.Variable(3))}
    tf.train.Checkpoint(**items).save(str(tmp_path / "ckpt"))
    with weights.open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.heads == (("masked_lm",) if saved == "items" else ("masked_lm", "next_sentence"))
        model = BertPretrainer(BertBackbone(**checkpoint.config.to_dict()), compile=False)
        left = weights.load_weights_of(model, checkpoint)
    assert left == (["next_sentence/kernel", "next_sentence/bias"] if saved == "items" else [])
    expected, outputs = call(pretrainer), model(official.batch())
    np.testing.assert_allclose(outputs["masked_lm"], expected["mlm_logits"], atol=5e-5)
    if saved == "items":  # The head's last layer is not in the checkpoint; its pooler is.
        pooled = pretrainer.classification_heads[0](expected["sequence_output"], only_project=True)
        assert_equal_outputs(ours(tmp_path), {**expected, "pooled_output": pooled})
    else:
        np.testing.assert_allclose(outputs["next_sentence"], expected["next_sentence"], atol=5e-5)


def test_the_older_pre_trainer(tmp_path):
    encoder = official.randomized(networks.BertEncoder(**official.SIZES))
    pretrainer = models.BertPretrainer(
        encoder, num_classes=2, num_token_predictions=2, activation=tf_utils.get_activation("gelu")
    )
    official.randomized(pretrainer)
    tf.train.Checkpoint(model=pretrainer).save(str(tmp_path / "ckpt"))
    with weights.open_checkpoint(str(tmp_path)) as checkpoint:
        model = BertPretrainer(BertBackbone(**checkpoint.config.to_dict()), compile=False)
        assert weights.load_weights_of(model, checkpoint) == []
    expected, outputs = call(pretrainer), model(official.batch())
    np.testing.assert_allclose(outputs["masked_lm"], expected["masked_lm"], atol=5e-5)
    np.testing.assert_allclose(outputs["next_sentence"], expected["classification"], atol=5e-5)


def fine_tuned(kind):
    encoder = networks.BertEncoder(**official.SIZES)
    if kind == "classification":
        return models.BertClassifier(encoder, num_classes=3)
    if kind == "classification with a pooler":
        return models.BertClassifier(encoder, num_classes=3, use_encoder_pooler=False)
    return models.BertTokenClassifier(encoder, num_classes=3) if kind == "tokens" else models.BertSpanLabeler(encoder)


@pytest.mark.slow(keep=["classification with a pooler", "tokens", "spans"])
@pytest.mark.parametrize("kind", ["classification", "classification with a pooler", "tokens", "spans"])
def test_heads_of_fine_tuned_models(tmp_path, kind):
    model = official.randomized(fine_tuned(kind))
    tf.train.Checkpoint(model=model, **model.checkpoint_items).save(str(tmp_path / "ckpt"))
    head = {"tokens": "token_classification", "spans": "question_answering"}.get(kind, "classification")
    with weights.open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.heads == (head,)
        kernel, bias = (checkpoint.tensors[f"{head}/{part}"].read() for part in ("kernel", "bias"))
    outputs = ours(tmp_path)
    logits = outputs["pooled_output" if head == "classification" else "sequence_output"] @ kernel + bias
    expected = call(model)
    if kind == "tokens":
        expected = expected["logits"]
    elif kind == "spans":
        expected = tf.stack(expected, axis=-1)  # Start, end.
    real = official.batch()["padding_mask"].astype(bool) if head != "classification" else slice(None)
    np.testing.assert_allclose(logits.numpy()[real], expected.numpy()[real], atol=5e-5)


def test_sizes_from_bert_config(tmp_path, encoder):
    prefix = tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "bert_model.ckpt"))
    assert model_garden.read_config(prefix).num_heads == 2  # By the shapes alone.
    values = {**official.BERT_CONFIG, "hidden_act": "relu", "hidden_dropout_prob": 0.3}
    (tmp_path / "bert_config.json").write_text(json.dumps(values))
    config = BertBackbone.from_preset(str(tmp_path)).bert_config
    assert (config.activation, config.dropout) == ("relu", 0.3)
    assert config.replace(activation="gelu_tanh", dropout=0.1) == model_garden.config_of_shapes(
        model_garden.find_variables(model_garden.TensorFlowCheckpoint(prefix))
    )


def experiment(kind="bert", **changes):
    """What `official.core.train_utils.serialize_config` writes beside a run's checkpoints."""
    sizes = {
        theirs: official.SIZES[theirs]
        for theirs in ("vocab_size", "num_layers", "num_attention_heads", "hidden_size", "type_vocab_size")
    }
    sizes = {**sizes, "intermediate_size": 32, "max_position_embeddings": 20, **changes}
    encoder = encoders.EncoderConfig(type=kind, **{kind: sizes} if kind == "bert" else {})
    task = hyperparams.Config()
    task.override({"model": bert.PretrainerConfig(encoder=encoder).as_dict()}, is_strict=False)
    return config_definitions.ExperimentConfig(task=task)


def test_sizes_from_an_experiments_settings(tmp_path, encoder):
    tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "ckpt"))
    file = str(tmp_path / "params.yaml")
    hyperparams.save_params_dict_to_yaml(experiment(hidden_activation="relu", attention_dropout_rate=0.2), file)
    config = BertBackbone.from_preset(str(tmp_path)).bert_config
    assert (config.activation, config.dropout, config.attention_dropout) == ("relu", 0.1, 0.2)
    assert (config.num_layers, config.num_segments, config.max_sequence_length) == (2, 2, 20)
    for params, message in (
        (experiment("albert"), "expected a BERT encoder, found 'albert'"),
        (experiment(norm_first=True), "norm_first=True"),
        (experiment(hidden_activation="swish"), "unknown hidden_activation 'swish'"),
        (experiment(num_attention_heads=3), "`num_heads` must divide"),
        (experiment(num_attention_heads=4), r"_query_dense/kernel.*expected shape \(16, 4, 4\).*found \(16, 2, 8\)"),
        (experiment(num_layers=1), "ckpt-1: expected 1 layers by the configuration, found 2"),
        (hyperparams.Config(), "params.yaml: expected task.model.encoder"),
    ):
        hyperparams.save_params_dict_to_yaml(params, file)
        with pytest.raises(InputError, match=message), model_garden.open_checkpoint(str(tmp_path)):
            pass
    for text in ("task: [", "task: !!python/object/apply:os.getcwd []\n", "- 1\n"):
        (tmp_path / "params.yaml").write_text(text)
        with pytest.raises(InputError, match="params.yaml: expected task.model.encoder"):
            model_garden.read_config(str(tmp_path))


def test_tokenizer(tmp_path, encoder):
    assert model_garden.read_tokenizer(str(tmp_path)) is None
    directory = tmp_path / "cased_L-2_H-16_A-2"
    prefix = tf.train.Checkpoint(encoder=encoder).save(str(directory / "bert_model.ckpt"))
    assert model_garden.read_tokenizer(str(directory)) is None
    (directory / "vocab.txt").write_text("\n".join(official.VOCABULARY) + "\n")
    for path in (str(directory), prefix):
        assert model_garden.read_tokenizer(path) == {"vocabulary": str(directory / "vocab.txt"), "lowercase": None}
    with tokenizers.open_tokenizer(str(directory)) as settings:
        assert tokenizers.decide_case(str(directory), settings) is False  # By the directory's name.


def test_wrong_sizes(tmp_path, encoder):
    prefix = tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "bert_model.ckpt"))
    for changes, message in (
        ({"vocab_size": 31}, r"_embedding_layer/embeddings.*expected shape \(31, 16\).*found \(30, 16\)"),
        ({"intermediate_size": 64}, r"_intermediate_dense/kernel.*expected shape \(16, 64\).*found \(16, 32\)"),
        ({"num_hidden_layers": 3}, "expected 3 layers by the configuration, found 2"),
        ({"num_attention_heads": 8}, r"_query_dense/kernel.*expected shape \(16, 8, 2\).*found \(16, 2, 8\)"),
    ):
        (tmp_path / "bert_config.json").write_text(json.dumps(official.BERT_CONFIG | changes))
        with pytest.raises(InputError, match=message) as raised:
            BertBackbone.from_preset(str(tmp_path))
        assert prefix in str(raised.value) and "\n" not in str(raised.value)


def other_models(encoder):
    """Checkpoints of other models, and how they are refused."""
    kernel = tf.Variable(tf.ones([2, 2]))
    albert = networks.AlbertEncoder(
        vocab_size=30,
        embedding_width=8,
        hidden_size=16,
        num_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_sequence_length=20,
    )
    factorized = official.build_encoder(2, num_layers=1, embedding_width=8)
    own_table = official.build_pretrainer(official.build_encoder(2, num_layers=1))
    own_table.masked_lm.embedding_table = tf.Variable(own_table.masked_lm.embedding_table)
    extra = official.build_encoder(2, num_layers=1)
    extra._scale = tf.Variable([2.0])
    return {
        "a dense layer": (tf.train.Checkpoint(kernel=kernel), "found none, and at the top kernel"),
        "ALBERT": (tf.train.Checkpoint(encoder=albert), "found .* Expected|lacks|found none"),
        "factorized": (tf.train.Checkpoint(encoder=factorized), "found encoder/_embedding_projection/.* Expected"),
        "two": (tf.train.Checkpoint(a=encoder, b=extra), "expected one encoder .* found a, b"),
        "extra": (tf.train.Checkpoint(encoder=extra), "found encoder/_scale/.* Expected the variables of a BERT"),
        "own table": (tf.train.Checkpoint(model=own_table), "expected the token table in the masked-LM head"),
    }


def test_checkpoints_of_other_models(tmp_path, encoder):
    for name, (checkpoint, message) in other_models(encoder).items():
        prefix = checkpoint.save(str(tmp_path / name / "ckpt"))
        with pytest.raises(InputError, match=message) as raised:
            BertBackbone.from_preset(str(tmp_path / name))
        assert prefix in str(raised.value), name


def test_an_encoder_that_was_saved_before_it_was_whole(tmp_path):
    encoder = official.build_encoder(2)
    encoder.transformer_layers[1]._output_layer_norm = tf.train.Checkpoint()
    tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "ckpt"))
    with pytest.raises(
        InputError, match="ckpt-1: its encoder lacks _transformer_layers/1/_output_layer_norm/gamma, .*"
    ):
        model_garden.read_config(str(tmp_path))


def test_a_run_of_keras_3_is_no_model_garden_checkpoint(tmp_path):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
    prefix = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    with pytest.raises(InputError, match="expected one encoder of official.nlp"):
        BertBackbone.from_preset(os.path.dirname(prefix))


@pytest.mark.slow(keep=["1"])
@pytest.mark.parametrize("version", [1, 2])
def test_ten_layers_and_more_sort_by_number(tmp_path, version):
    encoder = official.build_encoder(version, num_layers=11)
    tf.train.Checkpoint(model=encoder).save(str(tmp_path / "ckpt"))
    with weights.open_checkpoint(str(tmp_path)) as checkpoint:
        for index, layer in enumerate(encoder.transformer_layers):
            bias = checkpoint.tensors[f"transformer_layer_{index}/output_dense/bias"].read()
            np.testing.assert_array_equal(bias, layer._output_dense.bias)
