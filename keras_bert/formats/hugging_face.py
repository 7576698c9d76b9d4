"""Hugging Face's directory: `config.json`, `model.safetensors`, `vocab.txt`, `tokenizer_config.json`."""

import contextlib
import os
from collections.abc import Iterator

from keras_bert import convert
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.formats.checkpoint import Checkpoint, collect

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
VOCABULARY_FILE = "vocab.txt"


def matches(path: str) -> bool:
    return os.path.isfile(os.path.join(path, CONFIG_FILE))


def read_config(path: str) -> BertConfig:
    return BertConfig.from_json_file(os.path.join(path, CONFIG_FILE))


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    from safetensors import SafetensorError, safe_open

    config = read_config(path)
    file = os.path.join(path, WEIGHTS_FILE)
    if not os.path.isfile(file):
        raise InputError(f"{file}: no such file. Expected the weights in the safetensors format.")
    try:
        with safe_open(file, framework="numpy") as stored:
            available = {_table_name(name): name for name in stored.keys()}
            sources = convert.encoder_sources(convert.HUGGING_FACE, config.num_layers)
            tensors, missing = collect(sources, available, stored.get_tensor, file)
            if missing:
                raise InputError(f"{file}: lacks {', '.join(missing)}. Expected the weights of a BERT with its pooler.")
            yield Checkpoint("hugging_face", path, config, tensors)
    except SafetensorError as error:
        raise InputError(f"{file}: not a whole safetensors file ({error}). Fetch it again.") from error


def _table_name(stored: str) -> str:
    """The table's name of a stored tensor: without prefix, and of today.

    Checkpoints converted before 2019, bert-base-uncased among them, keep TensorFlow's gamma and beta.
    """
    name = stored.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def read_tokenizer(path: str) -> dict | None:
    vocabulary = os.path.join(path, VOCABULARY_FILE)
    if not os.path.exists(vocabulary):
        return None
    config_file = os.path.join(path, "tokenizer_config.json")
    config = read_json(config_file) if os.path.exists(config_file) else {}
    lowercase = config.get("do_lower_case", True)
    strip_accents = config.get("strip_accents")
    if strip_accents not in (None, lowercase) or not config.get("tokenize_chinese_chars", True):
        raise InputError(
            f"{config_file}: expected BERT's own rules (strip_accents as do_lower_case, tokenize_chinese_chars true), "
            f"found strip_accents={strip_accents}, tokenize_chinese_chars={config.get('tokenize_chinese_chars')}."
        )
    return {"vocabulary": vocabulary, "lowercase": lowercase}
