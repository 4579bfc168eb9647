"""A model's attention, layer by layer: shapes, KV cache, prefill and decode on one GPU.

  hbmeter model config.json --seq 8192
  hbmeter model config.json --seq 131072 --gpu a100-80gb --batch 8 --json
  hbmeter model config.json --seq 131072 --times

The config is a Hugging Face style config.json. counted: FLOPs, bytes at the SM boundary of the
prefill by flash2 with its least-traffic tiles, compulsory bytes of one decode step. --times:
predicted attention time of the whole model at lengths up to --seq, beside bounds.
"""


def add_arguments(parser):
    """Config, length, GPU."""
    from .. import options

    parser.add_argument("config", metavar="config.json", help="the model's config")
    parser.add_argument("--seq", type=options.whole, default=8192, metavar="N",
                        help="tokens of the prompt, and of the cache at decode (%(default)s)")
    parser.add_argument("--batch", type=options.whole, default=1, metavar="N",
                        help="sequences (%(default)s)")
    parser.add_argument("--dtype", choices=list(options.DTYPE_BYTES),
                        help="storage of Q, K, V, O and the cache (the config's)")
    parser.add_argument("--times", action="store_true",
                        help="predicted prefill and decode times over context lengths")
    options.add_gpu(parser)
    options.add_json(parser)


def run(args):
    """Print a row for each kind of layer and their total."""
    from ...simulator.model_config import read
    from .. import model_table, model_times, options
    from ..output import print_json

    shown = model_times if args.times else model_table
    document = shown.document(read(args.config), options.profile(args), seq=args.seq,
                              batch=args.batch, dtype=args.dtype)
    if args.json:
        print_json(document)
    else:
        shown.show(document)
