"""SavedModels and model directories written by an earlier commit still load, and answer as they did then.

`golden/COMMIT.tar.xz` holds, for each head, what that commit's commands wrote from a toy preset: `HEAD/model` (of a
training), `HEAD/served` (of bert-export), and in `answers.json` a request and what `serving_default` answered.
"""

import json
import lzma
import pathlib
import tarfile

import numpy as np
import pytest
import tensorflow as tf
from toy_server import ask

from export.graph.model_copies import rebuild_for_serving
from export.heads.loading import load_head
from export.server.assembly import running_server
from export.server.config_files import ModelSettings
from export.server.server_settings import ServerSettings

ARCHIVES = sorted((pathlib.Path(__file__).parent / "golden").glob("*.tar.xz"))
# These heads take any preset.
PRESET_TASKS = {"fill_mask": "preset", "embeddings": "preset"}
# Candidates of nearly equal probability may change places.
UNORDERED = ("nbest_answers", "nbest_starts", "nbest_ends")


@pytest.fixture(scope="module", name="golden", params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def _golden(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("golden")
    with lzma.open(request.param) as packed, tarfile.open(fileobj=packed) as archive:
        archive.extractall(directory, filter="data")
    return directory


def _cases(golden) -> dict[str, dict]:
    return json.loads((golden / "answers.json").read_text())


def _check(answers: dict, expected: dict, head: str) -> None:
    assert set(answers) == set(expected), head
    for name, values in expected.items():
        if name in UNORDERED:
            continue
        if isinstance(np.ravel(values)[0], np.floating):
            np.testing.assert_allclose(answers[name], values, rtol=1e-4, atol=1e-4, err_msg=f"{head}: {name}")
        else:
            assert np.array(answers[name]).tolist() == values, f"{head}: {name}"


def test_exported_models_are_served(golden):
    cases = _cases(golden)
    assert len(cases) == 11
    models = [ModelSettings(head, str(golden / head / "served")) for head in cases]
    with running_server(models, ServerSettings(rest_api_port=0, port=-1)) as server:
        for head, case in cases.items():
            path, request = f"/v1/models/{head}:predict", {"inputs": case["request"]}
            status, document = ask(server, "POST", path, request)
            assert status == 200, document
            outputs = document["outputs"]
            if not isinstance(outputs, dict):  # A single output stands alone.
                outputs = {next(iter(case["answers"])): outputs}
            _check(outputs, case["answers"], head)


def test_model_directories_load(golden):
    cases = _cases(golden)
    heads = {path.parent.name: {} for path in golden.glob("*/model") if path.parent.name in cases}
    heads |= {task: {"task": task} for task in PRESET_TASKS}
    assert len(heads) == 10
    for name, arguments in heads.items():
        head = load_head(str(golden / PRESET_TASKS.get(name, f"{name}/model")), **arguments)
        answer = head.functions(rebuild_for_serving(head.model))["serving_default"]
        inputs = {key: tf.constant(texts) for key, texts in cases[name]["request"].items()}
        answers = {key: value.numpy() for key, value in answer(**inputs).items()}
        texts = {
            key: np.vectorize(bytes.decode, otypes=[object])(value)
            for key, value in answers.items()
            if value.dtype == object
        }
        _check({**answers, **texts}, cases[name]["answers"], name)
