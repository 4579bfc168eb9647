"""Command-line options that several commands share, and how they become problems and profiles."""

import argparse
import re

from ..hwprofiles import load
from ..simulator.problem import DTYPE_BYTES, Attention
from ..simulator.tiles import Tiles

_WHOLE = re.compile("[-+]?[0-9]+(_[0-9]+)*")


def whole(text: str) -> int:
    """An int from the command line; the simulator judges its range."""
    if len(text) > 40 or not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number")
    return int(text)


def add_shape(parser: argparse.ArgumentParser):
    """--batch … --mask: the attention problem."""
    group = parser.add_argument_group("attention shape")
    default = Attention()
    group.add_argument("--batch", type=whole, default=default.batch, metavar="N",
                       help="sequences (%(default)s)")
    group.add_argument("--heads", type=whole, default=default.heads, metavar="N",
                       help="query heads (%(default)s)")
    group.add_argument("--kv-heads", type=whole, metavar="N",
                       help="KV heads; fewer than --heads for GQA or MQA (as --heads)")
    group.add_argument("--seq", type=whole, default=default.seq, metavar="N",
                       help="query length (%(default)s)")
    group.add_argument("--kv-seq", type=whole, metavar="N", help="key and value length (as --seq)")
    group.add_argument("--head-dim", type=whole, default=default.head_dim, metavar="N",
                       help="length of a query or key (%(default)s)")
    group.add_argument("--value-dim", type=whole, metavar="N",
                       help="length of a value (as --head-dim)")
    group.add_argument("--dtype", choices=list(DTYPE_BYTES), default=default.dtype,
                       help="storage of Q, K, V and O (%(default)s)")
    group.add_argument("--mask", default=default.mask, metavar="MASK",
                       help="full, causal or window:W (%(default)s)")


def problem(args) -> Attention:
    """The Attention that the shape options describe."""
    return Attention(args.batch, args.heads, args.seq, args.head_dim, args.kv_heads, args.kv_seq,
                     args.value_dim, args.dtype, args.mask)


def add_gpu(parser: argparse.ArgumentParser):
    """--gpu: a profile's name or a YAML file."""
    parser.add_argument("--gpu", default="h200", metavar="NAME|FILE.yaml",
                        help="GPU profile (%(default)s); hbmeter gpus lists them")


def profile(args):
    """The profile that --gpu names."""
    return load(args.gpu)


def add_tiles(parser: argparse.ArgumentParser):
    """--br --bc --stages: the tool chooses what is absent."""
    group = parser.add_argument_group("tiles (chosen by the tool when absent)")
    group.add_argument("--br", type=whole, metavar="N", help="rows of a query block")
    group.add_argument("--bc", type=whole, metavar="N", help="columns: keys of a K,V block")
    group.add_argument("--stages", type=whole, metavar="N", help="buffers for streamed tiles (1)")


def tiles(args, schedule: str, attention: Attention, gpu) -> Tiles:
    """The tiles that the options name; absent sizes are the tool's choice for this GPU."""
    from ..simulator.blocks import choose_tiles

    return choose_tiles(schedule, attention, gpu, args.br, args.bc, args.stages)


def add_launch(parser: argparse.ArgumentParser):
    """--order and --blocks-per-sm: how thread blocks reach the SMs."""
    parser.add_argument("--order", choices=("row", "head"), default="row",
                        help="grid index that runs fastest (%(default)s)")
    parser.add_argument("--blocks-per-sm", type=whole, metavar="N",
                        help="thread blocks that share an SM (from occupancy)")


def add_json(parser: argparse.ArgumentParser):
    """--json: one document on stdout and nothing else there."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
