"""Reads the tokenizer of a Hugging Face directory: `vocab.txt`, or only `tokenizer.json` as transformers 5 saves it."""

import functools
import os

from absl import logging

from keras_bert.errors import InputError, shown
from keras_bert.files import read_optional_object
from keras_bert.formats.checkpoint import listed
from keras_bert.vocabulary import SPECIAL_TOKENS

VOCABULARY_FILE = "vocab.txt"
SETTINGS_FILE = "tokenizer_config.json"
FAST_FILE = "tokenizer.json"
_ADDED_FILE, _MAP_FILE = "added_tokens.json", "special_tokens_map.json"
# Classes of transformers that split texts as BERT's does; each has a variant whose name ends in Fast.
_FAMILIES = "Bert DistilBert Electra MobileBert ConvBert SqueezeBert RetriBert LayoutLM Lxmert".split()
_FAMILIES += [f"DPR{part}" for part in ("QuestionEncoder", "ContextEncoder", "Reader")]
_BERTS = {f"{family}Tokenizer{end}" for family in _FAMILIES for end in ("", "Fast")}
_ANY = ("PreTrainedTokenizerFast", "TokenizersBackend")  # They do what tokenizer.json says.
_PARTS = ("WordPiece", "BertNormalizer", "BertPreTokenizer")
# Settings of BertJapaneseTokenizer, whose class may stand in config.json alone.
_AT_BERT = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}


def read_tokenizer(path: str) -> dict | None:
    """Returns the vocabulary, and whether it is lower-cased; see `keras_bert.formats`.

    If `tokenizer_config.json` and `tokenizer.json` contradict each other, the former takes precedence, as in
    transformers.

    Raises:
        InputError: the files ask for rules other than BERT's.
    """
    fast_file, settings_file = os.path.join(path, FAST_FILE), os.path.join(path, SETTINGS_FILE)
    fast, settings = read_optional_object(fast_file), read_optional_object(settings_file)
    vocabulary, model = os.path.join(path, VOCABULARY_FILE), fast.get("model")
    has_pieces = isinstance(model, dict) and "vocab" in model  # Keras uses the same file name.
    if not os.path.isfile(vocabulary) and not has_pieces:
        return None
    _check_class(settings_file, settings)
    _warn_of_added(path, _added_tokens(path, fast, settings))
    is_fast_alone = settings.get("tokenizer_class") in _ANY and has_pieces
    if is_fast_alone or not os.path.isfile(vocabulary):
        vocabulary = _pieces(fast_file, fast)
    if is_fast_alone:
        settings = {}
    normalizer = fast.get("normalizer")
    normalizer = normalizer if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer" else {}
    lowercase = settings.get("do_lower_case", normalizer.get("lowercase"))
    strip_accents = settings.get("strip_accents", normalizer.get("strip_accents"))
    chinese = settings.get("tokenize_chinese_chars", normalizer.get("handle_chinese_chars", True))
    _check_rules(settings_file, lowercase, strip_accents, chinese)
    return {"vocabulary": vocabulary, "lowercase": lowercase}


def _added_tokens(path: str, fast: dict, settings: dict) -> tuple[str, ...]:
    """Returns the tokens that transformers extracts before it splits a text into words, except BERT's special ones."""
    more = (settings, read_optional_object(os.path.join(path, _MAP_FILE)))
    lists = [source.get(key) for source in more for key in ("additional_special_tokens", "extra_special_tokens")]
    lists += [fast.get("added_tokens"), settings.get("added_tokens_decoder")]
    lists.append(list(read_optional_object(os.path.join(path, _ADDED_FILE))))
    tokens = []
    for items in lists:
        items = items.values() if isinstance(items, dict) else items if isinstance(items, list) else ()
        tokens += [item.get("content") if isinstance(item, dict) else item for item in items]
    return tuple(dict.fromkeys(token for token in tokens if isinstance(token, str) and token not in SPECIAL_TOKENS))


@functools.cache  # A load reads the files more than once.
def _warn_of_added(path: str, tokens: tuple[str, ...]) -> None:
    if tokens:
        message = "%s: transformers keeps the added tokens %s whole in texts; here they are split like other words."
        logging.warning(message, path, listed(tokens))


def _check_class(file: str, settings: dict) -> None:
    kind = settings.get("tokenizer_class")
    others = {key: settings[key] for key, right in _AT_BERT.items() if settings.get(key) not in (None, right)}
    if others or not (kind is None or kind in (*_BERTS, *_ANY)):
        words = ", ".join(f"{key}={shown(value)}" for key, value in {"tokenizer_class": kind, **others}.items())
        raise InputError(
            f"{file}: expected a tokenizer that splits texts as BERT's does, found {words}. If yours does, set "
            "tokenizer_class to BertTokenizer there."
        )


def _check_rules(file: str, lowercase, strip_accents, chinese) -> None:
    if not (lowercase is None or isinstance(lowercase, bool)):
        raise InputError(f"{file}: expected do_lower_case to be true or false, found {shown(lowercase)}.")
    # transformers lower-cases by default.
    if strip_accents not in (None, lowercase is not False) or chinese is not True:
        raise InputError(
            f"{file}: expected BERT's own rules (strip_accents as do_lower_case, tokenize_chinese_chars true), "
            f"found strip_accents={shown(strip_accents)}, tokenize_chinese_chars={shown(chinese)}."
        )


def _pieces(file: str, fast: dict) -> list[str]:
    model, *others = (fast.get(name) for name in ("model", "normalizer", "pre_tokenizer"))
    kinds = [part.get("type") if isinstance(part, dict) else None for part in (model, *others)]
    if kinds != list(_PARTS):
        raise InputError(
            f"{file}: expected a BERT tokenizer ({', '.join(_PARTS)}), found {', '.join(map(shown, kinds))}."
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
