"""Defines the tasks of benchmarks/fine_tuning_peer.py as a user of transformers would: model, inputs, scores.

The flags are those of the peer: --task, --train_file, --dev_file, --preset, --output_dir, --max_seq_length.
"""

import csv
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from absl import flags

from keras_bert.files import write_json

FLAGS = flags.FLAGS

IGNORED = -100  # The label that torch's cross entropy leaves out.
N_BEST = 20
MAX_ANSWER_TOKENS = 30
DOC_STRIDE = 128
MAX_WINDOWS = 16  # A row of sst2_windows has at most so many.
# Columns of the texts and of the label, and whether the file has a header.
COLUMNS = dict.fromkeys(("sst2", "sst2_weighted", "sst2_windows"), ([0], 1, True))
COLUMNS |= {"cola": ([3], 1, False), "rte": ([1, 2], 3, True), "stsb": ([0, 1], 2, True)}


class Problem(NamedTuple):
    """A prepared task: the model, its inputs, and the scoring of its outputs.

    Attributes:
        model: a transformers model.
        train: inputs of each training row, lists by name, labels included.
        dev: inputs of each row to score on, without labels.
        score: takes the model's outputs of every dev row, a list of arrays; returns figures by name.
        length: tokens of a row, by which rows are sorted: those of its longest sequence, or of all its windows.
    """

    model: object
    train: list[dict]
    dev: list[dict]
    score: Callable[[list], dict[str, float]]
    length: Callable[[dict], int] = lambda row: np.shape(row["input_ids"])[-1]


# === Tables ===


def table_problem(tokenizer) -> Problem:
    """SST-2, CoLA, RTE (classes) and STS-B (a score, mean squared error); SST-2 with weights, or in windows."""
    from transformers import AutoModelForSequenceClassification

    task = FLAGS.task
    model = AutoModelForSequenceClassification.from_pretrained(FLAGS.preset)
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)] if task != "stsb" else None
    rows = {split: _read_table(path, task) for split, path in _files().items()}
    settings = {"truncation": "longest_first", "max_length": FLAGS.max_seq_length}
    encode = _windows_of if task == "sst2_windows" else lambda tokenizer, *texts: dict(tokenizer(*texts, **settings))
    inputs = {split: [encode(tokenizer, *texts) for texts, _ in part] for split, part in rows.items()}
    targets = {
        split: [float(label) if labels is None else labels.index(label) for _, label in part]
        for split, part in rows.items()
    }
    for row, label in zip(inputs["train"], targets["train"], strict=True):
        row["labels"] = label
    gold = np.array(targets["dev"])
    problem = Problem(model, inputs["train"], inputs["dev"], lambda outputs: _score_table(np.array(outputs), gold))
    if task == "sst2_weighted":
        return problem._replace(model=_weighted(model, targets["train"]))
    if task == "sst2_windows":
        return problem._replace(model=_pooled(model), length=lambda row: np.sum(row["attention_mask"]))
    return problem


def _weighted(model, targets: list[int]):
    """Weighs the rows in the loss by scikit-learn's balanced weights of their labels."""
    import torch
    from sklearn.utils.class_weight import compute_class_weight

    weights = compute_class_weight("balanced", classes=np.unique(targets), y=targets)

    class Weighted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
            self.loss = torch.nn.CrossEntropyLoss(torch.tensor(weights, dtype=torch.float32))

        def forward(self, labels=None, **inputs):
            output = self.model(**inputs)
            if labels is not None:
                output.loss = self.loss(output.logits, labels)
            return output

    return Weighted()


def _pooled(model):
    """Answers a row by the mean of the logits of its windows."""
    import torch

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, labels=None, **inputs):  # [rows, windows, tokens]
            is_window = inputs["attention_mask"].any(-1)
            output = self.model(**{name: values[is_window] for name, values in inputs.items()})
            output.logits = torch.stack([part.mean(0) for part in output.logits.split(is_window.sum(-1).tolist())])
            if labels is not None:
                output.loss = torch.nn.functional.cross_entropy(output.logits, labels)
            return output

    return Pooled()


def _windows_of(tokenizer, text: str) -> dict[str, list[list[int]]]:
    """Cuts a text into windows that overlap by a quarter, the last of them full; pads them to the longest row's."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    room = FLAGS.max_seq_length - 2
    step, last = room - room // 4, max(len(ids) - room, 0)
    starts = [min(start, last) for start in range(0, last + step, step)]
    windows = [[tokenizer.cls_token_id, *ids[start : start + room], tokenizer.sep_token_id] for start in starts]
    lengths = [len(window) for window in windows] + [0] * (MAX_WINDOWS - len(windows))
    longest = max(lengths)
    mask = [[int(place < length) for place in range(longest)] for length in lengths]
    padded = [window + [tokenizer.pad_token_id] * (longest - len(window)) for window in windows]
    padded += [[tokenizer.pad_token_id] * longest] * (MAX_WINDOWS - len(windows))
    return {"input_ids": padded, "attention_mask": mask}


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


def types_problem(tokenizer) -> Problem:
    """Sentences with any number of labels: binary cross entropy, the mean over the labels."""
    from sklearn.metrics import average_precision_score, f1_score
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(FLAGS.preset)
    labels, inputs, targets = list(model.config.id2label.values()), {}, {}
    for split, path in _files().items():
        with open(path, encoding="utf-8") as file:
            rows = list(map(json.loads, file))
        inputs[split] = [dict(tokenizer(row["text"], truncation=True, max_length=FLAGS.max_seq_length)) for row in rows]
        targets[split] = np.array([[label in row["labels"] for label in labels] for row in rows], np.float32)
    for row, target in zip(inputs["train"], targets["train"], strict=True):
        row["labels"] = target

    def score(outputs):
        gold, logits = targets["dev"], np.array(outputs)
        figures = {f"{kind}_f1": f1_score(gold, logits >= 0, average=kind) for kind in ("micro", "macro")}
        return {**figures, "mean_average_precision": average_precision_score(gold, logits)}

    return Problem(model, inputs["train"], inputs["dev"], score)


# === Choices ===


def choices_problem(tokenizer) -> Problem:
    """SWAG: chooses the highest score of a row's four sequences, each of context and choice."""
    from sklearn.metrics import accuracy_score
    from transformers import AutoModelForMultipleChoice

    inputs, labels = {}, {}
    for split, path in _files().items():
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        inputs[split] = [_encode_choices(row, tokenizer) for row in rows]
        labels[split] = [int(row["label"]) for row in rows]
    train = [{**row, "labels": label} for row, label in zip(inputs["train"], labels["train"], strict=True)]
    model = AutoModelForMultipleChoice.from_pretrained(FLAGS.preset)

    def score(outputs):
        return {"accuracy": accuracy_score(labels["dev"], np.array(outputs).argmax(axis=1))}

    return Problem(model, train, inputs["dev"], score)


def _encode_choices(row: dict, tokenizer) -> dict[str, list[list[int]]]:
    """Returns the inputs of a row: lists of four sequences, padded to the longest."""
    choices = [f"{row['sent2']} {row[f'ending{number}']}".strip() for number in range(4)]
    settings = {"truncation": "longest_first", "max_length": FLAGS.max_seq_length, "padding": "longest"}
    return dict(tokenizer([row["sent1"]] * len(choices), choices, **settings))


# === Entities ===


def tagging_problem(tokenizer) -> Problem:
    """NER: labels the first sub-token of each word. Words beyond max_seq_length get the tag O."""
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
    """Returns the position of each word's first sub-token, by word number. Words without sub-tokens are missing."""
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
    """SQuAD 2.0: windows start every 128 tokens, and [CLS] stands for "no answer".

    Windows and n-best follow transformers' example run_qa: the tokenizer's character offsets, answers cut out of the
    text.
    """
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
    """Returns the first and last token of the first gold answer, or (0, 0) if it is not in this window."""
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


def _files() -> dict[str, str]:
    return {"train": FLAGS.train_file, "dev": FLAGS.dev_file}


BUILDERS = {
    **dict.fromkeys(COLUMNS, table_problem),
    "squad": squad_problem,
    "swag": choices_problem,
    "types": types_problem,
    "wnut": tagging_problem,
}
