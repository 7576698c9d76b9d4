"""Every pair of options of the fine-tuning commands, as users type them: it trains and scores, or is refused in a line.

`make test` runs two commands, which have all options that commands share, and so few rows that each value stands in one
of them; `make test-all` runs every pair of every command.
"""

import json
import math
import sys

import fuzzing
import option_pairs
import processes
import pytest
import toy_words
from light_commands import Call, run_calls

STRENGTH = 2 if fuzzing.FULL else 1


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_words.write_preset(tmp_path_factory.mktemp("preset"))


@pytest.mark.slow(keep=["bert-classify", "bert-embed"])
@pytest.mark.parametrize("command", option_pairs.COMMANDS)
def test_options_in_pairs(command, preset, tmp_path):
    (tmp_path / "preset").symlink_to(preset)
    option_pairs.write_files(command, tmp_path)
    script = [sys.executable, option_pairs.__file__, command, str(STRENGTH), str(tmp_path)]
    done = processes.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(option_pairs.runs(command, STRENGTH))
    for result in results:
        told = f"{command} {' '.join(result['flags'])}\n{result['log'][-1500:]}"
        assert result["statuses"] == result["expected"], told
        figures = {name: value for name, value in result["metrics"].items() if isinstance(value, float)}
        assert figures and all(map(math.isfinite, figures.values())), f"{told}\n{figures}"
        assert ("begins at step 2" in result["log"]) == (result["row"]["killed"] == "once"), told


def test_pairs_that_cannot_work_are_refused_before_tensorflow_is_imported(preset, tmp_path):
    calls, told = [], []
    for command, module in option_pairs.COMMANDS.items():
        directory = tmp_path / command
        directory.mkdir()
        (directory / "preset").symlink_to(preset)
        option_pairs.write_files(command, directory)
        refused = option_pairs.refused(command, directory)
        calls.append(Call(module, [[command, *flags, f"--output_dir={tmp_path}/out"] for flags, _ in refused]))
        told.append([message for _, message in refused])
    for call, messages, result in zip(calls, told, run_calls(calls), strict=True):
        for line, message, (status, printed) in zip(call.lines, messages, result["lines"], strict=True):
            *chosen, error = printed.splitlines()
            assert status == 1 and message in error, f"{line}\n{printed}"
            assert all(choice.startswith(("Columns: ", "Held out ", "Data: ")) for choice in chosen), printed
        assert result["imported"] == [], call.module
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", option_pairs.COMMANDS)
def test_the_rows_hold_every_pair_that_is_allowed(command):
    values, pairs = option_pairs.runs(command, 1), option_pairs.runs(command, 2)
    assert all(option_pairs.is_allowed(command, row) for row in values + pairs)
    for name, flags in option_pairs.options(command).items():
        assert {row[name] for row in values} == set(flags)
    for pair in option_pairs.pairs_of(command):
        assert any(pair.items() <= row.items() for row in pairs), pair
