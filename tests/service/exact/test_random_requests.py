"""Random requests to random networks in each precision equal plain arithmetic in it."""

from pathlib import Path

import pytest

from campaigns.exact.campaign import FORMS, Amount, answered, offered
from campaigns.exact.checking import NOTHING, Comparison
from tests.service.server_process import ServerProcess

EACH_FORM = [form if form == "fp32" else pytest.param(form, marks=pytest.mark.ci) for form in FORMS]
"""All forms; most of them with the slower set."""


def found_by(shared: ServerProcess, form: str, amount: Amount, folder: Path) -> Comparison:
    if not offered(form):
        pytest.skip(f"the CPU does not compute in {form}")
    found = NOTHING
    for part in answered(shared, form, amount, folder):
        assert part.outside == 0, part
        found = found.plus(part)
    return found


@pytest.mark.ci
@pytest.mark.parametrize("form", FORMS)
def test_each_number_is_one_that_plain_arithmetic_allows(
    shared: ServerProcess, form: str, tmp_path: Path
) -> None:
    found = found_by(shared, form, Amount(networks=2, requests=20), tmp_path)

    assert found.numbers > 10_000
    if form not in ("fp32", "int8"):  # there, sums may end anywhere within their errors
        assert found.free < 0.5 * found.numbers


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=pytest.mark.slow if form == "int8" else pytest.mark.ci)
        for form in FORMS
    ],
)
def test_so_it_is_under_plans_that_were_searched_for(
    shared: ServerProcess, form: str, tmp_path: Path
) -> None:
    found_by(shared, form, Amount(3, 40, planner="portfolio", first_seed=100), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_ten_thousand_requests(shared: ServerProcess, form: str, tmp_path: Path) -> None:
    found_by(shared, form, Amount(networks=25, requests=400, first_seed=1000), tmp_path)
