"""What ``hbmeter calibrate --l2`` runs under Nsight Compute: each scan of a JSON list, in order.

  python -m hbmeter.experiments.probe_child SCANS.json

Nothing else that it launches has a name with hbmeter_. No warm-up: ncu flushes the caches.
"""

import json
import sys
from pathlib import Path

PROGRESS = "hbmeter-scan "


def main(path: str) -> None:
    """Run the scans; a line ``hbmeter-scan I`` before each."""
    from ..kernels.probes.l2 import Scan, Scanner

    scans = [Scan(**d) for d in json.loads(Path(path).read_text(encoding="utf-8"))]
    scanner = Scanner(scans)
    for number, scan in enumerate(scans):
        print(f"{PROGRESS}{number}", flush=True)
        scanner.run(scan)


if __name__ == "__main__":
    main(sys.argv[1])
