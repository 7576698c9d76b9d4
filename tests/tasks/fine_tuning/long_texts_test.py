"""Texts of any length: cut, or read in windows whose outputs are pooled; in training, in Python and as served."""

import json

import keras
import numpy as np
import pytest
import run_tasks
import tensorflow as tf
import toy_words
from every_task import csv
from toy_saved import trace_answer

from export.heads.loading import load_head
from keras_bert import BertTextClassifier, BertTextEmbedder, BertTokenizer
from keras_bert.answers.windows import LongTexts, answer_windows
from tasks.engine.train_step import TrainStep
from tasks.fine_tuning.encoding import encode_texts
from tasks.fine_tuning.examples import make_eval_dataset
from tasks.fine_tuning.objectives import CrossEntropy
from tasks.fine_tuning.session import Session

LENGTH = 10  # A window holds 8 tokens; one begins 6 tokens behind the other.
COUNTS = [0, 1, 8, 9, 14, 15, 40]
TRAINING = {"train_batch_size": 4, "num_train_epochs": 2, "max_seq_length": LENGTH, "learning_rate": 1e-3}


def text_of(count: int, first: int = 0) -> str:
    return " ".join(f"w{(first + 7 * number) % 20}" for number in range(count))


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return BertTokenizer(toy_words.VOCABULARY)


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_words.write_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module", name="table")
def _table(tmp_path_factory):
    """Rows of texts of many lengths; the column that a task reads decides about it."""
    rows = [
        (text_of(n, n), text_of(2 * n, n + 1), "ab"[n % 2], n / 2, n % 6, n % 2, int(n % 3 == 0)) for n in range(1, 25)
    ]
    path = tmp_path_factory.mktemp("table") / "train.csv"
    path.write_text(csv(("text", "other", "label", "number", "score", "b", "c"), *rows))
    return str(path)


# === What is read ===


def pieces_of(ids: list[int], long_text: str, most: int) -> list[list[int]]:
    """The same in plain Python."""
    ids, room = ids[:most], LENGTH - 2
    if long_text == "head_tail":
        return [ids if len(ids) <= room else ids[:2] + ids[-6:]]
    starts = [0]
    while starts[-1] + room < len(ids):
        starts.append(min(starts[-1] + 6, len(ids) - room))
    return [ids[start : start + room] for start in starts]


@pytest.mark.parametrize(("long_text", "most"), [("head_tail", 8192), ("mean", 8192), ("max", 11)])
def test_pieces_are_those_of_plain_python(tokenizer, long_text, most):
    texts = [text_of(count) for count in COUNTS]
    read = LongTexts(tokenizer, LENGTH, long_text, most)
    expected = [
        (row, [tokenizer.cls_token_id, *piece, tokenizer.sep_token_id])
        for row, text in enumerate(texts)
        for piece in pieces_of(tokenizer.tokenize(text).numpy().tolist(), long_text, most)
    ]
    for inputs, rows in (read(tf.constant(texts)), tf.function(read, autograph=False)(tf.constant(texts))):
        cut = [ids[mask == 1].tolist() for ids, mask in zip(*map(np.array, list(inputs.values())[::2]), strict=True)]
        assert list(zip(rows.numpy().tolist(), cut, strict=True)) == expected
    if most > max(COUNTS):
        examples = encode_texts(texts, None, tokenizer, LENGTH, "test", long_text=long_text)
        assert np.split(examples.token_ids, examples.row_splits[1:-1])[3].tolist() == expected[3][1]
        assert examples.num_examples == len(COUNTS) and len(examples.row_splits) - 1 == len(expected)


# === Training ===


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_step_has_the_gradients_of_the_whole_batch_and_encodes_no_more_at_once_than_texts(
    preset, tokenizer, pooling, monkeypatch
):
    model = BertTextClassifier.from_preset(preset, labels=["a", "b"], dropout=0.0, attention_dropout=0.0)
    texts, labels = [text_of(count, count) for count in COUNTS], np.arange(len(COUNTS)) % 2
    examples = encode_texts(texts, None, tokenizer, LENGTH, "test", long_text=pooling)
    examples = examples._replace(labels={"labels": labels.astype(np.int32)})
    [(features, of_batch)] = make_eval_dataset(examples, len(COUNTS))[0]
    with tf.GradientTape() as tape:
        logits = answer_windows(model, features, pooling)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(of_batch["labels"], logits)
        loss = tf.reduce_mean(losses)
    variables = [variable.value for variable in model.trainable_variables]
    right = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]
    sizes, call = [], model.backbone.call

    def note(inputs, **kwargs):
        tf.numpy_function(lambda ids: sizes.append(len(ids)), [inputs["token_ids"]], [])
        return call(inputs, **kwargs)

    monkeypatch.setattr(model.backbone, "call", note)
    strategy = tf.distribute.get_strategy()
    step = TrainStep(
        model,
        keras.optimizers.SGD(1.0),
        CrossEntropy(),
        strategy=strategy,
        step=tf.Variable(0, dtype=tf.int64),
        clip_norm=None,
        pooling=pooling,
        gradient_accumulation_steps=2,
    )
    before = [variable.numpy() for variable in variables]
    figures = tf.function(lambda: strategy.run(step, args=(features, of_batch)), autograph=False)()
    assert figures["loss"].numpy() == pytest.approx(loss.numpy(), rel=1e-5)
    assert max(sizes) <= len(COUNTS) // 2 < len(sizes)
    for old, variable, gradient in zip(before, variables, right, strict=True):
        np.testing.assert_allclose(old - variable.numpy(), gradient.numpy(), atol=2e-5)


# === From the command to the served graph ===


@pytest.fixture(name="untrained")
def _untrained(eagerly, monkeypatch):
    """Lets trainings leave the weights as they are."""
    monkeypatch.setattr(Session, "_fit", lambda *given: 1.0)


TASKS = {
    "classes": (run_tasks.classify, {"text_column": "text", "label_column": "label", "few_labels": "off"}),
    "several": (run_tasks.classify, {"text_column": "text", "label_column": "b,c", "few_labels": "off"}),
    "numbers": (run_tasks.classify, {"text_column": "text", "label_column": "number", "regression": True}),
    "vectors": (run_tasks.embed, {"text_columns": ["text", "other"], "score_column": "score"}),
}


@pytest.mark.usefixtures("untrained")
@pytest.mark.slow(keep=["several-max", "vectors-mean"])
@pytest.mark.parametrize(
    ("task", "long_text"),
    [("classes", "head_tail"), ("several", "max"), ("numbers", "mean"), ("vectors", "mean"), ("vectors", "max")],
)
def test_the_command_python_and_the_served_graph_agree(task, long_text, preset, table, tmp_path, capfd):
    """Also after a training that cut the texts: the flag of an evaluation then reads more."""
    entry, columns = TASKS[task]
    settings = {**columns, "output_dir": str(tmp_path), "eval_batch_size": 10, "test_file": table}
    entry(
        preset=preset,
        train_file=table,
        do_train=True,
        **TRAINING,
        **settings,
        long_text=long_text,
    )
    entry(do_predict=True, **settings)
    texts = [line.split(",") for line in open(table).read().splitlines()[1:]]
    texts = [row[0] for row in texts] + [row[1] for row in texts] * (task == "vectors")
    head = load_head(str(tmp_path / "model"), task="sentence_embedding" if task == "vectors" else None)
    served = trace_answer(head)(text=tf.constant(texts))
    if task == "vectors":
        vectors = np.load(tmp_path / "predictions.npy")
        right, name = np.concatenate([vectors[:, 0], vectors[:, 1]]), "embedding"
        in_python = BertTextEmbedder.from_preset(tmp_path / "model").encode(texts)
        np.testing.assert_allclose(np.linalg.norm(right, axis=1), 1.0, atol=1e-5)
    else:
        rows = [line.split("\t") for line in (tmp_path / "predictions.tsv").read_text().splitlines()[1:]]
        right = np.array([row[2:] or row[1] for row in rows], float)
        model = BertTextClassifier.from_preset(tmp_path / "model")
        name = "score" if task == "numbers" else "probabilities"
        in_python = np.array([row[name] for row in model.answer(texts)])
    for outputs in (in_python, served[name].numpy()):
        np.testing.assert_allclose(outputs, right, atol=1e-5)
    other = load_head(str(tmp_path / "model"), task=head.task if task == "vectors" else None, max_tokens=3)
    assert "its first 3 tokens are read" in other.about().inputs["text"]
    assert ("rows of train" in capfd.readouterr().out) == (long_text == "head_tail")


@pytest.mark.usefixtures("untrained")
def test_cut_rows_and_tokens_are_counted_with_the_flag_that_reads_them(preset, table, tmp_path, capsys):
    entry, columns = TASKS["classes"]
    given = {**columns, "output_dir": str(tmp_path), "train_file": table, "dev_file": table}
    entry(preset=preset, do_train=True, do_eval=True, **TRAINING, **given)
    lengths = np.arange(1, 25) + 2
    share = np.maximum(lengths - LENGTH, 0).sum() / lengths.sum()
    line = f"16 of 24 rows of train have more than 10 tokens and were cut, which leaves out {share:.1%} of all tokens. "
    line += "--long_text=mean or max reads them in windows; --max_seq_length sets the limit."
    assert line in capsys.readouterr().out and line in (tmp_path / "report.html").read_text()
    figures = [entry(do_eval=True, long_text=long_text, **given)["loss"] for long_text in ("truncate", "mean")]
    assert figures[0] != figures[1]
    spec = json.loads((tmp_path / "model" / "task.json").read_text())
    assert spec["long_text"] == "truncate"
    assert "cut, which" in capsys.readouterr().out
    model = BertTextClassifier.from_preset(tmp_path / "model", sequence_length=LENGTH)
    assert model.answer(text_of(30)) != model.answer(text_of(30), long_text="mean")


def test_settings_of_answers_are_checked(tokenizer, preset):
    model = BertTextClassifier.from_preset(preset, labels=["a", "b"])
    for settings, told in (
        ({"long_text": "middle"}, "`long_text` must be one of truncate, head_tail, mean, max"),
        ({"long_text": "mean", "max_tokens": 0}, "`max_tokens` must be at least 1"),
        ({"max_tokens": 5}, "`max_tokens` is for texts that are not truncated"),
    ):
        with pytest.raises(ValueError, match=told):
            model.answer("w1", **settings)
    with pytest.raises(ValueError, match="`long_text` is for single texts"):
        model.answer((["w1"], ["w2"]), long_text="mean")
