"""Writes a trained model as a versioned SavedModel, texts in and answers out, and verifies it before publishing."""

import os
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from export import companion_files
from export.base_path import ENCODERS_FILE, HEAD_FILE, INT8_FILE, MAX_VERSION, TEXTS_FILE, numbered_versions
from export.graph.model_copies import is_float32, rebuild, rebuild_for_serving
from export.heads.base import Head
from export.heads.classification import Classification, LabelSet
from export.heads.loading import HEADS
from export.heads.sequence import SequenceHead
from export.verification import cc_check, verify
from keras_bert import files
from keras_bert.answers.text_bounds import find_backbone
from keras_bert.errors import InputError
from keras_bert.tokenization.preprocessor import BertPreprocessor

_REPORT_FILE = os.path.join("assets.extra", "verification.json")


def export_model(
    model: keras.Model,
    preprocessor: BertPreprocessor,
    directory: str,
    *,
    task: str = "classification",
    version: int | None = None,
    with_cc: str = "auto",
    **settings,
) -> str:
    """Writes a trained model as a new version under a base path that TensorFlow Serving watches; see `export_head`.

    Args:
        model: the task's model, such as a `BertTextClassifier`, from encoder inputs to its outputs.
        preprocessor: gives the tokenizer and `sequence_length`. The graph always pads to the batch's longest.
        directory, version, with_cc: as in `export_head`.
        task: name of the head (`export.heads.loading.HEADS`). A `multi_label` classifier has its own in any case.
        **settings: further arguments of the head: for a classifier `labels`, names of the classes in the order of the
            logits, and `num_texts`, 2 for a model of text pairs. Default: `model.labels` and `model.answer_settings`.

    Returns:
        The version's directory, such as `directory/1`.

    Raises:
        InputError, VerificationError: as `export_head`.
        ValueError: the arguments do not fit together.

    Example: `export_model(model, BertPreprocessor(tokenizer, 128), "served/mood", labels=["bad", "good"])`
    """
    if task not in HEADS:
        raise ValueError(f"`task` must be one of {', '.join(HEADS)}. Received: task={task!r}")
    head_class = HEADS[LabelSet.task if getattr(model, "multi_label", False) and task == Classification.task else task]
    kept = {"labels": getattr(model, "labels", None), **getattr(model, "answer_settings", {}), **settings}
    known = head_class.trained_settings + head_class.later_settings
    given = {name: value for name, value in kept.items() if name in settings or (name in known and value is not None)}
    if "labels" in known and "labels" not in given:
        raise ValueError(f"`labels` must name the {model.output_shape[-1]} classes, in the order of the outputs.")
    return export_head(head_class(model, preprocessor, **given), directory, version, with_cc)


def check_target(directory: str, version: int | None, with_cc: str) -> None:
    """Refuses what cannot become a version before anything that takes long, and makes no local directory.

    Args:
        directory, version, with_cc: as in `export_head`.

    Raises:
        InputError: the version exists, the base path cannot be written, or there is no compiler for `with_cc="on"`.
    """
    place = directory = files.absolute(directory)
    while not files.is_remote(place) and not files.exists(place):
        place = os.path.dirname(place)
    files.check_writable(place)
    _check_version_is_free(directory, version)
    if with_cc == "on":
        cc_check.require_compiler()


def export_head(
    head: Head, directory: str, version: int | None = None, with_cc: str = "auto", int8: Mapping | None = None
) -> str:
    """Writes a head as a new version under a base path that TensorFlow Serving watches.

    The version is built under another name in the base path, verified there (`verify.verify`), and renamed once it has
    passed, so a server that polls the base path sees a complete version or none. For a bucket it is built on this
    machine and uploaded. The `saved_model.pb` is uploaded last, since servers ignore a version without it.

    Args:
        head: the trained model of one task; exported in float32 whatever it was trained in.
        directory: base path; versions are its numeric sub-directories.
        version: number of the version; None: one more than the highest there.
        with_cc: one of `verify.WITH_CC`, whether to run the C++ program as well.
        int8: `export.targets.int8.Decision.content`, for bert-serve.

    Returns:
        The version's directory, such as `directory/1`.

    Raises:
        InputError: the model has LoRA's factors or quantized weights, the version exists or no number is left, the base
            path cannot be written, or `with_cc` is "on" but there is no compiler.
        ValueError: `version` is out of range, or the model holds no BertBackbone.
        VerificationError: the export does not answer as the model does; nothing was published.
    """
    if version is not None and not 0 <= version <= MAX_VERSION:
        raise ValueError(f"`version` must not be negative, and fit an int64. Received: version={version}")
    layers = head.model._flatten_layers()
    if any(getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None) for layer in layers):
        raise InputError(
            "A model with LoRA's factors or quantized weights cannot be exported. Export what `save_to_preset` "
            "writes, which merges LoRA. For 8 bits, export floats by bert-export --int8."
        )
    check_target(directory, version, with_cc)
    directory = files.absolute(directory)
    files.check_writable(directory)
    if files.is_remote(directory):
        version = next_version(directory) if version is None else version
        with files.atomic_path(os.path.join(directory, str(version))) as temporary:
            os.mkdir(temporary)
            _write(head, temporary, with_cc, int8)
            _check_version_is_free(directory, version)  # Another export may have taken it.
        return os.path.join(directory, str(version))
    with files.temporary_path(os.path.join(directory, "version")) as temporary:
        os.mkdir(temporary)
        _write(head, temporary, with_cc, int8)
        return _publish(temporary, directory, version)


def read_report(version_directory: str) -> verify.Report:
    """Reads the verification figures that `export_head` left in a version's `assets.extra/verification.json`."""
    return verify.Report(**files.read_json(os.path.join(version_directory, _REPORT_FILE)))


def _check_version_is_free(directory: str, version: int | None) -> None:
    for number, path in numbered_versions(directory) if files.is_directory(directory) else ():
        if number == version:
            raise InputError(f"{path}: this version exists. Choose another --version.")


def _write(head: Head, directory: str, with_cc: str, int8: Mapping | None) -> None:
    reference = head.model if is_float32(head.model) else rebuild(head.model)
    report = write_verified(head, rebuild_for_serving(head.model), head.probes(reference), directory, with_cc)
    files.write_json(os.path.join(directory, _REPORT_FILE), report._asdict())
    if int8 is not None:
        files.write_json(os.path.join(directory, INT8_FILE), int8)


def write_verified(head: Head, served: keras.Model, probes: Sequence, directory: str, with_cc: str) -> verify.Report:
    """Writes a version with the files beside its graph, and verifies it.

    Args:
        head: gives signatures and files.
        served: the model on which the signatures are traced.
        probes, with_cc: as in `verify.verify`.
        directory: becomes the version; need not exist.

    Raises:
        VerificationError: the graph does not answer as `probes` say.
    """
    weight_bytes = write_graph(head, served, directory)
    companion_files.write_extras(directory, head)
    return verify.verify(directory, probes, weight_bytes, with_cc)


def write_graph(head: Head, model: keras.Model, directory: str) -> int:
    """Writes a head's signatures, the weights that they use and a description of the encoders; verifies nothing.

    Args:
        head: gives the signatures.
        model: the model on which the signatures are traced; see `rebuild_for_serving`.
        directory: becomes a SavedModel.

    Returns:
        Size of the weights in bytes, each counted once.
    """
    functions = head.functions(model)
    # Track the weights alone, as plain variables. Tracking the Keras model as well would store each weight twice
    # (keras-team/keras issue 23553), and nothing else in the graph has state.
    used = {id(handle) for function in functions.values() for handle in function.graph.external_captures}
    module = tf.Module()
    variables = (*(weight.value for weight in model.weights), *find_backbone(model).rounded)
    module.weights = [variable for variable in variables if id(variable.handle) in used]
    module.more = [*head.variables, *(weight.value for other in head.more_models for weight in other.weights)]
    tf.saved_model.save(module, directory, signatures=functions)
    groups = {"weights": module.weights, "more": module.more}
    names = {id(own): f"{group}/{number}" for group in groups for number, own in enumerate(groups[group])}
    encoders = map(find_backbone, (model, *head.more_models))
    described = [encoder.describe(names) for encoder in encoders if encoder.is_described]
    # For `bert-serve`, to run them in ONNX Runtime.
    files.write_json(os.path.join(directory, ENCODERS_FILE), described)
    if described and (encoding := head.encoding()):
        files.write_json(os.path.join(directory, TEXTS_FILE), encoding)
        with open(os.path.join(directory, HEAD_FILE), "wb") as file:
            file.write(_head_graph(head, model))
    numbers = (variable for variable in (*module.weights, *module.more) if variable.dtype != tf.string)
    return sum(int(np.prod(variable.shape)) * variable.dtype.size for variable in numbers)


def _head_graph(head: SequenceHead, model: keras.Model) -> bytes:
    """Returns the graph from the encoder's inputs and outputs to the answer, by their names, with constant weights.

    From now on, `model` reads the encoder's outputs in place of computing them.
    """
    backbone = find_backbone(model)
    ids = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), tf.TensorSpec([None, None], tf.int32))
    states = {
        "pooled_output": tf.TensorSpec([None, backbone.hidden_dim]),
        "sequence_output": tf.TensorSpec([None, None, backbone.hidden_dim]),
    }

    def answer(**given):
        backbone.encode_by(lambda *_: {name: given[name] for name in states})
        encoded = {name: given[name] for name in ids}
        answers = head.complete(head.answer(model(encoded, training=False), encoded))
        return {name: tf.identity(value, name=f"answer/{name}") for name, value in answers.items()}

    traced = tf.function(answer, autograph=False).get_concrete_function(**ids, **states)
    return convert_variables_to_constants_v2(traced).graph.as_graph_def().SerializeToString()


def _publish(temporary: str, directory: str, version: int | None) -> str:
    """Renames the finished directory to its version number, but never over one that another export has taken."""
    while True:
        target = os.path.join(directory, str(next_version(directory) if version is None else version))
        try:
            os.rename(temporary, target)
            return target
        except OSError as error:
            if not os.path.lexists(target):
                raise InputError(
                    f"{target}: cannot be created ({error.strerror}). Choose another --export_dir."
                ) from error
            _check_version_is_free(directory, version)


def next_version(directory: str) -> int:
    """Returns the number after the highest version under a base path, 1 if there is none.

    Raises:
        InputError: the highest version has the last possible number.
    """
    newest = max((number for number, _ in numbered_versions(directory)), default=0)
    if newest == MAX_VERSION:
        raise InputError(f"{directory}: {newest} is the last version that there can be. Choose a free --version.")
    return newest + 1
