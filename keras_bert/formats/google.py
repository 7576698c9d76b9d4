"""google-research/bert's TensorFlow 1 checkpoint: `bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`.

Its variables are found by name; those of an optimizer (`.../adam_m`, `global_step`) are ignored.

In `bert_config.json`, `"gelu"` means the tanh form (modeling.py:264); for the erf form see `BertConfig.to_google`.
`do_lower_case` in the same file is ours; Google's code accepts any setting and ignores this one (modeling.py:87).
"""

import contextlib
import os
from collections.abc import Iterator

import numpy as np
from absl import logging

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_optional_object, write_json, write_lines
from keras_bert.formats import hugging_face_files, tensorflow_files
from keras_bert.formats.checkpoint import Checkpoint, check_depth, check_heads_follow_encoder, collect, listed
from keras_bert.formats.tensorflow_files import TensorFlowCheckpoint, find_prefix, find_vocabulary, mentions
from keras_bert.formats.weight_names import GOOGLE, HEADS, encoder_sources, head_sources

CONFIG_FILE = "bert_config.json"
CHECKPOINT_NAME = "bert_model.ckpt"
_LOWERCASE = "do_lower_case"
_EPSILON = 1e-12  # The epsilon of tf.contrib.layers.layer_norm, which no configuration can change.


def matches(path: str) -> bool:
    has_config = os.path.isfile(_config_file(path))
    has_other_config = os.path.isfile(os.path.join(path, hugging_face_files.CONFIG_FILE))
    prefix = find_prefix(path)
    if prefix is None:  # With a config.json beside it, the directory is Hugging Face's and only keeps Google's file.
        return has_config and not has_other_config
    if not has_config and has_other_config and hugging_face_files.find_weights(path) is not None:
        return False  # Hugging Face's, beside the files that it was converted from.
    return not mentions(prefix, tensorflow_files.OBJECT_GRAPH) and (has_config or mentions(prefix, "bert/embeddings/"))


def read_config(path: str) -> BertConfig:
    file = _config_file(path)
    if not os.path.isfile(file):
        raise InputError(f"{file}: no such file. Expected the sizes of the model beside its checkpoint.")
    return BertConfig.from_json_file(file)


def _config_file(path: str) -> str:
    return os.path.join(tensorflow_files.directory_of(path), CONFIG_FILE)


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    config = read_config(path)
    prefix = find_prefix(path)
    if prefix is None:
        raise InputError(f"{path}: no checkpoint. Expected {CHECKPOINT_NAME}.index and its data beside {CONFIG_FILE}.")
    stored = TensorFlowCheckpoint(prefix)
    available = {name: stored.tensor(name) for name in stored.shapes}
    tensors, missing = collect(encoder_sources(GOOGLE, config.num_layers), available, prefix)
    missing = [name for name in missing if not name.startswith("bert/pooler/")]
    if missing:
        raise InputError(
            f"{prefix}: lacks {listed(missing)}. Expected the variables of a BERT with {config.num_layers} layers by "
            f"{CONFIG_FILE}, found {listed(sorted(available))}."
        )
    check_depth(available, "bert/encoder/layer_", config.num_layers, prefix, CONFIG_FILE)
    for head in HEADS:
        head_tensors, missing = collect(head_sources(GOOGLE, head), available, prefix)
        if not missing:
            tensors.update(head_tensors)
    yield Checkpoint("google", path, config, tensors)


def read_tokenizer(path: str) -> dict | None:
    vocabulary = find_vocabulary(path) if matches(path) else None
    if vocabulary is None:
        return None
    lowercase = read_optional_object(_config_file(path)).get(_LOWERCASE)
    return {"vocabulary": vocabulary, "lowercase": lowercase if isinstance(lowercase, bool) else None}


def write(path: str, checkpoint: Checkpoint, tokenizer: dict | None) -> None:
    """Writes a checkpoint that `tf.compat.v1.train.Saver` and `init_from_checkpoint` read, in float32.

    Args:
        path: directory, which must not exist.
        checkpoint: an open checkpoint.
        tokenizer: `vocabulary`, list of pieces, and `lowercase`, bool; or None.

    Raises:
        InputError: a head has no place in this format.
    """
    _check_writable(checkpoint)
    os.makedirs(path)
    lowercase = {} if tokenizer is None else {_LOWERCASE: tokenizer["lowercase"]}
    write_json(os.path.join(path, CONFIG_FILE), {**checkpoint.config.to_google(), **lowercase})
    sources = encoder_sources(GOOGLE, checkpoint.config.num_layers) + head_sources(GOOGLE, *checkpoint.heads)
    values = {name: np.asarray(part, "float32") for _, name, part in checkpoint.foreign_tensors(sources)}
    _write_variables(os.path.join(path, CHECKPOINT_NAME), values)
    state = [f'{key}: "{CHECKPOINT_NAME}"' for key in ("model_checkpoint_path", "all_model_checkpoint_paths")]
    write_lines(os.path.join(path, tensorflow_files.STATE_FILE), state)
    if tokenizer is not None:
        write_lines(os.path.join(path, tensorflow_files.VOCABULARY_FILE), tokenizer["vocabulary"])


def _check_writable(checkpoint: Checkpoint) -> None:
    homeless = [head for head in checkpoint.heads if not head_sources(GOOGLE, head)]
    if homeless:
        raise InputError(
            f"{checkpoint.source}: google-research/bert's checkpoint has no place for the head {', '.join(homeless)}. "
            "Expected masked_lm, next_sentence, classification, question_answering or none."
        )
    check_heads_follow_encoder(checkpoint, "google-research/bert")
    if checkpoint.has_pooler and checkpoint.config.pooler_activation != "tanh":
        raise InputError(
            f"{checkpoint.source}: its pooler has {checkpoint.config.pooler_activation}, and google-research/bert's "
            "tanh. Keep it in our format."
        )
    if checkpoint.config.layer_norm_epsilon != _EPSILON:
        message = "%s: layer_norm_epsilon %g is written, but google-research/bert's own code computes with %g."
        logging.warning(message, checkpoint.source, checkpoint.config.layer_norm_epsilon, _EPSILON)


def _write_variables(prefix: str, values: dict[str, np.ndarray]) -> None:
    """Writes the files of a Saver, with the op that a Saver runs."""
    import tensorflow as tf

    names = sorted(values)
    tensors = [values[name] for name in names]
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
