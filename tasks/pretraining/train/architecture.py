"""Builds the model to pre-train: its architecture, and the weights that it starts from."""

import itertools

import keras
from absl import logging

from keras_bert.config import BertConfig
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.presets.tokenizers import read_tokenizer
from keras_bert.presets.weights import read_bert_config
from keras_bert.tokenization.tokenizer import BertTokenizer
from tasks.pretraining.train.initial_weights import attend_to_neighbors
from tasks.pretraining.train.settings import PretrainingSettings


def read_architecture(settings: PretrainingSettings, vocabulary_size: int) -> BertConfig:
    """Returns the architecture that the settings name, with their overrides and the size of the vocabulary file.

    Raises:
        InputError: the architecture does not fit the data's length or, with `init_checkpoint`, the vocabulary or the
            weights.
    """
    source = settings.architecture_source
    config = BertConfig.from_json_file(source) if settings.bert_config_file else read_bert_config(source)
    # The sizes that flags give replace those of the source.
    given = {name: getattr(settings, name, None) for name in BertConfig.__dataclass_fields__}
    overrides = {name: value for name, value in given.items() if value is not None}
    sizes = [name for name in overrides if name != "attention"]
    if settings.init_checkpoint and sizes:
        raise InputError(f"--{sizes[0]} cannot change the sizes of --init_checkpoint={source}. Leave it out.")
    if settings.init_checkpoint and config.vocabulary_size != vocabulary_size:
        raise InputError(
            f"{settings.vocab_file}: {vocabulary_size} WordPieces, but --init_checkpoint={source} has "
            f"{config.vocabulary_size}. Give the vocabulary that belongs to the weights."
        )
    if "hidden_dim" in overrides:
        overrides.setdefault("intermediate_dim", 4 * overrides["hidden_dim"])  # The paper's ratio (section 3).
    config = config.replace(vocabulary_size=vocabulary_size, **overrides)
    if settings.max_seq_length > config.max_sequence_length:
        larger = " or give a --bert_config_file with more max_position_embeddings"
        raise InputError(
            f"--max_seq_length={settings.max_seq_length}: {source} has {config.max_sequence_length} positions. Lower "
            f"it, here and for bert-create-pretraining-data{'' if settings.init_checkpoint else larger}."
        )
    return config


def check_vocabulary(settings: PretrainingSettings, pieces: list[str]) -> None:
    """Checks that the weights of `init_checkpoint` were trained with `vocab_file` and `do_lower_case`.

    Args:
        settings: settings with `init_checkpoint`.
        pieces: WordPieces of `vocab_file`.

    Raises:
        InputError: the checkpoint has another vocabulary or letter case. Without a vocabulary, nothing is checked.
    """
    held = read_tokenizer(settings.init_checkpoint, settings.do_lower_case) or {"vocabulary": pieces}
    theirs = map(str.strip, held["vocabulary"])  # As `pieces` are read: two of Google's Chinese ones are white space.
    for number, (piece, other) in enumerate(itertools.zip_longest(pieces, theirs, fillvalue=""), start=1):
        if piece != other:
            raise InputError(
                f"{settings.vocab_file}:{number}: {piece!r}, but the vocabulary of --init_checkpoint="
                f"{settings.init_checkpoint} has {other!r} there. Create the data with the vocabulary that belongs to "
                "the weights."
            )


def model_builder(settings: PretrainingSettings, config: BertConfig, tokenizer: BertTokenizer):
    """Returns a function that builds the model, with random weights or with those of `init_checkpoint`.

    Raises:
        InputError: as in `check_vocabulary`.
    """
    layout = "packed" if settings.packing else "rectangular"
    if not settings.init_checkpoint:
        if "/" in (settings.preset or ""):  # In all other commands, such a preset also loads its weights.
            logging.warning(
                "The weights start at random. To train those of a preset: --init_checkpoint=%s in place of --preset.",
                settings.preset,
            )
        return lambda: _build(settings, BertBackbone(**config.to_dict(), layout=layout))
    check_vocabulary(settings, tokenizer.get_vocabulary())
    return lambda: BertPretrainer.from_preset(
        settings.init_checkpoint,
        use_next_sentence=settings.use_next_sentence,
        layout=layout,
        dtype=keras.config.dtype_policy(),
        trainable=True,
        attention=config.attention,
        preprocessor=None,
        compile=False,
    )


def _build(settings: PretrainingSettings, backbone: BertBackbone) -> BertPretrainer:
    if settings.initial_attention == "neighbors":
        attend_to_neighbors(backbone)
    return BertPretrainer(backbone, use_next_sentence=settings.use_next_sentence, compile=False)
