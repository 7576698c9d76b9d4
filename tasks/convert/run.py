"""Converts a checkpoint from any format to any other, with a numeric proof.

    bert-convert --from=uncased_L-12_H-768_A-12.zip --to=bert-base-hf --to_format=hugging_face
    bert-convert --from=hf://google-bert/bert-base-uncased --to=presets/base --to_format=keras
    bert-convert --from=runs/tickets/model --to=tickets-hf --to_format=hugging_face --compare_with_peers

--from takes what `from_preset` takes: a preset's name, an hf:// or kaggle:// handle, a directory, a zip, a .keras
file, or the prefix of a TensorFlow checkpoint. Its format is detected from the content. The encoder, its heads (pooler,
masked LM, next sentence, or a fine-tuned one) and the vocabulary are all converted.

The new files are read back before they appear under --to: every weight is compared bit by bit, and every output on a
fixed batch. If the library that owns the format is installed, its forward pass is compared, too. A difference above
--tolerance leaves --to untouched. The proof costs two forward passes of eight short sequences, and reading the files.
"""

import contextlib
import dataclasses
import importlib

from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, exists, is_directory, list_directory
from tasks import flags
from tasks.settings import Settings, setting

TO_FORMATS = {"keras": "keras_preset", "keras_hub": "keras_hub", "hugging_face": "hugging_face", "google": "google"}
# What `task.json` says of a classifier that answers as any other program would; nothing is lost with these.
_PLAIN = {"long_text": "truncate", "temperature": 1.0, "thresholds": None}


class ConversionSettings(Settings):
    """Settings of `bert-convert`."""

    source: str = setting(dataclasses.MISSING, "Preset, directory, zip, .keras file or checkpoint prefix.", flag="from")
    target: str = setting(dataclasses.MISSING, "Directory to write, which must be new or empty.", flag="to")
    to_format: str = setting(
        "keras",
        "keras: this project's preset; keras_hub: KerasHub's own classes; google: a TensorFlow 1 checkpoint.",
        choices=tuple(TO_FORMATS),
    )
    do_lower_case: bool | None = setting(None, "Whether the vocabulary is lowercase, if --from does not say.")
    tolerance: float = setting(2e-5, "Largest allowed absolute difference of an output.", at_least=0.0)
    compare_with_peers: bool = setting(True, "Also compare with the formats' own libraries, if they are installed.")


def main(settings: ConversionSettings) -> None:
    if settings.compare_with_peers:
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")  # torch's CUDA wheels crash if it is first imported after TensorFlow.
    from tasks.convert.proof import format_proof

    print(format_proof(convert(settings)))


console_main = flags.console_main(main, ConversionSettings)


def convert(settings: ConversionSettings):
    """Converts a checkpoint. The target appears complete and verified, or not at all.

    Returns:
        `tasks.convert.proof.Proof`.

    Raises:
        InputError: the source cannot be read, the format cannot hold it, the target exists, or verification fails.
    """
    source, target = settings.source, settings.target
    if exists(target) and not (is_directory(target) and not list_directory(target)):
        raise InputError(f"{target}: exists already. Remove it, or name another directory by --to.")
    from keras_bert import formats, models
    from keras_bert.presets import catalog, tokenizers, weights
    from keras_bert.vocabulary import check_rows
    from tasks.convert import proof as conversion_proof
    from tasks.report import card

    catalog.resolve_preset(source, "weights")  # Its error lists every place that was searched.
    tokenizer = tokenizers.read_tokenizer(source, settings.do_lower_case)
    module = formats.modules()[TO_FORMATS[settings.to_format]]
    with weights.open_checkpoint(source) as checkpoint:
        if tokenizer is not None:
            check_rows(checkpoint.source, len(tokenizer["vocabulary"]), checkpoint.config.vocabulary_size)
        task, positions = checkpoint.settings.get("task", {}), checkpoint.config.max_sequence_length
        model_class = getattr(models, task.get("class_name", ""), None)
        if answers := model_class.answer_settings_of(source, checkpoint) if model_class else {}:
            task = {**task, "answer_settings": answers}
            checkpoint = dataclasses.replace(checkpoint, settings={**checkpoint.settings, "task": task})
        lost = {name for name, value in answers.items() if name != "num_texts" and value != _PLAIN.get(name, ...)}
        if settings.to_format in ("google", "keras_hub"):
            own = {"labels": checkpoint.labels, **task}
            lost |= {name for name in ("labels", "multi_label", "normalize", "pooling", "prompts") if own.get(name)}
        # KerasHub's classifiers have such a length, and embedders of Hugging Face.
        places = {"keras_hub": not task.get("pooling"), "hugging_face": checkpoint.is_embedder}
        is_lost = (task.get("sequence_length") or positions) < positions and not places.get(settings.to_format)
        lost |= {"sequence_length"} if is_lost else set()
        has_strings = tokenizer is not None and tokenizer.get("special_tokens_in_strings")
        lost |= {"special_tokens_in_strings"} if has_strings and settings.to_format != "keras_hub" else set()
        if lost and settings.to_format != "keras":
            message = "--to_format=%s cannot store the model's %s; --to_format=keras can."
            logging.warning(message, settings.to_format, ", ".join(sorted(lost)))
        with atomic_path(target) as temporary:
            module.write(temporary, checkpoint, tokenizer)
            if text := card.find_card(source):
                library = "transformers" if settings.to_format == "hugging_face" else "keras"
                card.save(temporary, text.replace("library_name: keras\n", f"library_name: {library}\n", 1))
            with module.open_checkpoint(temporary) as written:
                names = (f"{checkpoint.format}: {source}", f"{settings.to_format}: {target}")
                proof = conversion_proof.compare(checkpoint, written, names, settings.compare_with_peers)
            conversion_proof.check(proof, settings.tolerance)
    return proof


if __name__ == "__main__":
    console_main()
