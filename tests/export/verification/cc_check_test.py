"""The C++ program on LoadSavedModel: it gives TensorFlow's answers in an empty environment, and fails in one line."""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from toy_classifier import LABELS, assets
from toy_heads import backbone, shaken
from toy_saved import save_graph

from export.heads.classification import Classification
from export.verification import cc_check, runner, verify
from export.verification.runner import ProcessError
from export.verification.verify import Probe
from keras_bert.errors import InputError
from keras_bert.models import BertTextClassifier

pytestmark = pytest.mark.skipif(cc_check.find_compiler() is None, reason="g++ on Linux is not installed")


@pytest.fixture(scope="module")
def of_text(saved) -> str:
    return saved("classification").directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> str:
    """A model for tests that any will do for: the program loads it in 0.3 s, and that of texts in 2 s."""
    module = tf.Module()
    module.weights = tf.Variable([[0.25, 0.5]])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def answer(text):
        lengths = tf.cast(tf.strings.length(text), tf.float32)
        return {"label": tf.strings.upper(text), "score": lengths, "probabilities": lengths[:, None] * module.weights}

    path = str(tmp_path_factory.mktemp("small") / "1")
    tf.saved_model.save(module, path, signatures=answer)
    return path


@pytest.fixture(scope="module")
def answers_to(directory):
    """Makes probes of `serving_default`, with what TensorFlow in this process answers."""
    return _asking(directory)


def _asking(directory):
    loaded = tf.saved_model.load(directory)

    def probe(column: np.ndarray) -> Probe:
        answer = loaded.signatures["serving_default"](text=tf.constant(column, tf.string))
        return Probe("serving_default", {"text": column}, {name: value.numpy() for name, value in answer.items()})

    return lambda *columns: [probe(column) for column in columns]


@pytest.fixture(scope="module")
def program() -> str:
    return cc_check.build_program(cc_check.require_compiler())


def test_its_answers_are_tensorflows(of_text, program):
    texts = ["the cat sat", "", "a long text " * 500, "\u4e2d\u6587 \u00c9\u03a3", "the cat\x00 on"]
    columns = [np.array([text.encode() for text in texts] + [b"\xff\xfe mat"], object), np.array([], object)]
    probes = _asking(of_text)(*columns)
    for answer, probe in zip(verify.cc_answers(program, of_text, probes), probes, strict=True):
        assert set(answer) == {"label", "score", "probabilities"}
        np.testing.assert_array_equal(answer["label"], probe.outputs["label"])
        np.testing.assert_allclose(answer["probabilities"], probe.outputs["probabilities"], atol=1e-6)
        assert answer["probabilities"].dtype == np.float32


@pytest.fixture
def quick(monkeypatch):
    """No fresh process."""
    monkeypatch.setattr(verify, "fresh_answers", lambda _, probes: [probe.outputs for probe in probes])


def test_verify_reports_it(directory, answers_to, quick, monkeypatch):
    weight_bytes = verify.stored_weight_bytes(directory)
    probes = answers_to(np.array([b"the cat"], object))
    report = verify.verify(directory, probes, weight_bytes, with_cc="on")
    assert report.cc_difference <= 1e-6
    assert any("C++ program (LoadSavedModel, no Python, empty environment): the" in line for line in report.lines())
    assert not any("not run" in line for line in report.lines())
    wrong = probes[0].outputs | {"score": np.float32([0.2])}
    monkeypatch.setattr(verify, "cc_answers", lambda *_: [wrong])
    with pytest.raises(verify.VerificationError, match="C.. program, probe 0 .serving_default., score: differs by"):
        verify.verify(directory, probes, weight_bytes, with_cc="on")


def _program() -> str:
    return cc_check.build_program(cc_check.find_compiler())


def test_where_there_is_no_compiler(directory, answers_to, quick, monkeypatch):
    probes = answers_to(np.array([b"the cat"], object))
    weight_bytes = verify.stored_weight_bytes(directory)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    report = verify.verify(directory, probes, weight_bytes, with_cc="auto")
    assert report.cc_difference is None
    assert any("no Python" in line and "not run (no g++" in line for line in report.lines())
    with pytest.raises(InputError, match="needs Linux and g"):
        verify.verify(directory, probes, weight_bytes, with_cc="on")
    with pytest.raises(ValueError, match="`with_cc` must be one of auto, on, off. Received: with_cc='yes'"):
        verify.verify(directory, probes, weight_bytes, with_cc="yes")


def test_what_does_not_compile(directory, answers_to, quick, monkeypatch, tmp_path):
    source = tmp_path / "broken.cc"
    source.write_text("int main() { return nothing; }\n")
    monkeypatch.setattr(cc_check, "SOURCE", str(source))
    probes = answers_to(np.array([b"the cat"], object))
    weight_bytes = verify.stored_weight_bytes(directory)
    report = verify.verify(directory, probes, weight_bytes, with_cc="auto")
    assert "it cannot be compiled: g++ ended with status 1" in report.cc_not_run
    assert "nothing" in report.cc_not_run
    with pytest.raises(verify.VerificationError, match="g.. ended with status 1: .*nothing"):
        verify.verify(directory, probes, weight_bytes, with_cc="on")


# === The program ===


def test_it_is_compiled_once(program, monkeypatch):
    commands = []
    run = runner.run
    monkeypatch.setattr(runner, "run", lambda command: commands.append(command) or run(command))
    assert _program() == program
    assert [command[1:] for command in commands] == [["--version"]]
    assert os.path.dirname(program) == cc_check.cache_directory()


def test_a_copy_of_the_source_is_the_same_program(program, monkeypatch, tmp_path):
    monkeypatch.setattr(cc_check, "SOURCE", shutil.copy(cc_check.SOURCE, tmp_path))
    assert _program() == program


@pytest.mark.slow
def test_another_source_is_another_program(program, monkeypatch, tmp_path):
    source = tmp_path / "other.cc"
    source.write_text("int main() {}\n")
    monkeypatch.setattr(cc_check, "SOURCE", str(source))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other = _program()
    assert os.path.dirname(other) == str(tmp_path / "cache" / "keras-bert-zoo")
    assert os.path.basename(other) != os.path.basename(program)
    assert os.listdir(os.path.dirname(other)) == [os.path.basename(other)]  # nothing half-made beside it


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ProcessError, match="cannot be created.*XDG_CACHE_HOME names it"):
        _program()


def test_the_environment_is_empty(tmp_path, monkeypatch):
    """What runs instead of the program writes down its environment: the shell itself adds PWD, SHLVL and _."""
    script = tmp_path / "script"
    script.write_text('#!/bin/sh\n: > "$3"\nenv | cut -d= -f1 > ' + str(tmp_path / "names") + "\n")
    script.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    assert verify.cc_answers(str(script), "directory", []) == []
    assert set((tmp_path / "names").read_text().split()) <= {"PWD", "SHLVL", "_", "OLDPWD"}


@pytest.mark.slow(keep=["signature", "no input"])
@pytest.mark.parametrize(
    ("signature", "inputs", "message"),
    [
        ("other", {}, "there is no signature other"),
        ("serving_default", {"texts": np.array([b""])}, "serving_default: there is no input texts"),
        ("serving_default", {}, "serving_default: .*placeholder"),
        ("serving_default", {"text": np.array([1.0], np.float32)}, "serving_default: .*float"),
    ],
    ids=["signature", "input", "no input", "type"],
)
def test_a_wrong_request_fails_in_one_line(directory, program, signature, inputs, message):
    with pytest.raises(ProcessError, match=f"(?s)ended with status 1: .*{message}"):
        verify.cc_answers(program, directory, [Probe(signature, inputs, {})])


def test_it_answers_in_turns(directory, answers_to, program, tmp_path):
    probes = answers_to(*(np.array(texts, object) for texts in ([b"the cat sat"], [b"a mat", b""])))
    command = [program, directory, "-", "-", *cc_check.op_libraries()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for number, probe in enumerate(probes):
            files = [str(tmp_path / f"{name}_{number}") for name in ("requests", "answers")]
            runner.write_requests(files[0], [probe])
            process.stdin.write("\n".join(files) + "\n")
            process.stdin.flush()
            assert 0 < float(process.stdout.readline()) < 60
            (answer,) = runner.read_answers(files[1])
            np.testing.assert_allclose(answer["probabilities"], probe.outputs["probabilities"], atol=1e-6)
        process.stdin.close()
        assert process.wait() == 0


def test_a_directory_that_is_no_model(program, tmp_path):
    with pytest.raises(ProcessError, match="Could not find SavedModel"):
        verify.cc_answers(program, str(tmp_path), [])


def test_a_damaged_file_of_requests(directory, program, monkeypatch):
    request = graph_pb2.GraphDef()
    request.node.add(op="serving_default").attr["text"].tensor.SetInParent()  # a tensor without a type
    for content, message in (
        (b"\x0a\x05", "requests: (Can't parse|Read less bytes)"),
        (request.SerializeToString(), "text: not a tensor"),
    ):
        monkeypatch.setattr(
            runner, "write_requests", lambda path, _, content=content: pathlib.Path(path).write_bytes(content)
        )
        with pytest.raises(ProcessError, match=message):
            verify.cc_answers(program, directory, [])


def test_an_op_that_the_process_does_not_have_is_found(of_text, program, monkeypatch):
    monkeypatch.setattr(cc_check, "op_libraries", lambda: [])
    probe = Probe("serving_default", {"text": np.array([b"the cat"], object)}, {})
    with pytest.raises(ProcessError, match="FastBertNormalize"):
        verify.cc_answers(program, of_text, [probe])


# === Memory ===


def _largest_size(process: subprocess.Popen) -> int:
    """The most bytes that a process has held since `clear_refs` was written, or since its start (proc(5))."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def test_many_sequences_take_the_memory_of_some(program, tmp_path):
    """200 sequences of 384 tokens have 944 MB of attention scores in each layer of 8 heads, of which several live."""
    sizes = {"num_heads": 8, "max_sequence_length": 384}
    head = Classification(BertTextClassifier(shaken(backbone(**sizes)), len(LABELS), compile=False), assets(), LABELS)
    directory = save_graph(head, str(tmp_path / "saved"), only="token_ids")
    ids = np.random.default_rng(0).integers(5, 10, [200, 384], np.int32)
    request = {"token_ids": ids, "segment_ids": 0 * ids, "lengths": np.full(len(ids), 384, np.int32)}
    command = [program, directory, "-", "-", *cc_check.op_libraries()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        largest, answers = [], []
        for count in (1, 200):
            files = [str(tmp_path / f"{name}_{count}") for name in ("requests", "answers")]
            rows = {name: values[-count:] for name, values in request.items()}
            runner.write_requests(files[0], [Probe("token_ids", rows, {})])
            process.stdin.write("\n".join(files) + "\n")
            process.stdin.flush()
            process.stdout.readline()
            largest.append(_largest_size(process))
            answers += runner.read_answers(files[1])
        process.stdin.close()
        assert process.wait() == 0
    assert largest[1] - largest[0] < 400e6
    np.testing.assert_allclose(answers[1]["probabilities"][-1:], answers[0]["probabilities"], atol=1e-5)
