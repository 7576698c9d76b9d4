"""Distills a fine-tuned model into a smaller, faster one that imitates its answers.

    bert-distill --teacher=runs/tickets --output_dir=runs/tickets_half
    bert-distill --teacher=runs/tickets --student_layers=3,6 --unlabelled_file=more.csv --output_dir=runs/tickets_third
    bert-distill --teacher=runs/search --student_preset=small --train_file=texts.csv --output_dir=runs/search_small

The teacher is the output directory of bert-classify, bert-ner, bert-squad, bert-swag, bert-score-words or bert-embed.
The student has the same task and takes all flags of that command (bert-distill --teacher=runs/tickets --help lists
them). It reads the files, columns and lengths of the teacher's training unless flags name others.

A student starts from every second layer of its teacher, or from the layers or the preset that flags name. It learns
from the labels and from the teacher's answers (of an embedder: vectors and cosines), which rows without labels have,
too. --do_eval also prints the teacher's score.

The output directory gets metrics.json, report.html, the trained model (model/, which bert-export takes) and
checkpoints. Several learning rates are a search, and the same command resumes a stopped run.
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
