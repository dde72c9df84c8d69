"""IFEval: prompts with instructions that a program can check.

Source: Zhou et al., Instruction-Following Evaluation for Large Language Models (arXiv 2311.07911), whose 25 kinds of
instructions are written anew here, from their description. The verdict is the strict one for the whole prompt: every
instruction is followed. Deviates: sentences are counted by a rule of our own; a language is told by its script and its
commonest words unless `langdetect` is installed.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from unmask.evaluation.tasks.base import Problem, Verdict
from unmask.evaluation.tasks.published import Published
from unmask.evaluation.tasks.sources import Hub, Record

_ABBREVIATIONS = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|a\.m|p\.m|U\.S|No|Inc|Ltd|Co|Ph\.D|[A-Z])\.", re.IGNORECASE
)
_SCRIPTS = {  # first and last letter of the script that a language is written in
    "ar": ("\u0600", "\u06ff"), "fa": ("\u0600", "\u06ff"), "ur": ("\u0600", "\u06ff"), "he": ("\u0590", "\u05ff"),
    "hi": ("\u0900", "\u097f"), "mr": ("\u0900", "\u097f"), "ne": ("\u0900", "\u097f"), "bn": ("\u0980", "\u09ff"),
    "pa": ("\u0a00", "\u0a7f"), "gu": ("\u0a80", "\u0aff"), "ta": ("\u0b80", "\u0bff"), "te": ("\u0c00", "\u0c7f"),
    "kn": ("\u0c80", "\u0cff"), "ml": ("\u0d00", "\u0d7f"), "th": ("\u0e00", "\u0e7f"), "ko": ("\uac00", "\ud7af"),
    "ja": ("\u3040", "\u30ff"), "zh": ("\u4e00", "\u9fff"), "ru": ("\u0400", "\u04ff"), "bg": ("\u0400", "\u04ff"),
    "uk": ("\u0400", "\u04ff"), "el": ("\u0370", "\u03ff"),
}  # fmt: skip
_WORDS = {  # the commonest words of languages in Latin letters
    "en": "the of and to in is that it for was with as on are this be you not",
    "de": "der die das und ist nicht ein eine zu den mit von auf im sich ich es dem",
    "fr": "le la les et des est un une dans que pour qui pas sur du au ce il",
    "es": "el la los las y de que en un una es por con para no se del su",
    "it": "il la di che e un una per non in sono con del della gli le si da",
    "pt": "o a os as e de que um uma para com n\u00e3o do da em por se no",
    "vi": "l\u00e0 c\u1ee7a v\u00e0 c\u00f3 m\u1ed9t kh\u00f4ng cho v\u1edbi \u0111\u01b0\u1ee3c trong nh\u1eefng",
    "fi": "ja on ei se ett\u00e4 ovat h\u00e4n mutta my\u00f6s kun oli t\u00e4m\u00e4 joka",
    "sw": "na ya wa kwa ni katika la za kuwa hii yake lakini kama cha",
    "pl": "i w na nie si\u0119 jest \u017ce do to z o jak ale dla przez",
}  # fmt: skip


def compared(count: int, relation: str | None, bound: int) -> bool:
    """Whether a count is "less than" a bound, or "at least" it, which is also what no relation means."""
    return count < bound if relation == "less than" else count >= bound


def sentences(text: str) -> list[str]:
    """Sentences: pieces that end in . ! or ? before a space or the end; an abbreviation ends none."""
    text = _ABBREVIATIONS.sub(lambda match: match[0].replace(".", "\u2024"), text)
    pieces = re.split(r"(?<=[.!?])[\"'\u201d)\]]*\s+|\n\s*\n", text)
    return [piece for piece in pieces if re.search(r"\w", piece)]


def words(text: str) -> list[str]:
    """Runs of letters and digits."""
    return re.findall(r"\w+", text)


def language(text: str) -> str | None:
    """Code of the language that a text is most likely written in."""
    try:
        import langdetect
    except ImportError:
        return None
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None


def in_language(text: str, code: str) -> bool:
    """Whether a text is in a language; one that nothing is known of counts as followed."""
    detected = language(text)
    if detected is not None:
        return detected == code
    letters = [letter for letter in text if letter.isalpha()]
    if code in _SCRIPTS:
        low, high = _SCRIPTS[code]
        return bool(letters) and sum(low <= letter <= high for letter in letters) > 0.3 * len(letters)
    if code not in _WORDS:
        return True
    found = Counter(word.lower() for word in words(text))
    scores = {name: sum(found[word] for word in common.split()) for name, common in _WORDS.items()}
    return scores[code] == max(scores.values()) and scores[code] > 0


def _count(text: str, word: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def _existence(text: str, *, keywords: list[str]) -> bool:
    return all(word.lower() in text.lower() for word in keywords)


def _frequency(text: str, *, keyword: str, frequency: int, relation: str | None = None) -> bool:
    return compared(len(re.findall(re.escape(keyword), text, re.IGNORECASE)), relation, frequency)


def _forbidden(text: str, *, forbidden_words: list[str]) -> bool:
    return not any(_count(text, word) for word in forbidden_words)


def _letters(text: str, *, letter: str, let_frequency: int, let_relation: str | None = None) -> bool:
    return compared(text.lower().count(letter.lower()), let_relation, let_frequency)


def _language(text: str, *, language: str) -> bool:
    return in_language(text, language)


def _sentences(text: str, *, num_sentences: int, relation: str | None = None) -> bool:
    return compared(len(sentences(text)), relation, num_sentences)


def _paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Paragraphs between the divider ***; an empty one counts only against it, unless it is the first or last."""
    pieces = [piece.strip() for piece in re.split(r"\s?\*\*\*\s?", text)]
    return all(pieces[1:-1]) and sum(map(bool, pieces)) == num_paragraphs


def _words(text: str, *, num_words: int, relation: str | None = None) -> bool:
    return compared(len(words(text)), relation, num_words)


def _first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs between empty lines: their number, and the first word of one of them."""
    pieces = [piece.strip() for piece in re.split(r"\n\s*\n", text) if piece.strip()]
    if len(pieces) != num_paragraphs or not 1 <= nth_paragraph <= len(pieces):
        return False
    first = pieces[nth_paragraph - 1].split()[0].strip("\"'*_.,!?:;()\u201c\u201d")
    return first.lower() == first_word.lower()


def _placeholders(text: str, *, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\[\]]+\]", text)) >= num_placeholders


def _postscript(text: str, *, postscript_marker: str) -> bool:
    marker = re.sub(r"\\?\.", r"\\.\\s?", re.escape(postscript_marker.strip()).replace("\\.", "."))
    return re.search(rf"^\s*{marker}\s*\S", text, re.IGNORECASE | re.MULTILINE) is not None or (
        re.search(rf"\s{marker}\s*\S", text, re.IGNORECASE) is not None
    )


def _bullets(text: str, *, num_bullets: int) -> bool:
    return len(re.findall(r"^\s*(?:\*(?!\*)|-(?!-)|\u2022)\s*\S", text, re.MULTILINE)) == num_bullets


def _constrained(text: str) -> bool:
    return any(f"My answer is {choice}." in text for choice in ("yes", "no", "maybe"))


def _highlights(text: str, *, num_highlights: int) -> bool:
    double = re.findall(r"\*\*([^*\n]+)\*\*", text)
    single = re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", text)
    return sum(bool(piece.strip()) for piece in double + single) >= num_highlights


def _sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def _json(text: str) -> bool:
    text = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip(), flags=re.IGNORECASE)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    return any(title.strip("< ") for title in re.findall(r"<<([^\n]+?)>>", text))


def _two(text: str) -> bool:
    """Two different responses, with six asterisks between them."""
    pieces = [piece.strip() for piece in text.split("******")]
    inner = [piece for at, piece in enumerate(pieces) if piece or 0 < at < len(pieces) - 1]
    return len(inner) == 2 and all(inner) and inner[0] != inner[1]


def _repeat(text: str, *, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _ends(text: str, *, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _capital_words(text: str, *, capital_frequency: int, capital_relation: str | None = None) -> bool:
    return compared(sum(word.isupper() for word in words(text)), capital_relation, capital_frequency)


def _upper(text: str) -> bool:
    return text.isupper() and in_language(text.lower(), "en")


def _lower(text: str) -> bool:
    return text.islower() and in_language(text, "en")


def _no_comma(text: str) -> bool:
    return "," not in text


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": _existence,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden,
    "keywords:letter_frequency": _letters,
    "language:response_language": _language,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_words": _words,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": _constrained,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two,
    "combination:repeat_prompt": _repeat,
    "startend:end_checker": _ends,
    "startend:quotation": _quoted,
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _upper,
    "change_case:english_lowercase": _lower,
    "punctuation:no_comma": _no_comma,
}


def followed(instruction: str, options: dict[str, Any], text: str) -> bool:
    """Whether a text follows one instruction; an empty text follows none."""
    return bool(text.strip()) and CHECKS[instruction](text, **options)


def _looser(text: str) -> list[str]:
    """The text, and what is left without its first line, its last line, both, and without asterisks."""
    lines = text.split("\n")
    cut = [lines, lines[1:], lines[:-1], lines[1:-1]]
    texts = ["\n".join(some).strip() for some in cut]
    return texts + [one.replace("*", "") for one in texts]


@dataclass(frozen=True, slots=True)
class IfEval(Published):
    """Prompts with instructions that a program can check, such as a number of words."""

    loose: bool = False  # an instruction counts if it is followed without first or last line or asterisks

    name = "ifeval"
    hub: ClassVar[Hub | None] = Hub("google/IFEval", split="train")
    files: ClassVar[tuple[str, ...]] = ("*input_data*", "*")
    length: ClassVar[int] = 512

    def read(self, record: Record) -> Problem:
        """A record with "key", "prompt", "instruction_id_list" and "kwargs"."""
        names = list(record["instruction_id_list"])
        unknown = [name for name in names if name not in CHECKS]
        if unknown or len(names) != len(record["kwargs"]):
            raise ValueError(
                f"unknown instructions {', '.join(unknown)}" if unknown else "not one kwargs an instruction"
            )
        # the hub fills up the options that an instruction does not have
        options = [{key: value for key, value in one.items() if value is not None} for one in record["kwargs"]]
        instructions = tuple(zip(names, options, strict=True))
        return Problem(self.name, record["prompt"], "", str(record["key"]), extra={"instructions": instructions})

    def question(self, problem: Problem) -> str:
        """The prompt as it is."""
        return problem.prompt

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Check every instruction."""
        texts = _looser(text) if self.loose else [text]
        missed = [
            name
            for name, options in problem.extra["instructions"]
            if not any(followed(name, options, one) for one in texts)
        ]
        return Verdict(not missed, f"not followed: {', '.join(missed)}" if missed else "right", text.strip())
