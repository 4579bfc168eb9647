"""GPU profiles: list them, or show one with all its numbers.

  hbmeter gpus
  hbmeter gpus h200
  hbmeter gpus ./my-gpu.yaml      check and show your own profile

The list leaves out files with mistakes: a line on stderr names each, and the exit code is 2.
"""


def add_arguments(parser):
    """An optional profile name or file."""
    from ..options import add_json

    parser.add_argument("name", nargs="?", help="profile name or YAML file")
    add_json(parser)


def run(args):
    """Print one profile, or a line for each; 2 when the folder has files with mistakes."""
    from ...hwprofiles import load
    from ..output import print_json

    if not args.name:
        return _all(args.json)
    profile = load(args.name)
    if args.json:
        print_json(profile.model_dump(mode="json"))
    else:
        _show(profile)
    return 0


def _all(as_json):
    from ...hwprofiles import ProfileError
    from ...hwprofiles.loader import load_all
    from ..output import print_json

    found, mistakes = load_all()
    profiles = list(found.values())
    if as_json:
        print_json([profile.model_dump(mode="json") for profile in profiles])
    else:
        _list(profiles)
    if mistakes:
        raise ProfileError("\n".join(_brief(name, error) for name, error in mistakes.items()))


def _brief(name, error):
    first, *others = str(error).splitlines()
    more = f" (and {len(others)} more: hbmeter gpus {name})" if others else ""
    return f"{first}{more}"


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
