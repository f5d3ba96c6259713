"""Names in what is stored: declared beside the class, so that a rename of the class or of a field changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from renamed import renamed

from selfcest_env.protocol import Note, PromptFormat, PromptVariant, prompt_variant_name
from selfcest_env.seeding import stream_seed, turn_seed
from selfcest_env.stored import by_field, stored_as, stored_fields, stored_text, to_stored
from selfcest_env.text.prompt_variants import AddBoard, AddCloneLimit, AddNote, AddTurnLimit
from selfcest_env.types import ROOT, AgentId, Limits

# What records call the prompt variants of the game. They stand in stored episodes.
PROMPT_VARIANTS: list[tuple[PromptVariant, str]] = [
    (
        AddNote(Note("Go.", 3), Note("Help.", trusted=False)),
        "Tell(root=Note(text='Go.', number=3, trusted=True), clone=Note(text='Help.', number=0, trusted=False))",
    ),
    (AddNote(clone=Note("x" * 200)), "Tell(blake2b:a4ceca63547de9d4)"),
    (AddCloneLimit(), "TellClones()"),
    (AddTurnLimit(4, extension=2), "TellTurns(turns=4, extension=2, reminders=True)"),
    (AddBoard(5), "TellBoard(posts=5)"),
]


@pytest.mark.parametrize(("prompt_variant", "name"), PROMPT_VARIANTS)
def test_prompt_variants_keep_their_names_in_records(prompt_variant: PromptVariant, name: str) -> None:
    assert prompt_variant_name(prompt_variant) == name
    with renamed([type(prompt_variant), Note]):
        assert prompt_variant_name(prompt_variant) == name


@dataclass(frozen=True)
class Own:
    """A prompt variant of a user's own package, which declares nothing."""

    words: str = "Go."

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        return protocol


def test_a_wording_that_declares_nothing_is_named_by_its_class_and_fields() -> None:
    assert prompt_variant_name(Own()) == "Own(words='Go.')"


def test_seeds_do_not_depend_on_the_name_of_a_class() -> None:
    with renamed([AgentId]):
        assert turn_seed(0, ROOT, 0) == 21622017611810433
        assert stream_seed("x", AgentId((0, 1))) == 5777162696015490769


@stored_as("Curve", points="points", half="half_width")
@dataclass(frozen=True)
class Curve:
    points: tuple[int, ...]
    half: float | None = None


@stored_as("Curve", values="points", spread="half_width")
@dataclass(frozen=True)
class RenamedCurve:
    values: tuple[int, ...]
    spread: float | None = None


@dataclass(frozen=True)
class LongerCurve(RenamedCurve):
    """Of a stranger, who declares nothing."""

    extra: int = 3


def test_a_renamed_class_with_renamed_fields_is_written_as_before() -> None:
    old, new = Curve((1,), 0.5), RenamedCurve((1,), 0.5)
    assert stored_text(old) == stored_text(new) == "Curve(points=(1,), half_width=0.5)"
    assert to_stored({"a": [old]}) == to_stored({"a": [new]}) == {"a": [{"points": [1], "half_width": 0.5}]}
    assert RenamedCurve(**by_field(RenamedCurve, {"points": (1,), "half_width": 0.5})) == new
    assert by_field(RenamedCurve, "no mapping") == "no mapping", "left to the reader that checks it"


def test_a_subclass_inherits_the_names_of_fields_and_not_that_of_the_class() -> None:
    longer = LongerCurve((1, 2))
    assert stored_fields(longer) == {"points": (1, 2), "half_width": None, "extra": 3}
    assert stored_text(longer) == "LongerCurve(values=(1, 2), spread=None, extra=3)", "its own `repr`"


@pytest.mark.parametrize(
    "names", [{}, {"words": "words", "more": "more"}, {"sentence": "words"}], ids=["lacks", "too many", "another"]
)
def test_a_declaration_names_every_field_once(names: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="Own declares the stored names .*expected one for each of its fields, words"):
        stored_as("Own", **names)(Own)
    with pytest.raises(TypeError, match="no name twice"):
        stored_as(points="points", half="points")(Curve)


def test_every_limit_is_in_keys() -> None:
    assert (
        list(to_stored(Limits()))
        == [item.name for item in fields(Limits)]
        == [
            "total_tokens",
            "generated_tokens",
            "context_tokens",
            "turn_tokens",
            "reply_tokens",
            "answer_reserve",
            "max_turns",
            "max_clones",
            "max_clones_per_call",
            "max_depth",
            "max_reads",
        ]
    )
