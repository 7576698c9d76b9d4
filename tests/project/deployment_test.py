"""The manifests of recipes/deployment: valid by Kubernetes's schemas, with flags and routes that servers have."""

import json
import re
import subprocess
import urllib.request

import half_plus
import pytest
import toy_server
import yaml
from repository import COMMANDS, ROOT, listed_commands
from source_imports import PACKAGES

from export.clients import SERVING_IMAGE
from export.server import rest_routes

FOLDER = ROOT / "recipes" / "deployment"
VALIDATOR = ROOT / ".venv-docs" / "bin" / "kubernetes-validate"
KUBERNETES = {
    manifest["kind"]: manifest
    for manifest in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
}
POD = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
KSERVE = yaml.safe_load((FOLDER / "kserve.yaml").read_text(encoding="utf-8"))
[KSERVE_CONTAINER] = KSERVE["spec"]["predictor"]["containers"]
FLAGS = next(flags for (command, _), flags in listed_commands().items() if command == "bert-serve")


COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["mood"]
VERTEX = re.search(r"--container-args='(.*)'", (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8"))[1]
# What starts a server. With compose, the image's own script puts the first of them before `command`.
_ENTRYPOINT = ["--port=8500", "--rest_api_port=8501", "--model_name=mood", "--model_base_path=/models/mood"]
LINES = {
    "kubernetes": CONTAINER["args"],
    "kserve": KSERVE_CONTAINER["args"],
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
    assert COMPOSE["image"] == SERVING_IMAGE


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
    assert [mount["mountPath"] for mount in CONTAINER["volumeMounts"] if not mount.get("readOnly")] == ["/tmp"]


def test_kserve_asks_the_port_and_the_model_that_its_container_serves():
    port = KSERVE_CONTAINER["ports"][0]["containerPort"]
    probe = KSERVE_CONTAINER["readinessProbe"]["httpGet"]
    assert KSERVE["kind"] == "InferenceService" and probe == {"path": "/v1/models/mood/metadata", "port": port}
    assert {f"--rest_api_port={port}", "--model_name=mood"} <= set(KSERVE_CONTAINER["args"])
    assert [variable["name"] for variable in KSERVE_CONTAINER["env"]] == ["STORAGE_URI"]


# === The Dockerfile ===


def instructions(target):
    """The instructions of a stage of the Dockerfile, and of those that it begins from: pairs of word and rest."""
    text = re.sub(r"\\\n\s*|^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pairs = [line.split(maxsplit=1) for line in text.splitlines() if line]
    start = next(n for n, (word, rest) in enumerate(pairs) if word == "FROM" and rest.endswith(f" AS {target}"))
    end = next((n for n in range(start + 1, len(pairs)) if pairs[n][0] == "FROM"), len(pairs))
    base = pairs[start][1].split()[0]
    return (instructions(base) if base in ("base", "sources") else []) + pairs[start + 1 : end]


@pytest.mark.parametrize(("target", "extra"), [("serve", "[serve]"), ("train", "")])
def test_an_image_installs_one_extra_in_one_layer_and_runs_a_command_as_nobody_special(target, extra):
    stage = instructions(target)
    last = dict(stage)
    runs = [rest for word, rest in stage if word == "RUN"]
    assert len(runs) == 2 and runs[1].rstrip('"').endswith(f"/sources{extra}")
    assert last["USER"] == re.search(r"--uid (\d+)", runs[0])[1] == str(POD["securityContext"]["runAsUser"])
    command = json.loads(last.get("ENTRYPOINT", last["CMD"]))
    assert command[0] in COMMANDS


def test_the_image_that_serves_has_the_flags_and_the_ports_of_the_manifest_and_is_asked_for_its_health():
    stage = instructions("serve")
    last = dict(stage)
    words = json.loads(last["ENTRYPOINT"])[1:] + json.loads(last["CMD"])
    assert flags_of(words) <= FLAGS.keys()
    assert set(map(int, last["EXPOSE"].split())) == {port["containerPort"] for port in CONTAINER["ports"]}
    [python, flag, code] = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    compile(code, "HEALTHCHECK", "exec")
    assert (python, flag) == ("python", "-c") and "http://127.0.0.1:8501/" in code
    assert {CONTAINER["image"], KSERVE_CONTAINER["image"]} == {json.loads(last["ENTRYPOINT"])[0]}


def test_the_image_is_built_of_files_that_are_there_and_not_ignored():
    copied = [rest.split()[:-1] for word, rest in instructions("sources") if word == "COPY"]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    paths = {path for paths in copied for path in paths}
    assert paths == kept and [path for path in paths if not (ROOT / path).exists()] == []
    assert set(PACKAGES) < paths  # What setup.py installs.


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
