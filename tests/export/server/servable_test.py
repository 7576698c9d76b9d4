"""A loaded version: models that only a session loads, values of every type, shapes that the graph judges."""

import concurrent.futures
import json
import os
import time
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_server
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import predict_pb2

from export.base_path import DESCRIPTION_FILE
from export.server import grpc_messages, servable
from export.server.config_files import BatchingParameters
from export.server.monitoring import Metrics
from export.server.servable import Servable, ServedModel, Signature
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError, unlimited
from keras_bert.errors import InputError
from keras_bert.files import write_json

TENSORFLOW = ServerSettings(runtime="tensorflow")


def _save_counter(directory: str) -> None:
    """Writes what TensorFlow 1 wrote; its counter is a reference variable, which `tf.saved_model.load` refuses."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        counter = v1.get_variable("counter", initializer=0.0, use_resource=False)
        step = v1.placeholder(tf.float32, [], name="step")
        count = v1.assign_add(counter, step)
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(directory)
        signature = v1.saved_model.predict_signature_def({"step": step}, {"count": count})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()


def _save_types(directory: str) -> None:
    """Writes a model with outputs of many types, one without dimensions, and an input that may be left out."""
    text, numbers = tf.TensorSpec([None], tf.string, "text"), tf.TensorSpec([None, 2], tf.float32, "numbers")
    functions = {
        "join": tf.function(lambda text: {"joined": tf.strings.reduce_join(text)}, [text]),
        "count": tf.function(lambda text: {"count": tf.size(text)}, [text]),
        "turn": tf.function(lambda numbers: {"turned": tf.complex(numbers[:, 0], numbers[:, 1])}, [numbers]),
        "halve": tf.function(lambda numbers: {"halves": tf.cast(numbers / 2, tf.float16)}, [numbers]),
        "add": tf.function(lambda numbers: {"sum": numbers[:, 0] + numbers[:, 1]}, [numbers]),
    }
    tf.saved_model.save(tf.Module(), directory, signatures=functions)


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory):
    base = tmp_path_factory.mktemp("models") / "types"
    _save_types(str(base / "1"))
    with toy_server.running(str(base), name="types", max_request_megabytes=16) as server:
        yield server


def _ask(server, body: dict):
    return toy_server.ask(server, "POST", "/v1/models/types:predict", body)


def test_a_model_of_tensorflow_1_with_reference_variables_is_served(tmp_path):
    _save_counter(str(tmp_path / "counter" / "1"))
    with toy_server.running(str(tmp_path / "counter"), name="counter") as server:
        answers = [
            toy_server.ask(server, "POST", "/v1/models/counter:predict", {"inputs": step})[1] for step in (1, 2.5)
        ]
    assert answers == [{"outputs": 1.0}, {"outputs": 3.5}]


def test_a_version_with_cut_variables_says_what_is_wrong(tmp_path):
    module = tf.Module()
    module.counter = tf.Variable(0.0)
    module.count = tf.function(lambda text: {"count": tf.fill(tf.shape(text), module.counter)})
    specs = tf.TensorSpec([None], tf.string, "text")
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.count.get_concrete_function(specs))
    os.truncate(tmp_path / "1" / "variables" / "variables.data-00000-of-00001", 2)
    with pytest.raises(InputError, match=r"/1: cannot be loaded as a SavedModel \(Read less bytes than requested\)"):
        ServedModel(str(tmp_path / "1"), "counter", 1, TENSORFLOW)


def test_scalars_are_written(server):
    assert _ask(server, {"inputs": ["a", "b"], "signature_name": "join"}) == (200, {"outputs": "ab"})
    assert _ask(server, {"inputs": ["a", "b"], "signature_name": "count"}) == (200, {"outputs": 2})


@pytest.mark.parametrize(("signature", "dtype"), [("turn", "complex64"), ("halve", "float16")])
def test_a_type_that_json_lacks_is_refused(server, signature, dtype):
    status, answer = _ask(server, {"instances": [[1, 2]], "signature_name": signature})
    assert (status, dtype in answer["error"]) == (400, True)


def test_the_graph_judges_shapes(server):
    # Three columns where two are declared: the graph does not mind, and neither does TensorFlow Serving.
    assert _ask(server, {"instances": [[1, 2, 3]], "signature_name": "add"}) == (200, {"predictions": [3.0]})
    answer = _ask(server, {"instances": [1.0], "signature_name": "add"})
    assert answer == (400, {"error": "Input 'numbers': expected shape (None, 2). Received: (1,)."})


def test_columns_of_different_lengths_are_named():
    specs = {name: tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair")}
    error = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [3] vs. [2]")
    arrays = {name: np.array([b"w"] * count) for name, count in zip(specs, (3, 2), strict=True)}
    refusal = servable._refusal(error, Signature(specs, {}), arrays)
    assert str(refusal) == "Expected as many rows in each input. Received: {'text': 3, 'text_pair': 2}"
    specs["text_pair"] = tf.TensorSpec([2], tf.string)  # Its length is its own.
    assert str(servable._refusal(error, Signature(specs, {}), arrays)) == "Incompatible shapes: [3] vs. [2]"


def test_a_closed_model_answers_no_more(server):
    with server.manager.use("types") as loaded:
        directory = loaded.model.directory
    model = ServedModel(directory, "types", 1, TENSORFLOW)
    two = {"numbers": np.ones([1, 2], np.float32)}
    assert model.run("add", two)["sum"].tolist() == [2.0]
    model.close()
    with pytest.raises(ServingError, match="closed"):
        model.run("add", two)


def test_an_input_with_a_default_may_be_left_out(tmp_path):
    _save_types(str(tmp_path))
    file = tmp_path / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signature = saved.meta_graphs[0].signature_def["add"]
    signature.defaults["numbers"].CopyFrom(tf.make_tensor_proto([[3.0, 4.0]]))
    file.write_bytes(saved.SerializeToString())
    model = Servable(ServedModel(str(tmp_path), "types", 1, TENSORFLOW), Metrics(), None, 1000)
    request = predict_pb2.PredictRequest(model_spec={"name": "types", "signature_name": "add"})
    assert list(grpc_messages.predict(model, request, unlimited).outputs["sum"].float_val) == [7.0]
    request.inputs["numbers"].CopyFrom(tf.make_tensor_proto([[1.0, 1.0]]))
    assert list(grpc_messages.predict(model, request, unlimited).outputs["sum"].float_val) == [2.0]


# === Rows ===


def test_more_rows_than_allowed_are_refused_at_once_over_both_protocols(server):
    begun = time.monotonic()
    status, answer = _ask(server, {"instances": [[1, 2]] * 200_000, "signature_name": "add"})
    assert (status, time.monotonic() - begun < 30) == (400, True)
    assert answer["error"] == "The request has 200000 rows; the limit is 1000 (--max_request_rows)."
    assert _ask(server, {"inputs": [[1, 2]] * 1001, "signature_name": "add"})[0] == 400
    assert _ask(server, {"inputs": [[1, 2]] * 1000, "signature_name": "add"})[0] == 200
    with server.manager.use("types") as loaded:
        request = predict_pb2.PredictRequest(model_spec={"name": "types", "signature_name": "add"})
        request.inputs["numbers"].CopyFrom(tf.make_tensor_proto(np.ones([1001, 2], np.float32)))
        with pytest.raises(ServingError, match="1001 rows; the limit is 1000"):
            grpc_messages.predict(loaded, request, unlimited)


def _save_words(directory: str) -> None:
    """Writes a model that splits texts into words, and describes how it fills rows up."""

    def split(text):
        words = tf.strings.split(text)
        table = words.to_tensor()
        table = tf.pad(table, [[0, 0], [0, tf.cast(tf.shape(table)[1] == 0, tf.int32)]], constant_values="")
        return {"words": table, "num_words": words.row_lengths(), "upper": tf.strings.upper(text)}

    function = tf.function(split, input_signature=[tf.TensorSpec([None], tf.string, "text")])
    tf.saved_model.save(tf.Module(), directory, signatures={"serving_default": function})
    padding = {"count": "num_words", "values": {"words": ""}}
    os.makedirs(os.path.join(directory, "assets.extra"), exist_ok=True)
    with open(os.path.join(directory, "assets.extra", "model.json"), "w", encoding="utf-8") as file:
        json.dump({"signatures": {"serving_default": {"padding": padding}}}, file)


def test_rows_that_are_nested_deeper_than_an_export_declares_are_refused(tmp_path):
    function = tf.function(lambda text: {"upper": tf.strings.upper(text)}, [tf.TensorSpec([None], tf.string, "text")])
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"), signatures={"serving_default": function})
    write_json(str(tmp_path / "1" / "assets.extra" / "model.json"), {"signatures": {}})
    with toy_server.running(str(tmp_path), name="types") as server:
        for rows in (["a"] * 1001, ["a", "b"]):
            message = f"Input 'text': expected shape (None,). Received: (1, {len(rows)})."
            assert _ask(server, {"instances": [rows]}) == (400, {"error": message})
        assert _ask(server, {"inputs": "a"}) == (400, {"error": "Input 'text': expected shape (None,). Received: ()."})
        assert _ask(server, {"instances": ["a", "b"]}) == (200, {"predictions": ["A", "B"]})


def _texts(count: int) -> dict[str, np.ndarray]:
    return {"text": np.array([b" ".join([b"w"] * (number % 90 // 10)) for number in range(count)], object)}


def test_slices_of_many_rows_answer_as_one_run_does(tmp_path):
    _save_words(str(tmp_path))
    model = ServedModel(str(tmp_path), "words", 1, TENSORFLOW)
    whole = model._run("serving_default", _texts(500))
    sliced = model.run("serving_default", _texts(500))
    assert whole["words"].shape == (500, 8)
    for name, array in whole.items():
        assert array.dtype == sliced[name].dtype and array.tolist() == sliced[name].tolist()


@pytest.mark.parametrize("batching", [None, BatchingParameters(1000)], ids=["alone", "batched"])
def test_a_deadline_ends_a_long_run_between_two_slices(tmp_path, monkeypatch, batching):
    _save_words(str(tmp_path / "1"))
    with toy_server.running(str(tmp_path), name="words", rest_api_timeout_in_ms=500, batching=batching) as server:
        runs, run = [], ServedModel._run

        def run_slowly(model, name, arrays):
            runs.append(len(arrays["text"]))
            time.sleep(0.3)
            return run(model, name, arrays)

        monkeypatch.setattr(ServedModel, "_run", run_slowly)
        texts = {"inputs": [text.decode() for text in _texts(1000)["text"]]}
        status, answer = toy_server.ask(server, "POST", "/v1/models/words:predict", texts)
    assert status == 504 and "deadline" in answer["error"]
    assert runs in ([1], [1, 4])


def test_a_slice_holds_what_takes_a_second(tmp_path, monkeypatch):
    """Runs are stubs, at so many bytes a second by a clock of the test's own."""
    _save_words(str(tmp_path))
    model = ServedModel(str(tmp_path), "words", 1, TENSORFLOW)
    runs, clock = [], types.SimpleNamespace(now=0.0, speed=10_000)
    monkeypatch.setattr(servable, "time", types.SimpleNamespace(monotonic=lambda: clock.now))

    def run(_, arrays):
        runs.append(len(arrays["text"]))
        clock.now += sum(len(text) + 64 for text in arrays["text"]) / clock.speed
        return {
            "num_words": np.zeros(runs[-1], np.int32),
            "words": np.full([runs[-1], 1], b""),
            "upper": arrays["text"],
        }

    def slices(*sizes: int) -> list[int]:
        runs.clear()
        texts = np.array([b"x" * (size - 64) for size in sizes], object)
        assert model.run("serving_default", {"text": texts})["upper"].tolist() == texts.tolist()
        return runs.copy()

    monkeypatch.setattr(model, "_run", run)
    assert slices(*[1000] * 60) == [1, 4, 10, 10, 10, 10, 10, 5]  # Nothing is known before the second run.
    assert slices(*[1000] * 25) == [10, 10, 5]
    assert slices(*[4000] * 5, *[1000] * 5) == [2, 2, 6]
    assert slices(*[20_000] * 3) == [1, 1, 1]  # A second row would take longer.
    clock.speed = 1e9
    assert slices(20_000) == [1]  # A text of which little is read; others may take longer.
    assert slices(*[20_000] * 10) == [1, 4, 5]
    assert slices(*[100] * 1000) == [32, 128, 128, 128, 128, 128, 128, 128, 72]


def test_a_deadline_ends_few_rows_of_long_texts(tmp_path, monkeypatch):
    """Ten rows are fewer than a first slice may have, but each is longer than it."""
    _save_words(str(tmp_path / "1"))
    with toy_server.running(str(tmp_path), name="words", rest_api_timeout_in_ms=500) as server:
        runs, run = [], ServedModel._run

        def run_slowly(model, name, arrays):
            runs.append(len(arrays["text"]))
            time.sleep(0.3)
            return run(model, name, arrays)

        monkeypatch.setattr(ServedModel, "_run", run_slowly)
        status, answer = toy_server.ask(server, "POST", "/v1/models/words:predict", {"inputs": ["w " * 20_000] * 10})
    assert status == 504 and "deadline" in answer["error"]
    assert runs[0] == 1 and len(runs) <= 2


def test_an_answer_does_not_depend_on_its_neighbours_in_a_batch(tmp_path):
    _save_words(str(tmp_path / "words" / "1"))
    parameters = BatchingParameters(batch_timeout_micros=2_000_000, max_batch_size=3)
    with toy_server.running(str(tmp_path / "words"), name="words", batching=parameters) as server:

        def ask(texts):
            return toy_server.ask(server, "POST", "/v1/models/words:predict", {"inputs": texts})[1]["outputs"]["words"]

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(ask, [["a"], [""], ["b c d"]]))
        assert answers == [[["a"]], [[""]], [["b", "c", "d"]]]
        assert toy_server.figure(server, "batching_session:wrapped_run_count") == 1.0


@pytest.mark.parametrize("name", ["fill_mask", "token_classification", "token_regression"])
def test_heads_describe_how_their_answers_are_filled_up(saved, name, monkeypatch, quick_sessions):
    head = saved(name)
    path = os.path.join(head.directory, DESCRIPTION_FILE)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_json(path, head.head.description())
    model = ServedModel(head.directory, name, 1, TENSORFLOW)
    texts = np.array([b"the [MASK] ran", b"", b"a b c [MASK] d [MASK]", b"who"] * 10, object)
    alone = [model.run("serving_default", {"text": texts[place : place + 1]}) for place in range(4)]
    together = model._run("serving_default", {"text": texts[:4]})
    for place, right in enumerate(alone):
        rows = {key: array[place : place + 1] for key, array in together.items()}
        _equal(model.own_columns("serving_default", rows), right)
    monkeypatch.setattr(servable, "_FIRST_ROWS", 3)
    sliced = model.run("serving_default", {"text": texts})
    _equal(sliced, model._run("serving_default", {"text": texts}))


def _equal(answer, right, tolerance: float = 1e-6) -> None:
    assert set(answer) == set(right)
    for key, array in right.items():
        assert answer[key].shape == array.shape and answer[key].dtype == array.dtype
        if array.dtype == np.float32:
            np.testing.assert_allclose(answer[key], array, atol=tolerance)
        else:
            assert answer[key].tolist() == array.tolist()
