"""Settings of `bert-features`, and the layers of an encoder that features come from.

In an encoder of L layers, number 0 is the embeddings' output, and 1 to L are the encoder layers from the bottom.
"""

from collections.abc import Sequence

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.presets.weights import read_bert_config
from tasks.fine_tuning.inputs import require_preset
from tasks.fine_tuning.settings import FineTuningSettings, StartSettings, check_positions
from tasks.fine_tuning.word_task import WordSettings
from tasks.settings import changeable, replaced

EMBEDDINGS, COMBINED, POOLED = "embeddings", "features", "pooled_output"  # Names of vectors.
ALL = "all"
COMBINES = ("none", "concatenate", "sum", "mean")
POOLINGS = ("none", "cls", "mean", "pooler")
DEFAULT_LAYERS = ("-1", "-2", "-3", "-4")  # google-research/bert extract_features.py
DEFAULT_OUTPUT = "features.npz"


class FeatureSettings(StartSettings):
    """Settings of `bert-features`, which are its flags."""

    input_file: str | None = changeable(None, "Files to read: paths or patterns, separated by commas.")
    output_file: str | None = changeable(
        None,
        f"File for the embeddings; default: {DEFAULT_OUTPUT} in --output_dir.",
        needs=lambda path: "parquet" if path.lower().endswith(".parquet") else None,
    )
    output_dir: str | None = changeable(None, "Directory for metrics.json and flags.json.")
    layers: list[str] | None = changeable(
        None,
        "Layers, from 1 (lowest) or -1 (last); 0 or embeddings; or all. Default: the last four; with --pooling: -1.",
    )
    combine: str = changeable("none", "How to combine the layers; none: a vector for each.", choices=COMBINES)
    pooling: str = changeable(
        "none",
        "none: a vector per token; else one per text. cls: that of [CLS]; mean: the mean of all; pooler: the pooler's.",
        choices=POOLINGS,
    )
    max_seq_length: int = changeable(
        128,
        "Longest sequence in tokens. Longer texts are cut, sentences of words split into windows, or cut if pooled.",
        at_least=4,
    )
    input_format: str = changeable(
        "text",
        "text: one text per line; conll: one word per line, blank lines between.",
        choices=("text", "conll"),
        subject="data",
    )
    normalize: bool = changeable(False, "Divide each pooled vector by its Euclidean norm.", subject="model")
    delimiter: str | None = replaced(WordSettings, "delimiter", None)
    eval_batch_size: int = replaced(FineTuningSettings, "eval_batch_size", 8, help="Sequences per batch.")
    random_seed: int = replaced(FineTuningSettings, "random_seed", 12345, help="Seed of random weights.")
    bad_rows: str | None = replaced(FineTuningSettings, "bad_rows", "refuse")


def choose_layers(settings, default: Sequence[str], needed_for: str) -> tuple[list[int], BertConfig]:
    """Returns the indices of the layers to read, and the sizes of the encoder.

    Args:
        settings: `StartSettings` with `layers`, as in `resolve_layers`, and a `max_seq_length`.
        default: the layers if the settings name none, the last one first; a smaller encoder has the first of them.
        needed_for: the purpose of the encoder, for messages.

    Raises:
        InputError: the encoder is not named, does not exist, or has no such layer or too few positions.
    """
    require_preset(settings, needed_for)
    source = settings.preset
    if settings.init_checkpoint or settings.bert_config_file:
        from tasks.fine_tuning.start import find_start  # imports TensorFlow

        with find_start(settings) as origin:
            source, config = settings.init_checkpoint or settings.bert_config_file, read_bert_config(origin.preset)
    else:
        config = read_bert_config(source)
    layers = resolve_layers(settings.layers or default[: config.num_layers], config.num_layers)
    check_positions(settings.max_seq_length, config.max_sequence_length, source)
    return layers, config


# === Layers ===


def resolve_layers(names: Sequence[str], num_layers: int) -> list[int]:
    """Returns the indices of the named layers, in the order given.

    Unlike google-research/bert's extract_features.py, which counts encoder layers from 0 and has no name for the
    embeddings, 0 is the embeddings' output, as in transformers' `hidden_states`. Negative numbers agree.

    Args:
        names: one or more, each `1` to `L`, `-1` (the last) to `-L`, `0` or `embeddings`, or `all` for 1 to L.
        num_layers: L.

    Raises:
        InputError: a name is none of these, or a layer is named twice.

    >>> resolve_layers(["-1", "embeddings"], 12)
    [12, 0]
    """
    given = f"--layers={','.join(names)}"
    expected = f"1 to {num_layers}, -1 (the last) to -{num_layers}, 0 or {EMBEDDINGS}, or {ALL} for every encoder layer"
    by_name = {EMBEDDINGS: [0], ALL: list(range(1, num_layers + 1)), "0": [0]}
    for number in by_name[ALL]:
        by_name |= {str(number): [number], str(number - num_layers - 1): [number]}
    numbers = []
    for name in map(str.strip, names):
        if name not in by_name:
            raise InputError(f"{given}: there is no layer {name!r} in an encoder of {num_layers}. Expected {expected}.")
        numbers += by_name[name]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise InputError(f"{given}: {layer_name(twice[0])} is named twice. Name each layer once.")
    return numbers


def layer_name(number: int) -> str:
    """Returns the name of a layer's output: `embeddings`, `layer_1`, ..."""
    return EMBEDDINGS if number == 0 else f"layer_{number}"
