"""Numbers that a server chooses are bounded before a site allocates or loops by them."""

import pytest
from problems import VARIANTS

from twinflower.errors import SettingError
from twinflower.simulation.settings import parse

HUGE = [
    (
        {"partition.name": "sizes", "partition.sizes": "20,100000000"},
        "at most 20,000,000 rows; got 100,000,020",
    ),
    ({"partition.name": "sizes", "partition.sizes": "20,900000000000000000"}, "at most 20,000,000 rows"),
    ({"rounds": 2**31}, r"rounds must be from 1 to 2\^24"),
    ({"local.max-steps": 2**31}, "max-steps must be from 0 to 1e"),
    (
        {"objective.name": "sigmoid-network", "hidden-units": 50_000_000},
        "hidden-units must be from 1 to 100000",
    ),
]


@pytest.mark.parametrize(("keys", "why"), HUGE)
def test_a_huge_number_is_refused_when_the_settings_are_read(keys, why):
    with pytest.raises(SettingError, match=why):
        _ = parse(VARIANTS["fedpdm-private"] | keys).sizes
