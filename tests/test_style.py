"""Do schedules look different in figures, however many there are?"""

from hbmeter import kernels
from hbmeter.experiments import style
from hbmeter.simulator import schedules


def test_any_number_of_further_schedules_looks_different(monkeypatch):
    names = {*schedules.names(), *kernels.names(), *(f"mine_{number}" for number in range(100))}
    monkeypatch.setattr(schedules, "names", lambda: tuple(sorted(names)))
    looks = {(style.colour(name), style.marker(name)) for name in names}
    assert len(looks) == len(names)
    ours = {(style.colour(name), style.marker(name)) for name in names if name[:4] == "mine"}
    assert style.PUBLISHED["marker"] not in {shape for _, shape in ours}
    fig, ax = style.figure()
    for number, name in enumerate(sorted(names)):
        ax.plot([number], [1], **style.counted(name))  # Matplotlib knows the marker
    assert style.png(fig)
