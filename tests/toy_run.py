"""Text that is easy to learn, its records, and settings of bert-pretrain that learn it in seconds."""

import numpy as np

from tasks.pretraining.create_data import create_pretraining_data

NUM_STEPS = 240
LENGTHS = {"max_seq_length": 16, "max_predictions_per_seq": 3}

_DATA_SETTINGS = {
    "masked_lm_prob": 0.15,
    "short_seq_prob": 0.1,
    "dupe_factor": 4,
    "random_seed": 3,
    "do_whole_word_mask": False,
}


def write_data(directory, **changes) -> None:
    """Writes vocab.txt, and train and held_out as .txt and .tfrecord; every document repeats one word."""
    words = [f"w{n}" for n in range(12)]
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    rng = np.random.default_rng(0)
    for name, num_documents in (("train", 40), ("held_out", 10)):
        documents = ["\n".join(" ".join([word] * 5) for _ in range(8)) for word in rng.choice(words, num_documents)]
        (directory / f"{name}.txt").write_text("\n\n".join(documents))
        create_pretraining_data(
            input_file=str(directory / f"{name}.txt"),
            output_file=str(directory / f"{name}.tfrecord"),
            vocab_file=str(directory / "vocab.txt"),
            **{**_DATA_SETTINGS, **LENGTHS, **changes},
        )


def settings(data, output_dir, **changes):
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
        "num_train_steps": NUM_STEPS,
        "num_warmup_steps": NUM_STEPS // 10,
        "save_checkpoints_steps": NUM_STEPS // 2,
        "do_train": True,
        "do_eval": True,
        **LENGTHS,
        **changes,
    }
