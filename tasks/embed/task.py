"""Embeddings of texts, trained on pairs or scores (Reimers and Gurevych, arXiv:1908.10084).

Shapes: N rows of a table, K texts of a row, D embedding.
"""

import dataclasses
import os

import numpy as np

import keras_bert
from keras_bert.answers.rules import LONG_TEXTS, PASSAGE_PROMPTS, POOLED, QUERY_PROMPT, search_prompts, unit
from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from keras_bert.presets.weights import read_settings
from tasks.embed import data, retrieval
from tasks.fine_tuning import metrics, task
from tasks.fine_tuning.data_check import Content
from tasks.fine_tuning.encoding import encode_texts, lengths_before_cutting
from tasks.fine_tuning.examples import Predictor
from tasks.fine_tuning.model_files import load_reranker, read_reranker
from tasks.fine_tuning.settings import LongTextSettings
from tasks.report.page import Score
from tasks.settings import changeable, replaced, setting
from tasks.text.rows import EXTENSIONS

LOSSES = ("multiple_negatives_ranking", "cosine_similarity", "cosent", "triplet")
_OF_SCORES = ("cosine_similarity", "cosent")
_CORRELATIONS = {"spearman": metrics.spearman, "pearson": metrics.pearson}


class EmbedSettings(LongTextSettings):
    """Settings of `bert-embed`."""

    text_columns: list[str] | None = changeable(
        None, "Columns of the texts: a text, its match, texts that do not match; default: all but the score."
    )
    score_column: str | None = changeable(None, "Column of the similarity; default: score or label, if there is one.")
    loss: str | None = setting(
        None, "Loss to minimize; default: cosent for rows with scores, else multiple_negatives_ranking.", choices=LOSSES
    )
    pooling: str | None = setting(
        None,
        "How to pool the tokens of a text: mean, cls ([CLS]) or max; default: the preset's, else mean.",
        choices=("mean", "cls", "max"),
        subject="model",
    )
    embedding_dim: int | None = setting(
        None, "Size of an embedding, by a linear layer; default: the encoder's width.", at_least=1
    )
    query_prompt: str | None = changeable(
        None,
        "Prompt to put before the first text of each row; default: that of the model's training, or else the preset's "
        "prompt for queries, or its default prompt for rows with scores.",
    )
    passage_prompt: str | None = changeable(None, "Prompt before the other texts of each row; default: likewise.")
    matryoshka_dims: list[int] = setting(
        [], "Numbers of leading components to train as embeddings, too, such as 128,32.", at_least=1
    )
    num_negatives: int = setting(
        0,
        "Hard negatives to add to each training row: the passages of other rows that the starting model finds nearest "
        "to its first text.",
        at_least=0,
    )
    relative_margin: float | None = setting(
        None, "Use only negatives whose cosine is below the match's by this share of it, such as 0.05.", at_least=0.0
    )
    reranker_dir: str | None = changeable(
        None,
        "Evaluation: a model of bert-classify on pairs that re-orders the first passages found. It has scores, or two "
        "labels, the second of which means a match.",
    )
    rerank_top_k: int = changeable(100, "Passages per question that --reranker_dir re-orders.", at_least=1)
    learning_rate: float | list[float] = replaced(LongTextSettings, "learning_rate", 5e-5, help="Peak learning rate.")

    def __post_init__(self):
        super().__post_init__()
        if self.embedding_dim is not None:
            self.check_dims(self.embedding_dim)
        if self.changed("rerank_top_k") and not self.reranker_dir:
            raise InputError(f"--rerank_top_k={self.rerank_top_k} is for --reranker_dir. Give both, or leave it out.")
        if self.relative_margin is not None and not self.num_negatives:
            raise InputError(
                f"--relative_margin={self.relative_margin:g} is for --num_negatives. Give both, or leave it out."
            )

    def check_dims(self, size: int) -> None:
        """Checks `matryoshka_dims` against the size of an embedding.

        Raises:
            InputError: one is larger.
        """
        for dim in self.matryoshka_dims:
            if dim > size:
                raise InputError(
                    f"--matryoshka_dims={dim}: the embeddings of this model have {size} components. Give no more."
                )


class EmbedSpec(task.Spec):
    """Spec of a trained embedder.

    Attributes:
        score_scale: divisor of the scores, so that they lie in [-1, 1] like cosines. None: the model was not trained on
            scores, and each file has a scale of its own.
        long_text: one of `LONG_TEXTS`.
        query_prompt, passage_prompt: prompts before the first text of a row, and before the others.
        prompts: all prompts of the model, by name.
        include_prompt: whether the tokens of prompts are pooled.
    """

    score_scale: float | None = None
    long_text: str = LONG_TEXTS[0]
    query_prompt: str = ""
    passage_prompt: str = ""
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    include_prompt: bool = True

    def scale_of(self, table: data.Table) -> float:
        """Returns the divisor of a table's scores."""
        return self.score_scale or max(1.0, *map(abs, table.scores))


class Embed(task.Task):
    """Embeddings of pairs, triplets, scored pairs, or raw text."""

    Settings = EmbedSettings
    Spec = EmbedSpec
    name = "sentence_embedding"
    command = "bert-embed"

    # === Data ===

    def read(self, split, bad_rows):
        settings = self.settings
        extensions = (*EXTENSIONS, ".txt") if split == "train" else EXTENSIONS
        path = settings.find_file(split, (split,), extensions)
        if split == "train" and path.lower().endswith(".txt"):
            return [task.Part(split, data.read_sentences(path))]
        table = data.read_table(path, settings.text_columns, settings.score_column, bad_rows)
        if split == "dev":
            self._check_evaluated(table)
        return [task.Part(split, table)]

    def groups(self, rows):
        self._check_evaluated(rows)  # Rows that are held out are to be evaluated.
        return [texts[0] for texts in rows.texts]

    def _check_evaluated(self, table):
        if table.num_texts < 2:
            raise InputError(
                f"{table.path}: a row has one text. Expected a text and its match, to evaluate by. "
                "To train without an evaluation, give --do_train alone."
            )
        if directory := self.settings.reranker_dir:
            read_reranker(directory)
            if table.scores is not None:
                raise InputError(
                    f"{table.path}: has scores, so that --reranker_dir has nothing to order. Leave it out."
                )

    def content(self, rows):
        return Content(list(map(tuple, rows.texts)), rows.scores, lambda row: f"{rows.path}:{rows.lines[row]}")

    def metric_of(self, part):
        return "ndcg@10" if part.rows.scores is None else "spearman"

    def make_spec(self, train):
        loss, has_scores = self.settings.loss, train.scores is not None
        if loss in _OF_SCORES and not has_scores:
            raise InputError(f"{train.path}: --loss={loss} needs a score in each row. Name its column: --score_column.")
        if loss == "triplet" and train.num_texts != 3:
            raise InputError(
                f"{train.path}: --loss=triplet needs a text, its match and one that does not match in each row, found "
                f"{train.num_texts} texts."
            )
        if self.settings.num_negatives and (has_scores or train.num_texts < 2 or loss == "triplet"):
            raise InputError(
                f"{train.path}: --num_negatives adds to rows of a text and its match, for multiple_negatives_ranking. "
                "Leave it out."
            )
        start = None if self.settings.bert_config_file else self.settings.start
        spec = self._new_spec(start, has_scores)
        return dataclasses.replace(spec, score_scale=spec.scale_of(train)) if has_scores else spec

    def foreign_spec(self, source, labels, num_outputs, parts):
        return self._new_spec(source, parts[0].rows.scores is not None)

    def _new_spec(self, preset, has_scores):
        """Returns the spec of a model that starts from a preset, with the prompts of the flags or of the preset."""
        task = read_settings(preset).get("task", {}) if preset else {}
        prompts = task.get("prompts") or {}
        names = search_prompts(prompts)
        query, passage = (prompts.get(name, "") for name in ([task.get("default_prompt")] * 2 if has_scores else names))
        flags = (self.settings.query_prompt, self.settings.passage_prompt)
        passages = [name for name in PASSAGE_PROMPTS if name in prompts] or ["passage"]
        named = [(names[0] or QUERY_PROMPT, flags[0]), *((name, flags[1]) for name in passages)]
        spec = EmbedSpec(
            sequence_length=self.settings.max_seq_length,
            query_prompt=query,
            passage_prompt=passage,
            prompts={**prompts, **{name: text for name, text in named if text is not None}},
            include_prompt=task.get("include_prompt", True) or self.settings.pooling == "cls",
        )
        return self.adjust_spec(spec)

    def adjust_spec(self, spec):
        given = {name: getattr(self.settings, name) for name in ("query_prompt", "passage_prompt", "long_text")}
        spec = dataclasses.replace(spec, **{name: value for name, value in given.items() if value is not None})
        if spec.long_text in POOLED and not spec.include_prompt and (spec.query_prompt or spec.passage_prompt):
            raise InputError(
                f"--long_text={spec.long_text}: the pooling of this model leaves prompts out, which windows lack. Give "
                "--long_text=truncate."
            )
        return spec

    def encode(self, part, trained):
        """Makes K sequences `[CLS] text [SEP]` of each row. In training, a single text per row is encoded twice."""
        settings, table, encoded = self.settings, part.rows, self._encode_table(part, trained)
        # With a trained model, only the lengths are wanted, as for the report after a search. No negatives are mined.
        if part.split != "train" or not settings.num_negatives or trained.model is not None:
            return encoded
        from tasks.fine_tuning.start import find_start

        with find_start(settings) as origin:
            model = self.build_training_model(origin, trained)
        vectors = encoded.compute_outputs(Predictor(model), settings.eval_batch_size, "mine negatives")
        mined = retrieval.mine(table.texts, unit(vectors), settings.num_negatives, settings.relative_margin)
        is_full = np.array([len(row) == table.num_texts + settings.num_negatives for row in mined])
        if not is_full.all():
            told = (
                f"have fewer than {settings.num_negatives} negatives by --relative_margin={settings.relative_margin:g}"
            )
            told = f"{table.path}: {np.sum(~is_full)} of {len(mined)} rows {told}"
            if not is_full.any():
                raise InputError(f"{told}. Lower --num_negatives or --relative_margin.")
            print(f"{told}, and are left out.")
        return self._encode_table(part.with_rows(self.take_rows(table._replace(texts=mined), is_full)), trained)

    def _encode_table(self, part, trained):
        table, tokenizer, limit = part.rows, trained.tokenizer, trained.spec.sequence_length
        rows, prompts = table.texts, [trained.spec.query_prompt, *[trained.spec.passage_prompt] * (table.num_texts - 1)]
        if part.split == "train" and table.num_texts == 1:
            rows, prompts = [row * 2 for row in rows], prompts * 2
        texts = [prompt + text for row in rows for prompt, text in zip(prompts, row, strict=True)]
        title, long_text = f"tokenize {part.title}", trained.spec.long_text
        examples = encode_texts(texts, None, tokenizer, limit, title, len(prompts), long_text)
        scores = np.zeros(len(table.lines), np.float32)
        if table.scores is not None:
            scores = (np.array(table.scores) / trained.spec.scale_of(table)).astype(np.float32)
        examples = examples._replace(labels={"labels": scores})
        if not trained.spec.include_prompt:
            examples = mark_prompts(examples, prompts, tokenizer)
        return task.Encoded(examples, lengths_before_cutting(examples, texts, None, tokenizer, limit))

    # === Model ===

    def model_class(self):
        return keras_bert.BertTextEmbedder

    def model_arguments(self, spec):
        given = {"pooling": self.settings.pooling, "embedding_dim": self.settings.embedding_dim}
        given |= {"prompts": spec.prompts or None, "include_prompt": spec.include_prompt}
        return {name: value for name, value in given.items() if value is not None}

    def build_training_model(self, origin, trained):
        model = super().build_training_model(origin, trained)
        self.settings.check_dims(model.output_shape[-1])
        return model

    def to_answer(self, model, spec):
        from tasks.embed.model import embed_groups

        return model if spec.long_text in POOLED else embed_groups(model)

    def model_to_save(self, trained):
        return trained.model if trained.spec.long_text in POOLED else trained.model.get_layer("text_embedder")

    def objective(self, spec):
        from tasks.embed.objectives import OBJECTIVES

        default = "multiple_negatives_ranking" if spec.score_scale is None else "cosent"
        return OBJECTIVES[self.settings.loss or default](self.settings.matryoshka_dims)

    # === Answers ===

    def evaluate(self, answers, results):
        return self._of_scores(answers) if answers.part.rows.scores is not None else self._of_search(answers)

    def checkpoint_figures(self, answers):
        if answers.part.rows.scores is not None:
            columns = answers.labels, cosines(answers.outputs)
            figures = {name: of(*columns) for name, of in _CORRELATIONS.items()}
            return {**figures, "loss": metrics.mean_squared_error(*columns)}
        ranking = retrieval.rank(answers.part.rows.texts, unit(answers.outputs))
        figures = {name: float(values.mean()) for name, values in ranking.figures.items()}
        return {**figures, "loss": float(ranking.losses.mean())}

    def _of_scores(self, answers):
        table, similarities = answers.part.rows, cosines(answers.outputs)
        scale = answers.trained.spec.scale_of(table)
        figures = self.checkpoint_figures(answers)
        ends = metrics.intervals(_CORRELATIONS, answers.labels, similarities)
        losses = np.square(answers.labels - similarities)

        def show(row: int) -> list[tuple[str, str]]:
            first, second = table.texts[row]
            texts = [("line", str(table.lines[row])), ("first text", first), ("second text", second)]
            return [*texts, ("score", f"{table.scores[row]:g}"), ("cosine", f"{similarities[row]:.3f}")]

        return task.Evaluation(
            figures,
            ends,
            {"rows": len(table.lines)},
            scores=metrics.headline_scores(figures, ends),
            predictions=(np.array(table.scores), similarities * scale),
            **metrics.shown_rows(losses, losses > 0, show),
        )

    def _of_search(self, answers):
        table, settings = answers.part.rows, self.settings
        ranking = retrieval.rank(table.texts, unit(answers.outputs))
        columns, count = dict(ranking.figures), len(ranking.passages)
        notes = [f"Each of {len(ranking.questions)} questions ranks all {count} passages by cosine."]
        if settings.reranker_dir:
            scorer, number = load_scorer(settings.reranker_dir, settings.eval_batch_size), settings.rerank_top_k
            ranking = retrieval.rank(table.texts, unit(answers.outputs), scorer, number)
            columns |= {f"reranked_{name}": values for name, values in ranking.figures.items()}
            notes.append(f"reranked: the first {number} passages in the order of {settings.reranker_dir}.")
        ends = {name: metrics.intervals({name: np.mean}, values)[name] for name, values in columns.items()}
        figures = {name: float(values.mean()) for name, values in columns.items()}
        loss = float(ranking.losses.mean())

        def show(number: int) -> list[tuple[str, str]]:
            row = ranking.questions[number]
            first_row, column = ranking.passages[ranking.best[number][0]]
            texts = [("line", str(table.lines[row])), ("question", table.texts[row][0]), ("match", table.texts[row][1])]
            return [*texts, ("its rank", str(ranking.ranks[number])), ("found first", table.texts[first_row][column])]

        return task.Evaluation(
            {**figures, "loss": loss},
            ends,
            {"rows": len(table.lines), "questions": len(ranking.questions), "passages": count},
            scores=[*metrics.headline_scores(figures, ends), Score("loss", loss, percent=False)],
            # A question is a mistake if its match is not the first passage found.
            **metrics.shown_rows(ranking.losses, ranking.ranks > 1, show),
            notes=notes,
        )

    def write_predictions(self, answers, output_dir):
        """Writes the vectors to `predictions.npy`: float32, shape (N, K, D)."""
        path = os.path.join(output_dir, "predictions.npy")
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.save(file, answers.outputs)
        return [path], {"test_rows": len(answers.outputs)}


def mark_prompts(examples, prompts: list[str], tokenizer):
    """Adds 2 to the `segment_ids` of prompts and their [CLS], so that `embed_groups` leaves them out of the pooling."""
    num_tokens = np.asarray(tokenizer.tokenize(prompts).row_lengths())
    counts = np.where([bool(prompt) for prompt in prompts], num_tokens + 1, 0)
    lengths = np.diff(examples.row_splits)
    places = np.arange(len(examples.token_ids)) - np.repeat(examples.row_splits[:-1], lengths)
    counts = np.minimum(np.resize(counts, len(lengths)), lengths - 1)
    is_prompt = places < np.repeat(counts, lengths)
    return examples._replace(segment_ids=examples.segment_ids + 2 * is_prompt.astype(examples.segment_ids.dtype))


def load_scorer(directory: str, batch_size: int) -> retrieval.Scorer:
    """Loads a cross-encoder, which reads both texts of a pair at once; see `load_reranker`."""
    model, tokenizer, trained = load_reranker(directory)

    def score(pairs):
        examples = encode_texts(*zip(*pairs, strict=True), tokenizer, trained["sequence_length"], "tokenize pairs")
        outputs = Predictor(model).compute_outputs(examples, batch_size, "re-rank")
        return outputs[:, -1] - (outputs[:, 0] if outputs.shape[1] == 2 else 0.0)

    return score


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Returns the cosine of each row's first two texts: (N, K, D) to float64 (N,)."""
    vectors = unit(vectors.astype(np.float64))
    return np.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
