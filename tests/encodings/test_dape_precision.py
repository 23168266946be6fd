"""Convolutions of DAPE in full precision on a GPU."""

import torch

from lengthwise.encodings.dape import disable_tf32


def test_convolutions_on_a_gpu_are_not_rounded_and_other_code_keeps_its_setting():
    cudnn = torch.backends.cudnn
    before = (cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    with disable_tf32(torch.device("cuda")):
        assert cudnn.enabled
        assert not cudnn.allow_tf32
    assert (cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic) == before
    with disable_tf32(torch.device("cpu")):
        assert cudnn.allow_tf32 == before[1]
