"""Dispatch: lack of support has a reason, and Triton can be turned off."""

from __future__ import annotations

import pytest
import torch

from tessera_kernels import dispatch


class OnGpu:
    device = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _on_again():
    yield
    dispatch.disable_triton("")


def test_lack_of_support_has_a_reason(monkeypatch):
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    assert "not on a GPU: cpu" in dispatch.triton_support(torch.zeros(1)).reason
    assert dispatch.triton_support(OnGpu(), None).ok
    monkeypatch.setattr(dispatch, "HAS_TRITON", False)
    assert dispatch.triton_support(OnGpu()).reason == "Triton is not installed"


def test_triton_can_be_turned_off_and_on(monkeypatch):
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    dispatch.disable_triton("to compare")
    assert dispatch.triton_support(OnGpu()).reason == "to compare"
    dispatch.disable_triton("")
    assert dispatch.triton_support(OnGpu()).ok
