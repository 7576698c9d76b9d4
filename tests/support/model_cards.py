"""What every model card must be: readable by huggingface_hub, with the figures of metrics.json."""

import json
import pathlib
import re

import huggingface_hub


def check_card(directory, **facts) -> huggingface_hub.ModelCard:
    """Checks the card of a training's directory; `facts` are strings that it must hold. Returns it."""
    directory = pathlib.Path(directory)
    card = huggingface_hub.ModelCard.load(directory / "README.md")
    metrics = json.loads((directory / "metrics.json").read_text())
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results or ()}
    assert scores == {name: metrics[name] for name in scores} and scores
    shown = dict(re.findall(r"^\| (\S+) \| (\S+) \|", card.text.split("## Scores")[1].split("## ")[0], re.MULTILINE))
    assert {name: shown[name] for name in scores} == {name: f"{value:.4g}" for name, value in scores.items()}
    assert card.data.library_name == "keras" and card.data.pipeline_tag
    wanted = ["Parameters: ", "CRC-32 ", "Hardware: ", "tensorflow 2.20", "Longest sequence: ", *facts.values()]
    assert [text for text in wanted if text not in card.text] == []
    return card
