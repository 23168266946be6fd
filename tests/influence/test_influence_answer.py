"""The answer of a study on models built by hand: none where far tokens are not used, the number where they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.planted_model import VOCABULARY, PlantedModel, additive
from torch import Tensor

from lengthwise.influence.report.study_report import report_study
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.study import InfluenceStudy, measure_influence
from lengthwise.influence.targets import Rule
from lengthwise.tasks import TokenizedDocument

NEAR, FAR = 2, 12
SETTINGS = InfluenceSettings(
    near=NEAR,
    far=FAR,
    ks=(1, 2, 3, 4),
    objectives=("prediction",),
    num_targets=60,
    background_fraction=1.0,
    rule=Rule(gap=0.1),
    seed=1,
)


class Numbers:
    """Tokens are their own texts."""

    name, start = "numbers", ()

    def encode(self, text: str) -> list[int]:
        """Numbers with spaces between them."""
        return [int(each) for each in text.split()]

    def token_text(self, token: int) -> str:
        """The number."""
        return f" {token}"


class Votes(PlantedModel):
    """The tokens at some far places vote for what comes next, each for itself, and so does the last token."""

    def __init__(self, places: tuple[int, ...], weight: float = 1.0) -> None:
        super().__init__(additive({}), FAR)
        self.places, self.weight = places, weight

    def log_probs(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """A vote adds to the logit of its token."""
        logits = torch.zeros(len(tokens), VOCABULARY)
        logits[torch.arange(len(tokens)), tokens[:, -1]] += 1.0
        for place in self.places:
            votes = (position_ids == place).float() * self.weight
            logits.scatter_add_(1, tokens, votes)
        return logits.log_softmax(dim=-1)

    def prefill(self, tokens: Tensor, position_ids: Tensor, num_read: int) -> Tensor:
        """Tokens and IDs, one row each."""
        return torch.stack([tokens, position_ids])[:, :num_read]

    def log_probs_with_prefix(self, states: Tensor, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """What was read stands before every row."""
        before = states[:, None].expand(-1, len(tokens), -1)
        return self.log_probs(*torch.cat([before, torch.stack([tokens, position_ids])], dim=2))

    def plain_log_probs(self, tokens: Tensor, seen: Tensor | None = None) -> Tensor:
        """What the last token does not see casts no vote."""
        kept = torch.arange(len(tokens)) if seen is None else seen[-1].nonzero()[:, 0]
        return self.log_probs(tokens[None, kept], kept[None])[0]


class Disturbed(Votes):
    """Any far token takes a vote for what comes next from the near one, as IDs beyond those of training do."""

    def log_probs(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """All other tokens get as much more."""
        disturbed = (position_ids < FAR).any(dim=1).float()[:, None].expand(-1, VOCABULARY).clone()
        disturbed[torch.arange(len(tokens)), tokens[:, -1]] = 0.0
        return (super().log_probs(tokens, position_ids) + 3 * disturbed).log_softmax(dim=-1)


def answer(model: PlantedModel, texts: list[TokenizedDocument], folder: Path) -> dict:
    study = InfluenceStudy(model=model, codec=Numbers(), texts=texts, settings=SETTINGS)
    measure_influence(study, folder)
    return report_study(study, folder)


def texts_of(rng: np.random.Generator, *, repeats: bool) -> list[TokenizedDocument]:
    """Documents of one token each, which its far tokens tell; or of tokens that tell nothing of each other."""
    return [
        TokenizedDocument(name=str(n), tokens=np.full(40, n) if repeats else rng.integers(0, VOCABULARY, 40))
        for n in range(10)
    ]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_model_that_ignores_far_tokens_is_shown_to_use_none(repeats, rng, tmp_path):
    summary = answer(Votes(()), texts_of(rng, repeats=repeats), tmp_path / "out")
    assert summary["answer"]["sentence"] == (
        "No use of far tokens could be shown for planted "
        "(own minus other text: 0.000 nats a target, 95% 0.000 to 0.000)"
    )
    assert summary["groups"][0]["all_targets"]["prediction"]["shares"][0]["value"] is None


@pytest.mark.parametrize("places", [(4,), (1, 7), (0, 5, 11)], ids=["one", "two", "three"])
def test_the_number_of_far_tokens_that_a_model_needs_is_found(places, rng, tmp_path):
    found = answer(Votes(places), texts_of(rng, repeats=True), tmp_path / "out")["answer"]
    assert (found["shown"], found["at_least"], found["at_most"]) == (True, len(places), len(places))
    noun = "token" if len(places) == 1 else "tokens"
    assert found["sentence"].startswith(
        f"planted uses about {len(places)} far {noun}: {len(places)} as chosen here give 100% of what"
    )
    # Any far tokens of these documents do as well: the sentence says so.
    assert "; no more than tokens from elsewhere in the same document: 0.000 nats" in found["sentence"]


def test_far_tokens_that_are_used_and_cost_more_than_they_gain_are_told_of(rng, tmp_path):
    texts = texts_of(rng, repeats=True)
    sentence = answer(Disturbed((4,)), texts, tmp_path / "out")["answer"]["sentence"]
    assert sentence.startswith("planted uses ")
    assert "; yet it predicts worse with its far tokens than without: gain -1." in sentence
    assert "worse" not in answer(Votes((4,)), texts, tmp_path / "helped")["answer"]["sentence"]


def test_a_model_that_reads_far_tokens_which_tell_nothing_is_shown_to_use_none(rng, tmp_path):
    summary = answer(Votes((0, 5, 11)), texts_of(rng, repeats=False), tmp_path / "out")
    assert summary["answer"]["sentence"].startswith("No use of far tokens could be shown for planted")
    # Predictions do change, and few tokens explain how: by itself that shows no use.
    shares = [each["value"] for each in summary["groups"][0]["all_targets"]["prediction"]["shares"]]
    assert shares[2] == pytest.approx(1.0)
    own, other, _ = summary["far"]
    assert abs(own["gains"]["value"] - other["gains"]["value"]) < 0.1
