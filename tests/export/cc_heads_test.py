"""Whole exports, each verified by the C++ program as well: every signature, hostile texts, an empty batch, `env -i`."""

import os

import pytest
from toy_saved import ALL_HEADS

from export import cc_check, saved_model, verify

pytestmark = pytest.mark.skipif(cc_check.find_compiler() is None, reason="needs Linux and g++")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classification", "token_classification", "question_answering"])
def test_the_cc_program_gives_the_keras_models_answers(saved, name):
    directory, probes = saved(name).directory, saved(name).probes
    assert {len(next(iter(probe.inputs.values()))) for probe in probes} >= {0, 1}
    report = verify.verify(directory, probes, verify.stored_weight_bytes(directory), with_cc="on")
    assert report.cc_difference <= 1e-5
    assert report.cc_not_run == ""
    assert report.num_probes >= 6


def test_a_wrong_answer_there_publishes_nothing(tmp_path, monkeypatch):
    head = ALL_HEADS["classification"]()
    ask = verify.cc_answers

    def no_score(*args):
        return [{name: value for name, value in answer.items() if name != "score"} for answer in ask(*args)]

    monkeypatch.setattr(verify, "cc_answers", no_score)
    monkeypatch.setattr(verify, "fresh_answers", lambda _, probes: [probe.outputs for probe in probes])
    with pytest.raises(verify.VerificationError, match="nothing was published: C.. program, probe 0 .* gives"):
        saved_model.export_head(head, str(tmp_path / "base"), with_cc="on")
    assert os.listdir(tmp_path / "base") == []
