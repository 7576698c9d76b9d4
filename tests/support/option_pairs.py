"""Runs of the fine-tuning commands in which every two options meet, with small files for each command.

Run as a script (`option_pairs.py COMMAND STRENGTH DIRECTORY`) it forks a process for each run, which types the run's
flags, and prints a line of JSON: the flags, the statuses, and what the run printed.
"""

import itertools
import json
import os
import pathlib
import runpy
import signal
import sys
import traceback

import bfloat16
import cheap_graphs
import every_task
import fuzzing
from allpairspy import AllPairs

NUM_ROWS = 16
COMMANDS = {
    "bert-classify": "tasks.classify.run",
    "bert-squad": "tasks.squad.run",
    "bert-swag": "tasks.swag.run",
    "bert-ner": "tasks.ner.run",
    "bert-score-words": "tasks.score_words.run",
    "bert-embed": "tasks.embed.run",
    "bert-distill": "tasks.distill.run",
}

# Each option's values, with the flags of each.
_OPTIONS = {
    "type": {"float32": [], "bfloat16": ["--mixed_precision=bfloat16"], "float16": ["--mixed_precision=float16"]},
    "parts": {"1": [], "2": ["--gradient_accumulation_steps=2"]},
    "layers": {"kept": [], "computed again": ["--rematerialize"]},
    "held out": {
        "nothing": ["--dev_file={dev}"],
        "for dev": ["--dev_share=0.25"],
        "for validation": ["--dev_file={dev}", "--validation_share=0.25"],
    },
    "chosen by": {"nothing": [], "stopping": ["--early_stopping_patience=2"], "search": ["--learning_rate=1e-3,1e-4"]},
    "trained": {"all": [], "lora": ["--lora_rank=2"], "top": ["--num_frozen_layers=1"]},
    "killed": {"never": [], "once": []},
    "replicas": {"1": [], "2": ["--distribution_strategy=mirrored"]},
}
_LOSSES = {
    name: [f"--loss={name}", f"--train_file={{directory}}/{columns}.csv"]
    for name, columns in (
        ("multiple_negatives_ranking", "pairs"),
        ("cosine_similarity", "scores"),
        ("cosent", "scores"),
        ("triplet", "triplets"),
    )
}
_WORDS = {"none": [], "document": ["--document_context=document"]}
if fuzzing.FULL:
    _OPTIONS["trained"]["anew"] = ["--reinit_layers=1"]
if bfloat16.IS_BROKEN:
    del _OPTIONS["type"]["bfloat16"]
_RARE = {
    "labels": {
        "drawn": ["--resample=0.5"],
        "weighted": ["--class_weights=balanced"],
        "plain": [],
    }
}
# Options of one command; what stands first in the table of a command names its head or loss.
_OWN = {
    "bert-classify": {
        "head": {
            "labels": ["--train_file={directory}/labels.csv"],
            "several": ["--train_file={directory}/labels.csv", "--label_column=label,third"],
            "pairs": ["--train_file={directory}/labels.csv", "--text_pair_column=other"],
            "number": ["--train_file={directory}/labels.csv", "--label_column=number", "--regression"],
        },
        **_RARE,
        "long": {"truncate": [], "max": ["--long_text=max"], "said": ["--long_text=truncate"]},
    },
    "bert-squad": {
        "head": {"1.1": [], "2.0": ["--version_2_with_negative", "--train_file={directory}/unanswerable.json"]}
    },
    "bert-swag": {"head": {"choices": [], "endings": ["--choice_columns=ending0,ending1"]}},
    "bert-ner": {
        "context": _WORDS,
        **_RARE,
        "scheme": {"auto": [], "iob2": ["--tag_scheme=iob2"]},
        "trained": {**_OPTIONS["trained"], "bilstm": ["--encoder=frozen", "--layers=all", "--lstm_units=4"]},
    },
    "bert-score-words": {"context": _WORDS},
    "bert-embed": {
        "loss": _LOSSES,
        "vectors": {"whole": [], "nested": ["--matryoshka_dims=8,4"], "smaller": ["--embedding_dim=6"]},
        "negatives": {"mined": ["--num_negatives=1"], "given": []},
        "long": {"truncate": [], "mean": ["--long_text=mean"]},
    },
    "bert-distill": {
        "start": {"layers": [], "preset": ["--student_preset={directory}/preset"]},
        "rows": {"labelled": [], "unlabelled": ["--unlabelled_file={directory}/dev.csv"]},
        "learned": {"both": [], "answers": ["--label_weight=0", "--temperature=1"]},
    },
}


def options(command: str) -> dict[str, dict[str, list[str]]]:
    """The command's options: name to value to flags."""
    return {**_OWN[command], **{name: _OWN[command].get(name, values) for name, values in _OPTIONS.items()}}


# Pairs of options that every command refuses, and how.
REFUSED = {
    "--lora_rank=2 --num_frozen_layers=1": "--lora_rank leaves the whole encoder as it is",
    "--lora_rank=2 --reinit_layers=1": "--reinit_layers=1 replaces some of the preset's weights",
    "--noload_weights --reinit_layers=1": "without --lora_rank and --noload_weights",
    "--init_checkpoint=x --preset=y": "both say where to start",
    "--dev_share=0.25 --nodo_eval": "--dev_share holds out training rows to evaluate on",
    "--early_stopping_patience=2 --nodo_eval": "--early_stopping_patience needs an evaluation",
    "--learning_rate=1e-3,1e-4 --nodo_eval": "Several learning rates, batch sizes or restarts need --do_eval",
    "--num_restarts=2 --nodo_eval": "Several learning rates, batch sizes or restarts need --do_eval",
    "--early_stopping_patience=2 --distribution_strategy=multi_worker_mirrored": "run on one machine",
    "--learning_rate=1e-3,1e-4 --distribution_strategy=multi_worker_mirrored": "run on one machine",
    "--num_gpus=2 --distribution_strategy=one_device": "--num_gpus=2 needs --distribution_strategy=mirrored",
    "--tpu=local --distribution_strategy=mirrored": "--tpu and --distribution_strategy=tpu belong together",
}
# Those that one command refuses besides.
_OWN_REFUSED = {
    "bert-classify": {
        "--long_text=max --tpu=local --distribution_strategy=tpu": "--distribution_strategy=tpu compiles each",
        "--long_text=mean --few_labels=frozen": "Leave out --long_text, or give --few_labels=off",
        "--long_text=head_tail --text_pair_column=other": "--long_text=head_tail is for single texts",
    },
    "bert-embed": {"--long_text=mean --jit_compile": "--long_text=mean reads as many windows as a batch has"},
    "bert-ner": {
        **{
            f"--encoder=frozen {flag}": f"{flag.partition('=')[0]} is for --encoder=trained"
            for flag in (
                "--lora_rank=2",
                "--num_frozen_layers=1",
                "--reinit_layers=1",
                "--layer_decay=0.9",
                "--doc_stride=2",
            )
        },
        **{
            f"--encoder=trained {flag}": f"{flag.partition('=')[0]} is for --encoder=frozen"
            for flag in ("--layers=-1", "--combine=sum", "--lstm_units=8", "--lstm_layers=1", "--lstm_dropout=0.2")
        },
        "--encoder=frozen --distribution_strategy=multi_worker_mirrored": "--encoder=frozen runs on one machine",
        "--encoder=frozen --layers=3": "--layers=3: there is no layer '3'",
    },
}
# Pairs of values in the options of a command that it refuses, and how.
REFUSED_VALUES = {
    "bert-classify": [
        (
            {"head": "number", "labels": "weighted"},
            "--class_weights is for labels, but the task has scores. Leave it out",
        ),
        ({"head": "number", "labels": "drawn"}, "--resample is for labels, but the task has scores. Leave it out"),
        ({"head": "pairs", "long": "max"}, "--long_text=max is for single texts"),
    ],
    "bert-embed": [
        ({"negatives": "mined", "loss": loss}, "--num_negatives adds to rows of a text and its match")
        for loss in ("cosine_similarity", "cosent", "triplet")
    ],
}


def is_allowed(command: str, row: dict[str, str]) -> bool:
    """Whether values go together."""
    return not any(row.items() >= pair.items() for pair, _ in REFUSED_VALUES.get(command, ()))


def refused(command: str, directory: pathlib.Path) -> list[tuple[list[str], str]]:
    """Command lines that the command refuses, and a part of what it says."""
    row = runs(command, 1)[0]
    pairs = {**REFUSED, **_OWN_REFUSED.get(command, {})}
    name = "--student_preset" if command == "bert-distill" else "--preset"
    typed = [(flags.replace("--preset", name).split(), told) for flags, told in pairs.items()]
    lines = [([*arguments(command, row, directory), *flags], told) for flags, told in typed]
    pairs = REFUSED_VALUES.get(command, ())
    return lines + [(arguments(command, {**row, **pair}, directory), told) for pair, told in pairs]


def runs(command: str, strength: int) -> list[dict[str, str]]:
    """Rows of option to value in which each value stands once (strength 1), or each allowed pair of values (2)."""
    table = options(command)
    if strength == 1:
        tables, count = table.values(), max(map(len, table.values()))
        plain = [next((value for value, flags in values.items() if not flags), next(iter(values))) for values in tables]
        columns = [[*values, *[rest] * (count - len(values))] for values, rest in zip(tables, plain, strict=True)]
        return [dict(zip(table, row, strict=True)) for row in zip(*columns, strict=True)]

    def is_valid(values) -> bool:
        return is_allowed(command, dict(zip(table, values, strict=False)))

    combinations = AllPairs(list(map(list, table.values())), is_valid, n=strength)
    rows = [dict(zip(table, row, strict=True)) for row in combinations]
    # Where pairs are forbidden, the library leaves some of the others out.
    missing = [pair for pair in pairs_of(command) if not any(pair.items() <= row.items() for row in rows)]
    return rows + [{**rows[0], **pair} for pair in missing]


def arguments(command: str, row: dict[str, str], directory: pathlib.Path) -> list[str]:
    """The command line of a run."""
    extension = {"bert-squad": "json", "bert-ner": "conll", "bert-score-words": "conll"}.get(command, "csv")
    files = {"directory": directory, "dev": directory / f"dev.{extension}"}
    flags = [flag for name, value in row.items() for flag in options(command)[name][value]]
    if command == "bert-squad":  # One file has both, and which it is depends on the stages.
        flags = [flag.replace("--dev_file", "--predict_file") for flag in flags]
    if not any(flag.startswith("--train_file") for flag in flags):
        flags.append(f"--train_file={directory}/train.{extension}")
    start = f"--teacher={directory}/teacher" if command == "bert-distill" else f"--preset={directory}/preset"
    flags += [start, "--do_train", "--do_eval"]
    flags += ["--train_batch_size=4", "--eval_batch_size=4", "--num_train_epochs=1", "--max_seq_length=16"]
    flags += ["--save_checkpoints_steps=2"] + ["--max_query_length=4"] * (command == "bert-squad")
    if not any(flag.startswith("--learning_rate") for flag in flags):
        flags.append("--learning_rate=1e-3")
    return [flag.format(**files) for flag in flags]


# === Files ===


def _questions(with_negative: bool) -> str:
    """SQuAD's JSON of `NUM_ROWS` paragraphs with a question each, a quarter of them without an answer if wanted."""
    paragraphs = []
    for number in range(NUM_ROWS):
        is_impossible = with_negative and number % 4 == 3
        answers = [] if is_impossible else [{"text": f"w{number + 1}", "answer_start": 3}]
        asked = {"id": str(number), "question": f"w{number}", "answers": answers, "is_impossible": is_impossible}
        paragraphs.append({"context": f"w0 w{number + 1} w2", "qas": [asked]})
    return json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})


def _words(tag: str) -> str:
    """Documents of two sentences each; a sentence is a word with `tag`, filled in by its number, and one without."""
    last = "O" if tag.startswith("B") else "0.1"
    sentences = [f"w{number} {tag.format(number)}\nw1 {last}\n" for number in range(NUM_ROWS)]
    marked = [("-DOCSTART- O\n\n" if number % 2 == 0 else "") + text for number, text in enumerate(sentences)]
    return "\n".join(marked)


def _table(**values) -> str:
    """CSV of `NUM_ROWS` rows, of functions of their number."""
    rows = [[value(number) for value in values.values()] for number in range(NUM_ROWS)]
    return every_task.csv(values.keys(), *rows)


def write_files(command: str, directory: pathlib.Path) -> None:
    """Writes the command's training and dev files."""
    first, second, third = "w{}".format, lambda number: f"w{number} w1", lambda number: f"w{19 - number} w2"
    long = " ".join(f"w{number}" for number in range(20))
    pairs = _table(a=first, b=lambda number: f"{second(number)} {long}")
    scores = _table(a=first, b=second, score=lambda number: number % 6)
    classes = {"label": lambda number: number % 2, "third": lambda number: int(number % 3 == 0)}
    labels = _table(
        text=lambda number: f"{second(number)} {long}", other=first, **classes, number=lambda number: number / 2
    )
    endings = {f"ending{number}": [first, second, third][number] for number in range(3)}
    choices = _table(sent1=first, sent2=third, **endings, label=lambda number: number % 2)
    files = {
        "bert-classify": {"labels.csv": labels, "dev.csv": labels},
        "bert-squad": {
            **{name: _questions(with_negative=False) for name in ("train.json", "dev.json")},
            "unanswerable.json": _questions(with_negative=True),
        },
        "bert-swag": {"train.csv": choices, "dev.csv": choices},
        "bert-ner": {"train.conll": _words("B-x"), "dev.conll": _words("B-x")},
        "bert-score-words": {"train.conll": _words("0.{}"), "dev.conll": _words("0.{}")},
        "bert-embed": {
            **{"pairs.csv": pairs, "scores.csv": scores, "dev.csv": scores},
            "triplets.csv": _table(a=first, b=second, c=third),
        },
        "bert-distill": dict.fromkeys(("train.csv", "dev.csv"), _table(text=second, label=lambda number: number % 2)),
    }[command]
    if command == "bert-distill":
        _write_teacher(directory)
    for name, content in files.items():
        (directory / name).write_text(content)


def _write_teacher(directory: pathlib.Path) -> None:
    """Writes the model of a classifier with a random head."""
    from keras_bert import BertTextClassifier, BertTokenizer
    from tasks.fine_tuning.model_files import save_model

    preset, spec = str(directory / "preset"), {"labels": ["0", "1"], "num_texts": 1, "sequence_length": 16}
    model = BertTextClassifier.from_preset(preset, labels=spec["labels"], preprocessor=None)
    save_model(str(directory / "teacher"), model, BertTokenizer.from_preset(preset), {"task": "classification", **spec})


# === Processes ===


def _run(command: str, flags: list[str], log: pathlib.Path, num_devices: int, dies: bool) -> int:
    """Types flags in a process of its own, which dies at its first checkpoint if asked to; returns its status."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        import tensorflow as tf

        from tasks.engine import checkpoints

        cheap_graphs.begin()  # As tests/conftest.py.
        if num_devices > 1:
            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
        save, restore, restored = checkpoints.Checkpoints.save, checkpoints.Checkpoints.restore, []

        def save_and_die(*args, **kwargs):
            save(*args, **kwargs)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)

        def restore_and_tell(*args):
            restored.append(restore(*args))
            if len(restored) == 1:  # Later ones are those of the best step.
                print(f"begins at step {restored[0]}")
            return restored[-1]

        checkpoints.Checkpoints.save, checkpoints.Checkpoints.restore = save_and_die, restore_and_tell
        sys.argv = [command, *flags]
        runpy.run_module(COMMANDS[command], run_name="__main__")
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(bool(end.code)))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(99)
    os._exit(0)


def _load() -> None:
    """Imports and computes what all runs need, but nothing that starts TensorFlow's threads, which a fork loses."""
    from keras_bert.answers import raw_words
    from keras_bert.tokenization import normalizer_model
    from tasks.fine_tuning import session, sweep  # noqa: F401
    from tasks.report import bootstrap

    normalizer_model.normalizer_model(True)  # As the tokenizer calls it, since the cache is by position.
    raw_words._kinds(True)
    # A thousand samples of 16 rows cost more than a training, and show nothing that ten do not.
    bootstrap.interval.__kwdefaults__["samples"] = 10


def main(command: str, strength: str, directory: str) -> None:
    _load()
    for number, row in enumerate(runs(command, int(strength))):
        output = pathlib.Path(directory) / str(number)
        log, flags = output.with_suffix(".log"), arguments(command, row, pathlib.Path(directory))
        flags.append(f"--output_dir={output}")
        kills = [True, False] if row["killed"] == "once" else [False]
        statuses = [_run(command, flags, log, int(row["replicas"]), dies) for dies in kills]
        expected = [-signal.SIGKILL, 0][-len(kills) :]
        result = {"row": row, "flags": flags, "statuses": statuses, "expected": expected, "log": log.read_text()}
        if (output / "metrics.json").exists():
            result["metrics"] = json.loads((output / "metrics.json").read_text())
        print(json.dumps(result), flush=True)


def pairs_of(command: str):
    """Every allowed pair of values: {option: value, option: value}."""
    for (option, values), (other, other_values) in itertools.combinations(options(command).items(), 2):
        for pair in itertools.product(values, other_values):
            row = dict(zip((option, other), pair, strict=True))
            if is_allowed(command, row):
                yield row


if __name__ == "__main__":
    main(*sys.argv[1:])
