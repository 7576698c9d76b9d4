"""The proof of a conversion: weights compared bit by bit, outputs compared on a fixed batch.

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
from keras_bert.formats.weight_names import HEADS, POOLER
from keras_bert.models import BertPretrainer
from keras_bert.presets.weights import load_weights_of

_LENGTHS = (24, 24, 17, 17, 9, 9, 2, 1)  # real tokens of each sequence of the batch
_POSITIONS = 3  # masked positions of each


# What a format may lose, by the name before the first slash: KerasHub has heads of its own, and Hugging Face's token
# classifier and question-answering model have no pooler. Anything else that is missing is a fault.
_MAY_BE_LEFT_OUT = {"keras_hub": HEADS, "hugging_face": (POOLER,)}


class Proof(NamedTuple):
    """The differences that were found.

    Attributes:
        source, target: str, `"format: path"`.
        num_weights: int, weights compared.
        changed: list of str, those that are not bit-identical after the way there and back.
        left_out: list of str, heads, or the pooler, that the target's format has no place for.
        parameters: int, numbers in all weights.
        differences: dict, largest absolute difference of each output between source and target.
        scales: dict, largest absolute value of each output, to read the differences by.
        peers: dict, by peer (`"transformers 5.0 on the target"`) the largest differences from its outputs.
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
        checkpoint: an open one.
        batch: as `fixed_batch` gives it.

    Returns:
        float32 by output: `embeddings`, `layer 1`, ... of shape (real tokens, H); `pooled_output` (B, H), `masked_lm`
        (B, P, V), `next_sentence` (B, 2) and the logits of the other heads, each if the checkpoint has it.
    """
    heads = [head for head in ("masked_lm", "next_sentence") if head in checkpoint.heads]
    if heads:
        model = BertPretrainer.from_checkpoint(checkpoint)
        backbone = model.backbone
    else:
        backbone = BertBackbone(**checkpoint.config.to_dict())
        load_weights_of(backbone, checkpoint)
    outputs = encoder_outputs(backbone, "embeddings", batch)
    logits = _linear_heads(checkpoint, outputs["pooled_output"], outputs[f"layer {backbone.num_layers}"])
    if not checkpoint.has_pooler:
        del outputs["pooled_output"]
    if heads:
        predicted = model(batch, training=False)
        outputs |= {name: np.asarray(predicted[name]) for name in heads}
    return outputs | logits


def _linear_heads(checkpoint: Checkpoint, pooled: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the logits of fine-tuned heads, of the pooled output or of each real token."""
    logits = {}
    for head in checkpoint.heads:
        if f"{head}/kernel" in checkpoint.tensors and head not in ("next_sentence", "embedding"):
            kernel, bias = (checkpoint.tensors[f"{head}/{part}"].read() for part in ("kernel", "bias"))
            of_tokens = head in ("token_classification", "question_answering")
            logits[head] = (tokens if of_tokens else pooled) @ kernel.astype("float32") + bias
    return logits


def largest_differences(expected: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the largest absolute difference of each output that both have."""
    return {name: float(np.abs(expected[name] - found[name]).max()) for name in expected if name in found}


def compare(source: Checkpoint, target: Checkpoint, compare_with_peers: bool = True) -> Proof:
    """Compares two open checkpoints, which should be the same model.

    Args:
        source: what was converted.
        target: what was written.
        compare_with_peers: run the formats' own libraries too, where they are installed.
    """
    batch = fixed_batch(source.config)
    expected, found = compute_outputs(source, batch), compute_outputs(target, batch)
    changed, parameters = [], 0
    left_out = _left_out(source, target)
    for path, stored in source.tensors.items():
        if path.partition("/")[0] in left_out:
            continue
        value = np.asarray(stored.read())
        parameters += value.size
        if path not in target.tensors or not _identical(value, np.asarray(target.tensors[path].read())):
            changed.append(path)
    differences = {}
    for checkpoint, side in ((source, "source"), (target, "target")):
        peer = find_peer(checkpoint) if compare_with_peers else None
        if peer is not None:
            name, outputs = peer
            differences[f"{name} on the {side}"] = largest_differences(expected, outputs(checkpoint, batch))
    return Proof(
        f"{source.format}: {source.source}",
        f"{target.format}: {target.source}",
        len(source.tensors),
        changed,
        left_out,
        parameters,
        largest_differences(expected, found),
        {name: float(np.abs(value).max()) for name, value in expected.items()},
        differences,
    )


def _left_out(source: Checkpoint, target: Checkpoint) -> list[str]:
    """Returns the heads, or the pooler, that the target lacks because its format has no place for them."""
    held = {path.partition("/")[0] for path in target.tensors}
    names = dict.fromkeys(path.partition("/")[0] for path in source.tensors)
    return [name for name in names if name not in held and name in _MAY_BE_LEFT_OUT.get(target.format, ())]


def _identical(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns whether the numbers are the same bit for bit, after widening to float32."""
    return a.shape == b.shape and a.astype("float32").tobytes() == b.astype("float32").tobytes()


def check(proof: Proof, tolerance: float) -> None:
    """Refuses a conversion that lost something.

    Raises:
        InputError: a weight changed, or an output differs by more than `tolerance`.
    """
    if proof.changed:
        raise InputError(
            f"{proof.target}: {', '.join(proof.changed[:4])} did not come back as in {proof.source}. Nothing was "
            "written. This is a fault of the conversion: please report it, with the source's configuration."
        )
    for where, differences in {"the target": proof.differences, **proof.peers}.items():
        for name, difference in differences.items():
            if not difference <= tolerance:
                raise InputError(
                    f"{proof.target}: {name} of {where} differs from {proof.source} by {difference:.2g}. Expected at "
                    f"most {tolerance:g} (--tolerance). Nothing was written."
                )


def format_proof(proof: Proof) -> str:
    """Renders the proof as a table: an output a line, a column for the target and for each peer."""
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
    lines.append("  ".join([f"{'output':22}", *(f"{name:>13}" for name in columns)]))
    for output in proof.differences:
        cells = []
        for name, values in columns.items():
            cell = f"{values[output]:.3g}" if output in values else ""
            cells.append(f"{cell:>{max(13, len(name))}}")
        lines.append("  ".join([f"{output:22}", *cells]))
    return "\n".join(lines)


# === Other libraries ===

# Forward passes of the libraries that own a checkpoint format, to compare with ours. Each returns the outputs of
# `compute_outputs` that it has. transformers and torch are no dependencies of this project.
Outputs = Callable[[Checkpoint, dict[str, np.ndarray]], dict[str, np.ndarray]]


def find_peer(checkpoint: Checkpoint) -> tuple[str, Outputs] | None:
    """Finds the library that owns the checkpoint's format, if it is installed and can read it.

    Returns:
        Its name and version; and a function of a checkpoint (its directory is read anew) and a batch, to float32 arrays
        by output.
    """
    if checkpoint.format == "hugging_face" and os.path.isdir(checkpoint.source):
        if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
            return f"transformers {importlib.metadata.version('transformers')}", _transformers_outputs
    if checkpoint.format == "keras_hub" and os.path.isdir(checkpoint.source):
        return f"KerasHub {importlib.metadata.version('keras-hub')}", _keras_hub_outputs
    return None


# The class of transformers that has a head, by the head.
_ARCHITECTURES = {
    "masked_lm": "BertForPreTraining",
    "next_sentence": "BertForPreTraining",
    "classification": "BertForSequenceClassification",
    "token_classification": "BertForTokenClassification",
    "question_answering": "BertForQuestionAnswering",
}


def _transformers_outputs(checkpoint: Checkpoint, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch
    import transformers

    heads = checkpoint.heads
    architecture = next((_ARCHITECTURES[head] for head in heads if head in _ARCHITECTURES), "BertModel")
    if "masked_lm" in heads and "next_sentence" not in heads and not checkpoint.has_pooler:
        architecture, heads = "BertForMaskedLM", ["masked_lm"]
    model = getattr(transformers, architecture).from_pretrained(checkpoint.source, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    names = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
    inputs = {theirs: torch.tensor(batch[ours]).long() for theirs, ours in names.items()}
    real, rows = batch["padding_mask"].astype(bool), np.arange(len(batch["padding_mask"]))[:, None]
    with torch.no_grad():
        found = model(**inputs, output_hidden_states=True)
        states = found.hidden_states
        outputs = {
            f"layer {index}" if index else "embeddings": state.numpy()[real] for index, state in enumerate(states)
        }
        if checkpoint.has_pooler:
            outputs["pooled_output"] = getattr(model, "bert", model).pooler(states[-1]).numpy()
    logits = found.logits if architecture == "BertForMaskedLM" else found.get("prediction_logits")
    wanted = {
        "masked_lm": lambda: logits.numpy()[rows, batch["mask_positions"]],
        "next_sentence": lambda: found.seq_relationship_logits.numpy(),
        "classification": lambda: found.logits.numpy(),
        "token_classification": lambda: found.logits.numpy()[real],
        "question_answering": lambda: np.stack([found.start_logits, found.end_logits], axis=-1)[real],
    }
    return outputs | {head: read() for head, read in wanted.items() if head in heads}


def _keras_hub_outputs(checkpoint: Checkpoint, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    backbone = keras_nlp.models.BertBackbone.from_preset(checkpoint.source)
    return encoder_outputs(backbone, "embeddings_layer_norm", batch)


def encoder_outputs(backbone, embeddings: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a Keras encoder eagerly: for one batch, tracing a graph would take longer.

    Args:
        backbone: BertBackbone, ours or KerasHub's.
        embeddings: name of the layer that outputs the embeddings.
        batch: as `fixed_batch` returns it.

    Returns:
        float32 by output: `embeddings`, `layer 1`, ... of shape (real tokens, H), and `pooled_output` (B, H).
    """
    layers = {f"layer {index + 1}": f"transformer_layer_{index}" for index in range(backbone.num_layers)}
    symbols = {ours: backbone.get_layer(theirs).output for ours, theirs in {"embeddings": embeddings, **layers}.items()}
    model = keras.Model(backbone.input, {**symbols, "pooled_output": backbone.output["pooled_output"]})
    found = model({name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask")}, training=False)
    arrays = {name: np.asarray(value) for name, value in found.items()}
    is_real = batch["padding_mask"].astype(bool)
    states = {name: arrays[name].reshape(*is_real.shape, -1)[is_real] for name in symbols}
    return {**states, "pooled_output": arrays["pooled_output"]}
