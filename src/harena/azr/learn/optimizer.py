"""AdamW whose float32 masters stand behind half-precision weights.

Promises: gradients are summed in float32 over as many backward passes as there are before a step; weights change in
place; `load(state())` goes on bit for bit. Float32 weights are their own masters, and nothing is kept twice.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch leaves many of its own types open)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harena.errors import SpecError


class MasterAdamW:
    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], *, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self.masters = [p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for p in self._parameters]
        for parameter, master in self._pairs():
            parameter.register_post_accumulate_grad_hook(_Collect(master))
        is_cuda = self._parameters[0].is_cuda
        # Norms and biases do not decay.
        groups = [
            {"params": [m for m in self.masters if m.dim() > 1], "weight_decay": weight_decay},
            {"params": [m for m in self.masters if m.dim() <= 1], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=betas, fused=is_cuda)

    def _pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        return [(p, m) for p, m in zip(self._parameters, self.masters, strict=True) if p is not m]

    def zero_grad(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def clip(self, most: float) -> Tensor:
        """Scales gradients down to the norm `most`; returns the norm they had, on the device."""
        return nn.utils.clip_grad_norm_(self.masters, most)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        for parameter, master in self._pairs():
            parameter.copy_(master)

    def state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, parameter, master in zip(self._names, self._parameters, self.masters, strict=True):
            state[f"model/{name}"] = parameter.detach().clone()
            if parameter is not master:
                state[f"master/{name}"] = master.detach().clone()
            for key, value in self._adam.state.get(master, {}).items():
                state[f"adam/{key}/{name}"] = value.detach().clone()
        return state

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        self._adam.state.clear()
        for name, parameter, master in zip(self._names, self._parameters, self.masters, strict=True):
            found = state.get(f"model/{name}")
            if found is None or found.shape != parameter.shape:
                raise SpecError(f"the checkpoint has no fitting weights {name}: it is of another model")
            parameter.copy_(found)
            if parameter is not master:
                master.copy_(state.get(f"master/{name}", found))
            moments = {key: state.get(f"adam/{key}/{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
            if moments["step"] is not None:
                device = master.device
                self._adam.state[master] = {k: v.clone().to(device) for k, v in moments.items() if v is not None}


class _Collect:
    """Moves a half-precision gradient to its master as soon as it is there."""

    def __init__(self, master: nn.Parameter) -> None:
        self._master = master

    def __call__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        if self._master.grad is None:
            self._master.grad = parameter.grad.float()
        else:
            self._master.grad += parameter.grad
        parameter.grad = None
