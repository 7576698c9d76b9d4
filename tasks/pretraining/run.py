"""bert-pretrain: pre-trains BERT on masked LM and next-sentence prediction, from TFRecord files.

    bert-pretrain --input_file=train.tfrecord --eval_input_file=held_out.tfrecord --vocab_file=vocab.txt \\
        --preset=tiny --output_dir=runs/pretrain --do_train --do_eval
    bert-pretrain --input_file=train.tfrecord --vocab_file=vocab.txt --preset=mini --time_budget_minutes=60 --packing \\
        --output_dir=runs/hour --do_train
    bert-pretrain --input_file=train.tfrecord --vocab_file=vocab.txt --init_checkpoint=bert_model.ckpt \\
        --num_train_steps=20000 --learning_rate=2e-5 --output_dir=runs/further --do_train

bert-create-pretraining-data writes the input files. The same command resumes a stopped run. On SIGTERM, the command
saves a checkpoint and exits with status 42. The output directory gets preset/ (encoder, heads and tokenizer, for
--init_checkpoint and bert-classify --preset), report.html (the curves), metrics.json, flags.json, TensorBoard events
and checkpoints.

To train on several machines, run the same command on each, with --distribution_strategy=multi_worker_mirrored and the
machine's own TF_CONFIG; the first machine writes the files.
"""

import time

from tasks import flags
from tasks.pretraining.figures import format_figures
from tasks.pretraining.train.settings import PretrainingSettings


def pretrain(settings: PretrainingSettings) -> dict:
    """Trains, evaluates, or both; continues from the checkpoints in `output_dir`.

    Returns:
        The content of `metrics.json`. A call that trains nothing keeps the figures of the training.

        - With `do_eval`: the held-out `masked_lm_accuracy`, `masked_lm_loss`, `next_sentence_accuracy`,
          `next_sentence_loss`, `loss` and `perplexity`; and `unigram_accuracy` and `majority_next_sentence_accuracy`,
          the scores of always giving the most frequent answer of the training records.
        - With `do_train`: `train_records`, `train_steps`, `train_start` and, unless the training was finished,
          `train_resumed_at` (if resumed), `train_seconds` (without evaluation), `examples_per_second`,
          `real_tokens_per_second` and `train_command`.
        - With `packing`: `real_token_share` of padded rows and `packed_real_token_share`.
        - With `time_budget_minutes`: `num_train_steps`, the number of steps that fits into the budget.

    Raises:
        InputError: the settings do not fit the data or the weights, or a file cannot be used.
        Preempted: SIGTERM came during training; the checkpoint is saved.
    """
    started = time.monotonic()  # Importing TensorFlow takes seconds, which count towards --time_budget_minutes.
    from tasks.pretraining.train.stages import run_stages

    return run_stages(settings, started)


def main(settings: PretrainingSettings) -> None:
    print(format_figures(pretrain(settings)))


console_main = flags.console_main(main, PretrainingSettings)

if __name__ == "__main__":
    console_main()
