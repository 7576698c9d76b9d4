"""The rules by which text becomes words: google-research/bert's, as plain Python and as a map of characters.

The rules (tokenization.py of google-research/bert, `BasicTokenizer.tokenize`), in this order:
    1. U+0000, U+FFFD and control characters (Cc, Cf) vanish; tab, line feed, carriage return and Zs become a blank.
    2. Every CJK ideograph stands apart.
    3. Lower-casing models: `str.lower()`, then NFD, then non-spacing marks (Mn) vanish.
    4. Every punctuation character (ASCII symbols too) stands apart; then the text is split at white space.

`split_words` applies them to a string. `code_point_map` expresses them for single characters, and `normalizer_model.py`
turns that map into a model that runs in the graph. Some rules depend on neighbours, which no map of characters can
express; `context_of` tells which characters take part in them, and how.

Python's `unicodedata` defines the properties of a character, in the release `UNICODE_VERSION`. This module imports no
TensorFlow.
"""

import functools
import itertools
import unicodedata
from collections.abc import Callable

UNICODE_VERSION = unicodedata.unidata_version
# In characters; longer words become [UNK] (google-research/bert, tokenization.py, `max_input_chars_per_word`).
MAX_WORD_LENGTH = 200


def _ranges(text: str) -> list[range]:
    """Reads ranges of code points, `"3400..4DBF 1B7F"`, in the notation of Unicode's data files."""
    ends = (part.split("..") for part in text.split())
    return [range(int(part[0], 16), int(part[-1], 16) + 1) for part in ends]


# tokenization.py, `_is_chinese_char`.
CJK_RANGES = _ranges(
    "3400..4DBF 4E00..9FFF F900..FAFF 20000..2A6DF 2A700..2B73F 2B740..2B81F 2B820..2CEAF 2F800..2FA1F"
)
# tokenization.py, `_is_punctuation`.
ASCII_PUNCTUATION_RANGES = _ranges("21..2F 3A..40 5B..60 7B..7E")

# No rule applies to the other planes: 4 to 13 have no characters in any Unicode version, 15 and 16 private ones.
_CODE_POINTS = (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xF0000))

# Punctuation of Unicode 15 and 16. tensorflow-text's ICU splits at it, the rules above only under a Python that knows
# it. Found by running FastWordpieceTokenizer on all code points, which
# tests/keras_bert/tokenization/normalizer_test.py repeats.
_RECENT_PUNCTUATION_RANGES = _ranges(
    "1B4E..1B4F 1B7F 10D6E 113D4..113D5 113D7..113D8 11B00..11B09 11BE1 11F43..11F4F 16D6D..16D6F 1E5FF"
)


def is_cjk(char: str) -> bool:
    """Returns whether `char` is an ideograph that stands apart."""
    return ord(char) >= 0x3400 and any(ord(char) in cjk for cjk in CJK_RANGES)


def is_punctuation(char: str) -> bool:
    """Returns whether `char` stands apart as punctuation: any ASCII symbol, and category P*."""
    if char.isascii():
        return any(ord(char) in symbols for symbols in ASCII_PUNCTUATION_RANGES)
    return unicodedata.category(char)[0] == "P"


def _clean(char: str) -> str:
    if char in "\t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    if char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"):
        return ""
    return f" {char} " if is_cjk(char) else char


def vanishes(char: str) -> bool:
    """Returns whether step 1 deletes `char`."""
    return not _clean(char)


class _CharTable(dict):
    """A table for `str.translate` that calls `rule` once per character."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = text = self._rule(chr(code_point))
        return text


_CLEAN = _CharTable(_clean)
_STRIP_MARKS = _CharTable(lambda char: "" if unicodedata.category(char) == "Mn" else char)
_SPACE_PUNCTUATION = _CharTable(lambda char: f" {char} " if is_punctuation(char) else char)


def _space_words(text: str, lowercase: bool) -> str:
    text = text.translate(_CLEAN)
    if lowercase:
        # A blank is neither cased nor a mark, so normalizing the whole text at once equals doing it word by word.
        text = unicodedata.normalize("NFD", text.lower()).translate(_STRIP_MARKS)
    return text.translate(_SPACE_PUNCTUATION)


def split_words(text: str, lowercase: bool) -> list[str]:
    """Splits `text` into words, punctuation characters and ideographs, normalized.

    >>> split_words("Na\u00efve, isn't it?", lowercase=True)
    ['naive', ',', 'isn', "'", 't', 'it', '?']
    """
    return _space_words(text, lowercase).split()


@functools.cache
def substitutes() -> dict[int, str]:
    """Maps code points that tensorflow-text alone takes for punctuation to stand-ins, for `str.translate`.

    Text and vocabulary are translated alike. The stand-ins are control characters, which normalized text never holds.
    """
    controls = (chr(cp) for cp in (*range(0x02, 0x09), *range(0x0E, 0x11), *range(0x12, 0x1C), *range(0x80, 0x9F)))
    free = (control for control in controls if control != "\x85")  # White space to tensorflow-text.
    recent = itertools.chain(*_RECENT_PUNCTUATION_RANGES)
    return {cp: next(free) for cp in recent if not is_punctuation(chr(cp))}


def _normalized(char: str, lowercase: bool) -> str:
    """Returns the model's text for `char`, with blanks only where FastWordpieceTokenizer would not split by itself."""
    text = _space_words(char, lowercase)
    if text.isspace():
        return " "
    word = text.strip()
    splits_itself = len(word) == 1 and (is_cjk(word) or (word.isascii() and is_punctuation(word)))
    return (word if splits_itself else text).translate(substitutes())


def code_point_map(lowercase: bool) -> dict[int, str]:
    """Maps each code point that the rules change to its normalized text, `""` where it vanishes."""
    changes = {}
    recent = substitutes()
    for code_point in _CODE_POINTS:
        char = chr(code_point)
        category = unicodedata.category(char)
        if category == "Lo" and (not lowercase or unicodedata.is_normalized("NFD", char)):
            continue  # Most characters: letters without case, which only a decomposition can change.
        if category == "Cn" and code_point not in recent:
            continue
        text = _normalized(char, lowercase)
        if text != char:
            changes[code_point] = text
    return changes


# === Dependence on neighbours, in lower-casing ===

SIGMA, SMALL_SIGMA, FINAL_SIGMA = 0x03A3, 0x03C3, 0x03C2

# Bits of `context_of`. The lowest eight hold the combining class of a mark that is kept: its place among marks.
MARK_ORDER = 0xFF
VANISHES = 1 << 8  # Step 1 deletes it.
CASED = 1 << 9  # Final_Sigma (Unicode 3.13) looks for it beside a capital sigma.
IGNORABLE = 1 << 10  # Final_Sigma skips it.
IN_RUN = 1 << 11  # It does not end a run of marks, which NFD orders.


@functools.cache
def _candidates() -> list[str]:
    """Lists the characters that may have a context: all except unassigned, private, and caseless letters (Lo)."""
    chars = ((chr(cp), unicodedata.category(chr(cp))) for cp in _CODE_POINTS)
    return [char for char, name in chars if name not in ("Cn", "Co", "Lo") or (name == "Lo" and char.islower())]


@functools.cache
def context_of() -> dict[int, int]:
    """Maps characters to the properties that matter to their neighbours, as the bits above; 0 for those not listed."""
    chars = _candidates()
    before, after = (_final_sigmas(template, chars) for template in ("{}\u03a3", "A{}\u03a3"))
    contexts = {}
    for char, is_cased, is_passed in zip(chars, before, after, strict=True):
        context = CASED if is_cased else IGNORABLE if is_passed else 0
        if vanishes(char):
            context |= VANISHES
        elif unicodedata.category(char)[0] == "M":
            orders = [unicodedata.combining(part) for part in unicodedata.normalize("NFD", char)]
            context |= IN_RUN * all(orders)
            context |= orders[0] * (len(orders) == 1 and unicodedata.category(char) != "Mn")
        if context:
            contexts[ord(char)] = context
    return contexts


def _final_sigmas(template: str, chars: list[str]) -> list[bool]:
    """Returns, for each character, whether `str.lower()` makes the sigma in the filled `template` a final one."""
    between = "\ue000"  # Private: neither cased nor ignorable.
    return [text[-1] == "\u03c2" for text in between.join(map(template.format, chars)).lower().split(between)]


def kept_marks() -> list[int]:
    """Lists the marks that have a place in NFD's order and that step 3 does not delete."""
    return [code_point for code_point, context in context_of().items() if context & MARK_ORDER]


def compounds_of_kept_marks() -> dict[int, list[int]]:
    """Maps the characters (musical notes) that decompose into kept marks to their decompositions."""
    kept = set(map(chr, kept_marks()))
    forms = {ord(char): unicodedata.normalize("NFD", char) for char in _candidates()}
    return {cp: list(map(ord, text)) for cp, text in forms.items() if len(text) > 1 and not kept.isdisjoint(text)}
