"""gRPC by the real client: tensorflow-serving-api's stubs, against a toy model and against hostile bytes."""

import contextlib
import time

import grpc
import half_plus
import numpy as np
import pytest
import tensorflow as tf
import toy_server
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from export.server import grpc_messages
from export.server.grpc_server import GrpcServer
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from export.server.serving_error import unlimited
from keras_bert.errors import InputError


@pytest.fixture(scope="module", name="base_path")
def _base_path(tmp_path_factory):
    base_path = str(tmp_path_factory.mktemp("models") / "half")
    half_plus.save(base_path, 1, 2.0)
    half_plus.save(base_path, 3, 3.0)
    return base_path


@pytest.fixture(scope="module", name="server")
def _server(base_path):
    with toy_server.running(base_path, name="half", port=0, allow_reload_config=True) as running:
        yield running


@pytest.fixture(scope="module", name="channel")
def _channel(server):
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc.port}", options) as channel:
        yield channel


@pytest.fixture(scope="module", name="stub")
def _stub(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="module", name="models")
def _models(channel):
    return model_service_pb2_grpc.ModelServiceStub(channel)


def code_and_message(call, *arguments, **options):
    """How a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=30, **options)
    return caught.value.code().name, caught.value.details()


def examples(request, *values):
    """Adds examples with a feature x."""
    for value in values:
        request.input.example_list.examples.add().features.feature["x"].float_list.value.append(value)
    return request


# === Predict ===


def test_predict(stub):
    response = stub.Predict(half_plus.request([1.0, 2.0, 5.0]), timeout=30)
    assert list(response.outputs) == ["y"]
    assert list(response.outputs["y"].float_val) == [3.5, 4.0, 5.5]  # the typed field, as TensorFlow Serving's
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), np.float32([3.5, 4.0, 5.5]))
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("half", 3, "serving_default")


def test_an_output_filter_chooses_outputs(stub):
    request = half_plus.request([[1, 2]], signature_name="double", key="numbers")
    assert sorted(stub.Predict(request, timeout=30).outputs) == ["doubled", "sum"]
    request.output_filter.append("sum")
    response = stub.Predict(request, timeout=30)
    assert list(response.outputs) == ["sum"] and list(response.outputs["sum"].int_val) == [3]
    request.output_filter.append("sum")
    assert code_and_message(stub.Predict, request)[1].startswith("duplicate output tensor alias")
    request.output_filter[1] = "no"
    assert "output tensor alias not found in signature: no" in code_and_message(stub.Predict, request)[1]


def _predict_request(**changes):
    request = half_plus.request([1.0])
    for name, tensor in changes.pop("inputs", {}).items():
        request.inputs[name].CopyFrom(tensor)
    for name in changes.pop("without", ()):
        del request.inputs[name]
    request.model_spec.MergeFrom(changes.get("spec", predict_pb2.PredictRequest().model_spec))
    return request


def _spec(**fields):
    request = predict_pb2.PredictRequest()
    version = fields.pop("version", None)
    for name, value in fields.items():
        setattr(request.model_spec, name, value)
    if version is not None:
        request.model_spec.version.value = version
    return request.model_spec


TENSOR = tf.make_tensor_proto


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"spec": _spec(name="no")}, "NOT_FOUND", "Servable not found for request: Latest(no)"),
        ({"spec": _spec(version=2)}, "NOT_FOUND", "Servable not found for request: Specific(half, 2)"),
        ({"spec": _spec(version_label="a")}, "INVALID_ARGUMENT", "Unrecognized servable version label: a"),
        ({"spec": _spec(signature_name="no")}, "FAILED_PRECONDITION", 'Serving signature name: "no" not found'),
        ({"without": ["x"]}, "INVALID_ARGUMENT", "Missing but required: {x}"),
        ({"inputs": {"z": TENSOR([1.0])}}, "INVALID_ARGUMENT", "Sent extra: {z}"),
        ({"inputs": {"x": TENSOR(["a"])}}, "INVALID_ARGUMENT", "expected type float32. Received: string"),
    ],
)
def test_predict_errors(stub, changes, code, message):
    failure = code_and_message(stub.Predict, _predict_request(**changes))
    assert failure[0] == code
    assert message in failure[1]


def _tensor(dtype, sizes, **fields):
    tensor = tensor_pb2.TensorProto(dtype=dtype, **fields)
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (_tensor(1, [2**40], float_val=[1.0]), "is too large"),  # a few bytes that claim terabytes
        (_tensor(7, [2**30], string_val=[b"a"]), "is too large"),
        (_tensor(1, [-1], float_val=[1.0]), "expected a known shape"),
        (_tensor(1, [2**62] * 30), "is too large"),
        (_tensor(1, [1] * 40, float_val=[1.0]), "expected a known shape"),
        (_tensor(1, [2], tensor_content=b"\0" * 7), "its values do not"),
        (_tensor(1, [2], float_val=[1.0, 2.0, 3.0]), "its values do not"),
        (_tensor(7, [2], tensor_content=b"ab"), "its values do not"),
        (_tensor(0, [1]), "cannot read type 0"),
        (_tensor(9999, [1]), "cannot read type 9999"),
        (_tensor(20, [1]), "cannot read type 20"),  # a resource
        (_tensor(6, [1], int_val=[300]), "its values do not"),  # int8
        (_tensor(4, [1], int_val=[-1]), "its values do not"),  # uint8
        (_tensor(19, [1], half_val=[70_000]), "its values do not"),  # float16
        (_tensor(1, [0]), None),
        (_tensor(1, [3], float_val=[1.0]), None),  # one value fills the shape, as everywhere in TensorFlow
    ],
)
def test_malformed_tensors(stub, tensor, message):
    request = _predict_request(inputs={"x": tensor})
    if message is None:
        size = tensor.tensor_shape.dim[0].size
        assert list(stub.Predict(request, timeout=30).outputs["y"].float_val) == [3.5] * size
    else:
        code, details = code_and_message(stub.Predict, request)
        assert code == "INVALID_ARGUMENT" and message in details


def test_strings_that_are_left_out_are_empty():
    array = grpc_messages.to_array("x", _tensor(7, [2]))
    assert array.tolist() == [b"", b""]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int8", "uint16", "int32", "int64", "uint64", "bool", "float16"]
)
def test_tensors_of_every_type_come_back(dtype):
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    tensor = grpc_messages.to_tensor(array)
    np.testing.assert_array_equal(tf.make_ndarray(tensor), array)
    assert tensor.dtype == tf.as_dtype(dtype).as_datatype_enum
    assert grpc_messages.to_tensor(np.array([b"\xff"], object)).string_val == [b"\xff"]


# === Classify, Regress, MultiInference ===


def test_classify_and_regress(stub):
    request = examples(classification_pb2.ClassificationRequest(), 1.0, 2.0)
    request.model_spec.name, request.model_spec.signature_name = "half", "classify_x_to_y"
    response = stub.Classify(request, timeout=30)
    classes = [[(entry.label, entry.score) for entry in row.classes] for row in response.result.classifications]
    assert classes == [[("", 3.5)], [("", 4.0)]]
    assert response.model_spec.signature_name == "classify_x_to_y"

    request = examples(regression_pb2.RegressionRequest(), 1.0, 2.0)
    request.model_spec.name, request.model_spec.signature_name = "half", "tensorflow/serving/regress"
    response = stub.Regress(request, timeout=30)
    assert [regression.value for regression in response.result.regressions] == [3.5, 4.0]


def test_a_context_is_shared_by_all_examples(stub):
    request = regression_pb2.RegressionRequest()
    request.model_spec.name, request.model_spec.signature_name = "half", "tensorflow/serving/regress"
    request.input.example_list_with_context.context.features.feature["x"].float_list.value.append(4.0)
    request.input.example_list_with_context.examples.add()
    request.input.example_list_with_context.examples.add().features.feature["x"].float_list.value.append(2.0)
    assert [regression.value for regression in stub.Regress(request, timeout=30).result.regressions] == [5.0, 4.0]


@pytest.mark.parametrize(
    ("signature_name", "values", "message"),
    [
        ("serving_default", [1.0], "Expected a regression signature"),
        ("classify_x_to_y", [1.0], "Expected a regression signature"),
        ("tensorflow/serving/regress", [], "Input is empty."),
    ],
)
def test_regress_errors(stub, signature_name, values, message):
    request = examples(regression_pb2.RegressionRequest(), *values)
    request.model_spec.name, request.model_spec.signature_name = "half", signature_name
    code, details = code_and_message(stub.Regress, request)
    assert code == "INVALID_ARGUMENT" and message in details


def test_several_inferences_of_the_same_examples(stub):
    request = examples(inference_pb2.MultiInferenceRequest(), 1.0)
    for signature_name, kind in (("tensorflow/serving/regress", "regress"), ("classify_x_to_y", "classify")):
        task = request.tasks.add(method_name=f"tensorflow/serving/{kind}")
        task.model_spec.name, task.model_spec.signature_name = "half", signature_name
    results = stub.MultiInference(request, timeout=30).results
    assert results[0].regression_result.regressions[0].value == 3.5
    assert results[1].classification_result.classifications[0].classes[0].score == 3.5
    request.tasks[1].model_spec.name = "other"
    assert "same model name" in code_and_message(stub.MultiInference, request)[1]
    request.tasks[1].CopyFrom(request.tasks[0])
    assert "Duplicate evaluation" in code_and_message(stub.MultiInference, request)[1]
    request.tasks[1].model_spec.signature_name, request.tasks[1].method_name = "double", "tensorflow/serving/predict"
    assert code_and_message(stub.MultiInference, request)[0] == "UNIMPLEMENTED"
    empty = inference_pb2.MultiInferenceRequest()
    assert code_and_message(stub.MultiInference, empty)[0] == "INVALID_ARGUMENT"


# === Metadata, status, configuration ===


def test_metadata(stub):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "half"
    response = stub.GetModelMetadata(request, timeout=30)
    assert response.model_spec.version.value == 3
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert signatures.signature_def["serving_default"].inputs["x"].dtype == tf.float32.as_datatype_enum
    request.metadata_field[0] = "no"
    assert "Metadata field no is not supported" in code_and_message(stub.GetModelMetadata, request)[1]
    request.ClearField("metadata_field")
    assert "at least one metadata_field" in code_and_message(stub.GetModelMetadata, request)[1]


def test_status(models):
    request = get_model_status_pb2.GetModelStatusRequest()
    assert code_and_message(models.GetModelStatus, request) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    request.model_spec.name = "half"
    (status,) = models.GetModelStatus(request, timeout=30).model_version_status
    assert (status.version, status.state, status.status.error_code) == (3, status.AVAILABLE, 0)
    request.model_spec.version.value = 7
    assert code_and_message(models.GetModelStatus, request) == ("NOT_FOUND", "Could not find version 7 of model half")


def test_a_configuration_can_be_reloaded(models, stub, base_path):
    def reload(**policy):
        request = model_management_pb2.ReloadConfigRequest()
        config = request.config.model_config_list.config.add(
            name="half", base_path=base_path, model_platform="tensorflow"
        )
        config.model_version_policy.specific.versions.extend(policy.get("versions", []))
        if "latest" in policy:
            config.model_version_policy.latest.num_versions = policy["latest"]
        for label, version in policy.get("labels", {}).items():
            config.version_labels[label] = version
        return request

    for labels in ({}, {"stable": 1, "canary": 3}):
        both = reload(versions=[1, 3], labels=labels)
        assert models.HandleReloadConfigRequest(both, timeout=60).status.error_code == 0
    answers = {}
    for label in ("stable", "canary"):
        request = _predict_request(spec=_spec(version_label=label))
        answers[label] = stub.Predict(request, timeout=30).outputs["y"].float_val[0]
    assert answers == {"stable": 2.5, "canary": 3.5}
    wrong = reload(versions=[1, 3], labels={"stable": 9})
    code, message = code_and_message(models.HandleReloadConfigRequest, wrong)
    assert code == "FAILED_PRECONDITION" and "not currently available for inference" in message
    assert (
        stub.Predict(_predict_request(spec=_spec(version_label="stable")), timeout=30).outputs["y"].float_val[0] == 2.5
    )
    assert models.HandleReloadConfigRequest(reload(latest=1), timeout=60).status.error_code == 0
    assert code_and_message(stub.Predict, _predict_request(spec=_spec(version=1)))[0] == "NOT_FOUND"


def test_a_configuration_is_not_reloaded_unless_allowed(base_path):
    with toy_server.running(base_path, name="half", port=0) as closed:
        with grpc.insecure_channel(f"127.0.0.1:{closed.grpc.port}") as channel:
            stub = model_service_pb2_grpc.ModelServiceStub(channel)
            request = model_management_pb2.ReloadConfigRequest()
            assert code_and_message(stub.HandleReloadConfigRequest, request)[0] == "PERMISSION_DENIED"


# === Limits and failures ===


@pytest.mark.parametrize("method", ["Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata"])
@pytest.mark.parametrize("body", [b"\xff" * 50, b"", b"\x0a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_request(channel, method, body, caplog, capfd):
    call = channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
    assert code_and_message(call, body)[0] == "INVALID_ARGUMENT"
    assert caplog.text == "" and "Traceback" not in capfd.readouterr().err


def test_a_message_over_the_limit_is_refused(stub):
    assert code_and_message(stub.Predict, half_plus.request(np.zeros(300_000)))[0] == "RESOURCE_EXHAUSTED"
    assert stub.Predict(half_plus.request([1.0]), timeout=30)


def test_a_deadline_that_passes(stub, monkeypatch):
    monkeypatch.setattr(ServedModel, "run", lambda *_: time.sleep(1) or {"y": np.float32([0])})
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(half_plus.request([1.0]), timeout=0.2)
    assert caught.value.code().name == "DEADLINE_EXCEEDED"


@contextlib.contextmanager
def _all_turns_taken(server):
    with server.manager.use("half") as loaded, contextlib.ExitStack() as taken:
        turns = loaded.model._turns
        for _ in range(turns._short._value):
            taken.enter_context(turns.turn(1, unlimited))
        yield


def test_a_request_without_a_deadline_waits_for_its_turn(server, stub):
    with _all_turns_taken(server):
        waiting = stub.Predict.future(half_plus.request([1.0]))
        toy_server.until(lambda: server.rest.admission.in_progress == 1)
        time.sleep(0.1)
    assert list(waiting.result(30).outputs["y"].float_val) == [3.5]


def test_a_cancelled_request_is_not_computed(server, stub, monkeypatch):
    computed, run = [], ServedModel._run
    monkeypatch.setattr(ServedModel, "_run", lambda *arguments: computed.append(arguments) or run(*arguments))
    with _all_turns_taken(server):
        waiting = stub.Predict.future(half_plus.request([1.0]))
        toy_server.until(lambda: server.rest.admission.in_progress == 1)
        time.sleep(0.1)
        waiting.cancel()
        time.sleep(0.1)
    toy_server.until(lambda: server.rest.admission.in_progress == 0)
    assert computed == []
    assert toy_server.figure(server, "request_count", model_name="half", status="CANCELLED") == 1.0


def test_an_unexpected_failure_says_nothing_of_itself(stub, monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError("a secret\nFORGED")

    monkeypatch.setattr(ServedModel, "run", fail)
    code, message = code_and_message(stub.Predict, half_plus.request([1.0]))
    assert (code, message) == ("INTERNAL", "Internal error; the server's log has the details.")
    assert "ZeroDivisionError: 'a secret\\nFORGED'" in caplog.text


def test_a_taken_port_is_a_clear_error(server):
    rest, settings = server.rest, ServerSettings(port=server.grpc.port)
    with pytest.raises(
        InputError, match=f"Cannot listen on 127.0.0.1:{server.grpc.port}. Choose another --host or --port"
    ):
        GrpcServer(server.manager, rest.routes.metrics, rest.admission, settings)


def test_a_server_ends_although_nothing_stopped_it_before(server):
    """As when REST cannot start: an AttributeError of `wait` hid the reason."""
    other = GrpcServer(server.manager, server.rest.routes.metrics, server.rest.admission, ServerSettings(port=0))
    other.start()
    other.wait()
    with grpc.insecure_channel(f"127.0.0.1:{other.port}") as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(0.5)
