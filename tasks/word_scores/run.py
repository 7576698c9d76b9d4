"""Trains, evaluates and applies a model that gives a number for each word, such as stress, difficulty or reading time.

    bert-score-words --data_dir=reading_times --preset=base --do_train --do_eval --do_predict --output_dir=runs/words

Files hold one token a line, its number in the last column (--tag_column), _ for a word without one, a blank line
between sentences, and -DOCSTART- before a document. metrics.json has Pearson's and Spearman's correlation and the mean
squared error. --do_predict writes predictions.conll: token, the file's own number if it has one, predicted number. The
output directory also gets report.html, the trained model (model/, which bert-export takes), the training curve,
TensorBoard events and checkpoints. Several learning rates or batch sizes, with commas between, or --num_restarts, train
every combination and keep the best on dev. The same command continues a run that was stopped.
"""

from tasks import flags
from tasks.fine_tuning import command
from tasks.word_scores.task import WordScores


def main(settings: WordScores.Settings) -> None:
    command.main(WordScores(settings))


def console_main() -> None:
    """The console script `bert-score-words`."""
    flags.run(main, WordScores.Settings)


if __name__ == "__main__":
    console_main()
