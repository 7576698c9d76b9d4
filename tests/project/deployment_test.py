"""The manifests of recipes/deployment: valid by Kubernetes's schemas, with flags and routes that servers have."""

import re
import subprocess

import pytest
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


def flags_of(arguments):
    return {re.match(r"--(\w+)", argument)[1] for argument in arguments}


@pytest.mark.skipif(not VALIDATOR.exists(), reason="kubernetes-validate is not installed; make docs does.")
def test_kubernetes_schemas_hold():
    command = [VALIDATOR, "--strict", FOLDER / "kubernetes.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_flags_are_those_that_bert_serve_has_too():
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["mood"]
    assert flags_of(CONTAINER["args"]) | flags_of(compose["command"]) <= FLAGS.keys()
    assert CONTAINER["image"] == compose["image"] == SERVING_IMAGE
    vertex = re.search(r"--container-args='(.*)'", (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8"))[1]
    assert flags_of(vertex.split(",")) <= FLAGS.keys()


def test_a_pod_is_ready_once_its_model_is():
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")]
    for path in probes:
        match = rest_routes._MODEL_PATH.fullmatch(path)
        assert match["name"] == "mood" and match["metadata"]
    assert f"--model_name={match['name']}" in CONTAINER["args"]


def test_nothing_can_be_written_but_to_tmp():
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] and POD["securityContext"]["runAsNonRoot"]
    assert [one["mountPath"] for one in CONTAINER["volumeMounts"] if not one.get("readOnly")] == ["/tmp"]


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
