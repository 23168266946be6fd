"""Tests of traced models: `torch.export`, the first step of an export to ONNX, and `torch.compile`."""

import pytest
import torch
from tests.hf.test_packed_texts import flatten
from tests.hf.test_predictive_model import wrap_model
from tests.support.small_runs import small_experiment
from torch import nn

from lengthwise.core.devices import constant_tensor
from lengthwise.encodings.rotary import rotary_frequencies
from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM, build_config


class Logits(nn.Module):
    """Function of tokens and IDs alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of a call without a cache."""
        return self.model(tokens, position_ids=ids).logits


MODELS = {
    "ppc": lambda: wrap_model("llama"),
    "decoder": lambda: LengthwiseForCausalLM(build_config(small_experiment(), {})).eval(),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_an_exported_graph_has_the_logits_at_any_length(kind):
    model = Logits(MODELS[kind]())
    generator = torch.Generator().manual_seed(0)
    tokens, other = (torch.randint(0, 3, (2, seq), generator=generator) for seq in (8, 13))
    ids, other_ids = tokens + 3, other + 4
    seq = {1: torch.export.Dim("seq", min=2, max=64)}
    with torch.no_grad():
        graph = torch.export.export(model, (tokens, ids), dynamic_shapes=(seq, seq)).module()
        torch.testing.assert_close(graph(other, other_ids), model(other, other_ids), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_compiled_model_separates_packed_texts():
    model, batch = wrap_model("llama", head=None, segments=False), flatten("position_ids")
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager")(**batch)
        torch.testing.assert_close(compiled.logits, model(**batch).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_first_call_in_a_trace_leaves_no_traced_tensor_in_the_caches():
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # No other test has these values, so this is their first call.
            return x + constant_tensor((3, 1, 4), x.device) + rotary_frequencies(6, 31_415.0, 1.0, x.device)

    model, x = Sum(), torch.zeros(3)
    torch.export.export(model, (x,))
    assert type(model(x)) is torch.Tensor
