"""Every head that is made of texts: its directory alone, moved, answers in each signature as the Keras model does."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
import toy_heads
from serving_rules import rule_breaches
from toy_saved import ALL_HEADS

from export import saved_model
from export.verification import verify

# One of each class but for classifiers, which saved_model_test.py asks.
HEADS = ["regression of pairs", "multiple_choice", "fill_mask", "embeddings"]
TEN_MEGABYTES = 10 * 2**20


@pytest.fixture(scope="module", name="exported")
def _exported(saved):
    """Name -> (head, directory, probes)."""

    def exported(name):
        return saved(name).head, saved(name).directory, saved(name).probes

    return exported


@pytest.fixture(scope="module", name="asked")
def _asked(exported):
    """Asks a signature of a head's directory, loaded into this process."""
    loaded = {}

    def ask(name, signature, **columns):
        directory = exported(name)[1]
        if directory not in loaded:
            loaded[directory] = tf.saved_model.load(directory)
        function = loaded[directory].signatures[signature]
        specs = function.structured_input_signature[1]
        tensors = {key: tf.constant(column, specs[key].dtype) for key, column in columns.items()}
        return {key: value.numpy() for key, value in function(**tensors).items()}

    return ask


def weight_bytes(directory: str) -> int:
    return verify.stored_weight_bytes(directory)


@pytest.mark.slow  # A classifier: saved_model_test.py.
@pytest.mark.parametrize("name", HEADS)
def test_a_moved_directory_answers_alike_in_a_fresh_process(exported, name):
    """And its graph has no op or function that TensorFlow Serving refuses."""
    _, directory, probes = exported(name)
    report = verify.verify(directory, probes, weight_bytes(directory))
    assert report.largest_difference <= 1e-5
    assert report.num_probes == 3 * len(report.signatures)


@pytest.mark.slow  # A classifier's: saved_model_test.py.
@pytest.mark.parametrize("name", toy_heads.HEADS)
def test_another_models_answers_are_told_apart(exported, asked, name, monkeypatch):
    head, directory, _ = exported(name)
    monkeypatch.setattr(
        verify, "fresh_answers", lambda _, probes: [asked(name, probe.signature, **probe.inputs) for probe in probes]
    )
    other = toy_heads.shaken(saved_model.rebuild(head.model), seed=9)
    with pytest.raises(verify.VerificationError, match="differ"):
        verify.verify(directory, head.probes(other), weight_bytes(directory))


@pytest.mark.slow(keep=HEADS)
@pytest.mark.parametrize("name", toy_heads.HEADS)
def test_each_signature_is_asked_nothing_one_and_many(exported, asked, name):
    head, _, probes = exported(name)
    sizes = {}
    for probe in probes:
        sizes.setdefault(probe.signature, []).append(len(next(iter(probe.inputs.values()))))
    assert all(len(asked_sizes) == 3 and {0, 1} < set(asked_sizes) for asked_sizes in sizes.values())
    warmup = head.warmup()
    assert sorted(signature for signature, _ in warmup) == sorted(sizes)
    for signature, columns in warmup:
        assert {len(value) for value in asked(name, signature, **columns).values()} == {1}


@pytest.mark.slow(keep=HEADS)
@pytest.mark.parametrize("name", toy_heads.HEADS)
def test_a_description_tells_of_the_graph(exported, asked, name):
    head, directory, _ = exported(name)
    description = json.loads(json.dumps(head.description()))
    definitions = verify.read_meta_graph(directory).signature_def
    names = {
        signature: {"inputs": set(definition.inputs), "outputs": set(definition.outputs)}
        for signature, definition in definitions.items()
        if not signature.startswith("__")
    }
    described = {
        signature: {kind: set(of_signature[kind]) for kind in ("inputs", "outputs")}
        for signature, of_signature in description["signatures"].items()
    }
    assert described == names
    # Without a value for each output that is filled up to the longest row, a server could not take batches apart.
    tensors = definitions["serving_default"].outputs.items()
    filled_up = {name for name, info in tensors if any(dim.size == -1 for dim in info.tensor_shape.dim[1:])}
    padding = description["signatures"]["serving_default"]["padding"]
    assert filled_up == set(padding.get("values", [])) and (not filled_up or padding["count"] in dict(tensors))
    assert description["task"] == head.task == name.split()[0]
    assert description["sequence_length"] == head.preprocessor.sequence_length
    rows = [row if isinstance(row, dict) else {"text": row} for row in description["example"]["instances"]]
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    for value in asked(name, "serving_default", **columns).values():
        assert len(value) == len(rows)


@pytest.mark.slow(keep=[*HEADS, "classification", "sentence_embedding"])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_signatures_follow_tensorflow_servings_rules(saved, name):
    assert rule_breaches(verify.read_meta_graph(saved(name).directory).signature_def) == []


@pytest.mark.parametrize("name", ["regression of pairs", "embeddings"])
def test_a_batch_answers_as_its_texts_do_one_by_one(exported, asked, name):
    columns = next(probe.inputs for probe in exported(name)[2] if probe.signature == "serving_default")
    together = asked(name, "serving_default", **columns)
    for row in range(len(columns["text"])):
        alone = asked(name, "serving_default", **{key: column[row : row + 1] for key, column in columns.items()})
        for key, value in alone.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value[0], together[key][row], atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_of_ten_megabytes_only_the_beginning_counts(asked, name):
    answers = []
    for size in (TEN_MEGABYTES, 10_000):
        text = b"the [MASK] cat " * (size // 15)
        columns = {"text": [text, b"a mat"]}
        if name == "regression of pairs":
            columns["text_pair"] = [b"mat", text]
        if name == "multiple_choice":
            columns["choices"] = [[b"a", b"mat", text], [text, b"the", b"cat"]]
        answers.append(asked(name, "serving_default", **columns))
    for key, value in answers[0].items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, answers[1][key], atol=1e-6)
        elif key != "choice_text":
            np.testing.assert_array_equal(value, answers[1][key])


def test_what_no_signature_uses_is_not_stored(exported):
    """The next-sentence head of the pre-training model."""
    head, directory, _ = exported("fill_mask")
    used = [weight for weight in head.model.weights if not weight.path.startswith("next_sentence")]
    assert len(used) == len(head.model.weights) - 2
    assert weight_bytes(directory) == 4 * sum(int(np.prod(weight.shape)) for weight in used)


@pytest.mark.slow(keep=["fill_mask"])
@pytest.mark.parametrize("name", HEADS)
def test_a_mixed_precision_model_is_served_in_float32(name, monkeypatch):
    monkeypatch.setattr(toy_heads, "backbone", functools.partial(toy_heads.backbone, dtype="mixed_bfloat16"))
    model = toy_heads.HEADS[name]().model
    assert "bfloat16" in {layer.compute_dtype for layer in model._flatten_layers()}
    served = saved_model.rebuild(model, layout="unpadded")
    assert {layer.compute_dtype for layer in served._flatten_layers()} == {"float32"}


def test_regression_answers_with_the_score_alone(exported, asked):
    head = exported("regression of pairs")[0]
    pair = (["the cat sat", ""], ["a mat", "on the mat"])
    right = head.model(head.preprocessor(tuple(tf.constant(texts) for texts in pair)), training=False).numpy()
    assert right.shape == (2, 1)
    answer = asked("regression of pairs", "serving_default", text=pair[0], text_pair=pair[1])
    assert list(answer) == ["score"]
    np.testing.assert_allclose(answer["score"], right[:, 0], atol=1e-5)
    features = [{"text": first, "text_pair": second} for first, second in zip(*pair, strict=True)]
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
                    for key, text in row.items()
                }
            )
        ).SerializeToString()
        for row in features
    ]
    regressed = asked("regression of pairs", "regress", inputs=examples)
    assert list(regressed) == ["outputs"]
    np.testing.assert_allclose(regressed["outputs"], right[:, 0], atol=1e-5)


# === Token ids ===


def _ids(*shape, length=4):
    ids = np.full([*shape, length], 7, np.int32)
    return {"token_ids": ids, "segment_ids": ids * 0, "lengths": np.full(shape, length, np.int32)}


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("regression of pairs", {"token_ids": [[-1, 7, 7, 7]]}, "`token_ids` must be from 0 to"),
        ("embeddings", {"lengths": [5]}, "`lengths` must be from 1 to the length"),
        ("embeddings", _ids(1, length=49), "`token_ids` must be 1 to 48 long"),
        ("fill_mask", {"mask_positions": [[4]]}, "`mask_positions` must have a row for each"),
        ("fill_mask", {"mask_positions": [[-2]]}, "`mask_positions` must have a row for each"),
        ("fill_mask", {"mask_positions": [[1], [1]]}, "`mask_positions` must have a row for each"),
        ("fill_mask", {"lengths": [2], "mask_positions": [[2]]}, "`mask_positions` must have a row for each"),
        ("multiple_choice", {"segment_ids": np.full([1, 3, 4], 2)}, "`segment_ids` must be from 0 to 1"),
        ("multiple_choice", {"lengths": [[4, 4, 0]]}, "`lengths` must be from 1 to"),
        ("multiple_choice", {"lengths": [[4, 4, 4], [4, 4, 4]]}, "`lengths` must fit the shape of `token_ids`"),
    ],
)
def test_ids_that_no_embedding_has_are_refused(asked, name, wrong, message):
    columns = _ids(1, 3) if name == "multiple_choice" else _ids(1)
    if name == "fill_mask":
        columns["mask_positions"] = [[1]]
    asked(name, "token_ids", **columns)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        asked(name, "token_ids", **{**columns, **wrong})
