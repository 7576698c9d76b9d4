"""Running a command, and the flags that commands share.

No TensorFlow here: `--help` and a wrong flag answer at once. A command module reads

    from absl import flags
    from tasks import flags as task_flags

    task_flags.define_output()
    ...
    def main(argv): ...

    def console_main() -> None:
        task_flags.run(main)

Flag names are google-research/bert's where it has one. Only what works is offered.
"""

import math
import os
import signal
import sys
import threading
from collections.abc import Callable

from absl import app, flags

from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.presets import PRESETS

# Flags defined by a function of this module belong to the command that calls it: its `--help` lists them.
flags.disclaim_key_flags()

OPTIMIZERS = ("bert-2018", "adamw", "lamb")
DISTRIBUTION_STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored", "tpu")
BAD_ROWS = ("refuse", "skip")
MIXED_PRECISION = ("float32", "bfloat16", "float16")

# What a command's environment gets unless the user set it, before TensorFlow is imported.
# oneDNN is off by default on CPUs without AVX-512, and makes matrix products faster there.
# Level 3 silences TensorFlow's C++ start-up lines (on a machine without GPU one of them has level ERROR); what
# matters is raised as an exception too. To see them: TF_CPP_MIN_LOG_LEVEL=0.
ENVIRONMENT = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}

_HELP_FLAGS = frozenset({"--help", "-help", "--helpshort", "-helpshort", "-?", "--?"})
FLAGS_FILE = "flags.json"
_QUIET = -1  # absl's WARNING: absl itself starts programs at INFO.


# === Running a command ===


def run(main: Callable[[list[str]], int | None]) -> None:
    """Parses the command line and runs `main(argv)`; `argv` holds the command's name alone. Does not return.

    Exit status: `main`'s own (None is 0), 0 after `--help`, 1 for an `InputError` or an error of the operating system
    (disk full, no permission), 2 for a wrong flag or a stray argument, 130 after Ctrl-C: standard error then gets one
    line, and no traceback. After SIGTERM 42 if it reached a training, which has saved a checkpoint and continues with
    the same command; else 143, and temporary files are removed first.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    command = _command_name()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Else no `finally` runs.
    try:
        app.run(main, flags_parser=lambda argv: _parse(argv, command, main))
    except InputError as error:
        _exit(command, f"error: {error}", 1)
    except KeyboardInterrupt:
        _exit(command, "interrupted.", 130)
    except BrokenPipeError:  # `--help | head`: nobody reads on, which is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # Of a rename the second name: the first is a temporary file's.
        where = error.filename2 or error.filename
        _exit(command, f"error: {where}: {error.strerror}" if where else f"error: {error}", 1)


def resolved_flags() -> dict[str, object]:
    """Returns name and value of every flag of the running command, its own and the shared ones, sorted by name.

    Raises:
        ValueError: no command runs, so that no flags belong to it.
    """
    if _running_module is None:
        raise ValueError("`resolved_flags()` must be called below `run(main)`. Received: no running command.")
    return {flag.name: flag.value for flag in flags.FLAGS.get_key_flags_for_module(_running_module)}


def write_flags(settings: dict[str, object], output_dir: str) -> None:
    """Writes what `resolved_flags` returned to `flags.json`.

    To be called when nothing is left that may be refused: a call that was refused leaves the flags of the one before.
    """
    write_json(os.path.join(output_dir, FLAGS_FILE), settings)


def require_preset(preset: str | None, needed_for: str = "--do_train") -> str:
    """Returns `preset`.

    Raises:
        InputError: there is none; the message names what it is needed for.
    """
    if not preset:
        raise InputError(f"{needed_for} needs --preset: a preset's directory or name, e.g. {', '.join(PRESETS)}.")
    return preset


_running_module: str | None = None


def _parse(argv: list[str], command: str, main: Callable) -> list[str]:
    """absl's `flags_parser`: prints help or one line about what is wrong, and exits; else returns `[command]`."""
    global _running_module
    # absl files the flags of the module that Python started under sys.argv[0], those of an imported one under its name.
    module = argv[0] if main.__module__ == "__main__" else main.__module__
    options = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    if _HELP_FLAGS.intersection(options):
        _print_help(command, sys.modules[main.__module__].__doc__, module)
        sys.exit(0)
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        _exit(command, f"error: {error} (--help lists the flags)", 2)
    if len(rest) > 1:
        _exit(command, f"error: unexpected argument {rest[1]!r}; values go with '=', as in --flag=value", 2)
    if flags.FLAGS["verbosity"].using_default_value:
        flags.FLAGS.verbosity = _QUIET
    _running_module = module
    return rest


def _print_help(command: str, docstring: str | None, module: str) -> None:
    listing = flags.FLAGS.module_help(module).strip().partition("\n")[2]  # Its first line is the module's name.
    print(f"{(docstring or '').strip()}\n\nUsage: {command} [flags]\n\n{listing}", flush=True)


def _command_name() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and not spec.name.startswith("__main__"):
        return f"python -m {spec.name}"
    return os.path.basename(sys.argv[0])


def _exit(command: str, message: str, status: int) -> None:
    print(f"{command}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


# === Shared flags ===
# `allow_override`: several command modules may be imported into one process (a test, a notebook).


def define_output() -> None:
    """Defines `--output_dir` (required)."""
    _string("output_dir", None, "Directory for everything the run writes: results, checkpoints, events, curve.")
    flags.mark_flag_as_required("output_dir")


def define_model(preset: str | None = None) -> None:
    """Defines where the encoder comes from: `--preset --bert_config_file --init_checkpoint`.

    Args:
        preset: default of `--preset`.
    """
    _string("preset", preset, "Short name (tiny mini small medium base large), full name, or a directory; sizes only.")
    _string("bert_config_file", None, "JSON file with the architecture; takes the place of --preset.")
    _string(
        "init_checkpoint",
        None,
        "Preset, name or directory of any format, whose encoder and pre-training heads are trained further, in the "
        "place of --preset. Without it all weights are random: --preset gives the sizes only.",
    )


def define_architecture() -> None:
    """Defines what replaces the preset's sizes: `--num_layers --hidden_dim --num_heads --intermediate_dim`."""
    for name, what in (
        ("num_layers", "Number of encoder layers"),
        ("hidden_dim", "Width of the encoder"),
        ("num_heads", "Number of attention heads"),
        ("intermediate_dim", "Width of the feed-forward layer"),
    ):
        _integer(name, None, f"{what}; default: the preset's.", lower_bound=1)


def define_tokenizer(max_seq_length: int = 128) -> None:
    """Defines how text becomes ids: `--vocab_file --do_lower_case --max_seq_length`.

    Args:
        max_seq_length: default of `--max_seq_length` (google-research/bert: 128).
    """
    _string("vocab_file", None, "WordPiece vocabulary, one token a line.")
    _boolean("do_lower_case", True, "Lower the case and drop accents: True for an uncased vocabulary.")
    _integer("max_seq_length", max_seq_length, "Longest sequence in tokens; longer ones are cut.", lower_bound=3)


def define_stages(*stages: str) -> None:
    """Defines `--do_<stage>`, each False by default as in google-research/bert; stages: train, eval, predict."""
    what = {"train": "Train the model.", "eval": "Evaluate the model.", "predict": "Write predictions."}
    for stage in stages:
        _boolean(f"do_{stage}", False, what[stage])


def define_training(learning_rate: float = 5e-5, optimizer: str = "bert-2018") -> None:
    """Defines the training flags except the length of the training, for which see the next two.

    Args:
        learning_rate: default of `--learning_rate` (google-research/bert: 5e-5).
        optimizer: default of `--optimizer`, one of `OPTIMIZERS`.
    """
    _integer("train_batch_size", 32, "Examples a training step, over all devices.", lower_bound=1)
    _integer("eval_batch_size", 8, "Examples an evaluation step, over all devices.", lower_bound=1)
    _float("learning_rate", learning_rate, "Peak learning rate.", lower_bound=0.0)
    _enum(
        "optimizer",
        optimizer,
        OPTIMIZERS,
        "bert-2018: Adam with decoupled weight decay, no bias correction; adamw: bias-corrected; lamb: for batches of "
        "thousands.",
    )
    _float("layer_decay", 1.0, "Factor of the learning rate from each encoder layer to the one below.",
           lower_bound=0.0, upper_bound=1.0)  # fmt: skip
    flags.register_validator("layer_decay", lambda value: value > 0.0, message="must be greater than 0")
    _integer("gradient_accumulation_steps", 1, "Parts a batch is computed in, to save memory.", lower_bound=1)
    _integer("save_checkpoints_steps", 1000, "Training steps between checkpoints.", lower_bound=1)
    _integer("random_seed", 12345, "Seed of the data order, initial weights and dropout.", lower_bound=0)
    _float("spike_factor", 0.0, "Stop if the loss exceeds this multiple of its running median; 0: never.",
           lower_bound=0.0)  # fmt: skip


def define_train_steps(num_train_steps: int = 100000, num_warmup_steps: int = 10000) -> None:
    """Defines `--num_train_steps --num_warmup_steps` (google-research/bert's pre-training defaults)."""
    _integer("num_train_steps", num_train_steps, "Number of training steps.", lower_bound=1)
    _integer("num_warmup_steps", num_warmup_steps, "Steps over which the learning rate rises.", lower_bound=0)


def define_train_epochs(num_train_epochs: float = 3.0, warmup_proportion: float = 0.1) -> None:
    """Defines `--num_train_epochs --warmup_proportion` (google-research/bert's fine-tuning defaults)."""
    _float("num_train_epochs", num_train_epochs, "Passes over the training data.", lower_bound=0.0)
    flags.register_validator("num_train_epochs", lambda value: value > 0.0, message="must be greater than 0")
    _float("warmup_proportion", warmup_proportion, "Share of warm-up steps.", lower_bound=0.0, upper_bound=1.0)


def define_fine_tuning(max_seq_length: int | None = 128) -> None:
    """Defines what fine-tuning starts from and what it leaves as it is: `tasks.fine_tuning.FineTuningSettings`.

    Args:
        max_seq_length: default of `--max_seq_length`; None: the trained model's own.
    """
    _string("preset", None, "Encoder and vocabulary: a short name (tiny ... large), a full name, a handle (hf://...), "
            "or a directory, zip or file of any known format.")  # fmt: skip
    _boolean("load_weights", True, "False: the preset's sizes and vocabulary, with random weights.")
    _integer("max_seq_length", max_seq_length, "Longest sequence in tokens.", lower_bound=4)
    _integer("early_stopping_patience", 0, "Evaluations without a better one after which training ends, with the "
             "weights of the best; 0: all steps, and the last weights.", lower_bound=0)  # fmt: skip
    _integer("num_frozen_layers", 0, "The embeddings and so many of the lowest layers are not trained.", lower_bound=0)
    _integer("lora_rank", 0, "Train factors of this rank beside the attention's kernels, in the place of the encoder; "
             "0: the encoder itself.", lower_bound=0)  # fmt: skip
    _enum("bad_rows", "refuse", BAD_ROWS, "A file with rows that cannot be used: refuse it, or skip and count them.")


def define_distribution(several_machines: bool = False) -> None:
    """Defines `--distribution_strategy --num_gpus --mixed_precision --jit_compile --deterministic_ops`.

    Args:
        several_machines: whether the command can run on several workers and on a TPU; then `--tpu` too.
    """
    what = "one_device: one GPU if there is one, else the CPU; mirrored: all GPUs of this machine"
    if several_machines:
        what += "; multi_worker_mirrored: the machines that the environment variable TF_CONFIG lists; tpu: --tpu"
        _string("tpu", None, "Name or address (grpc://...) of the TPU, or local; for --distribution_strategy=tpu.")
    strategies = DISTRIBUTION_STRATEGIES if several_machines else DISTRIBUTION_STRATEGIES[:2]
    _enum("distribution_strategy", "one_device", strategies, f"{what}.")
    _integer("num_gpus", None, "GPUs to use; default: all that are visible. 0: the CPU.", lower_bound=0)
    _enum(
        "mixed_precision",
        "float32",
        MIXED_PRECISION,
        "Number type of activations; weights stay float32. float16 with a dynamic loss scale.",
    )
    _boolean("jit_compile", False, "Compile the step with XLA; slower on a CPU.")
    _boolean("deterministic_ops", False, "The same bits in every run, where they cost time: on GPUs.")


def _string(name: str, default: str | None, text: str) -> None:
    flags.DEFINE_string(name, default, text, allow_override=True)


def _boolean(name: str, default: bool, text: str) -> None:
    flags.DEFINE_boolean(name, default, text, allow_override=True)


def _enum(name: str, default: str, values: tuple[str, ...], text: str) -> None:
    flags.DEFINE_enum(name, default, list(values), text, allow_override=True)


def _integer(name: str, default: int | None, text: str, lower_bound: int) -> None:
    flags.DEFINE_integer(name, default, text, lower_bound=lower_bound, allow_override=True)


def _float(name: str, default: float | None, text: str, **bounds: float) -> None:
    flags.DEFINE_float(name, default, text, allow_override=True, **bounds)
    # Bounds let a NaN pass: every comparison with it is false.
    flags.register_validator(
        name, lambda value: value is None or math.isfinite(value), message="must be a finite number"
    )
