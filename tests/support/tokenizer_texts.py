"""Vocabularies and texts that show every difference between two tokenizers, for tests."""

import functools
import random
import unicodedata

from tokenizer_reference import ADVERSARIAL, SPECIALS

# Characters whose neighbours matter, and such neighbours.
HOT = "\u03a3\u03a3A.b\u0301\u0345'\u02b0\u00ad\u0007 -\u4e2d\u302e\u1b44\U0001d16d\U0001d165\u034f\uac01\u00c9"


def char_vocabulary(chars):
    """Specials, then every character as a word's beginning and as its continuation: all differences show."""
    chars = [char for char in sorted(set(chars)) if not char.isspace() and char != "#"]
    return [*SPECIALS, *chars, *(f"##{char}" for char in chars)]


def all_results(chars):
    results = set(chars)
    for char in chars:
        results |= set(unicodedata.normalize("NFD", char.lower())) | set(char.lower())
    return results


@functools.cache
def alphabet():
    """Characters of every category, and all that the rules treat in a way of their own."""
    rng = random.Random(0)
    by_category = {}
    for cp in range(0x110000):
        if not 0xD800 <= cp < 0xE000:
            by_category.setdefault(unicodedata.category(chr(cp)), []).append(chr(cp))
    chars = [char for group in by_category.values() for char in rng.sample(group, min(60, len(group)))]
    chars += [char for text in ADVERSARIAL if isinstance(text, str) for char in text]
    chars += [char for name in ("Mc", "Me") for char in by_category[name] if unicodedata.combining(char)]
    return sorted(set(chars) - set("#"))


@functools.cache
def alphabet_vocabulary():
    return char_vocabulary(all_results(alphabet()))


def fuzzed_texts(count, seed):
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        source = HOT if rng.random() < 0.4 else alphabet()
        size = rng.randint(1, 14)
        texts.append("".join(rng.choice(source if rng.random() < 0.8 else alphabet()) for _ in range(size)))
    return texts


def fuzzed_bytes(count, seed):
    rng = random.Random(seed)
    likely = b"\x00a \x80\xbf\xc0\xc2\xce\xa3\xe0\xa0\xed\x9f\xef\xbb\xbf\xf0\x90\xf4\x8f\xf5\xff"
    return [bytes(rng.choices(likely, k=rng.randint(1, 12))) for _ in range(count)]
