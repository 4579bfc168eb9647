"""GPU profiles: list them, or show one with all its numbers.

  hbmeter gpus
  hbmeter gpus h200
  hbmeter gpus ./my-gpu.yaml      check and show your own profile
"""


def add_arguments(parser):
    """An optional profile name or file."""
    from ..options import add_json

    parser.add_argument("name", nargs="?", help="profile name or YAML file")
    add_json(parser)


def run(args):
    """Print one profile, or a line for each."""
    from ...hwprofiles import load, names
    from ..output import print_json

    profiles = [load(args.name)] if args.name else [load(name) for name in names()]
    if args.json:
        documents = [profile.model_dump(mode="json") for profile in profiles]
        print_json(documents[0] if args.name else documents)
    elif args.name:
        _show(profiles[0])
    else:
        _list(profiles)


def _list(profiles):
    from ..output import si, table

    rows = [
        [p.name, p.compute_capability, p.sm_count, si(p.hbm_bytes), si(p.hbm_bytes_per_s, "B/s"),
         f"{p.l2.size_bytes / 2**20:g} MiB", f"{p.smem.bytes_per_block_max:,}",
         si(p.flops.fp16, "FLOP/s"), si(p.flops.fp32, "FLOP/s")]
        for p in profiles
    ]
    header = ["GPU", "CC", "SMs", "HBM", "bandwidth", "L2", "smem B/block", "fp16", "fp32"]
    print(table(header, rows))


def _show(profile):
    from ...hwprofiles import FOLDER

    shipped = FOLDER / f"{profile.name}.yaml"
    print(f"{profile.full_name}")
    for name, value in profile.model_dump(mode="json", exclude_none=True).items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, entry in value.items():
                print(f"  {key}: {_number(entry)}")
        else:
            print(f"{name}: {_number(value)}")
    if shipped.exists():
        print(f"sources of every number: {shipped}")


def _number(value):
    if isinstance(value, dict):
        return ", ".join(f"{key} {_number(entry)}" for key, entry in value.items())
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and value < 1e6 else f"{value:.4g}"
    if value and isinstance(value[0], list):
        return f"of {len(value)} pairs"
    return ", ".join(str(entry) for entry in value)
