"""The page at `/` for trying the models: one HTML document that loads nothing from elsewhere.

It is assembled from the files in `page_files/`. Texts, labels and answers reach it only as data (`textContent`), and
the Content-Security-Policy lets no other script run.
"""

import base64
import hashlib
import pathlib

from export.server.model_manager import AVAILABLE, ModelManager

MODELS_PATH = "/models.json"
_DIRECTORY = pathlib.Path(__file__).absolute().parent / "page_files"


def _read(name: str) -> str:
    return (_DIRECTORY / name).read_text("utf-8")


def _allow(text: str) -> str:
    """Returns the policy source that allows a style or script with exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE, _SCRIPT = _read("page.css"), "\n".join(map(_read, ("parts.js", "answers.js", "page.js")))
HTML = _read("page.html").replace("/* STYLE */", _STYLE).replace("/* SCRIPT */", _SCRIPT).encode()
# They restrict the document to its own style, script and server.
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {_allow(_SCRIPT)}; style-src {_allow(_STYLE)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def models(manager: ModelManager) -> dict:
    """Returns the page's data, as JSON.

    It is `{"models": [{"name", "version", "versions", "labels", "description", "signatures"}]}`. `description` is the
    content of the version's `assets.extra/model.json`, which bert-export writes, or null. `signatures` maps a name to
    `inputs` and `outputs`, which map a name to `[type, number of dimensions]`.
    """
    entries = []
    for servable in manager.use_each():
        own = [status for name, status in manager.states() if name == servable.name and status.state == AVAILABLE]
        entries.append(
            {
                "name": servable.name,
                "version": str(servable.version),
                "versions": [str(status.version) for status in reversed(own)],
                "labels": sorted(manager.labels(servable.name)),
                "description": servable.model.description,
                "signatures": {
                    key: {"inputs": _shown(signature.inputs), "outputs": _shown(signature.outputs)}
                    for key, signature in servable.model.signatures.items()
                },
            }
        )
    return {"models": entries}


def _shown(specs) -> dict:
    return {name: [spec.dtype.name, spec.shape.rank] for name, spec in specs.items()}
