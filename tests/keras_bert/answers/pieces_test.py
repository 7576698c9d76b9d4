"""A model runs on a piece of many rows after the other, and answers as for each row alone."""

import numpy as np
import pytest
import tensorflow as tf
import toy_heads
import toy_saved
from toy_heads import backbone, shaken

from export.graph.model_copies import rebuild_for_serving
from export.verification import verify
from keras_bert.answers import pieces

LENGTHS = np.array([5, 20, 1, 9, 3, 20, 7])


@pytest.fixture(name="served", scope="module")
def _served():
    return rebuild_for_serving(shaken(backbone(num_layers=1)))


def rows(count: int = len(LENGTHS)) -> dict[str, tf.Tensor]:
    """Rows of different lengths, with two columns that none of them fills."""
    mask = np.arange(LENGTHS.max() + 2) < LENGTHS[:count, np.newaxis]
    ids = np.random.default_rng(0).integers(1, 20, mask.shape) * mask
    columns = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": mask, "number": np.arange(count)[:, None]}
    return {name: tf.constant(values, tf.int32) for name, values in columns.items()}


def answer(outputs, encoded) -> dict[str, tf.Tensor]:
    """Has answers of each kind: a vector, one number a token, and strings."""
    return {
        "pooled": outputs["pooled_output"],
        "tokens": outputs["sequence_output"][:, :, 0],
        "names": tf.strings.as_string(encoded["number"]),
    }


def run(served, encoded) -> dict[str, tf.Tensor]:
    return pieces.in_pieces(served, encoded, answer)


@pytest.mark.parametrize("most", [1, 3000, 1 << 23], ids=["a row each", "some rows each", "all at once"])
def test_pieces_answer_as_the_whole(served, monkeypatch, most):
    """Eagerly, in tf.data, and for no rows."""
    monkeypatch.setattr(pieces, "MOST_NUMBERS", most)
    encoded = rows()
    right = answer(served(encoded, training=False), encoded)
    in_data = next(iter(tf.data.Dataset.from_tensors(encoded).map(lambda columns: run(served, columns))))
    for outputs in (run(served, encoded), in_data):
        assert set(outputs) == set(right)
        assert outputs["names"].numpy().tolist() == right["names"].numpy().tolist()
        for name in ("pooled", "tokens"):
            np.testing.assert_allclose(outputs[name], right[name], atol=1e-5)
    nothing = {name: value.shape for name, value in run(served, {k: v[:0] for k, v in encoded.items()}).items()}
    assert nothing == {"pooled": (0, 16), "tokens": (0, 22), "names": (0, 1)}


def test_rows_of_similar_length_share_a_piece(served, monkeypatch):
    sizes = []

    def noted(outputs, encoded):
        sizes.append(tf.py_function(lambda mask: seen.append(mask.shape[0]) or 0, [encoded["padding_mask"]], tf.int32))
        with tf.control_dependencies(sizes[-1:]):
            return {"pooled": tf.identity(outputs["pooled_output"])}

    seen = []
    # 20 tokens: 20 x max(20 x 2 heads, 32 units) numbers. With padding, a row has 22 x 16 states.
    monkeypatch.setattr(pieces, "MOST_NUMBERS", 1700)
    pieces.in_pieces(served, rows(), noted)
    assert seen == [2, 4, 1]


@pytest.mark.slow(keep=["question_answering", "fill_mask", "multiple_choice", "embeddings"])
@pytest.mark.parametrize("name", toy_saved.ALL_HEADS)
def test_every_head_answers_in_pieces_as_for_one_row_at_a_time(name, monkeypatch):
    """One row is a piece; so the same graph answers by a loop, and without."""
    monkeypatch.setattr(toy_heads, "NUM_LAYERS", 1)
    monkeypatch.setattr(pieces, "MOST_NUMBERS", 1)
    head = toy_saved.ALL_HEADS[name]()
    functions = head.functions(rebuild_for_serving(head.model))
    texts = {column: values[:6] for column, values in head.probe_texts().items()}
    for signature, inputs in head.requests(texts, head.encode(texts)).items():
        function, count = functions[signature], len(next(iter(inputs.values())))
        tensors = {column: as_tensor(values) for column, values in inputs.items()}
        together = function(**tensors)
        alone = [function(**{key: value[row : row + 1] for key, value in tensors.items()}) for row in range(count)]
        for key, values in together.items():
            for output, right in zip(values.numpy(), (outputs[key].numpy()[0] for outputs in alone), strict=True):
                output = output[: len(right)] if np.ndim(right) else output  # Filled up to the longest row.
                if values.dtype.is_floating:
                    np.testing.assert_allclose(output, right, atol=1e-5, err_msg=key)
                else:
                    np.testing.assert_array_equal(output, right, err_msg=key)


def as_tensor(values: np.ndarray) -> tf.Tensor:
    return tf.constant(values, tf.string if values.dtype == object else None)


def test_a_graph_with_pieces_is_loaded_in_a_fresh_process(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MOST_NUMBERS", 1)
    monkeypatch.setattr(toy_heads, "NUM_LAYERS", 1)
    head = toy_saved.ALL_HEADS["embeddings without pooler"]()
    directory = toy_saved.save_graph(head, str(tmp_path))
    report = verify.verify(directory, head.probes(head.model), verify.stored_weight_bytes(directory))
    assert report.largest_difference < 1e-5
    library = verify.read_meta_graph(directory).graph_def.library.function
    nodes = [node for function in library for node in function.node_def]
    loops = [node.attr["parallel_iterations"].i for node in nodes if node.name == "pieces"]
    assert loops and set(loops) == {1}  # Two pieces at once would take twice the memory.
