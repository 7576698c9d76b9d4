"""Finds differences of tokenizers from google-research/bert's tokenization: a Markdown table, a row per phenomenon.

    .venv/bin/python benchmarks/tokenizer_agreement.py

The reference is `keras_bert.tokenization.python_tokenizer`, which tests/keras_bert/tokenization/tokenizer_fuzz_test.py
compares with a second derivation of the rules. All tokenizers get one vocabulary that has every character of the
examples and of their lowercased forms, both at the start of a word and within one. So whatever is deleted, split or
replaced differently changes the ids. A cell tells whether all examples of its row have the right ids, both lowercased
and cased. Takes about 20 s.
"""

import importlib.metadata
import os
import tempfile
import unicodedata
from collections.abc import Callable

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from keras_bert.vocabulary import SPECIAL_TOKENS

# The first example is shown.
PHENOMENA: dict[str, tuple[str | bytes, ...]] = {
    "ordinary English": ("Hello, world! It's 3.14.", "A simple (plain) text - of 20 words."),
    "ordinary Chinese": ("\u4e2d\u6587abc\uff0c\u5f88\u597d\u3002",),
    "accents": ("na\u00efve \u00c5ngstr\u00f6m", "e\u0301a\u0308\u0323"),
    "Hangul, kana": ("\ud55c\uad6d\uc5b4 \uac01", "\u30ac\u3042\u304c"),
    "spacing marks": ("\u0915\u093f \u0bcd\u0bbe",),
    "final sigma": ("\u039f\u0394\u039f\u03a3 \u03a3", "A\u03a3.B A\u03a3 A\u03a3\u0301"),
    "sharp s": ("stra\u00dfe", "STRA\u1e9eE"),
    "dotted capital I": ("\u0130a",),
    "ligatures, title case": ("\ufb01n", "\u01c5", "\u0149"),
    "compatibility characters": ("\u212a \u212b \u2126", "\u00b2 \u2460 \uff21"),
    "marks out of order": ("\U0001d16d\U0001d165", "\u302e\u1b44", "a\u302e\u0301\u1b44"),
    "control characters in a word": ("ab\u0007cd", "a\x1bb"),
    "form feed, next line": ("ab\x0ccd", "a\x85b", "a\x1cb"),
    "U+0000": ("ab\0cd",),
    "U+FFFD": ("ab\ufffdcd",),
    "zero-width characters": ("ab\u200bcd", "a\u200db", "\ufeffa", "a\u2060b"),
    "soft hyphen": ("ab\u00adcd",),
    "non-breaking and wide spaces": ("ab\u00a0cd", "a\u3000b", "a\u202fb", "a\u2009b"),
    "line separators": ("ab\u2028cd", "a\u2029b"),
    "ASCII symbols": ("a$b", "a^b", "a`b", "a+b", "a|b", "a~b", "a=b", "a<b"),
    "punctuation": ("\u201cq\u201d\u2014a\u2026", "\u00bfa?", "a\u00a7b", "a\u30fbb"),
    "punctuation since Unicode 15": ("a\u1b4eb", "a\U00011b00b"),
    "private, unassigned": ("a\ue000b", "a\u0378b", "\U0010fffda"),
    "emoji sequences": ("\U0001f468\u200d\U0001f469", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea"),
    "CJK extension A, B, C, D": ("\u3400a", "\U00020000a", "\U0002a700a", "\U0002b740a"),
    "CJK extension E": ("\U0002b820a", "\U0002b91fa", "\U0002ceafa"),
    "CJK extension F, G": ("\U0002ceb0a", "\U00030000a"),
    "CJK compatibility": ("\uf900a", "\ufa0ea", "\U0002f81aa"),
    "special tokens in text": ("[MASK]", "a [CLS] b", "[UNK][PAD]"),
    "words of 101 to 200 characters": ("a" * 150, "a" * 101, "a" * 200),
    "words over 200 characters": ("a" * 201, "b" * 1000),
    "up to 100 characters, more bytes": ("\u0434" * 60, "\U00010400" * 30),
    "over 200 once decomposed": ("\uac01" * 67,),
    "invalid UTF-8": (b"ab\xffcd", b"a\xc3 b", b"\xed\xa0\x80a", b"\xc0\xafa"),
}
CASES = (True, False)  # Lower-casing, not.


def build_vocabulary() -> list[str]:
    """Returns the pieces: each character and what lower-casing, case folding and normal forms make of it."""
    texts = [
        text.decode("utf-8", "ignore") if isinstance(text, bytes) else text
        for row in PHENOMENA.values()
        for text in row
    ]
    texts = ["".join(dict.fromkeys(text)) for text in texts]
    texts += [change(text) for text in texts for change in (str.lower, str.upper, str.casefold)]
    forms = {char for text in texts for form in ("NFC", "NFD", "NFKC") for char in unicodedata.normalize(form, text)}
    chars = sorted(char for char in forms if unicodedata.category(char) not in ("Cc", "Cf", "Zs", "Zl", "Zp"))
    chars = [char for char in chars if char not in "#\ufffd"]
    return [*SPECIAL_TOKENS, *chars, *(f"##{char}" for char in chars)]


# === The tokenizers: vocabulary file, pieces and casing to a function from one text to its ids ===


def in_graph(tokenize: Callable) -> Callable:
    """Makes a function of one text from a function of a batch of strings, traced once."""
    import tensorflow as tf

    traced = tf.function(lambda texts: tokenize(texts).flat_values, [tf.TensorSpec([None], tf.string)], autograph=False)
    return lambda text: traced(tf.constant([text])).numpy().tolist()


def ours(path: str, pieces: list[str], lowercase: bool) -> Callable:
    from keras_bert.tokenization.tokenizer import BertTokenizer

    return in_graph(BertTokenizer(path, lowercase=lowercase).tokenize)


def fast_bert_tokenizer(path: str, pieces: list[str], lowercase: bool) -> Callable:
    import tensorflow_text as tf_text

    return in_graph(tf_text.FastBertTokenizer(pieces, lower_case_nfd_strip_accents=lowercase).tokenize)


def bert_tokenizer(path: str, pieces: list[str], lowercase: bool) -> Callable:
    import tensorflow_text as tf_text

    return in_graph(tf_text.BertTokenizer(path, lower_case=lowercase).tokenize)


def keras_hub_in_graph(path: str, pieces: list[str], lowercase: bool) -> Callable:
    import keras_nlp

    return in_graph(keras_nlp.models.BertTokenizer(path, lowercase=lowercase).tokenize)


def keras_hub(path: str, pieces: list[str], lowercase: bool) -> Callable:
    """Calls the tokenizer eagerly, which takes another path, in Python."""
    import keras_nlp

    tokenizer = keras_nlp.models.BertTokenizer(path, lowercase=lowercase)
    return lambda text: [int(number) for number in tokenizer.tokenize([text])[0]]


def model_garden(path: str, pieces: list[str], lowercase: bool) -> Callable:
    from official.nlp.modeling.layers import text_layers

    return in_graph(text_layers.BertTokenizer(vocab_file=path, lower_case=lowercase))


def model_garden_fast(path: str, pieces: list[str], lowercase: bool) -> Callable:
    from official.nlp.modeling.layers import text_layers

    return in_graph(text_layers.FastWordpieceBertTokenizer(vocab_file=path, lower_case=lowercase))


def hugging_face(path: str, pieces: list[str], lowercase: bool) -> Callable:
    import transformers

    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=lowercase)
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


TOKENIZERS = {
    "ours, in the graph": ours,
    "tensorflow-text `FastBertTokenizer`": fast_bert_tokenizer,
    "tensorflow-text `BertTokenizer`": bert_tokenizer,
    "KerasHub, in the graph": keras_hub_in_graph,
    "KerasHub, eager": keras_hub,
    "Model Garden `BertTokenizer`": model_garden,
    "Model Garden `FastWordpieceBertTokenizer`": model_garden_fast,
    "Hugging Face": hugging_face,
}


# === The table ===


def compare() -> dict[str, dict[str, list[bool | None]]]:
    """Returns whether all ids are right, [lowercased, not], by tokenizer and row; None if a text is refused."""
    pieces = build_vocabulary()
    agreements = {name: {row: [] for row in PHENOMENA} for name in TOKENIZERS}
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "vocab.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{piece}\n" for piece in pieces)
        for lowercase in CASES:
            right = PythonBertTokenizer(pieces, lowercase)
            for name, build in TOKENIZERS.items():
                tokenize = build(path, pieces, lowercase)
                for row, texts in PHENOMENA.items():
                    agreements[name][row].append(agree(tokenize, right.tokenize, texts))
    return agreements


def agree(tokenize: Callable, right: Callable, texts: tuple[str | bytes, ...]) -> bool | None:
    try:
        return all(tokenize(text) == right(text) for text in texts)
    except (TypeError, ValueError):  # UnicodeDecodeError is one.
        return None


def show(text: str | bytes) -> str:
    """Returns an example for the table, with long repetitions shortened, and marks and invisible characters escaped."""
    if len(text) > 40:
        return f"{len(text)} x `{text[:1]}`"
    chars = [chr(byte) if byte < 0x80 else f"\\x{byte:02x}" for byte in text] if isinstance(text, bytes) else text
    return "`` " + "".join(char if is_seen(char) else escape(char) for char in chars).replace("|", "\\|") + " ``"


def is_seen(char: str) -> bool:
    return len(char) > 1 or (char.isprintable() and char != "\ufffd" and not unicodedata.category(char).startswith("M"))


def escape(char: str) -> str:
    return (
        f"\\x{ord(char):02x}"
        if ord(char) < 0x100
        else f"\\u{ord(char):04x}"
        if char <= "\uffff"
        else f"\\U{ord(char):08x}"
    )


def cell(answers: list[bool | None]) -> str:
    if None in answers:
        return "refused"
    if len(set(answers)) == 1:
        return "same" if answers[0] else "differs"
    return "uncased differs" if answers[1] else "cased differs"


def columns(agreements: dict[str, dict[str, list[bool | None]]]) -> dict[str, list[str]]:
    """Returns the table by columns. Tokenizers that agree in all rows share one."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, rows in agreements.items():
        wrong = [sum(answers[case] is not True for answers in rows.values()) for case in range(len(CASES))]
        cells = [*map(cell, rows.values()), f"**{wrong[0]} / {wrong[1]}**"]
        names.setdefault(tuple(cells), []).append(name)
    return {", ".join(shared): list(cells) for cells, shared in names.items()}


def main() -> None:
    table = columns(compare())
    packages = ("tensorflow-text", "keras-hub", "tf-models-official", "transformers", "tokenizers")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages), end="; ")
    print(f"Unicode {unicodedata.unidata_version} (Python's)\n")
    examples = [*(show(texts[0]) for texts in PHENOMENA.values()), f"of {len(PHENOMENA)} rows"]
    table = {"phenomenon": [*PHENOMENA, "**differs, uncased / cased**"], "example": examples, **table}
    print("|", " | ".join(table), "|")
    print("|", " | ".join(["---"] * len(table)), "|")
    for row in zip(*table.values(), strict=True):
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
