"""A loaded version: models that only a session loads, values of every type, shapes that the graph judges."""

import numpy as np
import pytest
import tensorflow as tf
import toy_server
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import predict_pb2

from export.server import grpc_messages
from export.server.monitoring import Metrics
from export.server.servable import Servable, ServedModel
from export.server.serving_error import ServingError


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
    with toy_server.running(str(base), name="types") as server:
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
def test_a_type_that_json_lacks_is_unimplemented(server, signature, dtype):
    status, answer = _ask(server, {"instances": [[1, 2]], "signature_name": signature})
    assert (status, dtype in answer["error"]) == (501, True)


def test_the_graph_judges_shapes(server):
    # Three columns where two are declared: the graph does not mind, and neither does TensorFlow Serving.
    assert _ask(server, {"instances": [[1, 2, 3]], "signature_name": "add"}) == (200, {"predictions": [3.0]})
    status, answer = _ask(server, {"instances": [1.0], "signature_name": "add"})
    assert status == 400
    assert "Input 'numbers': expected shape (None, 2). Received: (1,)." in answer["error"]


def test_a_closed_model_answers_no_more(server):
    with server.manager.use("types") as servable:
        directory = servable.model.directory
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
    servable = Servable(ServedModel(str(tmp_path), "types", 1), Metrics())
    request = predict_pb2.PredictRequest(model_spec={"name": "types", "signature_name": "add"})
    assert list(grpc_messages.predict(servable, request, None).outputs["sum"].float_val) == [7.0]
    request.inputs["numbers"].CopyFrom(tf.make_tensor_proto([[1.0, 1.0]]))
    assert list(grpc_messages.predict(servable, request, None).outputs["sum"].float_val) == [2.0]
