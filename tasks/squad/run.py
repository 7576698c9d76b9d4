"""Trains, evaluates and applies a model that answers questions with a span of a given text: SQuAD 1.1 and 2.0.

    bert-squad --train_file=questions.json --output_dir=runs/questions
    bert-squad --predict_file=new.json --do_predict --output_dir=runs/questions
    bert-squad --train_file=train-v2.0.json --predict_file=dev-v2.0.json --version_2_with_negative --preset=base \\
        --do_train --do_eval --do_predict --output_dir=runs/squad

Long contexts are split into overlapping windows. --do_eval computes exact match and F1 with SQuAD's official script.
--do_predict writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json. The output directory
gets metrics.json, report.html, the trained model (model/, which bert-export takes), TensorBoard events and checkpoints.
With several comma-separated learning rates or batch sizes, or --num_restarts, every combination is trained and the
best on --predict_file is kept. The same command resumes a stopped run. Without --do_train, the trained model is used
or, if there is none, a --preset that was fine-tuned elsewhere (BertForQuestionAnswering). The flags of
google-research/bert's run_squad.py work as well.
"""

from tasks.fine_tuning import command
from tasks.squad.task import Squad

console_main = command.console_main(Squad, __name__)

if __name__ == "__main__":
    console_main()
