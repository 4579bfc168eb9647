"""Hypothesis strategies for small attention problems and tiles, ragged on purpose."""

from dataclasses import replace

from hbmeter.simulator import schedules
from hbmeter.simulator.problem import DTYPE_BYTES, Attention
from hbmeter.simulator.tiles import Tiles
from hypothesis import strategies as st

SIZES = st.integers(1, 40)
MASKS = st.one_of(
    st.sampled_from(["full", "causal"]), st.integers(1, 45).map(lambda width: f"window:{width}")
)
TILES = st.builds(
    Tiles, br=st.integers(1, 48), bc=st.integers(1, 48), stages=st.integers(1, 3),
    bk=st.integers(1, 12), splits=st.integers(1, 8), page=st.integers(1, 20),
)


def posed_for(schedule, problem):
    """The problem as a schedule can compute it: its pass, and values that are part of the keys
    where the schedule loads them once."""
    problem = replace(problem, direction=schedules.direction(schedule))
    if schedule != "mla_decode":
        return problem
    return replace(problem, head_dim=problem.head_dim + problem.value_dim - 1, shared_kv=True)


@st.composite
def problems(draw, dtypes=tuple(DTYPE_BYTES), masks=MASKS):
    """Any Attention: n_q ≠ n_kv, grouped heads, value_dim ≠ head_dim, every mask."""
    kv_heads = draw(st.integers(1, 2))
    return Attention(
        batch=draw(st.integers(1, 2)), heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads, seq=draw(SIZES), kv_seq=draw(SIZES),
        head_dim=draw(st.integers(1, 10)), value_dim=draw(st.integers(1, 10)),
        dtype=draw(st.sampled_from(dtypes)), mask=draw(masks),
    )
