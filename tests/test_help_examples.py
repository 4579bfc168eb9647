"""Are the examples in the help of commands ones that the commands take?"""

import re
import shlex
from importlib import import_module

import pytest
from hbmeter.experiments.cli import command_names, parser


def examples(name) -> list[list[str]]:
    """The words of each example behind ``hbmeter``; what stands behind two spaces explains it."""
    lines = import_module(f"hbmeter.experiments.commands.{name}").__doc__.splitlines()
    found = [re.split(r"\s{2,}", line.strip())[0] for line in lines
             if re.match(r" +hbmeter [a-z]", line)]
    return [shlex.split(line.replace("[", "").replace("]", ""))[1:] for line in found]


@pytest.mark.parametrize("name", command_names())
def test_every_example_of_the_help_is_understood(name):
    assert examples(name)
    for words in examples(name):
        args = parser().parse_args(words)
        assert args.command == words[0]
