"""Trains, evaluates and applies a tagger of named entities, or of other spans, on CoNLL files.

    bert-ner --data_dir=conll2003 --preset=google/bert_cased_L-12_H-768_A-12 --document_context=document \\
        --max_seq_length=512 --do_train --do_eval --do_predict --output_dir=runs/ner
    bert-ner --train_file=train.conll --dev_file=dev.conll --preset=base --do_train --do_eval --output_dir=runs/wnut

Files have one token per line with its tag in the last column (--tag_column), a blank line between sentences, and
-DOCSTART- before each document. Tags are in IOB1, IOB2 or BILOU. metrics.json has entity-level F1. --do_eval writes
dev_predictions.conll and --do_predict writes predictions.conll, with the columns token, the file's own tag in IOB2 (if
it has tags), and predicted tag. The output directory also gets report.html, the trained model (model/), the training
curve, TensorBoard events and checkpoints. Given several comma-separated learning rates or batch sizes, or
--num_restarts, every combination is trained and the best on dev is kept. The same command resumes a stopped run.
Without --do_train, the trained model is used or, if there is none, a --preset that was fine-tuned elsewhere
(BertForTokenClassification).
"""

from tasks.fine_tuning import command
from tasks.tagging.task import Tagging

console_main = command.console_main(Tagging, __name__)

if __name__ == "__main__":
    console_main()
