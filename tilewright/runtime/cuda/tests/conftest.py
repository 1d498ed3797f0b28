from __future__ import annotations

import pytest

from tilewright.runtime.cuda.tests.made import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
