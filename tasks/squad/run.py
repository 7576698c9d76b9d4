"""Trains, evaluates and applies a model that answers questions about a text with a span of it: SQuAD 1.1 and 2.0.

    bert-squad --train_file=train-v2.0.json --predict_file=dev-v2.0.json --version_2_with_negative --preset=base \\
        --do_train --do_eval --do_predict --output_dir=runs/squad

Long contexts are cut into overlapping windows. --do_eval scores by SQuAD's official script: exact match and F1.
--do_predict writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json. The output directory
gets metrics.json, report.html, the trained model (model/, which bert-export takes), the training curve, TensorBoard
events and checkpoints. Several learning rates or batch sizes, with commas between, or --num_restarts, train every
combination and keep the best on --predict_file. The same command continues a run that was stopped. --do_eval or
--do_predict alone use the trained model or, where there is none, a --preset that was fine-tuned elsewhere
(BertForQuestionAnswering). The flags of google-research/bert's run_squad.py work, too.
"""

from tasks import flags
from tasks.fine_tuning import command
from tasks.squad.task import Squad


def main(settings: Squad.Settings) -> None:
    command.main(Squad(settings))


def console_main() -> None:
    """The console script `bert-squad`."""
    flags.run(main, Squad.Settings)


if __name__ == "__main__":
    console_main()
