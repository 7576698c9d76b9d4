"""bert-create-pretraining-data: raw text to TFRecord files of masked-LM and next-sentence instances.

    bert-create-pretraining-data --input_file='text/*.txt' --output_file=train.tfrecord --vocab_file=vocab.txt
    bert-create-pretraining-data --input_file='text/*.gz' --output_file=train.tfrecord --vocab_file=vocab.txt \\
        --num_shards=100 --num_workers=16
    bert-create-pretraining-data --input_file=wiki.txt --input_format=wikitext --sentence_splitter=sentencex \\
        --output_file=train.tfrecord --vocab_file=vocab.txt

Text is UTF-8, gzip-compressed or not, with one sentence a line and a blank line between documents, or as --input_format
says. The records depend on the text and on the settings alone, not on --num_workers or --runner. Memory does not grow
with the text; disk space beside the output does. Source: google-research/bert, create_pretraining_data.py.
"""

import os

from keras_bert.errors import InputError
from keras_bert.files import is_directory
from tasks import flags
from tasks.pretraining.data.settings import DataSettings


def main(settings: DataSettings) -> None:
    from tasks.pretraining.data.report import format_report

    print(format_report(create_pretraining_data(settings)))


console_main = flags.console_main(main, DataSettings)


def create_pretraining_data(settings: DataSettings) -> dict:
    """Writes the instances of a text over the output files, each with its index, and a report beside the first.

    All output files appear at the end, or none of them; until all are in place, `bert-pretrain` refuses them. They are
    about equally long: equal parts of the tokens, of blocks of text in random order, each block's instances shuffled.
    Unfinished work lies in a directory beside the output, `.<output file>.scratch`, from which the same call continues
    a run that was killed. With several workers, a script that calls this must do so below
    `if __name__ == "__main__"`.

    Returns:
        The report: counts and shares of what was written, and a histogram of lengths. It is also at
        `<output file>.report.json`; of several output files, the first gives the name.

    Raises:
        InputError: text or a vocabulary that cannot be used, or a file that cannot be written.
    """
    from tasks.pretraining.data import driver

    return driver.create(settings, *_output_files(settings.output_file, settings.num_shards))


def _output_files(output_file: str | list[str], num_shards: int | None) -> tuple[str, list[str]]:
    """Returns the path that the reports are named after, `--output_file` or the first of several; and all files."""
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
