"""Memory that attention takes in HBM: activations, KV cache, score matrices, whole models.

  hbmeter memory --batch 1 --heads 32 --seq 4096 --head-dim 128 --dropout
  hbmeter memory --model config.json --contexts 8192,131072,1048576
  hbmeter memory --score-bytes 9948865536        which square score matrices have this size

counted: exact bytes of the tensors; nothing is said of a framework's allocator.
"""

import argparse


def add_arguments(parser):
    """Shape or model, contexts, GPU."""
    from .. import options

    options.add_gpu(parser)
    options.add_shape(parser)
    parser.add_argument("--contexts", type=_lengths, metavar="N,N,…",
                        help="context lengths of the table of a --model (8k to 1M)")
    parser.add_argument("--score-bytes", type=options.whole, metavar="BYTES",
                        help="list the square score matrices of exactly this size instead")
    options.add_json(parser)


def _lengths(text: str) -> tuple[int, ...]:
    from .. import options

    lengths = tuple(options.whole(part.strip()) for part in text.split(","))
    if any(not 1 <= length <= 1 << 32 for length in lengths):
        raise argparse.ArgumentTypeError(f"{text!r}: each context must be from 1 to 2^32 tokens")
    return lengths


def run(args):
    """Print one of the three tables, or its JSON document."""
    from ...simulator.errors import InputError
    from .. import memory_table, options

    if args.score_bytes is not None:
        return memory_table.show_shapes(args.score_bytes, args.dtype, args.json)
    if args.contexts and args.model is None:
        raise InputError("--contexts needs --model config.json; for one shape use --seq")
    if args.model is not None and args.seq is None:
        return memory_table.show_model(args)
    return memory_table.show_call(options.problem(args), args.json)
