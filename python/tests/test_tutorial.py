"""The Python of the tutorial, with the program of examples/swap."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from test_crate import cargo


def test_the_tutorials_python_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, program = os.environ.get("PEERWARP_TEST_TUTORIAL"), os.environ.get("PEERWARP_TEST_SWAP")
    if page is None or program is None:
        pytest.skip("PEERWARP_TEST_TUTORIAL and PEERWARP_TEST_SWAP name no page, or no program of examples/swap")
    text = Path(page).read_text(encoding="utf-8")
    found = re.search(r"```python\n(import numpy.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert found is not None
    crate = tmp_path / "swap"
    crate.mkdir()
    (crate / "Cargo.toml").write_text("[package]\n", encoding="utf-8")
    cargo(crate, monkeypatch, [program])
    monkeypatch.chdir(crate)
    exec(found[1], {})
    assert capsys.readouterr().out == found[2]
