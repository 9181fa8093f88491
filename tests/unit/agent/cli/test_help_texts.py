"""Rules for the help of every command of every program, found by walking the programs."""

import re
import shlex
from typing import Any, Final

import pytest
from typer.main import get_command, get_install_completion_arguments

import agent.main
import scm.main
import spark_verify.job
from agent.cli.program import program
from suture.terminal.command_help import EXAMPLE, EXIT_CODES, split_help
from tests.support.command_walk import walk

LENGTH_MAX: Final = 60
PROGRAMS: Final = {
    "suture": program(None),
    "suture-agent": agent.main.app,
    "suture-scm": scm.main.app,
    "suture-verify": spark_verify.job.app,
    "suture-verify views": spark_verify.job.views_app,
}
ALL: Final = {
    " ".join(words): command
    for name, app in PROGRAMS.items()
    for words, command in walk(get_command(app), tuple(name.split()))
}
LEAVES: Final = [words for words, one in ALL.items() if not hasattr(one, "commands")]
OF_TYPER: Final = {one.name for one in get_install_completion_arguments()}
NO_VERB: Final = re.compile(r"(?:\w+(?:ing|ed|[^s]s)|The|A|An|Its?|What|Who|How|No|Only|One) ")
PRIVATE: Final = re.compile(
    r"\b(?:anew|lately|thereof|whence|who|whom|whose|whoever|whatever|somebody|nobody|likewise"
    r"|mend\w*|believe\w*|tells?|told|hears?|heard|owes?|owed|wish\w*|mute|it all|of them)\b",
    re.IGNORECASE,
)
PYTHON_TYPES: Final = re.compile(r"<[a-z]|\b(?:TEXT|INTEGER|FLOAT|BOOLEAN|PATH)\b")
SENTENCE: Final = re.compile(r"[A-Z](?:[^.]|\.(?! |$))+\.")


def sections_of(words: str) -> tuple[str, dict[str, list[str]]]:
    """Return the text and the sections of a command's help."""
    return split_help((ALL[words].help or "").replace("\b\n", ""))


def parameters_of(words: str) -> list[Any]:
    """Return Suture's own arguments and options of a command."""
    return [one for one in ALL[words].params if one.name not in OF_TYPER]


def shown(words: str) -> str:
    """Return a command's help as a wide terminal shows it."""
    command = ALL[words]
    context = command.context_class(command, info_name=words, terminal_width=200)
    return str(command.get_help(context))


@pytest.mark.parametrize("words", ALL)
def test_first_sentence_is_short_and_imperative(words: str) -> None:
    """A verb in the base form, an object, a full stop; under 60 characters, alone."""
    sentence = sections_of(words)[0].partition("\n\n")[0]

    assert SENTENCE.fullmatch(sentence), sentence
    assert len(sentence) < LENGTH_MAX
    assert not NO_VERB.match(sentence), sentence
    assert len(sentence.split()) > 1, "a verb needs an object"


@pytest.mark.parametrize("words", ALL)
def test_help_of_options_is_one_short_sentence(words: str) -> None:
    """Arguments, too. A special zero is written as `0 = unlimited` or `0 = disabled`."""
    for parameter in parameters_of(words):
        text = parameter.help or ""
        assert SENTENCE.fullmatch(text), (parameter.name, text)
        assert len(text) < LENGTH_MAX, (parameter.name, text)
        assert not re.search(r"\b(?:0|none|-):", text), (parameter.name, text)


@pytest.mark.parametrize("words", ALL)
def test_help_has_no_private_words(words: str) -> None:
    """The list is that of the style guide."""
    assert not PRIVATE.findall(shown(words))


@pytest.mark.parametrize("words", ALL)
def test_values_are_named_by_nouns(words: str) -> None:
    """A reader sees CONTAINER or HOST:PORT, not the Python type of the value."""
    assert not PYTHON_TYPES.findall(shown(words))


@pytest.mark.parametrize("words", LEAVES)
def test_numbers_have_a_default(words: str) -> None:
    """The default is shown by typer, or named in the sentence, with its unit in the metavar."""
    for parameter in parameters_of(words):
        kind = parameter.type_descriptor.annotation
        if (
            parameter.param_type_name == "option"
            and kind in {int, float}
            and not parameter.required
        ):
            record = parameter.get_help_record(ALL[words].context_class(ALL[words]))
            assert "default: " in record[1], (parameter.name, record)


@pytest.mark.parametrize("words", ALL)
def test_exit_codes_are_in_their_section(words: str) -> None:
    """The text before the sections does not mention them, and each line has a number."""
    text, sections = sections_of(words)

    assert not re.search(r"[Ee]xit code|\b2:", text), text
    for line in sections.get(EXIT_CODES, []):
        assert re.fullmatch(r"\d+: [a-z].*[^.]", line), line


@pytest.mark.parametrize("words", LEAVES)
def test_example_is_a_valid_command_line(words: str) -> None:
    """Each command has an example, with its name and with options that it has."""
    [line] = sections_of(words)[1][EXAMPLE]
    command = ALL[words]
    given = shlex.split(line)
    named = words.split()

    assert named == given[: len(named)]
    with command.make_context(words, given[len(named) :]) as context:
        assert context.params
