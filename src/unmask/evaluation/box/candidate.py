"""The process that holds code under test. It knows neither the checks nor what they expect, and gives no verdict.

It does what the checker asks: run the program, call one of its functions, hand over a value.
"""

import builtins
import itertools
import os
import sys
from contextlib import suppress
from typing import Any

from unmask.evaluation.box.lockdown import lock
from unmask.evaluation.box.wire import Closed, Wire, decode, encode

MOST_ITEMS = 100_000  # taken from an iterator


class Holder:
    """What the program has made and could not be sent as a plain value, by number."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.names: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}

    def keep(self, value: Any) -> list[Any]:
        """Remember a value; gives what travels in its place."""
        self.kept.append(value)
        return ["ref", len(self.kept) - 1, type(value).__name__]

    def find(self, data: list[Any]) -> Any:
        """The value that a reference or the name of a global variable stands for."""
        if data[0] == "ref":
            return self.kept[data[1]]
        if data[1] not in self.names:
            raise NameError(f"name '{data[1]}' is not defined")
        return self.names[data[1]]

    def answer(self, message: dict[str, Any]) -> Any:
        """Do what a message asks."""
        if message["do"] == "run":
            exec(compile(message["source"], "program", "exec"), self.names)
            return None
        target = self.find(message["on"])
        given = [decode(part, self.find) for part in message["given"]]
        if message["do"] == "call":
            named = {name: decode(part, self.find) for name, part in message["named"].items()}
            return target(*given, **named)
        if message["do"] == "items":
            return list(itertools.islice(iter(target), MOST_ITEMS))
        plain = {"get": getattr, "set": setattr, "item": lambda one, key: one[key], "length": len}
        return plain[message["do"]](target, *given)  # type: ignore[operator]


def main(reader: int, writer: int, folder: str, seconds: float, memory: int) -> None:
    """Answer messages until the checker goes."""
    wire, holder = Wire(reader, writer), Holder()
    layers = lock(folder, seconds=seconds, memory=memory)
    sys.argv = ["program"]
    wire.send(layers)
    while True:
        try:
            message = wire.receive()
        except Closed:  # the checker has its verdict
            os._exit(0)
        try:
            reply = {"value": encode(holder.answer(message), holder.keep)}
        except BaseException as error:
            known = next(one.__name__ for one in type(error).__mro__ if one.__module__ == "builtins")
            try:
                said = str(error)[:300]
            except BaseException:
                said = ""
            reply = {"raised": [known, type(error).__name__, said]}
        with suppress(BaseException):  # the program may have put anything in their place
            sys.stdout.flush()
            sys.stderr.flush()
        try:
            wire.send(reply)
        except ValueError as error:
            wire.send({"raised": ["ValueError", "ValueError", str(error)]})
