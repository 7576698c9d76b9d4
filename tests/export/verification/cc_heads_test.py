"""Whole exports, each verified by the C++ program as well: every signature, hostile texts, an empty batch, `env -i`."""

import os
import shutil

import pytest

from export import saved_model
from export.verification import cc_check, verify

pytestmark = pytest.mark.skipif(cc_check.find_compiler() is None, reason="g++ on Linux is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classification", "token_classification", "question_answering"])
def test_the_cc_program_gives_the_keras_models_answers(saved, name):
    directory, probes = saved(name).directory, saved(name).probes
    assert {len(next(iter(probe.inputs.values()))) for probe in probes} >= {0, 1}
    report = verify.verify(directory, probes, verify.stored_weight_bytes(directory), with_cc="on")
    assert report.cc_difference <= 1e-5
    assert report.cc_not_run == ""
    assert report.num_probes >= 6


def test_a_wrong_answer_there_publishes_nothing(saved, tmp_path, monkeypatch):
    """The program is run by cc_check_test.py."""
    head, graph = saved("classification").head, saved("classification").directory

    def copied(_head, _model, directory):
        shutil.copytree(graph, directory, dirs_exist_ok=True)
        return verify.stored_weight_bytes(graph)

    def no_score(_program, _directory, probes):
        answers = [dict(probe.outputs) for probe in probes]
        del answers[0]["score"]
        return answers

    monkeypatch.setattr(saved_model, "write_graph", copied)
    monkeypatch.setattr(verify, "cc_answers", no_score)
    monkeypatch.setattr(verify, "fresh_answers", lambda _, probes: [probe.outputs for probe in probes])
    with pytest.raises(verify.VerificationError, match="nothing was published: C.. program, probe 0 .* gives"):
        saved_model.export_head(head, str(tmp_path / "base"), with_cc="on")
    assert os.listdir(tmp_path / "base") == []
