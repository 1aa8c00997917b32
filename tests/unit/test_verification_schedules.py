"""The learning rates that the oracle of ``verify --config`` uses, against values worked out by hand."""

import pytest

from dsaccum_helpers.verification.schedules import Schedule

LINEAR = {"warmup_type": "linear"}


@pytest.mark.parametrize(
    ("name", "parameters", "rates"),
    [
        # The first two updates have the lowest rate: DeepSpeed steps from -1 to 0 behind the first.
        ("WarmupLR", {"warmup_max_lr": 0.1, "warmup_num_steps": 4, **LINEAR}, [0, 0, 0.025, 0.05, 0.075, 0.1, 0.1]),
        # log 1, 2, 3, 4 to the base 4: 0, 1/2, 0.7924813, 1.
        ("WarmupLR", {"warmup_max_lr": 0.1, "warmup_num_steps": 4}, [0, 0, 0.05, 0.07924813, 0.1, 0.1, 0.1]),
        # Without a highest rate it is the optimizer's, 0.5 here; one step of warm-up counts as two.
        ("WarmupLR", {"warmup_min_lr": 0.1, "warmup_num_steps": 1, **LINEAR}, [0.1, 0.1, 0.3, 0.5, 0.5, 0.5, 0.5]),
        # As measured with 0.19.8: 0.08 over 8 updates, two of them warm-up; then 6/6, 5/6, ... of it.
        (
            "WarmupDecayLR",
            {"warmup_max_lr": 0.08, "warmup_num_steps": 2, "total_num_steps": 8, **LINEAR},
            [0, 0, 0.04, 0.08, 0.0666667, 0.0533333, 0.04, 0.0266667, 0.0133333, 0, 0],
        ),
        # Shares of 0.5: 0.2, 0.6, then 0.1 + 0.9 * (1 + cos(k * 45 degrees)) / 2 for k = 1, 2, 3, 4, and it stays.
        (
            "WarmupCosineLR",
            {"warmup_min_ratio": 0.2, "cos_min_ratio": 0.1, "warmup_num_steps": 2, "total_num_steps": 6, **LINEAR},
            [0, 0.1, 0.3, 0.4340990, 0.275, 0.1159010, 0.05, 0.05],
        ),
        ("", {}, [0.5, 0.5, 0.5]),
    ],
)
def test_rates_are_those_worked_out_by_hand(name: str, parameters: dict[str, object], rates: list[float]) -> None:
    assert Schedule(name, parameters).rates(0.5, len(rates)) == pytest.approx(rates, abs=1e-7)
