"""A plain fine-tuning with transformers and torch: the peer of benchmarks/fine_tuning.py, one run per process.

    .venv/bin/python benchmarks/fine_tuning_peer.py --task=rte --train_file=train.tsv --dev_file=dev.tsv \\
        --preset=DIRECTORY --output_dir=runs/peer

This is what a user of transformers would write: AutoModelFor*, torch's AdamW without decay of LayerNorm and biases,
gradients clipped to norm 1, and batches padded to their longest row. The tasks are in fine_tuning_problems.py. Only the
order of the rows comes from this project's training, so that both sides do their steps on the same rows. The learning
rates are google-research/bert's.

Scores come from scikit-learn and scipy (tables, SWAG), the official script in tf-models-official (SQuAD), and seqeval
(NER). The output directory gets metrics.json and, for SQuAD and NER, the predictions.
"""

import os
import time

import numpy as np
from absl import flags
from fine_tuning_problems import BUILDERS, IGNORED, Problem
from tqdm import tqdm

from keras_bert.files import write_json
from tasks import flags as task_flags

FLAGS = flags.FLAGS

for _name, _text in {
    "train_file": "Training file.",
    "dev_file": "Labelled file to score on.",
    "preset": "Directory with encoder and head, in Hugging Face's format.",
    "output_dir": "Directory for metrics.json and predictions.",
}.items():
    flags.DEFINE_string(_name, None, _text, required=True)
flags.DEFINE_enum("task", "sst2", sorted(BUILDERS), "What the files hold.")
flags.DEFINE_integer("train_batch_size", 32, "Rows of a training step.", lower_bound=1)
flags.DEFINE_integer("max_seq_length", 128, "Longest input in tokens.", lower_bound=4)
flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.")
flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training rows.")
flags.DEFINE_integer("num_train_steps", None, "Steps; default: what the epochs give.", lower_bound=1)
flags.DEFINE_integer("random_seed", 1, "Seed of the order of the rows, and of dropout.")
flags.DEFINE_integer("max_steps", None, "Stop after so many steps, to try the script out.", lower_bound=1)

WARMUP_PROPORTION = 0.1
WEIGHT_DECAY = 0.01
EPSILON = 1e-6  # As google-research/bert; torch's default is 1e-8.
EVAL_BATCH = 32


# === Training ===


def train(problem: Problem, num_steps: int, pad_token_id: int) -> None:
    """Runs the training loop."""
    import torch

    from tasks.fine_tuning.examples import train_batches

    model = problem.model.train()
    decayed = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    others = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=FLAGS.learning_rate,
        eps=EPSILON,
        fused=True,
    )
    num_warmup_steps = int(num_steps * WARMUP_PROPORTION)

    def share_of_peak(step: int) -> float:
        return step / num_warmup_steps if step < num_warmup_steps else 1 - step / num_steps

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)
    lengths = np.array([problem.length(row) for row in problem.train])
    batches = train_batches(lengths, FLAGS.train_batch_size, FLAGS.random_seed, 0, num_steps)
    for rows in tqdm(batches[: FLAGS.max_steps], desc="fine-tuning", mininterval=0.5):
        batch = _pad([problem.train[row] for row in rows], pad_token_id)
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _length(row: dict) -> int:
    """Returns the number of tokens of a row, or of its longest choice."""
    return np.shape(row["input_ids"])[-1]


def _pad(rows: list[dict], pad_token_id: int) -> dict:
    """Returns the tensors of a batch, padded to the longest row."""
    import torch

    fills = {"input_ids": pad_token_id, "labels": IGNORED}
    longest = max(map(_length, rows))
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if isinstance(values[0], list):
            values = [_extend(value, longest, fills.get(name, 0)) for value in values]
        batch[name] = torch.tensor(values)
    return batch


def _extend(values: list, length: int, fill: int) -> list:
    """Pads a list, or each list in it, with `fill` to a given length."""
    if isinstance(values[0], list):
        return [_extend(part, length, fill) for part in values]
    return values + [fill] * (length - len(values))


def compute_outputs(problem: Problem, pad_token_id: int) -> list[np.ndarray]:
    """Returns the model's outputs for all dev rows in their order, with SQuAD's start and end logits as columns."""
    import torch

    model = problem.model.eval()
    order = np.argsort([_length(row) for row in problem.dev])
    outputs: list = [None] * len(order)
    for start in tqdm(range(0, len(order), EVAL_BATCH), desc="evaluate", mininterval=0.5):
        rows = order[start : start + EVAL_BATCH]
        with torch.inference_mode():
            answer = model(**_pad([problem.dev[row] for row in rows], pad_token_id))
        logits = answer.logits if "logits" in answer else torch.stack([answer.start_logits, answer.end_logits], -1)
        for row, values in zip(rows, logits.numpy(), strict=True):
            # For SQuAD and NER, the logits of a row's padding are cut off.
            outputs[row] = values if values.ndim == 1 else values[: _length(problem.dev[row])]
    return outputs


def main(argv: list[str]) -> None:
    """Trains, scores, and writes metrics.json."""
    del argv
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    torch.manual_seed(FLAGS.random_seed)
    started = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(FLAGS.preset)
    problem = BUILDERS[FLAGS.task](tokenizer)
    num_steps = FLAGS.num_train_steps or int(len(problem.train) * FLAGS.num_train_epochs / FLAGS.train_batch_size)
    train(problem, num_steps, tokenizer.pad_token_id)
    seconds = time.perf_counter() - started
    scores = problem.score(compute_outputs(problem, tokenizer.pad_token_id))
    scores = {name: float(value) for name, value in scores.items()}
    results = {**scores, "train_rows": len(problem.train), "train_steps": num_steps, "train_seconds": round(seconds, 1)}
    write_json(os.path.join(FLAGS.output_dir, "metrics.json"), results)
    print(results)


if __name__ == "__main__":
    task_flags.run(main)
