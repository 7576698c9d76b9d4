"""bert-create-pretraining-data: makes TFRecord files of masked-LM and next-sentence instances from raw text.

    bert-create-pretraining-data --input_file='text/*.txt' --output_file=train.tfrecord --vocab_file=vocab.txt
    bert-create-pretraining-data --input_file='text/*.gz' --output_file=train.tfrecord --vocab_file=vocab.txt \\
        --num_shards=100 --num_workers=16
    bert-create-pretraining-data --input_file=wiki.txt --input_format=wikitext --sentence_splitter=sentencex \\
        --output_file=train.tfrecord --vocab_file=vocab.txt

Text is UTF-8, optionally gzip-compressed, with one sentence per line and a blank line between documents, unless
--input_format says otherwise. The records depend only on the text and the settings, not on --num_workers or --runner.
Memory use does not grow with the text; temporary disk space beside the output does. Source: google-research/bert,
create_pretraining_data.py.
"""

import os

from keras_bert.errors import InputError
from keras_bert.files import is_directory
from tasks import flags
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.figures import format_figures


def main(settings: DataSettings) -> None:
    report = create_pretraining_data(settings)
    paths = report["output_files"]
    shown = paths if len(paths) <= 4 else [*paths[:2], f"... {len(paths)} files", paths[-1]]
    print(format_figures(report), *shown, sep="\n")


console_main = flags.console_main(main, DataSettings)


def create_pretraining_data(settings: DataSettings) -> dict:
    """Writes the instances of a text to the output files, each with an index, and a report beside the first.

    Either all output files appear at the end, or none; `bert-pretrain` refuses them until all are in place. The files
    are about equally long: blocks of text in random order are distributed so that each file gets an equal share of the
    tokens, and the instances of each block are shuffled. Unfinished work is kept beside the output, in
    `.<output file>.scratch`, from which the same call continues a killed run. With several workers, a script must call
    this function below `if __name__ == "__main__"`.

    Returns:
        The report: counts and shares of what was written, and a histogram of lengths. It is also written to
        `<output file>.report.json`, named after the first of several output files.

    Raises:
        InputError: the text or the vocabulary cannot be used, or a file cannot be written.
    """
    from tasks.pretraining.data import driver

    return driver.create(settings, *_output_files(settings.output_file, settings.num_shards))


def _output_files(output_file: str | list[str], num_shards: int | None) -> tuple[str, list[str]]:
    """Returns the path that the report is named after (the first of `--output_file`), and the paths of all files."""
    parent = os.path.dirname(output_file) if isinstance(output_file, str) else ""
    if "," in parent and is_directory(parent):
        raise InputError(
            f"--output_file={output_file}: a comma separates files here, but {parent} is one directory. Choose another."
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
        if is_directory(path):
            raise InputError(f"{path}: is a directory. --output_file names files, e.g. {path}/train.tfrecord")
    return prefix, files


if __name__ == "__main__":
    console_main()
