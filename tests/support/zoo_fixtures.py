"""Fixtures for the tests of pretrained networks: no hub, three small networks, twelve images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zoo_help import N, checkpoint, pack


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither hub nor cache: weights are those that a test names."""
    import huggingface_hub.constants

    from nescio.networks import weights

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("NESCIO_WEIGHTS", raising=False)
    weights.index_folder.cache_clear()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small models' random weights and a set of encoded images."""
    root = tmp_path_factory.mktemp("zoo")
    for name in ("test_resnet", "test_vit", "test_efficientnet"):
        checkpoint(root / "w" / f"{name}.safetensors", name)
    pack(root / "val.npz", n=N)
    return root
