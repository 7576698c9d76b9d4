"""How text becomes words: google-research/bert's rules, in plain Python and as tensorflow-text's normalizer model.

The rules (tokenization.py of google-research/bert, `BasicTokenizer.tokenize`), in this order:
    1. U+0000, U+FFFD and control characters (Cc, Cf) vanish; tab, line feed, carriage return and Zs become a blank.
    2. Every CJK ideograph stands apart.
    3. Lower-casing models: `str.lower()`, then NFD, then non-spacing marks (Mn) vanish.
    4. Every punctuation character (ASCII symbols too) stands apart; then the text is split at white space.

`split_words` applies them to a string. `normalizer_model` is the same as a map from code point to string, for the
op FastBertNormalize; the splitting itself is FastWordpieceTokenizer's. What a map of code points cannot say
depends on neighbours: `plain_class` says where, `final_sigma_rewrites` and `unordered_class` what (for RE2).

Python's `unicodedata` decides what a character is, `UNICODE_VERSION` says which release, and the model carries it.
No TensorFlow is imported here.
"""

import functools
import unicodedata
from collections.abc import Callable, Iterable

UNICODE_VERSION = unicodedata.unidata_version

# tokenization.py, `_is_chinese_char`.
CJK_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
# tokenization.py, `_is_punctuation`.
ASCII_PUNCTUATION_RANGES = ((33, 47), (58, 64), (91, 96), (123, 126))

# Planes 4-13 hold no character in any Unicode version and 15-16 private ones: no rule touches them.
_CODE_POINTS = (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xF0000))

# Punctuation of Unicode 15 and 16. tensorflow-text's ICU splits at it; the rules above do so only under a Python
# that knows it. Found by running FastWordpieceTokenizer on all code points (tests/normalizer_test.py repeats it).
_RECENT_PUNCTUATION_RANGES = (
    (0x1B4E, 0x1B4F),
    (0x1B7F, 0x1B7F),
    (0x10D6E, 0x10D6E),
    (0x113D4, 0x113D5),
    (0x113D7, 0x113D8),
    (0x11B00, 0x11B09),
    (0x11BE1, 0x11BE1),
    (0x11F43, 0x11F4F),
    (0x16D6D, 0x16D6F),
    (0x1E5FF, 0x1E5FF),
)

# Marks with a place in NFD's canonical order that step 3 does not delete (Mc with a combining class), and the notes
# that decompose into them: only where one of these occurs does the order of marks outlive step 3.
_REORDERED_RANGES = (
    *((cp, cp) for cp in (0x1715, 0x1734, 0x1B44, 0x1BAA, 0x1BF2, 0x1BF3, 0x302E, 0x302F, 0xA953, 0xA9C0)),
    *((cp, cp) for cp in (0x111C0, 0x11235, 0x1134D, 0x116B6, 0x1193D, 0x16FF0, 0x16FF1)),
    (0x1D15E, 0x1D166),
    (0x1D16D, 0x1D172),
    (0x1D1BB, 0x1D1C0),
)


def _in_ranges(code_point: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= code_point <= last for first, last in ranges)


def is_cjk(char: str) -> bool:
    """Whether `char` is an ideograph that stands apart."""
    return ord(char) >= 0x3400 and _in_ranges(ord(char), CJK_RANGES)


def is_punctuation(char: str) -> bool:
    """Whether `char` stands apart as punctuation: any ASCII symbol, and category P*."""
    return _in_ranges(ord(char), ASCII_PUNCTUATION_RANGES) or unicodedata.category(char).startswith("P")


def _clean(char: str) -> str:
    if char in "\t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    if char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"):
        return ""
    return f" {char} " if is_cjk(char) else char


def vanishes(char: str) -> bool:
    """Whether step 1 deletes `char`."""
    return not _clean(char)


def _strip_mark(char: str) -> str:
    return "" if unicodedata.category(char) == "Mn" else char


def _space_punctuation(char: str) -> str:
    return f" {char} " if is_punctuation(char) else char


class _CharTable(dict):
    """A table for `str.translate` that asks `rule` once per character."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = text = self._rule(chr(code_point))
        return text


_CLEAN = _CharTable(_clean)
_STRIP_MARKS = _CharTable(_strip_mark)
_SPACE_PUNCTUATION = _CharTable(_space_punctuation)


def _space_words(text: str, lowercase: bool) -> str:
    text = text.translate(_CLEAN)
    if lowercase:
        # A blank is neither cased nor a mark: the whole text at once equals word by word.
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
    """Stand-ins for code points that tensorflow-text takes for punctuation and the rules do not, for `str.translate`.

    Each stands for a character in the normalized text and in the vocabulary alike. They are control characters,
    which no normalized text holds otherwise.
    """
    controls = (chr(cp) for cp in (*range(0x02, 0x09), *range(0x0E, 0x11), *range(0x12, 0x1C), *range(0x80, 0x9F)))
    free = (control for control in controls if control != "\x85")  # White space to tensorflow-text.
    recent = (cp for first, last in _RECENT_PUNCTUATION_RANGES for cp in range(first, last + 1))
    return {cp: next(free) for cp in recent if not is_punctuation(chr(cp))}


def _normalized(char: str, lowercase: bool) -> str:
    """What the model writes for `char`: blanks only where FastWordpieceTokenizer would not split by itself."""
    text = _space_words(char, lowercase)
    if text.isspace():
        return " "
    word = text.strip()
    splits_itself = len(word) == 1 and (is_cjk(word) or (word.isascii() and is_punctuation(word)))
    return (word if splits_itself else text).translate(substitutes())


def code_point_map(lowercase: bool) -> dict[int, str]:
    """Maps each code point that the rules change to what they make of it, `""` where it vanishes."""
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


@functools.cache
def normalizer_model(lowercase: bool) -> bytes:
    """Builds the model that the op FastBertNormalize reads.

    A flatbuffer table (tensorflow-text, `fast_bert_normalizer_model.fbs`): 0 bool, lower-casing; 1 vector of uint32,
    a trie from UTF-8 to `0x40000000 | offset << 6 | length`; 2 int32, the value of U+0000; 3 vector of bytes, the
    strings. Field 4 is ours, the Unicode version; readers skip fields that they do not know.

    Returns:
        The model: about 240 KB if `lowercase`, else 13 KB; built once in a process, in about 0.3 s.
    """
    import flatbuffers
    import numpy as np

    from keras_bert import double_array

    changes = code_point_map(lowercase)
    pool, values = _string_pool(changes)
    zero = values.pop(0)
    trie = double_array.build({chr(code_point).encode(): value for code_point, value in values.items()})
    builder = flatbuffers.Builder(0)
    trie_offset = builder.CreateNumpyVector(trie)
    pool_offset = builder.CreateNumpyVector(np.frombuffer(pool, dtype=np.uint8))
    version_offset = builder.CreateString(UNICODE_VERSION)
    builder.StartObject(5)
    builder.PrependBoolSlot(0, lowercase, False)
    builder.PrependUOffsetTRelativeSlot(1, trie_offset, 0)
    builder.PrependInt32Slot(2, zero, 0)
    builder.PrependUOffsetTRelativeSlot(3, pool_offset, 0)
    builder.PrependUOffsetTRelativeSlot(4, version_offset, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _string_pool(changes: dict[int, str]) -> tuple[bytes, dict[int, int]]:
    """Joins the strings, each once; returns them and each code point's reference into them."""
    pool = bytearray()
    offsets: dict[bytes, int] = {}
    values = {}
    for code_point, text in changes.items():
        raw = text.encode()
        if raw not in offsets:
            offsets[raw] = len(pool)
            pool += raw
        values[code_point] = 0x40000000 | offsets[raw] << 6 | len(raw)
    return bytes(pool), values


def _char_class(code_points: Iterable[int]) -> str:
    """The inside of an RE2 character class that holds `code_points` (ascending)."""
    ranges: list[list[int]] = []
    for code_point in code_points:
        if ranges and ranges[-1][1] == code_point - 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    return range_class(ranges)


def range_class(ranges: Iterable[Iterable[int]]) -> str:
    """The inside of an RE2 character class that holds the ranges `(first, last)`."""
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges)


@functools.cache
def vanishing_class() -> str:
    """The inside of an RE2 character class that holds what step 1 deletes."""
    return _char_class(cp for cp in _CODE_POINTS if vanishes(chr(cp)))


def unordered_class() -> str:
    """The inside of an RE2 character class: what the order of marks can depend on."""
    return range_class(_REORDERED_RANGES)


def plain_class(lowercase: bool) -> str:
    """The inside of an RE2 character class: all characters for which the model alone is exact.

    Surrogates are left out, which makes RE2 refuse invalid UTF-8 strictly (its `.` lets overlong forms pass).
    """
    excluded = [(0xD800, 0xDFFF)]
    if lowercase:
        excluded = sorted([(0x03A3, 0x03A3), *excluded, *_REORDERED_RANGES])
    starts = [0, *(last + 1 for _, last in excluded)]
    ends = [*(first - 1 for first, _ in excluded), 0x10FFFF]
    return range_class(pair for pair in zip(starts, ends, strict=True) if pair[0] <= pair[1])


@functools.cache
def final_sigma_rewrites() -> tuple[tuple[str, str], ...]:
    """RE2 rewrites `(pattern, replacement)`, in order, that settle each capital sigma as `str.lower()` does.

    It becomes U+03C2 where a cased character stands before it and none after it, case-ignorable ones not counted,
    else U+03C3 (Unicode 3.13, Final_Sigma). A match consumes the cased character after the sigma, perhaps a sigma
    itself: the second pass settles those. For texts without the characters of `vanishing_class`.
    """
    cased, ignorable = [], []
    for code_point in _CODE_POINTS:
        char = chr(code_point)
        if (char + "\u03a3").lower()[-1] == "\u03c2":
            cased.append(code_point)
        elif ("A" + char + "\u03a3").lower()[-1] == "\u03c2":
            ignorable.append(code_point)
    gap = f"[{_char_class(ignorable)}]*"
    cased_class = f"[{_char_class(cased)}]"
    medial = (f"\u03a3({gap}{cased_class})", "\u03c3\\1")
    final = (f"({cased_class}{gap})\u03a3", "\\1\u03c2")
    return medial, medial, final
