"""Command-line options that several commands share, and how they become problems and profiles."""

import argparse
import re
import sys
from dataclasses import replace

from ..hwprofiles import load
from ..simulator import schedules
from ..simulator.engines import NAMES as ENGINES
from ..simulator.errors import InputError
from ..simulator.grid_order import is_file
from ..simulator.grid_order import parse as parse_order
from ..simulator.problem import DIRECTIONS, DTYPE_BYTES, Attention
from ..simulator.tiles import Tiles

SHAPE = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim", "value_dim", "dtype", "mask",
         "direction", "dropout")
OF_POINT = (*SHAPE, "model", "layer", "br", "bc", "stages", "splits", "page_size", "kv_order",
            "blocks_per_sm")
OF_MODEL = ("heads", "kv_heads", "head_dim", "value_dim")  # what --model says
_WHOLE = re.compile("[-+]?[0-9]+(_[0-9]+)*")
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in (
    *SHAPE, "br", "bc", "stages", "splits", "kv_order", "blocks_per_sm", "order", "seeds")} | {
    "direction": "--pass", "page": "--page-size"}
_FIELD_FIRST = re.compile(rf"(?:schedule \w+ takes no )?({'|'.join(_OPTIONS)})\b")


def whole(text: str) -> int:
    """An int from the command line; the simulator judges its range."""
    if len(text) > 40 or not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number")
    return int(text)


def grid_order(text: str) -> str:
    """An order of the grid, or a file of one, which is read when the grid is known."""
    try:
        if not is_file(text):
            parse_order(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def share(text: str) -> float:
    """A probability below 1 from the command line."""
    try:
        found = float(text) if len(text) <= 40 and text.isascii() else 1.0
    except ValueError:
        found = 1.0
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a probability from 0 to below 1")
    return found


def present(args, names) -> list[str]:
    """Of options that are None by default, those that are there, and --order but row."""
    return ([name for name in names if getattr(args, name, None) is not None]
            + ["order"] * (args.order != "row"))


def option(field: str) -> str:
    """The option that sets a field of the simulator's, or a name of the command line."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def as_options(message: str) -> str:
    """What the simulator says of a value that it cannot use, naming options and not fields; what
    it says of a file's fields stays as it is.

    >>> as_options("kv_seq 0 must be a whole number from 1")
    '--kv-seq 0 must be a whole number from 1'
    """
    first = _FIELD_FIRST.match(message)
    if not first:
        return message
    begin, end = first.span(1)
    rest = re.sub("[a-z]+(?:_[a-z]+)+", lambda name: _OPTIONS.get(name[0], name[0]), message[end:])
    return f"{message[:begin]}{_OPTIONS[first[1]]}{rest}"


def add_shape(parser: argparse.ArgumentParser):
    """--batch … --mask, --model: the attention problem. What is absent stays None here, so that
    ``problem`` knows what was asked for."""
    group = parser.add_argument_group("attention shape")
    default = Attention()
    group.add_argument("--batch", type=whole, metavar="N", help=f"sequences ({default.batch})")
    group.add_argument("--heads", type=whole, metavar="N", help=f"query heads ({default.heads})")
    group.add_argument("--kv-heads", type=whole, metavar="N",
                       help="KV heads; fewer than --heads for GQA or MQA (as --heads)")
    group.add_argument("--seq", type=whole, metavar="N", help=f"query length ({default.seq})")
    group.add_argument("--kv-seq", type=whole, metavar="N", help="key and value length (as --seq)")
    group.add_argument("--head-dim", type=whole, metavar="N",
                       help=f"length of a query or key ({default.head_dim})")
    group.add_argument("--value-dim", type=whole, metavar="N",
                       help="length of a value (as --head-dim)")
    group.add_argument("--dtype", choices=list(DTYPE_BYTES),
                       help=f"storage of Q, K, V and O ({default.dtype})")
    group.add_argument("--mask", metavar="MASK",
                       help=f"full, causal, window:W ({default.mask}), or as a list of blocks "
                            "prefix:P, documents:LEN,… or FILE.npy, longformer:W,G, and on blocks "
                            "of B (64) strided:S[@B], random:DENSITY,SEED[@B], blocks:FILE.npy[@B]")
    group.add_argument("--pass", dest="direction", choices=DIRECTIONS,
                       help="forward (O), backward (dQ, dK, dV) or softmax (P of given scores S); "
                            "as --schedule, else forward")
    group.add_argument("--dropout", type=share, nargs="?", const=0.1, metavar="P",
                       help="a weight is left out with this probability (0; without a number 0.1); "
                            "flash draws it in the kernel, standard_separate has a pass for it")
    group.add_argument("--model", metavar="config.json",
                       help="heads, widths, mask and dtype of a model's config instead")
    group.add_argument("--layer", type=whole, metavar="I", help="which layer of --model (0)")


def given(args) -> dict:
    """The shape options that were given, by field; a schedule says which pass it computes."""
    found = {name: getattr(args, name) for name in SHAPE if getattr(args, name) is not None}
    if args.direction is None and getattr(args, "schedule", None):
        found["direction"] = schedules.direction(args.schedule)
    return found


def problem(args) -> Attention:
    """The Attention that the shape options describe."""
    if args.model is not None:
        return model_problem(args.model, args.layer, given(args))
    if args.layer is not None:
        raise InputError(f"--layer {args.layer} needs --model config.json")
    return Attention(**given(args))


def model_problem(path: str, number: int | None, given: dict) -> Attention:
    """The attention of one layer of a model; ``given`` are the shape options beside --model.

    One query against a longer cache (--seq 1 --kv-seq N) is a decode step."""
    from ..simulator.model_config import read

    clash = [name for name in OF_MODEL if name in given]
    if clash:
        raise InputError(f"--{clash[0].replace('_', '-')} and --model contradict each other: the "
                         "config says it")
    model = read(path)
    layer = _chosen_layer(model, number)
    seq, kv_seq = given.pop("seq", Attention().seq), given.pop("kv_seq", None)
    call = {"batch": given.pop("batch", 1), "dtype": given.pop("dtype", model.dtype or "fp16")}
    if seq == 1 and kv_seq is not None:
        return replace(layer.decode(kv_seq, **call), **given)
    found = layer.prefill(seq, **call)
    return replace(found, kv_seq=found.kv_seq if kv_seq is None else kv_seq, **given)


def _chosen_layer(model, number: int | None):
    """Layer ``number``; absent, the first with attention, saying so when the others differ."""
    if number is None:
        number = next((i for i, one in enumerate(model.layers) if one.kind != "none"), 0)
        if len(model.kinds) > 1:
            others = [f"--layer {numbers[0]} ({kind.kind})" for kind, numbers
                      in model.kinds.items() if number not in numbers]
            print(f"layer {number} ({model.layers[number].kind}) of {len(model.layers)}; others "
                  f"differ: {', '.join(others)}", file=sys.stderr)
    if not 0 <= number < len(model.layers):
        raise InputError(f"--layer {number} is not there: {model.name} has layers 0 to "
                         f"{len(model.layers) - 1}")
    return model.layers[number]


def add_gpu(parser: argparse.ArgumentParser):
    """--gpu: a profile's name or a YAML file."""
    parser.add_argument("--gpu", default="h200", metavar="NAME|FILE.yaml",
                        help="GPU profile (%(default)s); hbmeter gpus lists them")


def profile(args):
    """The profile that --gpu names."""
    return load(args.gpu)


def problem_and_gpu(args):
    """``problem`` and ``profile``; says on stderr when the GPU has no rate for the dtype."""
    found, gpu = problem(args), profile(args)
    if getattr(gpu.flops, found.dtype) is None:
        print(f"hbmeter: {gpu.name} has no units for {found.dtype}: bytes are counted as ever; "
              "times are predicted at its fp32 rate, and bounds leave matrix products out",
              file=sys.stderr)
    return found, gpu


def add_tiles(parser: argparse.ArgumentParser):
    """--br --bc --stages: the tool chooses what is absent."""
    group = parser.add_argument_group("tiles (chosen by the tool when absent)")
    group.add_argument("--br", type=whole, metavar="N", help="rows of a query block")
    group.add_argument("--bc", type=whole, metavar="N", help="columns: keys of a K,V block")
    group.add_argument("--stages", type=whole, metavar="N", help="buffers for streamed tiles (1)")
    group.add_argument("--splits", type=whole, metavar="N",
                       help="decode schedules: most splits of the keys (predicted fastest)")
    group.add_argument("--page-size", type=whole, metavar="N",
                       help="schedule paged: keys of a page (16)")
    group.add_argument("--kv-order", metavar="ORDER",
                       help="tiled schedules: how blocks walk what passes them (K and V; Q where "
                            "K and V stay): forward, reversed, or sawtooth:N, N blocks one way "
                            "and the next N the other (forward)")


def tiles(args, schedule: str, attention: Attention, gpu) -> Tiles:
    """The tiles that the options name; absent sizes are the tool's choice for this GPU."""
    from ..simulator.blocks import choose_tiles
    from .progress import Progress

    progress = Progress(sys.stderr)
    progress.start("choosing tiles", 100)
    chosen = choose_tiles(schedule, attention, gpu, args.br, args.bc, args.stages,
                          splits=args.splits, page=args.page_size, kv_order=args.kv_order,
                          on_progress=progress.share)
    progress.end()
    return chosen


def add_engine(parser: argparse.ArgumentParser):
    """--engine: which reader counts."""
    parser.add_argument("--engine", choices=ENGINES, default="l2", metavar="ENGINE",
                        help="scratchpad: SM boundary only; l2: DRAM too, at the speed the tool "
                             "picks (%(default)s); l2-tile: every tile simulated; l2-line: every "
                             "line, exact and slow")


def add_order(parser: argparse.ArgumentParser):
    """--order: in which order thread blocks are issued."""
    parser.add_argument("--order", type=grid_order, default="row", metavar="ORDER",
                        help="grid index that runs fastest, row or head (%(default)s); longest: "
                             "head, and the last row blocks first, which see most under a causal "
                             "mask; head:N, longest:N: N heads at a time share the L2; FILE.npy, "
                             "FILE.csv: the numbers (head × blocks of a head + block) of the "
                             "thread blocks as they are issued")


def order_text(order: str) -> str:
    """An order for people.

    >>> order_text("head"), order_text("swizzle.npy")
    ('head fastest', 'issued as in swizzle.npy')
    """
    return f"issued as in {order}" if is_file(order) else f"{order} fastest"


def add_launch(parser: argparse.ArgumentParser):
    """--order and --blocks-per-sm: how thread blocks reach the SMs."""
    add_order(parser)
    parser.add_argument("--blocks-per-sm", type=whole, metavar="N",
                        help="thread blocks that share an SM (from occupancy)")


def add_json(parser: argparse.ArgumentParser):
    """--json: one document on stdout and nothing else there."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
