"""Every fine-tuning task with small files that it can learn from."""

import json

import run_tasks

TRAINING = {"train_batch_size": 4, "num_train_epochs": 1, "max_seq_length": 16, "learning_rate": 1e-3}


def csv(*rows) -> str:
    return "\n".join(",".join(map(str, row)) for row in rows) + "\n"


def questions(*, bad: bool = False) -> str:
    """SQuAD's JSON of eight questions; the answer of a bad one is not in the context."""
    asked = [
        {
            "id": str(number),
            "question": f"w{number}",
            "answers": [{"text": "w19" if bad and number == 2 else f"w{number + 1}", "answer_start": 3}],
        }
        for number in range(8)
    ]
    paragraphs = [{"context": f"w0 w{number + 1} w2", "qas": [question]} for number, question in enumerate(asked)]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def choices(*last) -> str:
    """Eight rows of three choices; SWAG's have four."""
    rows = [(f"w{number}", "w1", "w2", "w3", "w4", number % 3) for number in range(8)]
    return csv(("sent1", "sent2", "ending0", "ending1", "ending2", "label"), *rows, *last)


def classes(*last) -> str:
    return csv(("text", "label"), *((f"w{number}", number % 2) for number in range(8)), *last)


def pairs(*last) -> str:
    return csv(("text", "match"), *((f"w{number}", f"w{number} w1") for number in range(8)), *last)


def words(column: str, last: str = "") -> str:
    """Eight sentences in CoNLL's columns, two to a document."""
    sentences = (f"w{number} {column.format(number)}\nw1 {column.format(1)}" for number in range(8))
    starts = ("-DOCSTART- -\n\n", "") * 4
    return "\n\n".join(map("".join, zip(starts, sentences, strict=True))) + f"\n{last}"


def answer_questions(data_dir: str, **settings) -> dict:
    """Takes the files from a folder, as the other tasks do."""
    files = {"train_file": f"{data_dir}/train.json"}
    files["predict_file"] = f"{data_dir}/{'dev' if settings.get('do_eval') else 'test'}.json"
    return run_tasks.answer_questions(max_query_length=4, **files, **settings)


def tag(**settings) -> dict:
    """Gives each sentence its document around it, where a model is trained."""
    context = {"document_context": "document"} if settings.get("do_train") else {}
    return run_tasks.tag(**context, **settings)


# Task: entry, file name, good content, content with one bad row, where it is named, settings.
TASKS = {
    "classification": (run_tasks.classify, "{}.csv", classes(), classes(("w1",)), "train.csv:10: expected 2 fields"),
    "question_answering": (
        answer_questions,
        "{}.json",
        questions(),
        questions(bad=True),
        "train.json: question '2': the answer 'w19' is not in the context",
    ),
    "multiple_choice": (run_tasks.choose, "{}.csv", choices(), choices(("w1",)), "train.csv:10: expected 6 fields"),
    "tagging": (
        tag,
        "{}.conll",
        words("B-x"),
        words("B-x", "\nw1 I-y\n"),
        "train.conll:33: I-y follows O",
    ),
    "embedding": (run_tasks.embed, "{}.csv", pairs(), pairs(("w1",)), "train.csv:10: expected 2 fields"),
    "word_scores": (
        run_tasks.score_words,
        "{}.conll",
        words("0.{}"),
        words("0.{}", "\nw1 high\n"),
        "train.conll:33: expected a number",
    ),
}
