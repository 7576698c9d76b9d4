"""Every pair of options of the fine-tuning commands, as users type them: it trains and scores, or is refused in a line.

`make test` runs so few rows that each value stands in one of them; `make test-all` runs every pair.
"""

import json
import math
import sys

import fuzzing
import option_pairs
import processes
import pytest
import toy_words

STRENGTH = 2 if fuzzing.FULL else 1


@pytest.mark.parametrize("command", option_pairs.COMMANDS)
def test_options_in_pairs(command, tmp_path):
    toy_words.write_preset(tmp_path / "preset")
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
        assert ("step 2 was restored" in result["log"]) == (result["row"]["killed"] == "once"), told
