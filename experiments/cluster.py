"""Dask workers for a sweep: a cluster that runs already, or processes of this machine."""

import logging
import re
from concurrent.futures import CancelledError
from contextlib import contextmanager

from ..kernels.errors import Unavailable
from ..simulator.errors import InputError

CONNECT_SECONDS = 15
_LOCAL = re.compile("local:([1-9][0-9]{0,3})")
_ADDRESS = re.compile(r"(\w+://)?[^\s/:]+:[0-9]{1,5}")


@contextmanager
def open_dask(address: str):
    """(executor, number of worker threads) of a Dask scheduler, or of N processes for ``local:N``.

    A task whose worker dies goes to another one. Raises InputError for what is no address, and
    Unavailable when dask.distributed is not installed, no scheduler answers, the scheduler is
    lost, or one task has killed several workers.
    """
    local = _LOCAL.fullmatch(address)
    if not local and (address.startswith("local") or not _ADDRESS.fullmatch(address)):
        raise InputError(f"--dask {address!r} is no address; it is HOST:PORT of a Dask scheduler, "
                         "or local:N for N processes here")
    try:
        import distributed
    except ImportError:
        raise Unavailable("--dask needs dask.distributed: pip install 'hbmeter[cluster]'") from None
    for name in ("distributed", "distributed.client"):  # what matters is told below
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with _client(distributed, address, local and int(local[1])) as client:
            yield client.get_executor(pure=False, retries=2), sum(client.nthreads().values())
    except CancelledError:
        raise Unavailable(f"--dask {address}: the scheduler is lost; rows so far are kept, and "
                          "the same command goes on") from None
    except distributed.KilledWorker as error:
        raise Unavailable(f"--dask {address}: a task has killed several workers (too little "
                          f"memory?): {error}; rows so far are kept") from None


@contextmanager
def _client(distributed, address: str, processes: int | None):
    if processes:
        with distributed.LocalCluster(
            n_workers=processes, threads_per_worker=1, processes=True, dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster, distributed.Client(cluster) as client:
            yield client
        return
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise Unavailable(f"--dask {address}: no scheduler answers there ({error})") from None
    with client:
        if not client.nthreads():
            raise Unavailable(f"--dask {address}: the scheduler has no workers: start some with "
                              f"dask worker {address}")
        yield client
