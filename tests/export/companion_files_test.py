"""What a version brings along: warm-up requests that run, batching parameters, a description; and the README's clients,
executed as they are printed against a server of this very model."""

import contextlib
import functools
import io
import json
import os
import re
import subprocess

import huggingface_hub
import numpy as np
import pytest
import tensorflow as tf
import toy_server
from tensorflow_serving.apis import prediction_log_pb2
from toy_saved import ALL_HEADS

from export import clients, companion_files, signatures
from export.base_path import DESCRIPTION_FILE, PER_MODEL_FILE, WARMUP_FILE
from export.heads.base import Head
from export.server.assembly import running_server
from export.server.config_files import ModelSettings, read_batching_parameters
from export.server.server_settings import ServerSettings
from keras_bert.files import read_json
from tasks.report import card
from tasks.report.page import Report

# Signatures of every kind: examples, one output and several, and lists of texts and of answers.
KEPT = ["regression of pairs", "multiple_choice", "fill_mask"]
SERVED = KEPT[:2]


@pytest.fixture(scope="module")
def exported(saved):
    """Gives head and base path of a model, of version 1 with its extras and a README, by its name."""

    @functools.cache
    def export(name: str) -> tuple[Head, str]:
        head, base = saved(name)
        companion_files.write_extras(saved(name).directory, head)
        companion_files.write_readme(base, head, saved(name).directory)
        return head, base

    return export


@pytest.fixture(scope="module")
def serve(exported):
    """Gives a server by the name of its model, batched by the model's own parameters, warmed up."""
    settings = ServerSettings(rest_api_port=0, port=0, enable_batching=True, enable_per_model_batching_parameters=True)
    with toy_server.quick_sessions(), contextlib.ExitStack() as servers:

        @functools.cache
        def server_of(name: str):
            _, base = exported(name)
            parameters = read_batching_parameters(os.path.join(base, "1", PER_MODEL_FILE))
            models = [ModelSettings(clients.model_name(base), base)]
            return servers.enter_context(running_server(models, settings, parameters))

        yield server_of


def _readme(base: str) -> str:
    with open(os.path.join(base, "README.md"), encoding="utf-8") as file:
        return file.read()


def _programs(base: str, language: str, server) -> list[str]:
    """The README's programs, for the ports of this test's server."""
    text = _readme(base).replace(f":{clients.REST_PORT}", f":{server.rest.server_port}")
    text = text.replace(f":{clients.GRPC_PORT}", f":{server.grpc.port}")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def _output_of(program: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(program, "README.md", "exec"), {})
    return output.getvalue()


# === The README's clients ===


@pytest.mark.slow(keep=SERVED)
@pytest.mark.parametrize("name", ALL_HEADS)
def test_the_readmes_clients_get_the_models_answer(exported, serve, name):
    (head, base), server = exported(name), serve(name)
    instances = head.description()["example"]["instances"]
    _, curl = _programs(base, "bash", server)
    completed = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
    predictions = json.loads(completed.stdout)["predictions"]
    assert len(predictions) == len(instances)
    rest, grpc = _programs(base, "python", server)
    by_rest = [eval(line) for line in _output_of(rest).splitlines()]
    columns = dict(line.split(" ", 1) for line in _output_of(grpc).splitlines())
    assert set(columns) == set(head.description()["signatures"]["serving_default"]["outputs"])
    by_grpc = {output: _texts(eval(column)) for output, column in columns.items()}
    for rows in (predictions, by_rest):
        rows = rows if isinstance(rows[0], dict) else [{next(iter(columns)): row} for row in rows]
        assert set(rows[0]) == set(columns)
        for output, values in by_grpc.items():
            _assert_alike([row[output] for row in rows], values)


def _assert_alike(values, right):
    """Compares answers to the same texts, which another session of the server may have rounded in another way."""
    if np.array(right).dtype.kind == "f":
        np.testing.assert_allclose(values, right, atol=1e-6)
    else:
        assert values == right


def _texts(value):
    """What gRPC gives, with its bytes as REST writes them."""
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.slow(keep=KEPT)
@pytest.mark.parametrize("name", ALL_HEADS)
def test_the_readme_names_everything(exported, name):
    head, base = exported(name)
    text = _readme(base)
    description = head.description()
    assert huggingface_hub.ModelCard(text).data.pipeline_tag == card.PIPELINES[description["task"]]
    assert text.partition("---\n\n")[2].startswith(f"# {clients.model_name(base)}\n\n{description['title']}.")
    for described in description["signatures"].values():
        for tensor in (*described["inputs"], *described["outputs"]):
            assert f" | `{tensor}` | " in text
    assert all(f"`{label}`" in text for label in description["labels"])
    assert f"source={base},target=/models/{clients.model_name(base)}" in text
    assert "not run when this was written" in text
    assert "{" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # every place of the template was filled


def test_the_card_of_the_training_comes_along(exported, tmp_path):
    head, base = exported(KEPT[0])
    figures = {"accuracy": 0.75, "majority_accuracy": 0.5, "train_steps": 9, "train_start": "hf://a/b"}
    known = {"task": "classification", "config": None, "num_parameters": 7}
    vocabulary = {"do_lower_case": True, "vocabulary_checksum": 1}
    data = [card.Data("train", "a.csv", 9), card.Data("validation", "a.csv", 8), card.Data("dev", "dev.csv", 8)]
    (tmp_path / "metrics.json").write_text("{}")
    card.write_card(
        str(tmp_path),
        card.Card(
            Report("A [run](x)", max_length=16),
            tokenizer=vocabulary,
            data=data,
            metrics=figures,
            scores=["accuracy"],
            **known,
        ),
    )
    (tmp_path / "model").mkdir()
    training = card.find_card(str(tmp_path / "model"))
    assert "\n# A \\[run\\](x)\n" in training
    companion_files.write_readme(str(tmp_path / "served"), head, os.path.join(base, "1"), training)
    model_card = huggingface_hub.ModelCard.load(tmp_path / "served" / "README.md")
    assert [(result.metric_type, result.metric_value) for result in model_card.data.eval_results] == [
        ("accuracy", 0.75)
    ]
    assert {result.dataset_name for result in model_card.data.eval_results} == {"dev.csv"}
    assert model_card.data.base_model == "a/b" and "\n## How it was trained\n" in model_card.text
    assert "\n### Scores\n" in model_card.text and "| accuracy | 0.75 |  | 0.5 |" in model_card.text


def test_a_head_is_between_whole_lines(tmp_path):
    """REVIEW2.md, A9: the head was cut behind the dashes of a name."""
    path = tmp_path / "README.md"
    path.write_text("---\nname: foo---\nother: a --- b\n---\n# Title\n---\n")
    assert card.split_card(card.find_card(str(tmp_path))) == (
        "---\nname: foo---\nother: a --- b\n---\n",
        "# Title\n---\n",
    )
    for text in ("---\n# My model\nHello\n", "---\nname: foo---\n", "text\n---\n---\n"):
        path.write_text(text)
        assert card.find_card(str(tmp_path)) is None


def test_labels_are_no_markdown(exported, tmp_path):
    """REVIEW2.md, A11: a label of a stranger's table made links, images and HTML."""
    head, _ = exported(KEPT[0])
    description = head.description()
    labels = ["![t](https://evil.example/p.png)", "<img src=x>", "`[click me](https://evil.example)`"]
    summary = f"Tells texts apart: {', '.join(labels)}."
    text = clients.readme(
        str(tmp_path),
        {**description, "summary": summary, "labels": labels},
        version="1",
        encoder=head.model.backbone.bert_config,
        training="",
        int8=(),
    )
    shown = re.sub(r"\\.|`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert "](" not in shown and "<img" not in shown and "://" not in shown


# === The version's own files ===


def test_warmup_records_are_tensorflow_serving_s_messages():
    texts = np.array([b"a" * length for length in (0, 127, 128, 20_000)])
    for signature in (signatures.CLASSIFY, signatures.REGRESS, "serving_default"):
        log = prediction_log_pb2.PredictionLog()
        verbs = {signatures.CLASSIFY: log.classify_log, signatures.REGRESS: log.regress_log}
        request = verbs.get(signature, log.predict_log).request
        request.model_spec.signature_name = signature
        if signature in verbs:
            examples = [request.input.example_list.examples.add() for _ in texts]
            for example, text in zip(examples, texts, strict=True):
                example.features.feature["text"].bytes_list.value.append(text)
            inputs = {"inputs": [example.SerializeToString() for example in examples]}
        else:
            inputs = {"text": texts, "text_pair": texts[::-1]}
            for name, array in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        parsed = prediction_log_pb2.PredictionLog.FromString(companion_files.warmup_record(signature, inputs))
        assert parsed == log


@pytest.mark.slow(keep=SERVED)
@pytest.mark.parametrize("name", ALL_HEADS)
def test_warmup_requests_are_few_and_of_every_signature(exported, serve, name):
    head, base = exported(name)
    path = os.path.join(base, "1", WARMUP_FILE)
    records = [
        prediction_log_pb2.PredictionLog.FromString(record)
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator()
    ]
    assert 1 <= len(records) <= 10
    kinds = {
        getattr(record, record.WhichOneof("log_type")).request.model_spec.signature_name: record.WhichOneof("log_type")
        for record in records
    }
    verbs = {signatures.CLASSIFY: "classify_log", signatures.REGRESS: "regress_log"}
    expected = {signature: verbs.get(signature, "predict_log") for signature in head.description()["signatures"]}
    assert kinds == expected
    # The server has replayed them: it refuses a version of which one fails.
    assert toy_server.figure(
        serve(name), "model_warmup_records_read", model_path=os.path.join(base, "1"), status="OK"
    ) == len(records)


@pytest.mark.slow(keep=KEPT)
@pytest.mark.parametrize("name", ALL_HEADS)
def test_the_description_is_written(exported, name):
    head, base = exported(name)
    assert read_json(os.path.join(base, "1", DESCRIPTION_FILE)) == json.loads(json.dumps(head.description()))


def test_batching_parameters_are_taken(exported):
    _, base = exported("multiple_choice")
    parameters = read_batching_parameters(os.path.join(base, "1", PER_MODEL_FILE))
    assert parameters.max_batch_size == 128  # docs/serving.md names it.
    assert parameters.batch_timeout_micros == 1000
    assert parameters.allowed_batch_sizes == ()


# === Commands and programs as text ===

DESCRIPTION = {
    "signatures": {"serving_default": {"inputs": {"text": "", "text_pair": ""}, "outputs": {}}},
    "example": {"instances": [{"text": "it's", "text_pair": "größe"}, {"text": "x" * 200, "text_pair": ""}]},
}


def test_names_and_texts_are_quoted(tmp_path):
    base = str(tmp_path / "größe #1")
    assert "http://127.0.0.1:8501/v1/models/gr%C3%B6%C3%9Fe%20%231:predict" in clients.curl_command(base, DESCRIPTION)
    assert f"--model_base_path='{base}'" in clients.serve_command(base)
    assert "MODEL_NAME='größe #1'" in clients.docker_command(base)
    echo = (
        clients.curl_command(base, DESCRIPTION).replace("curl -d", "printf %s", 1).replace("\\\n", "").rsplit(" ", 1)[0]
    )
    sent = subprocess.run(["bash", "-c", echo], capture_output=True, text=True, check=True).stdout
    assert json.loads(sent)["instances"] == DESCRIPTION["example"]["instances"]


def test_rows_become_columns():
    program = clients.grpc_client("served/pairs", DESCRIPTION)
    assert "request.inputs['text_pair'].CopyFrom(tf.make_tensor_proto(['größe', '']))" in program
    assert "request.model_spec.name = 'pairs'" in program
    compile(program, "client", "exec")
    compile(clients.rest_client("served/pairs", DESCRIPTION), "client", "exec")
    assert max(map(len, program.splitlines())) < 260  # a long text has a line of its own
