"""The store of keys and values: partial exchanges, and rows that leave and join in the middle of a run."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
from unmask.caches import CACHES, CachePolicy, KVStore
from unmask.caches.base import NO_TOKEN
from unmask.core.canvas import Canvas, ForwardPlan, plain_view, plan
from unmask.core.prediction import Prediction
from unmask.core.sampling import Noise, Sampling
from unmask.core.schedules import SCHEDULES, Schedule
from unmask.core.state import DenoisingState
from unmask.core.window import Window
from unmask.decoders import DECODERS, Decoder

SLOTS = 4


def store_of(num_rows: int = 2, num_slots: int = SLOTS, keeps: bool = True) -> KVStore:
    return KVStore(num_rows, num_slots, keeps, torch.arange(num_rows) + 1)


def work_on(rows: list[list[int]], extra: int = 0, everything: bool = False, slots: int = SLOTS) -> ForwardPlan:
    index = torch.tensor(rows)
    count = torch.full((len(rows),), index.shape[1])
    visible = torch.ones(len(rows), slots + extra, dtype=torch.bool)
    return ForwardPlan(index, count, index, count, index, visible, everything)


def heads(values: list[list[float]]) -> Tensor:
    """One head of size 1 per row: (b, 1, r, 1)."""
    return torch.tensor(values, dtype=torch.float32)[:, None, :, None]


def flat(tensor: Tensor) -> list[list[float]]:
    return tensor[:, 0, :, 0].tolist()


def full(store: KVStore, first: float = 0.0, extra: int = 0) -> KVStore:
    """Compute every slot of both rows: keys first, first + 1, ...; values are ten times the keys."""
    rows, slots = store.computed_for.shape
    numbers = first + torch.arange(rows * (slots + extra)).view(rows, slots + extra).float()
    everything = work_on([list(range(slots + extra))] * rows, extra, everything=True, slots=slots)
    store.exchange(0, numbers[:, None, :, None], 10 * numbers[:, None, :, None], everything)
    store.computed_for = torch.ones_like(store.computed_for)
    return store


# Exchange ------------------------------------------------------------------------------------------------------------


def test_computed_rows_replace_their_slots_and_no_others() -> None:
    store = full(store_of())
    k, v = store.exchange(0, heads([[-1, -2], [-3, -4]]), heads([[-5, -6], [-7, -8]]), work_on([[1, 2], [0, 3]]))
    assert flat(k) == flat(store.keys[0]) == [[0, -1, -2, 3], [-3, 5, 6, -4]]
    assert flat(v) == flat(store.values[0]) == [[0, -5, -6, 30], [-7, 50, 60, -8]]


def test_padding_rows_repeat_a_slot_and_do_no_harm() -> None:
    store = full(store_of())
    k, _ = store.exchange(0, heads([[-1, -1], [-3, -4]]), heads([[0, 0], [0, 0]]), work_on([[1, 1], [0, 3]]))
    assert flat(k) == [[0, -1, 2, 3], [-3, 5, 6, -4]]


def test_extra_slots_are_handed_back_and_not_kept() -> None:
    store = full(store_of(num_rows=1))
    k, v = store.exchange(0, heads([[-1, -2]]), heads([[-3, -4]]), work_on([[2, 5]], extra=2))
    assert flat(k) == [[0, 1, -1, 3, 0, -2]] and flat(v) == [[0, 10, -3, 30, 0, -4]]
    assert flat(store.keys[0]) == [[0, 1, -1, 3]] and flat(store.values[0]) == [[0, 10, -3, 30]]


def test_a_whole_pass_keeps_the_canvas_and_hands_back_the_extra_slots() -> None:
    store = store_of(num_rows=1)
    everything = work_on([[0, 1, 2, 3, 4]], extra=1, everything=True)
    for turn in (0.0, 5.0):  # the first pass opens the layer, the second replaces it
        k, _ = store.exchange(0, heads([[0, 1, 2, 3, 4]]) + turn, heads([[9, 9, 9, 9, 9]]), everything)
        assert flat(k) == [[turn, turn + 1, turn + 2, turn + 3, turn + 4]]
        assert flat(store.keys[0]) == [[turn, turn + 1, turn + 2, turn + 3]]
    assert len(store.keys) == 1


def test_the_first_pass_may_be_partial() -> None:
    k, _ = store_of(num_rows=1).exchange(0, heads([[7]]), heads([[8]]), work_on([[2]]))
    assert flat(k) == [[0, 0, 7, 0]]


def test_layers_are_kept_apart() -> None:
    store = full(store_of(num_rows=1))
    store.exchange(1, heads([[5]]), heads([[6]]), work_on([[0]]))
    assert flat(store.keys[0]) == [[0, 1, 2, 3]] and flat(store.keys[1]) == [[5, 0, 0, 0]]


def test_a_store_that_keeps_nothing_hands_back_what_it_gets() -> None:
    store = store_of(keeps=False)
    k, v = heads([[1.0] * 4] * 2), heads([[2.0] * 4] * 2)
    got = store.exchange(0, k, v, work_on([[0, 1, 2, 3]] * 2, everything=True))
    assert got[0] is k and got[1] is v and not store.keys
    state = DenoisingState.start([[1], [1]], 3, mask_id=9)
    store.note(plain_view(state), work_on([[0, 1, 2, 3]] * 2))
    assert store.known(state.tokens) is None


# What was computed for which token -----------------------------------------------------------------------------------


def test_note_remembers_the_token_of_every_computed_slot() -> None:
    state = DenoisingState.from_canvas([[1, None, 3, None], [4, None, None, None]], mask_id=9)
    store = store_of()
    assert not store.known(state.tokens).any()  # type: ignore[union-attr]
    store.note(plain_view(state), work_on([[1, 2], [0, 0]]))
    assert store.computed_for.tolist() == [[NO_TOKEN, 9, 3, NO_TOKEN], [4, NO_TOKEN, NO_TOKEN, NO_TOKEN]]
    known = store.known(state.tokens)
    assert known is not None and known.tolist() == [[False, True, True, False], [True, False, False, False]]


def test_note_forgets_extra_slots_and_slots_that_nobody_sees() -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 9]])
    canvas = Canvas(tokens, torch.tensor([[0, 1, 2, 3, 1]]), extra=1)
    work = work_on([[0, 3, 4]], extra=1)
    work.visible[0, 3] = False
    store = store_of(num_rows=1)
    store.note(canvas, work)
    assert store.computed_for.tolist() == [[1, NO_TOKEN, NO_TOKEN, NO_TOKEN]]


# Rows come and go ----------------------------------------------------------------------------------------------------


def test_rows_leave_with_everything_that_is_stored_for_them() -> None:
    taken = full(store_of(num_rows=3)).take_rows(torch.tensor([2, 0]))
    assert flat(taken.keys[0]) == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert flat(taken.values[0])[1] == [0, 10, 20, 30]
    assert taken.prompt_length.tolist() == [3, 1] and taken.computed_for.shape == (2, SLOTS)


def test_rows_join_and_the_shorter_ones_get_slots_with_nothing_stored() -> None:
    joined = full(store_of(num_rows=1, num_slots=2), first=7).join_rows(full(store_of(num_rows=2, num_slots=3)))
    assert flat(joined.keys[0]) == [[7, 8, 0], [0, 1, 2], [3, 4, 5]]
    assert joined.computed_for.tolist() == [[1, 1, NO_TOKEN], [1, 1, 1], [1, 1, 1]]
    assert joined.prompt_length.tolist() == [1, 1, 2]


@pytest.mark.parametrize("newcomer_first", [False, True])
def test_a_store_that_holds_nothing_yet_joins_one_that_does(newcomer_first: bool) -> None:
    old, new = full(store_of(num_rows=1)), store_of(num_rows=1, num_slots=6)
    joined = new.join_rows(old) if newcomer_first else old.join_rows(new)
    mine, other = (1, 0) if newcomer_first else (0, 1)
    assert flat(joined.keys[0])[mine] == [0, 1, 2, 3, 0, 0]
    assert joined.computed_for[mine].tolist() == [1, 1, 1, 1, NO_TOKEN, NO_TOKEN]
    assert (joined.computed_for[other] == NO_TOKEN).all()


def test_two_fresh_stores_join_to_a_fresh_one() -> None:
    joined = store_of(num_rows=1, num_slots=2).join_rows(store_of(num_rows=2, num_slots=5))
    assert joined.computed_for.shape == (3, 5) and not joined.keys


def test_stores_of_different_kinds_cannot_be_joined() -> None:
    with pytest.raises(AssertionError, match="stores of different caches cannot be joined"):
        store_of().join_rows(store_of(keeps=False))


# A run whose rows come and go ----------------------------------------------------------------------------------------


@dataclass
class Batch:
    """The parts of the loop, driven by hand: what a server does whose rows join between two steps."""

    family: str
    state: DenoisingState
    decoder: Decoder
    schedule: Schedule
    policy: CachePolicy
    store: KVStore
    temperature: float = 0.7

    @classmethod
    def of(cls, family: str, row: int, decoder: str, schedule: str, cache: str) -> "Batch":
        state, policy = contract.first_state(family, (row,)), CACHES.make(cache)
        store: Any = contract.model(family).predictor.open_store(state, policy)
        return cls(family, state, DECODERS.make(decoder), SCHEDULES.make(schedule), policy, store)

    def step(self) -> None:
        predictor, state = contract.model(self.family).predictor, self.state
        window: Window = self.schedule.window(state, None)
        canvas = plain_view(state)
        wanted, known = self.policy.frozen(state, window, None), self.store.known(state.tokens)
        frozen = None if wanted is None or known is None else wanted & known
        work = plan(canvas, window, self.decoder.asks(state, window, canvas), frozen, predictor.facts.shift)
        with torch.inference_mode():
            logits = predictor(canvas, work, self.policy, self.store)
        self.store.note(canvas, work)
        sampling = Sampling(temperature=self.temperature, precision=torch.float64)
        prediction = Prediction(logits, work, state.num_slots, sampling, Noise(state.seed, state.step))
        self.state = state.apply(self.decoder.decide(state, window, prediction, None))  # type: ignore[arg-type]

    def join(self, other: "Batch") -> None:
        self.state, self.store = self.state.join(other.state), self.store.join_rows(other.store)

    def leave(self) -> dict[int, list[int]]:
        """Take out the finished rows: their seeds and answers."""
        done = self.state.done.nonzero()[:, 0].tolist()
        answers = {int(self.state.seed[row]): self.state.tokens[row][self.state.answer[row]].tolist() for row in done}
        left = (~self.state.done).nonzero()[:, 0]
        self.state, self.store = self.state.take(left), self.store.take_rows(left)
        return answers


@pytest.mark.parametrize(
    ("family", "cache"),
    [
        *(("llada", "none"), ("llada", "prefix"), ("dream", "dual"), ("dream", "dual(refresh=3)")),
        *((family, "features(prompt_every=5, answer_every=3, share=0.3)") for family in ("llada", "dream")),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["wide-first", "narrow-first"])
def test_rows_that_join_on_the_way_decode_as_if_alone(family: str, cache: str, order: tuple[int, ...]) -> None:
    """The second row joins after three steps, the third after five; each leaves when it is finished."""
    parts = "threshold(threshold=0.8)", "sequential(block_length=4)", cache
    batch, answers = Batch.of(family, order[0], *parts), {}
    for number in range(100):
        if number in (3, 5):
            batch.join(Batch.of(family, order[1 if number == 3 else 2], *parts))
        batch.step()
        answers |= batch.leave()
        if len(answers) == 3:
            break
    assert sorted(answers) == [0, 1, 2]
    for row, tokens in answers.items():
        alone = contract.run(
            family,
            contract.first_state(family, (row,)),
            DECODERS.make(parts[0]),
            SCHEDULES.make(parts[1]),
            CACHES.make(cache),
            temperature=0.7,
        )
        assert tokens == contract.answer(alone)[0]
