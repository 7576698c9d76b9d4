"""Compiles the normalizer's rules into a model for tensorflow-text's op FastBertNormalize: a map from UTF-8 to strings.

The op looks up each character by itself, which is exact for nearly all. Characters that depend on their neighbours
become the word `MARKER`, which tells the tokenizer that the text needs `exact_normalizer.py`. Invalid UTF-8 is deleted,
as by Python's `decode(errors="ignore")`: the op cuts it into the same pieces (Unicode 3.9, table 3-8), and the map
holds all of them.
"""

import functools
import itertools

from keras_bert.tokenization import double_array, normalizer

MARKER = "\x7f"  # A control character, which normalized texts never contain.

_IS_MAPPED = 1 << 30  # tensorflow-text, `fast_bert_normalizer.h`: the bits of a value in the trie.
_LENGTH_BITS = 6


@functools.cache
def normalizer_model(lowercase: bool) -> bytes:
    """Builds the model.

    It is a FlatBuffers table (tensorflow-text, `fast_bert_normalizer_model.fbs`) with the fields 0, bool, lower-casing;
    1, vector of uint32, a trie from UTF-8 to `0x40000000 | offset << 6 | length`; 2, int32, the value of U+0000; 3,
    vector of bytes, the strings.

    Returns:
        The model, about 250 KB if `lowercase`, else 22 KB. It is built once in a process, in about 0.3 s.
    """
    import flatbuffers
    import numpy as np

    pool, values = _string_pool(_replacements(lowercase))
    trie = double_array.build({key: value for key, value in values.items() if key != b"\0"})
    builder = flatbuffers.Builder(0)
    trie_offset = builder.CreateNumpyVector(trie)
    pool_offset = builder.CreateNumpyVector(np.frombuffer(pool, dtype=np.uint8))
    builder.StartObject(4)
    builder.PrependBoolSlot(0, lowercase, False)
    builder.PrependUOffsetTRelativeSlot(1, trie_offset, 0)
    builder.PrependInt32Slot(2, values[b"\0"], 0)
    builder.PrependUOffsetTRelativeSlot(3, pool_offset, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _replacements(lowercase: bool) -> dict[bytes, str]:
    changes = normalizer.code_point_map(lowercase)
    if lowercase:
        on_neighbours = (normalizer.SIGMA, *normalizer.kept_marks(), *normalizer.compounds_of_kept_marks())
        changes |= dict.fromkeys(on_neighbours, f" {MARKER} ")
    return dict.fromkeys(_broken_characters(), "") | {chr(cp).encode(): text for cp, text in changes.items()}


def _broken_characters() -> set[bytes]:
    """Returns the pieces that the op finds in invalid UTF-8: single bytes, and beginnings of characters."""
    broken = {bytes([byte]) for byte in range(0x80, 0x100)}
    for first in (*range(0x80, 0xD800, 64), *range(0xE000, 0x110000, 64)):  # 64 characters differ in one byte only.
        raw = chr(first).encode()
        broken.update(raw[:length] for length in range(1, len(raw)))
    return broken


def _string_pool(replacements: dict[bytes, str]) -> tuple[bytes, dict[bytes, int]]:
    """Joins the distinct strings; returns them and each key's reference into them."""
    distinct = dict.fromkeys(replacements.values())
    offsets = itertools.accumulate((len(text.encode()) for text in distinct), initial=0)
    references = {
        text: _IS_MAPPED | offset << _LENGTH_BITS | len(text.encode())
        for text, offset in zip(distinct, offsets, strict=False)
    }
    return "".join(distinct).encode(), {key: references[text] for key, text in replacements.items()}
