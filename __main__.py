"""python -m hbmeter: the command."""

from hbmeter.experiments.start import main

raise SystemExit(main())
