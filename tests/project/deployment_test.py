"""The manifests of recipes/deployment: valid by Kubernetes's schemas, with flags and routes that servers have."""

import json
import re
import subprocess
import urllib.request

import half_plus
import pytest
import toy_server
import yaml
from repository import ROOT, listed_commands

from export.clients import SERVING_IMAGE
from export.server import rest_routes

FOLDER = ROOT / "recipes" / "deployment"
VALIDATOR = ROOT / ".venv-docs" / "bin" / "kubernetes-validate"
KUBERNETES = {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))}
POD = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
FLAGS = next(flags for (command, _), flags in listed_commands().items() if command == "bert-serve")


COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["mood"]
VERTEX = re.search(r"--container-args='(.*)'", (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8"))[1]
# What starts a server. With compose, the image's own script puts the first of them before `command`.
_ENTRYPOINT = ["--port=8500", "--rest_api_port=8501", "--model_name=mood", "--model_base_path=/models/mood"]
LINES = {
    "kubernetes": CONTAINER["args"],
    "compose": [*_ENTRYPOINT, *COMPOSE["command"]],
    "vertex": ["--port=8500", *VERTEX.split(",")],
}


def flags_of(arguments):
    return {re.match(r"--(\w+)", argument)[1] for argument in arguments}


@pytest.mark.skipif(not VALIDATOR.exists(), reason="kubernetes-validate is not installed; make docs does.")
def test_kubernetes_schemas_hold():
    command = [VALIDATOR, "--strict", FOLDER / "kubernetes.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_flags_are_those_that_bert_serve_has_too():
    assert flags_of(argument for line in LINES.values() for argument in line) <= FLAGS.keys()
    assert CONTAINER["image"] == COMPOSE["image"] == SERVING_IMAGE


@pytest.mark.parametrize("way", LINES)
def test_bert_serve_starts_by_the_same_command_line(way, tmp_path):
    half_plus.save(str(tmp_path), 1)
    own = {"port": "0", "rest_api_port": "0", "model_base_path": str(tmp_path)}
    flags = [argument.removeprefix("--").partition("=") for argument in LINES[way]]
    arguments = [f"--{name}={own.get(name, value)}" if value else f"--{name}" for name, _, value in flags]
    with toy_server.run_command("-m", "export.local_server", *arguments) as process:
        url = process.stdout.readline().split()[-1]
        assert url.endswith("/v1/models/mood"), process.stderr.read()
        with urllib.request.urlopen(f"{url}/metadata", timeout=60) as answer:
            assert answer.status == 200
        body = json.dumps({"instances": [2.0]}).encode()
        with urllib.request.urlopen(f"{url}:predict", body, timeout=60) as answer:
            assert json.load(answer) == {"predictions": [4.0]}


def test_a_pod_is_ready_once_its_model_is():
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")]
    for path in probes:
        match = rest_routes._MODEL_PATH.fullmatch(path)
        assert match["name"] == "mood" and match["metadata"]
    assert f"--model_name={match['name']}" in CONTAINER["args"]


def test_nothing_can_be_written_but_to_tmp():
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] and POD["securityContext"]["runAsNonRoot"]
    assert [one["mountPath"] for one in CONTAINER["volumeMounts"] if not one.get("readOnly")] == ["/tmp"]


def test_kserve_is_yaml_and_has_the_image_s_version():
    manifest = yaml.safe_load((FOLDER / "kserve.yaml").read_text(encoding="utf-8"))
    model = manifest["spec"]["predictor"]["model"]
    assert manifest["kind"] == "InferenceService" and model["modelFormat"] == {"name": "tensorflow"}
    assert SERVING_IMAGE.endswith(f":{model['runtimeVersion']}")


def test_names_agree():
    labels = KUBERNETES["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        KUBERNETES["Deployment"]["spec"]["selector"]["matchLabels"],
        KUBERNETES["Service"]["spec"]["selector"],
        KUBERNETES["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels
    scaled = KUBERNETES["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", KUBERNETES["Deployment"]["metadata"]["name"])
    ports = {port["name"] for port in CONTAINER["ports"]}
    assert {port["targetPort"] for port in KUBERNETES["Service"]["spec"]["ports"]} == ports
