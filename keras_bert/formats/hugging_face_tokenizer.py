"""Reads the tokenizer of a Hugging Face directory: `vocab.txt`, or only `tokenizer.json` as transformers 5 saves it."""

import os

from keras_bert.errors import InputError, shown
from keras_bert.files import read_object

VOCABULARY_FILE = "vocab.txt"
SETTINGS_FILE = "tokenizer_config.json"
FAST_FILE = "tokenizer.json"


def read_tokenizer(path: str) -> dict | None:
    """Returns the vocabulary, and whether it is lower-cased; see `keras_bert.formats`.

    If `tokenizer_config.json` and `tokenizer.json` contradict each other, the former counts, as in transformers.

    Raises:
        InputError: the files ask for rules other than BERT's.
    """
    fast_file = os.path.join(path, FAST_FILE)
    fast = read_object(fast_file) if os.path.isfile(fast_file) else {}
    vocabulary = os.path.join(path, VOCABULARY_FILE)
    if not os.path.isfile(vocabulary):
        model = fast.get("model")
        if not isinstance(model, dict) or "vocab" not in model:  # Keras uses the same file name.
            return None
        vocabulary = _pieces(fast_file, fast)
    settings_file = os.path.join(path, SETTINGS_FILE)
    settings = read_object(settings_file) if os.path.isfile(settings_file) else {}
    normalizer = fast.get("normalizer")
    normalizer = normalizer if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer" else {}
    lowercase = settings.get("do_lower_case", normalizer.get("lowercase"))
    strip_accents = settings.get("strip_accents", normalizer.get("strip_accents"))
    chinese = settings.get("tokenize_chinese_chars", normalizer.get("handle_chinese_chars", True))
    _check_rules(settings_file, lowercase, strip_accents, chinese)
    return {"vocabulary": vocabulary, "lowercase": lowercase}


def _check_rules(file: str, lowercase, strip_accents, chinese) -> None:
    if not (lowercase is None or isinstance(lowercase, bool)):
        raise InputError(f"{file}: expected do_lower_case to be true or false, found {shown(lowercase)}.")
    # By default transformers lower-cases.
    if strip_accents not in (None, lowercase is not False) or chinese is not True:
        raise InputError(
            f"{file}: expected BERT's own rules (strip_accents as do_lower_case, tokenize_chinese_chars true), "
            f"found strip_accents={shown(strip_accents)}, tokenize_chinese_chars={shown(chinese)}."
        )


def _pieces(file: str, fast: dict) -> list[str]:
    model, normalizer = fast["model"], fast.get("normalizer")
    kind = normalizer.get("type") if isinstance(normalizer, dict) else None
    if model.get("type") != "WordPiece" or kind != "BertNormalizer":
        raise InputError(
            f"{file}: expected a BERT tokenizer (WordPiece, BertNormalizer), found {model.get('type')}, "
            f"{kind or normalizer}."
        )
    if model.get("continuing_subword_prefix", "##") != "##":
        raise InputError(
            f"{file}: expected continuing_subword_prefix '##', found {shown(model['continuing_subword_prefix'])}."
        )
    ids = model["vocab"]
    is_whole = isinstance(ids, dict) and all(type(number) is int for number in ids.values())
    if not is_whole or sorted(ids.values()) != list(range(len(ids))):
        raise InputError(f"{file}: expected the vocabulary's ids to be 0, 1, ... without gaps.")
    return sorted(ids, key=ids.get)
