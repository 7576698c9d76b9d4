"""google-research/bert's tokenization.py derived a second time, rule by rule, for tests: plain, slow, and offsets too.

It shares nothing with `keras_bert.tokenization.normalizer`, from which both tokenizers are built.
"""

import functools
import unicodedata

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
IDEOGRAPHS = "3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF 2F800-2FA1F"
BLOCKS = [tuple(int(end, 16) for end in block.split("-")) for block in IDEOGRAPHS.split()]
LONGEST_WORD = 200

# Lines of a vocabulary that is refused, and how the message goes (a regular expression).
BROKEN_VOCABULARIES = [
    (SPECIALS[:4], r"vocab.txt: the vocabulary lacks \[MASK\]"),
    ([*SPECIALS, "a", "b", "a"], r"vocab.txt:8: the piece 'a' is on line 6 already. Remove one"),
    ([], "vocab.txt: the vocabulary is empty"),
    ([*SPECIALS, "a" * 257], "vocab.txt:6: a piece of over 256 bytes"),
]

ADVERSARIAL = [
    "",
    "   \t\n\r ",
    "Hello, World! It's 3.14\u20ac",
    "na\u00efve CAF\u00c9 \u00c5ngstr\u00f6m \u01c5 \u0130stanbul stra\u00dfe \ufb01n",
    "\u4e2d\u6587abc\u4e2d \u3042\u30ac \ud55c\uad6d\uc5b4 \ufa0e\uf900\u2f81a",
    "\U0002b820x\U0002b91fy\U0002ceafz\U0002ceb0w",
    "\u039f\u0394\u039f\u03a3 \u03a3 \u03a3\u03a3 A\u03a3 A\u03a3B A\u03a3.B A\u03a3\u0301B",
    "A.\u03a3 \u03a3\u03a3\u03a3a \u02b0\u03a3 A\u03a3\u03a3",
    "A\u0007\u03a3\u0007B a\u03a3\ufffdb \u00aa\u03a3 \u0345\u03a3 A\u00ad\u03a3\u00ad \u4e2d\u03a3\u4e2d",
    "ab\u0007cd\u0000e\ufffdf\u200bg\u200dh\u00adi\ufeffj\u2060k\x85l\x0bm\x0cn\x1co",
    "a\u0301\u0316b\u0316\u0301 e\u0323\u0302 \u1ea1\u0302",
    "\U0001d16d\U0001d165 \U0001d165\U0001d16d\U0001d165 \U0001d16d\u0007\U0001d165",
    "\U0001d160\U0001d166 \U0001d16d\u034f\U0001d165",
    "\u1b44\u0301\u302e\u302f\ua953 x\u302e\u1b44 \u302e\u0301\u1b44",
    "[MASK] [CLS]x[SEP] [UNK] ##ing [PAD]",
    "\u2028a\u2029b\u3000c\u00a0d\u1680e\u2000f\u202fg\u205fh\u180ei",
    "\u037e \u0387 \u1fef a\u226eb \u2260 \u2126 \u212a \u00b7",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1e9\U0001f1ea \u20e3",
    "\u061d\u2e54\u1b7f\U00011b00x \u1b4ea\u1b4f \U00011f43 y\U0001e5ff",
    "^$`~|<>+= \u00a7\u00b6\u2014\u2026\u201cq\u201d\u00ab\u00bb",
    "a" * 200,
    "a" * 201,
    "\u00e9" * 200 + " " + "\u00e9" * 201,
    "\uac00" * 66 + " " + "\uac00" * 67 + " " + "\uac00" * 100 + " " + "\uac00" * 101,
    "\U00010400" * 200 + " " + "\U00010400" * 201,
    "a" * 150 + "-" + "a" * 150 + "\u4e2d" + "a" * 201 + "\u2014" + "b" * 200 + ",",
    "A" * 199 + "\u03a3" + " " + "A" * 200 + "\u03a3",
    "x " * 300 + "y" * 500,
    b"abc\xff\xfedef \xc3",
    b"\xed\xa0\x80x \xc0\xafy \xf4\x90\x80\x80z \xe4\xb8A \xf0\x9f\x98 \xe0\x80\x80 \xf5\xf6 \x80\x81q",
    b"\xce\xa3\xff\xce\xa3 A\xce\xff\xce\xa3",
]


# === Characters ===


@functools.cache
def is_ideograph(char):
    return char >= "\u3400" and any(low <= ord(char) <= high for low, high in BLOCKS)


@functools.cache
def is_symbol(char):
    if 32 < ord(char) < 127:
        return not char.isalnum()
    return unicodedata.category(char)[0] == "P"


@functools.cache
def cleaned(char):
    """What the cleaning leaves of a character: a blank, nothing, or itself, an ideograph between blanks."""
    category = unicodedata.category(char)
    if char in "\t\n\r " or category == "Zs":
        return " "
    if char in "\x00\ufffd" or category in ("Cc", "Cf"):
        return ""
    return f" {char} " if is_ideograph(char) else char


def unmarked(char):
    return "" if unicodedata.category(char) == "Mn" else char


def spaced(char):
    return f" {char} " if is_symbol(char) else char


class ByCharacter(dict):
    """A table for `str.translate` of what `rule` makes of each character."""

    def __init__(self, rule):
        self.rule = rule

    def __missing__(self, code_point):
        self[code_point] = made = self.rule(chr(code_point))
        return made


CLEANED, UNMARKED, SPACED = map(ByCharacter, (cleaned, unmarked, spaced))


# === Ids ===


def reference_words(text, lowercase):
    """The words of `text` (str or bytes), normalized."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "ignore")
    chunks = text.translate(CLEANED).split()
    return [word for chunk in chunks for word in words_of_chunk(chunk, lowercase)]


@functools.lru_cache(1 << 16)
def words_of_chunk(chunk, lowercase):
    if lowercase:
        chunk = unicodedata.normalize("NFD", chunk.lower()).translate(UNMARKED)
    return chunk.translate(SPACED).split()


def reference_spans(word, ids, longest=LONGEST_WORD):
    """The pieces of a word, longest match first, as (id, first character, end); `longest`: no piece has more."""
    if len(word) > LONGEST_WORD:
        return [(ids["[UNK]"], 0, len(word))]
    spans, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        last = min(len(word), start + longest)
        for end in range(last, start, -1):
            if prefix + word[start:end] in ids:
                break
        else:
            return [(ids["[UNK]"], 0, len(word))]
        spans.append((ids[prefix + word[start:end]], start, end))
        start = end
    return spans


def reference_pieces(word, ids, longest=LONGEST_WORD):
    return [number for number, _, _ in reference_spans(word, ids, longest)]


def reference_ids(text, ids, lowercase, longest=LONGEST_WORD):
    return [number for word in reference_words(text, lowercase) for number in reference_pieces(word, ids, longest)]


def read_ids(path_or_pieces):
    """Piece -> id, as google-research/bert's `load_vocab` reads a file: of equal stripped lines the last counts."""
    if isinstance(path_or_pieces, str):
        with open(path_or_pieces, encoding="utf-8", newline="\n") as lines:
            path_or_pieces = list(lines)
    return {piece.strip(): number for number, piece in enumerate(path_or_pieces)}


# === Offsets ===


def in_canonical_order(marked):
    """Sorts (character, source) as NFD orders marks: stably, by combining class, between characters of class 0."""
    ordered, run = [], []
    for item in marked:
        if unicodedata.combining(item[0]):
            run.append(item)
            continue
        ordered += [*sorted(run, key=lambda item: unicodedata.combining(item[0])), item]
        run = []
    return ordered + sorted(run, key=lambda item: unicodedata.combining(item[0]))


def lowered(marked):
    """Lower case, decomposed, without accents, of (character, source) of one chunk."""
    whole = "".join(char for char, _ in marked).lower()  # A sigma looks at its neighbours.
    sources = [source for char, source in marked for _ in char.lower()]
    decomposition = [(part, source) for char, source in zip(whole, sources, strict=True) for part in nfd(char)]
    return [(char, source) for char, source in in_canonical_order(decomposition) if unicodedata.category(char) != "Mn"]


def nfd(char):
    return unicodedata.normalize("NFD", char)


def split_marked(marked, is_boundary, keeps_boundary):
    """Splits a list of (character, source) at boundaries, each a group of its own or dropped."""
    groups, open_group = [], []
    for item in [*marked, None]:
        if item is not None and not is_boundary(item[0]):
            open_group.append(item)
            continue
        groups += [open_group] if open_group else []
        groups += [[item]] if item is not None and keeps_boundary else []
        open_group = []
    return groups


def marked_words(text, lowercase):
    """The words, each a list of (normalized character, index of its source character)."""
    marked = [(part, i) for i, char in enumerate(text) for part in cleaned(char)]
    words = []
    for chunk in split_marked(marked, str.isspace, keeps_boundary=False):
        chunk = lowered(chunk) if lowercase else chunk
        words += split_marked(chunk, is_symbol, keeps_boundary=True)
    return words


@functools.cache
def vanishes(char, lowercase):
    """Whether a source character leaves nothing behind."""
    return not (lowered([(char, 0)]) if lowercase and cleaned(char) == char else cleaned(char))


def reference_offsets(text, ids, lowercase, longest=LONGEST_WORD):
    """(ids, starts, ends) of a text's tokens in its characters, of bytes the valid ones.

    A token covers the source characters that its own stem from, from the first of them to the last, and whatever
    vanishes directly after.
    """
    text = text if isinstance(text, str) else text.decode("utf-8", "ignore")
    tokens = []
    for word in marked_words(text, lowercase):
        for number, first, last in reference_spans("".join(char for char, _ in word), ids, longest):
            sources = [source for _, source in word[first:last]]
            end = max(sources) + 1
            while end < len(text) and vanishes(text[end], lowercase):
                end += 1
            tokens.append((number, min(sources), end))
    return tuple(list(column) for column in zip(*tokens, strict=True)) or ([], [], [])
