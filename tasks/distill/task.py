"""Makes a student of any fine-tuning task: the task itself, with the teacher's answers in addition to the labels."""

import dataclasses
import os

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import read_optional_json
from tasks.distill.settings import StudentSettings, task_of
from tasks.engine.settings import tokenizer_identity
from tasks.fine_tuning.examples import Examples, Predictor, join, take
from tasks.fine_tuning.inputs import METRICS_FILE, read_spec
from tasks.fine_tuning.task import Task
from tasks.report.card import flag_of


def student_of(settings: StudentSettings) -> Task:
    """Returns the task of the teacher as its student learns it. `settings` are a return value of `complete`."""
    task = task_of(settings.teacher)
    own = {"Settings": type(settings), "printed": (*task.printed, "teacher_score")}
    return type(f"{task.__name__}Student", (_Student, task), own)(settings)


class _Student:
    """Mixin with a student's changes to its task, which is the next base class."""

    command = "bert-distill"

    # === Data ===

    def read(self, split, bad_rows):
        parts, file = super().read(split, bad_rows), self.settings.unlabelled_file
        if split != "train" or not file:
            return parts
        settings = self.settings
        changes = {name: file for name in ("test_file", "predict_file") if hasattr(settings, name)}
        # When SQuAD evaluates, it reads no file to predict unless rows are held out.
        changes |= {"dev_share": settings.dev_share or 0.1} if settings.do_eval else {}
        reader = dataclasses.replace(self, settings=dataclasses.replace(settings, **changes))
        unlabelled = super(_Student, reader).read("test", bad_rows)[0]
        return [*parts, dataclasses.replace(unlabelled, split="unlabelled")]

    def make_spec(self, train):
        """Makes the teacher's spec, except for values that are chosen on the student's own answers.

        Raises:
            InputError: the flags contradict the teacher's spec.
        """
        settings = self.settings
        # Values without a flag, such as whether prompts are pooled, are the teacher's, whatever the start.
        start = {"preset": settings.teacher, "init_checkpoint": None, "bert_config_file": None}
        reader = dataclasses.replace(self, settings=dataclasses.replace(settings, **start))
        spec = super(_Student, reader).make_spec(train)
        kept = {}
        for name, value in dataclasses.asdict(read_spec(self, settings.teacher)).items():
            flag, given = settings.given_for(name)
            given = getattr(spec, name) if isinstance(value, bool) else given
            if name in self.changes_answers or value is None:
                continue
            if given not in (None, value):
                shown = flag_of(flag, given) if hasattr(settings, flag) else f"{flag} is {given}"
                raise InputError(
                    f"{train.path}: {shown}, but the teacher was trained with {value} (its task.json). A student reads "
                    "its rows as the teacher does."
                )
            kept[name] = value
        return dataclasses.replace(spec, **kept)

    # === Model ===

    def few_labels(self, rows, spec):
        return "off"

    def prepare(self, origin, trained):
        from keras_bert import BertTokenizer

        teacher = self.settings.teacher
        if tokenizer_identity(trained.tokenizer) != tokenizer_identity(BertTokenizer.from_preset(teacher)):
            raise InputError(
                f"{origin.preset}: another vocabulary, or letter case, than that of the teacher {teacher}. A student "
                "starts from an encoder with the vocabulary of its teacher."
            )
        return super().prepare(origin, trained)

    def standardizes(self, spec):
        return False  # The student starts from the teacher's head, and learns its answers.

    def objective(self, spec):
        from tasks.distill.objectives import Distillation

        return Distillation(super().objective(spec), self.settings.label_weight, self.settings.teacher_temperature)

    def teach(self, examples, unlabelled, spec):
        """Adds the labels for `Distillation`. The teacher reads all rows once."""
        model = self.load(self.settings.teacher, spec).model
        for more in unlabelled:
            examples = with_unlabelled(examples, more)
        per_token = examples.rows_per_example is None and len(model.output_shape) == 3
        batch_size = self.settings.eval_batch_size
        outputs = Predictor(model).compute_outputs(examples, batch_size, "ask the teacher")
        taught = {"teacher": outputs, "taught": np.ones(len(outputs), np.float32)}
        kind = "token_labels" if per_token else "labels"
        return examples._replace(**{kind: {**getattr(examples, kind), **taught}})

    # === Answers ===

    def describe(self, rows, encoded, spec):
        return {**super().describe(rows, encoded, spec), "train_teacher": self.settings.teacher}

    def evaluate(self, answers, results):
        """Scores the answers of the student, and those of its teacher to the same rows."""
        evaluation, metric = super().evaluate(answers, results), self.metric_of(answers.part)
        teacher, title = self.load(self.settings.teacher, answers.trained.spec), answers.part.title
        known = read_optional_json(os.path.join(os.path.dirname(self.settings.teacher), METRICS_FILE))
        if self.settings.dev_share and known.get("dev_rows_checksum") != answers.part.rows.checksum():
            note = f"The teacher may have learnt rows of {title} that are held out here: its score may be too high."
            evaluation.notes.append(note)
            print(note)
        outputs = answers.encoded.compute_outputs(
            Predictor(teacher.model), self.settings.eval_batch_size, f"answer {title} by the teacher"
        )
        taught = super().evaluate(answers._replace(trained=teacher, outputs=outputs), {})
        score, of_teacher = (figures[metric] for figures in (evaluation.figures, taught.figures))
        evaluation.details["teacher_score"] = of_teacher
        evaluation.scores.append(taught.scores[0]._replace(name=f"{taught.scores[0].name} of the teacher"))
        evaluation.notes.append(f"{metric}: {score:.4g}, and {of_teacher:.4g} of the teacher {self.settings.teacher}.")
        return evaluation


def with_unlabelled(examples: Examples, more: Examples) -> Examples:
    """Adds rows without labels, and the label `labelled` that tells them apart. Their other labels are never used.

    Texts to embed are regrouped into rows with as many texts as the others. Texts that do not fill a row are left out.
    """
    if more.rows_per_example != examples.rows_per_example:
        size = examples.rows_per_example
        sequences = np.arange((len(more.sequence_splits) - 1) // size * size)
        more = take(more._replace(labels={}, rows_per_example=None), sequences)._replace(rows_per_example=size)
    count = examples.num_examples
    labelled = np.full(count, count / (count + more.num_examples), np.float32)
    return join(examples._replace(labels={**examples.labels, "labelled": labelled}), more)
