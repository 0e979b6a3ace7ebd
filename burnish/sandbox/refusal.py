"""Messages for machines that permit no isolation: what was refused, and every way out; and for machines that permit
it, but where programs still cannot be run."""

import os
import sys

FIXES = """\
  - an ordinary user: sysctl kernel.unprivileged_userns_clone=1 (Debian), \
sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or a larger sysctl user.max_user_namespaces
  - a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined, \
or --cap-add SYS_ADMIN --security-opt apparmor=unconfined
  - another machine: a SandboxFusion server, reward_model.sandbox.url=http://host:8080/run_code
  - at your own risk: reward_model.sandbox.allow_unsafe=true runs programs without isolation, under limits alone"""
SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
    "/proc/sys/user/max_user_namespaces": "0",
}


def how_to_permit(reason: str) -> str:
    found = []
    for path, value in SWITCHES.items():
        if os.path.exists(path):
            with open(path) as file:
                if file.read().strip() == value:
                    found.append(f"{path.removeprefix('/proc/sys/').replace('/', '.')}={value}")
    seen = f" ({', '.join(found)} is set here)" if found else ""
    return f"this machine does not let programs be isolated: {reason}{seen}. Ways out:\n{FIXES}"


def how_to_repair(reason: str) -> str:
    """Nobody has refused anything."""
    advice = "This may pass: try again"
    if os.geteuid() == 0:  # then programs are `nobody`
        advice += f". Everyone must be able to read the Python that runs here: chmod -R a+rX {sys.prefix}"
        advice += ", and chmod a+x the folders above it"
    return f"programs cannot be run in the sandbox: {reason}. {advice}"
