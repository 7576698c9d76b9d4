"""`answer` of each task model gives, as Python values, what the export's graph gives for 300 texts."""

import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import toy_heads
import toy_saved
from tokenizer_reference import ADVERSARIAL
from tokenizer_texts import fuzzed_bytes, fuzzed_texts
from toy_classifier import PIECES

from export import signatures
from export.graph.model_copies import rebuild_for_serving
from export.heads import fill_mask
from export.verification import probes
from keras_bert.answers import text_bounds
from keras_bert.errors import InputError
from keras_bert.models import BertTokenClassifier

WORDS = ["[MASK]", "jim", "Henson's", "(world)", *(piece for piece in PIECES if "#" not in piece)]
COUNT = 300
TASKS = ["classification of pairs", "token_classification", "question_answering", "multiple_choice", "fill_mask"]
# The first two decode less than others of their kind; several_labels_test.py compares what several labels decode to,
# and the tests of prompts what an embedder answers.
SIMILAR = ["regression of pairs", "token_regression", "multi_label_classification", "sentence_embedding"]
ON_DISK = "fill_mask"  # The others are as they are traced for an export, whose verification compares both.
SETTINGS = ("doc_stride", "max_query_length", "top_k", "temperature", "thresholds")


@functools.cache
def served(name: str):
    """Gives a head, most of them of one layer, and its model as it is served."""
    with mock.patch.object(toy_heads, "NUM_LAYERS", 1):
        head = toy_saved.ALL_HEADS[name]()
    return head, rebuild_for_serving(head.model)


def ask(answers, model, columns) -> dict[str, np.ndarray]:
    """What the signature of a head, or of its explanations, answers."""

    def answer(**texts):
        return answers.answer_texts(model, {name: texts[name] for name in answers.text_inputs})

    graph = signatures.trace(answer, answers.text_inputs, tf.string)
    tensors = {name: tf.constant(column, tf.string) for name, column in columns.items()}
    return {name: value.numpy() for name, value in graph(**tensors).items()}


@functools.cache
def texts() -> np.ndarray:
    """Ordinary, long and hostile ones, 300 of them."""
    generator = np.random.default_rng(0)
    hostile = [*probes.TEXTS, *fill_mask.TEXTS, *ADVERSARIAL, *fuzzed_texts(60, 3), *fuzzed_bytes(40, 3)]
    hostile = list(dict.fromkeys(probes.as_bytes(hostile)))
    lengths = generator.integers(5, 60, COUNT - len(hostile))
    return probes.as_bytes([*hostile, *(" ".join(generator.choice(WORDS, length)) for length in lengths)])


def inputs_of(head) -> dict[str, np.ndarray]:
    """The same texts in each column, each time in another order."""
    column, columns = texts(), {}
    for number, (name, axes) in enumerate(head.text_inputs.items()):
        shifts = range(7 * number, 7 * number + (axes[0] if axes else 1))
        columns[name] = np.stack([np.roll(column, shift) for shift in shifts], axis=1)
        if not axes:
            columns[name] = columns[name][:, 0]
    return columns


def model_of(head):
    """The head's model as a user has it."""
    model, tokenizer = head.model, head.preprocessor.tokenizer
    if head.task == "token_regression":
        model = BertTokenClassifier(text_bounds.find_backbone(model), num_classes=1)
        model.set_weights(head.model.get_weights())
    model.preprocessor = model.preprocessor_cls(tokenizer, head.preprocessor.sequence_length)
    if hasattr(head, "labels"):
        model.labels = head.labels
    return model


def right_rows(answers, outputs: dict[str, np.ndarray]) -> list[dict]:
    """The signature's outputs, row by row, as Python values without what fills them up."""
    filled, rows = answers.padding.get("values", ()), []
    for number in range(len(next(iter(outputs.values())))):
        count = outputs[answers.padding["count"]][number] if filled else None
        row = {name: values[number : number + 1].tolist()[0] for name, values in outputs.items()}
        rows.append({name: value[:count] if name in filled else value for name, value in row.items()})
    return rows


def is_equal(ours, right) -> bool:
    """Floats may differ by 1e-5."""
    if isinstance(right, dict):
        return ours.keys() == right.keys() and all(is_equal(ours[name], value) for name, value in right.items())
    if isinstance(right, list):
        return len(ours) == len(right) and all(map(is_equal, ours, right))
    if isinstance(right, bytes):
        return ours == right.decode("utf-8", "replace")
    return type(ours) is type(right) and (abs(ours - right) <= 1e-5 if isinstance(right, float) else ours == right)


@pytest.mark.slow(keep=TASKS)
@pytest.mark.parametrize("name", [*TASKS, *SIMILAR])
def test_answers_are_those_of_the_export(saved, name):
    head, served_model = (saved(name).head, None) if name == ON_DISK else served(name)
    columns = inputs_of(head)
    if name == ON_DISK:
        loaded = tf.saved_model.load(saved(name).directory)
        outputs = {key: value.numpy() for key, value in toy_saved.ask(loaded, "serving_default", columns).items()}
    else:
        outputs = ask(head, served_model, columns)
    given = tuple(columns.values()) if len(columns) > 1 else columns["text"]
    rows = model_of(head).answer(given, **{name: getattr(head, name) for name in SETTINGS if hasattr(head, name)})
    assert len(rows) == COUNT == len(set(columns[next(iter(columns))]))
    pairs = enumerate(zip(rows, right_rows(head, outputs), strict=True))
    differ = [row for row, (ours, right) in pairs if not is_equal(ours, right)]
    # Rounding decides some: the verification of an export leaves these rows out, too.
    texts_of = {key: column[differ] for key, column in columns.items()}
    if differ:
        undecided = head.expected(head.model, texts_of, head.encode(texts_of))["serving_default"][1]
        assert undecided is not None and undecided.all() and len(differ) < COUNT // 50, rows[differ[0]]


@pytest.mark.slow(keep=["classification of pairs"])
@pytest.mark.parametrize("name", ["classification", "classification of pairs", "regression of pairs"])
def test_explanations_are_those_of_the_export(name):
    head, served_model = served(name)
    columns = {key: column[:60] for key, column in inputs_of(head).items()}
    outputs = ask(head.explanations, served_model, columns)
    given = tuple(columns.values()) if len(columns) > 1 else columns["text"]
    model = model_of(head)
    model.answer_settings = {key: getattr(head, key) for key in SETTINGS if hasattr(head, key)}
    rows = model.explain(given)
    for row, (ours, right) in enumerate(zip(rows, right_rows(head.explanations, outputs), strict=True)):
        assert is_equal(ours, right), {key: column[row] for key, column in columns.items()}
    encoded = head.encode(columns)
    answered = head.answer(head.model(encoded, training=False), encoded)
    np.testing.assert_allclose(outputs["score"], answered["score"], atol=1e-5)
    if "probabilities" in answered:  # Thresholds leave some texts without a label, but none without an explanation.
        most_probable = np.argmax(answered["probabilities"], axis=1)
        assert outputs["label"].tolist() == [head.labels[number].encode() for number in most_probable]


def test_an_embedder_finds_what_its_export_finds():
    (head, served_model), queries = served("search"), texts()
    outputs = ask(head, served_model, {"text": queries})
    model, passages = model_of(head), list(toy_saved.PASSAGES)
    vectors = model.encode(passages)
    rows = model.search(queries, passages, top_k=head.top_k, vectors=vectors)
    assert len(rows) == COUNT
    undecided = probes.undecided(model.similarity(queries, vectors), head.top_k)
    for row, right in enumerate(right_rows(head, outputs)):
        np.testing.assert_allclose(rows[row]["scores"], right["scores"], atol=1e-5)
        assert is_equal(rows[row], right) or undecided[row], queries[row]


@pytest.mark.slow(keep=["windows"])
@pytest.mark.parametrize("name, settings", [("", {}), (" in windows", {"long_text": "mean"})], ids=["whole", "windows"])
def test_each_prompt_of_an_embedder_has_a_signature(name, settings):
    """In windows the pooling leaves prompts out."""
    head, served_model = served(f"sentence_embedding{name}")
    traced, model = head.functions(served_model), model_of(head)
    assert sorted(traced) == ["count_tokens", "passage", "query", "serving_default", "token_ids"]
    for name, prompt in {"query": "query", "passage": "passage", "serving_default": None}.items():
        embeddings = traced[name](text=tf.constant(texts()))["embedding"]
        np.testing.assert_allclose(embeddings, model.encode(texts(), prompt, **settings), atol=1e-5)
    described = head.description()["signatures"]
    assert list(described) == ["serving_default", "token_ids", "count_tokens", "query", "passage"]
    assert "behind 'who was '" in described["query"]["inputs"]["text"]


def test_a_prompt_cannot_have_the_name_of_another_signature():
    head = toy_saved.SentenceEmbedding(toy_saved.embedder(prompts={"token_ids": "a "}), toy_saved.assets())
    with pytest.raises(InputError, match="A prompt is named 'token_ids', as a signature is"):
        head.description()
