"""The lab that tests of faults start from."""

from tests.golden import golden as golden  # a fixture
