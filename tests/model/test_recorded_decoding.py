"""Steps of decoding that a GPU records write what plain steps write; a CPU can run them, but not record them."""

from itertools import product

import pytest
import torch
from tests.support.cases import small_decoder, small_scheme

from lengthwise.encodings import ENCODINGS
from lengthwise.model.fast import cuda_graph_decoding
from lengthwise.model.fast.cuda_graph_decoding import CUDAGraphDecoding, allows_graph_recording
from lengthwise.model.generate import _start, generate
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.tasks import Parity
from lengthwise.training.batch import TrainingSampler

# Their scores depend on other keys, and unused memory contains keys. A decoder with them is not recorded.
READS_NEIGHBORS = ("dape", "dape_v2", "cope", "selective_rotary")
CASES = [
    *product([name for name in ENCODINGS if name not in READS_NEIGHBORS], ["coupled"], ["pointer"], ["learned"]),
    *product(["rotary", "alibi"], ["predicted"], POSITION_HEADS, ["learned", "log", "none"]),
]


def run_steps(decoding, count):
    """Write all tokens."""
    for _ in range(count):
        decoding.step()


def check_recorded_steps(decoder, scheme, run=run_steps):
    """Assert that recorded steps write what ``generate`` writes."""
    sampler = TrainingSampler(task=Parity(), scheme=small_scheme(scheme), lengths=(9, 9), batch_size=4, seed=3)
    batch = sampler.batches(0)[0]
    prompt, count, end = batch.tokens[:, : int(batch.prompt_length[0])], int(batch.token_scored.sum(dim=1).max()), 1
    num_known = 0 if decoder.predicts_ids else count
    ids = batch.position_ids[:, :, : prompt.shape[1] + num_known]
    expected = generate(decoder, prompt, ids, end=end, max_new_tokens=count)
    tokens, new_ids = prompt.new_full((4, count), -1), ids.new_full((len(ids), 4, count), -1)
    with torch.inference_mode():
        state = _start(decoder, prompt, ids[:, :, : prompt.shape[1]], count)
        known = ids[:, :, prompt.shape[1] :] if num_known else None
        run(CUDAGraphDecoding(decoder, state, known, tokens, new_ids, end), count)
    written, size = expected.is_written, expected.tokens.shape[1]
    assert torch.equal(tokens[:, :size][written], expected.tokens[written])
    assert torch.equal(new_ids[:, :, :size][:, written], expected.position_ids[:, written])


@pytest.mark.parametrize(("encoding", "scheme", "head", "length_scaling"), CASES)
@pytest.mark.covering(1)
def test_recorded_steps_write_the_tokens_and_ids_of_plain_steps(encoding, scheme, head, length_scaling):
    limit = 48 if scheme == "predicted" else None
    options = {"num_predicted_ids": limit, "head": head, "length_scaling": length_scaling}
    check_recorded_steps(small_decoder(encoding, Parity(), **options), scheme)


def test_recorded_steps_count_separators():
    decoder = small_decoder("rotary", Parity())
    # Every token is a separator, and there are enough segments for all of them.
    decoder.separators = tuple(range(100))
    decoder.segment = torch.nn.Parameter(2 * torch.randn(len(decoder.separators) + 1, decoder.settings.d_model))
    check_recorded_steps(decoder, "coupled")


def test_steps_that_cannot_be_recorded_write_the_same_without_a_recording(monkeypatch):
    def record(function):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph_decoding, "record_graph", record)
    with pytest.warns(UserWarning, match="decoding is slower, because its steps cannot be recorded: operation not"):
        check_recorded_steps(small_decoder("rotary", Parity()), "coupled", lambda decoding, count: decoding.run())


def test_decoders_with_other_attention_weights_are_not_recorded():
    assert allows_graph_recording(small_decoder("rotary", Parity()))
    assert not allows_graph_recording(small_decoder("rotary", Parity(), weights="entmax"))
    assert not allows_graph_recording(small_decoder("dape", Parity()))
