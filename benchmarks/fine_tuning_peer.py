"""A plain fine-tuning with transformers and torch: the peer of benchmarks/fine_tuning.py, one run a process.

    .venv/bin/python benchmarks/fine_tuning_peer.py --task=rte --train_file=train.tsv --dev_file=dev.tsv \\
        --preset=DIRECTORY --output_dir=runs/peer

What a user of transformers would write: AutoModelFor*, torch's AdamW without decay of LayerNorm and biases, gradients
clipped to norm 1, batches padded to their longest. SQuAD's windows and n-best follow transformers' example run_qa:
character offsets of the tokenizer, the answer is cut out of the text. Of this project's training only the order of the
rows is used, so that both sides make their steps on the same rows; the rates are google-research/bert's.

Scores: scikit-learn's and scipy's (tables), the official script (SQuAD; of tf-models-official), seqeval (NER). The
output directory gets metrics.json and, for SQuAD and NER, the predictions.
"""

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from absl import flags
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
flags.DEFINE_enum("task", "sst2", ["sst2", "cola", "rte", "stsb", "squad", "wnut"], "What the files hold.")
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
IGNORED = -100  # The label that torch's cross entropy leaves out.
N_BEST = 20
MAX_ANSWER_TOKENS = 30
DOC_STRIDE = 128
# Columns of the texts and of the label, and whether the file has a header.
COLUMNS = {"sst2": ([0], 1, True), "cola": ([3], 1, False), "rte": ([1, 2], 3, True), "stsb": ([0, 1], 2, True)}


class Problem(NamedTuple):
    """A task made ready: the model, its inputs, and how outputs become scores.

    Attributes:
        model: a transformers model.
        train: inputs of each training row, lists by name, labels included.
        dev: inputs of each row to score on, without labels.
        score: takes the model's outputs of every dev row, a list of arrays; returns figures by name.
    """

    model: object
    train: list[dict]
    dev: list[dict]
    score: Callable[[list], dict[str, float]]


# === Tables ===


def table_problem(task: str, tokenizer) -> Problem:
    """SST-2, CoLA, RTE (classes) and STS-B (a score, mean squared error)."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(FLAGS.preset)
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)] if task != "stsb" else None
    rows = {split: _read_table(path, task) for split, path in _files().items()}
    inputs = {
        split: [
            dict(tokenizer(*texts, truncation="longest_first", max_length=FLAGS.max_seq_length)) for texts, _ in part
        ]
        for split, part in rows.items()
    }
    targets = {
        split: [float(label) if labels is None else labels.index(label) for _, label in part]
        for split, part in rows.items()
    }
    for row, label in zip(inputs["train"], targets["train"], strict=True):
        row["labels"] = label
    gold = np.array(targets["dev"])
    return Problem(model, inputs["train"], inputs["dev"], lambda outputs: _score_table(np.array(outputs), gold))


def _read_table(path: str, task: str) -> list[tuple[list[str], str]]:
    texts, label, has_header = COLUMNS[task]
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [([row[column] for column in texts], row[label]) for row in rows[has_header:]]


def _score_table(outputs: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    if outputs.shape[1] == 1:
        return {"pearson": pearsonr(outputs[:, 0], gold)[0], "spearman": spearmanr(outputs[:, 0], gold)[0]}
    classes = outputs.argmax(axis=1)
    return {"accuracy": accuracy_score(gold, classes), "matthews": matthews_corrcoef(gold, classes)}


# === Entities ===


def tagging_problem(tokenizer) -> Problem:
    """Tags of words: the first sub-token of each is labelled; what is beyond max_seq_length gets the tag O."""
    from transformers import AutoModelForTokenClassification

    sentences = {split: _read_conll(path) for split, path in _files().items()}
    model = AutoModelForTokenClassification.from_pretrained(FLAGS.preset)
    tags = [model.config.id2label[number] for number in range(model.config.num_labels)]
    inputs, places = {}, {}
    for split, part in sentences.items():
        encodings = [
            tokenizer(words, is_split_into_words=True, truncation=True, max_length=FLAGS.max_seq_length)
            for words, _ in part
        ]
        inputs[split] = [dict(encoding) for encoding in encodings]
        places[split] = [_first_tokens(encoding.word_ids()) for encoding in encodings]
    for row, first, (_, row_tags) in zip(inputs["train"], places["train"], sentences["train"], strict=True):
        labels = [IGNORED] * len(row["input_ids"])
        for word, place in first.items():
            labels[place] = tags.index(row_tags[word])
        row["labels"] = labels

    def score(outputs):
        predicted = [
            [tags[output[first[word]].argmax()] if word in first else "O" for word in range(len(words))]
            for output, first, (words, _) in zip(outputs, places["dev"], sentences["dev"], strict=True)
        ]
        return _score_tags(sentences["dev"], predicted)

    return Problem(model, inputs["train"], inputs["dev"], score)


def _read_conll(path: str) -> list[tuple[list[str], list[str]]]:
    with open(path, encoding="utf-8") as file:
        blocks = re.split(r"\n\s*\n", file.read().strip())  # In WNUT-17 a tab stands alone between two sentences.
    rows = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    return [([word for word, _ in row], [tag for _, tag in row]) for row in rows]


def _first_tokens(word_ids: list[int | None]) -> dict[int, int]:
    """Word number -> position of its first sub-token; a word without any is missing."""
    return {word: place for place, word in reversed(list(enumerate(word_ids))) if word is not None}


def _score_tags(sentences: list[tuple[list[str], list[str]]], predicted: list[list[str]]) -> dict[str, float]:
    from seqeval.metrics import f1_score

    with open(os.path.join(FLAGS.output_dir, "dev_predictions.conll"), "w", encoding="utf-8") as file:
        for (words, tags), row in zip(sentences, predicted, strict=True):
            file.writelines("\t".join(columns) + "\n" for columns in zip(words, tags, row, strict=True))
            file.write("\n")
    return {"entity_f1": float(f1_score([tags for _, tags in sentences], predicted))}


# === Questions ===


def squad_problem(tokenizer) -> Problem:
    """SQuAD 2.0: a window every 128 tokens, no answer at [CLS]."""
    from transformers import AutoModelForQuestionAnswering

    questions, windows = {}, {}
    for split, path in _files().items():
        with open(path, encoding="utf-8") as file:
            articles = json.load(file)["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        questions[split] = [(question, part["context"]) for part in paragraphs for question in part["qas"]]
        windows[split] = [
            window for question, context in questions[split] for window in _windows(tokenizer, question, context)
        ]
    train = [{**inputs, **_span(offsets, question)} for inputs, offsets, question in windows["train"]]
    model = AutoModelForQuestionAnswering.from_pretrained(FLAGS.preset)
    return Problem(
        model,
        train,
        [row[0] for row in windows["dev"]],
        lambda outputs: _score_squad(outputs, windows["dev"], questions),
    )


def _windows(tokenizer, question: dict, context: str) -> Iterator[tuple[dict, list, dict]]:
    """Yields inputs, the characters of each token (None: not of the context), and the question."""
    room = FLAGS.max_seq_length - len(tokenizer(question["question"].strip())["input_ids"]) - 1
    encoding = tokenizer(
        question["question"].strip(),
        context,
        truncation="only_second",
        max_length=FLAGS.max_seq_length,
        stride=max(room - DOC_STRIDE, 0),  # What transformers calls stride two windows have in common.
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    for number, offsets in enumerate(encoding["offset_mapping"]):
        inputs = {name: encoding[name][number] for name in ("input_ids", "token_type_ids", "attention_mask")}
        of_context = [part == 1 for part in encoding.sequence_ids(number)]
        yield inputs, [pair if use else None for pair, use in zip(offsets, of_context, strict=True)], question


def _span(offsets: list, question: dict) -> dict[str, int]:
    """First and last token of the first gold answer; (0, 0) where there is none in this window."""
    span = {"start_positions": 0, "end_positions": 0}
    places = [place for place, pair in enumerate(offsets) if pair]
    if not question["answers"] or not places:
        return span
    start = question["answers"][0]["answer_start"]
    end = start + len(question["answers"][0]["text"])
    if start < offsets[places[0]][0] or end > offsets[places[-1]][1]:
        return span
    span["start_positions"] = max(place for place in places if offsets[place][0] <= start)
    span["end_positions"] = min(place for place in places if offsets[place][1] >= end)
    return span


def _score_squad(outputs: list, windows: list, questions: dict) -> dict[str, float]:
    from official.nlp.tools import squad_evaluate_v2_0

    of_question = defaultdict(list)
    for output, (_, offsets, question) in zip(outputs, windows, strict=True):
        of_question[question["id"]].append((output, offsets))
    answers, null_odds = {}, {}
    for question, context in questions["dev"]:
        answers[question["id"]], null_odds[question["id"]] = _best_answer(of_question[question["id"]], context)
    predictions = {name: "" if null_odds[name] > 0.0 else answer for name, answer in answers.items()}
    for name, values in (("predictions", predictions), ("answers", answers), ("null_odds", null_odds)):
        write_json(os.path.join(FLAGS.output_dir, f"{name}.json"), values)
    with open(FLAGS.dev_file, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return squad_evaluate_v2_0.evaluate(articles, predictions)


def _best_answer(windows: list[tuple[np.ndarray, list]], context: str) -> tuple[str, float]:
    """Returns the best answer that is one, and by how much no answer scores higher."""
    null_score, best_score, best_text = np.inf, -np.inf, ""
    for output, offsets in windows:  # output: [S, 2]
        null_score = min(null_score, output[0].sum())
        starts, ends = (np.argsort(-output[:, side])[:N_BEST] for side in (0, 1))
        for start in starts:
            for end in ends:
                if not (offsets[start] and offsets[end] and start <= end < start + MAX_ANSWER_TOKENS):
                    continue
                score = output[start, 0] + output[end, 1]
                if score > best_score:
                    best_score, best_text = score, context[offsets[start][0] : offsets[end][1]]
    return best_text, float(null_score - max(best_score, -1e9))


# === Training ===


def train(problem: Problem, num_steps: int, pad_token_id: int) -> None:
    """The training loop."""
    import torch

    from tasks.examples import train_batches

    model = problem.model.train()
    decayed = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    others = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=FLAGS.learning_rate,
        eps=EPSILON,
    )
    num_warmup_steps = int(num_steps * WARMUP_PROPORTION)

    def share_of_peak(step: int) -> float:
        return step / num_warmup_steps if step < num_warmup_steps else 1 - step / num_steps

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)
    lengths = np.array([len(row["input_ids"]) for row in problem.train])
    batches = train_batches(lengths, FLAGS.train_batch_size, FLAGS.random_seed, 0, num_steps)
    for rows in tqdm(batches[: FLAGS.max_steps], desc="fine-tuning", mininterval=0.5):
        batch = _pad([problem.train[row] for row in rows], pad_token_id)
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _pad(rows: list[dict], pad_token_id: int) -> dict:
    """Tensors of a batch, padded to the longest row."""
    import torch

    fills = {"input_ids": pad_token_id, "labels": IGNORED}
    longest = max(len(row["input_ids"]) for row in rows)
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if isinstance(values[0], list):
            values = [value + [fills.get(name, 0)] * (longest - len(value)) for value in values]
        batch[name] = torch.tensor(values)
    return batch


def compute_outputs(problem: Problem, pad_token_id: int) -> list[np.ndarray]:
    """The model's outputs of every dev row, in their order; start and end logits of SQuAD as columns."""
    import torch

    model = problem.model.eval()
    order = np.argsort([len(row["input_ids"]) for row in problem.dev])
    outputs: list = [None] * len(order)
    for start in tqdm(range(0, len(order), EVAL_BATCH), desc="evaluate", mininterval=0.5):
        rows = order[start : start + EVAL_BATCH]
        with torch.inference_mode():
            answer = model(**_pad([problem.dev[row] for row in rows], pad_token_id))
        logits = answer.logits if "logits" in answer else torch.stack([answer.start_logits, answer.end_logits], -1)
        for row, values in zip(rows, logits.numpy(), strict=True):
            # Of a padded row the padding's logits of SQuAD and NER are cut off.
            outputs[row] = values if values.ndim == 1 else values[: len(problem.dev[row]["input_ids"])]
    return outputs


def _files() -> dict[str, str]:
    return {"train": FLAGS.train_file, "dev": FLAGS.dev_file}


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
    builders = {"squad": squad_problem, "wnut": tagging_problem}
    problem = builders[FLAGS.task](tokenizer) if FLAGS.task in builders else table_problem(FLAGS.task, tokenizer)
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
