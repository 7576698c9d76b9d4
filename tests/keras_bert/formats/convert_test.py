"""The table of weight names against the variables of the models that it speaks of."""

import importlib.util
import re

import numpy as np
import pytest

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.formats import weight_names as convert
from keras_bert.models import BertPretrainer

SIZES = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 12,
    "intermediate_dim": 20,
    "max_sequence_length": 10,
}
FORMATS = (convert.HUGGING_FACE, convert.GOOGLE, convert.KERAS_HUB, convert.MODEL_GARDEN)
PRETRAINING = ("masked_lm", "next_sentence")
# The sizes once more, under the names of Hugging Face and google-research/bert, and under Model Garden's.
THEIRS = {
    "vocab_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 12,
    "intermediate_size": 20,
    "max_position_embeddings": 10,
}
GARDEN = {
    "vocab_size": 30,
    "num_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 12,
    "inner_dim": 20,
    "max_sequence_length": 10,
    "type_vocab_size": 2,
}


@pytest.fixture(scope="module")
def variables():
    """Shapes by the paths of the encoder's variables and of the two pre-training heads'."""
    model = BertPretrainer(BertBackbone(**SIZES), compile=False)
    return {variable.path: tuple(variable.shape) for variable in model.weights}


def sources_of(format_name, heads=PRETRAINING):
    heads = [source for head in heads for source in convert.head_sources(format_name, head)]
    return convert.encoder_sources(format_name, SIZES["num_layers"]) + heads


def foreign_shapes(format_name, shapes, heads=PRETRAINING):
    """Shapes by foreign names, as the table has them."""
    named_shapes = {}
    for source in sources_of(format_name, heads):
        tensors = convert.to_theirs(np.zeros(shapes[source.path], "float32"), source, SIZES["num_heads"])
        named_shapes.update({name: tensor.shape for name, tensor in zip(source.names, tensors, strict=True)})
    return named_shapes


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_variable_has_one_source_and_every_name_one_variable(variables, format_name):
    sources = sources_of(format_name)
    paths = [source.path for source in sources]
    assert len(set(paths)) == len(paths)
    lacking = {"next_sentence/kernel", "next_sentence/bias"} if format_name == convert.KERAS_HUB else set()
    assert set(paths) == set(variables) - lacking
    names = [name for source in sources for name in source.names]
    assert len(set(names)) == len(names) and not re.search("[{}]", "".join(names))


@pytest.mark.parametrize("format_name", FORMATS)
def test_there_and_back_is_the_identity(variables, format_name):
    rng = np.random.default_rng(0)
    for source in sources_of(format_name):
        value = rng.normal(size=variables[source.path]).astype("float32")
        theirs = convert.to_theirs(value, source, SIZES["num_heads"])
        assert all(part.flags.c_contiguous for part in theirs), source
        np.testing.assert_array_equal(convert.to_ours(theirs, source), value, err_msg=str(source))


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("head", [head for head in convert.HEADS if head not in PRETRAINING])
def test_heads_of_fine_tuned_models(format_name, head):
    sources = convert.head_sources(format_name, head)
    if not sources:
        homeless = {
            "google": ["token_classification", "multiple_choice", "embedding"],
            "model_garden": ["multiple_choice", "embedding"],
            "keras_hub": ["token_classification", "multiple_choice", "question_answering", "embedding"],
        }
        assert head in homeless[format_name]
        return
    assert [source.path for source in sources] == [f"{head}/kernel", f"{head}/bias"]
    value = np.arange(36, dtype="float32").reshape(12, 3)
    [theirs] = convert.to_theirs(value, sources[0], 2)
    assert theirs.shape == ((12, 3) if format_name in (convert.KERAS_HUB, convert.MODEL_GARDEN) else (3, 12))
    np.testing.assert_array_equal(convert.to_ours([theirs], sources[0]), value)


def test_query_key_and_value_lie_side_by_side_and_heads_on_axes_of_their_own():
    kernel, bias = (
        next(source for source in convert.encoder_sources(convert.KERAS_HUB, 1) if source.path.endswith(ending))
        for ending in ("query_key_value/kernel", "query_key_value/bias")
    )
    assert [name.split("/")[-2] for name in kernel.names] == ["query", "key", "value"]
    # Column 100 * part + 10 * head + place: the query's first head is columns 0 and 1, its second head 10 and 11.
    columns = np.array([100 * part + 10 * head + place for part in range(3) for head in (0, 1) for place in (0, 1)])
    value = 1000.0 * np.arange(4)[:, None] + columns
    query, key, values = convert.to_theirs(value, kernel, 2)
    np.testing.assert_array_equal(query[2], [[2000, 2001], [2010, 2011]])
    np.testing.assert_array_equal(key[0], [[100, 101], [110, 111]])
    np.testing.assert_array_equal(values[:, 1, 0], [210, 1210, 2210, 3210])
    biases = convert.to_theirs(columns.astype("float64"), bias, 2)
    np.testing.assert_array_equal(biases, [[[0, 1], [10, 11]], [[100, 101], [110, 111]], [[200, 201], [210, 211]]])


def test_output_of_attention_keeps_rows_by_head():
    sources = {source.path: source for source in convert.encoder_sources(convert.KERAS_HUB, 1)}
    value = np.arange(24.0).reshape(4, 6)
    [theirs] = convert.to_theirs(value, sources["transformer_layer_0/self_attention/output_dense/kernel"], 2)
    np.testing.assert_array_equal(theirs[1, 0], value[2])


def test_names_and_shapes_are_those_of_keras_hub(variables):
    import keras_nlp

    backbone = keras_nlp.models.BertBackbone(**SIZES)
    model = keras_nlp.models.BertMaskedLM(backbone, preprocessor=None)
    real = {variable.path: tuple(variable.shape) for variable in model.weights}
    assert foreign_shapes(convert.KERAS_HUB, variables, ["masked_lm"]) == real
    classifier = keras_nlp.models.BertTextClassifier(backbone, 3, preprocessor=None)
    shapes = {**variables, "classification/kernel": (12, 3), "classification/bias": (3,)}
    real = {variable.path: tuple(variable.shape) for variable in classifier.weights}
    assert foreign_shapes(convert.KERAS_HUB, shapes, ["classification"]) == real


@pytest.mark.oracle
def test_names_and_shapes_are_those_of_transformers(variables):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(**THEIRS)

    def real(model):
        return {name.removeprefix("bert."): tuple(value.shape) for name, value in model.state_dict().items()}

    expected = real(transformers.BertForPreTraining(config))
    tied = {name: expected.pop(name) for name in list(expected) if name.startswith("cls.predictions.decoder.")}
    assert set(tied) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert foreign_shapes(convert.HUGGING_FACE, variables) == expected
    for cls, head, outputs, without_pooler in (
        ("BertForSequenceClassification", "classification", 2, False),
        ("BertForTokenClassification", "token_classification", 2, True),
        ("BertForMultipleChoice", "multiple_choice", 1, False),
        ("BertForQuestionAnswering", "question_answering", 2, True),
    ):
        shapes = {**variables, f"{head}/kernel": (12, outputs), f"{head}/bias": (outputs,)}
        named_shapes = foreign_shapes(convert.HUGGING_FACE, shapes, [head])
        if without_pooler:
            named_shapes = {name: shape for name, shape in named_shapes.items() if not name.startswith("pooler.")}
        assert named_shapes == real(getattr(transformers, cls)(config)), cls


@pytest.mark.oracle
def test_names_and_shapes_are_those_of_model_garden(variables, tmp_path):
    if importlib.util.find_spec("official") is None:
        pytest.skip("tf-models-official is not installed")
    import tensorflow as tf
    from official.nlp.modeling import networks

    encoder = networks.BertEncoderV2(**GARDEN)
    encoder(encoder.inputs)
    saved = tf.train.Checkpoint(encoder=encoder).write(str(tmp_path / "ckpt"))
    real = {
        name.removeprefix("encoder/").removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): tuple(shape)
        for name, shape in tf.train.list_variables(saved)
        if name.startswith("encoder/")
    }
    assert foreign_shapes(convert.MODEL_GARDEN, variables, []) == real
