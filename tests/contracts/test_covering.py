"""What CI leaves to the nightly run, it has shown by other cases."""

import pytest

from tests.contracts.test_rows import meetings_in_a_search, searches
from tests.contracts.tiny import case_id, cases, factors, meetings
from tests.covering import covering
from tests.own import OWN

PRODUCTS = {
    "contracts": (cases(), meetings),
    "contracts of adapters": (cases(adapters_only=True), meetings),
    "searches": (searches(), meetings_in_a_search),
    "factors": (cases(), factors),
}


@pytest.mark.parametrize("product", [] if OWN else PRODUCTS)
def test_every_fact_is_shown_in_ci_and_every_case_at_night(product):
    every, facts = PRODUCTS[product]
    parameters = covering(every, facts, name=case_id)
    assert [parameter.values[0] for parameter in parameters] == every
    chosen = [parameter.values[0] for parameter in parameters if not parameter.marks]
    assert set().union(*map(facts, chosen)) == set().union(*map(facts, every))
    assert len(chosen) < len(every) / 2


def test_every_method_meets_every_family_and_both_meet_every_block():
    chosen = [parameter.values[0] for parameter in covering(cases(), meetings, name=case_id) if not parameter.marks]
    for two in (lambda c: (c[0], c[1]), lambda c: (c[0], str(c[2])), lambda c: (c[1], str(c[2]))):
        assert set(map(two, chosen)) == set(map(two, cases()))
