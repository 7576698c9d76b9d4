"""SavedModels and model directories written by an earlier commit still load, and answer as they did then.

An archive in `golden/` holds, for each head, what a commit's commands wrote from a toy preset: `HEAD/model` (of a
training), `HEAD/served` (of bert-export), and in `answers.json` a request and what `serving_default` answered.
tests/support/golden_archive.py writes it.

`make test-versions` exports those models with other versions of TensorFlow (tests/support/version_exports.py), into the
folders of EXPORTS_OF_VERSIONS, which are tested alike.
"""

import functools
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from toy_server import ask
from version_exports import ARCHIVES, heads, read_cases, unpack

from export.graph.model_copies import rebuild_for_serving
from export.server.assembly import running_server
from export.server.config_files import ModelSettings
from export.server.server_settings import ServerSettings
from export.verification import cc_check, verify

OTHERS = sorted(pathlib.Path(os.environ.get("EXPORTS_OF_VERSIONS", "/nowhere")).glob("*/"))
# Candidates of nearly equal probability may change places.
UNORDERED = ("nbest_answers", "nbest_starts", "nbest_ends")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Gives the folder of an archive."""
    return functools.cache(lambda archive: unpack(archive, tmp_path_factory.mktemp("golden")))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def golden(request, unpacked):
    return unpacked(request.param)


@pytest.fixture(params=[*ARCHIVES, *OTHERS], ids=lambda path: path.name.partition(".tar")[0])
def exports(request, unpacked):
    return request.param if request.param.is_dir() else unpacked(request.param)


def _check(answers: dict, expected: dict, head: str) -> None:
    assert set(answers) == set(expected), head
    for name, values in expected.items():
        if name in UNORDERED:
            continue
        if isinstance(np.ravel(values)[0], np.floating):
            np.testing.assert_allclose(answers[name], values, rtol=1e-5, atol=1e-5, err_msg=f"{head}: {name}")
        else:
            assert np.array(answers[name]).tolist() == values, f"{head}: {name}"


def test_exported_models_are_served(exports, quick_sessions):
    cases = read_cases(exports)
    assert len(cases) >= 10
    models = [ModelSettings(head, str(exports / head / "served")) for head in cases]
    with running_server(models, ServerSettings(rest_api_port=0, port=-1)) as server:
        for head, case in cases.items():
            path, request = f"/v1/models/{head}:predict", {"inputs": case["request"]}
            status, document = ask(server, "POST", path, request)
            assert status == 200, document
            outputs = document["outputs"]
            if not isinstance(outputs, dict):  # A single output stands alone.
                outputs = {next(iter(case["answers"])): outputs}
            _check(outputs, case["answers"], head)


@pytest.mark.slow
@pytest.mark.skipif(cc_check.find_compiler() is None, reason="g++ on Linux is not installed")
def test_the_cc_program_answers_alike(exports):
    program = cc_check.build_program(cc_check.require_compiler())
    for head, case in read_cases(exports).items():
        inputs = {name: np.char.encode(np.array(texts, np.str_), "utf-8") for name, texts in case["request"].items()}
        probe = verify.Probe("serving_default", inputs, {})
        (answer,) = verify.cc_answers(program, str(exports / head / "served" / "1"), [probe])
        _check(_as_text(answer), case["answers"], head)


def _as_text(answers: dict) -> dict:
    decode = np.vectorize(bytes.decode, otypes=[object])
    return {name: decode(value) if value.dtype.kind in "OS" else value for name, value in answers.items()}


def test_model_directories_load(golden):
    cases, num_heads = read_cases(golden), 0
    for name, head in heads(golden):
        inputs = {key: tf.constant(cases[name]["request"][key]) for key in head.text_inputs}
        answer = head.answer_texts(rebuild_for_serving(head.model), inputs)
        answers = {key: value.numpy() for key, value in answer.items()}
        _check(_as_text(answers), cases[name]["answers"], name)
        num_heads += 1
    assert num_heads == len(cases) - 1 >= 10  # All but search.
