"""Our backbone in KerasHub's tasks, with LoRA, int8, `.keras` files, summaries and mixed precision."""

import sys

import keras
import keras_nlp
import numpy as np
import processes
import pytest
from bfloat16 import needs_bfloat16

from keras_bert import BertBackbone, BertMaskedLM, BertTextClassifier
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.presets.catalog import PRESETS
from keras_bert.tokenization.tokenizer import BertTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + i) for i in range(26)), *"0123456789!?,.;:-()"]
TINY = {"vocabulary_size": 50, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 64}
INPUTS = {
    "token_ids": np.array([[2, 7, 9, 3], [2, 8, 3, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 1, 1], [0, 0, 0, 0]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], "int32"),
}
MASKED = {**INPUTS, "mask_positions": np.array([[1, 2], [1, 0]], "int32")}
TEXTS = ["a b c", "d e!", "f", "a a a a a"]


def filled(model):
    """A model whose variables, biases too, are all different."""
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=value.shape, scale=0.2).astype("float32") for value in model.get_weights()])
    return model


def classifier(task=BertTextClassifier, **changes):
    preprocessor = keras_nlp.models.BertTextClassifierPreprocessor(BertTokenizer(PIECES), sequence_length=8)
    return task(BertBackbone(**{**TINY, **changes}), num_classes=2, preprocessor=preprocessor)


# === Tasks ===


@pytest.mark.slow(keep=["BertTextClassifier-unpadded"])
@pytest.mark.parametrize(
    "task, layout", [(BertTextClassifier, "rectangular"), (keras_nlp.models.BertTextClassifier, "unpadded")]
)
def test_a_text_classifier_learns_from_strings_and_is_saved(tmp_path, task, layout):
    keras.utils.set_random_seed(0)
    model = classifier(task, layout=layout, num_layers=1)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer=keras.optimizers.Adam(0.02)
    )
    model.optimizer.build(model.trainable_variables)  # Else the step is traced twice.
    labels = np.array([1, 0, 0, 1])  # Whether there is an "a".
    history = model.fit(TEXTS * 20, np.tile(labels, 20), epochs=2, batch_size=4, verbose=0).history["loss"]
    assert history[-1] < 0.3 * history[0]
    expected = model(model.preprocessor(TEXTS)).numpy()
    assert expected.argmax(-1).tolist() == labels.tolist()
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(again(again.preprocessor(TEXTS)), expected, atol=1e-6)


@pytest.mark.slow
def test_tasks_from_presets_of_our_own(tmp_path):
    model = filled(classifier())
    expected = model.predict(TEXTS, verbose=0)
    model.save_to_preset(str(tmp_path / "p"))
    again = keras_nlp.models.TextClassifier.from_preset(str(tmp_path / "p"))
    assert type(again) is BertTextClassifier
    np.testing.assert_allclose(again.predict(TEXTS, verbose=0), expected, atol=1e-6)
    fresh = keras_nlp.models.TextClassifier.from_preset(str(tmp_path / "p"), num_classes=5)
    assert fresh.predict(TEXTS, verbose=0).shape == (4, 5)
    for weight, other in zip(fresh.backbone.weights, model.backbone.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), other.numpy())
    masked_lm = keras_nlp.models.MaskedLM.from_preset(str(tmp_path / "p"))
    assert type(masked_lm) is BertMaskedLM
    before = masked_lm.backbone.token_embedding.embeddings.numpy()
    masked_lm.fit(TEXTS, batch_size=2, verbose=0)
    assert np.abs(masked_lm.backbone.token_embedding.embeddings.numpy() - before).max() > 0


@pytest.mark.slow
def test_keras_hubs_masked_lm_around_our_backbone(tmp_path):
    preprocessor = keras_nlp.models.BertMaskedLMPreprocessor(
        BertTokenizer(PIECES), sequence_length=8, mask_selection_rate=0.5
    )
    model = keras_nlp.models.BertMaskedLM(BertBackbone(**TINY), preprocessor=preprocessor)
    history = model.fit(TEXTS * 4, batch_size=4, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(MASKED), model(MASKED))
    assert len(again.weights) == len(model.weights)  # One table, tied.


@needs_bfloat16
def test_dtypes_and_overrides_of_from_preset(tmp_path):
    BertBackbone(**TINY).save_to_preset(str(tmp_path))
    half = keras_nlp.models.Backbone.from_preset(str(tmp_path), dtype="mixed_bfloat16")
    assert type(half) is BertBackbone and half(INPUTS)["pooled_output"].dtype.name == "bfloat16"
    ours = BertBackbone.from_preset(str(tmp_path), dtype="mixed_bfloat16", dropout=0.3, layout="unpadded", name="mine")
    assert (ours.dropout, ours.layout, ours.name) == (0.3, "unpadded", "mine")
    assert {variable.dtype for variable in ours.weights} == {"float32"}
    with pytest.raises(InputError, match="unknown setting num_layer. Expected some of: .*num_layers"):
        BertBackbone.from_preset(str(tmp_path), num_layer=3)


# === LoRA ===


def test_lora_trains_its_factors_alone_and_saving_merges_them(tmp_path):
    sizes = {**TINY, "num_layers": 1}
    model = BertTextClassifier(BertBackbone(**sizes), num_classes=2)
    model.backbone.enable_lora(rank=2)
    factors = [variable.path for variable in model.backbone.trainable_variables if "lora" in variable.path]
    assert len(factors) == 2 and all("query_key_value" in path for path in factors)
    before = {variable.path: variable.numpy() for variable in model.weights}
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam(0.1),
        jit_compile=False,
    )
    model.fit(INPUTS, np.array([1, 0]), epochs=2, verbose=0)
    changed = {variable.path for variable in model.weights if np.any(variable.numpy() != before[variable.path])}
    bias = "transformer_layer_0/self_attention/query_key_value/bias"
    assert changed == {*factors, bias, "classification/kernel", "classification/bias"}
    expected = model.backbone(INPUTS)["sequence_output"]
    model.backbone.save_to_preset(str(tmp_path / "p"))
    model.backbone.save(tmp_path / "b.keras")
    for preset in (tmp_path / "p", tmp_path / "b.keras"):
        merged = BertBackbone.from_preset(str(preset))
        assert len(merged.weights) == len(BertBackbone(**sizes).weights)
        np.testing.assert_allclose(merged(INPUTS)["sequence_output"], expected, atol=1e-5)
    model.backbone.save_lora_weights(str(tmp_path / "f.lora.h5"))
    other = BertBackbone(**sizes)
    other.load_lora_weights(str(tmp_path / "f.lora.h5"))
    ours, theirs = (b.get_layer("transformer_layer_0").self_attention for b in (other, model.backbone))
    np.testing.assert_array_equal(ours.query_key_value.lora_kernel_b, theirs.query_key_value.lora_kernel_b)


# === int8 ===


@pytest.mark.slow(keep=["rectangular"])
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("layout", ["rectangular", "unpadded"])
def test_int8_is_near_float_and_survives_a_keras_file(tmp_path, layout):
    model = filled(BertBackbone(**{**TINY, "hidden_dim": 64, "intermediate_dim": 128}, layout=layout))
    expected = model(INPUTS)["sequence_output"].numpy()
    model.quantize("int8")
    kinds = {variable.dtype for variable in model.weights if variable.path.endswith(("kernel", "embeddings"))}
    assert kinds == {"int8"}
    outputs = model(INPUTS)["sequence_output"].numpy()
    assert 0 < np.abs(outputs - expected).max() < 0.05 * np.abs(expected).max()
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(INPUTS)["sequence_output"], outputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_int8_models_with_heads(tmp_path):
    for model, inputs in (
        (filled(BertPretrainer(BertBackbone(**TINY))), MASKED),
        (filled(BertTextClassifier(BertBackbone(**TINY), 3, compile=False)), INPUTS),
    ):
        floats = keras.tree.flatten(model(inputs))
        model.quantize("int8")
        outputs = keras.tree.flatten(model(inputs))
        model.save(tmp_path / "m.keras")
        again = keras.tree.flatten(keras.saving.load_model(tmp_path / "m.keras")(inputs))
        for exact, quantized, loaded in zip(floats, outputs, again, strict=True):
            assert 0 < np.abs(quantized - exact).max() < 0.2 * np.abs(exact).max()
            np.testing.assert_array_equal(loaded, quantized)


# === Saving, printing, precision ===

FRESH = """
import sys
import keras, numpy as np
import keras_bert.models
outputs = keras.saving.load_model(sys.argv[1])(dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **{name: np.array(value) for name, value in outputs.items()})
"""


def test_a_keras_file_in_a_fresh_process(tmp_path):
    model = filled(BertPretrainer(BertBackbone(**TINY, layout="unpadded")))
    model.save(tmp_path / "m.keras")
    np.savez(tmp_path / "inputs.npz", **MASKED)
    files = [tmp_path / name for name in ("m.keras", "inputs.npz", "outputs.npz")]
    done = processes.run([sys.executable, "-c", FRESH, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = np.load(tmp_path / "outputs.npz")
    for name, expected in model(MASKED).items():
        np.testing.assert_allclose(outputs[name], expected, atol=1e-6)


def test_the_summary_is_a_table_with_the_true_count():
    backbone = BertBackbone.from_preset("tiny", load_weights=False)
    lines = []
    backbone.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert f"Total params: {PRESETS['tiny'].config.num_parameters:,}" in text
    for row in ("token_ids", "embeddings", "transformer_layer_0", "transformer_layer_1", "pooled_dense"):
        assert row in text
    lines.clear()
    BertPretrainer(backbone).summary(print_fn=lines.append)
    heads = 128 * 128 + 128 + 2 * 128 + 30522 + 2 * 128 + 2  # transform, LayerNorm, output bias, next sentence
    assert f"Total params: {PRESETS['tiny'].config.num_parameters + heads:,}" in "\n".join(lines)


@needs_bfloat16
def test_mixed_precision_in_a_task():
    backbone = BertBackbone(**{**TINY, "num_layers": 1}, dtype="mixed_bfloat16")
    model = BertTextClassifier(backbone, num_classes=2)
    assert model.dtype_policy.name == "mixed_bfloat16"
    loss = model.fit(INPUTS, np.array([0, 1]), verbose=0).history["loss"]
    assert np.isfinite(loss).all()
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
