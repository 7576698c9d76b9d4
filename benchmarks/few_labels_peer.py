"""Trains SetFit 1.2 on a table and scores it: the other side of `few_labels.py`, for an environment with SetFit.

    SETFIT/bin/python benchmarks/few_labels_peer.py PRESET TRAIN_FILE DEV_FILE STEPS SEED

The last line printed has the accuracy, and the processor seconds from loading the model to the end of `Trainer.train`.
"""

import json
import os
import resource
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")

import torch
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(preset: str, train_file: str, dev_file: str, steps: str, seed: str) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    tables = []
    for path in (train_file, dev_file):
        with open(path, encoding="utf-8") as file:
            tables.append([json.loads(line) for line in file])
    train, dev = tables
    labels = sorted({row["label"] for row in train})
    dataset = Dataset.from_list([{"text": row["text"], "label": labels.index(row["label"])} for row in train])
    start = processor_seconds()
    with tempfile.TemporaryDirectory() as output_dir:
        model = SetFitModel.from_pretrained(preset, labels=labels, device="cpu")
        arguments = TrainingArguments(
            output_dir=output_dir,
            num_iterations=20,
            max_steps=int(steps),
            batch_size=16,
            seed=int(seed),
            report_to="none",
            save_strategy="no",
        )
        Trainer(model=model, args=arguments, train_dataset=dataset).train()
    seconds = processor_seconds() - start
    answers = model.predict([row["text"] for row in dev], batch_size=32, use_labels=True)
    right = sum(answer == row["label"] for answer, row in zip(answers, dev, strict=True))
    print(json.dumps({"accuracy": right / len(dev), "cpu": round(seconds, 1)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
