"""Trains, evaluates and applies a classifier, or a regressor, of single texts or pairs of texts.

    bert-classify --task_name=mrpc --data_dir=glue_data/MRPC --preset=base --do_train --do_eval --do_predict \\
        --output_dir=runs/mrpc
    bert-classify --train_file=train.csv --dev_file=dev.csv --text_column=review --label_column=stars \\
        --preset=base --do_train --do_eval --output_dir=runs/reviews

A table is CSV (.csv, quoted), JSON Lines (.jsonl) or TSV (any other name, no quoting) with named columns. Several
learning rates or batch sizes, with commas between, or --num_restarts, train every combination and keep the best on
dev; the paper has --learning_rate=5e-5,4e-5,3e-5,2e-5 --train_batch_size=32. --do_predict writes predictions.tsv, and
for GLUE's tasks the file that GLUE takes. The output directory gets metrics.json, report.html, the trained model
(model/, which bert-export takes), confusion_matrix.png, the training curve, TensorBoard events and checkpoints. The
same command continues a run that was stopped. --do_eval or --do_predict alone use the trained model or, where there is
none, a --preset that was fine-tuned elsewhere. The flags of google-research/bert's run_classifier.py work, too.
"""

from tasks import flags
from tasks.classification.task import Classification
from tasks.fine_tuning import command


def main(settings: Classification.Settings) -> None:
    command.main(Classification(settings))


def console_main() -> None:
    """The console script `bert-classify`."""
    flags.run(main, Classification.Settings)


if __name__ == "__main__":
    console_main()
