"""Trains, evaluates and applies a model that chooses the right one of several texts (SWAG and its like).

    bert-swag --data_dir=swag --preset=base --do_train --do_eval --output_dir=runs/swag
    bert-swag --train_file=train.jsonl --dev_file=dev.jsonl --context_column=question --choice_columns=options \\
        --preset=base --do_train --do_eval --output_dir=runs/quiz

Tables are CSV with a header, with SWAG's own columns by default, or JSON Lines (.jsonl). The label is the number of the
right choice, from 0; the columns tell the number of choices. --do_predict writes predictions.csv. The output directory
gets metrics.json, report.html, the trained model (model/), the training curve, TensorBoard events and checkpoints.
Several learning rates or batch sizes, with commas between, or --num_restarts, train every combination and keep the best
on dev. The same command continues a run that was stopped. --do_eval or --do_predict alone use the trained model or,
where there is none, a --preset that was fine-tuned elsewhere (BertForMultipleChoice).
"""

from tasks import flags
from tasks.fine_tuning import command
from tasks.swag.task import Swag


def main(settings: Swag.Settings) -> None:
    command.main(Swag(settings))


def console_main() -> None:
    """The console script `bert-swag`."""
    flags.run(main, Swag.Settings)


if __name__ == "__main__":
    console_main()
