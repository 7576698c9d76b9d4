"""`BertTextClassifier` on texts: labels, scores, losses, files; what all task models share is tested on it."""

import re
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_tasks
from toy_tasks import ANIMALS, LENGTH

from keras_bert import BertPreprocessor, BertTextClassifier, BertTextEmbedder, BertTokenClassifier
from keras_bert.answers.sequence import SequenceAnswers
from keras_bert.errors import InputError
from keras_bert.formats import hugging_face, keras_preset
from keras_bert.presets import weights

PAIRS = (["the cat", "a dog sat"], ["big", "red hen"])


@pytest.fixture(scope="module", name="preprocessor")
def _preprocessor():
    return BertPreprocessor(toy_tasks.tokenizer(), LENGTH)


@pytest.fixture(scope="module", name="trained")
def _trained(preprocessor):
    model = BertTextClassifier(toy_tasks.backbone(), labels=ANIMALS, preprocessor=preprocessor)
    texts, numbers = toy_tasks.texts()
    step = BertTextClassifier.train_step
    with mock.patch.object(BertTextClassifier, "train_step", autospec=True, side_effect=step) as traced:
        history = toy_tasks.learns(model, (texts, numbers))
    assert traced.call_count == 1  # It is traced once, since the optimizer has its variables before.
    assert history["accuracy"][-1] == 1.0
    return model


def test_it_learns_texts_and_predicts_them(trained):
    logits = trained.predict(["the old hen", "cats ran"], verbose=0)
    assert logits.dtype == "float32" and logits.argmax(-1).tolist() == [2, 0]


@pytest.mark.usefixtures("eagerly")
def test_classes_are_weighted_by_name_or_number(preprocessor):
    """Keras takes numbers alone, and fails on a class above the largest of them."""
    model = BertTextClassifier(toy_tasks.backbone(), labels=ANIMALS, preprocessor=preprocessor)
    texts, numbers = toy_tasks.texts(12)
    weights, before = np.array([1.0, 20.0, 0.0, 1.0])[numbers], model.get_weights()
    logits = model(preprocessor(texts)).numpy()
    losses = keras.losses.sparse_categorical_crossentropy(np.array(numbers), logits, from_logits=True)
    names = np.array(ANIMALS)[numbers]
    for class_weight in {"dog": 20, "hen": 0}, {1: 20.0, 2: 0.0}, {0: 1, 1: 20, 2: 0, 3: 1}:
        model.set_weights(before)
        history = model.fit(np.array(texts), names, batch_size=12, class_weight=class_weight, verbose=0).history
        np.testing.assert_allclose(history["loss"], np.average(losses, weights=weights), rtol=1e-5)


def test_weights_of_no_class_are_refused(trained, preprocessor):
    with pytest.raises(ValueError, match="`class_weight` must name classes of .*'cow'.*Received: 'cats'"):
        trained.fit(["a"], ["cat"], class_weight={"cats": 2.0})
    tagger = BertTokenClassifier(toy_tasks.backbone(), num_classes=3, preprocessor=None)
    several = BertTextClassifier(toy_tasks.backbone(), num_classes=3, multi_label=True)
    for model in (tagger, several):
        with pytest.raises(
            ValueError, match="`class_weight` needs one class for each example. Received: class_weight={"
        ):
            model.fit(None, class_weight={0: 2.0})


def test_answers_are_labels_with_probabilities(trained):
    texts = ["the old hen", "cats ran"]
    right = keras.ops.convert_to_numpy(keras.ops.softmax(trained.predict(texts, verbose=0)))
    answers = trained.answer(texts)
    assert [answer["label"] for answer in answers] == ["hen", "cat"]
    np.testing.assert_allclose([answer["probabilities"] for answer in answers], right, atol=1e-6)
    assert [answer["score"] for answer in answers] == [max(answer["probabilities"]) for answer in answers]
    answer = trained.answer(texts[0])
    assert {type(value) for value in answer.values()} == {str, float, list} and answer["label"] == "hen"
    assert trained.answer([]) == [] and trained.answer((texts[:1],))[0]["label"] == "hen"
    message = r"`inputs` must be texts of the shapes {'text': \('batch',\)}, pairs a tuple of two batches. Received"
    with pytest.raises(ValueError, match=message + r" the shapes: \[\(1, 2\)\]"):
        trained.answer([texts])
    for wrong in (None, [None], [1, 2], ["a", float("nan")], np.array(["a", None], object), "a\ud800"):
        with pytest.raises(ValueError, match=message + r": .*(None|nan|1, 2|ud800|array)"):
            trained.answer(wrong)
    assert trained.answer(texts[0], thresholds=np.zeros(4)) == answer
    for wrong in ([0.5], np.array([0.5])):
        with pytest.raises(ValueError, match="`thresholds` must be one for each label. Received: thresholds="):
            trained.answer(texts[0], thresholds=wrong)


@pytest.mark.usefixtures("eagerly")
def test_settings_of_a_wrong_type_are_refused_by_name(trained):
    numbers = "a list of numbers, one for each label"
    for name, wrong, expected in (
        *(("thresholds", wrong, numbers) for wrong in (0.5, {"cat": 0.5}, {0.5}, "abcd", ["0.5"] * 4, np.ones([4, 1]))),
        *(("temperature", wrong, "a number") for wrong in ("2", {}, [2.0], np.ones(1))),
        *(("max_tokens", wrong, "a whole number") for wrong in ("9", 9.5, {"a": 9})),
        ("long_text", {"mean": True}, "a str"),
    ):
        message = re.escape(f"`{name}` must be {expected}. Received: {name}={wrong!r}")
        with pytest.raises(ValueError, match=message):
            trained.answer("the old hen", **{name: wrong})


def test_a_setting_of_none_is_the_default(trained):
    right = trained.answer("the old hen")
    trained.answer_settings, before = {"temperature": 2.0, "thresholds": [2.0] * 4}, trained.answer_settings
    assert trained.answer("the old hen")["label"] == "none"
    assert trained.answer("the old hen", temperature=None, thresholds=None) == right
    trained.answer_settings = before


def test_answers_need_keras_on_tensorflow(trained, monkeypatch):
    """On JAX the graph of texts cannot call the model, though fit and predict work."""
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for ask in (trained.answer, trained.explain):
        with pytest.raises(ValueError, match="`answer` needs KERAS_BACKEND=tensorflow, .* Received: jax"):
            ask("the old hen")


def test_a_model_that_gives_probabilities_answers_with_them(trained, preprocessor):
    model = BertTextClassifier(trained.backbone, labels=ANIMALS, preprocessor=preprocessor, activation="softmax")
    model.set_weights(trained.get_weights())
    right, answer = trained.answer("the old hen"), model.answer("the old hen")
    np.testing.assert_allclose(answer["probabilities"], right["probabilities"], atol=1e-6)


def test_answers_follow_the_weights_and_the_preprocessor(preprocessor):
    model = BertTextClassifier(toy_tasks.backbone(), num_classes=2, preprocessor=preprocessor, compile=False)
    before = model.answer("the cat")
    graph = model._answers(num_texts=1)
    model.get_layer("classification").bias.assign([0.0, 9.0])
    after = model.answer("the cat")
    assert model._answers(num_texts=1) is graph and before["label"] in "01" and after["label"] == "1"
    model.preprocessor = BertPreprocessor(preprocessor.tokenizer, 3)
    cut = model.answer(["the cat", "the dog"])
    assert cut[0] == cut[1] != after
    model.compile()
    assert model._last_answers is None
    model.quantize("int8")
    assert model._last_answers is None and model.answer("the cat")["label"] == "1"
    model.preprocessor = None
    with pytest.raises(ValueError, match="`answer` reads texts with the model's preprocessor. Received: .*None"):
        model.answer("the cat")


def _score(answer: dict, label: str | None) -> float:
    """What `explain` explains: log-odds of a label, or a regressor's score."""
    if label is None:
        return answer["score"]
    share = answer["probabilities"][ANIMALS.index(label)]
    return np.log(share) - np.log(1 - share)


def test_an_explanation_names_the_word_that_decides(trained):
    texts = ["the old (hen).", "cats ran", ""]
    rows, answers = trained.explain(texts), trained.answer(texts)
    assert [row["label"] for row in rows] == [answer["label"] for answer in answers]
    assert [row["words"] for row in rows] == [["the", "old", "(", "hen", ")", "."], ["cats", "ran"], []]
    assert (rows[0]["starts"], rows[0]["ends"]) == ([0, 4, 8, 9, 12, 13], [3, 7, 9, 12, 13, 14])
    assert [row["words"][np.argmax(row["shares"])] for row in rows[:2]] == ["hen", "cats"]
    of_hen = trained.explain(texts, label="hen")
    assert of_hen[0]["words"][np.argmax(of_hen[0]["shares"])] == "hen"
    right = [answer["probabilities"][2] for answer in answers]
    assert {row["label"] for row in of_hen} == {"hen"} and [row["score"] for row in of_hen] == pytest.approx(right)
    with pytest.raises(ValueError, match="`label` must be one of cat, dog, hen, cow. Received: label='ox'"):
        trained.explain(texts, label="ox")


@pytest.mark.usefixtures("eagerly")
@pytest.mark.slow(keep=["probabilities", "scores of pairs"])
@pytest.mark.parametrize(
    ("settings", "inputs"),
    [
        ({"labels": ANIMALS, "pooling": "mean"}, ["the old hen", "a cats ran " * 9]),
        ({"labels": ANIMALS, "activation": "softmax", "layout": "unpadded"}, ["the old hen", "a cats ran " * 9]),
        ({"labels": ANIMALS, "multi_label": True, "activation": "sigmoid"}, ["the old hen", "a cats ran " * 9]),
        ({"num_classes": 1}, (["the (old) hen", "a cats ran " * 9], ["who ran?", "here"])),
    ],
    ids=["pooled logits", "probabilities", "several labels", "scores of pairs"],
)
def test_shares_are_what_the_text_without_a_word_says(preprocessor, settings, inputs):
    sizes = {"layout": settings.pop("layout", "rectangular"), "num_layers": 1 if isinstance(inputs, tuple) else 2}
    model = BertTextClassifier(toy_tasks.shaken(toy_tasks.backbone(**sizes)), preprocessor=preprocessor, **settings)
    label, is_pair = "dog" if model.labels else None, isinstance(inputs, tuple)
    # A text without one of its words is a text; here one that is not cut.
    example = tuple(column[0] for column in inputs) if is_pair else inputs[0]
    row = model.explain(example, label=label)
    assert row["num_words"] == (len("the ( old ) hen who ran ?".split()) if is_pair else 3)
    columns = [list(column) for column in (inputs if is_pair else (inputs,))]
    for number in range(row["num_words"]):
        texts, which = list(example) if is_pair else [example], row.get("texts", [0] * 9)[number]
        texts[which] = texts[which][: row["starts"][number]] + " " + texts[which][row["ends"][number] :]
        for column, text in zip(columns, texts, strict=True):
            column.append(text)
    answers = model.answer(tuple(columns) if is_pair else columns[0])
    expected = [_score(answers[0], label) - _score(without, label) for without in answers[2:]]
    assert row["shares"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.usefixtures("eagerly")
def test_shares_in_a_sure_answer_are_those_of_the_logits(preprocessor):
    """The probability is 1 with every word and without it, in float32."""
    shares, kernel = [], np.random.default_rng(0).normal(size=(toy_tasks.backbone().hidden_dim, len(ANIMALS)))
    for activation in (None, "sigmoid"):
        backbone, settings = toy_tasks.shaken(toy_tasks.backbone()), {"multi_label": True, "activation": activation}
        model = BertTextClassifier(backbone, labels=ANIMALS, preprocessor=preprocessor, **settings)
        model.layers[-1].set_weights([kernel, np.full(len(ANIMALS), 30.0)])
        row = model.explain("the old hen", label="dog")
        assert row["score"] == 1.0 and model.layers[-1].activation.__name__ == (activation or "linear")
        shares.append(row["shares"])
    assert shares[1] == pytest.approx(shares[0], abs=1e-5) and np.abs(shares[0]).max() > 0.1


def test_labels_may_be_names(trained):
    texts, numbers = toy_tasks.texts(8)
    by_name = tf.data.Dataset.from_tensor_slices((texts, [ANIMALS[number] for number in numbers])).batch(4)
    by_number = tf.data.Dataset.from_tensor_slices((texts, numbers)).batch(4)
    assert trained.evaluate(by_name, verbose=0) == trained.evaluate(by_number, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)Labels must be among cat, dog, hen, cow.*cats"):
        trained.preprocess_samples(tf.constant(["a"]), tf.constant(["cats"]))


def test_a_batch_may_be_lists(trained):
    texts, numbers = toy_tasks.texts(8)
    names = [ANIMALS[number] for number in numbers]
    losses = [trained.test_on_batch(list(texts), list(labels)) for labels in (numbers, names)]
    assert losses[0] == losses[1]
    model = BertTextClassifier(toy_tasks.backbone(), num_classes=4, preprocessor=trained.preprocessor)
    with pytest.raises(ValueError, match="`labels` must name the classes"):
        model.train_on_batch(list(texts), names)


def test_columns_of_different_lengths_are_counted(preprocessor):
    model = BertTextClassifier(toy_tasks.backbone(), labels=ANIMALS, preprocessor=preprocessor)
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"must have as many rows in each column. Received: \[3, 3, 2\] rows"):
            method((["a", "b", "c"], np.array(["d", "e", "f"])), ["cat", "hen"])
    texts, labels = ["a", "b"], ["cat", "hen"]
    for shares in ([1.0], np.ones(3), tf.ones(3)):
        lengths = rf"must have as many rows in each column. Received: \[2, 2, {len(shares)}\] rows"
        with pytest.raises(ValueError, match="`x`, `y` and `sample_weight` " + lengths):
            model.fit(texts, labels, sample_weight=shares)
        with pytest.raises(ValueError, match="`validation_data` " + lengths):
            model.fit(texts, labels, validation_data=(texts, labels, shares))
    with pytest.raises(ValueError, match=r"`validation_data` must have as many rows .* \[3, 2\] rows"):
        model.fit(texts, labels, validation_data=[["a", "b", "c"], labels])


def test_missing_rows_are_named(preprocessor):
    model = BertTextClassifier(toy_tasks.backbone(), labels=ANIMALS, preprocessor=preprocessor)
    texts, labels = ["the cat", "hen", "it ran"], ["cat", "hen", "dog"]
    for missing in (None, float("nan")):
        holes = [*texts[:2], missing]
        for x in (holes, np.array(holes, object), (texts, holes)):
            with pytest.raises(ValueError, match=f"`x` must have a value in each row. Received: {missing} in row 2"):
                model.fit(x, labels)
        with pytest.raises(ValueError, match=f"`x` must have a value in each row. Received: {missing} in row 2"):
            model.predict(holes)
        with pytest.raises(ValueError, match=f"`y` must have a value in each row. Received: {missing} in row 1"):
            model.evaluate(texts, [labels[0], missing, labels[2]])
        for held_out in ((holes, labels), [holes, labels]):
            with pytest.raises(ValueError, match=f"`validation_data` must have a value .* {missing} in row 2"):
                model.fit(texts, labels, validation_data=held_out)
    with pytest.raises(ValueError, match=r"`x` must have at least one row. Received: \[\]"):
        model.fit([], [])


def test_scores_are_no_labels_of_a_classifier(trained):
    texts = ["the cat", "hen"]
    assert trained.evaluate(texts, [0.0, 2.0], verbose=0) == trained.evaluate(texts, ["cat", "hen"], verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="For scores make a regressor: num_classes=1."):
        trained.evaluate(texts, [0.5, 1.0], verbose=0)
    for number in (4, -1):  # On a GPU, the loss of such a number is NaN.
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"(?s)whole numbers from 0 to 3. For.*Received:.*-?\d"
        ):
            trained.preprocess_samples(tf.constant(texts), tf.constant([0, number]))
    for labels in (["cat", "cat"], np.array([1, 0])):  # Answers would call class 0 `1`.
        with pytest.raises(ValueError, match="must be distinct str, one per class"):
            BertTextClassifier(toy_tasks.backbone(), labels=labels)


TOPICS = (["the cat and a dog", "hen", "it ran"], [["dog", "cat"], ["hen"], []])  # Any number of labels for a row.


def batch_of_topics():
    return tf.data.Dataset.from_tensor_slices((TOPICS[0], tf.ragged.constant(TOPICS[1]))).batch(3)


@pytest.fixture(scope="module", name="several")
def _several(preprocessor):
    """A model that learned any number of labels for a row."""
    model = BertTextClassifier(toy_tasks.backbone(), labels=ANIMALS, multi_label=True, preprocessor=preprocessor)
    toy_tasks.compile_for_test(model)
    assert model.fit(batch_of_topics().repeat(30), verbose=0).history["micro_f1"][-1] > 0.5
    return model


def giving_probabilities(model):
    shares = BertTextClassifier(model.backbone, labels=ANIMALS, multi_label=True, activation="sigmoid")
    shares.preprocessor = model.preprocessor
    shares.set_weights(model.get_weights())
    return shares


@pytest.mark.usefixtures("eagerly")
def test_a_row_may_have_any_number_of_labels(preprocessor):
    model = BertTextClassifier(toy_tasks.backbone(), labels=ANIMALS, multi_label=True, preprocessor=preprocessor)
    texts, named = TOPICS
    hot = np.array([[float(name in names) for name in ANIMALS] for names in named], np.float32)
    by_hot = tf.data.Dataset.from_tensor_slices((texts, hot)).batch(3)
    right = model.evaluate(by_hot, verbose=0, return_dict=True)
    assert model.evaluate(batch_of_topics(), verbose=0, return_dict=True) == pytest.approx(right, abs=1e-6)
    assert model.evaluate(texts, named, verbose=0, return_dict=True) == pytest.approx(right, abs=1e-6)
    answers = []
    for none in ([[], []], np.zeros([2, len(ANIMALS)], np.float32)):
        model.reset_metrics()  # `test_on_batch` of Keras 3.13 does not.
        answers.append(model.test_on_batch(["it ran", "who"], none, return_dict=True))
    assert answers[0] == pytest.approx(answers[1], abs=1e-6)
    logits = model(preprocessor(texts)).numpy()
    losses = np.logaddexp(0, logits) - hot * logits
    assert right["loss"] == pytest.approx(losses.mean(), abs=1e-6) and set(right) == {"loss", "micro_f1", "pr_auc"}
    hits = 2 * ((logits >= 0) * hot).sum() / ((logits >= 0).sum() + hot.sum())
    assert right["micro_f1"] == pytest.approx(hits, abs=1e-6)
    with pytest.raises(ValueError, match="`y` must be a list of labels for each row. Received: one label for each"):
        model.evaluate(texts, ["cat", "hen", "dog"], verbose=0)
    empty = model.preprocess_samples(tf.constant(["a"]), tf.ragged.constant([[]], tf.string))[1]
    assert empty.numpy().tolist() == [[0.0] * len(ANIMALS)]
    shares = giving_probabilities(model).evaluate(by_hot, verbose=0, return_dict=True)
    assert shares == pytest.approx(right, abs=1e-5)


@pytest.mark.usefixtures("eagerly")
def test_answers_are_any_number_of_labels(several, preprocessor, tmp_path):
    texts = TOPICS[0]
    answers = several.answer(texts)
    assert sorted(answers[0]["labels"]) == ["cat", "dog"]
    several.save(tmp_path / "m.keras")
    several.save_to_preset(tmp_path / "preset")
    single = BertTextClassifier(toy_tasks.backbone(), labels=["toxic"], multi_label=True, preprocessor=preprocessor)
    single.save_to_preset(tmp_path / "single")
    assert BertTextClassifier.from_preset(tmp_path / "single").labels == ["toxic"]
    for again in (keras.saving.load_model(tmp_path / "m.keras"), BertTextClassifier.from_preset(tmp_path / "preset")):
        assert again.multi_label and again.answer(texts) == answers
    np.testing.assert_allclose(
        [answer["probabilities"] for answer in giving_probabilities(several).answer(texts)],
        [answer["probabilities"] for answer in answers],
        atol=1e-6,
    )
    with pytest.raises(
        ValueError, match="`temperature` must be left out where the answer is any number of labels. Rec"
    ):
        several.answer(texts, temperature=2.0)
    with pytest.raises(ValueError, match="`multi_label` must be False for a head on every token"):
        BertTokenClassifier(several.backbone, 2, multi_label=True)


def test_a_compiled_model_comes_back_from_a_keras_file_with_its_optimizer(trained, tmp_path):
    trained.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert (again.labels, again.optimizer.learning_rate) == (ANIMALS, trained.optimizer.learning_rate)
    for loaded, saved in ((again.weights, trained.weights), (again.optimizer.variables, trained.optimizer.variables)):
        for ours, theirs in zip(loaded, saved, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    texts, numbers = map(np.array, toy_tasks.texts(8))
    features = trained.preprocessor(texts)
    loss = trained.compute_loss(features, numbers, trained(features))
    assert again.evaluate(texts, numbers, verbose=0) == pytest.approx([float(loss), 1.0], abs=1e-6)


@pytest.mark.usefixtures("eagerly")
def test_it_takes_pairs(preprocessor):
    model = BertTextClassifier(toy_tasks.backbone(), 2, preprocessor)
    features = preprocessor(PAIRS)
    np.testing.assert_array_equal(features["segment_ids"].numpy().max(axis=1), [1, 1])
    batches = tf.data.Dataset.from_tensor_slices((PAIRS, [0, 1])).batch(2)
    loss = toy_tasks.compile_for_test(model).evaluate(batches, verbose=0, return_dict=True)["loss"]
    logits = model(features).numpy()
    expected = -np.log(np.exp(logits)[[0, 1], [0, 1]] / np.exp(logits).sum(-1)).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_pairs_need_two_segments(preprocessor):
    model = BertTextClassifier(toy_tasks.backbone(num_segments=1), 2, preprocessor)
    assert len(model.predict(PAIRS[0], verbose=0)) == len(PAIRS[0])
    for call in (model.predict, model.answer):
        with pytest.raises(
            ValueError, match="Pairs of texts need a backbone of two segments. Received: num_segments=1"
        ):
            call(PAIRS)


@pytest.mark.usefixtures("eagerly")
def test_answers_and_files_know_whether_it_was_trained_on_pairs(preprocessor, tmp_path, monkeypatch):
    monkeypatch.setattr(SequenceAnswers, "answer_texts", lambda _, __, texts: texts)
    model = BertTextClassifier(toy_tasks.backbone(), labels=["no", "yes"], preprocessor=preprocessor)
    assert model.answer("a") and model.answer(("a", "b"))  # Nothing is known yet.
    with pytest.raises(ValueError, match="'text_pair'.*Received the shapes: .*2.*1"):
        model.answer((PAIRS[0], ["one"]))
    model.fit(PAIRS, ["no", "yes"], verbose=0)
    with pytest.raises(ValueError, match=r"pairs a tuple of two such batches. Received: shape \(.*, 2\)"):
        model.fit(list(zip(*PAIRS, strict=True)), ["no", "yes"], verbose=0)
    model.save_to_preset(tmp_path / "preset")
    for trained in (model, BertTextClassifier.from_preset(tmp_path / "preset", sequence_length=12)):
        assert len(trained.answer(PAIRS)) == 2
        for ask in (trained.answer, trained.explain):
            with pytest.raises(ValueError, match="trained on pairs, a tuple of two batches. Received: 1 text"):
                ask(PAIRS[0])
    model.fit(PAIRS[0], ["no", "yes"], verbose=0)
    assert model.answer(PAIRS[0]) and model.get_config()["answer_settings"] == {"num_texts": 1}
    with pytest.raises(ValueError, match=r"trained on single texts. Received: 2 text\(s\)"):
        model.answer(PAIRS)


def test_one_output_is_a_score(preprocessor):
    model = toy_tasks.shaken(BertTextClassifier(toy_tasks.backbone(), 1, preprocessor))
    texts, numbers = toy_tasks.texts()
    scores = np.array([0.25 * number for number in numbers], "float32")
    predicted = model(preprocessor(texts)).numpy()
    assert predicted.shape == (64, 1)
    for setting in ({"temperature": 2.0}, {"thresholds": [0.5]}):
        with pytest.raises(ValueError, match="must be left out where the answer is a score. Received: {'t"):
            model.answer(texts[0], **setting)
    samples = tf.data.Dataset.from_tensor_slices((texts, scores)).batch(64)
    figures = toy_tasks.compile_for_test(model).evaluate(samples, verbose=0, return_dict=True)
    assert set(figures) == {"loss", "root_mean_squared_error"}
    expected = np.square(predicted[:, 0] - scores).mean()
    np.testing.assert_allclose([figures["loss"], figures["root_mean_squared_error"] ** 2], expected, rtol=1e-4)


@pytest.mark.usefixtures("eagerly")
def test_probabilities_have_the_loss_of_their_logits(trained, preprocessor):
    model = BertTextClassifier(trained.backbone, 4, preprocessor, activation="softmax")
    model.set_weights(trained.get_weights())
    texts, numbers = toy_tasks.texts(8)
    features = preprocessor(texts)
    np.testing.assert_allclose(model(features), keras.ops.softmax(trained(features)), atol=1e-6)
    samples = tf.data.Dataset.from_tensor_slices((texts, numbers)).batch(8)
    np.testing.assert_allclose(model.evaluate(samples, verbose=0), trained.evaluate(samples, verbose=0), atol=1e-5)


def test_rows_without_labels_are_refused(trained):
    with pytest.raises(ValueError, match="`y` must have a label for each row of `x`. Received: y=None"):
        trained.fit(["the cat", "a dog"], verbose=0)


def test_it_is_compiled_from_the_start_unless_told_otherwise(trained):
    model = BertTextClassifier(trained.backbone, 2)
    assert type(model.optimizer) is keras.optimizers.Adam and np.isclose(model.optimizer.learning_rate, 5e-5)
    own = keras.metrics.SparseTopKCategoricalAccuracy()
    model.compile(metrics=[own])
    assert "weighted_metrics" not in model.get_compile_config() or not model.get_compile_config()["weighted_metrics"]
    assert not BertTextClassifier(trained.backbone, 2, compile=False).compiled


def test_dropout_falls_on_the_pooled_output_while_training_only():
    model = BertTextClassifier(toy_tasks.backbone(), 3, dropout=0.5)
    inputs = {name: np.ones((3, 7), "int32") for name in model.input}
    np.testing.assert_array_equal(model(inputs), model(inputs))
    assert tuple(model(inputs).shape) == (3, 3)
    assert np.abs(model(inputs, training=True) - model(inputs)).max() > 0
    assert BertTextClassifier(toy_tasks.backbone(dropout=0.3), 3).get_layer("classifier_dropout").rate == 0.3


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_the_head_may_read_pooled_tokens_in_place_of_the_pooler(preprocessor, tmp_path, pooling):
    backbone = toy_tasks.shaken(toy_tasks.backbone())
    names = np.array(ANIMALS)  # As a column's `unique()` gives them.
    model = BertTextClassifier(backbone, preprocessor=preprocessor, labels=names, pooling=pooling)
    features = preprocessor(["the cat sat", "a dog"])
    head = model.get_layer("classification")
    pooled = BertTextEmbedder(backbone, pooling=pooling, normalize=False)(features)
    np.testing.assert_allclose(model(features), head(pooled), atol=1e-5)
    model.save(tmp_path / "m.keras")
    model.save_to_preset(tmp_path / "preset")
    with weights.open_checkpoint(str(tmp_path / "preset")) as checkpoint:
        assert not checkpoint.is_embedder
        keras_preset.write(str(tmp_path / "converted"), checkpoint, None)
        with pytest.raises(InputError, match=f"pooled tokens .pooling='{pooling}'.. In transformers"):
            hugging_face.write(str(tmp_path / "out"), checkpoint, None)
    for path in ("m.keras", "preset", "converted"):
        again = BertTextClassifier.from_preset(tmp_path / path)
        assert (again.pooling, again.labels) == (pooling, ANIMALS)
        np.testing.assert_allclose(again(features), model(features), atol=1e-6)
    assert BertTextClassifier.from_preset(tmp_path / "preset", labels=names).labels == ANIMALS


def test_what_does_not_fit_is_refused(trained):
    with pytest.raises(ValueError, match="`num_classes` must be at least 1. Received: num_classes=None"):
        BertTextClassifier(trained.backbone)
    with pytest.raises(ValueError, match=r"distinct str, one per class. Received: num_classes=3, labels=\['a', 'b'\]"):
        BertTextClassifier(trained.backbone, 3, labels=["a", "b"])
    with pytest.raises(ValueError, match="`labels` must be a list of str. Received: labels='ab'"):
        BertTextClassifier(trained.backbone, labels="ab")
    with pytest.raises(ValueError, match="`pooling` must be one of mean, cls, max. Received: pooling='sum'"):
        BertTextClassifier(trained.backbone, 2, pooling="sum")
    with pytest.raises(ValueError, match="`pooling` must be None for a head on every token. Received: pooling='mean'"):
        BertTokenClassifier(trained.backbone, 2, pooling="mean")
    with pytest.raises(ValueError, match="does not apply preprocessing|received 1 input"):
        trained(["a text"])
    with pytest.raises(ValueError, match="`labels` must name the classes, .* where `y` has texts. Received: None"):
        BertTextClassifier(trained.backbone, 2, trained.preprocessor).fit(["a text"], ["hen"])
