"""What the recipes promise is what the paper says (Devlin et al. 2018): settings, sizes and scores."""

import re
import shutil

import pytest
from recipe_commands import EXPECTED_SCRIPTS, RECIPES, VARIANTS, commands, flags_of, text_of

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


# === The paper's settings ===


def test_glue_is_the_paper_s_search():
    lines = [flags_of(command) for command in commands("glue.sh")]
    assert [line["task_name"] for line in lines] == "mnli ax qqp qnli sst2 cola stsb mrpc rte".split()
    for line in lines:
        if line["task_name"] == "ax":
            assert line["output_dir"] == "/none/out/mnli" and "do_train" not in line
            continue
        assert line["learning_rate"] == "5e-5,4e-5,3e-5,2e-5" and line["train_batch_size"] == "32"
        assert line["num_train_epochs"] == "3" and "do_predict" in line and line["num_restarts"] == "1"
        assert line["optimizer"] == "bert-2018"
    large = [flags_of(command) for command in commands(*VARIANTS[len(EXPECTED_SCRIPTS) * 2])]
    restarted = {line["task_name"] for line in large if line.get("num_restarts") == "5"}
    assert restarted == {"cola", "stsb", "mrpc", "rte"} and "wnli" in {line["task_name"] for line in large}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("squad_1.1.sh", {"learning_rate": "5e-5", "train_batch_size": "32", "num_train_epochs": "3"}),
        ("squad_2.0.sh", {"learning_rate": "5e-5", "train_batch_size": "48", "num_train_epochs": "2"}),
        ("swag.sh", {"learning_rate": "2e-5", "train_batch_size": "16", "num_train_epochs": "3"}),
    ],
)
def test_single_fine_tunings_have_the_paper_s_settings(script, expected):
    (line,) = (flags_of(command) for command in commands(script))
    assert {name: line[name] for name in expected} == expected and line["optimizer"] == "bert-2018"
    assert ("version_2_with_negative" in line) == (script == "squad_2.0.sh")


def test_ner_has_documents_and_the_appendix_s_rates():
    (tuned,) = (flags_of(command) for command in commands("ner.sh"))
    assert (tuned["learning_rate"], tuned["num_restarts"]) == ("5e-5,3e-5,2e-5", "1")
    assert tuned["optimizer"] == "bert-2018"
    for line in [tuned, *(flags_of(command) for command in commands("features_ner.sh"))]:
        assert line["preset"] == "cased_L-12_H-768_A-12" and line["document_context"] == "document"
        assert line["max_seq_length"] == "512"
    rows = [flags_of(command) for command in commands("features_ner.sh")]
    assert [(line["layers"], line.get("combine")) for line in rows] == [
        ("embeddings", None),
        ("-2", None),
        ("-1", None),
        ("-1,-2,-3,-4", "weighted_sum"),
        ("-1,-2,-3,-4", "concatenate"),
        ("all", "weighted_sum"),
    ]
    assert {(line["lstm_units"], line["lstm_layers"]) for line in rows} == {("768", "2")}


@pytest.mark.parametrize(("script", "preset"), [("pretrain_base.sh", "base"), ("pretrain_large.sh", "large")])
def test_pre_training_is_a_million_steps_in_two_phases(script, preset):
    first, second = (flags_of(line) for line in commands(script) if line[0] == "bert-pretrain")
    assert first["preset"] == preset and second["init_checkpoint"] == first["output_dir"] + "/preset"
    assert "preset" not in second
    assert (first["max_seq_length"], second["max_seq_length"]) == ("128", "512")
    assert (first["num_train_steps"], second["num_train_steps"]) == ("900000", "100000")
    assert first["train_batch_size"] == second["train_batch_size"] == "256"
    assert (first["learning_rate"], first["num_warmup_steps"]) == ("1e-4", "10000")
    for line in (first, second):  # the shards alone: a picture of their lengths lies beside them
        assert line["input_file"].endswith(".tfrecord-*-of-*") and line["eval_input_file"].endswith(".tfrecord-*-of-*")
    for name in ("max_seq_length", "max_predictions_per_seq"):  # the records are made as they are read
        made = [flags_of(line)[name] for line in commands(script) if line[0] == "bert-create-pretraining-data"]
        assert made == [first[name], first[name], second[name], second[name]]


def test_lamb_takes_as_many_examples_as_its_paper():
    variant = next(variant for variant in VARIANTS if ("OPTIMIZER", "lamb") in variant and variant[1] == "full")
    phases = [flags_of(line) for line in commands(*variant) if line[0] == "bert-pretrain"]
    assert {line["optimizer"] for line in phases} == {"lamb"} and {line["tpu"] for line in phases} == {"local"}
    assert sum(int(line["num_train_steps"]) for line in phases) == 125_000
    assert {line["train_batch_size"] for line in phases} == {"4096"}


def test_ablations_and_sizes_are_the_tables_rows():
    def names(line):
        return {name for name in ("nouse_next_sentence", "attention") if name in line}

    lines = [flags_of(line) for line in commands("ablations.sh") if line[0] == "bert-pretrain"]
    assert [names(line) for line in lines if "preset" in line] == [
        set(),
        {"nouse_next_sentence"},
        {"nouse_next_sentence", "attention"},
    ]
    assert ["nouse_next_sentence" in line for line in lines if "init_checkpoint" in line] == [False, True, True]
    tuned = [flags_of(line)["preset"] for line in commands("ablations.sh") if line[0] == "bert-squad"]
    assert tuned == [f"/none/out/{name}/phase2/preset" for name in ("base", "no_nsp", "ltr_no_nsp")]
    lines = [flags_of(line) for line in commands("model_size.sh") if "num_layers" in flags_of(line)]
    sizes = [tuple(int(line[name]) for name in ("num_layers", "hidden_dim", "num_heads")) for line in lines]
    assert sizes == [row[:3] for row in TABLE_6]
    assert all(int(line["intermediate_dim"]) == 4 * int(line["hidden_dim"]) for line in lines)


# === The paper's scores (Devlin et al. 2018, typed from the tables) ===

TABLE_1 = {
    "MNLI": ("84.6/83.4", "86.7/85.9"),
    "QQP": ("71.2", "72.1"),
    "QNLI": ("90.5", "92.7"),
    "SST-2": ("93.5", "94.9"),
    "CoLA": ("52.1", "60.5"),
    "STS-B": ("85.8", "86.5"),
    "MRPC": ("88.9", "89.3"),
    "RTE": ("66.4", "70.1"),
}
TABLE_5 = {
    "base": (84.4, 88.4, 86.7, 92.7, 88.5),
    "No NSP": (83.9, 84.9, 86.5, 92.6, 87.9),
    "LTR & No NSP": (82.1, 84.3, 77.5, 92.1, 77.8),
    "+ BiLSTM": (82.1, 84.1, 75.7, 91.6, 84.9),
}
TABLE_6 = [
    (3, 768, 12, 5.84, 77.9, 79.8, 88.4),
    (6, 768, 3, 5.24, 80.6, 82.2, 90.7),
    (6, 768, 12, 4.68, 81.9, 84.8, 91.3),
    (12, 768, 12, 3.99, 84.4, 86.7, 92.9),
    (12, 1024, 16, 3.54, 85.7, 86.9, 93.3),
    (24, 1024, 16, 3.23, 86.6, 87.8, 93.7),
]
TABLE_7 = {
    "embeddings": "91.0",
    "second_to_last": "95.6",
    "last": "94.9",
    "weighted_sum_last_four": "95.9",
    "concat_last_four": "96.1",
    "weighted_sum_all": "95.5",
}


def rows_of(script: str) -> list[list[str]]:
    """The table rows among a recipe's opening comment, columns parted by two blanks."""
    lines = (line.removeprefix("#").strip() for line in text_of(script).splitlines())
    return [re.split(r" {2,}", line) for line in lines if re.search(r" {2,}", line)]


def test_scores_of_the_tables():
    rows = {row[0]: tuple(row[1:]) for row in rows_of("glue.sh")}
    assert {name: rows[name] for name in TABLE_1} == TABLE_1
    assert ["base", "80.8/88.5"] in rows_of("squad_1.1.sh") and ["large", "84.1/90.9"] in rows_of("squad_1.1.sh")
    assert ["large", "78.7/81.9"] in rows_of("squad_2.0.sh")
    assert ["base", "81.6"] in rows_of("swag.sh") and ["large", "86.6"] in rows_of("swag.sh")
    rows = {row[0]: tuple(map(float, row[1:])) for row in rows_of("ablations.sh") if row[0] in TABLE_5}
    assert rows == TABLE_5
    numbers = [tuple(map(float, row)) for row in rows_of("model_size.sh") if row[0].isdigit()]
    assert numbers == TABLE_6
    rows = {row[0]: row[1] for row in rows_of("features_ner.sh")}
    assert {name: rows[name] for name in TABLE_7} == TABLE_7
    assert ["base, fine-tuned", "96.4"] in rows_of("ner.sh")
    for script, row in (("pretrain_base.sh", TABLE_6[3]), ("pretrain_large.sh", TABLE_6[5])):
        said = "perplexity {} on held-out text, MNLI {}, MRPC {}, SST-2 {} ".format(*row[3:])
        assert said in text_of(script)


def test_the_readme_quotes_the_same_scores():
    readme = (RECIPES / "README.md").read_text(encoding="utf-8")
    for column in (0, 1):
        assert ", ".join(f"{name} {scores[column]}" for name, scores in TABLE_1.items()) in readme
    for name, row in zip(("base", "no NSP", "left to right, no NSP"), TABLE_5.values(), strict=False):
        assert f"{name} {' '.join(map(str, row))}" in readme
    assert ", ".join(TABLE_7.values()) in readme
    for score in ("base 80.8/88.5, large 84.1/90.9", "large 78.7/81.9", "base 81.6, large 86.6", "F1 96.4"):
        assert score in readme
    ends = zip(("perplexity", "MNLI", "MRPC", "SST-2"), TABLE_6[0][3:], TABLE_6[-1][3:], strict=True)
    assert ", ".join(f"{name} {first} to {last}" for name, first, last in ends) in readme
