"""bert-convert: a checkpoint of any format to any other, with a numeric proof.

    bert-convert --from=uncased_L-12_H-768_A-12.zip --to=bert-base-hf --to_format=hugging_face

`--from` takes what `from_preset` takes: a preset's name, hf:// and kaggle:// handles, a directory, a zip, a .keras
file, the prefix of a TensorFlow checkpoint; its format is told by its content. The encoder, its heads (pooler, masked
LM, next sentence, or a fine-tuned one) and the vocabulary come along.

What was written is read back before it gets its name: every weight is compared bit by bit, and every output on a fixed
batch; where the library that owns the format is installed, its own forward pass is compared too. Differences above
--tolerance leave --to untouched. Cost: two forward passes of eight short sequences, and the reading.
"""

import os

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from tasks import flags as task_flags

FLAGS = flags.FLAGS

TO_FORMATS = {"keras": "keras_preset", "keras_hub": "keras_hub", "hugging_face": "hugging_face", "google": "google"}

flags.DEFINE_string("from", None, "Preset, directory, zip, .keras file or checkpoint prefix.", allow_override=True)
flags.DEFINE_string("to", None, "Directory to write; it must not exist, or be empty.", allow_override=True)
flags.DEFINE_enum("to_format", "keras", list(TO_FORMATS), "keras: this project's preset; keras_hub: KerasHub's own "
                  "classes; google: a TensorFlow 1 checkpoint.", allow_override=True)  # fmt: skip
flags.DEFINE_boolean("do_lower_case", None, "Whether the vocabulary is lower-cased, where --from does not say.",
                     allow_override=True)  # fmt: skip
flags.DEFINE_float("tolerance", 2e-5, "Largest difference of an output.", lower_bound=0.0, allow_override=True)
flags.DEFINE_boolean("compare_with_peers", True, "Run the formats' own libraries where they are installed.",
                     allow_override=True)  # fmt: skip
flags.mark_flags_as_required(["from", "to"])


def main(argv: list[str]) -> None:
    del argv
    from tasks.conversion_proof import format_proof

    proof = convert(
        FLAGS["from"].value,
        FLAGS.to,
        to_format=FLAGS.to_format,
        do_lower_case=FLAGS.do_lower_case,
        tolerance=FLAGS.tolerance,
        compare_with_peers=FLAGS.compare_with_peers,
    )
    print(format_proof(proof))


def console_main() -> None:
    task_flags.run(main)


def convert(
    source: str,
    target: str,
    *,
    to_format: str = "keras",
    do_lower_case: bool | None = None,
    tolerance: float = 2e-5,
    compare_with_peers: bool = True,
):
    """Converts a checkpoint; the target appears whole and proved, or not at all.

    Args:
        source: as in `BertBackbone.from_preset`.
        target: directory to write.
        to_format: str, a key of `TO_FORMATS`.
        do_lower_case: bool or None, for a vocabulary of which the source does not say it.
        tolerance: float, largest absolute difference of an output.
        compare_with_peers: bool, also run the libraries that own the formats.

    Returns:
        `tasks.conversion_proof.Proof`.

    Raises:
        InputError: the source cannot be read, the format cannot hold it, `target` is taken, or the proof fails.
    """
    if os.path.exists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise InputError(f"{target}: exists already. Remove it, or name another directory by --to.")
    from keras_bert import formats, presets, weights
    from tasks import conversion_proof

    presets.resolve_preset(source, "weights")  # Its message, where nothing is found, is the one that helps.
    tokenizer = weights.read_tokenizer(source, do_lower_case)
    module = formats.modules()[TO_FORMATS[to_format]]
    with weights.open_checkpoint(source) as checkpoint:
        _check_vocabulary(checkpoint, tokenizer)
        with atomic_path(target) as temporary:
            module.write(temporary, checkpoint, tokenizer)
            with module.open_checkpoint(temporary) as written:
                proof = conversion_proof.compare(checkpoint, written, compare_with_peers)
            proof = proof._replace(source=f"{checkpoint.format}: {source}", target=f"{to_format}: {target}")
            conversion_proof.check(proof, tolerance)
    return proof


def _check_vocabulary(checkpoint, tokenizer: dict | None) -> None:
    if tokenizer is not None and len(tokenizer["vocabulary"]) > checkpoint.config.vocabulary_size:
        raise InputError(
            f"{checkpoint.source}: its vocabulary has {len(tokenizer['vocabulary'])} pieces, its token table "
            f"{checkpoint.config.vocabulary_size} rows. Expected a row for each piece: they are not of one model."
        )


if __name__ == "__main__":
    console_main()
