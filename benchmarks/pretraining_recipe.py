"""Which tricks make a small pre-training learn faster: each alone, and left out of the whole, in equal wall time.

    .venv/bin/bert-quickstart --output_dir=runs/quickstart
    .venv/bin/python benchmarks/pretraining_recipe.py --directory=runs/quickstart

Trains on the text of a finished quickstart, beginning with OLD, the recipe that the quickstart had. The steps of all
recipes are timed in turns, since the machine may be shared. Each recipe then does the steps that fit into the time that
2,500 of OLD take, times `--share`. Prints, as mean and range over the seeds, masked-LM accuracy at 15%, next-sentence
accuracy, perplexity, and the share of OLD's time after which its last accuracy was reached, interpolated between five
evaluations. A training with `--share=0.5` takes 2 to 3 minutes on 2 cores of an AMD EPYC, and there are three of each
recipe. Finished ones are not repeated. `--only` picks recipes.
"""

import contextlib
import json
import os
import statistics
import tempfile

from absl import flags
from machine import describe_machine
from sides import Side, serve, take_turns, timed

from keras_bert.files import read_json, write_json
from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("directory", None, "Directory of a finished bert-quickstart, with corpus/ and vocab.txt.")
flags.DEFINE_string("output_dir", "runs/recipe", "Directory of the trainings; finished ones are not repeated.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds.")
flags.DEFINE_list("only", [], "Recipes to train, by name; default: all.")
flags.DEFINE_float("share", 1.0, "Share of OLD's time.", lower_bound=0.01)
flags.DEFINE_integer("rounds", 7, "Rounds of timed steps.", lower_bound=1)
flags.DEFINE_string("worker", None, "Flags of a recipe, as JSON: what the benchmark's own processes are started with.")

_OLD_STEPS, _STEPS_OF_ROUND, _EVALUATIONS = 2500, 10, 5
_LENGTH = 64
OLD = {"train_batch_size": 64, "optimizer": "adamw", "learning_rate": 2e-3}
TRICKS = {
    "Muon": {"optimizer": "muon", "learning_rate": 4e-3, "adam_lr_ratio": 0.75},
    "neighbors": {"initial_attention": "neighbors"},
    "batches of 32": {"train_batch_size": 32},
    "next sentences 0.3": {"next_sentence_weight": 0.3},
    "20% masked": {"dynamic_masking": True, "masked_lm_prob": 0.2},
}
# Measured beside the whole, and not part of it.
OTHERS = {
    "rate ratio 0.5": {"adam_lr_ratio": 0.5},
    "rate ratio 1": {"adam_lr_ratio": 1.0},
    "next sentences 0.1": {"next_sentence_weight": 0.1},
}


def recipes() -> dict[str, dict]:
    """Returns the flags of each recipe by its name."""
    whole = dict(OLD)
    for trick in TRICKS.values():
        whole |= trick
    named = {"old": OLD, "whole": whole}
    for name, trick in TRICKS.items():
        without = {**OLD, **{flag: value for other in TRICKS if other != name for flag, value in TRICKS[other].items()}}
        named |= {f"old + {name}": {**OLD, **trick}, f"whole - {name}": without}
    named |= {f"whole + {name}": {**whole, **trick} for name, trick in OTHERS.items()}
    return {name: given for name, given in named.items() if not FLAGS.only or name in FLAGS.only}


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


def settings_of(given: dict, steps: int, seed: int, output_dir: str):
    """Returns the settings of a training."""
    from tasks.pretraining.train.settings import PretrainingSettings

    return PretrainingSettings(
        input_file=data_of(given, "train"),
        eval_input_file=data_of(given, "held_out"),
        vocab_file=os.path.join(FLAGS.directory, "vocab.txt"),
        bert_config_file=os.path.join(FLAGS.directory, "bert_config.json"),
        output_dir=output_dir,
        num_train_steps=steps,
        num_warmup_steps=max(1, steps // 10),
        save_checkpoints_steps=max(1, steps // _EVALUATIONS),
        eval_batch_size=64,
        random_seed=seed,
        peak_tflops=1.0,  # Measuring it takes seconds.
        do_train=True,
        do_eval=True,
        **lengths_of(given),
        **given,
    )


# === Time of a step ===


def build_round(given: dict):
    """Returns a call that does the steps of a round."""
    from keras_bert.tokenization.tokenizer import BertTokenizer
    from tasks.engine.build_trainer import build_trainer, prepare_devices
    from tasks.pretraining.data.masking import MaskingRules
    from tasks.pretraining.data.shard_index import read_indexes
    from tasks.pretraining.train.architecture import model_builder, read_architecture
    from tasks.pretraining.train.batches import TrainBatches
    from tasks.pretraining.train.losses import PretrainingObjective

    settings = settings_of(given, _OLD_STEPS, 1, tempfile.gettempdir())
    strategy = prepare_devices(settings)
    tokenizer = BertTokenizer(settings.vocab_file)
    build = model_builder(settings, read_architecture(settings, tokenizer.vocabulary_size()), tokenizer)
    trainer = build_trainer(settings, build, PretrainingObjective(), strategy, (_OLD_STEPS, 1))
    files, lengths = [settings.input_file], settings.lengths
    masking = MaskingRules.of(tokenizer, settings) if settings.dynamic_masking else None
    options = {"batch_size": settings.train_batch_size, "random_seed": 1, "masking": masking}
    batches = TrainBatches(files, read_indexes(files, **lengths), **options, **lengths)
    fed = iter(batches(0))
    trainer._call_train(fed, 1)  # Builds the graph.
    return lambda: trainer._call_train(fed, _STEPS_OF_ROUND)


def step_times(named: dict[str, dict]) -> dict[str, float]:
    """Returns the time of each recipe's step, as the median ratio to OLD's."""
    with contextlib.ExitStack() as stack:
        sides = []
        for given in [OLD, *named.values()]:
            for part in ("train", "held_out"):  # Before its process asks for it.
                data_of(given, part)
            arguments = [f"--worker={json.dumps(given)}"]
            arguments += [f"--{name}={FLAGS[name].value}" for name in ("directory", "output_dir")]
            sides.append(Side(os.path.abspath(__file__), *arguments))
            stack.callback(sides[-1].stop)
        old, *rows = [[seconds for seconds, _ in row] for row in take_turns(sides, [""] * FLAGS.rounds, warm_up=1)]
    return {
        name: statistics.median(one / other for one, other in zip(row, old, strict=True))
        for name, row in zip(named, rows, strict=True)
    }


# === Trainings ===


def train(name: str, given: dict, steps: int, seed: int) -> dict:
    """Trains, unless that was done before; returns the last figures and the accuracy at each evaluation."""
    from tasks.pretraining.run import pretrain

    directory = os.path.join(FLAGS.output_dir, f"{name.replace(' ', '_')}_{FLAGS.share:g}_{seed}")
    metrics = pretrain(settings_of(given, steps, seed, directory))
    rows = read_json(os.path.join(directory, "history.json"))["evaluations"]
    curve = [(row["step"] / steps, row["masked_lm_accuracy"]) for row in rows]
    return {**metrics, "curve": curve}


def share_until(curve: list[tuple[float, float]], accuracy: float) -> float | None:
    """Returns the share of the time at which an accuracy is reached, interpolated; None if it is not."""
    before = (0.0, 0.0)
    for point in curve:
        if point[1] >= accuracy:
            return before[0] + (point[0] - before[0]) * (accuracy - before[1]) / (point[1] - before[1])
        before = point
    return None


def mean_and_range(values: list[float], form: str) -> str:
    return f"{statistics.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    if FLAGS.worker:
        run = build_round(json.loads(FLAGS.worker))
        serve(lambda _: timed(run))
        return
    named, seeds = recipes(), [int(seed) for seed in FLAGS.seeds]
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    path = os.path.join(FLAGS.output_dir, "step_times.json")
    times = read_json(path) if os.path.exists(path) else {}  # A continued table has the same numbers of steps.
    missing = {name: given for name, given in named.items() if name not in times}
    if missing:
        times |= step_times(missing)
        write_json(path, times)
    print(describe_machine())
    print("| recipe | steps | masked LM | next sentence | perplexity | time to the old accuracy |\n|" + " --- |" * 6)
    target = None
    for name, given in named.items():
        steps = round(_OLD_STEPS * FLAGS.share / times[name])
        done = [train(name, given, steps, seed) for seed in seeds]
        if name == "old":
            target = statistics.mean(one["masked_lm_accuracy"] for one in done)
        until = [share_until(one["curve"], target) for one in done] if target else [None]
        cells = [
            mean_and_range([one[figure] for one in done], form)
            for figure, form in (
                ("masked_lm_accuracy", ".1%"),
                ("next_sentence_accuracy", ".1%"),
                ("perplexity", ".0f"),
            )
        ]
        reached = "not reached" if None in until else mean_and_range([FLAGS.share * one for one in until], ".2f")
        if name == "old":
            reached = f"{FLAGS.share:.2f}"
        print("| " + " | ".join([name, f"{steps:,}", *cells, reached]) + " |", flush=True)
    print(f"majority answer of next sentences: {done[0]['majority_next_sentence_accuracy']:.1%}")


if __name__ == "__main__":
    flags.mark_flag_as_required("directory")
    task_flags.run(main)
