"""The fluid reference against cases worked by hand, its own laws, and two brute-force solvers."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.fluid import FluidNode, fair_level, fair_rates, thresholds

INF = math.inf

HAND_WORKED = [
    # (what the case shows, capacity, children, right rates)
    ("equal weights share equally", 10, [FluidNode(), FluidNode()], [5, 5]),
    ("shares follow weights", 14, [FluidNode(1), FluidNode(2), FluidNode(4)], [2, 4, 8]),
    ("what a cap leaves goes to the others", 10, [FluidNode(hard=2), FluidNode(), FluidNode()], [2, 4, 4]),
    ("what small demand leaves goes to the others", 10, [FluidNode(demand=1), FluidNode(2), FluidNode(1)], [1, 6, 3]),
    ("a floor above the fair share lifts", 10, [FluidNode(floor=4), FluidNode(4)], [4, 6]),
    ("a floor below the fair share changes nothing", 10, [FluidNode(floor=4), FluidNode()], [5, 5]),
    ("a floor cannot give more than demand", 10, [FluidNode(floor=4, demand=1), FluidNode(4)], [1, 9]),
    ("floors that do not all fit share by weight", 6, [FluidNode(1, floor=5), FluidNode(2, floor=5)], [2, 4]),
    ("a small floor is met before a large one", 6, [FluidNode(floor=1), FluidNode(floor=9), FluidNode()], [1, 5, 0]),
    ("a soft cap binds while others want more", 10, [FluidNode(soft=3), FluidNode()], [3, 7]),
    ("a soft cap yields what nobody else wants", 10, [FluidNode(soft=3), FluidNode(demand=2)], [8, 2]),
    ("borrowers count what they had below the cap", 12, [FluidNode(soft=5), FluidNode(soft=1)], [6, 6]),
    ("a borrower is lifted only once level", 9, [FluidNode(soft=6), FluidNode(soft=1)], [6, 3]),
    ("a soft cap stands above a hard one", 10, [FluidNode(soft=9, hard=2), FluidNode(soft=4)], [2, 8]),
    ("more room than all can use", 10, [FluidNode(hard=2), FluidNode(demand=3)], [2, 3]),
    ("no capacity", 0, [FluidNode(), FluidNode(floor=2)], [0, 0]),
]


@pytest.mark.parametrize(("_name", "capacity", "children", "right"), HAND_WORKED, ids=[row[0] for row in HAND_WORKED])
def test_hand_worked(_name: str, capacity: float, children: list[FluidNode], right: list[float]) -> None:
    assert fair_level(children, capacity) == pytest.approx(right)


def test_tree_shares_level_by_level() -> None:
    """An organisation with many projects gets what one with a single project gets; its cap binds their sum."""
    acme = FluidNode(1, children={"a": FluidNode(3), "b": FluidNode(1), "c": FluidNode(demand=0.5)})
    globex = FluidNode(1, children={"only": FluidNode()})
    capped = FluidNode(9, hard=3, children={"x": FluidNode(2), "y": FluidNode(1)})
    rates = fair_rates(FluidNode(children={"acme": acme, "globex": globex, "capped": capped}), 15)
    assert rates[("acme",)] == pytest.approx(6)
    assert rates[("globex", "only")] == pytest.approx(6)
    assert [rates[("acme", name)] for name in "abc"] == pytest.approx([4.125, 1.375, 0.5])
    assert [rates[("capped", name)] for name in "xy"] == pytest.approx([2, 1])


def test_capped_grandchildren_limit_what_an_organisation_can_use() -> None:
    """A node cannot be given more than its descendants may run."""
    deep = FluidNode(100, children={"p": FluidNode(children={"q": FluidNode(hard=1), "r": FluidNode(demand=1)})})
    rates = fair_rates(FluidNode(children={"deep": deep, "flat": FluidNode()}), 10)
    assert (rates[("deep",)], rates[("flat",)]) == pytest.approx((2, 8))


# --- laws ---------------------------------------------------------------------------------------------

amounts = st.integers(0, 12).map(float)
limits = st.one_of(st.just(INF), amounts)
leaves = st.builds(
    FluidNode,
    weight=st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0]),
    floor=st.one_of(st.just(0.0), amounts),
    soft=limits,
    hard=limits,
    demand=limits,
)
levels = st.lists(leaves, min_size=1, max_size=6)
capacities = st.integers(0, 40).map(float)


def trees() -> st.SearchStrategy[FluidNode]:
    """Trees of depth 1 to 4."""

    def grow(below: st.SearchStrategy[FluidNode]) -> st.SearchStrategy[FluidNode]:
        return st.builds(
            lambda node, children: FluidNode(
                node.weight, node.floor, node.soft, node.hard, children={str(i): c for i, c in enumerate(children)}
            ),
            leaves,
            st.lists(below, min_size=1, max_size=3),
        )

    return grow(st.recursive(leaves, grow, max_leaves=8))


@given(levels, capacities)
def test_level_is_feasible_and_conserves_work(children: list[FluidNode], capacity: float) -> None:
    rates = fair_level(children, capacity)
    assert all(0 <= rate <= child.most() + 1e-9 for rate, child in zip(rates, children, strict=True))
    assert sum(rates) == pytest.approx(min(capacity, sum(child.most() for child in children)))


@given(levels, capacities)
def test_no_exchange_improves_it(children: list[FluidNode], capacity: float) -> None:
    """Optimality by exchange: nobody above an unfilled tier of another, nor above its level inside a tier."""
    rates = fair_level(children, capacity)
    for (x, a), (y, b) in itertools.permutations(zip(rates, children, strict=True), 2):
        rich, poor = tier_of(x, a, receiving=False), tier_of(y, b, receiving=True)
        assert rich <= poor, "a lower tier is left unfilled"
        if rich == poor < 3:
            assert x / a.weight <= y / b.weight + 1e-6, "one water level inside a tier"


def tier_of(rate: float, node: FluidNode, *, receiving: bool) -> int:
    """Return the tier that the next (``receiving``) or the last bit of ``rate`` lies in; 3 (or -1): there is none."""
    if receiving:
        return next((i for i, end in enumerate(thresholds(node)) if rate < end - 1e-7), 3)
    return next((i for i in (2, 1, 0) if rate > (0.0, *thresholds(node))[i] + 1e-7), -1)


@given(levels, capacities, st.integers(1, 5).map(float))
def test_more_capacity_hurts_nobody(children: list[FluidNode], capacity: float, more: float) -> None:
    before, after = fair_level(children, capacity), fair_level(children, capacity + more)
    assert all(y >= x - 1e-9 for x, y in zip(before, after, strict=True))


@given(levels, capacities, st.data())
def test_a_departure_hurts_nobody_else(children: list[FluidNode], capacity: float, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(children) - 1))
    before = fair_level(children, capacity)
    del before[gone]
    after = fair_level(children[:gone] + children[gone + 1 :], capacity) if len(children) > 1 else []
    assert all(y >= x - 1e-9 for x, y in zip(before, after, strict=True))


@given(trees(), capacities)
def test_tree_is_feasible_at_every_node(root: FluidNode, capacity: float) -> None:
    rates = fair_rates(root, capacity)
    pending: list[tuple[tuple[str, ...], FluidNode]] = [((), root)]
    while pending:
        path, node = pending.pop()
        assert rates[path] <= node.most() + 1e-9
        if node.children:
            below = [(*path, name) for name in node.children]
            assert sum(rates[p] for p in below) == pytest.approx(rates[path])
            pending += list(zip(below, node.children.values(), strict=True))
    assert rates[()] == pytest.approx(min(capacity, root.most()))


@given(levels, capacities, st.integers(2, 40))
def test_splitting_moves_no_share(children: list[FluidNode], capacity: float, parts: int) -> None:
    """A tenant that splits into any number of equal parts gets what it got whole."""
    whole = children[0]
    split = FluidNode(
        whole.weight,
        whole.floor,
        whole.soft,
        whole.hard,
        children={str(i): FluidNode(demand=whole.demand / parts) for i in range(parts)},
    )
    assert fair_level([split, *children[1:]], capacity) == pytest.approx(fair_level(children, capacity))


# --- brute force --------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(leaves, min_size=1, max_size=4), st.integers(0, 20))
def test_agrees_with_filling_drop_by_drop(children: list[FluidNode], capacity: int) -> None:
    """Pour in small drops, each to the lowest child of the lowest unfilled tier."""
    drop = 1 / 64
    held = [0.0] * len(children)
    for _ in range(capacity * 64):
        ranked = [
            (tier, held[i] / child.weight, i)
            for i, child in enumerate(children)
            if (tier := tier_of(held[i], child, receiving=True)) < 3
        ]
        if not ranked:
            break
        held[min(ranked)[2]] += drop
    assert fair_level(children, capacity) == pytest.approx(held, abs=drop * len(children) * 14)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=3),
    st.integers(0, 12),
)
def test_agrees_with_enumeration(rows: list[tuple[int, int]], capacity: int) -> None:
    """Among all feasible grids, the max-min one: its sorted levels are the largest in dictionary order."""
    children = [FluidNode(weight, hard=hard) for weight, hard in rows]
    steps = 2  # grid of half slots
    total = min(capacity, sum(hard for _, hard in rows)) * steps
    best = max(
        (grid for grid in itertools.product(*(range(hard * steps + 1) for _, hard in rows)) if sum(grid) == total),
        key=lambda grid: sorted(units / weight for units, (weight, _) in zip(grid, rows, strict=True)),
    )
    rates = fair_level(children, capacity)
    assert all(abs(rate - units / steps) <= 1.0 for rate, units in zip(rates, best, strict=True))
    ours = min((rate / weight for rate, (weight, _) in zip(rates, rows, strict=True)), default=0.0)
    assert ours >= min(units / steps / weight for units, (weight, _) in zip(best, rows, strict=True)) - 1e-9
