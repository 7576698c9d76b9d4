"""The tagger: backbone, dropout, linear layer on every token's representation (paper, sections 4.1 and 5.3; no CRF).

Shapes: B batch, S sequence, C labels.
"""

from typing import NamedTuple

import keras

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.heads import output_head
from keras_bert.tokenizer import BertTokenizer
from tasks import model_files

HEAD = "token_classification"
SCHEME = "iob2"


class Tagger(NamedTuple):
    """A trained tagger with all that answers need.

    Attributes:
        model: keras.Model, encoder inputs to float32 logits of shape (B, S, C).
        tokenizer: BertTokenizer; words are tokenized one by one, and a word's first sub-token is asked.
        labels: list of str; class i is labels[i].
        sequence_length: int, tokens of a window at most, special tokens included.
        scheme: str, the labels' scheme, "iob2".
        document_context: str, one of `tasks.ner.windows.DOCUMENT_CONTEXT`.
        doc_stride: int, as in `tasks.ner.windows.make_windows`.
    """

    model: keras.Model
    tokenizer: BertTokenizer
    labels: list[str]
    sequence_length: int
    scheme: str = SCHEME
    document_context: str = "none"
    doc_stride: int = 1


def build_tagger(backbone: BertBackbone, num_labels: int, dropout: float | None = None) -> keras.Model:
    """Puts a token classification head on a backbone.

    Args:
        backbone: BertBackbone.
        num_labels: int, at least 2.
        dropout: float, on every token's representation (as transformers' `BertForTokenClassification`); None: the
            encoder's.

    Returns:
        A functional model, the backbone's inputs to float32 logits of shape (B, S, num_labels).
    """
    if num_labels < 2:
        raise ValueError(f"`num_labels` must be at least 2. Received: num_labels={num_labels}")
    rows = backbone(backbone.input)["sequence_output"]  # [B, S, H]
    dropout = backbone.dropout if dropout is None else dropout
    rows = keras.layers.Dropout(dropout, dtype=backbone.dtype_policy, name="tagger_dropout")(rows)
    logits = output_head(num_labels, backbone.initializer_range, name=HEAD)(rows)
    return keras.Model(backbone.input, logits, name="tagger")


def save_tagger(directory: str, tagger: Tagger) -> None:
    """Writes a tagger's directory, whole or not at all: `model.keras`, the tokenizer, `task.json`."""
    values = tagger._asdict()
    model, tokenizer = values.pop("model"), values.pop("tokenizer")
    model_files.save_model(directory, model, tokenizer, {"task": HEAD, **values})


def load_tagger(directory: str) -> Tagger:
    """Reads what `save_tagger` wrote.

    Raises:
        InputError: a file is missing or damaged, or the directory is of another task.
    """
    model, tokenizer, task = model_files.load_model(directory, HEAD, "bert-ner")
    missing = [name for name in Tagger._fields[2:] if name not in task]
    if missing:
        raise InputError(f"{directory}/{model_files.TASK_FILE}: lacks {', '.join(missing)}. Train it again.")
    if model.output_shape[-1] != len(task["labels"]):
        raise InputError(
            f"{directory}/{model_files.TASK_FILE}: {len(task['labels'])} labels, but the model has "
            f"{model.output_shape[-1]} outputs."
        )
    return Tagger(model, tokenizer, **{name: task[name] for name in Tagger._fields[2:]})
