"""A loaded version: models that only a session loads, values of every type, shapes that the graph judges."""

import ast
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_server
from bfloat16 import needs_bfloat16
from repository import ROOT
from tensorflow.core.protobuf import config_pb2, saved_model_pb2
from tensorflow.python.saved_model import loader_impl
from tensorflow_serving.apis import predict_pb2
from toy_heads import NUM_LAYERS, assets, backbone, shaken

from export import saved_model, single_texts
from export.base_path import DESCRIPTION_FILE
from export.heads.classification import Classification
from export.rebuilding import rebuild_for_serving
from export.server import grpc_messages, servable
from export.server.batching_parameters import BatchingParameters
from export.server.monitoring import Metrics
from export.server.servable import Servable, ServedModel
from export.server.serving_error import ServingError
from keras_bert.files import write_json
from tasks.glue.model import build_classifier


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
    status, answer = _ask(server, {"instances": [1.0], "signature_name": "add"})
    assert status == 400
    assert "Input 'numbers': expected shape (None, 2). Received: (1,)." in answer["error"]


def test_a_closed_model_answers_no_more(server):
    with server.manager.use("types") as loaded:
        directory = loaded.model.directory
    model = ServedModel(directory, "types", 1)
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
    model = Servable(ServedModel(str(tmp_path), "types", 1), Metrics())
    request = predict_pb2.PredictRequest(model_spec={"name": "types", "signature_name": "add"})
    assert list(grpc_messages.predict(model, request, None).outputs["sum"].float_val) == [7.0]
    request.inputs["numbers"].CopyFrom(tf.make_tensor_proto([[1.0, 1.0]]))
    assert list(grpc_messages.predict(model, request, None).outputs["sum"].float_val) == [2.0]


# === Rows ===


def test_more_rows_than_allowed_are_refused_at_once_over_both_protocols(server):
    begun = time.monotonic()
    status, answer = _ask(server, {"instances": [[1, 2]] * 200_000, "signature_name": "add"})
    assert (status, time.monotonic() - begun < 5) == (400, True)
    assert answer["error"] == "The request has 200000 rows; the limit is 1000 (--max_request_rows)."
    assert _ask(server, {"inputs": [[1, 2]] * 1001, "signature_name": "add"})[0] == 400
    assert _ask(server, {"inputs": [[1, 2]] * 1000, "signature_name": "add"})[0] == 200
    with server.manager.use("types") as loaded:
        request = predict_pb2.PredictRequest(model_spec={"name": "types", "signature_name": "add"})
        request.inputs["numbers"].CopyFrom(tf.make_tensor_proto(np.ones([1001, 2], np.float32)))
        with pytest.raises(ServingError, match="1001 rows; the limit is 1000"):
            grpc_messages.predict(loaded, request, None)


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


def _texts(count: int) -> dict[str, np.ndarray]:
    return {"text": np.array([b" ".join([b"w"] * (number % 90 // 10)) for number in range(count)], object)}


def test_slices_of_many_rows_answer_as_one_run_does(tmp_path):
    _save_words(str(tmp_path))
    model = ServedModel(str(tmp_path), "words", 1)
    whole = model.run("serving_default", _texts(500))
    sliced = model.run("serving_default", _texts(500), time.monotonic() + 60)
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
        begun = time.monotonic()
        status, answer = toy_server.ask(server, "POST", "/v1/models/words:predict", texts)
    assert (status, time.monotonic() - begun < 5) == (504, True) and "deadline" in answer["error"]
    assert runs in ([1], [1, 4])


def test_a_slice_holds_what_takes_a_second(tmp_path, monkeypatch):
    """Runs are stubs, at so many bytes a second by a clock of the test's own."""
    _save_words(str(tmp_path))
    model, runs, clock = ServedModel(str(tmp_path), "words", 1), [], types.SimpleNamespace(now=0.0, speed=10_000)
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
        assert model.run("serving_default", {"text": texts}, 1e12)["upper"].tolist() == texts.tolist()
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
def test_heads_describe_how_their_answers_are_filled_up(saved, name, monkeypatch):
    head = saved(name)
    path = os.path.join(head.directory, DESCRIPTION_FILE)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_json(path, head.head.description())
    model = ServedModel(head.directory, name, 1)
    texts = np.array([b"the [MASK] ran", b"", b"a b c [MASK] d [MASK]", b"who"] * 10, object)
    alone = [model.run("serving_default", {"text": texts[place : place + 1]}) for place in range(4)]
    together = model.run("serving_default", {"text": texts[:4]})
    for place, right in enumerate(alone):
        rows = {key: array[place : place + 1] for key, array in together.items()}
        _equal(model.own_columns("serving_default", rows), right)
    monkeypatch.setattr(servable, "_FIRST_ROWS", 3)
    sliced = model.run("serving_default", {"text": texts}, time.monotonic() + 60)
    _equal(sliced, model.run("serving_default", {"text": texts}))


def _equal(answer, right, tolerance: float = 1e-6) -> None:
    assert set(answer) == set(right)
    for key, array in right.items():
        assert answer[key].shape == array.shape and answer[key].dtype == array.dtype
        if array.dtype == np.float32:
            np.testing.assert_allclose(answer[key], array, atol=tolerance)
        else:
            assert answer[key].tolist() == array.tolist()


# === Sessions for single texts ===


@pytest.fixture(name="described")
def _described(saved, tmp_path):
    """Makes a copy of a head's export with its description, as bert-export leaves it."""

    def copy(name: str) -> str:
        head, directory = saved(name), str(tmp_path / "version")
        shutil.copytree(head.directory, directory)
        os.makedirs(os.path.join(directory, "assets.extra"), exist_ok=True)
        write_json(os.path.join(directory, DESCRIPTION_FILE), head.head.description())
        return directory

    return copy


_TEXTS = ["the cat sat", "who ran " * 40, "", "\u4e2d\u6587 \u00c9", "a"]


def _requests(model: ServedModel) -> list[dict[str, np.ndarray]]:
    return [
        {key: np.array([text.encode()], object) for key in model.signatures["serving_default"].inputs}
        for text in _TEXTS
    ]


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("classification", "question_answering") else pytest.param(name, marks=pytest.mark.slow)
        for name in ("classification", "question_answering", "token_classification", "fill_mask", "embeddings")
    ],
)
def test_all_sessions_answer_alike(described, name):
    model = ServedModel(described(name), name, 1)
    right = [model.run("serving_default", request) for request in _requests(model)]
    others = single_texts.open_more(model._session, model.directory, ["serve"])
    assert set(others) == {"halves", "one"}
    model._sessions |= others
    used = _spied(model)
    for other in others:
        model._choices = single_texts.Choices({1024: {other: 0.5}})
        for request, answer in zip(_requests(model), right, strict=True):
            _equal(model.run("serving_default", request), answer, 1e-5)
    assert used == [other for other in others for _ in right]
    model.close()


def _spied(model: ServedModel) -> list[str]:
    """Returns a list to which each request from now on adds its session."""
    used, make = [], ServedModel._callable.__get__(model)
    model._callable = lambda *way: used.append(way[1]) or make(*way)
    return used


def test_a_request_gets_the_session_for_its_size(described, monkeypatch):
    model = ServedModel(described("classification"), "m", 1)
    measured = {
        64: {"all": 1.0, "halves": 0.5, "one": 0.4},
        128: {"all": 1.0, "halves": 0.6, "one": 1.2},
        256: {"all": 1.0, "halves": 0.6, "one": 2.4},
    }
    monkeypatch.setattr(single_texts, "measure", lambda *_: measured)
    monkeypatch.setattr(single_texts, "_cores", lambda: [0, 1, 2, 3])
    model.tune()
    used = _spied(model)

    def ask(*texts):
        model.run("serving_default", {"text": np.array([text.encode() for text in texts], object)})

    texts = ["cat " * 16, "cat " * 17, "cat " * 32, "cat " * 33, "cat " * 64, "cat " * 65]
    for text in texts:
        ask(text)
    ask("a", "b")
    assert used == ["one", "halves", "halves", "halves", "halves", "all", "all"]
    for number, third in (1, "all"), (2, "one"), (9, "one"):  # So many other requests.
        model._num_running = number
        used.clear()
        for text in texts:
            ask(text)
        assert used == ["one", "one", "one", third, third, "all"]
    model.close()


def test_all_sessions_hold_the_same_weights(described):
    model = ServedModel(described("classification"), "m", 1)
    text = np.array([b"the cat sat"], object)
    before = model.run("serving_default", {"text": text})["probabilities"]
    held = []
    align = single_texts._aligned

    def aligned(array):
        held.append(align(array))
        return held[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single_texts, "_aligned", aligned)
        measured = {64: {"all": 1.0, "halves": 0.5, "one": 0.7}}
        patch.setattr(single_texts, "measure", lambda *_: measured)
        model.tune()
    assert held and all(array.ctypes.data % 64 == 0 for array in held)
    for array in held:  # What all read; none has a copy.
        array[...] = 0
    assert set(model._sessions) == {"all", "halves", "one"}
    for threads in model._sessions:
        after = model._callable("serving_default", threads, 0)(text)
        flat = [value for value in after if getattr(value, "shape", ()) == before.shape]
        np.testing.assert_allclose(flat[0], np.full_like(before, 1 / before.size))
    model.close()


def test_sessions_that_are_not_faster_are_closed(described, monkeypatch):
    model = ServedModel(described("classification"), "m", 1)
    monkeypatch.setattr(single_texts, "measure", lambda *_: {64: dict.fromkeys(["all", "halves"], 1.0) | {"one": 1.4}})
    monkeypatch.setattr(single_texts, "_cores", lambda: [0])  # So that one thread is no better beside others.
    model.tune()
    assert list(model._sessions) == ["all"]
    assert model.run("serving_default", {"text": np.array([b"the cat sat"], object)})["label"].shape == (1,)
    model.close()


def test_lengths_are_measured_until_no_session_is_worth_it(monkeypatch):
    monkeypatch.setattr(single_texts, "_timed", lambda way, arrays: way(*arrays)[0])
    seen = set()

    def timed(*shares, number=7.0):
        def run(first, second):
            size = len(first.item()) + len(second.item())
            seen.add((first.item()[:6], size))
            share = shares[(64, 128, 256).index(next(length for length in (64, 128, 256) if size <= length))]
            return 2 * share, np.array([b"label"], object), np.array([number, -number], np.float32)

        return run

    ways = {"all": timed(1, 1, 1), "halves": timed(0.6, 0.9, 0.97), "one": timed(0.8, 0.7, 0.96, number=7.01)}
    measured = single_texts.measure({"a": "caf\u00e9", "b": "xyz"}, ways | {"wrong": timed(0.1, 0.1, 0.1, number=8.0)})
    assert {name: [shares[name] for shares in measured.values()] for name in ways} == {
        "all": [1, 1, 1],
        "halves": [0.6, 0.9, 0.97],
        "one": [0.8, 0.7, 0.96],
    }
    assert all(set(shares) == set(ways) for shares in measured.values())  # The wrong one is left out.
    assert {text for text, _ in seen} == {"caf\u00e9 ".encode()} and len(seen) == 3


def test_one_thread_is_best_where_so_many_texts_at_once_take_less_time():
    shares = {64: {"all": 1.0, "halves": 0.6, "one": 0.8}, 128: {"all": 1.0, "halves": 0.97, "one": 2.1}}
    choices = single_texts.Choices(shares, num_cores=4)
    sessions = {size: [choices.session(size, number) for number in (1, 2, 3, 4, 99)] for size in (1, 64, 65, 128, 129)}
    short, longer = ["halves", "one", "one", "one", "one"], ["all", "all", "one", "one", "one"]
    assert sessions == {1: short, 64: short, 65: longer, 128: longer, 129: ["all"] * 5}
    assert choices.used == {"all", "halves", "one"}
    assert single_texts.Choices(shares, num_cores=2).session(128, 99) == "all"
    assert single_texts.Choices({64: {"all": 1.0}}, num_cores=8).used == {"all"}


def _meta_graph(directory: str):
    return loader_impl.SavedModelLoader(directory).get_meta_graph_def_from_tags(["serve"])


def test_halves_hold_again_only_kernels_that_must_be_cut(described):
    directory = described("classification")
    model, meta_graph = ServedModel(directory, "m", 1), _meta_graph(directory)
    weights = single_texts._weights(model._session)
    kept = single_texts._halve(meta_graph, weights)
    again = sum(array.nbytes for array in kept if not any(np.shares_memory(array, its) for its in weights.values()))
    cut = [its for name, its in weights.items() if "query_key_value" in name or "intermediate_dense" in name]
    small = 2 * 4 * 64 * NUM_LAYERS  # Halves of biases that do not begin where TensorFlow needs it.
    assert 0 < again <= sum(its.nbytes for its in cut) + small
    assert all(array.flags.c_contiguous and array.ctypes.data % 64 == 0 for array in kept)
    (function,) = (its for its in meta_graph.graph_def.library.function if "_in_halves" in its.signature.name)
    ops = [node.op for node in function.node_def]
    assert ops.count("StagePeek") == 1 and "ReadVariableOp" not in ops and "Transpose" not in ops
    tables = [argument.name for argument in function.signature.input_arg if argument.type == tf.resource]
    assert len(tables) == 3
    model.close()


@needs_bfloat16
def test_bfloat16_has_all_sessions(tmp_path):
    head = Classification(shaken(build_classifier(backbone(), 2)), assets(), ["no", "yes"])
    directory = str(tmp_path / "1")
    saved_model.write_graph(head, rebuild_for_serving(head.model, bfloat16=True), directory)
    model = ServedModel(directory, "m", 1)
    model._sessions |= single_texts.open_more(model._session, directory, ["serve"])
    assert set(model._sessions) == {"all", "halves", "one"}
    texts = np.array([b"the cat sat"], object)
    answers = [model._callable("serving_default", name, 0)(texts) for name in model._sessions]
    assert all(single_texts._agree(answer, answers[0]) for answer in answers)
    model.close()


def test_a_graph_without_halves_has_no_such_session(described):
    directory = described("classification")
    meta_graph = _meta_graph(directory)
    library = meta_graph.graph_def.library.function
    for place in reversed(range(len(library))):
        if "_in_halves" in library[place].signature.name:
            del library[place]
    before = meta_graph.SerializeToString(deterministic=True)
    assert single_texts._halve(meta_graph, {}) == []
    assert meta_graph.SerializeToString(deterministic=True) == before


def test_threads_of_a_session_keep_to_a_core_each():
    code = """
import os
os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
import tensorflow as tf
from export import saved_model, single_texts
before = single_texts._other_threads()
single_texts.open_session(tf.Graph())
print(sorted(tuple(os.sched_getaffinity(thread)) for thread in single_texts._other_threads() - before))
few = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
before = single_texts._other_threads()
single_texts.open_session(tf.Graph(), few)
print([os.sched_getaffinity(thread) == os.sched_getaffinity(0) for thread in single_texts._other_threads() - before])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    cores = sorted(os.sched_getaffinity(0))
    pinned = ast.literal_eval(lines[0])
    own = [core for core, *others in pinned if not others]
    assert sorted(set(own)) == cores and len(own) >= len(cores)
    assert len(cores) == 1 or False not in ast.literal_eval(lines[1])


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("classification", config_pb2.ConfigProto(intra_op_parallelism_threads=1)),
        ("classification", config_pb2.ConfigProto(inter_op_parallelism_threads=2)),
        ("multiple_choice", None),
    ],
)
def test_where_other_sessions_are_not_tried(described, name, config, monkeypatch):
    monkeypatch.setattr(single_texts, "open_more", lambda *_: pytest.fail("more sessions"))
    model = ServedModel(described(name), name, 1, config=config)
    model.tune()
    model.close()
