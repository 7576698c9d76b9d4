"""Forward passes of the libraries that own a checkpoint format, to compare ours with.

Each returns those outputs of `tasks.conversion.proof.compute_outputs` that it has. They run only where they are
installed: transformers and torch are not dependencies of this project.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_bert.formats.checkpoint import Checkpoint


class Peer(NamedTuple):
    """A library that can run a checkpoint.

    Attributes:
        name: str, with version.
        outputs: function of a checkpoint (its directory is read anew) and a batch, to float32 arrays by output.
    """

    name: str
    outputs: Callable[[Checkpoint, dict[str, np.ndarray]], dict[str, np.ndarray]]


def find_peer(checkpoint: Checkpoint) -> Peer | None:
    """Returns the library that owns the checkpoint's format, if it is installed and can read it."""
    if checkpoint.format == "hugging_face" and os.path.isdir(checkpoint.source):
        if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
            return Peer(f"transformers {importlib.metadata.version('transformers')}", _transformers_outputs)
    if checkpoint.format == "keras_hub" and os.path.isdir(checkpoint.source):
        return Peer(f"KerasHub {importlib.metadata.version('keras-hub')}", _keras_hub_outputs)
    return None


def _transformers_outputs(checkpoint: Checkpoint, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch
    import transformers

    architecture = _architecture(checkpoint)
    model = getattr(transformers, architecture).from_pretrained(checkpoint.source, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    inputs = {
        theirs: torch.tensor(batch[ours]).long()
        for theirs, ours in (
            ("input_ids", "token_ids"),
            ("token_type_ids", "segment_ids"),
            ("attention_mask", "padding_mask"),
        )
    }
    with torch.no_grad():
        found = model(**inputs, output_hidden_states=True)
    real = batch["padding_mask"].astype(bool)
    outputs = {
        "embeddings" if index == 0 else f"layer {index}": state.numpy()[real]
        for index, state in enumerate(found.hidden_states)
    }
    rows = np.arange(len(real))[:, None]
    wanted = {
        "masked_lm": lambda: found.prediction_logits.numpy()[rows, batch["mask_positions"]],
        "next_sentence": lambda: found.seq_relationship_logits.numpy(),
        "classification": lambda: found.logits.numpy(),
        "token_classification": lambda: found.logits.numpy()[real],
        "question_answering": lambda: np.stack([found.start_logits, found.end_logits], axis=-1)[real],
    }
    if architecture == "BertForMaskedLM":
        wanted = {"masked_lm": lambda: found.logits.numpy()[rows, batch["mask_positions"]]}
    outputs |= {head: read() for head, read in wanted.items() if head in checkpoint.heads}
    if checkpoint.has_pooler:
        outputs["pooled_output"] = _transformers_pooled(model, found.hidden_states[-1])
    return outputs


def _architecture(checkpoint: Checkpoint) -> str:
    """Returns the class of transformers that has all of the checkpoint's heads."""
    heads = checkpoint.heads
    if "masked_lm" in heads and "next_sentence" not in heads and not checkpoint.has_pooler:
        return "BertForMaskedLM"
    of_heads = {
        "masked_lm": "BertForPreTraining",
        "next_sentence": "BertForPreTraining",
        "classification": "BertForSequenceClassification",
        "token_classification": "BertForTokenClassification",
        "question_answering": "BertForQuestionAnswering",
    }
    return next((of_heads[head] for head in heads if head in of_heads), "BertModel")


def _transformers_pooled(model, last_state) -> np.ndarray:
    import torch

    encoder = getattr(model, "bert", model)
    with torch.no_grad():
        return encoder.pooler(last_state).numpy()


def _keras_hub_outputs(checkpoint: Checkpoint, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import keras
    import keras_nlp

    backbone = keras_nlp.models.BertBackbone.from_preset(checkpoint.source)
    layers = {"embeddings": "embeddings_layer_norm"}
    layers |= {f"layer {index + 1}": f"transformer_layer_{index}" for index in range(backbone.num_layers)}
    symbols = {ours: backbone.get_layer(theirs).output for ours, theirs in layers.items()}
    model = keras.Model(backbone.input, {**symbols, "pooled_output": backbone.output["pooled_output"]})
    found = model.predict_on_batch({name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask")})
    real = batch["padding_mask"].astype(bool)
    outputs = {name: np.asarray(found[name])[real] for name in layers}
    return outputs | {"pooled_output": np.asarray(found["pooled_output"])}
