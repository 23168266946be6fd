"""Answers of studies on models built by hand that use a known number of far tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.planted_model import VOCABULARY, PlantedModel, additive_log_prob
from torch import Tensor

from lengthwise.influence.measures import GreedySelection
from lengthwise.influence.report.study_report import report_study
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.study import InfluenceStudy, measure_influence
from lengthwise.influence.targets import ClearGainSelection
from lengthwise.tasks import TokenizedDocument

NEAR, FAR = 2, 12
SETTINGS = InfluenceSettings(
    unit="token",
    near=NEAR,
    far=FAR,
    ks=(1, 2, 3, 4),
    measure=GreedySelection(),
    objectives=("prediction",),
    num_targets=60,
    searched=None,
    rule=ClearGainSelection(gap=0.1),
    seed=1,
)


class Numbers:
    """Tokenizer of whole numbers."""

    name, start = "numbers", ()

    def encode(self, text: str) -> list[int]:
        """Parse numbers separated by spaces."""
        return [int(number) for number in text.split()]

    def token_text(self, token: int) -> str:
        """Return the number."""
        return f" {token}"


class Votes(PlantedModel):
    """Model in which the tokens at some far indexes, and the last token, raise their own logits for the next token."""

    def __init__(self, indexes: tuple[int, ...], weight: float = 1.0) -> None:
        super().__init__(additive_log_prob({}), FAR)
        self.indexes, self.weight = indexes, weight

    def log_probs(self, tokens: Tensor, position_ids: Tensor, states: Tensor | None = None) -> Tensor:
        """Add one vote per token at the given indexes."""
        if states is not None:
            before = states[:, None].expand(-1, len(tokens), -1)
            tokens, position_ids = torch.cat([before, torch.stack([tokens, position_ids])], dim=2)
        logits = torch.zeros(len(tokens), VOCABULARY)
        logits[torch.arange(len(tokens)), tokens[:, -1]] += 1.0
        for index in self.indexes:
            votes = (position_ids == index).float() * self.weight
            logits.scatter_add_(1, tokens, votes)
        return logits.log_softmax(dim=-1)

    def prefill(self, tokens: Tensor, position_ids: Tensor, num_prefix: int) -> Tensor:
        """Return tokens and IDs as states."""
        return torch.stack([tokens, position_ids])[:, :num_prefix]

    def log_probs_with_mask(self, states: Tensor, near_tokens: Tensor, position_ids: Tensor, visible: Tensor) -> Tensor:
        """Count the votes of the visible states and of the near tokens."""
        near = torch.stack([near_tokens, position_ids])
        rows = [torch.cat([states[:, mask], near], dim=1) for mask in visible]
        return torch.cat([self.log_probs(row[:1], row[1:]) for row in rows])

    def log_probs_without_cache(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Count the votes of the tokens that the last token attends to."""
        visible = torch.arange(len(tokens)) if mask is None else mask[-1].nonzero()[:, 0]
        return self.log_probs(tokens[None, visible], visible[None])[0]


class DisturbedVotes(Votes):
    """Model in which any far token weakens the vote of the last token, like IDs beyond those of training."""

    def log_probs(self, tokens: Tensor, position_ids: Tensor, states: Tensor | None = None) -> Tensor:
        """Raise the logits of all other tokens."""
        has_far = (position_ids < FAR).any(dim=1)
        if states is not None:
            has_far |= (states[1] < FAR).any()
        disturbance = has_far.float()[:, None].expand(-1, VOCABULARY).clone()
        disturbance[torch.arange(len(tokens)), tokens[:, -1]] = 0.0
        return (super().log_probs(tokens, position_ids, states) + 3 * disturbance).log_softmax(dim=-1)


def answer(model: PlantedModel, texts: list[TokenizedDocument], folder: Path) -> dict:
    study = InfluenceStudy(model=model, codec=Numbers(), texts=texts, settings=SETTINGS)
    measure_influence(study, folder)
    return report_study(study, folder)


def texts_of(rng: np.random.Generator, *, repeats: bool, num_texts: int = 10) -> list[TokenizedDocument]:
    """Return documents that repeat one token each, or documents of independent tokens."""
    return [
        TokenizedDocument(
            name=str(n), tokens=np.full(40, n % VOCABULARY) if repeats else rng.integers(0, VOCABULARY, 40)
        )
        for n in range(num_texts)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [True, False])
def test_a_model_that_ignores_far_tokens_does_not_use_them(repeats, rng, tmp_path):
    summary = answer(Votes(()), texts_of(rng, repeats=repeats, num_texts=40), tmp_path / "out")
    assert summary["answer"]["uses_far_tokens"] is False
    assert summary["groups"][0]["all_targets"]["prediction"]["shares"][0]["value"] is None


@pytest.mark.first(1)
@pytest.mark.parametrize("indexes", [(4,), (1, 7), (0, 5, 11)], ids=["one", "two", "three"])
def test_answer_gives_the_number_of_far_tokens_in_use(indexes, rng, tmp_path):
    result = answer(Votes(indexes), texts_of(rng, repeats=True), tmp_path / "out")["answer"]
    assert (result["uses_far_tokens"], result["at_most"]) == (True, len(indexes))
    noun, verb = ("token is", "token recovers") if len(indexes) == 1 else ("tokens are", "tokens recover")
    assert result["sentence"].startswith(
        f"planted uses far tokens, and {len(indexes)} far {noun} enough for 90%: {len(indexes)} selected {verb} 100%"
    )
    # In these documents, far tokens from elsewhere have the same effect.
    assert " The difference from elsewhere in the same document is not clear: 0.000 nats" in result["sentence"]


@pytest.mark.slow
def test_answer_reports_far_tokens_that_increase_the_loss(rng, tmp_path):
    texts = texts_of(rng, repeats=True)
    sentence = answer(DisturbedVotes((4,)), texts, tmp_path / "out")["answer"]["sentence"]
    assert sentence.startswith("planted uses ")
    assert " However, far tokens increase the loss: the gain is -1." in sentence
    assert "increase" not in answer(Votes((4,)), texts, tmp_path / "helped")["answer"]["sentence"]


@pytest.mark.slow
def test_ten_documents_do_not_tell_about_far_tokens_without_information(rng, tmp_path):
    summary = answer(Votes((0, 5, 11)), texts_of(rng, repeats=False), tmp_path / "out")
    assert summary["answer"]["uses_far_tokens"] is None
    # Predictions change, and few tokens recover the change, which alone is no evidence of use.
    shares = [share["value"] for share in summary["groups"][0]["all_targets"]["prediction"]["shares"]]
    assert shares[2] == pytest.approx(1.0)
    own, other, _ = summary["far"]
    assert abs(own["gains"]["value"] - other["gains"]["value"]) < 0.1
