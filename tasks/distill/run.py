"""Trains a small model to answer as a large one does, in the time of the small one.

    bert-distill --teacher=runs/tickets --output_dir=runs/tickets_half
    bert-distill --teacher=runs/tickets --student_layers=3,6 --unlabelled_file=more.csv --output_dir=runs/tickets_third
    bert-distill --teacher=runs/search --student_preset=small --train_file=texts.csv --output_dir=runs/search_small

The teacher is the run of bert-classify, bert-ner, bert-squad, bert-swag, bert-score-words or bert-embed. Its task is
the student's, with all flags of that command (bert-distill --teacher=runs/tickets --help lists them), and so are the
files, columns and lengths of its training, as far as no flag names others. A student starts from every second layer of
its teacher, or from the layers or the preset that flags name. It learns the labels and the teacher's answers, an
embedder's vectors and cosines, of rows without labels too. --do_eval prints the teacher's score besides.
The student's run is like any other: the output directory gets metrics.json, report.html, the trained model (model/,
which bert-export takes) and checkpoints, several rates are a search, and the same command resumes a stopped run.
"""

from tasks import flags
from tasks.distill.settings import DistillSettings, StudentSettings, complete
from tasks.distill.task import student_of
from tasks.fine_tuning import command


def main(settings: StudentSettings) -> None:
    command.main(student_of(complete(settings)))


console_main = flags.console_main(main, DistillSettings)

if __name__ == "__main__":
    console_main()
