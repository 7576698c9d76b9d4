"""The names of google-research/bert's tokenization.py, on our tokenizers: in the graph, or in Python."""

import os
import unicodedata

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENGINE = "ORACLE_ENGINE"  # The environment variable that asks for the tokenizer in the "graph".


class _Tokenizer:
    in_graph = os.environ.get(ENGINE) == "graph"

    def __init__(self, pieces, lowercase: bool, special_tokens_in_strings: bool = False):
        from keras_bert import BertTokenizer
        from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer

        kind = BertTokenizer if self.in_graph else PythonBertTokenizer
        # Ours needs all of the special tokens.
        pieces = [*pieces, *(token for token in SPECIALS if token not in pieces)]
        self.tokenizer = kind(pieces, lowercase, special_tokens_in_strings)

    def tokenize(self, text: str) -> list[str]:
        return [self.tokenizer.id_to_token(int(number)) for number in self.tokenizer.tokenize(text)]

    def convert_tokens_to_ids(self, tokens) -> list[int]:
        return [self.tokenizer.token_to_id(token) for token in tokens]


class FullTokenizer(_Tokenizer):
    def __init__(self, vocab_file, do_lower_case=True, special_tokens_in_strings=False):
        with open(vocab_file, encoding="utf-8") as file:
            super().__init__(file.read().splitlines(), do_lower_case, special_tokens_in_strings)


class WordpieceTokenizer(_Tokenizer):
    def __init__(self, vocab, unk_token="[UNK]"):
        super().__init__(sorted(vocab, key=vocab.get), lowercase=False)


class BasicTokenizer:
    """Finds words: of a vocabulary that has a piece for each character, our tokenizer leaves none of them out."""

    def __init__(self, do_lower_case=True, never_split=()):
        if not set(never_split) <= set(SPECIALS):
            raise NotImplementedError("Only special tokens are never split.")
        self._settings = do_lower_case, bool(never_split)

    def tokenize(self, text: str) -> list[str]:
        chars = sorted({char for char in text + unicodedata.normalize("NFD", text.lower()) if not char.isspace()})
        words = []
        for piece in _Tokenizer([*chars, *(f"##{char}" for char in chars)], *self._settings).tokenize(text):
            if piece.startswith("##"):
                words[-1] += piece[2:]
            else:
                words.append(piece)
        return words


def convert_tokens_to_ids(vocab, tokens) -> list[int]:
    return WordpieceTokenizer(vocab).convert_tokens_to_ids(tokens)


def _words_around(char: str) -> list[str]:
    return BasicTokenizer(do_lower_case=False).tokenize(f"a{char}b")


def _is_whitespace(char: str) -> bool:
    return _words_around(char) == ["a", "b"]


def _is_control(char: str) -> bool:
    return _words_around(char) == ["ab"]


def _is_punctuation(char: str) -> bool:
    return _words_around(char) == ["a", char, "b"]
