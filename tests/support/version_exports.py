"""The models of tests/export/golden, exported anew: `make test-versions` does so with each version of TensorFlow.

    python tests/support/version_exports.py DIRECTORY

writes `HEAD/served` for each head and `answers.json`, as golden_exports_test.py reads them.
"""

import json
import lzma
import pathlib
import sys
import tarfile
import tempfile
from collections.abc import Iterator

from export.companion_files import write_extras
from export.graph.model_copies import rebuild_for_serving
from export.heads.base import Head
from export.heads.loading import load_head
from export.saved_model import write_graph

ARCHIVES = sorted((pathlib.Path(__file__).parents[1] / "export" / "golden").glob("*.tar.xz"))
# These heads take any preset.
PRESET_TASKS = {"fill_mask": "preset", "embeddings": "preset"}


def unpack(archive: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Unpacks one of `ARCHIVES`; returns the directory."""
    with lzma.open(archive) as packed, tarfile.open(fileobj=packed) as files:
        files.extractall(directory, filter="data")
    return directory


def read_cases(directory: pathlib.Path) -> dict[str, dict]:
    """Returns request and answers of each head."""
    return json.loads((directory / "answers.json").read_text())


def heads(directory: pathlib.Path) -> Iterator[tuple[str, Head]]:
    """Loads the heads of an unpacked archive, by name; search, whose passages are in its export alone, is not there."""
    for name in read_cases(directory):
        if name in PRESET_TASKS:
            yield name, load_head(str(directory / PRESET_TASKS[name]), name)
        elif (directory / name / "model").is_dir():
            yield name, load_head(str(directory / name / "model"))


def main() -> None:
    """Exports the models of the newest archive."""
    target = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        golden = unpack(ARCHIVES[-1], pathlib.Path(folder))
        names = []
        for name, head in heads(golden):
            version = str(target / name / "served" / "1")
            write_graph(head, rebuild_for_serving(head.model), version)
            write_extras(version, head)  # Without `verify`: the tests ask each export.
            names.append(name)
        cases = read_cases(golden)
    (target / "answers.json").write_text(json.dumps({name: cases[name] for name in names}))


if __name__ == "__main__":
    main()
