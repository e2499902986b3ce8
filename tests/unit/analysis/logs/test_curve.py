"""Losses and norms that are not finite, and those that jump."""

from __future__ import annotations

import pytest

from slurm_robust.analysis.logs import classify


def steps(*losses: object, form: str = "step {} | loss: {} | lr 1e-4") -> str:
    return "\n".join(form.format(number, loss) for number, loss in enumerate(losses))


@pytest.mark.parametrize(
    "text",
    [
        steps(2.1, 2.0, "nan"),
        steps(2.1, "NaN"),
        steps("inf"),
        steps(2.1, "nan", form="{{'step': {}, 'loss': {}, 'epoch': 1}}"),
        steps(2.1, "tensor(nan, device='cuda:0')"),
        "iteration 7 | lm loss: 2.3E+00 | grad norm: nan |",
        "grad_norm: 2.5\ngrad_norm: nan\ngrad_norm: nan",
        steps(2.1, "nan", form="iter: {} loss_total: {} scale: 128.0"),
    ],
)
def test_non_finite_values_are_a_nan_loss(text: str) -> None:
    assert classify(text).symptom == "nan_loss"


@pytest.mark.parametrize(
    "text",
    [
        steps(2.1, 2.2, 2.0, 7.5),
        steps(3.06, 3.11, 7.71, 7.6),
        steps("2.31E+00", "6.91E+00", form="iteration {} | lm loss: {} |"),
        steps(*[0.3] * 60, 40.0, form="step {} loss=1.0 grad_norm={}"),
        steps(7.8, 6.1, 11140.0, form="step {} 'grad_norm': {:12.2f}"),
        steps(9.8, 4.1, 1.2, 3.3, 5.0, 7.9),
        steps(6.9e15, 0.08, 0.09, 3.3e15, form="step {}: loss = {:.4f}"),
    ],
)
def test_jumps_of_loss_and_gradient_norm_are_a_spike(text: str) -> None:
    assert classify(text).symptom == "loss_spike"


@pytest.mark.parametrize(
    "text",
    [
        steps(9.1, 7.2, 5.0, 3.3, 2.9),
        steps(1.5455, 2.6294, 1.9491, form="iter {}: loss {}, time: 4401.19ms"),
        steps(0.01, 0.05, 0.002, 0.9),
        steps(-12.0, 3.0, -5.0),
        steps(0.5, 4.0, 0.6, form="step {} grad_norm: {}"),
        steps(9.8, 4.1, 1.2, 3.3, 5.0, 3.1, 2.0),
        steps(0.4, 6.0, 0.3, 9.0, form="iter {} loss_g: {}"),
        "val loss: 9.0\ntrain loss: 2.0\nval loss: 8.8",
        "loss_scale: 65536.0\nloss_scale: 1048576.0",
        "grad_norm: 0.3922 (nan)",
        steps("nan", 3.9, 4.1, form="step {} loss: 1.2 grad_norm: {}"),
    ],
)
def test_what_curves_do_every_day_is_healthy(text: str) -> None:
    assert classify(text).symptom == "healthy_noise"
