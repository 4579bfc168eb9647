"""Launcher of paged.cu: decode of a KV cache in pages [page, KV head, key in the page]."""

from dataclasses import replace

import numpy as np

from ..simulator.schedules._decode import cut
from .base import ceil_div
from .split_kv import SplitKV

PAGE_NUMBER_BYTES = 4


class Paged(SplitKV):
    name = schedule = "paged"
    reads = ("Q", "K", "V", "table")

    def cut(self, problem, tiles):
        return cut(problem, tiles.splits, max(tiles.bc, tiles.page))

    def shared_bytes(self, problem, tiles):
        entries = ceil_div(self.cut(problem, tiles).keys, tiles.page)
        return super().shared_bytes(problem, tiles) + entries * PAGE_NUMBER_BYTES

    def check(self, problem, tiles):
        super().check(problem, tiles)
        if max(tiles.bc, tiles.page) % min(tiles.bc, tiles.page):
            raise self._refusal("page", tiles.page, f"a divisor or a multiple of bc {tiles.bc}")

    def arrange(self, xp, inputs, problem, tiles):
        """K and V in a pool of pages in random order, and the table that says where each is."""
        pages = ceil_div(problem.kv_seq, tiles.page)
        places = np.random.default_rng(0).permutation(problem.batch * pages)
        table = xp.asarray(places.reshape(problem.batch, pages).astype(np.int32))
        pools = {name: _pool(xp, inputs[name], table, tiles.page) for name in "KV"}
        return inputs | pools | {"table": table}

    def defines(self, problem, tiles):
        return super().defines(problem, tiles) | {"PAGE": str(tiles.page)}

    def launches(self, problem, tiles, order="row"):
        attend, *combine = super().launches(problem, tiles, order)
        at = attend.arguments.index("table") + 1
        arguments = (*attend.arguments[:at], "kv_heads", *attend.arguments[at:])
        return replace(attend, arguments=arguments), *combine


def _pool(xp, cache, table, page: int):
    """[batch, KV heads, keys, width] -> [pages, KV heads, page, width]; what pads pages is 0."""
    batch, heads, keys, width = cache.shape
    pages = table.shape[1]
    whole = xp.zeros((batch, heads, pages * page, width), cache.dtype)
    whole[:, :, :keys] = cache
    pool = xp.empty((batch * pages, heads, page, width), cache.dtype)
    whole = whole.reshape(batch, heads, pages, page, width).swapaxes(1, 2)
    pool[table.reshape(-1)] = whole.reshape(pool.shape)
    return pool


KERNEL = Paged()
