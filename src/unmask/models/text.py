"""Text to token ids and back, for one checkpoint folder.

Built on `tokenizers` and `jinja2` directly: it gives the ids that transformers' AutoTokenizer gives (tests compare) and
does not cost its import. One thing is different on purpose: control tokens come from the chat template only. A literal
such as `<|mask|>` typed by a user stays ordinary text; as the real token it would be a slot that the model fills in.

Nothing is added to a plain text, no begin or end token: the published decoders prompt that way.

Refuses to know: tensors, what an id means to a decoder.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from unmask.errors import CheckpointError, RequestError
from unmask.models.files import read_json

Message = Mapping[str, Any]
ROLES = ("system", "user", "assistant", "tool", "developer")

# keys of tokenizer_config.json that name one control token each; templates may use them as variables
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _letters_of_bytes() -> dict[str, int]:
    """How byte-level vocabularies write each byte: its own letter if that can be printed, else one from 256 on."""
    plain = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _letters_of_bytes()

# how the family of byte-level vocabularies that Dream uses cuts text: contractions, words, single digits, punctuation
_QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Text:
    """Tokenizer and chat template of a checkpoint.

    Attributes:
        template: jinja source of the chat template, None for a base model.
        named: control tokens by their role: "bos_token", "eos_token", "pad_token", "mask_token" and so on.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str | None = None, named: Mapping[str, str] | None = None
    ) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer  # knows control tokens: for templates and for decoding
        self.template = template
        self.named = dict(named or {})
        # "<|...|>" is a control token whatever its flag says: published vocabularies are not consistent
        self._control = {
            token: entry.content
            for token, entry in tokenizer.get_added_tokens_decoder().items()
            if entry.special or re.fullmatch(r"<\|.*\|>", entry.content) or entry.content in self.named.values()
        }
        self._special = {token for token, entry in tokenizer.get_added_tokens_decoder().items() if entry.special}

    def __reduce__(self) -> tuple[Any, ...]:
        # rebuilt from its parts: the setting that keeps literals plain would not survive pickling
        return Text, (self._tokenizer, self.template, self.named)

    @classmethod
    def load(cls, folder: Path | str) -> "Text":
        """Read tokenizer.json (or vocab.json and merges.txt), tokenizer_config.json and the chat template.

        Raises:
            CheckpointError: if there is no tokenizer, or a file of it cannot be used.
        """
        folder = Path(folder)
        config = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
        named = _named_tokens(folder, config)
        tokenizer = _load_tokenizer(folder)
        _add_tokens(folder, tokenizer, config, named)
        return cls(tokenizer, _load_template(folder, config), named)

    @cached_property
    def _plain(self) -> Tokenizer:
        """A second tokenizer to which control tokens are ordinary text."""
        plain = Tokenizer.from_str(self._tokenizer.to_str())
        plain.add_special_tokens([AddedToken(content, special=True) for content in self._control.values()])
        plain.encode_special_tokens = True
        return plain

    @property
    def has_template(self) -> bool:
        return self.template is not None

    @property
    def vocab_size(self) -> int:
        """One more than the highest id that has a token."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def id_of(self, token: str) -> int | None:
        """The id of a token given by its literal, None if there is none."""
        return self._tokenizer.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain text; nothing in it can become a control token.

        Raises:
            RequestError: if the text is not valid Unicode.
        """
        ids: list[int] = _encode(self._tokenizer, text).ids
        if self._control.keys().isdisjoint(ids):
            return ids
        # the unknown token alone may come from ordinary text
        forbidden = self._control.keys() - {self.id_of(self.named.get("unk_token", ""))}
        ids, pending = [], [text]
        while pending:
            piece = pending.pop()
            encoding = self._plain.encode(piece, add_special_tokens=False)
            spans = zip(encoding.ids, encoding.offsets, strict=True)
            found = [span for token, span in spans if token in forbidden]
            if not found:
                ids += encoding.ids
                continue
            # the vocabulary holds the literal as an ordinary word too: cut it behind its first character
            if any(end - start < 2 for start, end in found):
                raise RequestError("the text holds a character that is a control token of this model; leave it out")
            cuts = [0, *(start + 1 for start, _ in found), len(piece)]
            pending += [piece[start:end] for start, end in pairwise(cuts)][::-1]
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to and including the opening of the assistant's answer.

        Args:
            messages: `{"role": ..., "content": ...}`, roles as in `ROLES`, contents as text.

        Raises:
            RequestError: if the checkpoint has no chat template, a message is malformed, or the template refuses.
        """
        template = self.template
        if template is None:
            raise RequestError(
                "this checkpoint has no chat template: it is a base model, which continues plain text; "
                "send a prompt in place of messages"
            )
        _check_messages(messages)
        hidden: dict[str, str] = {}
        shielded = [
            {key: self._shield(value, hidden) if isinstance(value, str) else value for key, value in message.items()}
            for message in messages
        ]
        rendered = _render(template, shielded, self.named)
        if not hidden:
            return list(_encode(self._tokenizer, rendered).ids)

        # the template's own control tokens cut the text; between them everything is plain, hidden literals included
        ids: list[int] = []
        for piece, control in self._cut(rendered):
            ids += self.encode(_replace_all(piece, hidden))
            if control is not None:
                ids.append(control)
        return ids

    def _shield(self, text: str, hidden: dict[str, str]) -> str:
        """Swap control literals for words nobody can guess, and remember which stands for which."""
        parts: list[str] = []
        end = 0
        encoding = _encode(self._tokenizer, text)
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._control:
                word = secrets.token_hex(16)
                hidden[word] = text[start:stop]
                parts += [text[end:start], word]
                end = stop
        return "".join([*parts, text[end:]])

    def _cut(self, rendered: str) -> Iterator[tuple[str, int | None]]:
        """Stretches of plain text, each with the id of the control token behind it."""
        end = 0
        encoding = _encode(self._tokenizer, rendered)
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._control:
                yield rendered[end:start], token
                end = stop
        yield rendered[end:], None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of an answer: control tokens and ids without a token (padding rows of the embedding) are left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def decode_pieces(self, ids: Sequence[int]) -> list[str]:
        """What each token adds to the text; joined, the pieces are `decode(ids)`.

        A character made of several byte tokens belongs to the last of them. Costs linear time, unlike decoding every
        prefix: each piece is decoded together with the piece before it only.
        """
        pieces = [""] * len(ids)
        spoken = [(at, token) for at, token in enumerate(ids) if token not in self._special]
        tokens = [token for _, token in spoken]
        previous = start = 0
        for count, (at, _) in enumerate(spoken, start=1):
            text = self.decode(tokens[previous:count])
            if text.endswith("\ufffd") and count < len(spoken):
                continue
            pieces[at] = text[len(self.decode(tokens[previous:start])) :]
            previous, start = start, count
        return pieces

    def token_bytes(self, token: int) -> bytes | None:
        """What a token adds in the middle of a text, as UTF-8 that may begin or end inside a character; None for
        control tokens and ids without a token."""
        literal = self._tokenizer.id_to_token(token)
        if literal is None or token in self._special:
            return None
        text = self.decode_pieces([token, token])[1]
        if "\ufffd" in text:
            byte = re.fullmatch(r"<0x([0-9A-F]{2})>", literal)  # how vocabularies of characters spell single bytes
            if byte:
                return bytes.fromhex(byte[1])
            if all(letter in _BYTES for letter in literal):
                return bytes(_BYTES[letter] for letter in literal)
        return text.encode()

    def token_text(self, token: int) -> str:
        """One token for a display: control tokens as their literal, ids without a token as `<id>`."""
        literal = self._tokenizer.id_to_token(token)
        if literal is None:
            return f"<{token}>"
        return literal if token in self._special else self.decode([token])


def _encode(tokenizer: Tokenizer, text: str) -> Any:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"the text is not valid Unicode: lone surrogate at character {error.start}") from None
    return tokenizer.encode(text, add_special_tokens=False)


def _replace_all(text: str, replacements: Mapping[str, str]) -> str:
    for word, literal in replacements.items():
        text = text.replace(word, literal)
    return text


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise RequestError("messages is empty: send at least one message")
    for at, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise RequestError(f"messages[{at}].role must be one of {', '.join(ROLES)}: got {message.get('role')!r}")
        if not isinstance(message.get("content"), str):
            raise RequestError(f"messages[{at}].content must be text: got {type(message.get('content')).__name__}")


def _literal(entry: Any) -> str | None:
    """A token as config files write it: its text, or an object that holds the text."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) and content else None


def _named_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    legacy = folder / "special_tokens_map.json"
    sources: dict[str, Any] = {**(read_json(legacy) if legacy.is_file() else {}), **config}
    literals = {name: _literal(sources.get(name)) for name in NAMED_TOKENS}
    return {name: literal for name, literal in literals.items() if literal is not None}


def _load_tokenizer(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    try:
        if file.is_file():
            return Tokenizer.from_file(str(file))
        if vocabulary.is_file() and merges.is_file():
            file = vocabulary
            return _byte_level(vocabulary, merges)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{file}: not a readable tokenizer: {error}") from error
    raise CheckpointError(f"{folder}: holds no tokenizer, neither tokenizer.json nor vocab.json with merges.txt")


def _byte_level(vocabulary: Path, merges: Path) -> Tokenizer:
    """The Qwen2 tokenizer that Dream publishes in two files."""
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(folder: Path, tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Register the tokens that only the config files list, at the ids they state."""
    legacy = folder / "added_tokens.json"
    stated: dict[int, Any] = {}
    if legacy.is_file():
        stated = {token: {"content": content} for content, token in read_json(legacy).items()}
    stated |= {int(token): entry for token, entry in config.get("added_tokens_decoder", {}).items()}
    # without a config section every token of the legacy file that a role names is a control token
    special = {*named.values(), *filter(None, map(_literal, config.get("additional_special_tokens") or []))}
    for token, entry in sorted(stated.items()):
        content = _literal(entry)
        if content is None:
            raise CheckpointError(f"{folder / 'tokenizer_config.json'}: added token {token} has no content")
        added = AddedToken(
            content,
            special=bool(entry.get("special", False)) or content in special,
            normalized=bool(entry.get("normalized", False)),
            lstrip=bool(entry.get("lstrip", False)),
            rstrip=bool(entry.get("rstrip", False)),
            single_word=bool(entry.get("single_word", False)),
        )
        (tokenizer.add_special_tokens if added.special else tokenizer.add_tokens)([added])
        if tokenizer.token_to_id(content) != token:
            raise CheckpointError(
                f'{folder}: the config puts the token "{content}" at id {token}, '
                f"the tokenizer at {tokenizer.token_to_id(content)}"
            )
    # a role may name a token that no list marks as special
    marked = {entry.content for entry in tokenizer.get_added_tokens_decoder().values() if entry.special}
    late = [content for content in special - marked if tokenizer.token_to_id(content) is not None]
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in late])


def _load_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Jinja source: the file of its own if there is one, else the entry of tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f'{folder / "tokenizer_config.json"}: "chat_template" must be text')
    return template


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: marks answers for training; rendering only passes it through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise RequestError(f"the chat template refuses these messages: {message}")


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    """Compile a template of unknown origin: sandboxed, and unable to change what it is given."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    helpers: dict[str, Callable[..., Any]] = {"raise_exception": _refuse, "strftime_now": _now}
    environment.globals.update(helpers)
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


def _render(source: str, messages: Sequence[Message], named: Mapping[str, str]) -> str:
    try:
        return _compiled(source).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **named
        )
    except jinja2.TemplateError as error:
        raise RequestError(f"the chat template cannot render these messages: {error}") from error
