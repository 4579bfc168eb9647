"""Does every command of the tutorial run and print what it says, and are all of the docs' real?"""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from hbmeter.experiments import records
from hbmeter.experiments.cli import main, parser

pytest.importorskip("pandas")
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(text, language):
    """(what stands behind the language, content) of fenced blocks."""
    return [(info.removeprefix(language).strip(), content)
            for info, content in BLOCK.findall(text) if info.split(" ")[0] == language]


def steps(content):
    """(command, lines that it should print) of a block with $ before commands."""
    for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, lines


def pattern(line):
    """A line as a regular expression: … is anything, and spaces may differ."""
    words = (re.escape(word).replace("…", ".*") for word in line.split())
    return re.compile(r"\s*".join(words))


def missing(lines, printed):
    """The first line that is not printed after those before it."""
    left = iter(printed.splitlines())
    return next((line for line in lines if line.strip() != "…"
                 and not any(pattern(line).fullmatch(one.strip()) for one in left)), None)


def few_records():
    """The small points of a record with counters: the whole takes its time."""
    for record in records.load_all():
        small = [p for p in record.points if p["counters"] and p["problem"]["seq"] == 512]
        if small:
            break
    return [records.Record(record.name, record.provenance, small)]


def test_every_command_of_the_tutorial_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = few_records()
    monkeypatch.setattr(records, "load_all", lambda: few)
    for language in ("yaml", "csv"):
        for info, content in blocks(TUTORIAL, language):
            Path(re.fullmatch('title="(.*)"', info)[1]).write_text(content, encoding="utf-8")
    ran = 0
    for _, content in blocks(TUTORIAL, ""):
        for command, lines in steps(content):
            capsys.readouterr()
            code = main(shlex.split(command)[1:])
            printed, errors = capsys.readouterr()
            assert code == ("explain" in command), (command, errors)
            assert missing(lines, printed) is None, (command, missing(lines, printed), printed)
            ran += 1
    assert ran >= 12
    check_python()


def check_python():
    """The tutorial's sessions, in the folder that its commands have filled."""
    for _, content in blocks(TUTORIAL, "python"):
        example = doctest.DocTestParser().get_doctest(content, {}, "tutorial", None, 0)
        assert example.examples and doctest.DocTestRunner().run(example).failed == 0


def test_a_line_that_is_not_printed_is_seen():
    assert missing(["a … c", "…", "d"], "a b  c\nx\nd\n") is None
    assert missing(["d", "a … c"], "a b c\nd\n") == "a … c"


def commands_in(text):
    """Every hbmeter command of the blocks, without the words behind it."""
    for _, content in BLOCK.findall(text):
        for line in content.splitlines():
            for part in re.sub(r"^\$ ", "", line).split(";"):
                if part.strip().startswith("hbmeter "):
                    yield re.split(r"\s{2,}|\s#", part.strip())[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_the_docs_can_be_given(page):
    found = list(commands_in(page.read_text(encoding="utf-8")))
    assert found or page.stem not in ("README", "index", "tutorial")
    for command in found:
        arguments = shlex.split(command)[1:]
        assert parser().parse_args(arguments).command == arguments[0], command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_are_there(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target
