"""Records what this commit writes, for tests/export/golden_exports_test.py.

    python tests/support/golden_archive.py

trains a model of each head from the toy preset of the newest archive, exports all of them, asks bert-serve, and writes
`tests/export/golden/DATE-COMMIT.tar.xz`, whose name sorts after the earlier ones.
"""

import json
import lzma
import pathlib
import subprocess
import tarfile
import tempfile

import every_task
import run_tasks
from toy_server import ask
from version_exports import ARCHIVES, PRESET_TASKS, read_cases, unpack

from export.run import ExportSettings, export
from export.server.assembly import running_server
from export.server.config_files import ModelSettings
from export.server.server_settings import ServerSettings

_ONE_TEXT = {"few_labels": "off", "text_column": "text", "label_column": "label"}
_TWO_TEXTS = {"few_labels": "off", "text_column": "text", "text_pair_column": "match", "label_column": "label"}
_NUMBERS = every_task.csv(("text", "label"), *((f"w{number}", number / 4) for number in range(8)))
_SETS = every_task.csv(("text", "label"), *((f"w{number}", ("x", "x;y", "")[number % 3]) for number in range(9)))
_PAIRS = every_task.csv(
    ("text", "match", "label"), *((f"w{number}", f"w{number % 3}", number % 2) for number in range(8))
)
# Head: name of the file, its content, entry, settings.
_HEADS = {
    "classification": ("train.csv", every_task.classes(), run_tasks.classify, {**_ONE_TEXT, "validation_share": 0.5}),
    "classification_in_windows": (
        "train.csv",
        every_task.classes(),
        run_tasks.classify,
        {**_ONE_TEXT, "long_text": "mean"},
    ),
    "classification_of_pairs": ("train.csv", _PAIRS, run_tasks.classify, _TWO_TEXTS),
    "label_sets": ("train.csv", _SETS, run_tasks.classify, {**_ONE_TEXT, "multi_label": True, "label_separator": ";"}),
    "regression": ("train.csv", _NUMBERS, run_tasks.classify, {**_ONE_TEXT, "regression": True}),
    "multiple_choice": ("train.csv", every_task.choices(), run_tasks.choose, {}),
    "question_answering": ("train.json", every_task.questions(), every_task.answer_questions, {}),
    "token_classification": ("train.conll", every_task.words("B-x"), run_tasks.tag, {}),
    "token_regression": ("train.conll", every_task.words("0.{}"), run_tasks.score_words, {}),
    "sentence_embedding": ("train.csv", every_task.pairs(), run_tasks.embed, {}),
}


def _train(head: str, preset: str, directory: pathlib.Path, scratch: pathlib.Path) -> None:
    """Writes `directory/HEAD/model`."""
    name, content, run, settings = _HEADS[head]
    output_dir = scratch / head
    output_dir.mkdir()
    (output_dir / name).write_text(content)
    files = (
        {"data_dir": str(output_dir)} if run is every_task.answer_questions else {"train_file": str(output_dir / name)}
    )
    run(preset=preset, output_dir=str(output_dir), do_train=True, **files, **{**every_task.TRAINING, **settings})
    (directory / head).mkdir()
    (output_dir / "model").rename(directory / head / "model")


def _ask(directory: pathlib.Path, requests: dict[str, dict]) -> dict[str, dict]:
    """Returns request and answers of each head."""
    models, cases = [ModelSettings(head, str(directory / head / "served")) for head in requests], {}
    with running_server(models, ServerSettings(rest_api_port=0, port=-1, runtime="tensorflow")) as server:
        for head, request in requests.items():
            status, document = ask(server, "POST", f"/v1/models/{head}:predict", {"inputs": request})
            assert status == 200, document
            _, known = ask(server, "GET", f"/v1/models/{head}/metadata")
            [*names] = known["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
            outputs = document["outputs"]
            cases[head] = {"request": request, "answers": outputs if len(names) > 1 else {names[0]: outputs}}
    return cases


def main() -> None:
    """Trains, exports, asks and packs."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        scratch, directory = pathlib.Path(first), pathlib.Path(second)
        earlier = unpack(ARCHIVES[-1], scratch / "earlier")
        (earlier / "preset").rename(directory / "preset")
        preset = str(directory / "preset")
        requests = {head: case["request"] for head, case in read_cases(earlier).items()}
        one_text = requests["classification"]
        for head in _HEADS:
            _train(head, preset, directory, scratch)
        (scratch / "passages.txt").write_text("w1 w2\nw3\nw4 w5 w6\n")
        sources = {head: {"model_dir": str(directory / head / "model")} for head in _HEADS}
        sources |= {head: {"preset": preset, "task": head} for head in PRESET_TASKS}
        passages = str(scratch / "passages.txt")
        sources["search"] = {
            "preset": sources["sentence_embedding"]["model_dir"],
            "task": "search",
            "passages": passages,
        }
        for head, source in sources.items():
            export(ExportSettings(export_dir=str(directory / head / "served"), with_cc="off", **source))
            (directory / head / "served" / "README.md").unlink()
        cases = _ask(directory, {head: requests.get(head, one_text) for head in sources})
        (directory / "answers.json").write_text(json.dumps(cases))
        log = ["git", "log", "-1", "--format=%cs-%h", "--abbrev=7"]
        name = subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
        path = ARCHIVES[-1].with_name(f"{name}.tar.xz")
        with (
            lzma.open(path, "w", preset=9 | lzma.PRESET_EXTREME) as packed,
            tarfile.open(fileobj=packed, mode="w") as files,
        ):
            files.add(
                directory, ".", filter=lambda info: info.replace(deep=False, uid=0, gid=0, uname="", gname="", mtime=0)
            )
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
