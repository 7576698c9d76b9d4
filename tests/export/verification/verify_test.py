"""verify: each trap of serving, built on purpose, is found; the good model passes."""

import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from serving_rules import rule_breaches

from export.verification import probes, runner, verify
from export.verification.runner import ProcessError
from export.verification.verify import Probe

TEXT = tf.TensorSpec([None], tf.string, name="text")
NUMBER = tf.TensorSpec([None], tf.float32, name="x")


def _save(directory, function, specs, name: str = "serving_default", module=None) -> str:
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    tf.saved_model.save(module or tf.Module(), str(directory), signatures={name: traced})
    return str(directory)


def _graph_findings(directory) -> list[str]:
    return verify.graph_findings(verify.read_meta_graph(directory))


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> str:
    module = tf.Module()
    module.weights = [tf.Variable([2.0, 3.0])]
    return _save(tmp_path_factory.mktemp("good"), lambda x: {"y": x * module.weights[0][0]}, [NUMBER], module=module)


def test_a_good_model_passes_with_a_report(good):
    x = np.array([1.0, 2.5], np.float32)
    report = verify.verify(good, [Probe("serving_default", {"x": x}, {"y": 2 * x})], weight_bytes=8)
    assert report.largest_difference == 0.0
    assert (report.num_probes, report.signatures, report.weight_bytes) == (1, ["serving_default"], 8)
    assert report.directory_bytes >= sum(os.path.getsize(os.path.join(good, name)) for name in ("saved_model.pb",))
    assert any("tensorflow-text, as TensorFlow Serving 2.18 and later link them" in line for line in report.lines())
    assert any("none needs XLA" in line for line in report.lines())


def test_every_wrong_answer_is_found(good, tmp_path):
    x = {"x": np.array([1.0, 2.5], np.float32)}
    probes = [
        Probe("serving_default", x, {"y": np.array([2.0, 5.1], np.float32)}),
        Probe("serving_default", x, {"y": np.array([2.0, np.nan], np.float32)}),
        Probe("serving_default", x, {"y": np.array([2.0], np.float32)}),
        Probe("serving_default", x, {"z": np.array([2.0, 5.0], np.float32)}),
        Probe("serving_default", x, {"y": np.array([2.0, 5.0], np.float32)}),
    ]
    with pytest.raises(verify.VerificationError) as caught:
        verify.verify(good, probes, weight_bytes=8)
    message = str(caught.value)
    for part in (
        "probe 0 (serving_default), y: differs by 1.96e-02, allowed 1e-05",
        "probe 1 (serving_default), y: differs by nan",
        "probe 2 (serving_default), y: has the shape (2,), expected (1,)",
        "probe 3 (serving_default) gives ['y'], expected ['z']",
    ):
        assert part in message
    assert "probe 4" not in message


def test_differences_of_large_numbers_have_the_rounding_errors_of_those(good):
    close = Probe("serving_default", {"x": np.array([2.5], np.float32)}, {"y": np.array([5.00016], np.float32)})
    with pytest.raises(verify.VerificationError, match="differs by"):
        verify.verify(good, [close], weight_bytes=8)
    assert verify.verify(good, [close._replace(scale=20.0)], weight_bytes=8).largest_difference < 1e-5


def test_strings_are_compared_except_where_rounding_decides(tmp_path):
    directory = _save(tmp_path, lambda text: {"upper": tf.strings.upper(text)}, [TEXT])
    texts = np.array([b"a", b"b"], object)
    wrong = Probe("serving_default", {"text": texts}, {"upper": np.array([b"A", b"C"], object)})
    undecided = wrong._replace(undecided=np.array([False, True]))
    with pytest.raises(
        verify.VerificationError, match="upper: 1 of 2 rows differ, the first where b'B' stands"
    ) as caught:
        verify.verify(directory, [wrong, undecided], weight_bytes=0)
    assert "probe 1" not in str(caught.value)


def test_rounding_goes_with_the_largest_number_but_not_with_a_masked_one():
    logits, rounded = np.array([-27.0, -6.35, -1e9], np.float32), np.array([-27.00002, -6.35004, -1e9], np.float32)
    probe = Probe("s", {}, {})
    difference, why = verify._difference(probe, logits, rounded)
    assert 1e-6 < difference < 2e-6 and not why
    _, why = verify._difference(probe, logits, np.array([-27.0, -6.3504, -1e9], np.float32))
    assert "differs by 6.30e-05" in why
    _, why = verify._difference(probe, logits, np.array([-27.0, -6.35, -1e8], np.float32))
    assert "differs by 9.00e-01" in why


def test_rounding_goes_with_the_largest_number_also_where_all_are_small():
    components, rounded = np.array([0.05, -0.1, 0.0], np.float32), np.array([0.05, -0.096, 0.0], np.float32)
    probe = Probe("s", {}, {}, scale=0.0, tolerance=0.05)
    difference, why = verify._difference(probe, components, rounded)
    assert 0.039 < difference < 0.041 and not why
    probe = probe._replace(tolerance=0.01)
    assert "differs by 4.00e-02" in verify._difference(probe, components, rounded)[1]
    assert verify._difference(probe, np.zeros(3, np.float32), np.zeros(3, np.float32))[1] == ""


def test_a_process_that_fails_is_quoted(good):
    with pytest.raises(verify.VerificationError, match="the fresh process failed: .*no_such_signature"):
        verify.fresh_answers(good, [Probe("no_such_signature", {}, {})])


@pytest.mark.parametrize("room", ["keras_bert", "tasks", "export"])
def test_the_fresh_process_cannot_import_the_project(room):
    """Not even where the project is installed beside TensorFlow, so that its folder is on the path."""
    folders = [os.getcwd(), os.path.dirname(verify.child.__file__)]
    code = f"import sys; sys.path[:0] = {folders}; import child; {{}}import {room}"
    run = [
        subprocess.run([sys.executable, "-I", "-c", code.format(block)], capture_output=True, text=True)
        for block in ("", "child.block_imports(); ")
    ]
    assert run[0].returncode == 0, run[0].stderr
    assert run[1].returncode == 1
    assert f"ModuleNotFoundError: import of {room} halted" in run[1].stderr


@pytest.mark.slow
def test_a_fresh_process_finds_libraries_wherever_this_one_found_them(good, tmp_path, monkeypatch):
    """`-S` takes away this installation's packages, as `-I` does those of PYTHONPATH and of `pip install --user`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    folders = verify.library_folders()
    assert str(tmp_path) in folders
    assert os.getcwd() not in folders
    program = [sys.executable, "-I", "-S", verify.child.__file__]
    monkeypatch.setattr(runner, "subprocess", subprocess)
    with pytest.raises(ProcessError, match="No module named 'tensorflow'"):
        runner.ask(program, good, [])
    x = np.array([1.0, 2.5], np.float32)
    (answer,) = runner.ask(program, good, [Probe("serving_default", {"x": x}, {})], folders)
    assert answer["y"].tolist() == [2.0, 5.0]


@pytest.mark.fresh_process
def test_the_fresh_process_knows_nothing_of_this_one(good, tmp_path, monkeypatch):
    """Neither PYTHONPATH nor the working directory nor the folders it gets let it find the project's sources."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "sys.exit('|'.join([*sys.path, *sys.argv[4:], os.getcwd(), *os.environ.get('PYTHONPATH', '').split(':')]))\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.setattr(verify.child, "__file__", str(script))
    with pytest.raises(verify.VerificationError) as ended:
        verify.fresh_answers(good, [])
    path = str(ended.value).partition("ended with status 1: ")[2].split("|")
    assert len(path) > 2
    assert os.getcwd() not in path


# === The traps ===


def test_round_robin_trim_is_found(tmp_path):
    tokenizer = tf_text.WhitespaceTokenizer()
    directory = _save(
        tmp_path,
        lambda text: {"first": tf_text.RoundRobinTrimmer(4).trim([tokenizer.tokenize(text)] * 2)[0].to_tensor()},
        [TEXT],
    )
    assert any("RoundRobinTrim" in finding for finding in _graph_findings(directory))


def test_a_call_back_into_python_is_found(tmp_path):
    directory = _save(tmp_path, lambda x: {"y": tf.reshape(tf.numpy_function(np.abs, [x], tf.float32), [-1])}, [NUMBER])
    assert any("calls back into Python" in finding for finding in _graph_findings(directory))


def test_a_function_that_must_be_compiled_is_found(tmp_path):
    compiled = tf.function(lambda x: tf.tanh(x) * 2, jit_compile=True)
    directory = _save(tmp_path, lambda x: {"y": compiled(x)}, [NUMBER])
    assert any("must be compiled by XLA" in finding for finding in _graph_findings(directory))


def test_weights_stored_twice_are_found(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", lambda x: {"y": model(x)}, [tf.TensorSpec([None, 3], tf.float32, name="x")])
    archive.write_out(str(tmp_path), verbose=False)
    with pytest.raises(verify.VerificationError, match="64 bytes of weights are stored, 32 expected"):
        verify.verify(str(tmp_path), [], weight_bytes=4 * model.count_params())


def test_weights_inside_the_graph_as_constants_are_found(tmp_path):
    weights = np.random.default_rng(0).normal(size=30_000).astype(np.float32)
    directory = _save(tmp_path, lambda x: {"y": x * tf.constant(weights)[0]}, [NUMBER])
    with pytest.raises(verify.VerificationError) as caught:
        verify.verify(directory, [], weight_bytes=4)
    assert "0 bytes of weights are stored, 4 expected" in str(caught.value)
    assert re.search(r"holds 1200\d\d bytes of floating-point constants", str(caught.value))


# === Comparing ===


def _compared(expected, answer, undecided=None) -> str:
    probe = Probe("s", {}, {"y": np.array(expected)}, None if undecided is None else np.array(undecided))
    try:
        return str(verify._compare("served", "", [probe], [{"y": np.array(answer)}]))
    except verify.VerificationError as error:
        return str(error).partition("(s), ")[2]


@pytest.mark.parametrize(
    ("expected", "answer", "undecided", "message"),
    [
        (np.float32([100.0]), np.float32([100.0009]), None, "9.0"),  # of large numbers the relative difference
        (np.float32([100.0]), np.float32([100.002]), None, "y: differs by 2.00e-05, allowed 1e-05"),
        (np.float32([0.1]), np.float32([0.10002]), None, "y: differs by 2.00e-05"),
        (np.float32([0.1]), np.float32([np.inf]), None, "y: differs by inf"),
        (np.int32([3, -1]), np.int32([3, 4]), None, "y: 1 of 2 rows differ, the first where np.int32(4) stands for"),
        (np.int32([[3, 3], [1, 1]]), np.int32([[3, 3], [1, 2]]), [False, True], "0.0"),
        (np.int32([[3, 3], [1, 1]]), np.int32([[3, 0], [1, 2]]), [False, True], "y: 1 of 1 rows differ"),
        (np.int32([3]), np.int64([3]), None, "y: is int64, expected int32"),
        (np.array([b"a"], object), np.array([b"b"], object), [True], "0.0"),
        (np.float32([[2, 1], [2, 1]]), np.float32([[2, 1], [1, 2]]), [False, True], "0.0"),
        (np.float32([[2, 1], [2, 1]]), np.float32([[1, 2], [2, 1]]), [False, True], "y: differs by 5.00e-01"),
        (np.float32([[2, 1]]), np.float32([[1, 1]]), [True], "y: differs by 5.00e-01"),
        (np.zeros([0, 2], np.int32), np.zeros([0, 2], np.int32), None, "0.0"),
        (np.zeros([0, 2], np.float32), np.zeros([0, 3], np.float32), None, "y: has the shape (0, 3), expected (0, 2)"),
    ],
)
def test_how_answers_are_compared(expected, answer, undecided, message):
    assert _compared(expected, answer, undecided).startswith(message)


def test_rounding_is_sought_among_the_numbers_of_each_position():
    """Not among the positions: a tagger's probabilities have the shape (windows, positions, labels)."""
    numbers = np.array([[[0.5, 0.5, 0.0], [0.9, 0.1, 0.1], [0.5, 0.3, 0.2]]])
    assert probes.undecided(numbers).tolist() == [[True, False, False]]
    assert probes.undecided(numbers, 2).tolist() == [[True, True, False]]


def test_a_large_version_gets_more_time(tmp_path, monkeypatch):
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(50 * 10**6)
    limits = []
    monkeypatch.setattr(runner, "run", lambda _command, _environment, seconds: limits.append(seconds))
    with pytest.raises(FileNotFoundError):  # There are no answers.
        runner.ask(["program"], str(tmp_path), [])
    assert limits == [650]


# === Rules of signatures ===


def _breaches(directory) -> list[str]:
    return rule_breaches(verify.read_meta_graph(directory).signature_def)


@pytest.mark.parametrize(
    ("function", "specs", "name", "message"),
    [
        (lambda x: {"y": tf.cast(x, tf.bfloat16)}, [NUMBER], "serving_default", "output 'y' is bfloat16"),
        (lambda x: {"y": tf.cast(x, tf.float16)}, [NUMBER], "serving_default", "output 'y' is float16"),
        (lambda x: {"y": tf.reduce_sum(x)}, [NUMBER], "serving_default", "output 'y' does not have the batch as"),
        (lambda x: {"y": tf.stack([x[0], x[0]])}, [NUMBER], "serving_default", "output 'y' does not have the batch as"),
        (
            lambda x: {"y": tf.fill([tf.size(x)], x)},
            [tf.TensorSpec([], tf.float32, name="x")],
            "serving_default",
            "input 'x' does not have the batch as",
        ),
        (lambda x: {"y": x}, [NUMBER], "other", "there is no signature 'serving_default'"),
        (lambda x: {"classes": x, "scores": x}, [NUMBER], "classify", "takes the input 'inputs' alone, not ['x']"),
        (
            lambda inputs: {"classes": inputs, "scores": inputs, "label": inputs},
            [tf.TensorSpec([None], tf.string, name="inputs")],
            "classify",
            "gives 'classes' and 'scores' alone, not ['classes', 'label', 'scores']",
        ),
    ],
)
def test_breaches_of_tensorflow_servings_rules(tmp_path, function, specs, name, message):
    directory = _save(tmp_path, function, specs, name)
    assert any(message in breach for breach in _breaches(directory))


def test_a_good_signature_breaches_nothing(good):
    assert _breaches(good) == []
