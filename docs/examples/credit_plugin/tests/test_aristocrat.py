import pytest
from aristocrat import Aristocrat

from selfcest_training.credit.testing import check_assigner


@pytest.mark.parametrize("absence", [0.0, 0.5, 1.0])
def test_it_is_a_credit_scheme(absence: float) -> None:
    check_assigner(Aristocrat(absence))
