"""Kernels: build every kernel and tile for an architecture, without a GPU.

  hbmeter kernels
  hbmeter kernels --arch sm_80 --kernel flash2_mma --head-dim 64 --dtype bf16

Registers, spilled bytes and shared memory are the compiler's; blocks per SM follow from them and
the profile of --gpu. Needs NVRTC: pip install 'hbmeter[compile]'. Exits with 1 when a build spills.
"""


def add_arguments(parser):
    """Architecture, kernel, shape."""
    from .. import options

    parser.add_argument("--arch", default="sm_90a", metavar="sm_NN",
                        help="architecture to compile for (%(default)s)")
    parser.add_argument("--kernel", metavar="K", help="only this kernel")
    options.add_gpu(parser)
    options.add_shape(parser)
    options.add_json(parser)


def run(args):
    """Build, and print a table or the JSON list."""
    from ... import kernels
    from ...kernels import compiler
    from .. import options
    from ..output import print_json

    problem, gpu = options.problem(args), options.profile(args)
    compiler.check_known(args.arch)
    found = [kernels.get(name) for name in ([args.kernel] if args.kernel else kernels.names())]
    others = [kernel.name for kernel in found if not args.kernel and not kernel.runs_on(args.arch)]
    rows = [row for kernel in found if kernel.name not in others
            for row in _builds(kernel, problem, gpu, args.arch)]
    if args.json:
        print_json(rows)
    else:
        _show(rows, args.arch, problem)
        for name in others:
            print(f"{name}: needs {kernels.get(name).only_arch}")
    return 1 if any(row["spill_bytes"] for row in rows) else 0


def _builds(kernel, problem, gpu, arch):
    """One row for each entry point of each tile worth trying."""
    from dataclasses import replace

    from ...kernels import compiler
    from ...simulator.occupancy import occupancy

    problem = replace(problem, direction=kernel.direction)
    for tiles in kernel.tile_choices(problem):
        found = compiler.resources(kernel, problem, tiles, arch)
        for launch in kernel.launches(problem, tiles):  # maybe not of every entry point
            entry, built = launch.entry, found[launch.entry]
            shared = launch.shared_bytes + built.static_shared_bytes
            resident = occupancy(gpu, launch.threads, built.registers, shared)
            yield {
                "kernel": kernel.name, "entry": entry, "br": tiles.br, "bc": tiles.bc,
                "stages": tiles.stages, "threads": launch.threads, "registers": built.registers,
                "spill_bytes": built.spill_store_bytes + built.spill_load_bytes,
                "shared_bytes": shared, "blocks_per_sm": resident.blocks_per_sm,
                "limiters": list(resident.limiters), "occupancy": resident.share_of_warps,
            }


def _show(rows, arch, problem):
    from ..output import table

    if not rows:
        print(f"no kernel takes {problem.dtype} with head_dim {problem.head_dim}")
        return
    cells = [
        [row["entry"].removeprefix("hbmeter_"), f"{row['br']}×{row['bc']}", row["stages"],
         row["threads"], row["registers"], row["spill_bytes"], f"{row['shared_bytes']:,}",
         row["blocks_per_sm"], f"{row['occupancy']:.1%}", " and ".join(row["limiters"])]
        for row in rows
    ]
    print(f"{arch}, head_dim {problem.head_dim}, {problem.dtype}")
    print(table(["kernel", "Br×Bc", "stages", "threads", "registers", "spill B", "shared B",
                 "blocks/SM", "warps", "limited by"], cells))
    spilling = sum(1 for row in rows if row["spill_bytes"])
    if spilling:
        print(f"{spilling} of {len(rows)} builds spill registers (exit code 1)")
