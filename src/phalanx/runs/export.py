"""Models in formats of other programs."""

import io
import logging
import warnings
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from torch import nn
from typing_extensions import override

from phalanx.core import InfeasibleError
from phalanx.installation import optional
from phalanx.runs.models import ModelInputs, Tensors
from phalanx.training.vector import scores_of
from phalanx.wording import shown

Format = Literal["safetensors", "torch", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)
BATCH = 2  # examples with which a network is traced; a batch of one would be taken for a constant


def tensors_as(state: Tensors, form: Literal["safetensors", "torch"]) -> bytes:
    """Return the values of a model as a safetensors file, or as one for `torch.load(..., weights_only=True)`."""
    if form == "safetensors":
        return safetensors.torch.save(dict(state))
    out = io.BytesIO()
    torch.save(dict(state), out)
    return out.getvalue()


class _Scores(nn.Module):
    """A network whose only output is its scores."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @override
    def forward(self, x: torch.Tensor) -> Any:
        return scores_of(self.module(x))


def as_onnx(module: nn.Module, inputs: ModelInputs) -> bytes:
    """Return a network with its values as an ONNX file: from "examples", a batch of any size, to "scores".

    Raises:
        ModuleNotFoundError: the extra `onnx` is not installed.
        InfeasibleError: ONNX has no form for this network, it takes several inputs, or the index names no type of them.
    """
    if not isinstance(dtype := getattr(torch, inputs.dtype, None), torch.dtype):
        raise InfeasibleError(
            f"The index says that the network takes {shown(inputs.dtype)}, which is no type of torch."
        )
    if inputs.names:
        raise InfeasibleError(
            f"The network takes several inputs ({', '.join(inputs.names)}), and only networks of one are exported as "
            "onnx. Choose another --format."
        )
    for package in ("onnx", "onnxscript"):
        optional(package, "The format onnx", "onnx")
    example = torch.zeros((BATCH, *inputs.shape), dtype=dtype)
    try:
        with torch.no_grad():
            plain = isinstance(module.eval()(example), torch.Tensor)
        program = _traced(module if plain else _Scores(module).eval(), example)
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InfeasibleError(f"torch.onnx cannot export this network: {said[0]} Choose another --format.") from error
    written: bytes = program.model_proto.SerializeToString()
    return written


def _traced(module: nn.Module, example: torch.Tensor) -> Any:
    """Return torch's ONNX program of a network, without its messages on packages that it does not need."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                verbose=False,
                input_names=["examples"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            )
    finally:
        log.setLevel(before)
