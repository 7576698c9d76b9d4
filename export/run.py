"""`bert-export`: a trained model to a directory that TensorFlow Serving loads as it is: texts in, answers out.

    bert-export --model_dir=runs/mood/model --export_dir=served/mood
    bert-export --preset=base --task=embeddings --layer=-2 --export_dir=served/embeddings

Takes what bert-classify, bert-squad, bert-swag and bert-ner trained (their output_dir/model), and any preset for
fill_mask (bert-pretrain's output_dir/preset has the head) and embeddings. Writes `served/mood/1` (then 2, 3, ...),
verified in a fresh process, and by a C++ program where g++ is present, before it gets its number; and
`served/mood/README.md` with the commands that serve and ask this very model. Seconds for a small model, about a minute
for BERT-base.
"""

import os

from absl import flags

from export import base_path
from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_TARGETS = {
    "onnx": "Also write an ONNX model (token ids in) to export_dir/onnx, checked against the SavedModel.",
    "litert": "Also write a LiteRT model (token ids in) to export_dir/litert, checked against the SavedModel.",
    "int8": "Also write a SavedModel with int8 weights to export_dir/int8, and print its accuracy and speed.",
}
# Flags that are settings of heads (`Head.settings`), by the same name; the value left out is the model's own.
_SETTINGS = {
    "top_k": "fill_mask: tokens named for each mask. Default: 5.",
    "n_best_size": "Question answering: answers listed. Default: the model's.",
    "max_answer_length": "Question answering: longest answer in tokens. Default: the model's.",
    "doc_stride": "Question answering and entities: tokens from the start of a window of a long text to that of the "
    "next. Default: the model's.",
    "max_tokens": "Question answering and entities: tokens of a text that are read; what is beyond does not count. "
    "Default: 8 times the longest sequence.",
}


def define_flags() -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("model_dir", None, "The model directory that a task's command wrote (its output_dir/model).")
    flags.DEFINE_string("preset", None, "Preset, name or directory, in the place of --model_dir; needs --task.")
    flags.DEFINE_enum("task", None, ["fill_mask", "embeddings"], "What a preset is to do. Of a trained model: its own.")
    flags.DEFINE_string("export_dir", None, "Base path of the served model; versions are its numbered sub-directories.")
    flags.DEFINE_integer(
        "version",
        None,
        "Number of the version. Default: one more than the highest.",
        lower_bound=0,
        upper_bound=base_path.MAX_VERSION,
    )
    flags.DEFINE_integer(
        "max_seq_length", None, "Tokens of a sequence at most. Default: the model's; of a preset all that it has "
        "positions for.", lower_bound=3, allow_override=True,
    )  # fmt: skip
    flags.DEFINE_integer("layer", None, "embeddings: 1 (the lowest) upwards, or -1 (the last) downwards. Default: -1.")
    for name, text in _SETTINGS.items():
        flags.DEFINE_integer(name, None, text, lower_bound=1, allow_override=True)
    flags.DEFINE_float(
        "null_score_diff_threshold", None, "Question answering: no answer is given where its score leads the best "
        "answer's by more. Default: the model's.", allow_override=True,
    )  # fmt: skip
    flags.DEFINE_enum("with_cc", "auto", ["auto", "on", "off"], "Verify by a C++ program without Python, too: where "
                      "there is g++, always, or never.")  # fmt: skip
    for name, text in _TARGETS.items():
        flags.DEFINE_boolean(name, False, text)
    flags.mark_flag_as_required("export_dir")
    flags.register_validator(
        "null_score_diff_threshold", lambda value: value is None or abs(value) < float("inf"),
        message="must be a finite number",
    )  # fmt: skip


define_flags()


def export(
    model_dir: str | None,
    export_dir: str,
    version: int | None = None,
    *,
    preset: str | None = None,
    task: str | None = None,
    max_seq_length: int | None = None,
    with_cc: str = "auto",
    targets: tuple[str, ...] = (),
    **settings,
) -> str:
    """Exports a trained model or a preset; every argument is the flag of its name.

    Args:
        model_dir, preset: one of them.
        export_dir, version, with_cc: as in `export.saved_model.export_head`.
        task, settings: as in `export.heads.loading.load_head`.
        max_seq_length: `sequence_length` of the head.
        targets: of `export.targets.TARGETS`.

    Returns:
        What to tell the user, several lines.

    Raises:
        InputError: there is no such model, `export_dir` is no name for a model, the version exists, a flag is not for
            this task, or the verification failed.
    """
    _check(model_dir, preset, task, export_dir)
    # Imported here: they bring TensorFlow, and --help shall not wait for that.
    from export import extras, saved_model
    from export import targets as other_targets
    from export.heads.loading import load_head
    from export.verify import VerificationError

    other_targets.require(targets)
    head = load_head(model_dir or preset, task, sequence_length=max_seq_length, **settings)
    try:
        version_directory = saved_model.export_head(head, export_dir, version, with_cc)
        extras.write_readme(export_dir, head, version_directory)
        written = other_targets.write(targets, head, export_dir, version_directory)
    except VerificationError as error:
        raise InputError(str(error)) from error
    lines = [f"exported: {version_directory}", *saved_model.read_report(version_directory).lines(), *written]
    return "\n".join([*lines, *_commands(export_dir, head.description())])


def _check(model_dir: str | None, preset: str | None, task: str | None, export_dir: str) -> None:
    if bool(model_dir) == bool(preset):
        raise InputError("Name one model: --model_dir, of a trained one, or --preset. " + _given(model_dir, preset))
    if preset and not task:
        raise InputError(f"--preset={preset}: say what it is to do, --task=fill_mask or --task=embeddings.")
    name = os.path.basename(os.path.abspath(export_dir))
    base_path.check_model_name(name, "It is the last part of --export_dir: choose another.")


def _given(model_dir: str | None, preset: str | None) -> str:
    return "Received both." if model_dir and preset else "Received neither."


def _commands(export_dir: str, description: dict) -> list[str]:
    from export import clients

    commands = {
        "serve it here:": clients.serve_command(export_dir),
        "serve it by docker (not run here):": clients.docker_command(export_dir),
        "ask it:": clients.curl_command(export_dir, description),
    }
    lines = []
    for title, command in commands.items():
        lines += [title, *(f"    {line}" for line in command.splitlines())]
    return lines


def main(argv: list[str]) -> None:
    """The command: flags in, `export` called, its result printed."""
    del argv
    names = ("preset", "task", "max_seq_length", "with_cc", "layer", "null_score_diff_threshold", *_SETTINGS)
    targets = tuple(name for name in _TARGETS if FLAGS[name].value)
    given = {name: FLAGS[name].value for name in names}
    print(export(FLAGS.model_dir, FLAGS.export_dir, FLAGS.version, targets=targets, **given))


def console_main() -> None:
    """The console script."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
