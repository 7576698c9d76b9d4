"""Trains, evaluates and applies a model that predicts a number for each word, such as difficulty or reading time.

    bert-score-words --train_file=train.conll --output_dir=runs/words
    bert-score-words --test_file=new.conll --do_predict --output_dir=runs/words
    bert-score-words --data_dir=reading_times --preset=base --do_train --do_eval --do_predict --output_dir=runs/words

Files have one token per line with its number in the last column (--tag_column), or _ for a word without one, a blank
line between sentences, and -DOCSTART- before each document. metrics.json has Pearson's and Spearman's correlations and
the mean squared error. --do_predict writes predictions.conll, with the columns token, the file's own number (if it has
numbers), and predicted number. The output directory also gets report.html, the trained model (model/, which bert-export
takes), TensorBoard events and checkpoints. With several comma-separated learning rates or batch sizes, or
--num_restarts, every combination is trained and the best on dev is kept. The same command resumes a stopped run.
"""

from tasks.fine_tuning import command
from tasks.score_words.task import ScoreWords

console_main = command.console_main(ScoreWords, __name__)

if __name__ == "__main__":
    console_main()
