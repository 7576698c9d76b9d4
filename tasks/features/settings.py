"""Settings of `bert-features`: one set of flags for extraction and for the feature-based tagger.

With L encoder layers, number 0 is the embeddings' output, and 1 to L are the encoder layers from the bottom.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import ClassVar

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.weights import read_bert_config
from tasks.fine_tuning.entity_task import EntitySettings
from tasks.fine_tuning.inputs import check_positions, require_preset
from tasks.settings import changeable, replaced, setting

EMBEDDINGS = "embeddings"
ALL = "all"
COMBINES = ("none", "concatenate", "sum", "mean", "weighted_sum")
POOLINGS = ("none", "cls", "mean", "pooler")
DEFAULT_LAYERS = ("-1", "-2", "-3", "-4")  # google-research/bert extract_features.py
DEFAULT_OUTPUT = "features.npz"
# Settings of one task only are refused in the other; those not listed are of the tagger.
EXTRACTION = frozenset({"input_file", "input_format", "output_file", "layer_weights", "pooling", "normalize"})
SHARED = frozenset(
    {
        *("task_name", "output_dir", "preset", "init_checkpoint", "bert_config_file", "vocab_file", "do_lower_case"),
        *("load_weights", "random_seed", "layers", "combine", "max_seq_length", "eval_batch_size", "bad_rows"),
        *("tag_column", "delimiter", "tag_scheme"),
    }
)


class FeatureSettings(EntitySettings):
    """Settings of `bert-features`, which are its flags.

    Raises:
        InputError: a value is out of its bounds, or belongs to the other task.
    """

    task_name: str = changeable(
        "extract", "extract: write embeddings; ner: train a tagger on frozen ones.", choices=("extract", "ner")
    )
    output_dir: str | None = changeable(
        None, "Directory for everything else that a run writes: results; for ner also model, features and curve."
    )
    # === What is extracted ===
    input_file: str | None = changeable(None, "Files to read: paths or patterns, separated by commas.")
    input_format: str = changeable(
        "text", "text: one text per line; conll: one word per line, blank lines between.", choices=("text", "conll")
    )
    output_file: str | None = changeable(None, f"File for the embeddings; default: {DEFAULT_OUTPUT} in --output_dir.")
    # For ner the spec identifies a run by its layers and their combination.
    layers: list[str] | None = changeable(
        None,
        "1 to the number of layers, -1 the last, 0 or embeddings, or all. Default: -1,-2,-3,-4; with --pooling: -1.",
    )
    combine: str = changeable("none", "Way to combine the layers; for ner none means concatenate.", choices=COMBINES)
    layer_weights: list[str] | None = changeable(None, "Factor of each layer, for --combine=weighted_sum.")
    pooling: str = changeable(
        "none",
        "none: a vector per token; else one per text: the first token's, the mean over all, or the pooler's.",
        choices=POOLINGS,
    )
    normalize: bool = changeable(False, "Divide each pooled vector by its Euclidean norm.")
    max_seq_length: int = replaced(
        EntitySettings,
        "max_seq_length",
        128,
        help="Longest sequence in tokens; longer texts are cut, longer sentences of words split into windows.",
        identifies=False,
    )
    # === The tagger ===
    document_context: str = replaced(
        EntitySettings,
        "document_context",
        "none",
        help="ner: document lets windows span whole documents; a file without -DOCSTART- is one document.",
    )
    lstm_units: int = setting(768, "ner: width of each LSTM direction (the paper: 768).", at_least=1)
    lstm_layers: int = setting(2, "ner: number of stacked BiLSTMs (the paper: 2).", at_least=1)
    lstm_dropout: float = setting(0.1, "ner: dropout around each BiLSTM.", at_least=0.0, at_most=0.9)
    # A BiLSTM starts from random weights, which need higher rates than fine-tuning and Adam's bias correction.
    learning_rate: float | list[float] = replaced(EntitySettings, "learning_rate", 1e-3)
    optimizer: str = replaced(EntitySettings, "optimizer", "adamw")
    num_train_epochs: float = replaced(EntitySettings, "num_train_epochs", 10.0)
    # Without multi_worker_mirrored: several workers would write the same features.
    distribution_strategy: str = replaced(
        EntitySettings,
        "distribution_strategy",
        "one_device",
        help="one_device: one GPU if there is one, else the CPU; mirrored: all GPUs of this machine; tpu: --tpu.",
        choices=("one_device", "mirrored", "tpu"),
    )
    # Settings of other tagging tasks that do not apply: the encoder is frozen, and its windows overlap by half.
    doc_stride: ClassVar[None] = None
    num_frozen_layers: ClassVar[int] = 0
    lora_rank: ClassVar[int] = 0

    def __post_init__(self):
        super().__post_init__()
        is_extraction = self.task_name == "extract"
        for field in dataclasses.fields(self):
            is_own = field.name in SHARED or (field.name in EXTRACTION) == is_extraction
            if not is_own and getattr(self, field.name) != field.default:
                other = "ner" if is_extraction else "extract"
                raise InputError(f"--{field.name} is for --task_name={other}. Received: --task_name={self.task_name}")
        if not is_extraction and not self.output_dir:
            raise InputError("--output_dir: the directory of the run. Give it.")


def choose_layers(settings: FeatureSettings, needed_for: str) -> tuple[list[int], BertConfig]:
    """Returns the numbers of the chosen layers, and the sizes of the encoder.

    Args:
        settings: as given.
        needed_for: the purpose of the encoder, for messages.

    Raises:
        InputError: the encoder is not named, does not exist, or has no such layer or too few positions.
    """
    require_preset(settings, needed_for)
    source = settings.preset
    if settings.init_checkpoint or settings.bert_config_file:
        from tasks.fine_tuning.start import find_start  # imports TensorFlow

        source = find_start(settings).preset
    config = read_bert_config(source)
    default = ["-1"] if settings.pooling != "none" else DEFAULT_LAYERS
    layers = resolve_layers(settings.layers or default, config.num_layers)
    check_positions(settings.max_seq_length, config.max_sequence_length, source)
    return layers, config


# === Layers ===


def resolve_layers(names: Sequence[str | int], num_layers: int) -> list[int]:
    """Returns the numbers of the named layers, in the order given.

    Unlike google-research/bert's extract_features.py, which counts encoder layers from 0 and has no name for the
    embeddings, 0 is the embeddings' output, as in transformers' `hidden_states`. Negative numbers agree.

    Args:
        names: each `1` to `L`, `-1` (the last) to `-L`, `0` or `embeddings`, or `all` for 1 to L.
        num_layers: L.

    Raises:
        InputError: a name is none of these, a layer is named twice, or no layer is named.

    >>> resolve_layers(["-1", "embeddings"], 12)
    [12, 0]
    """
    given = f"--layers={','.join(map(str, names))}"
    expected = f"1 to {num_layers}, -1 (the last) to -{num_layers}, 0 or {EMBEDDINGS}, or {ALL} for every encoder layer"
    numbers = []
    for name in names:
        text = str(name).strip()
        if text == ALL:
            numbers.extend(range(1, num_layers + 1))
            continue
        number = 0 if text == EMBEDDINGS else int(text) if re.fullmatch(r"-?\d+", text) else None
        if number is None or not -num_layers <= number <= num_layers:
            raise InputError(f"{given}: there is no layer {text!r} in an encoder of {num_layers}. Expected {expected}.")
        numbers.append(number + num_layers + 1 if number < 0 else number)
    if not numbers:
        raise InputError(f"{given} names no layer. Expected {expected}.")
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise InputError(f"{given}: {layer_name(twice[0])} is named twice. Name each layer once.")
    return numbers


def layer_name(number: int) -> str:
    """Returns the name of a layer's output: `embeddings`, `layer_1`, ..."""
    return EMBEDDINGS if number == 0 else f"layer_{number}"


def check_layer_weights(layer_weights: Sequence[str | float] | None, combine: str, num_chosen: int) -> list[float]:
    """Checks `--layer_weights` against the chosen layers.

    Args:
        layer_weights: one number per chosen layer, or None.
        combine: one of `COMBINES`.
        num_chosen: number of chosen layers.

    Returns:
        The weights; an empty list unless `combine` is weighted_sum.

    Raises:
        InputError: the weights are missing or not wanted, are not finite numbers, or do not match the layers in number.
    """
    if combine != "weighted_sum" and layer_weights:
        raise InputError(f"--layer_weights is for --combine=weighted_sum, not for --combine={combine}. Leave it out.")
    if combine != "weighted_sum":
        return []
    given = ",".join(map(str, layer_weights or []))
    try:
        weights = [float(weight) for weight in layer_weights or []]
    except ValueError as error:
        raise InputError(f"--layer_weights={given}: expected numbers with commas between.") from error
    if not all(math.isfinite(weight) for weight in weights):
        raise InputError(f"--layer_weights={given}: expected finite numbers.")
    if len(weights) != num_chosen:
        raise InputError(
            f"--layer_weights={given}: {len(weights)} weights for {num_chosen} layers. Give --combine=weighted_sum one "
            "weight for each layer of --layers, in the same order."
        )
    return weights
