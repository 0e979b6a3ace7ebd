"""What surrounds each call from Python."""

import sys

import pytest

from burnish.api.call import public
from burnish.errors import UserError


def test_sys_exit_in_code_of_the_user_does_not_end_the_program():
    with pytest.raises(UserError, match=r"^SystemExit\(3\) from \S+test_call\.py, line \d+, in leave: .*another exce"):
        public(leave)()


def leave():
    sys.exit(3)
