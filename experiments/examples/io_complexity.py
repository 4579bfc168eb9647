"""IO complexity: do the bytes grow as the papers say?

Standard attention moves Θ(nd + n²) bytes between SRAM and HBM, FlashAttention Θ(n²d²/M)
(arXiv 2205.14135, Theorem 2): both quadratic in n, and only the tiled one falls as the shared
memory M grows. Run it whole, or cell by cell (# %%) in an editor; it needs no GPU, and pandas
(pip install 'hbmeter[tables]').
"""

# %% A sweep: bytes counted from the tile programs, with the same tiles at every length
import numpy as np
from hbmeter.experiments import style
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, Tiles, sweep, theory

LENGTHS = [2**k for k in range(9, 18)]
common = {"batch": 1, "heads": 1, "head_dim": 64, "engine": "scratchpad", "br": 128, "bc": 128}
table = sweep({"common": common, "grid": {"schedule": ["standard", "flash2"], "seq": LENGTHS}})
table["sm_bytes"] = table.sm_read_bytes + table.sm_write_bytes
bytes_at = table.pivot(index="seq", columns="schedule", values="sm_bytes")
print(bytes_at.to_string())

# %% Fitted exponents over the longer half, and the closed form beside the count (standard grows a
# little faster than n² where rows of S leave shared memory and are read twice)
for schedule, values in bytes_at.items():
    half = len(LENGTHS) // 2
    slope, _ = np.polyfit(np.log(LENGTHS[half:]), np.log(values[half:].astype(float)), 1)
    problem = Attention(batch=1, heads=1, seq=LENGTHS[-1], head_dim=64)
    form = theory.bytes_by_tensor(schedule, problem, Tiles(128, 128))
    print(f"{schedule}: bytes grow as n^{slope:.2f}; at n {LENGTHS[-1]:,} counted "
          f"{values[LENGTHS[-1]]:,}, closed form {sum(map(sum, form.values())):,}")

# %% The role of M: the tiles that fit shrink with the shared memory, and bytes grow
memory = sweep({"common": common | {"seq": 8192, "head_dim": 256, "bc": "choose", "br": "choose"},
                "grid": {"gpu": ["h200", "a100-80gb", "rtx4090", "t4"]}})
for row in memory.itertuples():
    print(f"{row.gpu}: {load(row.gpu).smem.bytes_per_block_max:,} B a block, Br {row.br}, "
          f"Bc {row.bc}, {row.sm_read_bytes + row.sm_write_bytes:,} B")

# %% The figure
figure, ax = style.figure(height=3.8)
for schedule, values in bytes_at.items():
    ax.plot(LENGTHS, values.astype(float), color=style.colour(schedule), linestyle="-")
    ax.plot(LENGTHS, values.astype(float), label=schedule, **style.counted(schedule))
ax.set(xscale="log", yscale="log", ylabel="SM boundary, bytes", title="counted, one head, d 64")
style.byte_axis(ax.yaxis)
style.size_axis(ax.xaxis, LENGTHS, "sequence length n")
ax.legend()
figure.savefig("io_complexity.png", dpi=120)
