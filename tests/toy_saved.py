"""A head of each task, and its graph on disk without the verification of an export."""

from toy_classifier import assets
from toy_heads import HEADS, backbone, shaken

from export import saved_model
from export.heads.base import Head
from export.heads.question_answering import QuestionAnswering
from export.heads.token_classification import TokenClassification
from tasks.ner.model import build_tagger
from tasks.squad.model import build_question_answerer

TAGS = ["O", "B-PER", "I-PER"]
ALL_HEADS = {
    **HEADS,
    "token_classification": lambda: TokenClassification(shaken(build_tagger(backbone(), len(TAGS))), assets(), TAGS),
    "question_answering": lambda: QuestionAnswering(
        shaken(build_question_answerer(backbone())), assets(), max_query_length=8, doc_stride=8
    ),
}


def save_graph(head: Head, directory: str) -> str:
    """Writes the graph alone, as `export_head` does before it verifies; returns the directory."""
    saved_model.write_graph(head, saved_model.rebuild_for_serving(head.model), directory)
    return directory
