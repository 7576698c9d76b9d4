"""`BertSpanLabeler` on questions and contexts: where answers stand in tokens, and parity with transformers."""

import numpy as np
import pytest
import tensorflow as tf
import toy_tasks
from toy_hugging_face import random_model
from toy_tasks import ANIMALS, VOCABULARY

from keras_bert import BertBackbone, BertSpanLabeler, BertSpanLabelerPreprocessor

QUESTION, CONTEXT = "who sat?", "\u00c0 cat sat, the old cats ran"


@pytest.fixture(scope="module", name="preprocessor")
def _preprocessor():
    return BertSpanLabelerPreprocessor(toy_tasks.tokenizer(), 16)


def labels_of(preprocessor, answers, context=CONTEXT):
    """Labels of answers that are sought in one context."""
    count = len(answers) if isinstance(answers, list) else len(answers[0])
    return preprocessor(([QUESTION] * count, [context] * count), answers)[1].numpy().tolist()


def test_the_pair_is_laid_out_as_question_and_context(preprocessor):
    features = preprocessor(([QUESTION], [CONTEXT]))
    pieces = [VOCABULARY[number] for number in features["token_ids"][0]]
    question, context = ["who", "sat", "?"], ["a", "cat", "sat", "[UNK]", "the", "old", "cat", "##s", "ran"]
    assert pieces == ["[CLS]", *question, "[SEP]", *context, "[SEP]", "[PAD]"]
    np.testing.assert_array_equal(features["segment_ids"][0], [0] * 5 + [1] * 10 + [0])


ANSWERS = {
    "cat": [6, 6],
    "cats": [11, 12],
    "cat sat": [6, 7],
    "the old cats ran": [9, 13],
    "\u00c0": [5, 5],
    "": [0, 0],
}


def test_answers_in_every_form_become_positions(preprocessor):
    answers = list(ANSWERS)
    starts = [CONTEXT.index(answer) if answer and answer in CONTEXT else -1 for answer in answers]
    ends = [start + len(answer) for start, answer in zip(starts, answers, strict=True)]
    rows = [[*expected, 15] for expected in ANSWERS.values()]
    for form in (answers, (starts, answers), (starts, ends)):
        assert labels_of(preprocessor, form) == rows
    texts = ([QUESTION] * len(answers), [CONTEXT] * len(answers))
    samples = tf.data.Dataset.from_tensors((texts, (starts, answers)))  # Answers alone are drawn where it learns.
    assert next(iter(samples.map(preprocessor)))[1].numpy().tolist() == rows


@pytest.mark.parametrize(
    ("answers", "place", "missing"),
    [
        (["cat", "Cat sat", ""], "", "Cat sat"),
        (([2, 2, -1], ["cat", "Cat sat", ""]), "at its start ", "Cat sat"),
        (([2, 3, -1], ["cat", "cat", "gone"]), "at its start ", "cat"),  # A place that counts from 1.
        (([2, 999, 999], ["cat", "cats", ""]), "at its start ", "cats"),
    ],
)
def test_an_answer_that_is_not_in_its_context_is_refused(preprocessor, answers, place, missing):
    examples = ([QUESTION] * 3, [CONTEXT] * 3), answers
    message = rf"(?s)must stand {place}in its context. Received these that do not.*['\"\[]{missing}['\"\]]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        preprocessor(*examples)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(tf.data.Dataset.from_tensors(examples).map(preprocessor)))


@pytest.mark.parametrize("span", [(3, 0), (0, len(CONTEXT) + 1)])
def test_a_span_that_no_context_has_is_refused(preprocessor, span):
    answers = tuple([number, kept] for number, kept in zip(span, (-1, -1), strict=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s)must end after its start.*{span[0]},? {span[1]}"):
        preprocessor(([QUESTION] * 2, [CONTEXT] * 2), answers)


def test_questions_without_contexts_are_refused(preprocessor):
    with pytest.raises(ValueError, match="`x` must be a tuple of questions and contexts"):
        preprocessor(tf.constant([QUESTION]))


def test_the_place_of_an_answer_counts(preprocessor):
    second = CONTEXT.index("cats")
    assert labels_of(preprocessor, ([second], ["cat"])) == [[11, 11, 15]]


def test_what_is_cut_off_is_no_answer():
    short = BertSpanLabelerPreprocessor(toy_tasks.tokenizer(), 10, max_query_length=2)
    # [CLS] who sat [SEP] a cat sat [UNK] the [SEP]
    assert labels_of(short, ["cat sat", "old", "the old"]) == [[5, 6, 10], [0, 0, 10], [0, 0, 10]]
    least = BertSpanLabelerPreprocessor(toy_tasks.tokenizer(), 5)
    assert labels_of(least, ["a"], "a cat") == [[3, 3, 5]]  # [CLS] who [SEP] a [SEP]


@pytest.mark.slow
def test_it_learns_where_answers_stand():
    preprocessor = BertSpanLabelerPreprocessor(toy_tasks.tokenizer(), toy_tasks.LENGTH)
    model = BertSpanLabeler(toy_tasks.backbone(), preprocessor)
    contexts, numbers = toy_tasks.texts()
    history = toy_tasks.learns(model, ((["who?"] * 64, contexts), [ANIMALS[number] for number in numbers]))
    assert history["span_accuracy"][-1] > 0.9
    logits = model.predict((["who?"], ["the big hen ran"]), verbose=0)
    assert logits.shape == (1, toy_tasks.LENGTH, 2) and logits.argmax(1).tolist() == [[6, 6]]


def test_the_loss_leaves_padding_out():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(3, 7, 2)).astype("float32")
    labels = np.array([[1, 3, 4], [0, 0, 7], [2, 2, 5]], "int32")
    expected, hits = [], []
    for row, (start, end, length) in zip(logits, labels, strict=True):
        probabilities = np.exp(row[:length]) / np.exp(row[:length]).sum(axis=0)
        expected.append(-(np.log(probabilities[start, 0]) + np.log(probabilities[end, 1])) / 2)
        hits.append(probabilities.argmax(axis=0).tolist() == [start, end])
    model = BertSpanLabeler(toy_tasks.backbone())
    loss, (metric,) = model.default_loss(), model.default_metrics()
    np.testing.assert_allclose(loss(labels, logits), np.mean(expected), rtol=1e-5)
    np.testing.assert_allclose(metric(labels, logits), np.mean(hits))
    logits[0, 4:] = 1e4  # Padding.
    np.testing.assert_allclose(loss(labels, logits), np.mean(expected), rtol=1e-5)
    weights = np.array([1.0, 0.0, 3.0], "float32")
    np.testing.assert_allclose(loss(labels, logits, weights), np.average(expected, weights=weights), rtol=1e-5)


def test_the_head_has_the_paper_s_weights_and_no_dropout():
    backbone = toy_tasks.backbone()
    model = BertSpanLabeler(backbone)
    head = model.get_layer("question_answering")
    assert [tuple(weight.shape) for weight in head.weights] == [(16, 2), (2,)]
    assert model.output_shape == (None, None, 2) and model.output.dtype == "float32"
    assert model.count_params() == backbone.count_params() + 16 * 2 + 2
    assert [type(layer).__name__ for layer in model.layers if layer is not backbone].count("Dropout") == 0
    half = BertBackbone(9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4, dtype="mixed_bfloat16")
    assert BertSpanLabeler(half).output.dtype == "float32"


@pytest.mark.oracle
def test_logits_and_loss_are_those_of_transformers_where_nothing_is_padded(tmp_path):
    """With padding theirs, like Google's, depends on how much there is."""
    import torch

    words = [f"w{number}" for number in range(95)]
    theirs = random_model("BertForQuestionAnswering")
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    model = toy_tasks.compile_for_test(BertSpanLabeler.from_preset(str(tmp_path)))
    model.preprocessor.pad_to_longest = True
    texts = (["w1 w2", "w3 w4"], [" ".join(words[5:14]), " ".join(words[20:29])])
    answers = ["w7 w8", "w28"]
    features, labels = model.preprocess_samples(texts, answers)
    assert labels.numpy().tolist() == [[6, 7, 14], [12, 12, 14]] and features["padding_mask"].numpy().all()
    with torch.no_grad():
        outputs = theirs(
            torch.tensor(features["token_ids"].numpy()).long(),
            token_type_ids=torch.tensor(features["segment_ids"].numpy()).long(),
            start_positions=torch.tensor(labels.numpy()[:, 0]).long(),
            end_positions=torch.tensor(labels.numpy()[:, 1]).long(),
        )
    expected = np.stack([outputs.start_logits.numpy(), outputs.end_logits.numpy()], axis=-1)
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(model(features), expected, atol=2e-5)
    loss = model.evaluate(tf.data.Dataset.from_tensors((texts, answers)), verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, float(outputs.loss), rtol=1e-5)
