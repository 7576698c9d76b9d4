"""Fill-mask: texts with [MASK] become ids as in transformers, and get the tokens of its model."""

import random
import tracemalloc

import fuzzing
import numpy as np
import pytest
import tensorflow as tf
import toy_heads
from toy_classifier import VOCABULARY, assets

from export.heads.fill_mask import FillMask
from export.heads.loading import load_head
from export.verification import probes
from keras_bert import BertBackbone, BertPreprocessor, BertPretrainer, BertTokenizer
from keras_bert.answers import fill_mask, masked_texts
from keras_bert.errors import InputError

PIECES = [
    *("[MASK]", "[MASK]", "[mask]", "[ MASK ]", "[MA", "SK]", "[", "]", "MASK", " ", "\t", "the", "cat", "mat", "##s"),
    *("Σ", "ΑΣ", "é", "e\u0301", "中", "文", "\U0001f600", "\x00", "\ufffd", "\u200b", "x" * 90, ".", ",", "İ"),
]


@pytest.fixture(name="encode", scope="module")
def _encode():
    preprocessor = assets()
    return preprocessor, tf.function(
        lambda texts: masked_texts.encode(preprocessor, texts), input_signature=[tf.TensorSpec([None], tf.string)]
    )


def _as_said(preprocessor, text: bytes):
    """Ids, positions of masks among them, and characters where they begin, by the definition."""
    tokenizer, pieces = preprocessor.tokenizer, text.decode("utf-8", "ignore").split("[MASK]")
    ids, places, characters, character = [tokenizer.cls_token_id], [], [], 0
    for piece, its_ids in zip(pieces, tokenizer.tokenize(pieces).to_list(), strict=True):
        ids += its_ids
        character += len(piece)
        places.append(len(ids))
        characters.append(character)
        ids.append(tokenizer.mask_token_id)
        character += len("[MASK]")
    ids = ids[:-1][: preprocessor.sequence_length - 1]
    kept = [place for place in places[:-1] if place < len(ids)]
    return [*ids, tokenizer.sep_token_id], kept, characters[: len(kept)]


def test_masks_are_found_wherever_they_stand(encode):
    preprocessor, in_graph = encode
    generator = random.Random(5)
    texts = []
    for _ in range(400 if fuzzing.FULL else 60):
        pieces = [generator.choice(PIECES).encode() for _ in range(generator.randint(0, 40))]
        if generator.random() < 0.3:
            pieces.insert(
                generator.randint(0, len(pieces)), generator.choice([b"\xff", b"\xe4", b"\xf0\x9f", b"[MA\xffSK]"])
            )
        texts.append(b"".join(pieces))
    encoded = in_graph(tf.constant(texts))
    columns = [encoded[name] for name in ("mask_positions", "characters", "num_masks")]
    places, characters, num_masks = (column.numpy() for column in columns)
    token_ids, lengths = encoded["token_ids"].numpy(), encoded["padding_mask"].numpy().sum(axis=1)
    some_beyond = False
    for row, text in enumerate(texts):
        ids, right_places, right_characters = _as_said(preprocessor, text)
        length = len(ids)
        assert token_ids[row, :length].tolist() == ids, text
        assert lengths[row] == length
        count = num_masks[row]
        assert places[row].tolist() == right_places + [-1] * (places.shape[1] - count)
        assert characters[row].tolist() == right_characters + [-1] * (places.shape[1] - count)
        some_beyond |= text.decode("utf-8", "ignore").count("[MASK]") > count
    assert some_beyond


@pytest.mark.parametrize("text", ["[MASK]" * 1000, "[MASK] " * 1000, "the cat " * 5000 + "[MASK]", "[" * 10_000])
def test_a_long_text_is_cut_where_the_whole_would_be(encode, text):
    preprocessor, in_graph = encode
    encoded = {name: column.numpy().tolist() for name, column in in_graph(tf.constant([text])).items()}
    ids, mask_positions, characters = _as_said(preprocessor, text.encode())
    assert encoded["token_ids"] == [ids]
    assert encoded["num_masks"] == [len(mask_positions)]
    assert encoded["mask_positions"] == [mask_positions or [-1]]
    assert encoded["characters"] == [characters or [-1]]


@pytest.fixture(name="head", scope="module")
def _head():
    return toy_heads.HEADS["fill_mask"]()


@pytest.mark.slow(keep=["3"])
@pytest.mark.parametrize("at_a_time", [1, 3])
def test_masks_are_filled_some_at_a_time_to_the_same(head, monkeypatch, at_a_time):
    texts = tf.constant(["[MASK] the [MASK]", "cat", "[MASK][MASK][MASK] mat"])
    whole = head.answer_texts(head.model, {"text": texts})
    assert whole["tokens"].shape == (3, 3, 3)
    monkeypatch.setattr(fill_mask, "_MASKS_AT_A_TIME", at_a_time)
    answers = head.answer_texts(head.model, {"text": texts})
    for name, value in whole.items():
        if value.dtype == tf.string:
            np.testing.assert_array_equal(answers[name], value)
        else:
            np.testing.assert_allclose(answers[name], value, atol=1e-6)


def test_a_row_beyond_the_vocabulary_is_never_named(head):
    """It takes part in the softmax all the same."""
    bias, texts = head.model.get_layer("masked_lm").output_bias, {"text": tf.constant(["the [MASK]"])}
    before = bias.numpy()
    bias.assign(np.r_[np.zeros(len(VOCABULARY)), 9.0])
    everything = FillMask(head.model, head.preprocessor, top_k=len(VOCABULARY))
    answer, all_of_them = (some.answer_texts(head.model, texts) for some in (head, everything))
    bias.assign(before)
    assert set(all_of_them["tokens"].numpy().ravel()) == {piece.encode() for piece in VOCABULARY}
    assert np.sum(all_of_them["probabilities"]) < 0.99
    np.testing.assert_allclose(all_of_them["probabilities"][..., :3], answer["probabilities"], atol=1e-6)


def test_of_equal_tokens_the_lower_id_comes_first(head):
    layer, texts = head.model.get_layer("masked_lm"), {"text": tf.constant(["the [MASK]"])}
    before = layer.output_bias.numpy()
    layer.output_bias.assign(np.zeros_like(before))
    everything = FillMask(head.model, head.preprocessor, top_k=len(VOCABULARY)).answer_texts(head.model, texts)
    named = zip(everything["tokens"].numpy()[0, 0], everything["probabilities"].numpy()[0, 0], strict=True)
    probability = {token.decode(): value for token, value in named}
    logits = np.log([probability[piece] for piece in VOCABULARY])
    bias = np.append(9.0 - logits, -9.0).astype(np.float32)  # All tokens are equally likely,
    for shift in (1e-5, -1e-5):
        layer.output_bias.assign(bias + shift * np.linspace(0.0, 1.0, len(bias), dtype=np.float32))  # or nearly so.
        answer = FillMask(head.model, head.preprocessor, top_k=len(VOCABULARY)).answer_texts(head.model, texts)
        assert [token.decode() for token in answer["tokens"].numpy()[0, 0]] == VOCABULARY
    layer.output_bias.assign(before)


def test_likely_tokens_that_count_as_equal_are_no_wrong_answer(head):
    """Their probabilities differ by more than is allowed, and the token with the lower id is a little less likely."""
    layer, two = head.model.get_layer("masked_lm"), FillMask(head.model, head.preprocessor, top_k=2)
    texts = {"text": probes.as_bytes(["the [MASK]"])}
    encoded = two.encode(texts)
    inputs = {name: encoded[name] for name in ("token_ids", "segment_ids", "padding_mask", "mask_positions")}
    before = layer.output_bias.numpy()
    layer.output_bias.assign(np.zeros_like(before))
    bias = np.full_like(before, -99.0)
    bias[5:7] = -head.model(inputs)["masked_lm"].numpy()[0, 0, 5:7] + np.float32([0.0, 8e-5])
    layer.output_bias.assign(bias)
    answer, undecided = two.expected(head.model, texts, encoded)["serving_default"]
    served = two.answer_texts(head.model, {"text": tf.constant(texts["text"])})
    layer.output_bias.assign(before)
    assert served["tokens"].numpy().tolist() == [[[VOCABULARY[5].encode(), VOCABULARY[6].encode()]]]
    assert undecided[0] or answer["tokens"].tolist() == served["tokens"].numpy().tolist()
    np.testing.assert_allclose(np.sort(answer["probabilities"]), np.sort(served["probabilities"]), atol=1e-5)


# === Loading ===


def test_a_preset_of_pretraining_comes_with_its_head(head, tmp_path):
    model = head.model
    head = load_head(toy_heads.save_preset(tmp_path / "preset", model), "fill_mask")
    assert (head.preprocessor.sequence_length, head.top_k) == (48, 5)
    features = {**head.preprocessor(tf.constant(["the cat"])), "mask_positions": tf.constant([[1]])}
    np.testing.assert_allclose(head.model(features)["masked_lm"], model(features)["masked_lm"], atol=1e-6)


def test_a_preset_without_the_head_is_refused(tmp_path):
    preset = toy_heads.save_preset(tmp_path / "preset")
    with pytest.raises(InputError, match="preset.*: holds no masked-LM head. Expected what bert-pretrain wrote"):
        load_head(preset, "fill_mask")


@pytest.mark.parametrize("top_k", [0, len(VOCABULARY) + 1])
def test_more_tokens_than_there_are(head, top_k):
    with pytest.raises(InputError, match=f"top_k={top_k}: expected 1 to {len(VOCABULARY)}"):
        FillMask(head.model, assets(), top_k)


# === transformers ===


@pytest.mark.oracle
def test_tokens_and_probabilities_are_those_of_transformers(tmp_path):
    import torch
    import toy_hugging_face
    import transformers

    theirs = toy_hugging_face.random_model(vocab_size=len(VOCABULARY), max_position_embeddings=48)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=True)
    tokenizer.save_pretrained(tmp_path)

    head = load_head(str(tmp_path), "fill_mask", top_k=4)
    texts = ["the [MASK] sat on the [MASK].", "[MASK]", "a long text[MASK]s, naïve CAFÉ", "[MASK]" * 3 + " 中 mat"]
    answers = head.answer_texts(head.model, {"text": tf.constant(texts)})
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = theirs(**batch).prediction_logits.softmax(-1)
    for row, text in enumerate(texts):
        places = (batch["input_ids"][row] == tokenizer.mask_token_id).nonzero()[:, 0]
        assert answers["num_masks"][row] == len(places) == text.count("[MASK]")
        for number, place in enumerate(places):
            best = probabilities[row, place].topk(4)
            named = [token.decode() for token in answers["tokens"][row, number].numpy()]
            assert named == tokenizer.convert_ids_to_tokens(best.indices.tolist())
            np.testing.assert_allclose(answers["probabilities"][row, number], best.values, atol=1e-5)
            begin = answers["positions"][row, number].numpy()
            assert text[begin : begin + 6] == "[MASK]"


@pytest.mark.oracle
def test_real_texts_get_the_ids_of_transformers():
    """The definition above, held against transformers' own treatment of special tokens in a text."""
    import transformers

    preprocessor = BertPreprocessor(BertTokenizer(VOCABULARY), 48)
    tokenizer = transformers.BertTokenizer(vocab={piece: place for place, piece in enumerate(VOCABULARY)})
    texts = ["the[MASK]cat", " [MASK] ", "x [MASK]. [MASK]!", "the cat [mask]", "[[MASK]]", "[MA[MASK]SK]"]
    encoded = masked_texts.encode(preprocessor, tf.constant(texts))
    for row, text in enumerate(texts):
        ids = tokenizer(text)["input_ids"]
        length = int(np.sum(encoded["padding_mask"][row]))
        assert encoded["token_ids"][row, :length].numpy().tolist() == ids


def test_right_answers_of_a_large_vocabulary_take_little_memory():
    """Logits of all masks of all probes, sorted in full, would take 13 GB for a multilingual BERT."""
    vocabulary = [*VOCABULARY, *(f"token{number}" for number in range(8000))]
    backbone = BertBackbone(len(vocabulary), 1, 2, 8, 16, max_sequence_length=48)
    head = FillMask(BertPretrainer(backbone, compile=False), BertPreprocessor(BertTokenizer(vocabulary), 48), top_k=3)
    texts = head.probe_texts()
    encoded = head.encode(texts)
    tracemalloc.start()
    answer, _ = head.expected(head.model, texts, encoded)["serving_default"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer["tokens"].shape == (len(texts["text"]), 46, 3) and peak < 4e7
