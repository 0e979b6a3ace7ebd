"""The health of a run, read from its folder."""

import pytest

from burnish.errors import ConfigError
from burnish.tracking.run_health import read_health


@pytest.mark.parametrize(
    ("file", "fix"), [("config.yaml", "`burnish status .*` shows why"), (None, "the folder of a run")]
)
def test_folder_without_metrics_is_refused(tmp_path, file, fix):
    if file:
        (tmp_path / file).touch()
    with pytest.raises(ConfigError, match=f"no step is logged .metrics.jsonl.; .*{fix}"):
        read_health(tmp_path)
