"""Forward passes of the libraries that own a checkpoint format, to compare with ours.

Each returns the outputs of `tasks.conversion.proof.compute_outputs` that it has. They run only if they are installed:
transformers and torch are not dependencies of this project.

Shapes: B batch, H hidden size.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable

import numpy as np

from keras_bert.formats.checkpoint import Checkpoint

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
    import keras_nlp

    backbone = keras_nlp.models.BertBackbone.from_preset(checkpoint.source)
    return encoder_outputs(backbone, "embeddings_layer_norm", batch)


def encoder_outputs(backbone, embeddings: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a Keras encoder eagerly: for one batch, tracing a graph would take longer.

    Args:
        backbone: BertBackbone, ours or KerasHub's.
        embeddings: name of the layer that outputs the embeddings.
        batch: as `tasks.conversion.proof.fixed_batch` returns it.

    Returns:
        float32 by output: `embeddings`, `layer 1`, ... of shape (real tokens, H), and `pooled_output` (B, H).
    """
    import keras

    layers = {f"layer {index + 1}": f"transformer_layer_{index}" for index in range(backbone.num_layers)}
    symbols = {ours: backbone.get_layer(theirs).output for ours, theirs in {"embeddings": embeddings, **layers}.items()}
    model = keras.Model(backbone.input, {**symbols, "pooled_output": backbone.output["pooled_output"]})
    found = model({name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask")}, training=False)
    arrays = {name: np.asarray(value) for name, value in found.items()}
    is_real = batch["padding_mask"].astype(bool)
    states = {name: arrays[name].reshape(*is_real.shape, -1)[is_real] for name in symbols}
    return {**states, "pooled_output": arrays["pooled_output"]}
