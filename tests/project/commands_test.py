"""The public surface of the commands: no command, module, flag or choice of a flag goes away, and --help is cheap."""

import re

import pytest
from light_commands import Call, run_calls
from repository import COMMAND_LIST, COMMANDS, listed_commands

LISTED = listed_commands()


@pytest.fixture(scope="module")
def helps():
    """What --help of each command does and says, by its console script's name and by its module's."""
    calls = {}
    for command, module in LISTED:
        calls[command] = Call(COMMANDS[command], [[command, "--help"]])
        calls[module] = Call(module, [[module, "--help"]], is_module=True)
    return dict(zip(calls, run_calls(list(calls.values())), strict=True))


def flags_of(text):
    """Returns `{flag: choices}` of a command's help text."""
    flags = {}
    for part in re.split(r"^ *--(?:\[no\])?(?=\w+:)", text, flags=re.MULTILINE)[1:]:
        name, choices = re.match(
            r"(\w+):(?:<([^>]*)>:)?", re.sub(r"\s", "", part)
        ).groups()  # absl breaks within words.
        flags[name] = choices.split("|") if choices else None
    return flags


def test_every_console_script_is_installed():
    assert {command for command, _ in LISTED} - COMMANDS.keys() == set(), "a command is gone"
    new = COMMANDS.keys() - {command for command, _ in LISTED}
    assert not new, f"Add {sorted(new)} and their flags to {COMMAND_LIST}."


@pytest.mark.parametrize(("command", "module"), LISTED)
def test_no_flag_goes_away(helps, command, module):
    expected = LISTED[command, module]
    for name in (command, module):
        flags = flags_of(helps[name]["lines"][0][1])
        assert expected.keys() - flags.keys() == set(), f"{name}: these flags are gone"
        new = flags.keys() - expected.keys()
        assert not new, f"Add to {command} in {COMMAND_LIST}: {' '.join(sorted(new))}"
        for flag, choices in expected.items():
            gone = set(choices or ()) - set(flags[flag] or choices or ())
            assert not gone, f"{name} --{flag}: these choices are gone"


@pytest.mark.parametrize(("command", "module"), LISTED)
def test_help_says_how_to_call_and_imports_nothing_heavy(helps, command, module):
    for name, usage in ((command, command), (module, f"python -m {module}")):
        ((status, text),) = helps[name]["lines"]
        assert status == 0 and "Traceback" not in text, text
        opening, used, _ = text.partition(f"\nUsage: {usage} [flags]\n")
        assert used and len(re.findall(rf"^    {command} ?", opening, re.MULTILINE)) >= 3, "three commands to copy"
        most_used = re.match(r"\nMost used:\n((?:  .*\n)+)", text.partition(used)[2])
        assert most_used and len(flags_of(most_used[1])) <= 16
        assert helps[name]["imported"] == [], "imported at the top of a module that defines flags"
