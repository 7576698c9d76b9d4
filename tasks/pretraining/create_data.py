"""bert-create-pretraining-data: raw text to TFRecord files of masked-LM and next-sentence instances.

    bert-create-pretraining-data --input_file='text/*.txt' --output_file=train.tfrecord --vocab_file=vocab.txt

Text: UTF-8, also gzip-compressed; one sentence a line, a blank line between documents, or as --input_format says. The
records depend on the text and on the flags alone: not on --num_workers, and not on --runner. Memory does not grow with
the text; disk space beside the output does. Source: google-research/bert, create_pretraining_data.py.
"""

import os
import time

from absl import flags

from keras_bert.errors import InputError
from tasks import flags as task_flags

INPUT_FORMATS = ("sentences", "wikitext", "document_per_file")
SENTENCE_SPLITTERS = ("none", "sentencex")

task_flags.define_tokenizer()
flags.DEFINE_string("input_file", None, "Text: paths or patterns, commas between.", allow_override=True)
flags.DEFINE_enum(
    "input_format",
    "sentences",
    list(INPUT_FORMATS),
    "sentences: one a line, a blank line between documents; wikitext: a line ' = Title = ' begins a document; "
    "document_per_file: each file is one. Any of them gzip-compressed or not.",
    allow_override=True,
)
flags.DEFINE_enum(
    "sentence_splitter",
    "none",
    list(SENTENCE_SPLITTERS),
    "none: each line is a sentence; sentencex: a line is prose, split by the package of this name.",
    allow_override=True,
)
flags.DEFINE_string("sentence_language", "en", "Language code for --sentence_splitter.", allow_override=True)
flags.DEFINE_string("output_file", None, "TFRecord files to write, commas between, in no path.", allow_override=True)
flags.DEFINE_integer(
    "num_shards",
    None,
    "Write so many files, with the number appended to --output_file: train.tfrecord-00000-of-00010.",
    lower_bound=1,
    upper_bound=99999,
    allow_override=True,
)
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions of an instance at most.", allow_override=True)
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that are masked.", allow_override=True)
flags.DEFINE_float("short_seq_prob", 0.1, "Probability that a document is cut shorter.", allow_override=True)
flags.DEFINE_integer("dupe_factor", 10, "Times the text is gone through, with other masks.", allow_override=True)
flags.DEFINE_integer("random_seed", 12345, "Seed of all draws.", allow_override=True)
flags.DEFINE_boolean("do_whole_word_mask", False, "Mask all WordPieces of a word together.", allow_override=True)
flags.DEFINE_integer(
    "num_workers",
    None,
    "Processes; default: one for each core, as far as there is work for them.",
    lower_bound=1,
    allow_override=True,
)
flags.DEFINE_string(
    "runner",
    None,
    "Apache Beam runner in the place of local processes, such as DirectRunner, DataflowRunner, FlinkRunner or "
    "SparkRunner; needs apache-beam: pip install 'keras-bert-zoo[beam]'.",
    allow_override=True,
)
flags.DEFINE_multi_string(
    "beam_options",
    [],
    "Beam's own options, as --beam_options=--project=p --beam_options=--temp_location=gs://b/tmp.",
    allow_override=True,
)
flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])


def main(argv: list[str]) -> None:
    del argv
    from tasks.pretraining.data_report import format_report

    print(format_report(create_pretraining_data(**task_flags.resolved_flags())))


def console_main() -> None:
    task_flags.run(main)


def create_pretraining_data(
    *,
    input_file: str | list[str],
    output_file: str | list[str],
    vocab_file: str,
    do_lower_case: bool = True,
    input_format: str = "sentences",
    sentence_splitter: str = "none",
    sentence_language: str = "en",
    num_shards: int | None = None,
    num_workers: int | None = 1,
    runner: str | None = None,
    beam_options: list[str] | None = None,
    **settings,
) -> dict:
    """Writes the instances of a text, shuffled, round-robin over the output files, and a report beside the first.

    All output files appear at the end, or none of them. What a run needs meanwhile lies in a directory beside the
    output, `.<output file>.scratch`, which goes at the end, or with the next run if this one is killed.

    Args:
        input_file: paths or patterns of UTF-8 text.
        output_file: paths of the TFRecord files to write: a list, or with commas between and none inside a path.
        vocab_file: WordPieces, one a line.
        do_lower_case: whether the vocabulary is uncased.
        input_format, sentence_splitter, sentence_language: how lines become sentences and documents; see `--help`.
        num_shards: write so many files, named after the one output file and numbered.
        num_workers: processes; None: one for each core, as far as there is work for them.
        runner: name of an Apache Beam runner, in the place of processes.
        beam_options: Beam's own command-line options.
        **settings: the fields of `tasks.pretraining.writing.Settings`.

    Returns:
        The report: counts and shares of what was written; also at `<output file>.report.json`, with the histogram of
        lengths at `<output file>.lengths.png`; the output file without its number, or the first one.

    Raises:
        InputError: a setting out of its range, or text or a vocabulary that cannot be used.
    """
    from tasks.pretraining.corpus import TextRules
    from tasks.pretraining.data_report import draw_lengths, render_json, report_files
    from tasks.pretraining.writing import Settings

    start = time.monotonic()
    for name, value, known in (
        ("input_format", input_format, INPUT_FORMATS),
        ("sentence_splitter", sentence_splitter, SENTENCE_SPLITTERS),
    ):
        if value not in known:
            raise InputError(f"--{name} must be one of {', '.join(known)}. Received: {value!r}")
    rules = TextRules(do_lower_case, input_format, sentence_splitter, sentence_language)
    prefix, output_files = _output_files(output_file, num_shards)
    arguments = (input_file, prefix, output_files, vocab_file, rules, Settings(**settings))
    if runner is None:
        if beam_options:
            raise InputError("--beam_options needs --runner, such as --runner=DirectRunner.")
        from tasks.pretraining import driver

        written, save = driver.create(*arguments, num_workers), driver.save
    else:
        from tasks.pretraining import beam

        written, save = beam.create(*arguments, runner, beam_options or []), beam.save
    report = {
        **written,
        "seconds": round(time.monotonic() - start, 1),
        "output_files": output_files,
        "settings": {**settings, **rules._asdict()},
    }
    json_file, png_file = report_files(prefix)
    save(json_file, render_json(report))
    save(png_file, draw_lengths(report))
    return report


def _output_files(output_file: str | list[str], num_shards: int | None) -> tuple[str, list[str]]:
    """Returns what the names of the reports begin with, `--output_file` or the first of several; and all files."""
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
    prefix = files[0]
    if num_shards is not None:
        if len(files) > 1:
            raise InputError(f"--num_shards={num_shards} numbers one --output_file. Received: {output_file!r}")
        files = [f"{prefix}-{shard:05d}-of-{num_shards:05d}" for shard in range(num_shards)]
    for path in files:
        if os.path.isdir(path):
            raise InputError(f"{path}: is a directory. --output_file names files, e.g. {path}/train.tfrecord")
    return prefix, files


if __name__ == "__main__":
    console_main()
