"""`bert-export`: turns a trained model into a directory that TensorFlow Serving loads, texts in and answers out.

    bert-export --model_dir=runs/mood/model --export_dir=served/mood
    bert-export --preset=base --task=embeddings --layer=-2 --export_dir=served/embeddings
    bert-export --model_dir=runs/search/model --task=search --passages=passages.txt --export_dir=served/search

Exports what a task's command trained (its output_dir/model), or a preset with a fine-tuned head, such as what
`save_to_preset` wrote after `fit`. Some tasks take any preset: embeddings, fill_mask (which needs the masked-LM head,
as in bert-pretrain's output_dir/preset), sentence_embedding and search (which take the embedders of bert-embed and
sentence-transformers). Writes `served/mood/1` (then 2, 3, ...), and `served/mood/README.md` with the commands that
serve and query the model. A version gets its number only after it has been verified in a fresh process and, if g++ is
installed, by a C++ program. An export takes seconds for a small model, and about a minute for BERT-base.
"""

import dataclasses
import os

from export import base_path, targets
from keras_bert.errors import InputError
from keras_bert.files import absolute, exists, is_file
from keras_bert.presets.catalog import find_preset, resolve_preset
from keras_bert.presets.weights import has_config
from tasks import flags
from tasks.fine_tuning import model_files
from tasks.settings import Settings, setting

_TOLERANCE = 0.5
_PRESET_TASKS = ("fill_mask", "embeddings", "sentence_embedding", "search")


class ExportSettings(Settings):
    """Settings of bert-export, which are its flags."""

    model_dir: str | None = setting(None, "Model that a task's command trained: the folder model in its --output_dir.")
    preset: str | None = setting(
        None, "Preset in place of --model_dir, e.g. of save_to_preset, with a fine-tuned head or with --task."
    )
    task: str | None = setting(None, "Task to serve a preset for, if it has no fine-tuned head.", choices=_PRESET_TASKS)
    export_dir: str = setting(dataclasses.MISSING, "Base path of the model; its versions are numbered folders.")
    version: int | None = setting(
        None, "Number of the version. Default: one more than the highest.", at_least=0, at_most=base_path.MAX_VERSION
    )
    max_seq_length: int | None = setting(
        None, "Longest sequence in tokens. Default: the model's; for a preset, its maximum length.", at_least=3
    )
    layer: int | None = setting(
        None, "Embeddings: encoder layer, from 1 (lowest) or from -1 (last). Default: -1.", subject="answers"
    )
    top_k: int | None = setting(
        None, "Number of tokens per mask (default: 5), or of passages per question (default: 10).", at_least=1
    )
    passages: str | None = setting(None, "Search: file with the passages to search, one per line.")
    passages_dtype: str | None = setting(
        None,
        "Search: type of the passages' vectors (default: float32); int8 takes a quarter, and prints its cost.",
        choices=("float32", "int8"),
    )
    reranker_dir: str | None = setting(
        None,
        "Search: a model of bert-classify on pairs that orders the --top_k passages found. It has scores, or two "
        "labels, the second of which means a match.",
    )
    n_best_size: int | None = setting(None, "Question answering: answers to list. Default: the model's.", at_least=1)
    max_answer_length: int | None = setting(
        None, "Question answering: longest answer in tokens. Default: the model's.", at_least=1
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "Question answering: give no answer if the score of 'no answer' exceeds the best answer's by more than this. "
        "Default: the model's.",
    )
    doc_stride: int | None = setting(
        None, "Long texts: tokens from the start of a window to that of the next. Default: the model's.", at_least=1
    )
    max_tokens: int | None = setting(
        None,
        "Long texts: maximum number of tokens to read. Default: 8 times the longest sequence, 8192 with --long_text.",
        at_least=1,
    )
    with_cc: str = setting(
        "auto",
        "Verify with a C++ program, too. auto: if g++ is installed; on: always; off: never.",
        choices=("auto", "on", "off"),
        subject="targets",
    )
    onnx: bool = setting(
        False, "Also write an ONNX model (token ids in) to export_dir/onnx, and check it.", needs={True: "onnx"}.get
    )
    litert: bool = setting(
        False,
        "Also write a LiteRT model (token ids in) to export_dir/litert, and check it.",
        needs={True: "litert"}.get,
    )
    int8: bool = setting(
        False,
        "Find the matrix products that bert-serve --precision=int8 may compute in 8 bits, and measure their cost on "
        "the rows that the training held out.",
        needs={True: "onnx"}.get,
    )
    int8_tolerance: float = setting(
        _TOLERANCE,
        "Points of the task's metric that 8 bits may cost. The labels that change may be twice as many percent.",
        at_least=0.0,
    )
    bfloat16: bool = setting(
        False,
        "Also write a SavedModel whose encoder computes its products in bfloat16 to export_dir/bfloat16, and measure "
        "it: half the size, and faster on processors with AVX512_BF16 or AMX.",
    )


def export(settings: ExportSettings) -> str:
    """Exports a trained model or a preset.

    Returns:
        A report for the user, several lines.

    Raises:
        InputError: there is no such model, `export_dir` does not end in a model's name, the version exists, a setting
            is not for this task, or the verification failed.
    """
    _check(settings)
    _check_source(settings)
    # Imported late: these import TensorFlow, and --help should not wait for that.
    from export import clients, companion_files, saved_model
    from export.heads.loading import HEADS, load_head
    from export.verification.verify import VerificationError
    from tasks.report import card

    wanted = [name for name in targets.TARGETS if getattr(settings, name)]
    own = {name: getattr(settings, name) for head in HEADS.values() for name in head.settings}
    source = settings.model_dir or settings.preset
    saved_model.check_target(settings.export_dir, settings.version, settings.with_cc)
    training = card.find_card(source)  # Before a version is published, since the card may be unreadable.
    head = load_head(source, settings.task, sequence_length=settings.max_seq_length, **own)
    if settings.bfloat16:
        from export.targets import reduced_precision

        reduced_precision.check_attention(head)
    if settings.onnx:
        from export.targets import onnx

        onnx.check_layers(head)
    decision = _decide(settings, head)
    described, int8 = decision.lines() if decision else [], decision.products if decision else ()
    try:
        version_directory = saved_model.export_head(
            head, settings.export_dir, settings.version, settings.with_cc, decision and decision.content()
        )
        companion_files.write_readme(settings.export_dir, head, version_directory, training, described)
        written = targets.write(wanted, head, settings.export_dir, version_directory, settings.with_cc, int8)
    except VerificationError as error:
        raise InputError(str(error)) from error
    summary = f"what it does: {head.about().summary}"
    if described:
        written = ["int8:", *(f"    {line}" for line in described), *written]
    lines = [f"exported: {version_directory}", summary, *saved_model.read_report(version_directory).lines(), *written]
    commands = {
        "serve it here:": clients.serve_command(settings.export_dir),
        "serve it by docker (not run here):": clients.docker_command(settings.export_dir),
        "ask it:": clients.curl_command(settings.export_dir, head.description()),
    }
    for title, command in commands.items():
        lines += [title, *(f"    {line}" for line in command.splitlines())]
    return "\n".join(lines)


def _decide(settings: ExportSettings, head):
    """Decides which products may be computed in 8 bits, before anything is written; None without `--int8`."""
    if not settings.int8:
        return None
    from export.targets import int8
    from tasks import held_out

    try:
        rows = held_out.find(settings.model_dir, head.preprocessor.tokenizer) if settings.model_dir else None
    except InputError as error:
        print(f"--int8: the rows that the training held out cannot be read, so docstrings are used. {error}")
        rows = None
    return int8.decide(head, rows, settings.int8_tolerance)


def _check(settings: ExportSettings) -> None:
    if bool(settings.model_dir) == bool(settings.preset):
        received = "Received both." if settings.preset else "Received neither."
        raise InputError(f"Name one model: --model_dir, of a trained one, or --preset. {received}")
    name = os.path.basename(absolute(settings.export_dir))
    if settings.int8_tolerance != _TOLERANCE and not settings.int8:
        raise InputError(f"--int8_tolerance={settings.int8_tolerance:g} is for --int8. Leave it out, or give both.")
    base_path.check_model_name(name, "It is the last part of --export_dir: choose another.")


def _check_source(settings: ExportSettings) -> None:
    """Refuses a model that does not exist, or a directory that holds none, before TensorFlow is imported."""
    place = settings.model_dir or settings.preset
    if settings.model_dir and not exists(place) and not find_preset(place) and "://" not in place:
        raise InputError(
            f"--model_dir={place}: no such directory. Expected the folder model in the --output_dir of bert-classify "
            "or another task's command."
        )
    resolve_preset(place, "weights")
    if not is_file(os.path.join(place, model_files.MODEL_FILE)) and not has_config(place):
        inner = model_files.model_directory(place)
        raise InputError(
            f"{place}: holds no trained model. Expected {model_files.TASK_FILE} and {model_files.MODEL_FILE}, as "
            "bert-classify and the other commands write them (output_dir/model), or a preset."
            + (f" Give --model_dir={inner}." if inner != place else "")
        )


console_main = flags.console_main(lambda settings: print(export(settings)), ExportSettings)

if __name__ == "__main__":
    console_main()
