"""Does a real GPU agree? Predictions beside hardware counters.

On a machine with a GPU, CuPy and Nsight Compute this measures a few small points (a minute or two);
anywhere else it takes the run that is kept in the repository. Run it whole, or cell by cell (# %%).
"""

# %% Measure here, or take the recorded run
from dataclasses import replace

from hbmeter.experiments import grid, measure, records, verify
from hbmeter.experiments.figures import validation
from hbmeter.kernels.errors import Unavailable

try:
    document, why = measure.measure(grid.points(quick=True), None)
    record = records.Record("this machine", document["provenance"], document["points"])
    if why is not None:
        print(f"no hardware counters here: {why}")
except Unavailable as error:
    print(f"no measurement here ({error}); taking the recorded run")
    record = next(r for r in records.load_all() if any(p["counters"] for p in r.points))
    small = [point for point in record.points
             if point["counters"] and point["problem"]["seq"] <= 1024]
    record = replace(record, points=small)
print(f"{record.gpu}, driver {record.provenance.get('driver')}: {len(record.points)} points")

# %% Point by point: counted and predicted by the simulator, measured by the counters
rows = verify.comparison(record)
for row in rows:
    errors = ", ".join(f"{name} {row[f'{name}_error']:+.2%}" for name in ("sm_read", "dram_read")
                       if row[f"{name}_error"] is not None)
    print(f"{row['kernel']:>20} {row['shape']:<32} {errors or 'not measured'}")

# %% The summary, the bars, and the figure
print(verify.summary_text(rows))
for failure in verify.failures(rows):
    print(f"FAILED: {failure}")
table = validation.run(None, None, records=[record])
if table:
    validation.plot(table).savefig("verify_on_a_gpu.png", dpi=120)
