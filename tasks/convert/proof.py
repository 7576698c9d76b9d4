"""Proves a conversion: compares weights bit by bit, and outputs on a fixed batch.

Shapes: B batch, S sequence, P masked positions, H hidden, V vocabulary.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

import keras
import keras_nlp
import numpy as np

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats.checkpoint import Checkpoint
from keras_bert.formats.hugging_face_files import TENSORFLOW_FILE, find_weights
from keras_bert.formats.weight_names import HEADS, POOLER
from keras_bert.models import BertPretrainer
from keras_bert.presets.weights import load_weights_of

_LENGTHS = (24, 24, 17, 17, 9, 9, 2, 1)  # Real tokens of each sequence of the batch.
_POSITIONS = 3  # Masked positions of each sequence.

# What a format may lose, by the name before the first slash: KerasHub has heads of its own, and Hugging Face's token
# classifier and question-answering model have no pooler. Anything else that is missing is a fault.
_MAY_BE_LEFT_OUT = {"keras_hub": HEADS, "hugging_face": (POOLER,)}


class Proof(NamedTuple):
    """The differences between a checkpoint and its conversion.

    Attributes:
        source, target: `"format: path"`.
        num_weights: number of weights compared.
        changed: names of the weights that are not bit-identical after the conversion.
        left_out: heads, or the pooler, for which the target's format has no place.
        parameters: number of parameters compared.
        differences: largest absolute difference of each output between source and target.
        scales: largest absolute value of each output, to judge the differences by.
        peers: largest differences from the outputs of another library, by library (`"transformers 5.0 on the target"`).
    """

    source: str
    target: str
    num_weights: int
    changed: list[str]
    left_out: list[str]
    parameters: int
    differences: dict[str, float]
    scales: dict[str, float]
    peers: dict[str, dict[str, float]]


def fixed_batch(config) -> dict[str, np.ndarray]:
    """Returns eight padded sequences of 1 to 24 tokens, with the same random ids on every machine.

    Returns:
        `token_ids`, `segment_ids`, `padding_mask`, int32 (B, S), and `mask_positions`, int32 (B, P).
    """
    length = min(max(_LENGTHS), config.max_sequence_length)
    lengths = np.minimum(_LENGTHS, length)[:, None]
    rng = np.random.Generator(np.random.PCG64(12345))
    position = np.arange(length)[None]
    mask = position < lengths
    values = {
        "token_ids": rng.integers(0, config.vocabulary_size, mask.shape) * mask,
        "segment_ids": (position >= lengths // 2) * mask * min(1, config.num_segments - 1),
        "padding_mask": mask,
        "mask_positions": rng.integers(0, lengths, (len(lengths), _POSITIONS)),
    }
    return {name: value.astype("int32") for name, value in values.items()}


def compute_outputs(checkpoint: Checkpoint, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a checkpoint's encoder and heads in float32.

    Args:
        checkpoint: an open checkpoint.
        batch: as `fixed_batch` returns it.

    Returns:
        A dict of float32 arrays: `embeddings`, `layer 1`, ... of shape (real tokens, H); `pooled_output` (B, H),
        `masked_lm` (B, P, V), `next_sentence` (B, 2) and the logits of other heads, if the checkpoint has them.
    """
    heads = [head for head in ("masked_lm", "next_sentence") if head in checkpoint.heads]
    if heads:
        model = BertPretrainer.from_checkpoint(checkpoint)
        backbone = model.backbone
    else:
        backbone = BertBackbone(**checkpoint.config.to_dict())
        load_weights_of(backbone, checkpoint)
    outputs = encoder_outputs(backbone, "embeddings", batch)
    pooled, tokens = outputs["pooled_output"], outputs[f"layer {backbone.num_layers}"]
    if not checkpoint.has_pooler:
        del outputs["pooled_output"]
    if heads:
        predicted = model(batch, training=False)
        outputs |= {name: np.asarray(predicted[name]) for name in heads}
    for head in checkpoint.heads:  # The heads of fine-tuned models are linear.
        if f"{head}/kernel" in checkpoint.tensors and head not in ("next_sentence", "embedding"):
            kernel, bias = (checkpoint.tensors[f"{head}/{name}"].read() for name in ("kernel", "bias"))
            states = tokens if head in ("token_classification", "question_answering") else pooled
            outputs[head] = states @ kernel.astype("float32") + bias
    return outputs


def largest_differences(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the largest absolute difference of each output that both have."""
    return {name: float(np.abs(expected[name] - actual[name]).max()) for name in expected if name in actual}


def compare(source: Checkpoint, target: Checkpoint, names: tuple[str, str], compare_with_peers: bool) -> Proof:
    """Compares two open checkpoints, which should be the same model.

    Args:
        source: the converted checkpoint.
        target: the written checkpoint.
        names: `source` and `target` of the proof.
        compare_with_peers: whether to compare with the formats' own libraries, too, if they are installed.
    """
    batch = fixed_batch(source.config)
    expected, actual = compute_outputs(source, batch), compute_outputs(target, batch)
    parts = list(dict.fromkeys(path.partition("/")[0] for path in source.tensors))
    held = {path.partition("/")[0] for path in target.tensors}
    left_out = [name for name in parts if name not in held and name in _MAY_BE_LEFT_OUT.get(target.format, ())]
    compared = {path: stored for path, stored in source.tensors.items() if path.partition("/")[0] not in left_out}
    changed, parameters = [], 0
    for path, stored in compared.items():
        value = np.asarray(stored.read())
        parameters += value.size
        if path not in target.tensors or not _identical(value, np.asarray(target.tensors[path].read())):
            changed.append(path)
    peers = {}
    for checkpoint, side in ((source, "source"), (target, "target")):
        if compare_with_peers and (peer := find_peer(checkpoint)):
            library, outputs = peer
            peers[f"{library} on the {side}"] = largest_differences(expected, outputs(checkpoint, batch))
    return Proof(
        *names,
        num_weights=len(compared),
        changed=changed,
        left_out=left_out,
        parameters=parameters,
        differences=largest_differences(expected, actual),
        scales={name: float(np.abs(value).max()) for name, value in expected.items()},
        peers=peers,
    )


def _identical(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns whether two arrays are bit-identical after widening to float32."""
    return a.shape == b.shape and a.astype("float32").tobytes() == b.astype("float32").tobytes()


def check(proof: Proof, tolerance: float) -> None:
    """Refuses a conversion that lost something.

    Raises:
        InputError: a weight changed, or an output differs by more than `tolerance`.
    """
    if proof.changed:
        raise InputError(
            f"{proof.target}: after the conversion, {', '.join(proof.changed[:4])} differ from {proof.source}. Nothing "
            "was written. This is a fault of the conversion: please report it, with the source's configuration."
        )
    for where, differences in {"the target": proof.differences, **proof.peers}.items():
        for name, difference in differences.items():
            if not difference <= tolerance:
                raise InputError(
                    f"{proof.target}: {name} of {where} differs from {proof.source} by {difference:.2g}. Expected at "
                    f"most {tolerance:g} (--tolerance). Nothing was written."
                )


def format_proof(proof: Proof) -> str:
    """Formats the proof as a table with a line per output, and a column for the target and each peer."""
    same = "bit-identical" if not proof.changed else f"{len(proof.changed)} changed"
    lines = [
        f"from     {proof.source}",
        f"to       {proof.target}",
        f"weights  {proof.num_weights} with {proof.parameters:,} numbers, {same}",
        *([f"left out {', '.join(proof.left_out)}: the format has no place for it"] if proof.left_out else []),
        "",
        "Largest absolute difference of each output on a fixed batch of 8 sequences:",
    ]
    columns = {"largest value": proof.scales, "target": proof.differences, **proof.peers}
    rows = [("output", *columns)]
    for output in proof.differences:
        rows.append((output, *(f"{values[output]:.3g}" if output in values else "" for values in columns.values())))
    for output, *cells in rows:
        padded = (f"{cell:>{max(13, len(name))}}" for name, cell in zip(columns, cells, strict=True))
        lines.append("  ".join([f"{output:22}", *padded]))
    return "\n".join(lines)


# === Other libraries ===


def find_peer(checkpoint: Checkpoint) -> tuple[str, Callable] | None:
    """Finds the library that owns the checkpoint's format, if it is installed and can read the checkpoint.

    This project does not depend on transformers and torch, so both may be missing.

    Returns:
        Name and version of the library; and its forward pass, a function of checkpoint and batch that reads the
        checkpoint's directory again. It returns the outputs of `compute_outputs` that the library has.
    """
    if checkpoint.format == "hugging_face" and os.path.isdir(checkpoint.source):
        has_library = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
        # transformers 5 has no TensorFlow classes.
        if has_library and TENSORFLOW_FILE not in os.path.basename(find_weights(checkpoint.source)):
            return f"transformers {importlib.metadata.version('transformers')}", _transformers_outputs
    if checkpoint.format == "keras_hub" and os.path.isdir(checkpoint.source):
        return f"KerasHub {importlib.metadata.version('keras-hub')}", _keras_hub_outputs
    return None


# Head -> the class of transformers that has it, and the names of its logits there.
_TRANSFORMERS_HEADS = {
    "masked_lm": ("AutoModelForPreTraining", "prediction_logits"),
    "next_sentence": ("AutoModelForPreTraining", "seq_relationship_logits"),
    "classification": ("AutoModelForSequenceClassification", "logits"),
    "token_classification": ("AutoModelForTokenClassification", "logits"),
    "question_answering": ("AutoModelForQuestionAnswering", "start_logits", "end_logits"),
}


def _transformers_outputs(checkpoint: Checkpoint, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch
    import transformers

    heads = {head: _TRANSFORMERS_HEADS[head] for head in checkpoint.heads if head in _TRANSFORMERS_HEADS}
    if list(heads) == ["masked_lm"] and not checkpoint.has_pooler:
        heads = {"masked_lm": ("AutoModelForMaskedLM", "logits")}
    architecture = next((name for name, *_ in heads.values()), "AutoModel")
    model = getattr(transformers, architecture).from_pretrained(checkpoint.source, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    names = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
    if not hasattr(model.config, "type_vocab_size"):  # DistilBERT has no segments.
        del names["token_type_ids"]
    inputs = {theirs: torch.tensor(batch[ours]).long() for theirs, ours in names.items()}
    real, rows = batch["padding_mask"].astype(bool), np.arange(len(batch["padding_mask"]))[:, None]
    selected = {"masked_lm": (rows, batch["mask_positions"]), "token_classification": real, "question_answering": real}
    with torch.no_grad():
        results = model(**inputs, output_hidden_states=True)
        states = results.hidden_states
        outputs = {
            f"layer {layer}" if layer else "embeddings": state.numpy()[real] for layer, state in enumerate(states)
        }
        if checkpoint.has_pooler and (pooler := getattr(getattr(model, "bert", model), "pooler", None)):
            outputs["pooled_output"] = pooler(states[-1]).numpy()
    for head, (_, *names) in heads.items():
        logits = torch.stack([results[name] for name in names], dim=-1).squeeze(-1)
        outputs[head] = logits.numpy()[selected.get(head, ...)]
    return outputs


def _keras_hub_outputs(checkpoint: Checkpoint, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    backbone = keras_nlp.models.BertBackbone.from_preset(checkpoint.source)
    return encoder_outputs(backbone, "embeddings_layer_norm", batch)


def encoder_outputs(backbone, embeddings: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a Keras encoder eagerly, since tracing a graph for one batch would take longer.

    Args:
        backbone: BertBackbone, ours or KerasHub's.
        embeddings: name of the layer that outputs the embeddings.
        batch: as `fixed_batch` returns it.

    Returns:
        A dict of float32 arrays: `embeddings`, `layer 1`, ... of shape (real tokens, H), and `pooled_output` (B, H).
    """
    layers = {"embeddings": embeddings}
    layers |= {f"layer {index + 1}": f"transformer_layer_{index}" for index in range(backbone.num_layers)}
    states = {output: backbone.get_layer(layer).output for output, layer in layers.items()}
    model = keras.Model(backbone.input, {**states, "pooled_output": backbone.output["pooled_output"]})
    outputs = model({name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask")}, training=False)
    is_real = batch["padding_mask"].astype(bool)
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return arrays | {name: arrays[name].reshape(*is_real.shape, -1)[is_real] for name in layers}
