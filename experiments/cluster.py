"""Dask workers for a sweep: a cluster that runs already, or processes of this machine."""

import logging
import re
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
    Unavailable when dask.distributed is not installed or no scheduler answers.
    """
    local = _LOCAL.fullmatch(address)
    if not local and (address.startswith("local") or not _ADDRESS.fullmatch(address)):
        raise InputError(f"--dask {address!r} is no address; it is HOST:PORT of a Dask scheduler, "
                         "or local:N for N processes here")
    try:
        import distributed
    except ImportError:
        raise Unavailable("--dask needs dask.distributed: pip install 'hbmeter[cluster]'") from None
    if local:
        with _local(distributed, int(local[1])) as cluster, distributed.Client(cluster) as client:
            yield client.get_executor(pure=False, retries=2), int(local[1])
        return
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise Unavailable(f"--dask {address}: no scheduler answers there ({error})") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise Unavailable(f"--dask {address}: the scheduler has no workers: start some with "
                              f"dask worker {address}")
        yield client.get_executor(pure=False, retries=2), threads


def _local(distributed, count: int):
    return distributed.LocalCluster(
        n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None,
        silence_logs=logging.CRITICAL,
    )
