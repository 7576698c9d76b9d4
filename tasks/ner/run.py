"""Trains, evaluates and applies a tagger of named entities or other spans on CoNLL files or annotated texts.

    bert-ner --train_file=train.conll --output_dir=runs/names
    bert-ner --test_file=new.conll --do_predict --output_dir=runs/names
    bert-ner --data_dir=conll2003 --preset=google/bert_cased_L-12_H-768_A-12 --document_context=document \\
        --max_seq_length=512 --do_train --do_eval --do_predict --output_dir=runs/ner

CoNLL files have one token per line with its tag in the last column (--tag_column), a blank line between sentences, and
-DOCSTART- before each document. Tags are in IOB1, IOB2 or BILOU. JSON Lines (.jsonl) and Parquet (.parquet) hold text
and spans, or tokens and tags. metrics.json has entity-level F1. --do_eval writes dev_predictions.conll and --do_predict
writes predictions.conll, with the columns token, the file's own tag in IOB2 (if it has tags), and predicted tag. The
output directory also gets report.html, the trained model (model/), TensorBoard events and checkpoints. With several
comma-separated learning rates or batch sizes, or --num_restarts, every combination is trained and the best on dev is
kept. The same command resumes a stopped run. Without --do_train, the trained model is used or, if there is none, a
--preset that was fine-tuned elsewhere (BertForTokenClassification).

--encoder=frozen (section 5.3 of the paper) computes the features of each word's first token once, stores them in
features/ of the output directory, and trains a BiLSTM on them. The rows of the paper's Table 7 are
    embeddings                 --layers=embeddings
    second-to-last hidden      --layers=-2
    last hidden                --layers=-1
    weighted sum last four     --layers=-1,-2,-3,-4 --combine=weighted_sum
    concat last four           --layers=-1,-2,-3,-4
    weighted sum all twelve    --layers=all --combine=weighted_sum
each with --document_context=document. To evaluate or apply such a tagger, also give --encoder=frozen.
"""

import os

from tasks import flags
from tasks.fine_tuning import command
from tasks.ner.frozen import FrozenNer
from tasks.ner.settings import NerSettings
from tasks.ner.task import Ner


def main(settings: NerSettings) -> None:
    if settings.encoder == "frozen":
        # All runs of a search share the features.
        command.main(FrozenNer(settings, features_directory=os.path.join(settings.output_dir, "features")))
    else:
        command.main(Ner(settings))


console_main = flags.console_main(main, NerSettings)

if __name__ == "__main__":
    console_main()
