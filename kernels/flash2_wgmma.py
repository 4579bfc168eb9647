"""Launcher of flash2_wgmma.cu: FlashAttention-2 forward with Hopper's TMA and wgmma."""

import numpy as np

from ..simulator.errors import InputError
from ..simulator.execution import wgmma
from ..simulator.tiles import Tiles
from .base import MAX_SHARED_BYTES, SHAPE, Kernel, Launch, ceil_div

ROWS_PER_GROUP = 64  # of a consumer warpgroup: wgmma's m
CHUNK = 64  # columns in a row of the 128-byte swizzle
BARRIER_BYTES = 1024
GAIN_OF_192_ROWS = 1.2  # scores a second over those of 128 rows, d 64; measured on an H200
REGISTERS = {1: (0, 232), 2: (40, 232), 3: (32, 160)}  # of a producer's and a consumer's threads


class Flash2Wgmma(Kernel):
    name, schedule = "flash2_wgmma", "flash2"
    tensors = ("Q", "K", "V", "O", "LSE")
    outputs = ("O", "LSE")
    dtypes = ("fp16", "bf16")
    least_arch, only_arch = 90, "sm_90a"
    most_stages = 4
    matmul_dtype = None  # tensor cores take the inputs as they are
    tiles = {  # noqa: RUF012 (up to a width of head_dim and value_dim, the best first)
        64: (Tiles(192, 128, 2), Tiles(128, 128, 2), Tiles(64, 64, 2)),
        128: (Tiles(128, 128, 2), Tiles(128, 96, 2), Tiles(128, 160, 2), Tiles(64, 64, 2)),
        192: (Tiles(128, 112, 2), Tiles(128, 96, 2)),
        256: (Tiles(128, 80, 2), Tiles(128, 64, 2)),
    }

    def groups(self, tiles):
        return tiles.br // ROWS_PER_GROUP

    def query_stages(self, problem, tiles):
        """Buffers for Q: a second one, where it fits, takes the next tile's Q early."""
        return 2 if self._shared_bytes(problem, tiles, 2) <= MAX_SHARED_BYTES else 1

    def shared_bytes(self, problem, tiles):
        return self._shared_bytes(problem, tiles, self.query_stages(problem, tiles))

    @staticmethod
    def _shared_bytes(problem, tiles, query_stages):
        d, dv = (ceil_div(w, CHUNK) * CHUNK for w in (problem.head_dim, problem.value_dim))
        elements = query_stages * tiles.br * d + tiles.stages * tiles.bc * (d + dv)
        return elements * problem.dtype_bytes + BARRIER_BYTES

    def live_registers(self, problem, tiles):
        value_width = ceil_div(problem.value_dim, CHUNK) * CHUNK
        return 3 * tiles.bc // 4 + value_width // 2 + 30  # S and P, O, the rest

    def check(self, problem, tiles):
        super().check(problem, tiles)
        if self.groups(tiles) * ROWS_PER_GROUP != tiles.br or self.groups(tiles) not in REGISTERS:
            raise self._refusal("br", tiles.br, "64, 128 or 192")
        registers, most = self.live_registers(problem, tiles), REGISTERS[self.groups(tiles)][1]
        if registers > most:
            raise InputError(
                f"kernel {self.name} with {tiles}, head_dim {problem.head_dim} needs about "
                f"{registers} registers a thread; {self.groups(tiles)} warpgroups get {most} each; "
                "use smaller tiles"
            )

    def tile_choices(self, problem):
        width = max(problem.head_dim, problem.value_dim)
        choices = next((tiles for most, tiles in self.tiles.items() if width <= most), ())
        choices = [tiles for tiles in choices if self.accepts(problem, tiles)]
        if choices and width <= 64 and self._scores(problem, choices[0]) > (
            GAIN_OF_192_ROWS * self._scores(problem, choices[1])
        ):
            choices[:2] = reversed(choices[:2])
        return tuple(choices)

    @staticmethod
    def _scores(problem, tiles):
        """Scores of one head that the column blocks hold, masked ones with them."""
        first = np.arange(0, problem.seq, tiles.br)
        low, _ = problem.mask_bounds.column_range(first, problem.kv_seq)
        _, high = problem.mask_bounds.column_range(first + tiles.br - 1, problem.kv_seq)
        blocks = np.maximum(-(-high // tiles.bc) - low // tiles.bc, 0)
        return int(blocks.sum()) * tiles.br * tiles.bc

    def defines(self, problem, tiles):
        producer, consumer = REGISTERS[self.groups(tiles)]
        return super().defines(problem, tiles) | {
            "STAGES": str(tiles.stages),
            "Q_STAGES": str(self.query_stages(problem, tiles)),
            "PRODUCER_REGISTERS": str(producer),
            "CONSUMER_REGISTERS": str(consumer),
        }

    def executions(self, problem, tiles):
        groups = self.groups(tiles)
        return (wgmma(tiles.bc, groups, ping_pong=groups > 1),)

    def filled_bytes(self, problem, tiles):
        """A box of TMA that reaches beyond the last row of Q, K or V is filled up with zeros."""
        first = np.arange(0, problem.seq, tiles.br)
        low, _ = problem.mask_bounds.column_range(first, problem.kv_seq)
        last = np.minimum(first + tiles.br, problem.seq) - 1
        _, high = problem.mask_bounds.column_range(last, problem.kv_seq)
        end = (ceil_div(problem.kv_seq, tiles.bc) - 1) * tiles.bc  # where the last box begins
        reach = int(np.count_nonzero((high > end) & (high > low)))
        rows = -problem.seq % tiles.br * problem.head_dim
        keys = reach * (-problem.kv_seq % tiles.bc) * (problem.head_dim + problem.value_dim)
        return problem.head_count * (rows + keys) * problem.dtype_bytes

    def issue_order(self, order):
        """The last row blocks come first in every order. Its blocks stay and take the next tile of
        a counter when they are done, as a grid's next block takes the place of one that ends."""
        return "longest:1" if order == "row" else "longest"

    def launches(self, problem, tiles, order="row"):
        grid = problem.head_count * ceil_div(problem.seq, tiles.br)
        threads = 128 * (self.groups(tiles) + 1)
        return (
            Launch(
                "hbmeter_flash2_wgmma", grid, threads, self.shared_bytes(problem, tiles),
                (*self.tensors, *SHAPE), persistent=True,
                boxes=(("Q", tiles.br, CHUNK), ("K", tiles.bc, CHUNK), ("V", tiles.bc, CHUNK)),
            ),
        )


KERNEL = Flash2Wgmma()
