"""Trains, evaluates and applies a model that chooses the right one of several texts (SWAG and similar tasks).

    bert-swag --train_file=train.csv --output_dir=runs/endings
    bert-swag --data_dir=swag --preset=base --do_train --do_eval --output_dir=runs/swag
    bert-swag --train_file=train.jsonl --dev_file=dev.jsonl --context_column=question --choice_columns=options \\
        --preset=base --do_train --do_eval --output_dir=runs/quiz

Tables are CSV or Excel (.xlsx) with a header, JSON Lines (.jsonl) or Parquet (.parquet), by default with SWAG's
columns. The label is the number of the right choice, from 0. The number of choices follows from the columns.
--do_predict writes predictions.csv. The output directory gets metrics.json, report.html, the trained model (model/),
TensorBoard events and checkpoints. With several comma-separated learning rates or batch sizes, or --num_restarts,
every combination is trained and the best on dev is kept. The same command resumes a stopped run. Without --do_train,
the trained model is used or, if there is none, a --preset that was fine-tuned elsewhere (BertForMultipleChoice).
"""

from tasks.fine_tuning import command
from tasks.swag.task import Swag

console_main = command.console_main(Swag, __name__)

if __name__ == "__main__":
    console_main()
