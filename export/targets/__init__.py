"""Writes a model to targets other than the SavedModel: ONNX, LiteRT, and a SavedModel in bfloat16.

Each is in a directory of the base path that TensorFlow Serving ignores, since its name is not a number, under the
number of the version that it was checked against: `onnx/1/model.onnx` and `litert/1/model.tflite`, which take token ids
and have the tokenizer beside them, and `bfloat16/1`, a SavedModel with the base path `bfloat16`.
"""

import os
from collections.abc import Sequence

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, write_json

TARGETS = ("onnx", "litert", "bfloat16")
# Title and file of the targets that take token ids.
_FILES = {"onnx": ("ONNX", "model.onnx"), "litert": ("LiteRT", "model.tflite")}


def write(
    names: Sequence[str], head, export_dir: str, version_directory: str, with_cc: str = "off", int8: Sequence[str] = ()
) -> list[str]:
    """Writes a version's other targets, each checked against it.

    Args:
        names: some of `TARGETS`.
        head: the `export.heads.base.Head` that was exported.
        export_dir: base path of the model.
        version_directory: the version as exported, `export_dir/<number>`.
        with_cc: one of `verify.WITH_CC`, whether to check SavedModels with the C++ program as well.
        int8: products to compute in 8 bits in `onnx/<number>/model.int8.onnx`, which is not written if there are none.

    Returns:
        Lines for the user, a few for each target.

    Raises:
        InputError: the target cannot express one of the model's layers, or its answers differ
            from the SavedModel's. Nothing of that target is left then.
        VerificationError: the bfloat16 version does not pass the verification of an export.
    """
    lines = []
    for name in names:
        directory = os.path.join(export_dir, name, os.path.basename(version_directory))
        with atomic_path(directory) as temporary:
            if name in _FILES:
                written = _write_by_token_ids(name, head, temporary, version_directory, int8)
            else:
                written = _write_bfloat16(head, temporary, version_directory, with_cc)
        lines += [f"{name}: {directory}", *(f"    {line}" for line in written)]
    return lines


def _write_by_token_ids(name: str, head, directory: str, version_directory: str, int8: Sequence[str]) -> list[str]:
    from export import saved_model
    from export.targets import real_text

    if name == "onnx":  # Each target needs an extra of its own.
        from export.targets import onnx as target
    else:
        from export.targets import litert as target
    model = saved_model.rebuild(head.model, layout="rectangular")
    title, file_name = _FILES[name]
    path = os.path.join(directory, file_name)
    os.makedirs(directory)
    with open(path, "wb") as file:
        file.write(target.convert(head, model))
    head.preprocessor.tokenizer.save_to_preset(directory)
    write_json(os.path.join(directory, "model.json"), head.description())
    requests = real_text.requests(head)
    try:
        expected = real_text.saved_model_runner(version_directory)(requests)
        largest = real_text.compare(head, requests, expected, target.run(path, requests))
    except InputError as error:
        raise InputError(f"--{name}: {error} Nothing was written for {title}.") from error
    sizes, more = [len(request["lengths"]) for request in requests], []
    if int8 and name == "onnx":
        path_of_int8 = os.path.join(directory, "model.int8.onnx")
        with open(path_of_int8, "wb") as file:
            file.write(target.convert(head, model, int8))
        more = [f"model.int8.onnx: {os.path.getsize(path_of_int8) / 1e6:.1f} MB, for ONNX Runtime alone"]
    return [
        f"{os.path.getsize(path) / 1e6:.1f} MB; token ids in, batch and length free",
        f"{sum(sizes)} real texts in batches of {', '.join(map(str, sizes))}: largest difference from the SavedModel "
        f"{largest:.1e}",
        *more,
    ]


def _write_bfloat16(head, directory: str, version_directory: str, with_cc: str) -> list[str]:
    from export.targets import reduced_precision
    from export.verification import verify

    report = reduced_precision.write_bfloat16(head, directory, with_cc)
    sizes = [verify.directory_bytes(path) / 1e6 for path in (directory, version_directory)]
    return [
        f"a SavedModel of {sizes[0]:.1f} MB (float32: {sizes[1]:.1f} MB); answers in a fresh process: largest "
        f"difference from the float32 Keras model's {report.largest_difference:.1e} (allowed {report.tolerance:.0e})",
        *reduced_precision.measure(head, version_directory, directory),
    ]
