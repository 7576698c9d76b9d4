"""Multiple choice: the served answers are those of the model on what `bert-swag` packs."""

import json

import numpy as np
import pytest
import tensorflow as tf
import toy_heads
from toy_classifier import SEQUENCE_LENGTH, assets

from export import saved_model
from export.heads.multiple_choice import MultipleChoice
from export.verification import verify
from keras_bert.models import BertMultipleChoice
from keras_bert.tokenization.preprocessor import BertPreprocessor
from tasks.fine_tuning.task import Part, Trained
from tasks.swag.data import Columns, read_table
from tasks.swag.task import Swag, SwagSettings, SwagSpec
from tasks.text.bad_rows import BadRows

K = 4
ROWS = [
    ("the cat sat", ["on the mat", "a long text " * 30, "中文", "word"]),
    ("a long text " * 30, ["the cat", "mat", "sat on the mat", "a long text " * 30]),
    ("naïve CAFÉ", ["words", "σας", "the the the", "!"]),
]


@pytest.fixture(scope="module", name="model")
def _model():
    return toy_heads.shaken(BertMultipleChoice(toy_heads.backbone(), K, compile=False))


@pytest.fixture(scope="module", name="signatures")
def _signatures(model, tmp_path_factory):
    """The directory, loaded; the exported answers are taken on trust."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "fresh_answers", lambda _, probes: [probe.outputs for probe in probes])
        base = str(tmp_path_factory.mktemp("served"))
        directory = saved_model.export_model(model, assets(), base, task="multiple_choice", with_cc="off")
    return tf.saved_model.load(directory).signatures


@pytest.fixture(scope="module", name="right")
def _right(model, tmp_path_factory):
    """The Keras model's probabilities on the rows as `tasks.swag.data` reads and packs them."""
    path = tmp_path_factory.mktemp("table") / "rows.jsonl"
    rows = [json.dumps({"sent1": text, "endings": choices}) for text, choices in ROWS]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    table = read_table(str(path), Columns(start=None, choices=("endings",)), BadRows(), with_labels=False)
    spec = SwagSpec(sequence_length=SEQUENCE_LENGTH, num_choices=table.num_choices)
    trained = Trained(None, assets().tokenizer, spec)
    examples = Swag(SwagSettings(output_dir="run")).encode(Part("test", table), trained).examples
    shape = [len(ROWS) * K, SEQUENCE_LENGTH]
    inputs = {name: np.zeros(shape, np.int32) for name in ("token_ids", "segment_ids", "padding_mask")}
    for row, (start, end) in enumerate(zip(examples.row_splits, examples.row_splits[1:], strict=False)):
        inputs["token_ids"][row, : end - start] = examples.token_ids[start:end]
        inputs["segment_ids"][row, : end - start] = examples.segment_ids[start:end]
        inputs["padding_mask"][row, : end - start] = 1
    inputs = {name: value.reshape(len(ROWS), K, SEQUENCE_LENGTH) for name, value in inputs.items()}
    return tf.nn.softmax(model(inputs, training=False)).numpy()


def _texts():
    return tf.constant([text for text, _ in ROWS])


def _choices():
    return tf.constant([choices for _, choices in ROWS])


def test_texts_are_packed_as_in_training(signatures, right):
    answer = signatures["serving_default"](text=_texts(), choices=_choices())
    np.testing.assert_allclose(answer["probabilities"], right, atol=1e-5)
    best = np.argmax(right, axis=1)
    assert answer["choice"].numpy().tolist() == best.tolist()
    assert [text.decode() for text in answer["choice_text"].numpy()] == [
        choices[number] for (_, choices), number in zip(ROWS, best, strict=True)
    ]
    np.testing.assert_array_equal(answer["score"], np.max(answer["probabilities"], axis=1))
    assert len(set(best.tolist())) > 1 or np.ptp(right, axis=0).max() > 1e-3  # the rows do differ


def test_examples_get_their_own_texts_as_classes(signatures, right):
    def strings(values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() for value in values]))

    examples = [
        tf.train.Example(
            features=tf.train.Features(feature={"text": strings([text]), "choices": strings(choices)})
        ).SerializeToString()
        for text, choices in ROWS
    ]
    answer = signatures["classify"](inputs=tf.constant(examples))
    np.testing.assert_array_equal(answer["classes"], _choices())
    np.testing.assert_allclose(answer["scores"], right, atol=1e-5)


def test_token_ids_are_those_of_the_pairs(signatures, right):
    flat = [choice for _, choices in ROWS for choice in choices]
    texts = [text for text, choices in ROWS for _ in choices]
    encoded = BertPreprocessor(assets().tokenizer, SEQUENCE_LENGTH)((texts, flat))
    encoded = {name: tf.reshape(value, [len(ROWS), K, -1]) for name, value in encoded.items()}
    lengths = tf.reduce_sum(encoded.pop("padding_mask"), axis=-1)
    answer = signatures["token_ids"](**encoded, lengths=lengths)
    np.testing.assert_allclose(answer["probabilities"], right, atol=1e-5)
    assert "choice_text" not in answer


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (3, 5), (4, 4)])
def test_another_number_of_choices_is_refused(model, shape):
    """Without this, choices would move to other texts: (B, K) and (K, B) hold equally many."""
    head = MultipleChoice(model, assets())

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.string)])
    def check(choices):  # A server in C++ takes any shape of the right rank.
        with tf.control_dependencies([head.check(tf.shape(choices), tf.shape(_texts()))]):
            return tf.identity(choices)

    assert check(_choices()).shape == (3, K)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected 4 choices for each text"):
        check(tf.fill(shape, "the cat"))
