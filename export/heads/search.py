"""Search: an embedder with the passages that it searches; returns the passages nearest to a question.

Shapes: B batch, P passages, D embedding, K answers.
"""

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from export import signatures
from export.graph.model_copies import rebuild, rebuild_for_serving
from export.heads.base import About, Answer
from export.heads.embeddings import SentenceEmbedding
from export.verification import probes
from export.verification.verify import TOLERANCE
from keras_bert.answers import text_bounds
from keras_bert.answers.nearest import find_nearest
from keras_bert.answers.pieces import outputs_in_pieces
from keras_bert.answers.rules import TIE, search_prompts, unit
from keras_bert.answers.ties import settle_ties
from keras_bert.errors import InputError
from keras_bert.files import read_lines
from keras_bert.models import BertTextEmbedder
from keras_bert.tokenization.preprocessor import BertPreprocessor
from tasks.fine_tuning.model_files import load_reranker

QUERY, EMBED = "query", "embed"
_BATCH = 32
_SAMPLE = 1000  # Number of passages that serve as questions to measure what int8 loses.


class Search(SentenceEmbedding):
    """An embedder and its passages, ranked by cosine with exact search. Questions and passages get their prompts.

    Args:
        model: BertTextEmbedder.
        preprocessor: gives the tokenizer and the longest sequence.
        passages: path of a UTF-8 text file with a passage per line.
        top_k: number of passages in an answer.
        passages_dtype: "float32", or "int8": a quarter of the memory, with a scale for each vector.
        reranker_dir: model of `bert-classify` on pairs that orders the passages found; None: they keep their order.
        **settings: `long_text` and `max_tokens` of `SequenceAnswers`.

    Attributes:
        recall: share of the passages found with float32 vectors that int8 finds too; 1.0 for float32.

    Raises:
        InputError: `passages` is missing, or the file is empty or has an empty line.
    """

    task = "search"
    settings = ("passages", "top_k", "passages_dtype", "reranker_dir", "max_tokens")

    def __init__(
        self,
        model: BertTextEmbedder,
        preprocessor: BertPreprocessor,
        passages: str | None = None,
        top_k: int = 10,
        passages_dtype: str = "float32",
        reranker_dir: str | None = None,
        **settings,
    ):
        of_query, of_passage = search_prompts(model.prompts or {})
        super().__init__(model, preprocessor, of_query, **settings)
        self._passage_head = self.with_prompt(of_passage)
        if passages is None:
            raise InputError("--task=search: name the text to search by --passages, a passage per line.")
        self._texts = _read_passages(passages)
        self.top_k = min(top_k, len(self._texts))
        self._reranker = None
        if reranker_dir:
            scorer, tokenizer, trained = load_reranker(reranker_dir)
            self._reranker, self._served_reranker = rebuild(scorer), rebuild_for_serving(scorer)
            self._pair = BertPreprocessor(tokenizer, trained["sequence_length"], pad_to_longest=True)
            self.more_models = (self._served_reranker,)
        vectors = stored = self._embed(self._texts)  # After all checks, since it may take hours.
        scales = np.ones(len(vectors), np.float32)
        if passages_dtype == "int8":
            scales = (np.maximum(np.abs(vectors).max(axis=1), 1e-12) / 127).astype(np.float32)
            stored = np.round(vectors / scales[:, np.newaxis]).astype(np.int8)
        self._vectors = tf.Variable(stored, trainable=False, name="passage_vectors")  # [P, D]
        self._vector_scales = tf.Variable(scales, trainable=False, name="passage_scales")  # [P]
        self.recall = 1.0 if passages_dtype == "float32" else self._measure_recall(vectors)
        self._passages = tf.Variable([text.encode() for text in self._texts], trainable=False, name="passages")
        self.variables = (self._vectors, self._vector_scales, self._passages)

    def _embed(self, texts: list[str]) -> np.ndarray:
        """Returns the passages' vectors, of length 1: float32, shape (P, D)."""
        run = signatures.trace(self._passage_head.answering(self.model), self.text_inputs, tf.string)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))  # Batches of about equal lengths.
        vectors = np.empty((len(texts), self.model.output_shape[-1]), np.float32)
        with tqdm(total=len(texts), desc="embed passages", unit="passage", mininterval=0.5) as progress:
            for start in range(0, len(texts), _BATCH):
                numbers = order[start : start + _BATCH]
                vectors[numbers] = run(text=tf.constant([texts[number] for number in numbers]))["embedding"]
                progress.update(len(numbers))
        return unit(vectors)

    def vectors(self) -> np.ndarray:
        """Returns the passages' vectors as they are stored, to within rounding: float32, shape (P, D)."""
        return self._vectors.numpy().astype(np.float32) * self._vector_scales.numpy()[:, np.newaxis]

    def _measure_recall(self, vectors: np.ndarray) -> float:
        questions, ones = tf.constant(vectors[:: -(-len(vectors) // _SAMPLE)]), tf.ones(len(vectors))
        stored = (tf.constant(vectors), ones), (self._vectors, self._vector_scales)
        both = [find_nearest(questions, *corpus, self.top_k)[1].numpy() for corpus in stored]
        return float(np.mean([len(np.intersect1d(*row)) / self.top_k for row in zip(*both, strict=True)]))

    # === Graph ===

    def functions(self, model):
        traced = super().functions(model)
        traced[EMBED] = signatures.trace(self.answering(model), self.text_inputs, tf.string)
        return {**traced, QUERY: traced[signatures.SERVING_DEFAULT]}

    def heads_of_prompts(self):
        return {}

    def encoding(self):
        return None

    def answer_texts(self, model, texts):
        nearest = self.find(self.answering(model)(**texts)["embedding"])
        if self._reranker is None:
            return nearest
        question = text_bounds.bound_texts(texts["text"], self._pair.tokenizer, self._pair.sequence_length)
        scores = self._score_pairs(self._served_reranker, question, nearest["passages"])
        best = tf.math.top_k(scores, self.top_k)
        order = tf.gather(best.indices, settle_ties(best.values, best.indices, TIE), batch_dims=1)
        return {name: tf.gather(col, order, batch_dims=1) for name, col in {**nearest, "scores": scores}.items()}

    def _score_pairs(self, model, questions, passages):
        """Returns the reranker's scores: string (B,) and (B, K) to float32 (B, K)."""
        encoded = self._pair((tf.repeat(questions, self.top_k), tf.reshape(passages, [-1])))
        outputs = outputs_in_pieces(model, encoded)
        scores = outputs[:, -1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]
        return tf.reshape(scores, [-1, self.top_k])

    def find(self, embeddings: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the graph from the embeddings of questions, float32 (B, D), to the passages nearest to them."""
        questions = tf.math.l2_normalize(embeddings, -1)
        scores, indices = find_nearest(questions, self._vectors, self._vector_scales, self.top_k)
        return {"passages": tf.gather(self._passages, indices), "scores": scores, "indices": indices}

    # === Right answers ===

    def requests(self, texts, encoded):
        asked = super().requests(texts, encoded)
        return {**asked, QUERY: dict(texts), EMBED: dict(texts)}

    def expected(self, model, texts, encoded):
        right = super().expected(model, texts, encoded)
        by_text = right[signatures.SERVING_DEFAULT]
        nearest = self._nearest(by_text[0]["embedding"])
        if self._reranker is not None:
            nearest = self._reranked(texts["text"], *nearest)
        return {**right, signatures.SERVING_DEFAULT: nearest, QUERY: nearest, EMBED: by_text}

    def _nearest(self, embeddings: np.ndarray) -> Answer:
        """Computes in NumPy, for all passages at once, what `find` computes in the graph."""
        scores = unit(embeddings) @ self.vectors().T
        indices = np.argsort(-scores, axis=1, kind="stable")[:, : self.top_k].astype(np.int32)
        passages = probes.as_bytes(self._texts)[indices]
        answer = {"passages": passages, "scores": np.take_along_axis(scores, indices, 1), "indices": indices}
        return answer, probes.undecided(scores, self.top_k)

    def _reranked(self, questions, nearest, undecided):
        columns = [questions, nearest["passages"]]
        scores = probes.on_cpu(lambda both: self._score_pairs(self._reranker, *both), columns)
        order = np.argsort(-scores, axis=1, kind="stable")
        best = np.take_along_axis(scores, order, 1)
        settled = probes.on_cpu(lambda both: settle_ties(*both, TIE), [best, order])
        order = np.take_along_axis(order, settled, 1)
        ordered = {name: np.take_along_axis(col, order, 1) for name, col in {**nearest, "scores": scores}.items()}
        is_near = np.abs(best[:, :-1] - best[:, 1:] - TIE) <= 2 * TOLERANCE
        return ordered, undecided | is_near.any(axis=1)

    # === Description ===

    def about(self):
        is_int8 = self._vectors.dtype == tf.int8
        kind = f" Their vectors are int8, which finds {self.recall:.1%} of what float32 finds." if is_int8 else ""
        order = "" if self._reranker is None else ", and orders them by a model that reads both"
        return About(
            "Search",
            f"Finds the {self.top_k} of {len(self._texts):,} passages that are nearest to a text{order}.{kind}",
            self.instances(self._texts[0]),
            self.inputs,
            {
                "passages": f"string ({self.top_k}): the passages, the nearest first",
                "scores": f"float ({self.top_k}): {'their cosines' if self._reranker is None else 'of the re-ranker'}",
                "indices": f"int32 ({self.top_k}): the number of each passage's line, from 0",
            },
            token_outputs=super().about().outputs,
            more={"num_passages": len(self._texts), "recall": self.recall},
        )

    def described(self, about):
        described = super().described(about)
        described[QUERY] = described[signatures.SERVING_DEFAULT]
        described[EMBED] = (about.inputs, about.token_outputs, {})
        return described


def _read_passages(path: str) -> list[str]:
    texts = []
    for number, text in read_lines(path):
        if not text.strip():
            raise InputError(f"{path}:{number}: an empty line. Expected a passage in each.")
        texts.append(text)
    if not texts:
        raise InputError(f"{path}: the file is empty. Expected a passage per line.")
    return texts
