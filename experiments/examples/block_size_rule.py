"""B = M/3d: how good is the rule of thumb for block sizes?

M is the shared memory of a thread block in elements and d the head dimension: one block of B rows
each of Q, K and V fills it. FlashAttention's own rule, M/4d, leaves room for O. Run it whole, or
cell by cell (# %%) in an editor; it needs no GPU, and pandas (pip install 'hbmeter[tables]').
"""

# %% Br × Bc of FlashAttention-2 on one GPU: what fits, and what it moves
from hbmeter.experiments import style
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, blocks, frame, schedules

GPUS, DIMS = ("h200", "a100-80gb", "rtx4090"), (64, 128, 256)
problem = Attention(batch=1, heads=16, seq=4096, head_dim=128)
table = frame(blocks.explore("flash2", problem, load("h200"), br=128, stages=1))
print(table.drop(columns=["br", "stages"]).to_string(index=False))

# %% The rules beside the tiles that move the fewest bytes of all that fit
import pandas  # noqa: E402

rows = []
for gpu in map(load, GPUS):
    for head_dim in DIMS:
        shape = Attention(batch=1, heads=16, seq=4096, head_dim=head_dim)
        least = shape.compulsory_read_bytes + shape.compulsory_write_bytes
        chosen = blocks.rule_points(shape, gpu)
        chosen["least traffic"] = blocks.choose_tiles("flash2", shape, gpu)
        for rule, tiles in chosen.items():
            candidate = blocks.Candidate(schedules.build("flash2", shape, tiles), gpu)
            rows.append({"gpu": gpu.name, "d": head_dim, "rule": rule, "tiles": str(tiles),
                         "bytes / compulsory": round(candidate.sm_bytes / least, 2),
                         "why it does not fit": candidate.why_not or ""})
print(pandas.DataFrame(rows).to_string(index=False))

# %% Bytes against Br: the rule's B is an end of the curve, not its lowest point
figure, axes = style.figure(1, len(DIMS), 3.6, sharey=True)
for ax, head_dim in zip(axes, DIMS, strict=True):
    shape = Attention(batch=1, heads=16, seq=4096, head_dim=head_dim)
    found = frame(blocks.explore("flash2", shape, load("h200"), bc=64, stages=1))
    fits = found[found.why_not.isna()]
    ax.plot(fits.br.astype(int), fits.sm_bytes.astype(float), **style.counted("flash2"))
    ax.axvline(load("h200").smem.bytes_per_block_max / 2 / (3 * head_dim), color=style.GREY,
               linestyle=":")
    ax.set(title=f"d {head_dim}, Bc 64 (dotted: M/3d)", xlabel="Br", yscale="log")
style.byte_axis(axes[0].yaxis)
axes[0].set_ylabel("SM boundary, bytes")
figure.savefig("block_size_rule.png", dpi=120)
