"""Text that is easy to learn, its records, and settings of bert-pretrain that learn it in seconds."""

import numpy as np

from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.run import pretrain
from tasks.pretraining.train.settings import PretrainingSettings

NUM_STEPS = 120
LENGTHS = {"max_seq_length": 16, "max_predictions_per_seq": 3}
NO_ARCHITECTURE = dict.fromkeys(("preset", "num_layers", "num_heads", "hidden_dim"))


def write_data(directory, **changes) -> None:
    """Writes vocab.txt, and train and held_out as .txt and .tfrecord; every document repeats one word."""
    words = [f"w{n}" for n in range(12)]
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    rng = np.random.default_rng(0)
    for name, num_documents in (("train", 40), ("held_out", 10)):
        documents = ["\n".join(" ".join([word] * 5) for _ in range(8)) for word in rng.choice(words, num_documents)]
        (directory / f"{name}.txt").write_text("\n\n".join(documents))
    write_records(directory, directory, **changes)


def write_records(data, directory, **changes) -> dict[str, str]:
    """Writes train.tfrecord and held_out.tfrecord from the texts in `data`; returns what they are to bert-pretrain."""
    for name in ("train", "held_out"):
        given = {"dupe_factor": 4, "random_seed": 3, **LENGTHS, **changes}
        files = {"input_file": f"{data}/{name}.txt", "output_file": f"{directory}/{name}.tfrecord"}
        create_pretraining_data(DataSettings(**files, vocab_file=f"{data}/vocab.txt", **given))
    return {"input_file": f"{directory}/train.tfrecord", "eval_input_file": f"{directory}/held_out.tfrecord"}


def run(data, output_dir, **changes) -> dict:
    """Runs bert-pretrain in this process."""
    return pretrain(PretrainingSettings(**settings(data, output_dir, **changes)))


def settings(data, output_dir, **changes) -> dict:
    return {
        "input_file": f"{data}/train.tfrecord",
        "eval_input_file": f"{data}/held_out.tfrecord",
        "vocab_file": f"{data}/vocab.txt",
        "output_dir": str(output_dir),
        "preset": "tiny",
        "num_layers": 1,
        "num_heads": 2,
        "hidden_dim": 64,
        "train_batch_size": 32,
        "eval_batch_size": 64,
        "learning_rate": 3e-3,
        "random_seed": 3,  # With one seed in some, 120 steps do not leave the plateau.
        "num_train_steps": NUM_STEPS,
        "num_warmup_steps": NUM_STEPS // 10,
        "save_checkpoints_steps": NUM_STEPS // 2,
        "do_train": True,
        "do_eval": True,
        **LENGTHS,
        **changes,
    }
