"""Measures which tricks make a small pre-training learn faster: each alone, and left out of the whole, in equal time.

    .venv/bin/bert-quickstart --output_dir=runs/quickstart
    .venv/bin/python benchmarks/pretraining_recipe.py --directory=runs/quickstart --share=0.5
    .venv/bin/python benchmarks/pretraining_recipe.py --directory=runs/quickstart --share=0.5 --tasks   # five tasks too

Trains on the text of a finished quickstart, beginning with OLD, an earlier recipe of the quickstart. The steps of all
recipes are timed in turns, by processor time, since the machine may be shared. Each recipe then does the steps that fit
into the time of 2,500 steps of OLD, times `--share`. Prints, as mean and range over the seeds, masked-LM accuracy at
15%, next-sentence accuracy, perplexity, and the share of OLD's time after which OLD's last accuracy was reached,
interpolated between three evaluations. A training with `--share=0.5` takes 2 to 3 minutes on 2 cores of an AMD EPYC.
OBJECTIVES are sketches (pretraining_objectives.py), added to today's recipe, "whole".

`--tasks` fine-tunes each result with its seed on five_tasks.py's slices, which takes about 2 minutes of one core.

Finished trainings and fine-tunings are lines of cells.jsonl in --output_dir, and are not repeated. `--only` picks
recipes.
"""

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

from absl import flags
from machine import describe_machine
from sides import Side, serve, take_turns, timed
from tables import FIVE_TASKS, do_cell, five_tasks_columns, mean_and_range

from keras_bert.files import read_json, write_json
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
flags.DEFINE_string("directory", None, "Directory of a finished bert-quickstart, with corpus/ and vocab.txt.")
flags.DEFINE_string("output_dir", "runs/recipe", "Directory of the trainings; finished ones are not repeated.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds.")
flags.DEFINE_list("only", [], "Recipes to train, by name; default: all.")
flags.DEFINE_float("share", 1.0, "Share of OLD's time.", lower_bound=0.01)
flags.DEFINE_integer("rounds", 7, "Rounds of timed steps.", lower_bound=1)
flags.DEFINE_bool("tasks", False, "Fine-tune the results too.")
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with the tasks' folders.")
flags.DEFINE_string("worker", None, "A recipe, as JSON: what the processes that time steps are started with.")
flags.DEFINE_string(
    "cell", None, "A training or fine-tuning, as JSON: what the processes that do one are started with."
)

_OLD_STEPS, _STEPS_OF_ROUND, _EVALUATIONS = 2500, 10, 3
_LENGTH = 64
OLD = {"train_batch_size": 64, "optimizer": "adamw", "learning_rate": 2e-3}
TRICKS = {
    "Muon": {"optimizer": "muon", "learning_rate": 4e-3, "adam_lr_ratio": 0.75},
    "neighbors": {"initial_attention": "neighbors"},
    "batches of 32": {"train_batch_size": 32},
    "next sentences 0.3": {"next_sentence_weight": 0.3},
    "20% masked": {"dynamic_masking": True, "masked_lm_prob": 0.2},
}
# Measured beside the whole, and not part of it. `dropout` is of the architecture, `objective` one of
# pretraining_objectives.py; all others are flags of bert-pretrain.
OTHERS = {
    "rate ratio 0.5": {"adam_lr_ratio": 0.5},
    "rate ratio 1": {"adam_lr_ratio": 1.0},
    "next sentences 0.1": {"next_sentence_weight": 0.1},
}
OBJECTIVES = {
    "dropout 0.1": {"dropout": 0.1},
    "masks 30 to 15%": {"objective": "falling share", "masked_lm_prob": 0.3},
    "average of weights": {"objective": "average of weights"},
    "unknown tokens": {"objective": "unknown tokens"},
    "replaced tokens": {"objective": "replaced tokens", "masked_lm_prob": 0.15},
    "tied replaced tokens": {"objective": "tied replaced tokens", "masked_lm_prob": 0.15},
    "packing": {"packing": True},
}
_FIGURES = {"masked_lm_accuracy": ".1%", "next_sentence_accuracy": ".1%", "perplexity": ".0f"}
# Replaced tokens for a share of the time, and the whole for the rest.
_PHASES = {"whole + replaced tokens before masked LM": (("whole + replaced tokens", 0.6), ("whole", 0.4))}


def recipes() -> dict[str, dict]:
    """Returns the flags of each recipe by its name."""
    whole = dict(OLD)
    for trick in TRICKS.values():
        whole |= trick
    named = {"old": OLD, "whole": whole}
    named |= {f"whole + {name}": {**whole, **trick} for name, trick in OBJECTIVES.items()}
    for name, trick in TRICKS.items():
        without = {**OLD, **{flag: value for other in TRICKS if other != name for flag, value in TRICKS[other].items()}}
        named |= {f"old + {name}": {**OLD, **trick}, f"whole - {name}": without}
    return named | {f"whole + {name}": {**whole, **trick} for name, trick in OTHERS.items()}


def lengths_of(given: dict) -> dict:
    """Returns the lengths of a recipe's data: as many masked positions as it needs."""
    return {"max_seq_length": _LENGTH, "max_predictions_per_seq": round(_LENGTH * given.get("masked_lm_prob", 0.15))}


def data_of(given: dict, part: str) -> str:
    """Returns a recipe's records, written with masks of 15% unless they are there."""
    from tasks.pretraining.create_data import create_pretraining_data
    from tasks.pretraining.data.settings import DataSettings

    lengths = lengths_of(given)
    path = os.path.join(FLAGS.output_dir, f"data_{lengths['max_predictions_per_seq']}", f"{part}.tfrecord")
    if not os.path.exists(f"{path}.report.json"):
        corpus = os.path.join(FLAGS.directory, "corpus", f"{part}.txt")
        vocab_file = os.path.join(FLAGS.directory, "vocab.txt")
        copies = 2 if part == "train" else 1
        files = {"input_file": corpus, "output_file": path, "vocab_file": vocab_file}
        create_pretraining_data(DataSettings(**files, dupe_factor=copies, **lengths))
    return path


def config_of(given: dict) -> str:
    """Returns the architecture's file: the quickstart's, but for another `dropout`."""
    path = os.path.join(FLAGS.directory, "bert_config.json")
    dropout = given.get("dropout")
    if dropout:
        config = read_json(path) | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
        path = os.path.join(FLAGS.output_dir, f"bert_config_{dropout}.json")
        write_json(path, config)
    return path


def settings_of(given: dict, steps: int, seed: int, output_dir: str):
    """Returns the settings of a training."""
    from tasks.pretraining.train.settings import PretrainingSettings

    start = {} if "init_checkpoint" in given else {"bert_config_file": config_of(given)}
    return PretrainingSettings(
        input_file=data_of(given, "train"),
        eval_input_file=data_of(given, "held_out"),
        vocab_file=os.path.join(FLAGS.directory, "vocab.txt"),
        output_dir=output_dir,
        num_train_steps=steps,
        num_warmup_steps=max(1, steps // 10),
        save_checkpoints_steps=max(1, steps // _EVALUATIONS),
        eval_batch_size=64,
        random_seed=seed,
        do_train=True,
        do_eval=True,
        **start,
        **lengths_of(given),
        **{name: value for name, value in given.items() if name not in ("dropout", "objective")},
    )


# === Time of a step ===


def build_round(given: dict):
    """Returns a call that does the steps of a round."""
    from pretraining_objectives import patched

    from keras_bert.tokenization.tokenizer import BertTokenizer
    from tasks.engine.build_trainer import build_trainer, prepare_devices
    from tasks.pretraining.data.masking import MaskingRules
    from tasks.pretraining.data.shard_index import read_records
    from tasks.pretraining.train import stages
    from tasks.pretraining.train.architecture import read_architecture
    from tasks.pretraining.train.batches import TrainBatches
    from tasks.pretraining.train.packed_data import plan_packing

    settings = settings_of(given, _OLD_STEPS, 1, tempfile.gettempdir())
    strategy = prepare_devices(settings)
    tokenizer = BertTokenizer(settings.vocab_file)
    with patched(given.get("objective"), settings):
        build = stages.model_builder(settings, read_architecture(settings, tokenizer.vocabulary_size()), tokenizer)
        objective = stages.PretrainingObjective(settings.use_next_sentence, settings.next_sentence_weight)
        trainer = build_trainer(settings, build, objective, strategy, (_OLD_STEPS, 1))
        records = read_records([settings.input_file], tokenizer.vocabulary_size(), **settings.lengths)
        masking = MaskingRules.of(tokenizer, settings) if settings.dynamic_masking else None
        options = {"batch_size": settings.train_batch_size, "random_seed": 1, "masking": masking}
        if settings.packing:
            options["packing"] = plan_packing(records, masking)
        fed = iter(TrainBatches(records, **options)(0))
        trainer._call_train(fed, 1)  # Builds the graph.
    return lambda: trainer._call_train(fed, _STEPS_OF_ROUND)


def step_time(given: dict) -> float:
    """Returns the processor time of a recipe's step, as the median ratio to OLD's."""
    with contextlib.ExitStack() as stack:
        sides = []
        for recipe in (OLD, given):
            for part in ("train", "held_out"):  # Before its process asks for it.
                data_of(recipe, part)
            sides.append(Side(os.path.abspath(__file__), f"--worker={json.dumps(recipe)}", *_places()))
            stack.callback(sides[-1].stop)
        old, new = [[seconds for _, seconds in row] for row in take_turns(sides, [""] * FLAGS.rounds, warm_up=1)]
    print(
        f"{_STEPS_OF_ROUND} steps of the old recipe: {statistics.median(old):.2f} s of the processor", file=sys.stderr
    )
    return statistics.median(seconds / old_seconds for seconds, old_seconds in zip(new, old, strict=True))


def _places() -> list[str]:
    return [f"--{name}={FLAGS[name].value}" for name in ("directory", "data_dir", "output_dir")]


# === Trainings ===


def train(cell: dict) -> dict:
    """Trains each phase of a cell; returns the last one's figures and its accuracy at each evaluation."""
    from pretraining_objectives import patched

    from tasks.pretraining.run import pretrain

    directory, start = directory_of(cell), {}
    for number, (given, steps) in enumerate(cell["phases"], 1):
        is_last = number == len(cell["phases"])
        output_dir = directory if is_last else f"{directory}_{number}"
        if start:
            given = {name: value for name, value in given.items() if name != "initial_attention"} | start
        settings = settings_of(given, steps, cell["seed"], output_dir)
        with patched(given.get("objective"), settings):
            metrics = pretrain(settings)
        start = {"init_checkpoint": os.path.join(output_dir, "preset")}
        shutil.rmtree(os.path.join(output_dir, "checkpoints"))
    rows = read_json(os.path.join(directory, "history.json"))["evaluations"]
    curve = [(row["step"] / cell["phases"][-1][1], row["masked_lm_accuracy"]) for row in rows]
    figures = {name: metrics[name] for name in _FIGURES}
    majority = metrics["majority_next_sentence_accuracy"]
    return {**figures, "curve": curve, "majority": majority, "cpu_seconds": round(time.process_time(), 1)}


def directory_of(cell: dict) -> str:
    return os.path.join(FLAGS.output_dir, f"{cell['recipe'].replace(' ', '_')}_{cell['share']:g}_{cell['seed']}")


def phases_of(name: str, named: dict[str, dict], times: dict[str, float]) -> list:
    """Returns the flags and the number of steps of each phase of a recipe."""
    phases = _PHASES.get(name, [(name, 1.0)])
    return [[named[phase], round(_OLD_STEPS * FLAGS.share * share / times[phase])] for phase, share in phases]


def share_until(curve: list[tuple[float, float]], accuracy: float) -> float | None:
    """Returns the share of the time at which an accuracy is reached, interpolated; None if it is not."""
    before = (0.0, 0.0)
    for point in curve:
        if point[1] >= accuracy:
            return before[0] + (point[0] - before[0]) * (accuracy - before[1]) / (point[1] - before[1])
        before = point
    return None


# === Tables ===


def do_seed(name: str, phases: list, seed: int) -> dict:
    """Returns a training's figures; with `--tasks` also the scores of its fine-tunings."""
    path = os.path.join(FLAGS.output_dir, "cells.jsonl")
    cell = {"recipe": name, "share": FLAGS.share, "seed": seed, "phases": phases}
    done = do_cell(path, cell, os.path.abspath(__file__), *_places())
    if FLAGS.tasks:
        start = {"preset": f"{directory_of(cell)}/preset", "random": False, "learning_rate": 1e-3, "seed": seed}
        done |= do_cell(path, start, os.path.join(_ROOT, "benchmarks", "five_tasks.py"), *_places()[1:])
    return done


def line(name: str, phases: list, done: list[dict], target: float | None) -> str:
    """Returns a recipe's row of the table."""
    columns = [name, ", ".join(f"{steps:,}" for _, steps in phases)]
    columns += [mean_and_range([training[figure] for training in done], form) for figure, form in _FIGURES.items()]
    until = [share_until(training["curve"], target) for training in done] if target else [None]
    columns.append("not reached" if None in until else mean_and_range([FLAGS.share * share for share in until], ".2f"))
    if FLAGS.tasks:
        columns += five_tasks_columns(done)
    return f"| {' | '.join(columns)} |"


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    if FLAGS.worker:
        run = build_round(json.loads(FLAGS.worker))
        serve(lambda _: timed(run))
        return
    if FLAGS.cell:
        print(json.dumps(train(json.loads(FLAGS.cell))))
        return
    named = recipes()
    names = [name for name in (*named, *_PHASES) if not FLAGS.only or name in FLAGS.only]
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    path = os.path.join(FLAGS.output_dir, "step_times.json")
    times = read_json(path) if os.path.exists(path) else {}  # A continued table has the same numbers of steps.
    for name in dict.fromkeys(phase for recipe in names for phase, _ in _PHASES.get(recipe, [(recipe, 1.0)])):
        if name not in times:
            times[name] = step_time(named[name])
            write_json(path, times)
    print(describe_machine())
    header = ["recipe", "steps", "masked LM", "next sentence", "perplexity", "time to the old accuracy"]
    header += FIVE_TASKS if FLAGS.tasks else []
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    target = None
    for name in names:
        phases = phases_of(name, named, times)
        done = [do_seed(name, phases, int(seed)) for seed in FLAGS.seeds]
        if name == "old":
            target = statistics.mean(training["masked_lm_accuracy"] for training in done)
        print(line(name, phases, done, target), flush=True)
    print(f"majority answer of next sentences: {done[0]['majority']:.1%}")


if __name__ == "__main__":
    flags.mark_flag_as_required("directory")
    task_flags.run(main)
