"""google-research/bert's checkpoints: told apart from others, and refused where they are damaged or contradict."""

import os
import shutil

import numpy as np
import pytest
from google_checkpoints import (
    SIZES,
    TOKENIZER,
    publish,
    random_model,
    save_by_tensorflow_1,
    write_config,
)
from toy_checkpoints import checkpoint_of

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from keras_bert.formats import google
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.presets import tokenizers, weights


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


def test_formats_are_told_by_content(tmp_path, written):
    assert not google.matches(str(tmp_path)) and google.matches(str(written / "bert_model.ckpt"))
    (written / "bert_config.json").rename(tmp_path / "elsewhere")
    assert google.matches(str(written))  # By the names of its variables.
    with pytest.raises(InputError, match="bert_config.json: no such file. Expected the sizes"):
        google.read_config(str(written))
    (tmp_path / "alone").mkdir()
    write_config(tmp_path / "alone")
    assert google.matches(str(tmp_path / "alone")) and google.read_config(str(tmp_path / "alone")).num_layers == 2
    with pytest.raises(InputError, match="alone: no checkpoint. Expected bert_model.ckpt.index"):
        BertBackbone.from_preset(str(tmp_path / "alone"))
    (tmp_path / "alone" / "config.json").write_text("{}")
    assert not google.matches(str(tmp_path / "alone"))  # Hugging Face's.


def case_of(directory):
    with tokenizers.open_tokenizer(str(directory)) as settings:
        return tokenizers.decide_case(str(directory), settings)


def test_case_comes_from_the_configuration_the_name_or_the_vocabulary(tmp_path, published):
    directory, _ = published
    assert google.read_tokenizer(str(directory))["lowercase"] is None  # the format's own files do not say it
    assert case_of(directory) is True
    cased = tmp_path / "cased_L-2"
    shutil.copytree(directory, cased)
    assert case_of(cased) is False
    directory = directory.rename(tmp_path / "somewhere")
    assert case_of(directory) is None
    write_config(directory, do_lower_case=True)
    assert google.read_tokenizer(str(directory))["lowercase"] is True
    assert case_of(directory) is True
    words = [f"{'W' if index % 2 else 'w'}{index}" for index in range(600)]
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    with pytest.raises(InputError, match="lowercase=True by its own settings"):
        case_of(directory)
    write_config(directory)
    assert case_of(directory) is False
    (directory / "vocab.txt").unlink()
    assert google.read_tokenizer(str(directory)) is None


def damage(directory, what):
    data = directory / "bert_model.ckpt.data-00000-of-00001"
    index = directory / "bert_model.ckpt.index"
    if what == "data cut":
        os.truncate(data, 1000)
    elif what == "data gone":
        data.unlink()
    elif what == "data flipped":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 255
        data.write_bytes(content)
    elif what == "index cut":
        os.truncate(index, index.stat().st_size // 2)
    else:
        index.write_bytes(b"")


DAMAGES = {
    "data cut": r"data-00000-of-00001: truncated.* Expected at least [\d,]+ bytes by .*, found 1,000",
    "data gone": "data-00000-of-00001: no such file. Expected all 1 data files, found 0",
    "data flipped": r"bert_model.ckpt: cannot read (bert|cls)/.*expected a whole array of shape \(.*\), found",
    "index cut": "bert_model.ckpt.index: not a whole checkpoint index",
    "index empty": "bert_model.ckpt.index: not a whole checkpoint index",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_files(written, tmp_path, what):
    damage(written, what)
    target = tmp_path / "target"
    with pytest.raises(InputError, match=DAMAGES[what]) as raised, weights.open_checkpoint(str(written)) as checkpoint:
        with atomic_path(str(target)) as temporary:
            google.write(temporary, checkpoint, None)
    assert str(written) in str(raised.value) and "\n" not in str(raised.value)
    assert not target.exists() and sorted(os.listdir(tmp_path)) == ["written"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"vocab_size": 31}, r"bert/embeddings/word_embeddings: expected shape \(31, 16\).*found \(30, 16\)"),
        ({"max_position_embeddings": 512}, r"position_embeddings: expected shape \(512, 16\).*found \(20, 16\)"),
        ({"intermediate_size": 64}, r"intermediate/dense/kernel: expected shape \(16, 64\).*found \(16, 32\)"),
        ({"num_hidden_layers": 3}, "lacks bert/encoder/layer_2/attention.* and 12 more. Expected .* with 3 layers"),
        ({"num_hidden_layers": 1}, "holds weights of layer 1, expected 1 layers by bert_config.json"),
        ({"hidden_act": "swish"}, "unknown hidden_act 'swish'. Expected one of gelu, relu, tanh, linear"),
    ],
)
def test_a_configuration_of_another_checkpoint(written, changes, message):
    write_config(written, **changes)
    with pytest.raises(InputError, match=message) as raised:
        BertBackbone.from_preset(str(written))
    assert str(written) in str(raised.value)


def test_a_checkpoint_of_another_model(tmp_path):
    write_config(tmp_path)
    prefix = save_by_tensorflow_1(tmp_path, {"resnet/conv1/kernel": np.ones(3), "global_step": np.array(1)})
    with pytest.raises(InputError) as raised:
        BertBackbone.from_preset(str(tmp_path))
    message = str(raised.value)
    assert message.startswith(f"{prefix}: lacks bert/embeddings/word_embeddings, ")
    assert message.endswith("found global_step, resnet/conv1/kernel.")


def test_an_encoder_without_pooler_and_heads(tmp_path, model):
    whole = checkpoint_of(model)
    tensors = {path: stored for path, stored in whole.tensors.items() if path.startswith(("embeddings", "transformer"))}
    google.write(str(tmp_path / "there"), Checkpoint("model", "", whole.config, tensors), None)
    with weights.open_checkpoint(str(tmp_path / "there")) as checkpoint:
        assert (checkpoint.heads, checkpoint.has_pooler) == ((), False)
        assert set(checkpoint.tensors) == set(tensors)
    assert not (tmp_path / "there" / "vocab.txt").exists()


def test_heads_that_have_no_place_there(tmp_path):
    whole = checkpoint_of(BertBackbone(**SIZES))
    tensors = {**whole.tensors, "token_classification/kernel": StoredTensor("", (16, 3), lambda: np.zeros((16, 3)))}
    with pytest.raises(
        InputError, match="their.model: .* no place for the head token_classification. Expected masked_lm"
    ):
        google.write(str(tmp_path / "x"), Checkpoint("model", "their.model", whole.config, tensors), None)
    assert not (tmp_path / "x").exists()


def test_a_masked_lm_head_that_differs_from_its_encoder(tmp_path):
    keras_nlp = pytest.importorskip("keras_nlp")
    backbone = keras_nlp.models.BertBackbone(**SIZES)
    keras_nlp.models.BertMaskedLM(backbone, preprocessor=None).save_to_preset(str(tmp_path / "theirs"))
    with weights.open_checkpoint(str(tmp_path / "theirs")) as checkpoint:
        with pytest.raises(InputError, match="its masked_lm head has activation='gelu', its encoder 'gelu_tanh'"):
            google.write(str(tmp_path / "x"), checkpoint, None)


def test_another_epsilon_is_kept_and_warned_of(tmp_path, caplog):
    with caplog.at_level("WARNING"):
        google.write(str(tmp_path / "x"), checkpoint_of(BertBackbone(**SIZES, layer_norm_epsilon=1e-6)), None)
    assert "layer_norm_epsilon 1e-06 is written" in caplog.text
    assert google.read_config(str(tmp_path / "x")).layer_norm_epsilon == 1e-6
