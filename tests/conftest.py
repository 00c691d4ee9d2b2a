"""What holds for all tests."""

import pytest
from hypothesis import settings


def pytest_configure(config: pytest.Config) -> None:
    """Let the fuzz tests try the same examples each time, so that a change is judged by itself; long ones try new."""
    settings.register_profile("same", derandomize=True)
    settings.register_profile("new")
    settings.load_profile("new" if "long or not long" in config.option.markexpr else "same")
