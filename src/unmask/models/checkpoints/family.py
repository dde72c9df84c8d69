"""What it takes to read one family of checkpoints: three functions and a name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unmask.errors import CheckpointError
from unmask.models.checkpoints.reading import Settings
from unmask.models.config import ATTENTION_PATTERNS, BackboneConfig
from unmask.models.facts import ModelFacts
from unmask.models.text import Text

# Our own section of config.json: what the published formats have no key for.
OWN_SECTION = "unmask"


@dataclass(frozen=True, slots=True)
class Family:
    """A family adapter, registered under the `model_type` of its config.json.

    A plug-in registers one in the entry-point group "unmask.checkpoints", with the model type as the name.
    """

    name: str
    read_config: Callable[[Settings], BackboneConfig]
    read_facts: Callable[[Settings, BackboneConfig, Text], ModelFacts]
    tensor_names: Callable[[BackboneConfig], dict[str, str]]  # our names -> the published names


def own_settings(settings: Settings) -> Settings:
    """The "unmask" section of config.json, empty where there is none.

    Keys: `attention` ("bidirectional", "block_causal" or "causal"), `block_length` (slots), `block_alignment` ("prompt"
    or "absolute", see `ModelFacts`).
    """
    section: Any = settings.values.get(OWN_SECTION, {})
    if not isinstance(section, dict):
        raise settings.wrong(OWN_SECTION, "an object")
    own = Settings(settings.path, section)
    own.must_be("attention", *ATTENTION_PATTERNS, default="bidirectional")
    own.must_be("block_alignment", "prompt", "absolute", default="prompt")
    return own


def own_section(config: BackboneConfig) -> dict[str, Any]:
    """What the "unmask" section has to hold for a backbone to be read as it is; nothing for a bidirectional one. Blocks
    are counted from the prompt's end, as an absent `block_alignment` says."""
    if config.attention == "bidirectional":
        return {}
    blocks = {"block_length": config.block_length} if config.attention == "block_causal" else {}
    return {"attention": config.attention, **blocks}


def gather_facts(
    settings: Settings,
    config: BackboneConfig,
    text: Text,
    *,
    family: str,
    shift: int,
    end_tokens: tuple[str, ...],
) -> ModelFacts:
    """Facts whose ids come from config.json first and from the tokenizer where config.json is silent.

    Args:
        settings: config.json.
        config: the backbone's sizes.
        text: the tokenizer.
        family: name of the family.
        shift: 0 or 1, see `ModelFacts.shift`; a row of a causal model speaks for the next slot, whatever its family.
        end_tokens: further tokens that end an answer; those the tokenizer does not have are skipped.

    Raises:
        CheckpointError: if no mask id is given anywhere, or an id is outside the vocabulary.
    """
    masks = settings.ids("mask_token_id")
    if not masks and text.named.get("mask_token") is not None:
        found = text.id_of(text.named["mask_token"])
        masks = () if found is None else (found,)
    if len(masks) != 1:
        raise settings.wrong("mask_token_id", "one token id (the tokenizer names no mask token either)")
    ends = [*settings.ids("eos_token_id"), *map(text.id_of, (text.named.get("eos_token", ""), *end_tokens))]
    try:
        return ModelFacts(
            mask_id=masks[0],
            end_ids=tuple(dict.fromkeys(token for token in ends if token is not None)),
            banned_ids=masks,
            vocab_size=config.vocab_size,
            shift=1 if config.attention == "causal" else shift,
            attention=config.attention,
            block_length=config.block_length,
            family=family,
            max_length=config.max_length,
            block_alignment=own_settings(settings).values.get("block_alignment", "prompt"),
        )
    except ValueError as error:
        raise CheckpointError(f"{settings.path}: {error}") from error
