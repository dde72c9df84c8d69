"""Every kind of instruction: a text that follows it and one that does not."""

import pytest

from unmask.errors import RequestError
from unmask.evaluation.grading import grade
from unmask.evaluation.tasks import Problem, find_task
from unmask.evaluation.tasks.ifeval import CHECKS, in_language, sentences

ENGLISH = "the cat is on the mat and it is not for you"
CASES = [
    ("keywords:existence", {"keywords": ["cat", "mat"]}, "A Cat on a mat.", "A cat on a rug."),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "at least"}, "cat, Cat", "cat"),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "less than"}, "cat", "cat cat"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "a category", "a Cat."),
    (
        "keywords:letter_frequency",
        {"letter": "a", "let_frequency": 3, "let_relation": "at least"},
        "Banana",
        "bad apples".replace("a", "e", 1),
    ),
    ("language:response_language", {"language": "en"}, ENGLISH, "der Hund ist nicht auf dem Dach und das ist gut"),
    ("language:response_language", {"language": "hi"}, "\u092f\u0939 \u0915\u0941\u0924\u094d\u0924\u093e", ENGLISH),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        "Dr. Who came. He left at 3.5 o'clock!",
        "One. Two? Three!",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "one two three", "one, two"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First this.\n\n**Then** that.",
        "Then this.\n\nFirst that.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name], [address]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. Thanks", "Bye. Thanks"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S Thanks", "Bye.\nP.S. Thanks"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n* b", "* a\n**b**\n* c\n* d"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and b"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\na\nSECTION 2\nb",
        "SECTION 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<Poem of joy>>\nla", "<< >>\nla"),
    ("combination:two_responses", {}, "One.\n******\nTwo.", "One.\n******\nOne."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "Say hi. Hi!", "Hi! Say hi."),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, "Hi. Any questions?", "Any questions? Hi."),
    ("startend:quotation", {}, '"Hi."', '"Hi".'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "YES I can",
        "YES we can",
    ),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH),
    ("change_case:english_lowercase", {}, ENGLISH, ENGLISH.title()),
    ("punctuation:no_comma", {}, "one and two", "one, two"),
]


def problem(*instructions: tuple[str, dict[str, object]]) -> Problem:
    found = find_task("ifeval").read(
        {
            "key": 1,
            "prompt": "Do it.",
            "instruction_id_list": [name for name, _ in instructions],
            "kwargs": [{"num_bullets": None, "language": None} | options for _, options in instructions],
        }
    )
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "options", "good", "bad"), CASES)
def test_an_instruction_tells_what_follows_it_from_what_does_not(
    name: str, options: dict[str, object], good: str, bad: str
) -> None:
    assert grade("ifeval", problem((name, options)), good).reason == "right"
    assert grade("ifeval", problem((name, options)), bad).reason == f"not followed: {name}"


def test_every_kind_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(CHECKS)
    assert len(CHECKS) == 25


def test_all_instructions_of_a_prompt_have_to_be_followed() -> None:
    both = problem(("punctuation:no_comma", {}), ("startend:quotation", {}))
    assert grade("ifeval", both, '"one"').passed
    assert grade("ifeval", both, "one, two").reason == "not followed: punctuation:no_comma, startend:quotation"


def test_an_empty_text_follows_nothing() -> None:
    assert not grade("ifeval", problem(("punctuation:no_comma", {})), " \n").passed


def test_the_loose_verdict_forgives_a_first_line() -> None:
    one = problem(("startend:quotation", {}))
    assert not grade("ifeval", one, 'Sure!\n"Hi."').passed
    assert grade("ifeval(loose=True)", one, 'Sure!\n"Hi."').passed


def test_an_unknown_instruction_is_refused(tmp_path) -> None:
    path = tmp_path / "input_data.jsonl"
    path.write_text('{"key": 1, "prompt": "?", "instruction_id_list": ["a:b"], "kwargs": [{}]}', encoding="utf-8")
    with pytest.raises(RequestError, match="unknown instructions a:b"):
        find_task("ifeval").problems(tmp_path)


def test_sentences_end_at_marks_and_not_at_abbreviations() -> None:
    assert len(sentences('Mr. X said "hi." Then he left!\n\nA title\n\nThe end')) == 4
    assert sentences("...") == []


def test_a_language_is_told_by_script_or_common_words() -> None:
    assert in_language("la maison est dans la rue et les gens sont l\u00e0", "fr")
    assert not in_language(ENGLISH, "fr")
    assert in_language("\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "ko")
