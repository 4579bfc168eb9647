"""What ``hbmeter calibrate --l2 PROBE`` runs under Nsight Compute: one part of a probe, in order.

  python -m hbmeter.experiments.counted_child LAUNCHES.json PROBE PART

Nothing else that it launches has a name with hbmeter_. No warm-up: ncu flushes the caches.
"""

import json
import sys
from pathlib import Path

PROGRESS = "hbmeter-launch "


def main(path: str, probe: str, part: str) -> None:
    """Run the launches; a line ``hbmeter-launch I`` before each."""
    from ..kernels import probes
    from ..kernels.probes.bench import Bench

    launch = probes.get(probe).launcher(Bench(), part)
    for number, entry in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
        print(f"{PROGRESS}{number}", flush=True)
        launch(entry)


if __name__ == "__main__":
    main(*sys.argv[1:])
