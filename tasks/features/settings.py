"""Settings of `bert-features`: one set of flags for extraction and for the feature-based tagger."""

import dataclasses
from typing import ClassVar

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.weights import read_bert_config
from tasks.features.layers import COMBINES, POOLINGS, resolve_layers
from tasks.fine_tuning.entity_task import EntitySettings
from tasks.fine_tuning.inputs import check_positions, require_preset
from tasks.settings import changeable, replaced, setting

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


@dataclasses.dataclass(frozen=True, kw_only=True)
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
