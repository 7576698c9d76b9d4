"""The settings of bert-create-pretraining-data."""

import dataclasses

from tasks.pretraining.engines import EngineSettings
from tasks.settings import Settings, changeable, setting


class InstanceSettings(Settings):
    """Settings that the instances depend on, besides text and vocabulary."""

    do_lower_case: bool = setting(True, "Lowercase and strip accents; true for an uncased vocabulary.")
    max_seq_length: int = setting(
        128, "Maximum number of tokens of an instance, including [CLS] and two [SEP].", at_least=5
    )
    max_predictions_per_seq: int = setting(20, "Maximum number of masked positions of an instance.", at_least=1)
    dupe_factor: int = setting(10, "Number of passes over the text, each with other pairs and masks.", at_least=1)
    input_format: str = setting(
        "sentences",
        "sentences: one per line, a blank line between documents; wikitext: a line ' = Title = ' begins a document; "
        "document_per_file: each file is a document. All may be gzip-compressed.",
        choices=("sentences", "wikitext", "document_per_file"),
        subject="data",
    )
    sentence_splitter: str = setting(
        "none",
        "none: each line is a sentence; sentencex: each line is a paragraph, which the package sentencex splits.",
        choices=("none", "sentencex"),
        needs={"sentencex": "sentences"}.get,
    )
    sentence_language: str = setting("en", "Language code for --sentence_splitter.")
    masked_lm_prob: float = setting(0.15, "Share of the tokens that are masked.", above=0.0, at_most=1.0)
    short_seq_prob: float = setting(
        0.1, "Probability of cutting a document into shorter instances.", at_least=0.0, at_most=1.0
    )
    random_seed: int = setting(12345, "Seed of all random draws.", at_least=0)
    do_whole_word_mask: bool = setting(False, "Mask all WordPieces of a word together.")


class DataSettings(InstanceSettings, EngineSettings):
    """Settings of bert-create-pretraining-data, which are its flags.

    Raises:
        InputError: a value is out of its bounds, or values contradict each other.
    """

    input_file: str | list[str] = changeable(dataclasses.MISSING, "Text: paths or patterns, separated by commas.")
    output_file: str | list[str] = changeable(dataclasses.MISSING, "TFRecord files to write, separated by commas.")
    vocab_file: str = changeable(dataclasses.MISSING, "WordPiece vocabulary, one token per line.")
    num_shards: int | None = changeable(
        None,
        "Number of files to write; each appends its number to --output_file: train.tfrecord-00000-of-00010.",
        at_least=1,
        at_most=99999,
        subject="devices",
    )
