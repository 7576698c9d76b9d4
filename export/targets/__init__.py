"""What else a model can be exported to, beside the SavedModel: ONNX, LiteRT, and int8 weights.

Each is written below the base path, where TensorFlow Serving does not look (a name that is no number), under the number
of the version that it was checked against: `onnx/1/model.onnx`, `litert/1/model.tflite`, each with the tokenizer beside
it, as it takes token ids; `int8/1`, a SavedModel, whose base path is `int8`.
"""

import importlib.util
import os
from collections.abc import Sequence

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, write_json

# Target -> the packages that it needs, and the extra of this distribution that brings them.
_NEEDS = {
    "onnx": (("onnx", "onnxruntime"), "onnx"),
    "litert": (("ai_edge_litert",), "litert"),
    "int8": ((), ""),
}
TARGETS = tuple(_NEEDS)
_TITLES = {"onnx": "ONNX", "litert": "LiteRT"}
_FILES = {"onnx": "model.onnx", "litert": "model.tflite"}


def require(names: Sequence[str]) -> None:
    """Checks, before the work begins, that what the targets need is installed.

    Raises:
        InputError: a package is missing.
        ValueError: there is no such target.
    """
    for name in names:
        if name not in _NEEDS:
            raise ValueError(f"A target must be one of {', '.join(TARGETS)}. Received: {name!r}")
        packages, extra = _NEEDS[name]
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            raise InputError(f"--{name} needs {' and '.join(missing)}. Run: pip install 'keras-bert-zoo[{extra}]'")


def write(names: Sequence[str], head, export_dir: str, version_directory: str) -> list[str]:
    """Writes a version's other targets, each checked against it.

    Args:
        names: of `TARGETS`.
        head: the `export.heads.base.Head` that was exported.
        export_dir: base path of the model.
        version_directory: the version as exported, `export_dir/<number>`.

    Returns:
        What to tell the user, a few lines for each target.

    Raises:
        InputError: a package is missing, the model holds a layer that the target has no words for, or its answers
            differ from the SavedModel's. Nothing of that target is left.
        VerificationError: of int8, as of the export itself.
    """
    require(names)
    lines = []
    for name in names:
        directory = os.path.join(export_dir, name, os.path.basename(version_directory))
        with atomic_path(directory) as temporary:
            write_one = _write_int8 if name == "int8" else _write_by_token_ids
            written = write_one(name, head, temporary, version_directory)
        lines += [f"{name}: {directory}", *(f"    {line}" for line in written)]
    return lines


def _write_by_token_ids(name: str, head, directory: str, version_directory: str) -> list[str]:
    from export import saved_model
    from export.targets import litert, onnx, real_text

    target = {"onnx": onnx, "litert": litert}[name]
    model = saved_model.rebuild(head.model, layout="rectangular")
    path = os.path.join(directory, _FILES[name])
    os.makedirs(directory)
    with open(path, "wb") as file:
        file.write(target.convert(head, model))
    head.preprocessor.tokenizer.save_to_preset(directory)
    write_json(os.path.join(directory, "model.json"), head.description())
    requests = real_text.requests(head)
    try:
        expected = real_text.saved_model_runner(version_directory)(requests)
        difference = real_text.compare(head, requests, expected, target.run(path, requests))
    except InputError as error:
        raise InputError(f"--{name}: {error} Nothing was written for {_TITLES[name]}.") from error
    sizes = ", ".join(str(len(request["lengths"])) for request in requests)
    return [
        f"{os.path.getsize(path) / 1e6:.1f} MB; token ids in, batch and length free",
        f"{difference.num_texts} real texts in batches of {sizes}: largest difference from the SavedModel "
        f"{difference.largest:.1e}",
    ]


def _write_int8(_, head, directory: str, version_directory: str) -> list[str]:
    from export.targets import int8

    report = int8.write(head, directory)
    sizes = [int8.directory_megabytes(path) for path in (directory, version_directory)]
    return [
        f"a SavedModel of {sizes[0]:.1f} MB (float32: {sizes[1]:.1f} MB); answers in a fresh process: largest "
        f"difference from the quantized Keras model's {report.largest_difference:.1e}",
        *int8.measure(head, version_directory, directory).lines(),
    ]
