"""Students of every task: what they learn, where they start, that a killed one resumes, and what is refused."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys

import absl.flags
import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_server
import toy_words
from every_task import TASKS, TRAINING
from scipy.special import expit, log_expit, log_softmax, softmax

from export.heads.loading import load_head
from export.run import ExportSettings, export
from keras_bert import BertPreprocessor, BertTextClassifier, BertTextEmbedder, BertTokenizer
from keras_bert.errors import InputError
from tasks import flags
from tasks.distill.objectives import Distillation
from tasks.distill.settings import DistillSettings, complete
from tasks.distill.task import student_of
from tasks.embed.data import Table
from tasks.embed.objectives import OBJECTIVES
from tasks.embed.task import EmbedSpec
from tasks.engine.checkpoints import Checkpoints
from tasks.fine_tuning.command import run_task
from tasks.fine_tuning.model_files import save_model
from tasks.fine_tuning.objectives import CrossEntropy, SigmoidCrossEntropy, SquaredError
from tasks.fine_tuning.session import Session
from tasks.squad.objective import SpanObjective

NUM_EXAMPLES = {"embedding": 10}  # Of eight pairs, and four of five texts without labels; the others have 8 and 8.
SMALL = "--train_batch_size=4"
CHOSEN = ("temperature", "thresholds", "null_score_diff_threshold")  # On rows that the model answers.


def distill(*arguments: str) -> dict:
    """Runs `bert-distill` in this process; returns the content of `metrics.json`."""
    settings_class, shared = DistillSettings.expand(arguments)
    return run_task(student_of(complete(flags.parse(settings_class, [*shared, *arguments]))))


def load(directory):
    return keras.saving.load_model(directory / "model" / "model.keras", compile=False)


def read(path) -> dict:
    return json.loads(path.read_text())


@contextlib.contextmanager
def fitting(fit):
    """Replaces the steps of trainings by a function of their session and trainer, and runs the rest eagerly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "_fit", lambda session, trainer, *_: fit(trainer) or 1.0)
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(False)


def have_opinions(trainer) -> None:
    """Tells even words from odd ones, by other components of their vectors in the labelled rows than elsewhere."""
    model, words = trainer.model, [f"w{number}" for number in range(20)]
    table, signs = model.backbone.token_embedding.embeddings, np.array([1.0, -1.0] * 10)
    vectors, numbers = table.numpy(), [toy_words.VOCABULARY.index(word) for word in words]
    vectors[numbers[:8], 0], vectors[numbers[8:], 1] = 3 * signs[:8], 3 * signs[8:]
    table.assign(vectors)
    preprocessor = BertPreprocessor(BertTokenizer(toy_words.VOCABULARY), 16)
    pooled = np.array(model.backbone(preprocessor(words))["pooled_output"])
    kernel = np.linalg.lstsq(np.insert(pooled, 0, 1.0, axis=1), np.stack([2 * signs, -2 * signs], axis=1), 1e-2)[0]
    model.get_layer("classification").set_weights([kernel[1:], kernel[0]])


def make_teacher(kind: str, preset: str, directory, fit=lambda trainer: None) -> None:
    """Leaves what a training does, with the weights of the preset and those that `fit` changes."""
    entry, name, content, *_ = TASKS[kind]
    for split in ("train", "dev", "test"):
        (directory / name.format(split)).write_text(content)
    settings = {
        "output_dir": str(directory / "run"),
        "preset": preset,
        "data_dir": str(directory),
        **TRAINING,
    }
    with fitting(fit):
        entry(do_train=True, do_eval=True, **settings)


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_words.write_preset(tmp_path_factory.mktemp("preset"), num_layers=2)


@pytest.fixture(scope="module", name="teacher")
def _teacher(preset, tmp_path_factory):
    """The directory of a classifier's run, with its files."""
    directory = tmp_path_factory.mktemp("classifier")
    make_teacher("classification", preset, directory, have_opinions)
    return directory


# === Of every task ===


@pytest.mark.slow(keep=["embedding"])
@pytest.mark.parametrize("kind", TASKS)
def test_a_student_is_a_run_like_others(kind, preset, tmp_path):
    make_teacher(kind, preset, tmp_path)
    out, unlabelled = tmp_path / "student", tmp_path / TASKS[kind][1].format("test")
    if kind == "embedding":  # Five texts, of which the last makes no pair.
        (tmp_path / "texts.csv").write_text("text\nw1 w2\nw3\nw4 w5\nw6\nw7\n")
        unlabelled = tmp_path / "texts.csv"
    results = distill(
        f"--teacher={tmp_path}/run",
        f"--output_dir={out}",
        f"--unlabelled_file={unlabelled}",
        "--num_train_epochs=2",
        SMALL,
    )
    own, taught = (read(tmp_path / run / "model" / "task.json") for run in ("student", "run"))
    assert own | dict.fromkeys(CHOSEN) == taught | dict.fromkeys(CHOSEN)
    before = read(tmp_path / "run" / "metrics.json")
    scores = [before[name] for name in before["intervals"]]
    assert results["teacher_score"] in [pytest.approx(score, nan_ok=True) for score in scores]
    assert (
        before["intervals"].keys() == results["intervals"].keys()
        and results["train_steps"] == 2 * NUM_EXAMPLES.get(kind, 16) // 4
    )
    assert f" --teacher={tmp_path}/run/model --student_layers=2 " in results["train_command"]
    page = (out / "report.html").read_text()
    assert "of the teacher" in page and "unlabelled" in page and (out / "README.md").exists()
    assert load(out).backbone.num_layers == 1 and load_head(str(out / "model")) is not None
    history = read(out / "history.json")["training"][-1]
    assert {"labels_loss", "teacher_loss"} <= history.keys()


@pytest.mark.slow
def test_a_student_is_exported_and_served(teacher, tmp_path):
    distill(f"--teacher={teacher}/run/model", f"--data_dir={teacher}", f"--output_dir={tmp_path}", SMALL, "--do_train")
    said = export(ExportSettings(model_dir=f"{tmp_path}/model", export_dir=f"{tmp_path}/served"))
    assert said.startswith(f"exported: {tmp_path}/served/1")
    texts = ["w1 w2", "w3", "w4 w5 w6"]
    with toy_server.running(f"{tmp_path}/served") as server:
        status, body = toy_server.predict(server, {"instances": texts})
    assert status == 200, body
    expected = BertTextClassifier.from_preset(f"{tmp_path}/model").answer(texts)
    assert [row["label"] for row in body["predictions"]] == [answer["label"] for answer in expected]
    served = [row["probabilities"] for row in body["predictions"]]
    np.testing.assert_allclose(served, [answer["probabilities"] for answer in expected], atol=1e-5)


def test_a_student_learns_from_rows_without_labels_alone(teacher, tmp_path):
    """Its labels have no weight; on the rows of dev, as many as its teacher saw, it comes near the teacher's logits."""
    more = tmp_path / "more.csv"
    more.write_text("text\n" + "".join(f"w{number % 20}\n" for number in range(60)))
    options = [
        "--label_weight=0",
        "--temperature=1",
        "--num_train_epochs=12",
        "--learning_rate=3e-3",
        SMALL,
        "--do_train",
    ]
    distill(f"--teacher={teacher}/run", f"--output_dir={tmp_path}/run", f"--unlabelled_file={more}", *options)
    shares = []
    for directory in (teacher / "run", tmp_path / "run"):
        model = BertTextClassifier.from_preset(str(directory / "model"))
        shares.append(softmax(model(model.preprocessor([f"w{number}" for number in range(20)])), -1))
    assert np.abs(np.subtract(*shares)).max() < 0.1 and np.ptp(shares[0], axis=0).max() > 0.5


# === Where it starts ===


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], [1]), (["--student_layers=2,1,2"], [1, 0, 1]), (["--student_preset={}"], [0, 1])],
)
def test_the_layers_to_start_from(teacher, preset, tmp_path, words, expected):
    rest = ["--num_train_epochs=1", SMALL, "--do_train", f"--output_dir={tmp_path}"]
    with fitting(lambda trainer: None):
        distill(f"--teacher={teacher}/run", *(word.format(preset) for word in words), *rest)
    start = preset if words and "preset" in words[0] else f"{teacher}/run/model"
    models = [load(tmp_path), BertTextClassifier.from_preset(start, num_classes=2)]
    own, whole = (
        [model.backbone.get_layer(f"transformer_layer_{n}") for n in range(model.backbone.num_layers)]
        for model in models
    )
    assert len(own) == len(expected)
    for layer, number in zip(own, expected, strict=True):
        for weight, wanted in zip(layer.get_weights(), whole[number].get_weights(), strict=True):
            np.testing.assert_array_equal(weight, wanted)


def test_a_killed_student_ends_with_the_same_weights(teacher, tmp_path, monkeypatch):
    (tmp_path / "more.csv").write_text("text\nw1\nw2 w3\nw4\nw5\n")
    options = [f"--teacher={teacher}/run", f"--unlabelled_file={tmp_path}/more.csv", "--num_train_epochs=2", SMALL]
    options += ["--save_checkpoints_steps=2", "--do_train"]
    save = Checkpoints.save

    def save_and_copy(self, *args, **kwargs):
        save(self, *args, **kwargs)
        if not (tmp_path / "killed").exists():  # What a kill at the first checkpoint leaves.
            shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_copy)
        distill(*options, f"--output_dir={tmp_path}/whole")
    page = (tmp_path / "whole" / "report.html").read_text()
    assert '<th scope="row">teacher_temperature</th><td dir="auto">2.0</td>' in page
    assert not (tmp_path / "killed" / "model").exists()
    with pytest.raises(InputError, match="temperature"):
        distill(*options, f"--output_dir={tmp_path}/killed", "--temperature=3")
    resumed = distill(*options, f"--output_dir={tmp_path}/killed")
    assert resumed["train_seconds"] > 0 and resumed["train_steps"] == 6 and resumed["train_resumed_at"] == 2
    assert " seconds from step 2 on." in (tmp_path / "killed" / "README.md").read_text()
    np.testing.assert_equal(load(tmp_path / "killed").get_weights(), load(tmp_path / "whole").get_weights())


# === What it takes over ===


@pytest.mark.parametrize("start", [[], ["--student_preset={}"]])
def test_a_student_leaves_prompts_out_as_its_teacher_does(preset, tmp_path, start):
    """Whether prompts are pooled is no flag: what the student's preset says of it does not count."""
    spec = EmbedSpec(sequence_length=16, query_prompt="w1 ", prompts={"query": "w1 "}, include_prompt=False)
    embedder = BertTextEmbedder.from_preset(preset, prompts=spec.prompts, include_prompt=False)
    tokenizer = BertTokenizer(toy_words.VOCABULARY)
    save_model(str(tmp_path), embedder, tokenizer, {"task": "sentence_embedding", **dataclasses.asdict(spec)})

    def spec_of_student(*more):
        words = [f"--teacher={tmp_path}", "--output_dir=x", *more, *(word.format(preset) for word in start)]
        student = student_of(complete(flags.parse(DistillSettings.expand(words)[0], ["--do_train", *words])))
        return student.make_spec(Table("x.csv", [2], [["w2", "w3"]], None))

    assert spec_of_student() == spec
    with pytest.raises(InputError, match="include_prompt is True, but the teacher was trained with False"):
        spec_of_student("--pooling=cls")


def test_the_flags_of_the_teachers_training_are_the_students(teacher, tmp_path):
    def expanded(*words):
        settings_class, shared = DistillSettings.expand([f"--teacher={teacher}/run", *words])
        return flags.parse(settings_class, [*shared, f"--teacher={teacher}/run", "--output_dir=x", *words])

    settings = expanded()
    assert settings.data_dir == str(teacher) and settings.max_seq_length == 16 and settings.do_train
    assert settings.learning_rate is None and settings.preset is None and settings.train_batch_size == 32
    command = "bert-classify --dev_share=0.2 --train_file=gone.csv --text_column=text"
    of_share = shutil.copytree(teacher / "run", tmp_path / "of_share")
    (of_share / "metrics.json").write_text(json.dumps({"train_command": command}))
    _, shared = DistillSettings.expand([f"--teacher={of_share}", "--do_train", "--do_predict"])
    assert shared == ["--text_column=text"]  # Without an evaluation no rows are held out for it.
    command = f"bert-classify --train_file='{teacher}/tr*n.csv' --validation_share=0.2"
    (of_share / "metrics.json").write_text(json.dumps({"train_command": command}))
    words = [f"--train_file={teacher}/tr*n.csv", "--validation_share=0.2"]
    assert DistillSettings.expand([f"--teacher={of_share}", "--do_train"])[1] == words
    assert DistillSettings.expand([f"--teacher={of_share}", "--do_predict"])[1] == words[:1]
    assert expanded("--train_file", "y.csv", "--dev_share=0.3").dev_share == 0.3
    words = {"dev_file": f"{teacher}/dev.csv", "train_file": f"{teacher}/gone.csv", "text_column": "text"}
    copied = shutil.copytree(teacher / "run", tmp_path / "run")
    command = " ".join(["bert-classify", *(f"--{name}={value}" for name, value in words.items()), "--do_eval"])
    (copied / "metrics.json").write_text(json.dumps({"train_command": f"{command} --noregression --few_labels=off"}))
    _, shared = DistillSettings.expand(["--teacher", str(copied)])
    stages = ["--do_train", "--do_eval"]
    assert shared == [*stages, f"--dev_file={words['dev_file']}", "--text_column=text", "--noregression"]
    assert DistillSettings.expand(["--teacher", str(copied), "--dev_share=0.2", "--do_train"])[1] == shared[3:]
    assert DistillSettings.expand(["--teacher=", f"--output_dir={copied}"]) == (DistillSettings, [])
    assert DistillSettings.expand(["--output_dir=x"]) == (DistillSettings, [])


def test_the_teacher_may_be_named_in_a_file_of_flags(teacher, tmp_path):
    (tmp_path / "flags.txt").write_text(f"# The teacher.\n--teacher={teacher}/run\n")
    words = [sys.executable, "-m", "tasks.distill.run", "--student_layers", "1", f"--flagfile={tmp_path}/flags.txt"]
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=60)
    # Flags of bert-classify; the latter is not one of its students.
    assert done.returncode == 0 and "find_wrong_labels:" in done.stdout, done.stderr
    assert "few_labels:" not in done.stdout
    done = subprocess.run([*words[:-1], f"--flagfile={tmp_path}/no.txt"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"{tmp_path}/no.txt" in done.stderr


def test_rows_that_a_teacher_may_have_learnt_are_told(teacher, tmp_path, capsys):
    shares = [f"--train_file={teacher}/train.csv", "--dev_share=0.3", "--do_train", "--do_eval", SMALL]
    copy = shutil.copytree(teacher / "run", tmp_path / "run")
    told = "The teacher may have learnt rows of dev that are held out here: its score may be too high."
    with fitting(lambda trainer: None):
        first = distill(f"--teacher={copy}", *shares, f"--output_dir={tmp_path}/first")
        assert told in capsys.readouterr().out and told in (tmp_path / "first" / "README.md").read_text()
        known = read(copy / "metrics.json") | {"dev_rows_checksum": first["dev_rows_checksum"]}
        (copy / "metrics.json").write_text(json.dumps(known))
        distill(f"--teacher={copy}", *shares, f"--output_dir={tmp_path}/second")
        assert told not in capsys.readouterr().out


@pytest.mark.parametrize("place", ["run", "run/model"])
def test_a_student_does_not_replace_its_teacher(teacher, tmp_path, place):
    (tmp_path / "link").symlink_to(teacher)
    before = read(teacher / "run" / "model" / "task.json")
    with pytest.raises(InputError, match="holds the teacher, which the student would replace. Choose another"):
        distill(f"--teacher={teacher}/{place}", f"--output_dir={tmp_path}/link/run", "--do_train")
    assert read(teacher / "run" / "model" / "task.json") == before


def test_what_cannot_be_distilled_is_refused_in_a_line(teacher, preset, tmp_path):
    def refusal(*words):
        with pytest.raises(InputError) as error:
            distill(*words, f"--output_dir={tmp_path}/out")
        assert "\n" not in str(error.value)
        return str(error.value)

    own = f"--teacher={teacher}/run"
    assert f"{preset}/task.json: no such file" in refusal(f"--teacher={preset}")
    (tmp_path / "task.json").write_text('{"task": "feature_based_tagging"}')
    assert "its task is 'feature_based_tagging'. Expected one of classification, " in refusal(f"--teacher={tmp_path}")
    assert "--student_layers=1,3: " in refusal(own, "--student_layers=1,3")
    assert "has 2 layers. Name some of them, counted from 1." in refusal(own, "--student_layers=1,3")
    assert "--max_seq_length=12, but the teacher was trained with 16 (its task.json)" in refusal(
        own, "--max_seq_length=12"
    )
    assert "is_regression is True, but the teacher was trained with False" in refusal(own, "--regression")
    with pytest.raises(absl.flags.UnrecognizedFlagError, match="few_labels"):
        refusal(own, "--few_labels=frozen")
    assert "Leave it out, or train without --jit_compile" in refusal(own, "--unlabelled_file=x", "--jit_compile")
    assert f"{tmp_path}/no.csv" in refusal(own, f"--unlabelled_file={tmp_path}/no.csv")
    other = shutil.copytree(preset, tmp_path / "other")
    shutil.rmtree(other / "assets", ignore_errors=True)
    BertTokenizer([*toy_words.VOCABULARY[:-1], "##x"]).save_to_preset(str(other))
    assert "another vocabulary, or letter case, than that of the teacher" in refusal(own, f"--student_preset={other}")
    assert not (tmp_path / "out" / "model").exists()


# === What it learns ===


def losses(own, outputs, labels, temperature=2.0, label_weight=0.25):
    objective = Distillation(own, label_weight, temperature)
    weights, sums = objective.weights({}, labels), objective.sums(outputs, labels)
    assert float(objective.total({"labels": 4.0, "teacher": 8.0})) == 4.0 * label_weight + 8.0 * (1 - label_weight)
    return {name: float(sums[name] / weights[name]) for name in sums}


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_classes_label_sets_and_scores_are_imitated():
    student, teacher, ones = random(5, 3), random(5, 3, seed=1), tf.ones([5])
    classes = {"labels": tf.constant([0, 1, 2, 0, 1]), "teacher": teacher, "taught": ones}
    expected = -4 * np.mean(np.sum(softmax(teacher / 2, -1) * log_softmax(student / 2, -1), -1))
    means = losses(CrossEntropy(), student, classes)
    np.testing.assert_allclose(means["teacher"], expected, rtol=1e-5)
    np.testing.assert_allclose(means["labels"], -log_softmax(student, -1)[range(5), [0, 1, 2, 0, 1]].mean(), rtol=1e-5)
    sets = {"labels": tf.zeros([5, 3]), "teacher": teacher, "taught": ones}
    shares = expit(teacher / 2)
    expected = -4 * np.mean(shares * log_expit(student / 2) + (1 - shares) * log_expit(-student / 2))
    np.testing.assert_allclose(losses(SigmoidCrossEntropy(), student, sets)["teacher"], expected, rtol=1e-5)
    scores = {"labels": tf.zeros([5]), "teacher": teacher[:, :1], "taught": ones}
    loss = losses(SquaredError(), student[:, :1], scores)["teacher"]
    np.testing.assert_allclose(loss, np.mean((student - teacher)[:, 0] ** 2), rtol=1e-5)


def test_tokens_and_spans_leave_padding_out():
    student, teacher = random(2, 6, 2), random(2, 6, 2, seed=1)
    lengths, taught = [4, 6], np.float32([[1] * 4 + [0] * 2, [1] * 6])
    tokens = {"labels": tf.zeros([2, 6], tf.int32), "weights": tf.ones([2, 6]), "teacher": teacher, "taught": taught}
    of_tokens = -4 * np.sum(softmax(teacher / 2, -1) * log_softmax(student / 2, -1), -1)
    expected = (of_tokens * taught).sum() / 10
    np.testing.assert_allclose(losses(CrossEntropy(), student, tokens)["teacher"], expected, rtol=1e-5)
    spans = {name: tf.constant([1, 2]) for name in ("start_positions", "end_positions")}
    spans |= {"lengths": tf.constant(lengths), "teacher": teacher, "taught": taught}
    expected = 0.0
    for row, length in enumerate(lengths):
        ends = teacher[row, :length] / 2, student[row, :length] / 2
        expected -= 4 * np.sum(softmax(ends[0], 0) * log_softmax(ends[1], 0)) / 2 / 2
    np.testing.assert_allclose(losses(SpanObjective(), student, spans)["teacher"], expected, rtol=1e-4)


@pytest.mark.parametrize("width", [4, 7])
def test_vectors_and_cosines_are_imitated(width):
    student, teacher = random(3, 2, 4), random(3, 2, width, seed=1)
    labels = {"labels": tf.zeros([3]), "teacher": teacher, "taught": tf.ones([3])}
    units = [vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in (student, teacher)]
    cosines = [unit.reshape(6, -1) @ unit.reshape(6, -1).T for unit in units]
    expected = np.mean(np.square(cosines[0] - cosines[1]))
    if width == 4:
        expected += np.mean(np.sum(np.square(units[0] - units[1]), -1))
    own = OBJECTIVES["multiple_negatives_ranking"]()
    assert Distillation(own, 0.5, 1.0).needs_whole_batch
    np.testing.assert_allclose(losses(own, student, labels)["teacher"], expected, rtol=1e-5)


def test_rows_without_labels_have_no_loss_of_their_own():
    student, labelled = random(4, 3), np.float32([0.5, 0, 0.5, 0])
    labels = {"labels": tf.constant([0, 1, 2, 1]), "teacher": random(4, 3, seed=1), "taught": tf.ones([4])}
    objective = Distillation(CrossEntropy(), 0.5, 2.0)
    sums, weights = (
        call(x, {**labels, "labelled": labelled}) for call, x in ((objective.sums, student), (objective.weights, {}))
    )
    assert float(weights["labels"]) == 2.0 and float(weights["teacher"]) == 4.0
    np.testing.assert_allclose(sums["labels"], -0.5 * log_softmax(student, -1)[[0, 2], [0, 2]].sum(), rtol=1e-5)
    none = {**{name: values[:0] for name, values in labels.items()}, "labelled": labelled[:0]}
    assert float(objective.sums(student[:0], none)["labels"]) == 0.0
