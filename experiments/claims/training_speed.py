"""FlashAttention trains GPT-2 15% faster and BERT 3 times faster.

The training times that the paper prints, and the speed-ups computed from them. It holds when GPT-2
gains 10 to 20% and BERT 2.5 times or more; the answer says where the two numbers belong.
"""

from dataclasses import dataclass

from . import Finding, Number, Verdict

NUMBER = 7
PERCENTS, TIMES = (1.10, 1.20), 2.5  # what "15% faster" and "3 times" admit


@dataclass(frozen=True)
class Run:
    """Training time of a model with a baseline and with FlashAttention, in ``unit``."""

    model: str
    baseline_name: str
    baseline: float
    flash: float
    unit: str


# Dao, Fu, Ermon, Rudra, Ré 2022 (arXiv 2205.14135), 8 A100: table 1 (BERT) and table 2 (GPT-2).
RUNS = (
    Run("BERT-large", "Nvidia MLPerf 1.1", 20.0, 17.4, "min"),
    Run("GPT-2 small", "Huggingface", 9.5, 2.7, "days"),
    Run("GPT-2 small", "Megatron-LM", 4.7, 2.7, "days"),
    Run("GPT-2 medium", "Huggingface", 21.0, 6.9, "days"),
    Run("GPT-2 medium", "Megatron-LM", 11.5, 6.9, "days"),
)


def gather() -> dict:
    """The published runs."""
    return {"runs": list(RUNS)}


def _gains(facts, model: str) -> list[float]:
    return [run.baseline / run.flash for run in facts["runs"] if run.model.startswith(model)]


def _some(gain: float) -> bool:
    return PERCENTS[0] <= gain <= PERCENTS[1]


def judge(facts) -> Finding:
    """As claimed, the reverse, or neither."""
    gpt, bert = _gains(facts, "GPT-2"), _gains(facts, "BERT")
    numbers = []
    for run in facts["runs"]:
        numbers += [
            Number("published", f"{run.model}, {run.baseline_name}", run.baseline, run.unit),
            Number("published", f"{run.model}, FlashAttention", run.flash, run.unit),
            Number("computed", f"{run.model}: speed-up over {run.baseline_name}",
                   run.baseline / run.flash, "×"),
        ]
    words = (f"By the paper GPT-2 trains {min(gpt):.1f} to {max(gpt):.1f} times as fast, "
             f"BERT-large {max(bert):.2f} times (arXiv 2205.14135, tables 1 and 2).")
    if all(map(_some, gpt)) and min(bert) >= TIMES:
        return Finding(Verdict.HOLDS, words, tuple(numbers))
    reverse = all(map(_some, bert)) and max(gpt) >= TIMES
    return Finding(Verdict.FAILS, words + " The reverse is what it says." * reverse, tuple(numbers))
