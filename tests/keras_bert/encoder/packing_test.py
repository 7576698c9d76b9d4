"""The packed layout and left-to-right attention, against NumPy, transformers, and examples encoded alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.encoder.attention import BertSelfAttention
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import last_positions
from keras_bert.encoder.packing import MASKED_SCORE, TokenLayout
from keras_bert.errors import InputError

TINY = {
    "vocabulary_size": 100,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 64,
    "initializer_range": 0.5,
    "dropout": 0.0,
}
# Two rows of three and two examples, the first one padded.
EXAMPLES = np.array([[1, 1, 1, 2, 2, 3, 3, 3, 3, 0], [1, 1, 1, 1, 1, 1, 1, 2, 2, 2]], "int32")
ATTENTIONS = ("bidirectional", "left_to_right")


def batch(examples=EXAMPLES):
    rng = np.random.default_rng(0)
    return {
        "token_ids": rng.integers(0, 100, examples.shape).astype("int32"),
        "segment_ids": rng.integers(0, 2, examples.shape).astype("int32"),
        "padding_mask": examples,
    }


def alone(inputs, padding=0):
    """Every example in a row of its own, in order, padded to the longest and `padding` more."""
    mask = inputs["padding_mask"]
    places = [mask[row] == example for row in range(len(mask)) for example in range(1, mask[row].max() + 1)]
    rows = [row for row in range(len(mask)) for _ in range(mask[row].max())]
    width = max(int(place.sum()) for place in places) + padding
    examples = {name: np.zeros((len(rows), width), "int32") for name in inputs}
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        for name, values in inputs.items():
            examples[name][number, : place.sum()] = 1 if name == "padding_mask" else values[row][place]
    return examples


def numpy_attention(layer, x, allowed):
    """softmax(Q K^T / sqrt(D) where allowed) V, head by head; x: (S, H), allowed: (S, S) query by key."""
    kernel, bias, out_kernel, out_bias = (w.astype(np.float64) for w in layer.get_weights())
    query, key, value = np.split(x @ kernel + bias, 3, axis=-1)
    size = x.shape[1] // layer.num_heads
    heads = []
    for head in range(layer.num_heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / np.sqrt(size)
        weights = np.where(allowed, np.exp(scores - scores.max()), 0.0)
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ value[:, part])
    return np.concatenate(heads, axis=1) @ out_kernel + out_bias


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("kind", ["rectangular", "unpadded", "packed"])
def test_attention_equals_numpy(kind, attention):
    mask = EXAMPLES if kind == "packed" else np.array([[1] * 8 + [0] * 2, [1] * 3 + [0] * 7], "int32")
    layer = BertSelfAttention(hidden_dim=8, num_heads=2, dropout=0.0, initializer_range=0.5)
    layer.build()
    layer.query_key_value.bias.assign(np.linspace(-1, 1, 24))
    x = np.random.default_rng(1).normal(size=(*mask.shape, 8)).astype("float32")
    layout = TokenLayout(kind, attention)(mask)
    # The unpadded layout takes activations of the trimmed rectangle, here 8 wide.
    rectangle = x[:, :8] if kind == "unpadded" else x
    outputs = layout.restore(layer(layout.flatten(tf.constant(rectangle)), layout=layout))
    for row in range(2):
        allowed = np.tile(mask[row] > 0, (10, 1))
        if kind == "packed":
            allowed = mask[row][:, None] == mask[row]
        if attention == "left_to_right":
            allowed &= np.tri(10, dtype=bool)
        expected = numpy_attention(layer, x[row].astype(np.float64), allowed)
        real = mask[row] > 0
        np.testing.assert_allclose(outputs[row][real], expected[real], atol=2e-6)


def test_layout_of_a_packed_mask_by_hand():
    layout = TokenLayout("packed")(np.array([[1, 1, 2, 0]], "int32"))
    m = MASKED_SCORE
    np.testing.assert_array_equal(layout.attention_bias, [[[[0, 0, m, m], [0, 0, m, m], [m, m, 0, m], [m, m, m, 0]]]])
    np.testing.assert_array_equal(layout.positions, [[0, 1, 0, 0]])
    layout = TokenLayout("packed", "left_to_right")(np.array([[1, 1, 2, 0]], "int32"))
    np.testing.assert_array_equal(layout.attention_bias, [[[[0, m, m, m], [0, 0, m, m], [m, m, 0, m], [m, m, m, 0]]]])


@pytest.mark.slow(keep=["bidirectional"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_packed_examples_are_encoded_as_if_alone(attention):
    packed = BertBackbone(**TINY, attention=attention, layout="packed")
    inputs = batch()
    real = EXAMPLES > 0
    outputs = {
        "eager": packed(inputs),
        "graph": tf.function(packed)(inputs),
        "XLA": tf.function(packed, jit_compile=True)(inputs),
    }
    for layout in ("rectangular", "unpadded"):
        other = BertBackbone(**TINY, attention=attention, layout=layout)
        other.set_weights(packed.get_weights())
        lone = alone(inputs, padding=2)
        expected = other(lone)["sequence_output"][lone["padding_mask"] > 0]
        for way, output in outputs.items():
            np.testing.assert_allclose(output["sequence_output"][real], expected, atol=2e-5, err_msg=way)


def test_packed_with_one_example_a_row_equals_rectangular():
    packed, rectangular = BertBackbone(**TINY, layout="packed"), BertBackbone(**TINY)
    rectangular.set_weights(packed.get_weights())
    inputs = batch(np.array([[1] * 10, [1] * 4 + [0] * 6], "int32"))
    real = inputs["padding_mask"] > 0
    ours, theirs = packed(inputs), rectangular(inputs)
    np.testing.assert_allclose(ours["sequence_output"][real], theirs["sequence_output"][real], atol=1e-5)
    np.testing.assert_allclose(ours["pooled_output"], theirs["pooled_output"], atol=1e-5)


def test_gradients_of_packed_examples_equal_those_of_lone_ones():
    packed, rectangular = BertBackbone(**TINY, layout="packed"), BertBackbone(**TINY)
    rectangular.set_weights(packed.get_weights())
    inputs = batch()

    def gradients(backbone, inputs):
        real = tf.cast(inputs["padding_mask"] > 0, tf.float32)[..., None]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((backbone(inputs)["sequence_output"] * real) ** 3)
        sources = [v for v in backbone.trainable_variables if "pooled_dense" not in v.path]
        return [tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, sources)]

    for ours, theirs in zip(gradients(packed, inputs), gradients(rectangular, alone(inputs)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("layout", ["rectangular", "unpadded", "packed"])
def test_left_to_right_never_looks_ahead(layout):
    backbone = BertBackbone(**TINY, attention="left_to_right", layout=layout)
    inputs = batch(np.ones((2, 10), "int32"))
    before = backbone(inputs)["sequence_output"].numpy()
    inputs["token_ids"][:, 6:] += 1
    after = backbone({**inputs, "token_ids": inputs["token_ids"] % 100})["sequence_output"].numpy()
    np.testing.assert_allclose(after[:, :6], before[:, :6], atol=1e-6)
    assert (np.abs(after[:, 6:] - before[:, 6:]).max(axis=-1) > 1e-3).all()


@pytest.mark.parametrize("layout", ["rectangular", "unpadded", "packed"])
def test_left_to_right_pools_the_last_token(layout):
    backbone = BertBackbone(**TINY, attention="left_to_right", layout=layout)
    mask = np.array([[1] * 10, [1] * 6 + [0] * 4, [1] + [0] * 9], "int32")
    if layout == "packed":
        mask[1, 6:9] = 2  # of another example; the first one's last token counts
    outputs = {name: value.numpy() for name, value in backbone(batch(mask)).items()}
    pooler = backbone.get_layer("pooled_dense")
    last = outputs["sequence_output"][[0, 1, 2], [9, 5, 0]]
    expected = np.tanh(last @ pooler.kernel.numpy() + pooler.bias.numpy())
    np.testing.assert_allclose(outputs["pooled_output"], expected, atol=1e-5)
    first = np.tanh(outputs["sequence_output"][:, 0] @ pooler.kernel.numpy() + pooler.bias.numpy())
    assert np.abs(outputs["pooled_output"] - first)[:2].max() > 1e-3


@pytest.mark.oracle
@pytest.mark.parametrize("layout", ["rectangular", "unpadded", "packed"])
def test_left_to_right_equals_transformers_causal_bert(tmp_path, layout):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    reference = transformers.BertModel(config).eval()
    reference.save_pretrained(tmp_path)
    backbone = BertBackbone.from_preset(str(tmp_path), attention="left_to_right", layout=layout)
    causal = transformers.BertModel.from_pretrained(tmp_path, is_decoder=True).eval()
    inputs = batch(np.array([[1] * 10, [1] * 6 + [0] * 4], "int32"))
    with torch.no_grad():
        expected = causal(
            input_ids=torch.tensor(inputs["token_ids"]),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
            attention_mask=torch.tensor(inputs["padding_mask"]),
        ).last_hidden_state.numpy()
    real = inputs["padding_mask"] > 0
    np.testing.assert_allclose(backbone(inputs)["sequence_output"][real], expected[real], atol=2e-5)


@pytest.mark.oracle
def test_packed_equals_transformers_with_positions_and_a_mask_of_its_own(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    reference = transformers.BertModel(config).eval()
    reference.save_pretrained(tmp_path)
    inputs = batch()
    positions = np.array([[0, 1, 2, 0, 1, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]])
    is_same = EXAMPLES[:, :, None] == EXAMPLES[:, None, :]
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(inputs["token_ids"]),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
            position_ids=torch.tensor(positions),
            attention_mask=torch.tensor(is_same[:, None]),
        ).last_hidden_state.numpy()
    backbone = BertBackbone.from_preset(str(tmp_path), layout="packed")
    real = EXAMPLES > 0
    np.testing.assert_allclose(backbone(inputs)["sequence_output"][real], expected[real], atol=2e-5)


def test_attention_is_kept_in_presets_and_keras_files(tmp_path):
    backbone = BertBackbone(**TINY, attention="left_to_right", layout="packed")
    backbone.save_to_preset(str(tmp_path / "p"))
    backbone.save(tmp_path / "b.keras")
    inputs = batch(np.ones((2, 10), "int32"))
    preset = BertBackbone.from_preset(str(tmp_path / "p"))
    assert (preset.attention, preset.layout) == ("left_to_right", "packed")
    for again in (preset, keras.saving.load_model(tmp_path / "b.keras")):
        np.testing.assert_allclose(again(inputs)["sequence_output"], backbone(inputs)["sequence_output"], atol=1e-5)


def test_foreign_formats_cannot_say_left_to_right(tmp_path):
    config = BertConfig(**TINY, attention="left_to_right")
    for write in (config.to_hugging_face, lambda: config.to_json_file(str(tmp_path / "c.json"))):
        with pytest.raises(InputError, match="attend both ways. Received: attention='left_to_right'"):
            write()


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="`attention` must be one of bidirectional, left_to_right. Received: 'both'"):
        BertConfig(**TINY, attention="both")
    with pytest.raises(ValueError, match="`kind` must be one of rectangular, unpadded, packed. Received: kind='x'"):
        TokenLayout("x")


def test_packed_in_half_precision_keeps_examples_apart():
    backbone = BertBackbone(**TINY, layout="packed", dtype="mixed_float16")
    inputs = batch()
    before = tf.cast(backbone(inputs)["sequence_output"], tf.float32).numpy()
    inputs["token_ids"][0, :3] = (inputs["token_ids"][0, :3] + 1) % 100
    after = tf.cast(backbone(inputs)["sequence_output"], tf.float32).numpy()
    np.testing.assert_array_equal(after[0, 3:], before[0, 3:])
    assert np.abs(after[0, :3] - before[0, :3]).max() > 1e-2


def test_a_batch_without_rows_has_no_last_positions():
    assert last_positions(np.zeros((0, 8), "int32"), 1).shape == (0, 1)
