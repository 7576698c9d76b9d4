"""bert-create-pretraining-data: raw text to TFRecord files of masked-LM and next-sentence instances.

    bert-create-pretraining-data --input_file='text/*.txt' --output_file=train.tfrecord --vocab_file=vocab.txt

Text: UTF-8, one sentence a line, a blank line between documents. The records depend on the text and on the flags
alone. Source: google-research/bert, create_pretraining_data.py.
"""

import os
import time

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import write_json
from tasks import flags as task_flags

task_flags.define_tokenizer()
flags.DEFINE_string("input_file", None, "Text: paths or patterns, commas between.", allow_override=True)
flags.DEFINE_string("output_file", None, "TFRecord files to write, commas between, in no path.", allow_override=True)
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions of an instance at most.", allow_override=True)
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that are masked.", allow_override=True)
flags.DEFINE_float("short_seq_prob", 0.1, "Probability that a document is cut shorter.", allow_override=True)
flags.DEFINE_integer("dupe_factor", 10, "Times the text is gone through, with other masks.", allow_override=True)
flags.DEFINE_integer("random_seed", 12345, "Seed of all draws.", allow_override=True)
flags.DEFINE_boolean("do_whole_word_mask", False, "Mask all WordPieces of a word together.", allow_override=True)
flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])


def main(argv: list[str]) -> None:
    del argv
    print(format_report(create_pretraining_data(**task_flags.resolved_flags())))


def console_main() -> None:
    task_flags.run(main)


def create_pretraining_data(
    *,
    input_file: str | list[str],
    output_file: str | list[str],
    vocab_file: str,
    do_lower_case: bool = True,
    **settings,
) -> dict:
    """Writes the instances of a text, shuffled, round-robin over the output files, and a report beside the first.

    Args:
        input_file: paths or patterns of UTF-8 text, one sentence a line, a blank line between documents.
        output_file: paths of the TFRecord files to write: a list, or with commas between and none inside a path.
        vocab_file: WordPieces, one a line.
        do_lower_case: whether the vocabulary is uncased.
        **settings: the fields of `tasks.pretraining.writing.Settings`.

    Returns:
        The report: counts and shares of what was written; also at `<first output file>.report.json`.

    Raises:
        InputError: a setting out of its range, or text or a vocabulary that cannot be used.
    """
    from keras_bert.tokenizer import BertTokenizer
    from tasks.pretraining import writing
    from tasks.pretraining.corpus import read_corpus

    start = time.monotonic()
    checked = writing.Settings(**settings)
    output_files = _output_files(output_file)
    tokenizer = BertTokenizer(vocab_file, lowercase=do_lower_case)
    corpus = read_corpus(input_file, tokenizer)
    pairs = writing.draw_all_pairs(corpus, checked)
    counts = writing.write_instances(corpus, pairs, writing.masking_rules(tokenizer, checked), checked, output_files)
    report = {
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        **counts.report(checked.max_seq_length),
        "seconds": round(time.monotonic() - start, 1),
        "output_files": output_files,
        "settings": {**settings, "do_lower_case": do_lower_case},
    }
    write_json(f"{output_files[0]}.report.json", report)
    return report


def _output_files(output_file: str | list[str]) -> list[str]:
    parent = os.path.dirname(output_file) if isinstance(output_file, str) else ""
    if "," in parent and os.path.isdir(parent):
        raise InputError(
            f"--output_file={output_file}: a comma separates files here, but {parent} is one directory. Choose a path "
            "without a comma."
        )
    files = output_file.split(",") if isinstance(output_file, str) else output_file
    files = [path.strip() for path in files if path.strip()]
    if not files or len(set(files)) < len(files):
        raise InputError(f"--output_file must name one file or several different ones. Received: {output_file!r}")
    for path in files:
        if os.path.isdir(path):
            raise InputError(f"{path}: is a directory. --output_file names files, e.g. {path}/train.tfrecord")
    return files


def format_report(report: dict) -> str:
    """Renders a report as lines of name and figure."""
    lines = []
    for name, value in report.items():
        if name.endswith("_share"):
            lines.append(f"{name.removesuffix('_share').replace('_', ' ') + ' share':20}{value:12.2%}")
        elif isinstance(value, (int, float)):
            lines.append(f"{name.replace('_', ' '):20}{value:12,}")
    return "\n".join([*lines, *report["output_files"]])


if __name__ == "__main__":
    console_main()
