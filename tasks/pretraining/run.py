"""bert-pretrain: masked-LM and next-sentence pre-training from TFRecord files.

    bert-pretrain --input_file=train.tfrecord --eval_input_file=held_out.tfrecord --vocab_file=vocab.txt \\
        --preset=tiny --output_dir=runs/pretrain --do_train --do_eval

The files are those of bert-create-pretraining-data. The same command continues a run that was stopped; after SIGTERM
it saves a checkpoint first, and its exit status is 42. The output directory gets preset/ (encoder, heads and tokenizer,
for --init_checkpoint and bert-classify --preset), metrics.json, flags.json, the training curve, TensorBoard events and
checkpoints.

On several machines the same command runs on each, with --distribution_strategy=multi_worker_mirrored and its own
TF_CONFIG; the first one writes the files.
"""

from absl import flags

from tasks import flags as task_flags

task_flags.define_output()
task_flags.define_model()
task_flags.define_architecture()
task_flags.define_tokenizer()
task_flags.define_stages("train", "eval")
task_flags.define_training()
task_flags.define_train_steps()
task_flags.define_distribution(several_machines=True)
flags.DEFINE_string("input_file", None, "Training TFRecord: paths or patterns, commas between.", allow_override=True)
flags.DEFINE_string("eval_input_file", None, "Held-out TFRecord, for --do_eval.", allow_override=True)
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions of an instance, as in the data.",
                     lower_bound=1, allow_override=True)  # fmt: skip
flags.DEFINE_integer("max_eval_steps", None, "Batches an evaluation looks at; default: all.",
                     lower_bound=1, allow_override=True)  # fmt: skip
flags.DEFINE_boolean("packing", False, "Several instances in one row of max_seq_length; batch sizes count rows then.",
                     allow_override=True)  # fmt: skip
flags.DEFINE_boolean("dynamic_masking", False, "Fresh masks each epoch; the held-out records keep theirs.",
                     allow_override=True)  # fmt: skip
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that --dynamic_masking masks.", allow_override=True)
flags.DEFINE_boolean("do_whole_word_mask", False, "--dynamic_masking masks all WordPieces of a word together.",
                     allow_override=True)  # fmt: skip
flags.DEFINE_enum("attention", None, ["bidirectional", "left_to_right"], "Which tokens a token sees; left_to_right is "
                  "the paper's ablation (table 5); default: the architecture's.", allow_override=True)  # fmt: skip
flags.DEFINE_boolean("use_next_sentence", True, "Train the next-sentence head too; false: masked LM alone.",
                     allow_override=True)  # fmt: skip
flags.DEFINE_float("peak_tflops", None, "10^12 operations a second of one device, as its maker says, for the share of "
                   "peak; default: measured, but not on a TPU.", lower_bound=1e-3, allow_override=True)  # fmt: skip
flags.mark_flags_as_required(["input_file", "vocab_file"])


def pretrain(**settings) -> dict:
    """Trains and evaluates, or one of them; continues from the checkpoints in `output_dir`.

    Args:
        **settings: the fields of `tasks.pretraining.stages.Settings`, which are the command's flags.

    Returns:
        What `metrics.json` holds, that of earlier calls included if this one trains nothing: with `do_eval` the
        held-out `masked_lm_accuracy`, `masked_lm_loss`, `next_sentence_accuracy`, `next_sentence_loss`, `loss`,
        `perplexity`, `unigram_accuracy` and `majority_next_sentence_accuracy` (of always giving the answer that is the
        most frequent in training); with `do_train` `train_records`, `train_steps` and, if any step was left
        to do, `train_seconds` (evaluation not counted), `examples_per_second`, `real_tokens_per_second`,
        `share_of_peak`, `peak_tflops` (of all devices) and `peak_source`.

    Raises:
        InputError: settings that contradict each other, or files that cannot be used.
        Preempted: SIGTERM came while it trained; the checkpoint is saved.
    """
    from tasks.pretraining import stages

    return stages.run_stages(stages.Settings(**settings))


def main(argv: list[str]) -> None:
    del argv
    for name, value in pretrain(**task_flags.resolved_flags()).items():
        print(f"{name:26}{_show(value):>14}")


def _show(value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def console_main() -> None:
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
