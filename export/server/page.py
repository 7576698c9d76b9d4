"""The page at `/` for trying the models: one HTML document that loads nothing from elsewhere.

It is assembled from the files in `page_files/`. Texts, labels and answers reach it only as data (`textContent`), and
the Content-Security-Policy lets no other script run.
"""

import base64
import functools
import hashlib
import pathlib

from export.server.model_manager import AVAILABLE, ModelManager

MODELS_PATH = "/models.json"
_DIRECTORY = pathlib.Path(__file__).absolute().parent / "page_files"


def _read(name: str) -> str:
    return (_DIRECTORY / name).read_text("utf-8")


def _style_and_script() -> tuple[str, str]:
    return _read("page.css"), "\n".join(map(_read, ("parts.js", "answers.js", "page.js")))


@functools.cache
def html() -> bytes:
    """Returns the document."""
    style, script = _style_and_script()
    return _read("page.html").replace("/* STYLE */", style).replace("/* SCRIPT */", script).encode()


@functools.cache
def headers() -> dict[str, str]:
    """Returns the HTTP headers that restrict the document to its own style, script and server."""
    style, script = (
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in _style_and_script()
    )
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


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
