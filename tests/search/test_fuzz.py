"""The retrieval server against requests made up from its own OpenAPI description, right ones and wrong ones."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from burnish.search.server import make_app
from tests.search.conftest import Words

load_all_checks()
QUICK = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # not shrunk: what fails is shown as it is, and soon
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def api():
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(Words()))


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        ("POST", "/retrieve", GenerationMode.POSITIVE),
        ("POST", "/retrieve", GenerationMode.NEGATIVE),
        ("GET", "/health", GenerationMode.POSITIVE),
        ("GET", "/metrics", GenerationMode.POSITIVE),
    ],
)
def test_every_answer_is_as_the_api_page_says(api, method, path, mode):
    @QUICK
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def fuzz(case):
        case.call_and_validate(checks=CHECKS.get_all())

    fuzz()
