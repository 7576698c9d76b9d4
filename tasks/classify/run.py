"""Trains, evaluates and applies a classifier or regressor of single texts or pairs of texts.

    bert-classify --train_file=tickets.csv --output_dir=runs/tickets
    bert-classify --test_file=new.csv --do_predict --output_dir=runs/tickets
    bert-classify --task_name=mrpc --data_dir=glue_data/MRPC --preset=base --do_train --do_eval --do_predict \\
        --output_dir=runs/mrpc

A table is CSV (.csv, quoted), TSV (.tsv, no quoting), Excel (.xlsx, first sheet), JSON Lines (.jsonl) or Parquet
(.parquet), with named columns. With several comma-separated learning rates or batch sizes, or --num_restarts, every
combination is trained and the best on dev is kept; the paper uses --learning_rate=5e-5,4e-5,3e-5,2e-5
--train_batch_size=32. --do_predict writes predictions.tsv and, for GLUE's tasks, the submission file. The output
directory gets metrics.json, report.html, the trained model (model/, which bert-export takes), TensorBoard events and
checkpoints. The same command resumes a stopped run. Without --do_train, the trained model is used or, if there is none,
a --preset that was fine-tuned elsewhere. The flags of google-research/bert's run_classifier.py work as well.
"""

from tasks.classify.task import Classify
from tasks.fine_tuning import command

console_main = command.console_main(Classify, __name__)

if __name__ == "__main__":
    console_main()
